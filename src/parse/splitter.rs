//! Tells reasoning, text and calls apart.
//!
//! White space directly between markers, one line end on the inner side of a reasoning marker, up to two behind the
//! reasoning and one in front of a call are framing: templates write them again. Everything else that is generated
//! comes out once, in order. A marker is one only where it can be: reasoning opens at the beginning of the answer or
//! behind another marker, a call opens where a call follows. What is held back is the beginning of a marker, white
//! space behind one, and a call that is not announced yet.

use super::families::{self, CallParser, Step};
use super::piece::{ReasoningFormat, ToolFormat};
use super::reasoning::{self, Markers};
use super::sink::Sink;

/// White space behind a marker is kept until it is known what it belongs to, but not more than this.
const SPACE_BYTES_MAX: usize = 64;
/// Line ends behind the reasoning that are framing.
const LINE_ENDS_BEHIND_REASONING: usize = 2;

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
    /// Everything since and with the marker.
    raw: String,
    /// Bytes of the marker and the line end before it.
    marker: usize,
}

/// What became of a character.
enum Taken {
    Yes,
    /// It is to be read again, behind this text.
    Again(String),
}

#[derive(Debug)]
pub(super) struct Splitter {
    format: ToolFormat,
    reasoning: Option<Markers>,
    tools: Vec<String>,
    mode: Mode,
    lead: Lead,
    space: String,
    /// A line end that belongs to a marker if one follows.
    line_end: bool,
    /// The beginning of a marker.
    partial: String,
    skip_line_end: bool,
    /// Bytes that may still be read a second time: as many as were read, so that work stays linear.
    allowance: usize,
    #[cfg(test)]
    pub(super) work: usize,
}

impl Splitter {
    pub(super) fn new(format: ToolFormat, reasoning: ReasoningFormat, starts_inside: bool, tools: Vec<String>) -> Self {
        let reasoning = reasoning::markers(reasoning);
        let starts_inside = starts_inside && reasoning.is_some();
        let unmarked = reasoning.is_none() && families::markers(format).is_empty();
        Self {
            format,
            reasoning,
            tools,
            mode: if starts_inside { Mode::Reasoning } else { Mode::Text },
            lead: if unmarked { Lead::Text } else { Lead::Start },
            space: String::new(),
            line_end: false,
            partial: String::new(),
            skip_line_end: starts_inside,
            allowance: 0,
            #[cfg(test)]
            work: 0,
        }
    }

    pub(super) fn in_reasoning(&self) -> bool {
        matches!(self.mode, Mode::Reasoning)
    }

    pub(super) fn in_call(&self) -> bool {
        matches!(self.mode, Mode::Call(_))
    }

    /// Whether something was taken that is not shown yet and may be text.
    pub(super) fn held(&self) -> bool {
        let in_call = matches!(&self.mode, Mode::Call(candidate) if candidate.parser.held());
        in_call || self.line_end || !self.partial.is_empty() || !self.space.is_empty()
    }

    pub(super) fn push(&mut self, text: &str, sink: &mut Sink<'_>) {
        self.run(text, sink, Vec::new());
        sink.drain_calls();
    }

    /// Reads `text` behind what lies on `again`, the top first.
    fn run(&mut self, text: &str, sink: &mut Sink<'_>, mut again: Vec<(String, usize)>) {
        let mut at = 0;
        while !sink.stopped() {
            let (source, place) = match again.last_mut() {
                Some((source, place)) => (source.as_str(), place),
                None => (text, &mut at),
            };
            let rest = &source[*place..];
            let Some(character) = rest.chars().next() else {
                if again.pop().is_none() {
                    return;
                }
                continue;
            };
            let plain = self.plain_run(rest);
            let taken = if plain > 0 {
                self.emit(&rest[..plain], sink);
                *place += plain;
                plain
            } else {
                match self.take(character, sink) {
                    Taken::Yes => {
                        *place += character.len_utf8();
                        character.len_utf8()
                    }
                    Taken::Again(before) => {
                        if !before.is_empty() {
                            again.push((before, 0));
                        }
                        0
                    }
                }
            };
            #[cfg(test)]
            {
                self.work += taken.max(1);
            }
            if again.is_empty() {
                self.allowance += taken;
            }
        }
    }

    /// The answer ends.
    pub(super) fn finish(&mut self, cut: bool, sink: &mut Sink<'_>) {
        while let Mode::Call(candidate) = &mut self.mode {
            if candidate.parser.finish(cut, sink.calls) == Step::NotACall {
                let rest = self.not_a_call(sink);
                self.run("", sink, vec![(rest, 0)]);
            } else {
                self.back_to_text(Lead::Call);
            }
        }
        // Only white space behind a marker is framing; an answer that is nothing else is shown.
        if self.lead == Lead::Start && !self.in_reasoning() || !self.partial.is_empty() {
            self.begin_text(sink);
        }
        let partial = std::mem::take(&mut self.partial);
        self.release_line_end(sink);
        self.emit(&partial, sink);
        sink.drain_calls();
    }

    /// Bytes at the beginning of `rest` in which nothing can begin.
    fn plain_run(&self, rest: &str) -> usize {
        let settled = self.partial.is_empty() && !self.line_end && !self.skip_line_end;
        if !settled || self.in_call() || !self.in_reasoning() && self.lead != Lead::Text {
            return 0;
        }
        if !self.has_markers() {
            return rest.len();
        }
        let begins = |character: char| character == '\n' || self.markers().any(|marker| marker.starts_with(character));
        rest.find(begins).unwrap_or(rest.len())
    }

    /// The markers that count here.
    fn markers(&self) -> impl Iterator<Item = &'static str> {
        let inside = self.in_reasoning();
        let think = self.reasoning.map(|markers| if inside { markers.close } else { markers.open });
        let calls = if inside { &[] } else { families::markers(self.format) };
        think.filter(|_| inside || self.lead != Lead::Text).into_iter().chain(calls.iter().copied())
    }

    fn has_markers(&self) -> bool {
        self.markers().next().is_some()
    }

    fn take(&mut self, character: char, sink: &mut Sink<'_>) -> Taken {
        if self.in_call() {
            return self.take_in_call(character, sink);
        }
        if std::mem::take(&mut self.skip_line_end) && character == '\n' {
            return Taken::Yes;
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
            return Taken::Yes;
        }
        if self.markers().any(|marker| marker.starts_with(character)) {
            return self.take_in_marker(character, sink);
        }
        if leading {
            self.open_bare_call(character);
            if !self.in_call() {
                self.begin_text(sink);
            }
            return Taken::Again(String::new());
        }
        self.release_line_end(sink);
        if character == '\n' && self.has_markers() {
            self.line_end = true;
        } else {
            self.emit(character.encode_utf8(&mut [0; 4]), sink);
        }
        Taken::Yes
    }

    fn take_in_marker(&mut self, character: char, sink: &mut Sink<'_>) -> Taken {
        self.partial.push(character);
        let partial = self.partial.as_str();
        let whole = self.markers().find(|marker| *marker == partial);
        if let Some(marker) = whole {
            self.marker(marker);
            return Taken::Yes;
        }
        if self.markers().any(|marker| marker.starts_with(partial)) {
            return Taken::Yes;
        }
        self.partial.pop();
        if !self.in_reasoning() && self.lead != Lead::Text {
            self.begin_text(sink);
        }
        self.release_line_end(sink);
        // A marker may begin behind the first character of what was none.
        let partial = std::mem::take(&mut self.partial);
        let first = partial.chars().next().map_or(0, char::len_utf8);
        self.emit(&partial[..first], sink);
        Taken::Again(partial[first..].to_owned())
    }

    fn marker(&mut self, marker: &str) {
        let reasoning = self.reasoning.filter(|markers| marker == markers.open || marker == markers.close);
        let mut raw = if std::mem::take(&mut self.line_end) { "\n".to_owned() } else { String::new() };
        raw.push_str(&std::mem::take(&mut self.partial));
        if reasoning.is_some() && self.in_reasoning() {
            self.back_to_text(Lead::Reasoning);
        } else if reasoning.is_some() {
            self.space.clear();
            self.skip_line_end = true;
            self.mode = Mode::Reasoning;
        } else if let Some(parser) = families::open(self.format) {
            self.mode = Mode::Call(Candidate { parser, marker: raw.len(), raw });
        }
    }

    fn open_bare_call(&mut self, first: char) {
        if self.lead == Lead::Start
            && let Ok(first) = u8::try_from(first)
            && let Some(parser) = families::open_bare(self.format, first, &self.tools)
        {
            self.mode = Mode::Call(Candidate { parser, raw: String::new(), marker: 0 });
        }
    }

    fn take_in_call(&mut self, character: char, sink: &mut Sink<'_>) -> Taken {
        let Mode::Call(candidate) = &mut self.mode else {
            return Taken::Again(String::new());
        };
        for &byte in character.encode_utf8(&mut [0; 4]).as_bytes() {
            match candidate.parser.push(byte, sink.calls) {
                Step::More => {}
                Step::NotACall => return Taken::Again(self.not_a_call(sink)),
                Step::Ended => {
                    self.back_to_text(Lead::Call);
                    return Taken::Yes;
                }
                Step::EndedBefore(kept) => {
                    self.back_to_text(Lead::Call);
                    return Taken::Again(String::from_utf8_lossy(&kept).into_owned());
                }
                Step::Another(kept) => {
                    self.back_to_text(Lead::Call);
                    if let Some(parser) = families::open(self.format) {
                        self.mode = Mode::Call(Candidate { parser, raw: String::new(), marker: 0 });
                    }
                    return Taken::Again(String::from_utf8_lossy(&kept).into_owned());
                }
            }
        }
        if sink.calls.is_open() {
            candidate.raw = String::new();
            self.space.clear();
        } else {
            candidate.raw.push(character);
        }
        Taken::Yes
    }

    /// The candidate is text. Emits its marker; what is behind it is returned to be read again, since a call may
    /// begin there, or emitted too when too much has been read twice already.
    fn not_a_call(&mut self, sink: &mut Sink<'_>) -> String {
        let Mode::Call(candidate) = std::mem::replace(&mut self.mode, Mode::Text) else {
            return String::new();
        };
        if self.lead != Lead::Text {
            self.begin_text(sink);
        }
        let (marker, rest) = candidate.raw.split_at(candidate.marker);
        sink.text(marker);
        if let Some(left) = self.allowance.checked_sub(rest.len()) {
            self.allowance = left;
            return rest.to_owned();
        }
        sink.text(rest);
        String::new()
    }

    fn back_to_text(&mut self, lead: Lead) {
        self.mode = Mode::Text;
        self.lead = lead;
        self.space.clear();
    }

    /// Text begins: white space before it is shown, but for the framing behind reasoning.
    fn begin_text(&mut self, sink: &mut Sink<'_>) {
        let mut space = std::mem::take(&mut self.space);
        if self.lead == Lead::Reasoning {
            let line_ends = space.bytes().take_while(|&byte| byte == b'\n').count();
            space.drain(..line_ends.min(LINE_ENDS_BEHIND_REASONING));
        }
        self.lead = Lead::Text;
        sink.text(&space);
    }

    fn release_line_end(&mut self, sink: &mut Sink<'_>) {
        if std::mem::take(&mut self.line_end) {
            self.emit("\n", sink);
        }
    }

    fn emit(&self, text: &str, sink: &mut Sink<'_>) {
        if self.in_reasoning() {
            sink.reasoning(text);
        } else {
            sink.text(text);
        }
    }
}
