//! Tells reasoning, text and calls apart.
//!
//! White space directly between markers, one line end on the inner side of a reasoning marker, up to two behind the
//! reasoning and as many as the family writes in front of a call are framing: templates write them again. Everything
//! else that is generated comes out once, in order. A marker is one only where it can be: reasoning opens at the
//! beginning of the answer or behind another marker, a call opens where a call follows and nobody just speaks of it.
//! What is held back is the beginning of a marker, white space behind one, and a call that is not announced yet.

use super::families::{CallParser, Family, Opening, Step, StreamParser};
use super::formats::{ReasoningFormat, ToolFormat};
use super::prose::Prose;
use super::reasoning::Reasoning;
use super::reread::{self, Budget, Reader, Taken};
use super::sink::Sink;
use super::tools::Tools;

/// White space behind a marker is kept until it is known what it belongs to, but not more than this.
const SPACE_BYTES_MAX: usize = 64;
/// Line ends behind the reasoning that are framing.
const LINE_ENDS_BEHIND_REASONING: usize = 2;

/// More markers count nowhere.
const FIRSTS_MAX: usize = 12;

/// What stands in front of the text being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    Start,
    Reasoning,
    Call,
    /// Text has begun.
    Text,
}

#[derive(Debug)]
enum Mode {
    Text,
    Reasoning,
    Call(Candidate),
}

/// A call being read. Until it is announced, all of it may still be text.
#[derive(Debug)]
struct Candidate {
    parser: Box<dyn CallParser>,
    /// What is held: until the first call is announced everything since and with the marker.
    raw: String,
    /// Bytes of the marker and the line ends before it, while they are held.
    marker: usize,
    held: bool,
    /// Whether it began inside reasoning.
    in_reasoning: bool,
    /// Calls that were announced before it.
    calls_before: u32,
}

/// What the splitter looks for.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) tool_format: ToolFormat,
    pub(super) reasoning: ReasoningFormat,
    pub(super) starts_in_reasoning: Option<bool>,
    pub(super) tools: Tools,
    pub(super) bare_calls: bool,
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each remembers something of its own about the text before")]
pub(super) struct Splitter {
    family: Option<&'static Family>,
    reasoning: Option<&'static Reasoning>,
    /// The family, where calls without markers are looked for.
    bare: Option<&'static Family>,
    tools: Tools,
    mode: Mode,
    lead: Lead,
    space: String,
    /// Line ends that belong to a marker if one follows.
    line_ends: usize,
    /// The beginning of a marker.
    partial: String,
    skip_line_end: bool,
    /// Nothing of the answer has been read, and it began inside reasoning: its marker may be written again.
    reopens: bool,
    /// Reasoning was ended by a call: its closing marker may still come.
    left_open: bool,
    /// A section of calls was left by text: its closing markers may still come.
    section_open: bool,
    prose: Prose,
    budget: Budget,
}

impl Splitter {
    pub(super) fn new(wanted: Wanted) -> Self {
        let Wanted { tool_format, reasoning, starts_in_reasoning, tools, bare_calls } = wanted;
        let (family, reasoning) = (tool_format.family(), reasoning.format());
        let by_itself = reasoning.is_some_and(|format| format.starts_inside);
        let starts_inside = reasoning.is_some() && starts_in_reasoning.unwrap_or(by_itself);
        let unmarked = reasoning.is_none() && family.is_none();
        Self {
            family,
            reasoning,
            bare: family.filter(|_| bare_calls),
            tools,
            mode: if starts_inside { Mode::Reasoning } else { Mode::Text },
            lead: if unmarked { Lead::Text } else { Lead::Start },
            space: String::new(),
            line_ends: 0,
            partial: String::new(),
            skip_line_end: starts_inside,
            reopens: starts_inside,
            left_open: false,
            section_open: false,
            prose: Prose::new(),
            budget: Budget::default(),
        }
    }

    /// Bytes at the beginning of `rest` in which nothing can begin.
    fn plain_run(&self, rest: &str) -> usize {
        let settled = self.partial.is_empty() && self.line_ends == 0 && !self.skip_line_end && !self.reopens;
        if !settled || self.in_call() || !self.in_reasoning() && self.lead != Lead::Text {
            return 0;
        }
        if !self.has_markers() {
            return rest.len();
        }
        // Every character is compared with these: gathered once, not for each of them.
        let mut begins = ['\n'; FIRSTS_MAX];
        let firsts = self.markers().filter_map(|marker| marker.chars().next());
        for (place, first) in begins[1..].iter_mut().zip(firsts) {
            *place = first;
        }
        rest.find(begins).unwrap_or(rest.len())
    }

    /// The markers that count here.
    fn markers(&self) -> impl Iterator<Item = &'static str> {
        let inside = self.in_reasoning();
        let (mut thoughts, mut more, mut calls, mut closes): (&[&str], &[&str], &[&str], &[&str]) =
            (&[], &[], &[], &[]);
        if let Some(format) = self.reasoning {
            if inside {
                thoughts = format.close;
                more = if self.reopens { format.open } else { &[] };
            } else {
                thoughts = if self.lead == Lead::Text { &[] } else { format.open };
                let stray = (format.drops_stray_close || self.left_open) && self.lead != Lead::Text;
                more = if stray { format.close } else { &[] };
            }
        }
        if let Some(family) = self.family
            && (!inside || self.reasoning.is_some_and(|format| format.ends_at_call))
        {
            calls = family.open;
            closes = if self.section_open { family.closes() } else { &[] };
        }
        thoughts.iter().chain(more).chain(calls).chain(closes).copied()
    }

    fn has_markers(&self) -> bool {
        self.markers().next().is_some()
    }

    /// Whether this marker is one of calls, or this text may become one.
    fn is_of_calls(&self, text: &str) -> bool {
        let is_it = |marker: &&str| marker.starts_with(text);
        self.family.is_some_and(|family| family.open.iter().any(is_it) || family.closes().iter().any(is_it))
    }

    /// Whether the text can become a marker here.
    fn may_become_marker(&self, text: &str) -> bool {
        let quoted = self.prose.quotes();
        // What closes reasoning is spoken of only where a quotation opens directly in front of it: a stray quotation
        // mark must not make the whole answer reasoning.
        let named = self.in_reasoning() && self.prose.opened().is_some();
        let spoken_of = |marker: &str| if self.is_of_calls(marker) { quoted } else { named };
        self.markers().any(|marker| marker.starts_with(text) && !spoken_of(marker))
    }

    fn take_character(&mut self, character: char, sink: &mut Sink<'_>) -> Taken {
        if self.in_call() {
            return self.take_in_call(character, sink);
        }
        if std::mem::take(&mut self.skip_line_end) && character == '\n' {
            return Taken::Bytes(character.len_utf8());
        }
        if !self.partial.is_empty() {
            return self.take_in_marker(character, sink);
        }
        let leading = !self.in_reasoning() && self.lead != Lead::Text;
        if leading && character.is_ascii_whitespace() {
            self.space.push(character);
            if self.space.len() > SPACE_BYTES_MAX {
                self.begin_text(sink);
            }
            return Taken::Bytes(character.len_utf8());
        }
        if self.may_become_marker(character.encode_utf8(&mut [0; 4])) {
            return self.take_in_marker(character, sink);
        }
        if leading {
            self.open_bare_call(character, sink);
            if !self.in_call() {
                self.begin_text(sink);
            }
            return Taken::Again(String::new());
        }
        self.reopens = false;
        if character == '\n' && self.has_markers() {
            self.prose.push("\n");
            let framing = self.family.map_or(1, |family| family.line_ends_before.max(1));
            if self.line_ends == framing {
                self.show("\n", sink);
            } else {
                self.line_ends += 1;
            }
        } else {
            self.release_line_ends(sink);
            self.emit(character.encode_utf8(&mut [0; 4]), sink);
        }
        Taken::Bytes(character.len_utf8())
    }

    fn take_in_marker(&mut self, character: char, sink: &mut Sink<'_>) -> Taken {
        self.partial.push(character);
        let partial = std::mem::take(&mut self.partial);
        if self.markers().any(|marker| marker == partial) {
            self.marker(&partial, sink);
            return Taken::Bytes(character.len_utf8());
        }
        self.partial = partial;
        if self.may_become_marker(&self.partial) {
            return Taken::Bytes(character.len_utf8());
        }
        self.partial.pop();
        self.reopens = false;
        if !self.in_reasoning() && self.lead != Lead::Text {
            self.begin_text(sink);
        }
        self.release_line_ends(sink);
        // A marker may begin behind the first character of what was none.
        let partial = std::mem::take(&mut self.partial);
        let first = partial.chars().next().map_or(0, char::len_utf8);
        self.emit(&partial[..first], sink);
        Taken::Again(partial[first..].to_owned())
    }

    fn marker(&mut self, marker: &str, sink: &Sink<'_>) {
        let mut raw = "\n".repeat(std::mem::take(&mut self.line_ends));
        raw.push_str(marker);
        let reopens = std::mem::take(&mut self.reopens);
        if self.reasoning.is_some_and(|format| format.open.contains(&marker)) {
            if !reopens {
                self.prose = Prose::new();
            }
            self.space.clear();
            self.skip_line_end = true;
            self.left_open = false;
            self.mode = Mode::Reasoning;
        } else if self.reasoning.is_some_and(|format| format.close.contains(&marker)) {
            self.left_open = false;
            self.back_to_text(Lead::Reasoning);
        } else if let Some(family) = self.family {
            if family.closes().contains(&marker) {
                self.back_to_text(Lead::Call);
            } else if let Some(parser) = family.open(&Opening { marker, tools: &self.tools }) {
                self.begin_call(parser, raw, sink);
            }
        }
    }

    fn open_bare_call(&mut self, first: char, sink: &Sink<'_>) {
        if matches!(self.lead, Lead::Start | Lead::Reasoning)
            && let Ok(first) = u8::try_from(first)
            && let Some(parser) = self.bare.and_then(|family| family.open_bare(first, &self.tools))
        {
            self.begin_call(parser, String::new(), sink);
        }
    }

    fn begin_call(&mut self, parser: Box<dyn CallParser>, raw: String, sink: &Sink<'_>) {
        let (marker, in_reasoning, calls_before) = (raw.len(), self.in_reasoning(), sink.calls.count());
        self.mode = Mode::Call(Candidate { parser, raw, marker, held: true, in_reasoning, calls_before });
    }

    fn take_in_call(&mut self, character: char, sink: &mut Sink<'_>) -> Taken {
        let Mode::Call(candidate) = &mut self.mode else {
            return Taken::Again(String::new());
        };
        for &byte in character.encode_utf8(&mut [0; 4]).as_bytes() {
            match candidate.parser.push(byte, sink.calls) {
                Step::Held => candidate.held = true,
                Step::Taken => {
                    candidate.held = false;
                    candidate.raw.clear();
                    candidate.marker = 0;
                    self.space.clear();
                }
                Step::Framed => return Taken::Again(self.without_frame(sink)),
                Step::NotACall => return Taken::Again(self.not_a_call(sink)),
                Step::Ended => {
                    self.left_open |= candidate.in_reasoning;
                    self.section_open = false;
                    self.back_to_text(Lead::Call);
                    return Taken::Bytes(character.len_utf8());
                }
            }
        }
        if candidate.held {
            candidate.raw.push(character);
        }
        Taken::Bytes(character.len_utf8())
    }

    /// What is held behind the marker is read again, as what stands in front of a call.
    fn without_frame(&mut self, sink: &mut Sink<'_>) -> String {
        let Mode::Call(Candidate { raw, marker, in_reasoning, .. }) = &self.mode else {
            return String::new();
        };
        let (marker, rest) = raw.split_at(*marker);
        if !self.budget.allows(rest.len()) {
            return self.not_a_call(sink);
        }
        let (line_ends, rest) = (marker.len() - marker.trim_start_matches('\n').len(), rest.to_owned());
        self.mode = if *in_reasoning { Mode::Reasoning } else { Mode::Text };
        self.show(&"\n".repeat(line_ends), sink);
        rest
    }

    /// What is held is text. Emits its marker; what is behind it is returned to be read again, since a call may
    /// begin there, or emitted too when too much has been read twice already.
    fn not_a_call(&mut self, sink: &mut Sink<'_>) -> String {
        let Mode::Call(candidate) = std::mem::replace(&mut self.mode, Mode::Text) else {
            return String::new();
        };
        let Candidate { raw, marker, in_reasoning, calls_before, .. } = candidate;
        let (marker, rest) = raw.split_at(marker);
        if sink.calls.count() > calls_before {
            self.left_open |= in_reasoning;
            self.section_open = true;
            self.back_to_text(Lead::Call);
        } else if in_reasoning {
            self.mode = Mode::Reasoning;
        } else if self.lead != Lead::Text {
            self.begin_text(sink);
        }
        // The line ends before the marker were taken for prose when they came.
        let line_ends = marker.len() - marker.trim_start_matches('\n').len();
        self.show(&marker[..line_ends], sink);
        self.emit(&marker[line_ends..], sink);
        if self.budget.allows(rest.len()) {
            return rest.to_owned();
        }
        if !rest.is_empty() && !self.in_reasoning() && self.lead != Lead::Text {
            self.begin_text(sink);
        }
        self.emit(rest, sink);
        String::new()
    }

    fn back_to_text(&mut self, lead: Lead) {
        self.mode = Mode::Text;
        self.lead = lead;
        self.space.clear();
        self.prose = Prose::new();
    }

    /// Text begins: white space before it is shown, but for the framing behind reasoning.
    fn begin_text(&mut self, sink: &mut Sink<'_>) {
        let mut space = std::mem::take(&mut self.space);
        if self.lead == Lead::Reasoning {
            let line_ends = space.bytes().take_while(|&byte| byte == b'\n').count();
            space.drain(..line_ends.min(LINE_ENDS_BEHIND_REASONING));
        }
        self.lead = Lead::Text;
        self.emit(&space, sink);
    }

    fn release_line_ends(&mut self, sink: &mut Sink<'_>) {
        for _ in 0..std::mem::take(&mut self.line_ends) {
            self.show("\n", sink);
        }
    }

    fn emit(&mut self, text: &str, sink: &mut Sink<'_>) {
        self.prose.push(text);
        self.show(text, sink);
    }

    fn show(&self, text: &str, sink: &mut Sink<'_>) {
        if self.in_reasoning() {
            sink.reasoning(text);
        } else {
            sink.text(text);
        }
    }
}

impl Reader for Splitter {
    fn take(&mut self, rest: &str, sink: &mut Sink<'_>) -> Taken {
        match (self.plain_run(rest), rest.chars().next()) {
            (0, Some(character)) => self.take_character(character, sink),
            (plain, _) => {
                self.emit(&rest[..plain], sink);
                Taken::Bytes(plain)
            }
        }
    }

    fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }
}

impl StreamParser for Splitter {
    fn push(&mut self, text: &str, sink: &mut Sink<'_>) {
        reread::read(self, String::new(), text, sink);
        sink.drain_calls();
    }

    fn finish(&mut self, cut: bool, sink: &mut Sink<'_>) {
        while let Mode::Call(candidate) = &mut self.mode {
            if candidate.parser.finish(cut, sink.calls) {
                self.back_to_text(Lead::Call);
            } else {
                let rest = self.not_a_call(sink);
                reread::read(self, rest, "", sink);
            }
        }
        // Only white space behind a marker is framing; an answer that is nothing else is shown.
        if self.lead == Lead::Start && !self.in_reasoning() || !self.in_reasoning() && !self.partial.is_empty() {
            self.begin_text(sink);
        }
        let partial = std::mem::take(&mut self.partial);
        self.release_line_ends(sink);
        self.emit(&partial, sink);
        sink.drain_calls();
    }

    fn held(&self) -> bool {
        let in_call = matches!(&self.mode, Mode::Call(candidate) if candidate.held);
        in_call || self.line_ends > 0 || !self.partial.is_empty() || !self.space.is_empty()
    }

    fn in_reasoning(&self) -> bool {
        matches!(self.mode, Mode::Reasoning)
    }

    fn in_call(&self) -> bool {
        matches!(self.mode, Mode::Call(_))
    }

    #[cfg(any(test, fuzzing))]
    fn work(&self) -> usize {
        self.budget.work
    }
}
