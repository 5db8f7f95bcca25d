//! `MiniMax` M3: tags behind a namespace mark, arguments and what is in them named by their tags.
//!
//! ```text
//! ]<]minimax[>[<tool_call> ]<]minimax[>[<invoke name="NAME"> ]<]minimax[>[<KEY>VALUE]<]minimax[>[</KEY> …
//! ```
//!
//! An element with elements in it is an object, or an array where the schema says so or its elements are called
//! `item`. Where the schema takes only text, everything up to the element's own closing tag is text.

use super::literal::Until;
use super::tagged::attribute;
use super::writing::{BARE_CALL, CallPart, Each, JSON_WORDS, Writing};
use super::{CallParser, Family, Reads, Step};
use crate::parse::calls::Calls;
use crate::parse::tools::Tools;
use crate::parse::values::{Kinds, Place, Typed, escape};

const MARK: &str = "]<]minimax[>[";
const BLOCK_CLOSE: &str = "</tool_call>";
/// Tags and the white space in front of them are not longer.
const KEPT_BYTES_MAX: usize = 512;
/// Elements are not nested deeper.
const DEPTH_MAX: usize = 64;

pub(super) static FAMILY: Family = Family {
    name: "minimax_m3",
    aliases: &[],
    open: &["]<]minimax[>[<tool_call>"],
    inner: &[MARK, "]<]minimax[>[</tool_call>"],
    bare: &[],
    line_ends_before: 1,
    writes: Writing {
        open: "]<]minimax[>[<tool_call>\n",
        begin: "]<]minimax[>[<invoke name=\"",
        ways: &[&[
            CallPart::Name,
            CallPart::Text("\">\n"),
            CallPart::Each(&Each {
                text: ["]<]minimax[>[<$key>", "]<]minimax[>[</$key>\n"],
                is_raw: true,
                other: ["]<]minimax[>[<$key>", "]<]minimax[>[</$key>\n"],
                words: JSON_WORDS,
                nests_json: true,
                between: "",
            }),
            CallPart::Text("]<]minimax[>[</invoke>\n"),
        ]],
        close: "]<]minimax[>[</tool_call>",
        several: true,
        unmarked: false,
        ..BARE_CALL
    },
    reads: Reads::Calls(|opening| Box::new(Elements::new(opening.tools.clone()))),
};

/// What is in an element.
#[derive(Debug)]
enum Content {
    /// Nothing but white space so far.
    Unknown,
    Text(Box<Typed>),
    Object(usize),
    Array(usize),
}

#[derive(Debug)]
struct Element {
    name: String,
    kinds: Kinds,
    content: Content,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// In front of a call.
    Before,
    /// In a call; what is open is on the stack.
    Call,
    /// The element's closing tag has been read: it closes if another tag follows.
    Closing,
    /// Behind a call.
    After,
    Broken,
}

#[derive(Debug)]
struct Elements {
    tools: Tools,
    state: State,
    name: String,
    arguments: usize,
    stack: Vec<Element>,
    place: Place,
    /// White space, the mark and the tag being read.
    kept: Vec<u8>,
    /// Where in `kept` the tag that is being read begins: the mark's first byte.
    tag: Option<usize>,
    sound: bool,
    until: Until,
    output: Vec<u8>,
}

impl Elements {
    fn new(tools: Tools) -> Self {
        Self {
            tools,
            state: State::Before,
            name: String::new(),
            arguments: 0,
            stack: Vec::new(),
            place: Place::default(),
            kept: Vec::new(),
            tag: None,
            sound: true,
            until: Until::new(&[BLOCK_CLOSE]),
            output: Vec::new(),
        }
    }

    /// Takes a byte of white space, mark or tag. The whole tag, once it is there; an error where none goes on so.
    fn tag(&mut self, byte: u8) -> Result<Option<String>, ()> {
        let begin = match self.tag {
            None if byte == MARK.as_bytes()[0] => *self.tag.insert(self.kept.len()),
            None => {
                self.kept.push(byte);
                let white = byte.is_ascii_whitespace() && self.kept.len() < KEPT_BYTES_MAX;
                return if white { Ok(None) } else { Err(()) };
            }
            Some(begin) => begin,
        };
        self.kept.push(byte);
        let read = self.kept.len() - begin;
        let fits = match read {
            0..=13 => MARK.as_bytes()[read - 1] == byte,
            14 => byte == b'<',
            _ => byte != b'<' && byte != b'\n' && self.kept.len() < KEPT_BYTES_MAX,
        };
        if !fits {
            return Err(());
        }
        if read <= 14 || byte != b'>' {
            return Ok(None);
        }
        let tag = self.kept[begin + 14..self.kept.len() - 1].to_vec();
        String::from_utf8(tag).map(Some).map_err(|_| ())
    }

    /// What has been read of a tag.
    fn partial(&self) -> Vec<u8> {
        self.tag.map_or_else(Vec::new, |begin| self.kept[begin..].to_vec())
    }

    fn clear(&mut self) {
        self.kept.clear();
        self.tag = None;
    }

    fn outside(&mut self, byte: u8) -> Step {
        let Ok(tag) = self.tag(byte) else {
            return Step::NotACall;
        };
        let Some(tag) = tag else {
            return Step::Held;
        };
        if tag == "/tool_call" && self.state == State::After {
            return Step::Ended;
        }
        let name = tag.strip_prefix("invoke").and_then(|header| attribute(header, "name"));
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Step::NotACall;
        };
        name.clone_into(&mut self.name);
        self.arguments = 0;
        self.sound = true;
        self.state = State::Call;
        self.clear();
        Step::Held
    }

    /// A byte between tags or in a value.
    fn inside(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let text = matches!(self.stack.last(), Some(Element { content: Content::Text(_), .. }));
        let in_text = text && self.tag.is_none();
        if in_text && byte != MARK.as_bytes()[0] {
            return self.text(byte);
        }
        match self.tag(byte) {
            Ok(None) => Step::Held,
            Ok(Some(tag)) => self.whole_tag(&tag, calls),
            Err(()) => self.no_tag(calls),
        }
    }

    fn whole_tag(&mut self, tag: &str, calls: &mut Calls) -> Step {
        let closes = self.stack.last().map_or("invoke", |element| element.name.as_str());
        if tag.strip_prefix('/') == Some(closes) {
            if self.stack.is_empty() {
                return self.end_call(calls);
            }
            self.state = State::Closing;
            self.tag = None;
            return Step::Held;
        }
        let opens = !tag.is_empty() && !tag.starts_with('/') && self.stack.len() < DEPTH_MAX;
        let text = matches!(self.stack.last(), Some(Element { content: Content::Text(_), .. }));
        if !opens || text {
            return self.no_tag(calls);
        }
        self.open(tag, calls);
        self.clear();
        Step::Taken
    }

    fn open(&mut self, name: &str, calls: &mut Calls) {
        if !calls.is_open() {
            calls.start(&self.name);
            self.place = Place::default();
        }
        let (mut key, first) = (true, self.stack.is_empty());
        let before = match self.stack.last_mut() {
            None => &mut self.arguments,
            Some(element) => {
                if matches!(element.content, Content::Unknown) {
                    let array =
                        element.kinds.any_of(Kinds::ARRAY) && (!element.kinds.any_of(Kinds::OBJECT) || name == "item");
                    self.output.extend(if array { b"[" } else { b"{" });
                    element.content = if array { Content::Array(0) } else { Content::Object(0) };
                }
                key = matches!(element.content, Content::Object(_));
                match &mut element.content {
                    Content::Object(count) | Content::Array(count) => count,
                    Content::Unknown | Content::Text(_) => return,
                }
            }
        };
        if *before > 0 {
            self.output.push(b',');
        } else if first {
            self.output.push(b'{');
        }
        *before += 1;
        if key {
            self.output.push(b'"');
            name.bytes().for_each(|byte| escape(byte, &mut self.output));
            self.output.extend(b"\":");
        }
        self.place.enter(key.then_some(name));
        let kinds = self.place.kinds(self.tools.schema(&self.name));
        let only_text = kinds == Kinds::STRING;
        let content = if only_text { Content::Text(Box::new(Typed::new(kinds))) } else { Content::Unknown };
        self.stack.push(Element { name: name.to_owned(), kinds, content });
    }

    /// What is kept is no tag: text in an element that has none, and nothing in one that has.
    fn no_tag(&mut self, calls: &mut Calls) -> Step {
        let kept = std::mem::take(&mut self.kept);
        self.tag = None;
        self.state = State::Call;
        match self.stack.last_mut() {
            Some(element) if matches!(element.content, Content::Unknown) => {
                element.content = Content::Text(Box::new(Typed::new(element.kinds)));
            }
            Some(Element { content: Content::Text(_), .. }) => {}
            _ if !calls.is_open() => return Step::NotACall,
            _ => {
                calls.append(&self.output);
                self.output.clear();
                self.state = State::Broken;
                let steps = kept.iter().map(|&byte| self.until.take_broken(byte, calls));
                return steps.last().unwrap_or(Step::Taken);
            }
        }
        // White space and the first byte of what is no tag are text; a tag may begin behind it.
        let space = kept.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let first = (space + 1).min(kept.len());
        let mut step = Step::Taken;
        for &byte in &kept[..first] {
            step = self.text(byte);
        }
        for &byte in &kept[first..] {
            step = self.push(byte, calls);
        }
        step
    }

    fn text(&mut self, byte: u8) -> Step {
        let Some(Element { content: Content::Text(typed), .. }) = self.stack.last_mut() else {
            return Step::Taken;
        };
        if !typed.push(byte, &mut self.output) {
            self.sound = false;
            self.state = State::Broken;
        } else if typed.held() {
            return Step::Held;
        }
        Step::Taken
    }

    /// Behind a closing tag: another tag that may follow it must come.
    fn closing(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let tag = match self.tag(byte) {
            Ok(None) => return Step::Held,
            Ok(Some(tag)) => tag,
            Err(()) => return self.no_tag(calls),
        };
        let around = self.stack.iter().rev().nth(1).map_or("invoke", |element| element.name.as_str());
        if tag.strip_prefix('/').is_some_and(|closed| closed != around) {
            return self.no_tag(calls);
        }
        self.close();
        self.state = State::Call;
        self.clear();
        self.whole_tag(&tag, calls)
    }

    fn close(&mut self) {
        let Some(element) = self.stack.pop() else {
            return;
        };
        self.place.leave();
        match element.content {
            Content::Unknown if element.kinds == Kinds::ARRAY => self.output.extend(b"[]"),
            Content::Unknown if element.kinds == Kinds::OBJECT => self.output.extend(b"{}"),
            Content::Unknown => self.output.extend(b"\"\""),
            Content::Text(mut typed) => self.sound &= typed.finish(&mut self.output),
            Content::Object(_) => self.output.push(b'}'),
            Content::Array(_) => self.output.push(b']'),
        }
    }

    fn end_call(&mut self, calls: &mut Calls) -> Step {
        if !calls.is_open() {
            calls.start(&self.name);
        }
        self.output.extend(if self.arguments == 0 { &b"{}"[..] } else { b"}" });
        calls.append(&self.output);
        self.output.clear();
        calls.done(self.sound);
        self.state = State::After;
        self.clear();
        Step::Taken
    }
}

impl CallParser for Elements {
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let step = match self.state {
            State::Before | State::After => self.outside(byte),
            State::Call => self.inside(byte, calls),
            State::Closing => self.closing(byte, calls),
            State::Broken => self.until.take_broken(byte, calls),
        };
        calls.append(&self.output);
        self.output.clear();
        step
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool {
        if !calls.is_open() {
            // The beginning of the block's end is framing, any other is text.
            return self.state == State::After && FAMILY.inner[1].as_bytes().starts_with(&self.partial());
        }
        let mut complete = false;
        match self.state {
            State::Broken => self.output.extend(self.until.kept()),
            // What has been read of the tag behind it must be the beginning of a closing one.
            State::Closing => {
                let around = self.stack.iter().rev().nth(1).map_or("invoke", |element| element.name.as_str());
                let partial = self.partial();
                let closes = format!("{MARK}</{around}>").as_bytes().starts_with(&partial);
                self.close();
                complete = closes && self.stack.is_empty();
                if !closes {
                    self.output.extend(partial);
                }
            }
            // Between two arguments nothing is missing but the end.
            _ if self.stack.is_empty() => complete = true,
            _ => {
                let kept = std::mem::take(&mut self.kept);
                if let Some(Element { content: Content::Text(typed), .. }) = self.stack.last_mut() {
                    self.sound = kept.iter().all(|&byte| typed.push(byte, &mut self.output));
                    typed.cut(&mut self.output);
                } else {
                    self.output.extend(kept);
                }
            }
        }
        if complete {
            self.output.push(b'}');
        }
        calls.append(&self.output);
        calls.done(complete && self.sound && !cut);
        true
    }
}
