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
}

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
}

impl JsonScanner {
    pub(super) fn new() -> Self {
        Self { state: State::Value, open: Vec::new() }
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
            (Escape::None, b'\\') => Escape::Backslash,
            (Escape::Backslash, b'u') => Escape::Hex(4),
            (Escape::Hex(1), byte) if !byte.is_ascii_hexdigit() => return Scan::Invalid,
            (Escape::None | Escape::Hex(1), _)
            | (Escape::Backslash, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Escape::None,
            (Escape::Hex(left), byte) if byte.is_ascii_hexdigit() => Escape::Hex(left - 1),
            (Escape::Backslash | Escape::Hex(_), _) => return Scan::Invalid,
        };
        self.go(State::Text { key, escape })
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

    proptest! {
        #[test]
        fn the_scanner_agrees_with_a_full_parser(text in "[\\[\\]{}\",:0-2.eE+\\-tn \\\\ua]{0,14}") {
            prop_assert!(agrees(&text));
        }
    }
}
