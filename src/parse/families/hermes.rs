//! `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen2.5, Qwen3, and whoever gets our tool prompt.

use super::call_object::{CallObject, ObjectStep};
use super::{CallParser, Step};
use crate::parse::calls::Calls;

pub(super) const OPEN: &str = "<tool_call>";
/// The marker that closes a call.
pub(super) const CLOSE: &str = "</tool_call>";
/// White space that may stand between the marker and the object.
const SPACE_BYTES_MAX: usize = 64;

#[derive(Debug)]
enum State {
    /// Before the object; how much white space has passed.
    Before(usize),
    Object,
    /// Behind the arguments; white space and the beginning of the closing marker are kept. `closed` says whether the
    /// object's own bracket was there.
    Tail {
        kept: Vec<u8>,
        matched: usize,
        closed: bool,
    },
    /// The arguments broke: raw bytes up to the closing marker.
    Broken {
        matched: usize,
    },
}

#[derive(Debug)]
pub(super) struct Hermes {
    state: State,
    object: CallObject,
    /// Bytes of the arguments that were passed on.
    passed: usize,
    announced: bool,
}

impl Hermes {
    pub(super) fn new() -> Self {
        Self { state: State::Before(0), object: CallObject::new(), passed: 0, announced: false }
    }

    fn object(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let step = self.object.push(byte);
        if let Some((name, arguments)) = self.object.announced() {
            if !self.announced {
                calls.start(name);
                self.announced = true;
            }
            calls.append(&arguments[self.passed..]);
            self.passed = arguments.len();
        }
        match step {
            ObjectStep::More => Step::More,
            ObjectStep::Complete => {
                self.state = State::Tail { kept: Vec::new(), matched: 0, closed: true };
                Step::More
            }
            ObjectStep::Invalid if !self.announced => Step::NotACall,
            ObjectStep::Invalid if self.object.arguments_complete() => {
                self.state = State::Tail { kept: Vec::new(), matched: 0, closed: false };
                self.tail(byte, calls)
            }
            ObjectStep::Invalid => {
                self.state = State::Broken { matched: 0 };
                self.broken(byte, calls)
            }
        }
    }

    fn tail(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let State::Tail { kept, matched, closed } = &mut self.state else {
            return Step::More;
        };
        if *matched == 0 && byte.is_ascii_whitespace() {
            kept.push(byte);
            return Step::More;
        }
        if CLOSE.as_bytes().get(*matched) == Some(&byte) {
            kept.push(byte);
            *matched += 1;
            if *matched < CLOSE.len() {
                return Step::More;
            }
            // Name and arguments are whole; a missing bracket behind them changes neither.
            calls.done(true);
            return Step::Ended;
        }
        let (kept, first, closed) = (std::mem::take(kept), *matched == 0, *closed);
        calls.done(closed);
        if closed && first && byte == b'{' { Step::Another(kept) } else { Step::EndedBefore(kept) }
    }

    fn broken(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let State::Broken { matched } = &mut self.state else {
            return Step::More;
        };
        if CLOSE.as_bytes()[*matched] == byte {
            *matched += 1;
            if *matched == CLOSE.len() {
                calls.done(false);
                return Step::Ended;
            }
            return Step::More;
        }
        calls.append(&CLOSE.as_bytes()[..*matched]);
        // The marker's first byte occurs in it only once, so nothing shorter can have begun.
        *matched = usize::from(byte == CLOSE.as_bytes()[0]);
        if *matched == 0 {
            calls.append(&[byte]);
        }
        Step::More
    }
}

impl CallParser for Hermes {
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step {
        match &mut self.state {
            State::Before(space) if byte.is_ascii_whitespace() => {
                *space += 1;
                if *space > SPACE_BYTES_MAX { Step::NotACall } else { Step::More }
            }
            State::Before(_) => {
                self.state = State::Object;
                self.object(byte, calls)
            }
            State::Object => self.object(byte, calls),
            State::Tail { .. } => self.tail(byte, calls),
            State::Broken { .. } => self.broken(byte, calls),
        }
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> Step {
        if !self.announced {
            return Step::NotACall;
        }
        match &self.state {
            State::Tail { closed, .. } => calls.done(*closed && !cut),
            State::Broken { matched } => {
                calls.append(&CLOSE.as_bytes()[..*matched]);
                calls.done(false);
            }
            State::Before(_) | State::Object => calls.done(false),
        }
        Step::Ended
    }

    fn held(&self) -> bool {
        match &self.state {
            State::Before(_) | State::Object => !self.announced,
            State::Tail { kept, .. } => !kept.is_empty(),
            State::Broken { matched } => *matched > 0,
        }
    }
}
