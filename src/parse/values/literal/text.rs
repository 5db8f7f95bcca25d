//! A quoted string, decoded and written as the inside of a JSON string.

use super::Dialect;
use crate::parse::values::escape::{escape, unicode};

/// Gemma's quote.
pub(super) const TOKEN: &[u8] = b"<|\"|>";

/// What a byte did to the string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextStep {
    More,
    /// It ended with this byte.
    Done,
    /// It ended before this byte.
    DoneBefore,
    Invalid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quote {
    One(u8),
    Three(u8),
    Token,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// One quote has been seen, which may be the first of three.
    Opening,
    /// Two have: an empty string or the beginning of three.
    OpeningTwo,
    Plain,
    /// Closing quotes of three.
    Closing(u8),
    Backslash,
    Code {
        left: u8,
        code: u32,
    },
    Octal {
        left: u8,
        code: u32,
    },
    /// Bytes of Gemma's quote.
    Token(usize),
    /// Behind Gemma's quote: white space until it is known whether the string ended.
    TokenEnd(Vec<u8>),
}

/// Reads one string; its opening quote has been taken.
#[derive(Clone, Debug)]
pub(super) struct Text {
    dialect: Dialect,
    quote: Quote,
    raw: bool,
    /// The string is an object's key.
    key: bool,
    state: State,
    /// The first half of a character beyond the basic plane.
    high: Option<u32>,
}

impl Text {
    pub(super) fn quoted(quote: u8, dialect: Dialect, raw: bool) -> Self {
        let state = if dialect == Dialect::Python { State::Opening } else { State::Plain };
        Self { dialect, quote: Quote::One(quote), raw, key: false, state, high: None }
    }

    pub(super) fn token(key: bool) -> Self {
        Self { dialect: Dialect::Gemma, quote: Quote::Token, raw: true, key, state: State::Plain, high: None }
    }

    /// Whether every byte taken is in the output.
    pub(super) fn settled(&self) -> bool {
        self.state == State::Plain && self.high.is_none()
    }

    pub(super) fn push(&mut self, byte: u8, out: &mut Vec<u8>) -> TextStep {
        match std::mem::replace(&mut self.state, State::Plain) {
            State::Plain => self.plain(byte, out),
            State::Backslash => self.backslash(byte, out),
            State::Code { left, code } => self.code(byte, left, code, out),
            State::Octal { left, code } => match byte {
                b'0'..=b'7' if left > 1 => {
                    self.go(State::Octal { left: left - 1, code: code * 8 + u32::from(byte - b'0') })
                }
                b'0'..=b'7' => self.character(code * 8 + u32::from(byte - b'0'), out),
                _ => {
                    self.character(code, out);
                    self.push(byte, out)
                }
            },
            State::Opening if self.quote == Quote::One(byte) => self.go(State::OpeningTwo),
            State::OpeningTwo if self.quote == Quote::One(byte) => {
                self.quote = Quote::Three(byte);
                TextStep::More
            }
            State::OpeningTwo => TextStep::DoneBefore,
            State::Opening => self.push(byte, out),
            State::Closing(quotes) => self.closing(byte, quotes, out),
            State::Token(matched) => self.in_token(byte, matched, out),
            State::TokenEnd(space) => self.token_end(byte, space, out),
        }
    }

    /// Whether the string is whole if the input ends.
    pub(super) fn ends_here(&self) -> bool {
        matches!(self.state, State::OpeningTwo)
    }

    fn go(&mut self, state: State) -> TextStep {
        self.state = state;
        TextStep::More
    }

    fn plain(&mut self, byte: u8, out: &mut Vec<u8>) -> TextStep {
        if byte == b'\\' && !self.raw {
            return self.go(State::Backslash);
        }
        self.release(out);
        match self.quote {
            Quote::One(quote) if quote == byte => return TextStep::Done,
            Quote::Three(quote) if quote == byte => return self.go(State::Closing(1)),
            Quote::Token if byte == TOKEN[0] => return self.go(State::Token(1)),
            _ => {}
        }
        escape(byte, out);
        TextStep::More
    }

    fn closing(&mut self, byte: u8, quotes: u8, out: &mut Vec<u8>) -> TextStep {
        if self.quote == Quote::Three(byte) {
            return if quotes == 2 { TextStep::Done } else { self.go(State::Closing(quotes + 1)) };
        }
        if let Quote::Three(quote) = self.quote {
            (0..quotes).for_each(|_| escape(quote, out));
        }
        self.plain(byte, out)
    }

    fn backslash(&mut self, byte: u8, out: &mut Vec<u8>) -> TextStep {
        let python = self.dialect != Dialect::Json;
        match byte {
            b'u' => return self.go(State::Code { left: 4, code: 0 }),
            b'U' if python => return self.go(State::Code { left: 8, code: 0 }),
            b'x' if python => return self.go(State::Code { left: 2, code: 0 }),
            b'0'..=b'7' if python => {
                return self.go(State::Octal { left: 2, code: u32::from(byte - b'0') });
            }
            _ => self.release(out),
        }
        match byte {
            b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' => out.extend([b'\\', byte]),
            b'/' if self.dialect != Dialect::Python => out.extend([b'\\', byte]),
            _ if !python => return TextStep::Invalid,
            b'\'' => out.push(byte),
            b'a' => unicode(7, out),
            b'v' => unicode(11, out),
            // A line that is continued.
            b'\n' => {}
            _ => {
                out.extend(b"\\\\");
                escape(byte, out);
            }
        }
        TextStep::More
    }

    fn code(&mut self, byte: u8, left: u8, code: u32, out: &mut Vec<u8>) -> TextStep {
        let Some(digit) = char::from(byte).to_digit(16) else {
            return TextStep::Invalid;
        };
        let code = code << 4 | digit;
        if left > 1 {
            return self.go(State::Code { left: left - 1, code });
        }
        self.character(code, out)
    }

    /// A character by its number. Halves count only in pairs: alone they are no text.
    fn character(&mut self, code: u32, out: &mut Vec<u8>) -> TextStep {
        match (self.high.take(), code) {
            (Some(high), 0xDC00..=0xDFFF) => {
                unicode(high, out);
                unicode(code, out);
                return TextStep::More;
            }
            (Some(_), _) => unicode(0xFFFD, out),
            (None, _) => {}
        }
        match code {
            0xD800..=0xDBFF => self.high = Some(code),
            0xDC00..=0xDFFF => unicode(0xFFFD, out),
            0..=0xFFFF => unicode(code, out),
            _ => match char::from_u32(code) {
                Some(character) => out.extend(character.encode_utf8(&mut [0; 4]).bytes()),
                None => return TextStep::Invalid,
            },
        }
        TextStep::More
    }

    /// A first half that no second one follows.
    fn release(&mut self, out: &mut Vec<u8>) {
        if self.high.take().is_some() {
            unicode(0xFFFD, out);
        }
    }

    fn in_token(&mut self, byte: u8, matched: usize, out: &mut Vec<u8>) -> TextStep {
        if TOKEN[matched] != byte {
            for &byte in &TOKEN[..matched] {
                escape(byte, out);
            }
            return self.plain(byte, out);
        }
        if matched + 1 == TOKEN.len() {
            return self.go(State::TokenEnd(Vec::new()));
        }
        self.go(State::Token(matched + 1))
    }

    /// A quote that nothing follows which may follow a string is part of the string.
    fn token_end(&mut self, byte: u8, mut space: Vec<u8>, out: &mut Vec<u8>) -> TextStep {
        let white = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        if white && space.len() < 64 {
            space.push(byte);
            return self.go(State::TokenEnd(space));
        }
        let follows = if self.key { byte == b':' } else { matches!(byte, b',' | b'}' | b']') };
        if follows {
            return TextStep::DoneBefore;
        }
        TOKEN.iter().chain(&space).for_each(|&byte| escape(byte, out));
        self.plain(byte, out)
    }
}
