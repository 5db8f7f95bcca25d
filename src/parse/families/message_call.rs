//! The call that a message consists of, up to the marker that closes it.

use super::call_object::{CallObject, ObjectStep};
use super::channels::Form;
use super::literal::{Choice, Match, Until};
use super::named::{NamedCall, Progress};
use super::{CallParser, Step};
use crate::parse::calls::Calls;

#[derive(Debug)]
enum State {
    /// The message is the arguments.
    Named(NamedCall),
    /// The message has name and arguments.
    Object(CallObject),
    Broken(Until),
    /// Behind the arguments. What closes them is whole: a missing bracket changes neither name nor arguments.
    Tail,
}

/// Reads the text of a message that is a call.
#[derive(Debug)]
pub(super) struct MessageCall {
    form: &'static Form,
    state: State,
    ends: Choice,
    announced: bool,
}

impl MessageCall {
    pub(super) fn new(name: Option<String>, form: &'static Form) -> Self {
        let state = match name {
            Some(name) => State::Named(NamedCall::new(name, None, form.ends)),
            None => State::Object(CallObject::new()),
        };
        Self { form, state, ends: Choice::new(form.ends), announced: false }
    }

    /// Whether the message is a call.
    pub(super) fn is_announced(&self) -> bool {
        self.announced
    }

    fn object(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let State::Object(object) = &mut self.state else {
            return Step::NotACall;
        };
        let step = object.push(byte);
        object.pass(calls);
        match step {
            ObjectStep::More if object.is_announced() => Step::Taken,
            ObjectStep::More => Step::Held,
            ObjectStep::Complete => {
                self.state = State::Tail;
                Step::Taken
            }
            ObjectStep::Invalid if !object.is_announced() => Step::NotACall,
            ObjectStep::Invalid if object.arguments_complete() => {
                self.state = State::Tail;
                self.tail(byte, calls)
            }
            ObjectStep::Invalid => {
                self.state = State::Broken(Until::new(self.form.ends));
                self.push(byte, calls)
            }
        }
    }

    fn tail(&mut self, byte: u8, calls: &mut Calls) -> Step {
        if !self.ends.is_inside() && byte.is_ascii_whitespace() {
            return Step::Held;
        }
        let (found, which) = self.ends.push(byte);
        if found == Match::Part {
            return Step::Held;
        }
        calls.done(true);
        if found == Match::Whole { self.closed(which) } else { Step::NotACall }
    }

    /// The marker of this number closes the message; one that opens the next is read again.
    fn closed(&self, which: usize) -> Step {
        if self.form.opens.contains(&self.form.ends[which]) { Step::NotACall } else { Step::Ended }
    }
}

impl CallParser for MessageCall {
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let step = match &mut self.state {
            State::Named(call) => match call.push(byte, calls) {
                Progress::Complete => {
                    self.state = State::Tail;
                    Step::Taken
                }
                Progress::Closed(which) => self.closed(which),
                progress => progress.into(),
            },
            State::Object(_) => self.object(byte, calls),
            State::Broken(until) => match until.push_which(byte, |bytes| calls.append(bytes)) {
                Some(which) => {
                    calls.done(false);
                    self.closed(which)
                }
                None if until.kept().is_empty() => Step::Taken,
                None => Step::Held,
            },
            State::Tail => self.tail(byte, calls),
        };
        self.announced |= calls.is_open();
        step
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool {
        if !calls.is_open() {
            return false;
        }
        match &mut self.state {
            State::Named(call) => call.finish(calls),
            State::Object(_) => calls.done(false),
            State::Broken(until) => {
                calls.append(until.kept());
                calls.done(false);
            }
            State::Tail => calls.done(!cut),
        }
        true
    }
}
