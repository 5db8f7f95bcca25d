//! A section of calls, each between markers of its own, with the name in front of the arguments.

use super::literal::{Choice, Literal, Match, Until};
use super::named::{NamedCall, Progress};
use super::{CallParser, Opening, Step};
use crate::parse::calls::Calls;

/// What stands in front of the arguments is no longer than this.
const HEADER_BYTES_MAX: usize = 512;
/// White space that may stand between calls.
const SPACE_BYTES_MAX: usize = 64;
/// What may be said between the opening of a section and its first call.
const PROSE_BYTES_MAX: usize = 512;
const FENCE: &str = "```";

/// What a header says.
pub(super) type NameAndId = (String, Option<String>);

/// How a family's section looks.
#[derive(Debug)]
pub(super) struct Form {
    /// What opens a call.
    pub(super) call_open: &'static str,
    /// What ends the header of a call.
    pub(super) separator: &'static str,
    /// What closes a call, what closes the section in all spellings, and again what opens a call.
    pub(super) tails: &'static [&'static str],
    /// The name and the id, by the header. `None`: it is none.
    pub(super) header: fn(&str) -> Option<NameAndId>,
    /// Whether the name stands behind the separator, in a line of its own, and the arguments in a fence.
    pub(super) fenced: bool,
}

#[derive(Debug)]
enum State {
    /// Between calls; how much white space has passed.
    Between(usize),
    /// Something is said in front of the first call; how long it is.
    Prose(usize),
    Header(Vec<u8>),
    /// The line of the name, and the fence behind it, as far as they have been read.
    Lines(Vec<u8>),
    Call(NamedCall),
    /// Behind the arguments; how much of the closing fence has been seen.
    Tail {
        fence: usize,
    },
}

#[derive(Debug)]
pub(super) struct Section {
    form: &'static Form,
    state: State,
    separator: Literal,
    tails: Choice,
    /// The same, searched for in what is said in front of the first call; `None` once a call has begun.
    behind_prose: Option<Until>,
}

impl Section {
    pub(super) fn new(form: &'static Form, opening: &Opening<'_>) -> Self {
        let begun = opening.marker == form.call_open;
        let state = if begun { State::Header(Vec::new()) } else { State::Between(0) };
        let behind_prose = (!begun).then(|| Until::new(form.tails));
        Self { form, state, separator: Literal::new(form.separator), tails: Choice::new(form.tails), behind_prose }
    }

    /// Between calls; a section without any ends quietly.
    fn between(&mut self, byte: u8, space: usize) -> Step {
        if !self.tails.is_inside() && byte.is_ascii_whitespace() && space < SPACE_BYTES_MAX {
            self.state = State::Between(space + 1);
            return Step::Held;
        }
        match self.tails.push(byte) {
            (Match::Part, _) => Step::Held,
            (Match::Whole, which) if self.form.tails[which] == self.form.call_open => {
                (self.state, self.behind_prose) = (State::Header(Vec::new()), None);
                Step::Held
            }
            (Match::Whole, 1..) => Step::Ended,
            (Match::No, _) => self.prose(byte, 1),
            (Match::Whole, _) => Step::NotACall,
        }
    }

    /// Where a call follows soon, the section was opened for it, and what is said is text; else nothing was opened.
    fn prose(&mut self, byte: u8, length: usize) -> Step {
        let Some(tails) = self.behind_prose.as_mut().filter(|_| length <= PROSE_BYTES_MAX) else {
            return Step::NotACall;
        };
        self.state = State::Prose(length);
        match tails.push_which(byte, |_| {}) {
            None => Step::Held,
            Some(which) if self.form.tails[which] == self.form.call_open => Step::Framed,
            Some(_) => Step::NotACall,
        }
    }

    fn header(&mut self, byte: u8) -> Step {
        let State::Header(header) = &mut self.state else {
            return Step::NotACall;
        };
        let before = self.separator.bytes();
        match self.separator.push(byte) {
            Match::Part => return Step::Held,
            Match::Whole if self.form.fenced => {
                self.state = State::Lines(Vec::new());
                return Step::Held;
            }
            Match::Whole => {
                let header = std::mem::take(header);
                return self.begin(&header);
            }
            Match::No => {}
        }
        header.extend(before);
        if !before.is_empty() && self.separator.push(byte) == Match::Part {
            return Step::Held;
        }
        header.push(byte);
        if header.len() > HEADER_BYTES_MAX { Step::NotACall } else { Step::Held }
    }

    fn begin(&mut self, header: &[u8]) -> Step {
        let named = std::str::from_utf8(header).ok().and_then(self.form.header);
        let Some((name, id)) = named.filter(|(name, _)| !name.is_empty()) else {
            return Step::NotACall;
        };
        self.state = State::Call(NamedCall::new(name, id, self.form.tails));
        Step::Held
    }

    /// The name's line and the opening fence, up to the end of its line, or to the arguments where there is no fence.
    fn lines(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let State::Lines(lines) = &mut self.state else {
            return Step::NotACall;
        };
        let name_ends = lines.iter().position(|&byte| byte == b'\n');
        let behind = name_ends.map(|at| lines[at..].trim_ascii());
        let in_fence = behind.is_some_and(|text| text.starts_with(b"`"));
        if byte == b'{' && behind.is_some_and(<[u8]>::is_empty) || byte == b'\n' && in_fence {
            let whole = [&b""[..], b"```", b"```json"].contains(&behind.unwrap_or_default());
            let name = lines[..name_ends.unwrap_or(0)].trim_ascii().to_vec();
            if !whole || self.begin(&name) == Step::NotACall {
                return Step::NotACall;
            }
            return if byte == b'{' { self.call(byte, calls) } else { Step::Held };
        }
        lines.push(byte);
        if lines.len() > HEADER_BYTES_MAX { Step::NotACall } else { Step::Held }
    }

    fn call(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let State::Call(call) = &mut self.state else {
            return Step::NotACall;
        };
        let progress = call.push(byte, calls);
        match progress {
            Progress::Complete => self.state = State::Tail { fence: 0 },
            Progress::Closed(which) => return self.closed(which),
            _ => {}
        }
        progress.into()
    }

    fn tail(&mut self, byte: u8, fence: usize, calls: &mut Calls) -> Step {
        if !self.tails.is_inside() {
            if byte.is_ascii_whitespace() && matches!(fence, 0 | 3) {
                return Step::Held;
            }
            if self.form.fenced && FENCE.as_bytes().get(fence) == Some(&byte) {
                self.state = State::Tail { fence: fence + 1 };
                return Step::Held;
            }
        }
        match self.tails.push(byte) {
            (Match::Part, _) => Step::Held,
            (Match::Whole, which) => {
                calls.done(true);
                self.closed(which)
            }
            (Match::No, _) => {
                calls.done(true);
                Step::NotACall
            }
        }
    }

    /// A call was closed by the marker of this number, or by what comes behind it.
    fn closed(&mut self, which: usize) -> Step {
        if self.form.tails[which] == self.form.call_open {
            self.state = State::Header(Vec::new());
            return Step::Taken;
        }
        self.state = State::Between(0);
        if which == 0 { Step::Taken } else { Step::Ended }
    }
}

impl CallParser for Section {
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step {
        match self.state {
            State::Between(space) => self.between(byte, space),
            State::Prose(length) => self.prose(byte, length + 1),
            State::Header(_) => self.header(byte),
            State::Lines(_) => self.lines(byte, calls),
            State::Call(_) => self.call(byte, calls),
            State::Tail { fence } => self.tail(byte, fence, calls),
        }
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool {
        if !calls.is_open() {
            return false;
        }
        match &mut self.state {
            State::Call(call) => call.finish(calls),
            _ => calls.done(!cut),
        }
        true
    }
}
