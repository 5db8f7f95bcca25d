//! A value written as bare text, such as between XML-like tags, turned into JSON by what its schema takes.
//!
//! - A schema that takes only text gets the text as it is, at once and to the last space.
//! - Otherwise a text that is, as a whole and with white space around it, one JSON value of a kind that the schema
//!   takes, is that value, its digits and its strings untouched. Python's `True`, `False`, `None` and quotes pass
//!   where the schema names the kind. Everything else is text.
//! - A value of unknown kind is JSON only if it is strictly JSON and no quoted string.
//!
//! Where text is possible, a value that may turn out to be JSON is kept back to its end; where it is not, only its
//! beginning is.

use super::escape::escape;
use super::{Dialect, Kinds, Literal};
use crate::parse::json_scanner::Scan;

/// What may still become text is kept up to this size where the schema does not take text.
const HOLD_BYTES: usize = 1024;

#[derive(Clone, Debug)]
enum State {
    /// Nothing but white space so far.
    Before(Vec<u8>),
    /// May be JSON: the text so far, and what it is as JSON.
    Undecided {
        text: Vec<u8>,
        json: Vec<u8>,
        kind: Kinds,
    },
    /// JSON, for what is written cannot be taken back.
    Json,
    Text,
    Broken,
}

/// Reads one value.
#[derive(Clone, Debug)]
pub(in crate::parse) struct Typed {
    kinds: Kinds,
    state: State,
    literal: Literal,
    /// The literal ended; only white space may follow.
    over: bool,
}

impl Typed {
    pub(in crate::parse) fn new(kinds: Kinds) -> Self {
        let dialect = if kinds == Kinds::UNKNOWN { Dialect::Json } else { Dialect::Lenient };
        Self { kinds, state: State::Before(Vec::new()), literal: Literal::new(dialect), over: false }
    }

    /// Takes one byte of the value. False when it cannot be JSON any more and too much is written to make it text: then
    /// the rest comes out as it is.
    pub(in crate::parse) fn push(&mut self, byte: u8, out: &mut Vec<u8>) -> bool {
        match &mut self.state {
            State::Text => escape(byte, out),
            State::Before(space) => {
                let only_text = self.kinds == Kinds::STRING;
                if !only_text && byte.is_ascii_whitespace() && space.len() < HOLD_BYTES {
                    space.push(byte);
                    return true;
                }
                let kind = if only_text { Kinds::NONE } else { kind_by(byte) };
                let text = std::mem::take(space);
                if self.kinds.any_of(kind) {
                    self.state = State::Undecided { text, json: Vec::new(), kind };
                    return self.push(byte, out);
                }
                self.become_text(&text, out);
                escape(byte, out);
            }
            State::Undecided { text, json, .. } => {
                let fits = literal_takes(&mut self.literal, &mut self.over, byte, json);
                text.push(byte);
                if !fits {
                    let text = std::mem::take(text);
                    self.become_text(&text, out);
                } else if text.len() > HOLD_BYTES && !self.kinds.any_of(Kinds::STRING) {
                    out.append(json);
                    self.state = State::Json;
                }
            }
            State::Json => {
                if !literal_takes(&mut self.literal, &mut self.over, byte, out) {
                    out.push(byte);
                    self.state = State::Broken;
                }
            }
            State::Broken => out.push(byte),
        }
        !matches!(self.state, State::Broken)
    }

    /// The value ends: whether it is whole.
    pub(in crate::parse) fn finish(&mut self, out: &mut Vec<u8>) -> bool {
        match std::mem::replace(&mut self.state, State::Broken) {
            State::Before(text) => {
                self.become_text(&text, out);
                out.push(b'"');
                true
            }
            State::Text => {
                out.push(b'"');
                true
            }
            State::Undecided { text, mut json, kind } => {
                let whole = self.over || self.literal.finish(&mut json);
                let number = Kinds::INTEGER | Kinds::FRACTION;
                let kind = if kind == number && is_integer(&json) { Kinds::INTEGER } else { kind };
                let fits = if kind == number { Kinds::FRACTION } else { kind };
                if whole && self.kinds.any_of(fits) {
                    out.append(&mut json);
                } else {
                    self.become_text(&text, out);
                    out.push(b'"');
                }
                true
            }
            State::Json => self.over || self.literal.finish(out),
            State::Broken => false,
        }
    }

    /// The value is cut off: what was kept back comes out as it is.
    pub(in crate::parse) fn cut(&mut self, out: &mut Vec<u8>) {
        match std::mem::replace(&mut self.state, State::Broken) {
            State::Before(text) if self.kinds == Kinds::STRING => self.become_text(&text, out),
            State::Before(text) | State::Undecided { text, .. } => out.extend(text),
            State::Json if !self.over => {
                self.literal.finish(out);
            }
            State::Json | State::Text | State::Broken => {}
        }
        self.state = State::Broken;
    }

    /// Whether the next byte is inside a string of JSON, where every mark is data.
    pub(in crate::parse) fn in_string(&self) -> bool {
        matches!(self.state, State::Undecided { .. } | State::Json) && self.literal.in_string()
    }

    /// Whether something was taken that is not written.
    pub(in crate::parse) fn held(&self) -> bool {
        matches!(&self.state, State::Before(text) | State::Undecided { text, .. } if !text.is_empty())
    }

    fn become_text(&mut self, text: &[u8], out: &mut Vec<u8>) {
        out.push(b'"');
        for &byte in text {
            escape(byte, out);
        }
        self.state = State::Text;
    }
}

/// Gives the literal a byte; behind its end only white space fits.
fn literal_takes(literal: &mut Literal, over: &mut bool, byte: u8, json: &mut Vec<u8>) -> bool {
    if *over {
        return byte.is_ascii_whitespace();
    }
    match literal.push(byte, json) {
        Scan::More => true,
        Scan::Done => {
            *over = true;
            true
        }
        Scan::DoneBefore => {
            *over = true;
            byte.is_ascii_whitespace()
        }
        Scan::Invalid => false,
    }
}

/// The kind of value that begins with this byte, if any does that is no text.
fn kind_by(byte: u8) -> Kinds {
    match byte {
        b'{' => Kinds::OBJECT,
        b'[' | b'(' => Kinds::ARRAY,
        b'0'..=b'9' | b'-' | b'+' | b'.' => Kinds::INTEGER | Kinds::FRACTION,
        b't' | b'T' | b'f' | b'F' => Kinds::BOOLEAN,
        b'n' | b'N' => Kinds::NULL,
        _ => Kinds::NONE,
    }
}

/// Whether a number's text is that of an integer.
fn is_integer(json: &[u8]) -> bool {
    let mut parts = json.splitn(2, |&byte| byte == b'.');
    let (whole, fraction) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    whole.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-') && fraction.iter().all(|&byte| byte == b'0')
}
