//! `[f(a=1), g(b='x')]`: calls as Python writes them. Llama 4 begins the answer with the list, LFM2 puts it between
//! markers and sometimes writes JSON there.

use super::json_block::{Form, JsonBlock};
use super::literal::{Literal, Match, Until};
use super::writing::{CallPart, Each, Writing, call_object, listed};
use super::{CallParser, Family, Opening, Reads, Step};
use crate::parse::calls::Calls;
use crate::parse::json_scanner::Scan;
use crate::parse::tools::Tools;
use crate::parse::values::{Keywords, property_names};

/// White space that may stand in front of a call.
const SPACE_BYTES_MAX: usize = 64;
/// Longer names belong to no call.
const NAME_BYTES_MAX: usize = 256;

/// What both write in their lists.
const CALL: &[CallPart] = &[
    CallPart::Name,
    CallPart::Text("("),
    CallPart::Each(&Each {
        text: ["$key=", ""],
        is_raw: false,
        other: ["$key=", ""],
        words: ["True", "False", "None"],
        nests_json: false,
        between: ", ",
    }),
    CallPart::Text(")"),
];

pub(super) static PYTHONIC: Family = Family {
    name: "pythonic",
    aliases: &["llama4_pythonic", "llama4"],
    open: &["<|python_start|>"],
    inner: &["<|python_end|>"],
    bare: b"[",
    line_ends_before: 1,
    writes: Writing { ways: &[CALL], unmarked: true, ..listed("[", "]") },
    reads: Reads::Calls(|opening| Box::new(Python::new("<|python_end|>", opening))),
};

pub(super) static LFM2: Family = Family {
    name: "lfm2",
    aliases: &["lfm2_5"],
    open: &["<|tool_call_start|>"],
    inner: &["<|tool_call_end|>"],
    bare: &[],
    line_ends_before: 1,
    writes: Writing {
        ways: &[CALL, call_object!("arguments", "")],
        ..listed("<|tool_call_start|>[", "]<|tool_call_end|>")
    },
    reads: Reads::Calls(|opening| Box::new(Python::new("<|tool_call_end|>", opening))),
};

#[derive(Debug)]
enum State {
    /// In front of the list; how much white space has passed.
    Start(usize),
    /// In front of a call.
    Before(usize),
    Name(Vec<u8>),
    Arguments(Keywords),
    /// Behind a call.
    After,
    /// Behind the list, in front of the closing marker.
    Closing,
    Broken(Until),
    Json(JsonBlock),
}

#[derive(Debug)]
struct Python {
    close: Option<Literal>,
    close_text: &'static str,
    tools: Tools,
    in_list: bool,
    state: State,
    name: String,
    output: Vec<u8>,
}

impl Python {
    fn new(close_text: &'static str, opening: &Opening<'_>) -> Self {
        let marked = !opening.marker.is_empty();
        Self {
            close: marked.then(|| Literal::new(close_text)),
            close_text,
            tools: opening.tools.clone(),
            in_list: false,
            state: State::Start(0),
            name: String::new(),
            output: Vec::new(),
        }
    }

    fn start(&mut self, byte: u8, space: usize, calls: &mut Calls) -> Step {
        match byte {
            _ if byte.is_ascii_whitespace() && space < SPACE_BYTES_MAX => {
                self.state = State::Start(space + 1);
                Step::Held
            }
            b'[' if !self.in_list => {
                self.in_list = true;
                Step::Held
            }
            b'{' if self.close.is_some() => {
                let form = Form { close: Some(self.close_text), separator: None, array: self.in_list };
                let mut block = JsonBlock::new(form);
                if self.in_list {
                    block.push(b'[', calls);
                }
                let step = block.push(byte, calls);
                self.state = State::Json(block);
                step
            }
            // A call outside a list shows by its marker only.
            _ if self.in_list || self.close.is_some() => self.before(byte, 0),
            _ => Step::NotACall,
        }
    }

    fn before(&mut self, byte: u8, space: usize) -> Step {
        if byte.is_ascii_whitespace() && space < SPACE_BYTES_MAX {
            self.state = State::Before(space + 1);
            return Step::Held;
        }
        if !byte.is_ascii_alphabetic() && byte != b'_' && byte.is_ascii() {
            return Step::NotACall;
        }
        self.state = State::Name(vec![byte]);
        Step::Held
    }

    fn name(&mut self, byte: u8) -> Step {
        let State::Name(name) = &mut self.state else {
            return Step::NotACall;
        };
        if byte == b'(' {
            let Ok(name) = String::from_utf8(std::mem::take(name)) else {
                return Step::NotACall;
            };
            // Prose may begin with a bracket: without a marker only declared tools count.
            if self.close.is_none() && !self.tools.knows(&name) {
                return Step::NotACall;
            }
            self.state = State::Arguments(Keywords::new(property_names(self.tools.schema(&name))));
            self.name = name;
            return Step::Held;
        }
        let fits = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-') || !byte.is_ascii();
        if !fits || name.len() >= NAME_BYTES_MAX {
            return Step::NotACall;
        }
        name.push(byte);
        Step::Held
    }

    fn arguments(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let State::Arguments(keywords) = &mut self.state else {
            return Step::NotACall;
        };
        let scan = keywords.push(byte, &mut self.output);
        let announced = calls.is_open();
        if scan == Scan::Invalid && !announced {
            return Step::NotACall;
        }
        if !announced && keywords.begun() {
            calls.start(&self.name);
        }
        if calls.is_open() {
            calls.append(&self.output);
            self.output.clear();
        }
        match scan {
            Scan::Invalid => {
                let end = if self.close.is_some() { self.close_text } else { ")]" };
                self.state = State::Broken(Until::new(&[end]));
                self.broken(byte, calls)
            }
            Scan::Done => {
                calls.done(true);
                self.state = State::After;
                Step::Taken
            }
            _ if calls.is_open() && !keywords.held() => Step::Taken,
            _ => Step::Held,
        }
    }

    fn after(&mut self, byte: u8) -> Step {
        let in_close = self.close.is_some_and(|close| close.is_inside());
        match byte {
            b',' if !in_close => {
                self.state = State::Before(0);
                Step::Held
            }
            b']' if self.in_list && !in_close => {
                self.state = State::Closing;
                if self.close.is_some() { Step::Taken } else { Step::Ended }
            }
            _ => self.closing(byte),
        }
    }

    fn closing(&mut self, byte: u8) -> Step {
        let in_close = self.close.is_some_and(|close| close.is_inside());
        if byte.is_ascii_whitespace() && !in_close {
            return Step::Held;
        }
        match self.close.as_mut().map(|close| close.push(byte)) {
            Some(Match::Part) => Step::Held,
            Some(Match::Whole) => Step::Ended,
            Some(Match::No) | None => Step::NotACall,
        }
    }

    fn broken(&mut self, byte: u8, calls: &mut Calls) -> Step {
        match &mut self.state {
            State::Broken(until) => until.take_broken(byte, calls),
            _ => Step::NotACall,
        }
    }
}

impl CallParser for Python {
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step {
        match &mut self.state {
            State::Start(space) => {
                let space = *space;
                self.start(byte, space, calls)
            }
            State::Before(space) => {
                let space = *space;
                self.before(byte, space)
            }
            State::Name(_) => self.name(byte),
            State::Arguments(_) => self.arguments(byte, calls),
            State::After => self.after(byte),
            State::Closing => self.closing(byte),
            State::Broken(_) => self.broken(byte, calls),
            State::Json(block) => block.push(byte, calls),
        }
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool {
        match &mut self.state {
            State::Json(block) => return block.finish(cut, calls),
            State::Arguments(keywords) if calls.is_open() => keywords.cut(&mut self.output),
            State::Broken(until) => self.output.extend(until.kept()),
            // The beginning of the closing marker is framing, and so is white space in front of it.
            State::After | State::Closing => return self.close.is_some(),
            _ => return false,
        }
        if !calls.is_open() {
            return false;
        }
        calls.append(&self.output);
        calls.done(false);
        true
    }
}
