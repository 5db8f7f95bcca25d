//! `<|tool_call>call:NAME{key:<|"|>text<|"|>,n:42}<tool_call|>`: Gemma 4.

use super::literal::{Literal as Marker, Match, Until};
use super::writing::{BARE_CALL, CallPart, Each, JSON_WORDS, Writing};
use super::{CallParser, Family, Reads, Step};
use crate::parse::calls::Calls;
use crate::parse::json_scanner::Scan;
use crate::parse::values::{Dialect, Literal};

const PREFIX: &[u8] = b"call:";
const CLOSE: &str = "<tool_call|>";
/// White space that may stand in front of the call.
const SPACE_BYTES_MAX: usize = 64;
/// Longer names belong to no call.
const NAME_BYTES_MAX: usize = 256;

pub(super) static FAMILY: Family = Family {
    name: "gemma4",
    aliases: &["gemma"],
    open: &["<|tool_call>"],
    inner: &[CLOSE, "<|\"|>"],
    bare: &[],
    line_ends_before: 1,
    writes: Writing {
        begin: "<|tool_call>call:",
        ways: &[&[
            CallPart::Name,
            CallPart::Text("{"),
            CallPart::Each(&Each {
                text: ["$key:<|\"|>", "<|\"|>"],
                is_raw: true,
                other: ["$key:", ""],
                words: JSON_WORDS,
                nests_json: false,
                between: ",",
            }),
            CallPart::Text("}<tool_call|>"),
        ]],
        several: true,
        unmarked: false,
        ..BARE_CALL
    },
    reads: Reads::Calls(|_| Box::new(Gemma::new())),
};

#[derive(Debug)]
enum State {
    /// In front of the call: white space, and bytes of the prefix.
    Before(usize, usize),
    Name,
    Arguments,
    After,
    Broken(Until),
}

#[derive(Debug)]
struct Gemma {
    state: State,
    name: Vec<u8>,
    literal: Literal,
    close: Marker,
    output: Vec<u8>,
}

impl Gemma {
    fn new() -> Self {
        Self {
            state: State::Before(0, 0),
            name: Vec::new(),
            literal: Literal::new(Dialect::Gemma),
            close: Marker::new(CLOSE),
            output: Vec::new(),
        }
    }

    fn before(&mut self, byte: u8, space: usize, matched: usize) -> Step {
        if matched == 0 && byte.is_ascii_whitespace() && space < SPACE_BYTES_MAX {
            self.state = State::Before(space + 1, 0);
        } else if PREFIX[matched] != byte {
            return Step::NotACall;
        } else if matched + 1 == PREFIX.len() {
            self.state = State::Name;
            self.name.clear();
        } else {
            self.state = State::Before(space, matched + 1);
        }
        Step::Held
    }

    fn name(&mut self, byte: u8, calls: &mut Calls) -> Step {
        if byte == b'{' && !self.name.trim_ascii().is_empty() {
            self.literal = Literal::new(Dialect::Gemma);
            self.state = State::Arguments;
            return self.arguments(byte, calls);
        }
        if matches!(byte, b'{' | b'}' | b'<' | b'(' | b'\n') || self.name.len() >= NAME_BYTES_MAX {
            return Step::NotACall;
        }
        self.name.push(byte);
        Step::Held
    }

    fn arguments(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let scan = self.literal.push(byte, &mut self.output);
        // The bracket alone is no argument yet.
        let ready = scan == Scan::Done || self.output.len() > 1;
        if !calls.is_open() && scan != Scan::Invalid && ready {
            let Ok(name) = std::str::from_utf8(self.name.trim_ascii()) else {
                return Step::NotACall;
            };
            calls.start(name);
        }
        if !calls.is_open() {
            return if scan == Scan::Invalid { Step::NotACall } else { Step::Held };
        }
        let news = !self.output.is_empty();
        calls.append(&self.output);
        self.output.clear();
        match scan {
            Scan::More if news => Step::Taken,
            Scan::More => Step::Held,
            Scan::Done | Scan::DoneBefore => {
                self.state = State::After;
                Step::Taken
            }
            Scan::Invalid => {
                self.state = State::Broken(Until::new(&[CLOSE]));
                self.broken(byte, calls)
            }
        }
    }

    fn after(&mut self, byte: u8, calls: &mut Calls) -> Step {
        if !self.close.is_inside() && byte.is_ascii_whitespace() {
            return Step::Held;
        }
        let step = match self.close.push(byte) {
            Match::Part => return Step::Held,
            Match::Whole => Step::Ended,
            Match::No => Step::NotACall,
        };
        calls.done(true);
        if step == Step::NotACall && byte == PREFIX[0] && !self.close.is_inside() {
            return self.before(byte, 0, 0);
        }
        step
    }

    fn broken(&mut self, byte: u8, calls: &mut Calls) -> Step {
        match &mut self.state {
            State::Broken(until) => until.take_broken(byte, calls),
            _ => Step::NotACall,
        }
    }
}

impl CallParser for Gemma {
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step {
        match self.state {
            State::Before(space, matched) => self.before(byte, space, matched),
            State::Name => self.name(byte, calls),
            State::Arguments => self.arguments(byte, calls),
            State::After => self.after(byte, calls),
            State::Broken(_) => self.broken(byte, calls),
        }
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool {
        if !calls.is_open() {
            return false;
        }
        match &self.state {
            State::After => calls.done(!cut),
            State::Broken(until) => {
                calls.append(until.kept());
                calls.done(false);
            }
            _ => {
                self.literal.finish(&mut self.output);
                calls.append(&self.output);
                calls.done(false);
            }
        }
        true
    }
}
