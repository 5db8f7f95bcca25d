//! Calls between XML-like tags, one tag per argument: the machine that many families share.
//!
//! ```text
//! BLOCK_OPEN  CALL_OPEN header  ( VALUE_OPEN header value VALUE_CLOSE )*  CALL_CLOSE  BLOCK_CLOSE
//! ```
//!
//! A value is text without any escapes, so it may hold what looks like a tag. A closing tag closes it only when what
//! follows is what may follow there, up to the next value or the end of the block; else it is part of the value. What
//! is kept back meanwhile is the tags and the white space between them. Closing tags that are missing at the end of
//! the output, or in front of the next block, are tolerated, and so is a value's in front of an argument that is
//! required and still missing.

use super::literal::Until;
use super::{CallParser, Opening, Step};
use crate::parse::calls::Calls;
use crate::parse::tools::Tools;
use crate::parse::values::{Kinds, Typed, escape};

/// Tags with the white space between them, and what stands inside an opening tag, are not longer.
const KEPT_BYTES_MAX: usize = 512;

/// How a family's tags look. An empty tag is one that the family does without.
#[derive(Debug)]
pub(super) struct Tags {
    pub(super) block_open: &'static str,
    pub(super) block_close: &'static str,
    /// In front of a call's header; where it is empty, the header is the word behind the block's opening tag.
    pub(super) call_open: &'static str,
    pub(super) call_open_end: &'static str,
    pub(super) call_close: &'static str,
    pub(super) value_open: &'static str,
    pub(super) value_open_end: &'static str,
    pub(super) value_close: &'static str,
    /// Whether a line end on either side of a value is framing.
    pub(super) framed: bool,
    /// The tool's name by the call's header.
    pub(super) name: fn(&str) -> Option<String>,
    /// What an argument is by the header of its value.
    pub(super) argument: fn(&str) -> Option<Argument>,
}

/// What the header of a value says.
#[derive(Debug)]
pub(super) struct Argument {
    pub(super) name: String,
    /// What the value is, where the header itself says it; else the tool's schema does.
    pub(super) kinds: Option<Kinds>,
}

/// The value of an attribute in a tag.
pub(super) fn attribute<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let at = header.match_indices(name).find(|(at, _)| {
        let before = header[..*at].chars().next_back();
        before.is_none_or(char::is_whitespace) && header[at + name.len()..].trim_start().starts_with('=')
    });
    let value = header[at?.0 + name.len()..].trim_start().strip_prefix('=')?.trim_start();
    match value.chars().next() {
        Some(quote @ ('"' | '\'')) => value[1..].split_once(quote).map(|(value, _)| value),
        _ => value.split_whitespace().next(),
    }
}

/// Which of several tags comes next.
#[derive(Clone, Copy, Debug)]
struct Choice {
    tags: [&'static str; 3],
    /// Tags that still fit, as bits.
    alive: u8,
    matched: usize,
}

enum Chosen {
    No,
    Part,
    /// This one.
    Whole(usize),
}

impl Choice {
    fn new(tags: [&'static str; 3]) -> Self {
        Self { tags, alive: 0b111, matched: 0 }
    }

    fn push(&mut self, byte: u8) -> Chosen {
        for (index, tag) in self.tags.iter().enumerate() {
            let bit = 1 << index;
            if self.alive & bit != 0 && tag.as_bytes().get(self.matched) != Some(&byte) {
                self.alive &= !bit;
            }
        }
        self.matched += 1;
        let whole = |index: &usize| self.alive & 1 << index != 0 && self.tags[*index].len() == self.matched;
        if let Some(index) = (0..self.tags.len()).find(whole) {
            return Chosen::Whole(index);
        }
        if self.alive == 0 { Chosen::No } else { Chosen::Part }
    }
}

/// What has been read of the tags that may close a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// Nothing, or the line end in front of the first tag.
    No,
    /// The first tag.
    First,
    /// None, but the beginning of another value's opening tag.
    Missing,
    /// The value's closing tag has been read.
    Value,
    /// The call's closing tag too.
    Call,
    /// The call's closing tag, but not the value's: that is a close only if the block ends as well.
    CallAlone,
    /// The block's closing tag without the value's: that is a close only if nothing or another block follows.
    BlockAlone,
}

#[derive(Debug)]
enum State {
    /// In front of a call.
    Before,
    /// In the call's opening tag.
    Header,
    /// In front of an argument.
    Between,
    /// In the value's opening tag.
    ValueHeader,
    Value,
    /// The call is closed, the block is not.
    After,
    Broken(Until),
}

#[derive(Debug)]
pub(super) struct Tagged {
    tags: &'static Tags,
    tools: Tools,
    /// Whether there is a block around the calls.
    block: bool,
    state: State,
    /// The tag that is being read outside values, or behind one.
    choice: Choice,
    /// What was read and not passed on.
    kept: Vec<u8>,
    name: String,
    /// The arguments of the call so far.
    given: Vec<String>,
    typed: Typed,
    /// The value is to begin: a line end here is framing.
    value_begins: bool,
    closing: Closing,
    /// Whether all values so far are whole.
    sound: bool,
    output: Vec<u8>,
}

impl Tagged {
    pub(super) fn new(tags: &'static Tags, opening: &Opening<'_>) -> Self {
        let block = tags.call_open.is_empty() || opening.marker != tags.call_open;
        let mut parser = Self {
            tags,
            tools: opening.tools.clone(),
            block,
            state: State::Header,
            choice: Choice::new(["", "", ""]),
            kept: Vec::new(),
            name: String::new(),
            given: Vec::new(),
            typed: Typed::new(Kinds::STRING),
            value_begins: false,
            closing: Closing::No,
            sound: true,
            output: Vec::new(),
        };
        if block {
            parser.before();
        }
        parser
    }

    fn before(&mut self) {
        self.state = State::Before;
        self.choice = Choice::new([self.tags.call_open, "", ""]);
        if self.tags.call_open.is_empty() {
            self.state = State::Header;
        }
        self.kept.clear();
    }

    fn header(&mut self) {
        self.state = State::Header;
        self.kept.clear();
        self.given.clear();
        self.sound = true;
    }

    fn between(&mut self) {
        self.state = State::Between;
        self.kept.clear();
        self.choice = Choice::new([self.tags.value_open, self.tags.call_close, self.tags.block_close]);
    }

    /// What may stand between this call and what follows it.
    fn after(&mut self) {
        self.state = State::After;
        self.kept.clear();
        self.choice = Choice::new([self.tags.block_close, self.tags.call_open, ""]);
    }

    /// Reads one of the tags that are expected, and white space in front of it.
    fn choose(&mut self, byte: u8) -> Chosen {
        self.kept.push(byte);
        if self.choice.matched == 0 && byte.is_ascii_whitespace() && self.kept.len() < KEPT_BYTES_MAX {
            return Chosen::Part;
        }
        self.choice.push(byte)
    }

    fn in_before(&mut self, byte: u8) -> Step {
        match self.choose(byte) {
            Chosen::No => Step::NotACall,
            Chosen::Part => Step::Held,
            Chosen::Whole(_) => {
                self.header();
                Step::Held
            }
        }
    }

    fn in_header(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let end = self.tags.call_open_end;
        let ends_with_word = end.is_empty() && !self.kept.is_empty() && (byte.is_ascii_whitespace() || byte == b'<');
        if end.is_empty() && self.kept.is_empty() && byte.is_ascii_whitespace() {
            return Step::Held;
        }
        if !ends_with_word {
            self.kept.push(byte);
            if end.is_empty() || !self.kept.ends_with(end.as_bytes()) {
                return if self.kept.len() < KEPT_BYTES_MAX { Step::Held } else { Step::NotACall };
            }
            self.kept.truncate(self.kept.len() - end.len());
        }
        let name = std::str::from_utf8(&self.kept).ok().and_then(self.tags.name).filter(|name| !name.is_empty());
        let Some(name) = name else {
            return Step::NotACall;
        };
        self.name = name;
        self.between();
        if ends_with_word { self.in_between(byte, calls) } else { Step::Held }
    }

    fn in_between(&mut self, byte: u8, calls: &mut Calls) -> Step {
        match self.choose(byte) {
            Chosen::Part => Step::Held,
            Chosen::Whole(0) => {
                self.state = State::ValueHeader;
                self.kept.clear();
                Step::Held
            }
            Chosen::Whole(tag) => {
                self.end_call(calls);
                if tag == 2 || self.tags.call_close.is_empty() {
                    return Step::Ended;
                }
                self.after();
                Step::Taken
            }
            Chosen::No if calls.is_open() => self.breaks(calls),
            Chosen::No => Step::NotACall,
        }
    }

    fn in_value_header(&mut self, byte: u8, calls: &mut Calls) -> Step {
        self.kept.push(byte);
        let end = self.tags.value_open_end.as_bytes();
        let text = self.kept.strip_suffix(end).and_then(|header| std::str::from_utf8(header).ok());
        let argument = text.and_then(self.tags.argument);
        let Some(Argument { name, kinds }) = argument else {
            let over = text.is_some() || self.kept.len() >= KEPT_BYTES_MAX;
            return match (over, calls.is_open()) {
                (false, _) => Step::Held,
                (true, true) => self.breaks(calls),
                (true, false) => Step::NotACall,
            };
        };
        if !calls.is_open() {
            calls.start(&self.name);
        }
        self.output.extend(if self.given.is_empty() { b"{\"" } else { b",\"" });
        name.bytes().for_each(|byte| escape(byte, &mut self.output));
        self.output.extend(b"\":");
        let kinds = kinds.unwrap_or_else(|| Kinds::of_parameter(self.tools.schema(&self.name), &name));
        self.given.push(name);
        self.typed = Typed::new(kinds);
        self.value_begins = self.tags.framed;
        self.closing = Closing::No;
        self.state = State::Value;
        self.kept.clear();
        Step::Taken
    }

    fn in_value(&mut self, byte: u8, calls: &mut Calls) -> Step {
        if std::mem::take(&mut self.value_begins) && byte == b'\n' {
            return Step::Taken;
        }
        match self.closing {
            Closing::No if self.typed.in_string() && self.kept.is_empty() => self.data(byte),
            Closing::No => {
                let mut first = Choice::new([self.tags.value_close, self.tags.call_close, self.tags.block_close]);
                if !matches!(first.push(byte), Chosen::No) {
                    self.closing = Closing::First;
                    self.choice = first;
                    self.kept.push(byte);
                } else if self.tags.framed && byte == b'\n' && self.kept.is_empty() {
                    self.kept.push(byte);
                } else if self.kept.is_empty() {
                    self.data(byte);
                } else {
                    return self.no_close(byte, calls);
                }
            }
            Closing::First => {
                self.kept.push(byte);
                match self.choice.push(byte) {
                    Chosen::Part => {}
                    Chosen::No if self.opens_another() => self.closing = Closing::Missing,
                    Chosen::No => return self.no_close_again(calls),
                    Chosen::Whole(tag) => {
                        let closing = [Closing::Value, Closing::CallAlone, Closing::BlockAlone][tag];
                        self.expect(closing);
                        // What is read from here on may be the beginning of something else: it is held by itself.
                        if closing != Closing::CallAlone {
                            return Step::Taken;
                        }
                    }
                }
            }
            Closing::Missing => {
                self.kept.push(byte);
                let due = self.is_due();
                if !self.opens_another() || due == Some(false) {
                    return self.no_close_again(calls);
                }
                if due.is_some() {
                    self.end_value();
                    self.state = State::ValueHeader;
                    self.kept.drain(..=self.tags.value_open.len());
                    self.kept.pop();
                    return self.in_value_header(byte, calls);
                }
            }
            _ => match self.choose(byte) {
                Chosen::Part => {}
                // Value and call are closed: whatever comes now is behind the call.
                Chosen::No if self.closing == Closing::Call => {
                    self.end_call(calls);
                    return Step::NotACall;
                }
                Chosen::No => return self.no_close_again(calls),
                Chosen::Whole(tag) => return self.closes(tag, calls),
            },
        }
        if matches!(self.state, State::Value) && self.kept.is_empty() && !self.typed.held() {
            Step::Taken
        } else {
            Step::Held
        }
    }

    /// Whether what is kept may be another value's opening tag in a line of its own.
    fn opens_another(&self) -> bool {
        let (tag, open) = (self.kept.strip_prefix(b"\n").unwrap_or_default(), self.tags.value_open.as_bytes());
        let fits = tag.starts_with(open) || open.starts_with(tag);
        let one = tag.len() > 1 && !tag[1..].iter().any(|byte| matches!(byte, b'\n' | b'<'));
        self.tags.framed && fits && one && self.kept.len() < KEPT_BYTES_MAX
    }

    /// Once what is kept is a whole opening tag: whether the call must have that argument and has not.
    fn is_due(&self) -> Option<bool> {
        let header =
            self.kept.get(self.tags.value_open.len() + 1..)?.strip_suffix(self.tags.value_open_end.as_bytes())?;
        let argument = std::str::from_utf8(header).ok().and_then(self.tags.argument);
        let required = self.tools.schema(&self.name).and_then(|schema| schema.get("required")?.as_array());
        let due = |name: &String| required.is_some_and(|names| names.iter().any(|due| due == name));
        Some(argument.is_some_and(|Argument { name, .. }| due(&name) && !self.given.contains(&name)))
    }

    /// Which tags may follow the closing tags read so far.
    fn expect(&mut self, closing: Closing) {
        let tags = self.tags;
        self.closing = closing;
        let block = if self.block { tags.block_close } else { "" };
        self.choice = Choice::new(match closing {
            // Where calls are closed by their block alone, another block closes this one too.
            Closing::Value if tags.call_close.is_empty() => [tags.value_open, tags.block_open, block],
            Closing::Value => [tags.value_open, tags.call_close, block],
            Closing::Call => [block, tags.call_open, tags.block_open],
            Closing::CallAlone => [block, "", ""],
            _ => [tags.block_open, "", ""],
        });
    }

    /// A tag that may follow the closing tags is whole.
    fn closes(&mut self, tag: usize, calls: &mut Calls) -> Step {
        match (self.closing, tag) {
            (Closing::Value, 0) => {
                self.end_value();
                self.state = State::ValueHeader;
                self.kept.clear();
                Step::Held
            }
            // The next block is not part of this one.
            (Closing::Call, 2) | (Closing::BlockAlone, _) => {
                self.end_call(calls);
                Step::NotACall
            }
            (Closing::Value, 1) if self.tags.call_close.is_empty() => {
                self.end_call(calls);
                Step::NotACall
            }
            (Closing::Value, 1) if self.block => {
                self.expect(Closing::Call);
                Step::Taken
            }
            (Closing::Value, 1) => {
                self.end_call(calls);
                self.after();
                Step::Taken
            }
            (Closing::Value, _) | (Closing::Call, 0) => {
                self.end_call(calls);
                Step::Ended
            }
            (Closing::CallAlone, _) => {
                self.expect(Closing::BlockAlone);
                Step::Taken
            }
            _ => {
                self.end_call(calls);
                self.header();
                Step::Held
            }
        }
    }

    /// What is kept and this byte close nothing.
    fn no_close(&mut self, byte: u8, calls: &mut Calls) -> Step {
        self.kept.push(byte);
        self.no_close_again(calls)
    }

    /// What is kept closes nothing: its first byte belongs to the value, and the rest is read again.
    fn no_close_again(&mut self, calls: &mut Calls) -> Step {
        let kept = std::mem::take(&mut self.kept);
        self.closing = Closing::No;
        self.data(kept[0]);
        let mut step = if self.typed.held() { Step::Held } else { Step::Taken };
        for &byte in &kept[1..] {
            step = self.push(byte, calls);
        }
        step
    }

    fn data(&mut self, byte: u8) {
        if !self.typed.push(byte, &mut self.output) {
            self.sound = false;
            let until = if self.block { self.tags.block_close } else { self.tags.call_close };
            self.state = State::Broken(Until::new(&[until]));
        }
    }

    fn end_value(&mut self) {
        self.sound &= self.typed.finish(&mut self.output);
    }

    /// The call ends, whether or not it was announced, and with it the value that is open.
    fn end_call(&mut self, calls: &mut Calls) {
        if matches!(self.state, State::Value) {
            self.end_value();
        }
        if !calls.is_open() {
            calls.start(&self.name);
        }
        self.output.extend(if self.given.is_empty() { &b"{}"[..] } else { b"}" });
        calls.append(&self.output);
        self.output.clear();
        calls.done(self.sound);
    }

    /// The output ends behind a closing tag, perhaps inside another tag: whether what is held belongs to the call.
    fn finish_closed(&mut self, cut: bool, calls: &mut Calls) -> bool {
        let partial = self.kept.split_off(self.kept.len() - self.choice.matched);
        let begins = |tag: &&str| tag.as_bytes().starts_with(&partial) && !tag.is_empty();
        let expected = || self.choice.tags.iter().filter(|tag| partial.is_empty() || begins(tag));
        let closes = |tag: &&str| [self.tags.call_close, self.tags.block_close].contains(tag);
        let (closed, more) = (expected().any(closes), expected().any(|tag| *tag == self.tags.value_open));
        self.end_value();
        if closed || !more {
            self.output.push(b'}');
        } else {
            self.output.extend(partial);
            self.sound = false;
        }
        calls.append(&self.output);
        self.output.clear();
        calls.done(self.sound && !cut);
        closed || more
    }

    /// The call goes on like none: all of it is raw up to its end.
    fn breaks(&mut self, calls: &mut Calls) -> Step {
        let until = if self.block { self.tags.block_close } else { self.tags.call_close };
        if matches!(self.state, State::ValueHeader) {
            calls.append(self.tags.value_open.as_bytes());
        }
        self.state = State::Broken(Until::new(&[until]));
        let mut step = Step::Taken;
        for byte in std::mem::take(&mut self.kept) {
            step = self.in_broken(byte, calls);
        }
        step
    }

    fn in_broken(&mut self, byte: u8, calls: &mut Calls) -> Step {
        calls.append(&self.output);
        self.output.clear();
        match &mut self.state {
            State::Broken(until) => until.take_broken(byte, calls),
            _ => Step::NotACall,
        }
    }

    /// The call is whole; this belongs to the block around it or to nothing.
    fn in_after(&mut self, byte: u8) -> Step {
        match self.choose(byte) {
            Chosen::No => Step::NotACall,
            Chosen::Part => Step::Held,
            Chosen::Whole(0) => Step::Ended,
            Chosen::Whole(_) => {
                self.header();
                Step::Held
            }
        }
    }
}

impl CallParser for Tagged {
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let step = match self.state {
            State::Before => self.in_before(byte),
            State::Header => self.in_header(byte, calls),
            State::Between => self.in_between(byte, calls),
            State::ValueHeader => self.in_value_header(byte, calls),
            State::Value => self.in_value(byte, calls),
            State::After => self.in_after(byte),
            State::Broken(_) => self.in_broken(byte, calls),
        };
        calls.append(&self.output);
        self.output.clear();
        step
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool {
        if !calls.is_open() {
            // The beginning of the block's end is framing, any other is text.
            return matches!(self.state, State::After) && self.choice.alive & 1 != 0;
        }
        match &self.state {
            State::Value if matches!(self.closing, Closing::No | Closing::First | Closing::Missing) => {
                for byte in std::mem::take(&mut self.kept) {
                    self.data(byte);
                }
                self.typed.cut(&mut self.output);
                self.sound = false;
            }
            State::Value => return self.finish_closed(cut, calls),
            State::Broken(until) => {
                self.output.extend(until.kept());
                self.sound = false;
            }
            state => {
                if matches!(state, State::ValueHeader) {
                    self.output.extend(self.tags.value_open.bytes());
                }
                self.output.append(&mut self.kept);
                self.sound = false;
            }
        }
        calls.append(&self.output);
        self.output.clear();
        calls.done(self.sound && !cut);
        true
    }
}
