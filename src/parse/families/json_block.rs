//! Call objects, one or several, alone or in an array: what many families put between their markers.

use super::call_object::{CallObject, ObjectStep};
use super::literal::{Literal, Match, Until};
use super::{CallParser, Step};
use crate::parse::calls::Calls;
use crate::parse::tools::Tools;

/// White space that may stand in front of an object.
const SPACE_BYTES_MAX: usize = 64;

/// How a family's block looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// What closes the block, if anything does. Where it is missing behind whole calls, they are whole all the same.
    pub(super) close: Option<&'static str>,
    /// What may stand between objects that are in no array, besides white space.
    pub(super) separator: Option<u8>,
    /// Whether the objects must be in an array.
    pub(super) array: bool,
}

#[derive(Debug)]
enum State {
    /// In front of an object; how much white space has passed.
    Before(usize),
    Object,
    /// Behind an object. `closed` says whether the object's own bracket was there.
    After {
        closed: bool,
    },
    /// Behind the array.
    Closing,
    /// The arguments broke: raw bytes up to the closing marker.
    Broken(Until),
}

#[derive(Debug)]
pub(super) struct JsonBlock {
    form: Form,
    state: State,
    object: CallObject,
    close: Option<Literal>,
    in_array: bool,
    /// Whether an object was read.
    any: bool,
    /// Whether a bracket too many stood behind the last object.
    surplus: bool,
    /// Only calls of these are calls, where it matters.
    only: Option<Tools>,
}

impl JsonBlock {
    pub(super) fn new(form: Form) -> Self {
        Self {
            form,
            state: State::Before(0),
            object: CallObject::new(),
            close: form.close.map(Literal::new),
            in_array: false,
            any: false,
            surplus: false,
            only: None,
        }
    }

    /// A block of calls of these tools only, where nothing else shows that it is one.
    pub(super) fn of_tools(form: Form, tools: Tools) -> Self {
        Self { only: Some(tools), ..Self::new(form) }
    }

    fn before(&mut self, byte: u8, space: usize, calls: &mut Calls) -> Step {
        match byte {
            byte if byte.is_ascii_whitespace() && space < SPACE_BYTES_MAX => {
                self.state = State::Before(space + 1);
                Step::Held
            }
            b'[' if !self.in_array && !self.any => {
                self.in_array = true;
                Step::Held
            }
            b'{' if self.in_array || !self.form.array => {
                self.state = State::Object;
                self.object = CallObject::new();
                self.any = true;
                self.surplus = false;
                self.object(byte, calls)
            }
            _ => Step::NotACall,
        }
    }

    fn object(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let step = self.object.push(byte);
        let foreign = |tools: &Tools| self.object.name().is_some_and(|name| !tools.knows(name));
        let json = self.only.is_some() && self.object.is_rather_json() && !self.object.is_announced();
        if json || self.only.as_ref().is_some_and(foreign) {
            return Step::NotACall;
        }
        self.object.pass(calls);
        let announced = self.object.is_announced();
        match step {
            ObjectStep::More if announced => Step::Taken,
            ObjectStep::More => Step::Held,
            ObjectStep::Complete => {
                self.state = State::After { closed: true };
                if !self.in_array && self.close.is_none() {
                    calls.done(true);
                }
                Step::Taken
            }
            ObjectStep::Invalid if !announced => Step::NotACall,
            ObjectStep::Invalid if self.object.arguments_complete() => {
                self.state = State::After { closed: false };
                self.after(byte, false, calls)
            }
            ObjectStep::Invalid => {
                self.state = State::Broken(Until::new(self.form.close.as_slice()));
                self.broken(byte, calls)
            }
        }
    }

    fn after(&mut self, byte: u8, closed: bool, calls: &mut Calls) -> Step {
        let in_close = self.close.is_some_and(|close| close.is_inside());
        if byte.is_ascii_whitespace() && !in_close {
            return Step::Held;
        }
        if self.in_array && matches!(byte, b',' | b']') {
            calls.done(true);
            return match (byte, self.close) {
                (b']', None) => Step::Ended,
                (b']', Some(_)) => {
                    self.state = State::Closing;
                    Step::Taken
                }
                _ => {
                    self.state = State::Before(0);
                    Step::Held
                }
            };
        }
        if !in_close && !self.in_array && Some(byte) == self.form.separator {
            calls.done(true);
            self.state = State::Before(0);
            return Step::Held;
        }
        if byte == b'}' && closed && !self.in_array && !in_close && self.close.is_some() && !self.surplus {
            self.surplus = true;
            return Step::Held;
        }
        if let Some(step) = self.close(byte, calls) {
            return step;
        }
        calls.done(closed);
        if closed && !in_close && !self.in_array && byte == b'{' {
            return self.before(byte, 0, calls);
        }
        Step::NotACall
    }

    /// The closing marker, where it goes on with this byte. What it closes is whole: a missing bracket in front of it
    /// changes neither name nor arguments.
    fn close(&mut self, byte: u8, calls: &mut Calls) -> Option<Step> {
        match self.close.as_mut()?.push(byte) {
            Match::No => None,
            Match::Part => Some(Step::Held),
            Match::Whole => {
                calls.done(true);
                Some(Step::Ended)
            }
        }
    }

    fn broken(&mut self, byte: u8, calls: &mut Calls) -> Step {
        match &mut self.state {
            State::Broken(until) => until.take_broken(byte, calls),
            _ => Step::NotACall,
        }
    }
}

impl CallParser for JsonBlock {
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step {
        match self.state {
            State::Before(space) => self.before(byte, space, calls),
            State::Object => self.object(byte, calls),
            State::After { closed } => self.after(byte, closed, calls),
            State::Closing => {
                let in_close = self.close.is_some_and(|close| close.is_inside());
                if byte.is_ascii_whitespace() && !in_close {
                    return Step::Held;
                }
                self.close(byte, calls).unwrap_or(Step::NotACall)
            }
            State::Broken(_) => self.broken(byte, calls),
        }
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool {
        if !calls.is_open() {
            // A separator behind the last object is framing.
            return self.any && self.form.separator.is_some() && matches!(self.state, State::Before(_));
        }
        match &self.state {
            State::After { closed } => calls.done(*closed && !cut),
            State::Broken(until) => {
                calls.append(until.kept());
                calls.done(false);
            }
            State::Before(_) | State::Object | State::Closing => calls.done(false),
        }
        true
    }
}
