//! The arguments of a Python call, `a=1, b='x')`, as a JSON object. The opening parenthesis has been taken; the closing
//! one ends them.

use super::escape::escape;
use super::{Dialect, Literal};
use crate::parse::json_scanner::Scan;

/// Longer names belong to no call.
const NAME_BYTES_MAX: usize = 256;

#[derive(Clone, Debug)]
enum State {
    NameOrEnd,
    /// A keyword, or a value without one.
    Name {
        name: Vec<u8>,
        ended: bool,
    },
    /// Behind the equals sign.
    Value(Literal),
    CommaOrEnd,
    Over,
}

/// Reads the arguments up to the closing parenthesis.
#[derive(Clone, Debug)]
pub(in crate::parse) struct Keywords {
    state: State,
    /// Names for arguments without one, in order.
    names: std::vec::IntoIter<String>,
    /// How many arguments have begun.
    arguments: usize,
    /// Input that has no output yet.
    unsent: Vec<u8>,
}

impl Keywords {
    /// `names` are the parameters as the tool's schema has them.
    pub(in crate::parse) fn new(names: Vec<String>) -> Self {
        Self { state: State::NameOrEnd, names: names.into_iter(), arguments: 0, unsent: Vec::new() }
    }

    /// Whether an argument has begun, or all of them are known.
    pub(in crate::parse) fn begun(&self) -> bool {
        self.arguments > 0 || matches!(self.state, State::Over)
    }

    /// Whether something was taken that is not written.
    pub(in crate::parse) fn held(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Takes one byte. Where the arguments break, what was taken but not written is appended as it came; the byte
    /// itself is not taken.
    pub(in crate::parse) fn push(&mut self, byte: u8, out: &mut Vec<u8>) -> Scan {
        let scan = self.step(byte, out);
        match scan {
            Scan::Invalid => out.append(&mut self.unsent),
            _ if matches!(self.state, State::Name { .. }) => self.unsent.push(byte),
            _ => self.unsent.clear(),
        }
        scan
    }

    /// The input ends inside the arguments: what was kept back comes out as it came.
    pub(in crate::parse) fn cut(&mut self, out: &mut Vec<u8>) {
        if let State::Value(literal) = &mut self.state {
            literal.finish(out);
        }
        out.append(&mut self.unsent);
        self.state = State::Over;
    }

    fn step(&mut self, byte: u8, out: &mut Vec<u8>) -> Scan {
        let white = byte.is_ascii_whitespace();
        match &mut self.state {
            State::NameOrEnd | State::CommaOrEnd if white => Scan::More,
            State::NameOrEnd | State::CommaOrEnd if byte == b')' => self.end(out),
            State::CommaOrEnd if byte == b',' && self.arguments > 0 => {
                self.state = State::NameOrEnd;
                Scan::More
            }
            State::NameOrEnd if is_name(byte) && !byte.is_ascii_digit() => {
                self.state = State::Name { name: vec![byte], ended: false };
                Scan::More
            }
            State::NameOrEnd => self.unnamed(&[byte], out),
            State::Name { name, ended } => match byte {
                b'=' => {
                    let name = std::mem::take(name);
                    self.begin(&name, out);
                    Scan::More
                }
                _ if white => {
                    *ended = true;
                    Scan::More
                }
                _ if is_name(byte) && !*ended && name.len() < NAME_BYTES_MAX => {
                    name.push(byte);
                    Scan::More
                }
                // No keyword: the letters are the value's own, such as `True` or the prefix of a string.
                _ => {
                    let mut text = std::mem::take(name);
                    text.push(byte);
                    self.unnamed(&text, out)
                }
            },
            State::Value(literal) => match literal.push(byte, out) {
                Scan::More => Scan::More,
                Scan::Done => {
                    self.state = State::CommaOrEnd;
                    Scan::More
                }
                Scan::DoneBefore => {
                    self.state = State::CommaOrEnd;
                    self.step(byte, out)
                }
                Scan::Invalid => Scan::Invalid,
            },
            State::CommaOrEnd | State::Over => Scan::Invalid,
        }
    }

    /// A value without a keyword gets the name of the next parameter.
    fn unnamed(&mut self, text: &[u8], out: &mut Vec<u8>) -> Scan {
        let Some(name) = self.names.next() else {
            return Scan::Invalid;
        };
        self.begin(name.as_bytes(), out);
        for &byte in text {
            match self.step(byte, out) {
                Scan::More => {}
                // What is written of the value cannot be taken back, so only this byte breaks.
                other => return other,
            }
        }
        Scan::More
    }

    fn begin(&mut self, name: &[u8], out: &mut Vec<u8>) {
        out.extend(if self.arguments == 0 { b"{\"" } else { b",\"" });
        for &byte in name {
            escape(byte, out);
        }
        out.extend(b"\":");
        self.arguments += 1;
        self.state = State::Value(Literal::new(Dialect::Python));
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Scan {
        out.extend(if self.arguments == 0 { &b"{}"[..] } else { b"}" });
        self.state = State::Over;
        Scan::Done
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}
