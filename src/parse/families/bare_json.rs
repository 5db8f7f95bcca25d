//! An answer that is nothing but a call object, bare or in a fence, naming a tool that was declared.
//!
//! Nothing marks it as a call, so it is one only when it is the whole answer: it is announced at the end.
//! What has another key than calls have, or no name for long, is an answer in JSON and given back at once.

use super::call_object::{CallObject, ObjectStep};
use super::{CallParser, Step};
use crate::parse::calls::Calls;
use crate::parse::tools::Tools;

const FENCE: &[u8] = b"```";

#[derive(Debug)]
enum State {
    /// Inside the opening fence line.
    Fence(Vec<u8>),
    Object,
    /// Behind the object; how much of the closing fence has been seen.
    After {
        fence: usize,
    },
}

#[derive(Debug)]
pub(super) struct BareJson {
    tools: Tools,
    state: State,
    fenced: bool,
    object: CallObject,
}

impl BareJson {
    pub(super) fn new(tools: Tools) -> Self {
        Self { tools, state: State::Fence(Vec::new()), fenced: false, object: CallObject::new() }
    }

    fn fence(&mut self, byte: u8) -> Step {
        let State::Fence(line) = &mut self.state else {
            return Step::Held;
        };
        if line.is_empty() && byte == b'{' {
            self.state = State::Object;
            return self.object(byte);
        }
        if byte == b'\n' {
            let known =
                [&b"```"[..], b"```json", b"```tool_call"].contains(&&line.trim_ascii_end().to_ascii_lowercase()[..]);
            self.state = State::Object;
            self.fenced = true;
            return if known { Step::Held } else { Step::NotACall };
        }
        if !byte.is_ascii() {
            return Step::NotACall;
        }
        line.push(byte);
        let begins = |whole: &[u8]| whole.starts_with(line) || line.starts_with(whole);
        if line.len() <= 16 && begins(FENCE) { Step::Held } else { Step::NotACall }
    }

    fn object(&mut self, byte: u8) -> Step {
        let step = self.object.push(byte);
        if self.object.is_rather_json() || self.object.name().is_some_and(|name| !self.tools.knows(name)) {
            return Step::NotACall;
        }
        match step {
            ObjectStep::More => Step::Held,
            ObjectStep::Invalid => Step::NotACall,
            ObjectStep::Complete => {
                self.state = State::After { fence: 0 };
                Step::Held
            }
        }
    }
}

impl CallParser for BareJson {
    fn push(&mut self, byte: u8, _calls: &mut Calls) -> Step {
        match &mut self.state {
            State::Fence(_) => self.fence(byte),
            State::Object => self.object(byte),
            State::After { fence } => {
                if byte.is_ascii_whitespace() && matches!(*fence, 0 | 3) {
                    return Step::Held;
                }
                if self.fenced && byte == b'`' && *fence < FENCE.len() {
                    *fence += 1;
                    return Step::Held;
                }
                Step::NotACall
            }
        }
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool {
        let State::After { fence } = self.state else {
            return false;
        };
        if self.fenced && fence != FENCE.len() || cut || !self.object.has_object() {
            return false;
        }
        self.object.pass(calls);
        calls.done(true);
        true
    }
}
