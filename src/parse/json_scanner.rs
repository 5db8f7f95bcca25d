//! Validates one JSON value byte by byte. Keeps no text; its memory is one byte per open bracket.

/// What a byte did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The value goes on.
    More,
    /// The value ended with this byte.
    Done,
    /// The value, a number, ended before this byte.
    DoneBefore,
    /// No JSON value goes on like this.
    Invalid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bracket {
    Object,
    Array,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    ValueOrEnd,
    KeyOrEnd,
    Key,
    Colon,
    CommaOrEnd,
    Text { key: bool, escape: Escape },
    Number(Number),
    Literal { rest: &'static [u8] },
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    Hex(u8),
    /// Behind the first half of a character beyond the basic plane: the second must come.
    Half,
}

/// Deeper values are refused: readers of JSON refuse them too.
const DEPTH_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// Reads one value; white space before it is part of it.
#[derive(Clone, Debug)]
pub(super) struct JsonScanner {
    state: State,
    open: Vec<Bracket>,
    /// The code of the escape that is being read.
    code: u16,
    /// Whether that is the second half of a character.
    second: bool,
}

impl JsonScanner {
    pub(super) fn new() -> Self {
        Self { state: State::Value, open: Vec::new(), code: 0, second: false }
    }

    /// Whether the next byte is inside a string.
    pub(super) fn in_string(&self) -> bool {
        matches!(self.state, State::Text { .. })
    }

    /// Takes one byte. A raw control character inside a string passes: models write line ends so, and whoever
    /// collects the text can escape it.
    pub(super) fn push(&mut self, byte: u8) -> Scan {
        match self.state {
            State::Text { key, escape } => self.text(byte, key, escape),
            State::Number(number) => self.number(byte, number),
            State::Literal { rest } => match rest {
                [expected] if *expected == byte => self.value_ended(),
                [expected, rest @ ..] if *expected == byte => self.go(State::Literal { rest }),
                _ => Scan::Invalid,
            },
            State::Over => Scan::Invalid,
            _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => Scan::More,
            State::ValueOrEnd if byte == b']' => self.close(Bracket::Array),
            State::Value | State::ValueOrEnd => self.value(byte),
            State::KeyOrEnd if byte == b'}' => self.close(Bracket::Object),
            State::KeyOrEnd | State::Key if byte == b'"' => self.go(State::Text { key: true, escape: Escape::None }),
            State::Colon if byte == b':' => self.go(State::Value),
            State::CommaOrEnd => match (byte, self.open.last()) {
                (b',', Some(Bracket::Object)) => self.go(State::Key),
                (b',', Some(Bracket::Array)) => self.go(State::Value),
                (b'}', _) => self.close(Bracket::Object),
                (b']', _) => self.close(Bracket::Array),
                _ => Scan::Invalid,
            },
            State::KeyOrEnd | State::Key | State::Colon => Scan::Invalid,
        }
    }

    fn go(&mut self, state: State) -> Scan {
        self.state = state;
        Scan::More
    }

    fn value(&mut self, byte: u8) -> Scan {
        match byte {
            b'{' | b'[' if self.open.len() >= DEPTH_MAX => Scan::Invalid,
            b'{' => {
                self.open.push(Bracket::Object);
                self.go(State::KeyOrEnd)
            }
            b'[' => {
                self.open.push(Bracket::Array);
                self.go(State::ValueOrEnd)
            }
            b'"' => self.go(State::Text { key: false, escape: Escape::None }),
            b'-' => self.go(State::Number(Number::Minus)),
            b'0' => self.go(State::Number(Number::Zero)),
            b'1'..=b'9' => self.go(State::Number(Number::Integer)),
            b't' => self.go(State::Literal { rest: b"rue" }),
            b'f' => self.go(State::Literal { rest: b"alse" }),
            b'n' => self.go(State::Literal { rest: b"ull" }),
            _ => Scan::Invalid,
        }
    }

    fn text(&mut self, byte: u8, key: bool, escape: Escape) -> Scan {
        let escape = match (escape, byte) {
            (Escape::None, b'"') if key => return self.go(State::Colon),
            (Escape::None, b'"') => return self.value_ended(),
            (Escape::None | Escape::Half, b'\\') => {
                self.second = escape == Escape::Half;
                Escape::Backslash
            }
            (Escape::Backslash, b'u') => {
                self.code = 0;
                Escape::Hex(4)
            }
            (Escape::Backslash, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') if !self.second => Escape::None,
            (Escape::None, _) => Escape::None,
            (Escape::Hex(left), byte) => match self.digit(byte, left) {
                Some(escape) => escape,
                None => return Scan::Invalid,
            },
            (Escape::Backslash | Escape::Half, _) => return Scan::Invalid,
        };
        self.go(State::Text { key, escape })
    }

    /// A digit of an escape, of which so many are left. `None`: no character goes on like this.
    fn digit(&mut self, byte: u8, left: u8) -> Option<Escape> {
        let digit = char::from(byte).to_digit(16)?;
        self.code = self.code << 4 | u16::try_from(digit).ok()?;
        match (left, self.code, self.second) {
            (2.., _, _) => Some(Escape::Hex(left - 1)),
            (_, 0xD800..=0xDBFF, false) => Some(Escape::Half),
            (_, 0xDC00..=0xDFFF, true) => Some(Escape::None),
            (_, 0xD800..=0xDFFF, _) | (_, _, true) => None,
            _ => Some(Escape::None),
        }
    }

    fn number(&mut self, byte: u8, number: Number) -> Scan {
        let next = match (number, byte) {
            (Number::Minus, b'0') => Number::Zero,
            (Number::Minus, b'1'..=b'9') | (Number::Integer, b'0'..=b'9') => Number::Integer,
            (Number::Zero | Number::Integer, b'.') => Number::Point,
            (Number::Point | Number::Fraction, b'0'..=b'9') => Number::Fraction,
            (Number::Zero | Number::Integer | Number::Fraction, b'e' | b'E') => Number::Exponent,
            (Number::Exponent, b'+' | b'-') => Number::ExponentSign,
            (Number::Exponent | Number::ExponentSign | Number::ExponentDigits, b'0'..=b'9') => Number::ExponentDigits,
            (Number::Zero | Number::Integer | Number::Fraction | Number::ExponentDigits, _) => {
                return match self.value_ended() {
                    // The byte belongs to the bracket around the number.
                    Scan::More => self.push(byte),
                    _ => Scan::DoneBefore,
                };
            }
            _ => return Scan::Invalid,
        };
        self.go(State::Number(next))
    }

    fn close(&mut self, bracket: Bracket) -> Scan {
        if self.open.pop() == Some(bracket) { self.value_ended() } else { Scan::Invalid }
    }

    fn value_ended(&mut self) -> Scan {
        if self.open.is_empty() {
            self.state = State::Over;
            Scan::Done
        } else {
            self.go(State::CommaOrEnd)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether the text is one JSON value, as the scanner sees it.
    fn is_json(text: &str) -> bool {
        let mut scanner = JsonScanner::new();
        // A space ends a number and may follow any value.
        let mut bytes = text.trim_end_matches([' ', '\t', '\n', '\r']).bytes().chain([b' ']);
        loop {
            match bytes.next().map(|byte| scanner.push(byte)) {
                Some(Scan::More) => {}
                Some(Scan::Done) => return bytes.count() == 1,
                Some(Scan::DoneBefore) => return bytes.count() == 0,
                Some(Scan::Invalid) | None => return false,
            }
        }
    }

    fn agrees(text: &str) -> bool {
        is_json(text) == serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
    }

    #[test]
    fn values_are_told_from_what_is_none() {
        for text in [
            "{}",
            "[]",
            "0",
            "-1.5e+3",
            "[1,2]",
            r#"{"a":[true,false,null,"\u00e9\n"]}"#,
            " {\n\"a\" : 1 } ",
            "01",
            "1.",
            "-",
            "[1,]",
            "{,}",
            r#"{"a"}"#,
            r#""\x""#,
            "tru",
            "[}",
            "1e",
            "\"",
            "{\"a\":1]",
            "nullx",
            "[1 2]",
            "",
            "[-]",
        ] {
            assert!(agrees(text), "{text}");
        }
    }

    #[test]
    fn what_other_readers_of_json_refuse_is_none() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(is_json(&nested(100)) && !is_json(&nested(101)));
        for (text, fits) in [
            (r#""\ud83e\udd80""#, true),
            (r#""\uD83E\uDD80\n""#, true),
            (r#""\ud83d""#, false),
            (r#""\ud83dx""#, false),
            (r#""\ud83d\n""#, false),
            (r#""\ud83d\u0041""#, false),
            (r#""\udd80""#, false),
            (r#""\u00zz""#, false),
        ] {
            assert_eq!(is_json(text), fits, "{text}");
            assert_eq!(serde_json::from_str::<String>(text).is_ok(), fits, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_scanner_agrees_with_a_full_parser(text in "[\\[\\]{}\",:0-2.eE+\\-tn \\\\ua]{0,14}") {
            prop_assert!(agrees(&text));
        }
    }
}
