//! One literal value (JSON, Python, or Gemma's bare keys) read byte by byte and written as JSON.

mod number;
mod text;

use number::Number;
use text::{TOKEN, Text, TextStep};

use super::escape::escape;
use crate::parse::json_scanner::Scan;

/// Deeper values are refused: readers of JSON refuse them too.
const DEPTH_MAX: usize = 100;
/// Parentheses that may be nothing but parentheses are not nested deeper.
const PARENTHESES_MAX: usize = 8;
/// Longer bare keys and values belong to no call.
const BARE_BYTES_MAX: usize = 1024;

/// How the value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::parse) enum Dialect {
    /// JSON and nothing else, except that control characters may stand in strings.
    Json,
    /// JSON, but what only Python allows is taken too.
    Lenient,
    /// Python: strings with their prefixes and escapes, tuples, trailing commas, `True`, `False` and `None`.
    Python,
    /// Objects with bare keys and strings between `<|"|>`.
    Gemma,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Object,
    Array,
    Tuple,
    /// One value and no comma so far: its bracket, at this place of the output, may have to go.
    Parentheses(usize),
}

#[derive(Clone, Debug)]
enum State {
    Value,
    ValueOrEnd,
    KeyOrEnd,
    Key,
    Colon,
    CommaOrEnd,
    /// Letters before a string; whether it is raw.
    Prefix(bool),
    Text(Text),
    Number(Number),
    Word(Vec<u8>),
    /// The bytes of Gemma's opening quote.
    Token(usize),
    Bare(Vec<u8>),
    Over,
    Broken,
}

/// Reads one value; white space before it is left out.
#[derive(Clone, Debug)]
pub(in crate::parse) struct Literal {
    dialect: Dialect,
    state: State,
    open: Vec<Open>,
    /// What is being read is an object's key.
    key: bool,
    /// A comma and white space that are written only if another value follows.
    comma: Vec<u8>,
    /// Output that is not given out yet.
    output: Vec<u8>,
    /// Parentheses in `open` that may have to go.
    undecided: usize,
    /// Input that has no output yet.
    unsent: Vec<u8>,
}

impl Literal {
    pub(in crate::parse) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            state: State::Value,
            open: Vec::new(),
            key: false,
            comma: Vec::new(),
            output: Vec::new(),
            undecided: 0,
            unsent: Vec::new(),
        }
    }

    /// Takes one byte. Where the value breaks, what was taken but not written is appended as it came; the byte itself
    /// is not taken.
    pub(in crate::parse) fn push(&mut self, byte: u8, out: &mut Vec<u8>) -> Scan {
        let scan = self.step(byte);
        if scan == Scan::Invalid {
            self.give_up(out);
            return scan;
        }
        if self.settled() {
            out.append(&mut self.output);
            self.unsent.clear();
        } else if scan != Scan::DoneBefore {
            self.unsent.push(byte);
        }
        scan
    }

    /// The input ends: whether the value is whole. What was taken but not written is appended as it came.
    pub(in crate::parse) fn finish(&mut self, out: &mut Vec<u8>) -> bool {
        let open = !self.open.is_empty() || self.key;
        let python = self.python();
        let whole = match std::mem::replace(&mut self.state, State::Over) {
            State::Over => true,
            _ if open => false,
            State::Number(number) => number.end(python, &mut self.output),
            State::Text(text) if text.ends_here() => {
                self.output.push(b'"');
                true
            }
            State::Bare(bare) => self.bare_value(&bare),
            _ => false,
        };
        if whole {
            out.append(&mut self.output);
            self.unsent.clear();
        } else {
            self.give_up(out);
        }
        whole
    }

    /// Whether the next byte is inside a string.
    pub(in crate::parse) fn in_string(&self) -> bool {
        matches!(self.state, State::Text(_))
    }

    fn python(&self) -> bool {
        matches!(self.dialect, Dialect::Lenient | Dialect::Python)
    }

    fn settled(&self) -> bool {
        let state = match &self.state {
            State::Text(text) => text.settled(),
            State::Prefix(_) | State::Word(_) | State::Token(_) | State::Bare(_) => false,
            _ => true,
        };
        state && self.comma.is_empty() && self.undecided == 0
    }

    /// The rest of the input has no meaning: gives back what has not been written.
    fn give_up(&mut self, out: &mut Vec<u8>) {
        self.state = State::Broken;
        self.output.clear();
        out.append(&mut self.unsent);
    }

    fn step(&mut self, byte: u8) -> Scan {
        let white = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match &mut self.state {
            State::Text(text) => {
                let step = text.push(byte, &mut self.output);
                return self.text(step, byte);
            }
            State::Number(number) => {
                let (number, python) = (*number, self.python());
                return match number.next(byte, python, &mut self.output) {
                    Some(next) => self.go(State::Number(next)),
                    None if number.end(python, &mut self.output) => self.ended_before(byte),
                    None => Scan::Invalid,
                };
            }
            State::Word(word) => {
                word.push(byte);
                let word = std::mem::take(word);
                return self.word(word);
            }
            State::Token(matched) => {
                let matched = *matched;
                return match TOKEN.get(matched) {
                    Some(expected) if *expected != byte => Scan::Invalid,
                    _ if matched + 1 < TOKEN.len() => self.go(State::Token(matched + 1)),
                    _ => self.begin_text(Text::token(self.key)),
                };
            }
            State::Bare(_) => return self.bare(byte),
            State::Prefix(raw) => {
                let raw = *raw;
                return match byte {
                    b'"' | b'\'' => self.begin_text(Text::quoted(byte, Dialect::Python, raw)),
                    b'r' | b'R' if !raw => self.go(State::Prefix(true)),
                    b'b' | b'B' if raw => Scan::More,
                    _ => Scan::Invalid,
                };
            }
            State::Over | State::Broken => return Scan::Invalid,
            _ => {}
        }
        if white {
            return self.white(byte);
        }
        match self.state {
            State::Value | State::ValueOrEnd => self.value(byte),
            State::KeyOrEnd | State::Key => self.object_key(byte),
            State::Colon if byte == b':' => {
                self.output.push(byte);
                self.go(State::Value)
            }
            State::CommaOrEnd => self.comma_or_end(byte),
            _ => Scan::Invalid,
        }
    }

    fn go(&mut self, state: State) -> Scan {
        self.state = state;
        Scan::More
    }

    fn white(&mut self, byte: u8) -> Scan {
        if !self.comma.is_empty() {
            self.comma.push(byte);
        } else if !self.open.is_empty() {
            self.output.push(byte);
        }
        Scan::More
    }

    fn value(&mut self, byte: u8) -> Scan {
        if matches!(self.state, State::ValueOrEnd) && matches!(byte, b']' | b')') {
            return self.close(byte);
        }
        self.begin();
        let python = self.python();
        if self.dialect != Dialect::Gemma
            && let Some(number) = Number::begin(byte, python, &mut self.output)
        {
            return self.go(State::Number(number));
        }
        match byte {
            b'{' => self.open(Open::Object, State::KeyOrEnd),
            b'[' => self.open(Open::Array, State::ValueOrEnd),
            b'(' if python && self.undecided < PARENTHESES_MAX => {
                self.undecided += 1;
                self.open(Open::Parentheses(self.output.len()), State::ValueOrEnd)
            }
            _ => self.scalar(byte),
        }
    }

    /// A string, a word or, in Gemma's writing, anything without quotes.
    fn scalar(&mut self, byte: u8) -> Scan {
        match byte {
            b'"' if self.dialect != Dialect::Python => {
                let dialect = if self.dialect == Dialect::Lenient { Dialect::Lenient } else { Dialect::Json };
                self.begin_text(Text::quoted(byte, dialect, false))
            }
            b'"' | b'\'' if self.python() => self.begin_text(Text::quoted(byte, Dialect::Python, false)),
            b'r' | b'R' | b'u' | b'U' | b'b' | b'B' if self.python() => {
                self.go(State::Prefix(matches!(byte, b'r' | b'R')))
            }
            b'<' if self.dialect == Dialect::Gemma => self.go(State::Token(1)),
            b',' | b':' | b'}' | b']' | b'(' | b')' => Scan::Invalid,
            _ if self.dialect == Dialect::Gemma => self.go(State::Bare(vec![byte])),
            _ => self.word(vec![byte]),
        }
    }

    fn object_key(&mut self, byte: u8) -> Scan {
        if matches!(self.state, State::KeyOrEnd) && byte == b'}' {
            return self.close(byte);
        }
        self.begin();
        self.key = true;
        match byte {
            b'"' | b'\'' | b'<' => self.scalar(byte),
            _ if self.dialect == Dialect::Gemma => self.scalar(byte),
            b'{' | b'[' | b'(' => Scan::Invalid,
            _ if !self.python() => Scan::Invalid,
            b'r' | b'R' | b'u' | b'U' | b'b' | b'B' => self.scalar(byte),
            // Python's numbers and words as keys become what `json.dumps` makes of them.
            _ => {
                self.output.push(b'"');
                match Number::begin(byte, true, &mut self.output) {
                    Some(number) => self.go(State::Number(number)),
                    None => self.word(vec![byte]),
                }
            }
        }
    }

    /// Something follows a comma, which is therefore written.
    fn begin(&mut self) {
        self.output.append(&mut self.comma);
    }

    fn open(&mut self, open: Open, state: State) -> Scan {
        if self.open.len() >= DEPTH_MAX {
            return Scan::Invalid;
        }
        self.open.push(open);
        self.output.push(if open == Open::Object { b'{' } else { b'[' });
        self.go(state)
    }

    fn begin_text(&mut self, text: Text) -> Scan {
        self.output.push(b'"');
        self.go(State::Text(text))
    }

    fn text(&mut self, step: TextStep, byte: u8) -> Scan {
        match step {
            TextStep::More => Scan::More,
            TextStep::Invalid => Scan::Invalid,
            TextStep::Done => {
                self.output.push(b'"');
                self.value_ended()
            }
            TextStep::DoneBefore => {
                self.output.push(b'"');
                self.ended_before(byte)
            }
        }
    }

    fn word(&mut self, word: Vec<u8>) -> Scan {
        const WORDS: [(&str, &str, bool); 6] = [
            ("true", "true", false),
            ("false", "false", false),
            ("null", "null", false),
            ("True", "true", true),
            ("False", "false", true),
            ("None", "null", true),
        ];
        let python = self.python();
        let mut words = WORDS.iter().filter(|(_, _, only_python)| python || !only_python);
        match words.find(|(text, ..)| text.as_bytes().starts_with(&word)) {
            Some((text, json, _)) if text.len() == word.len() => {
                self.output.extend(json.bytes());
                if self.key {
                    self.output.push(b'"');
                }
                self.value_ended()
            }
            Some(_) => self.go(State::Word(word)),
            None => Scan::Invalid,
        }
    }

    /// A key or value without quotes goes on to the next sign of the object around it.
    fn bare(&mut self, byte: u8) -> Scan {
        let State::Bare(bare) = &mut self.state else {
            return Scan::Invalid;
        };
        let ends = if self.key { byte == b':' } else { matches!(byte, b',' | b'}' | b']') };
        if ends {
            let bare = std::mem::take(bare);
            if self.key {
                self.output.push(b'"');
                for &byte in bare.trim_ascii() {
                    escape(byte, &mut self.output);
                }
                self.output.push(b'"');
            } else if !self.bare_value(&bare) {
                return Scan::Invalid;
            }
            self.value_ended();
            return self.step(byte);
        }
        if self.key && matches!(byte, b',' | b'{' | b'}' | b'[' | b']' | b'"') || bare.len() >= BARE_BYTES_MAX {
            return Scan::Invalid;
        }
        bare.push(byte);
        Scan::More
    }

    /// Writes a value without quotes: a number or a word where it is one, else text.
    fn bare_value(&mut self, bare: &[u8]) -> bool {
        let bare = bare.trim_ascii();
        let mut literal = Literal::new(Dialect::Json);
        let mut json = Vec::new();
        let fits = bare.iter().all(|&byte| matches!(literal.push(byte, &mut json), Scan::More | Scan::Done));
        if fits && literal.finish(&mut json) {
            self.output.extend(json);
        } else {
            self.output.push(b'"');
            for &byte in bare {
                escape(byte, &mut self.output);
            }
            self.output.push(b'"');
        }
        !bare.is_empty()
    }

    fn comma_or_end(&mut self, byte: u8) -> Scan {
        if byte != b',' {
            return self.close(byte);
        }
        if let Some(open @ Open::Parentheses(_)) = self.open.last_mut() {
            *open = Open::Tuple;
            self.undecided -= 1;
        }
        self.comma.push(byte);
        let strict = self.dialect == Dialect::Json;
        self.go(match self.open.last() {
            Some(Open::Object) if strict => State::Key,
            Some(Open::Object) => State::KeyOrEnd,
            _ if strict => State::Value,
            _ => State::ValueOrEnd,
        })
    }

    fn close(&mut self, byte: u8) -> Scan {
        self.comma.clear();
        match (self.open.pop(), byte) {
            (Some(Open::Object), b'}') => self.output.push(b'}'),
            (Some(Open::Array), b']') | (Some(Open::Tuple), b')') => self.output.push(b']'),
            (Some(Open::Parentheses(at)), b')') => {
                self.undecided -= 1;
                // `()` is an empty tuple, `(1)` is 1.
                if matches!(self.state, State::ValueOrEnd) {
                    self.output.push(b']');
                } else {
                    self.output.remove(at);
                }
            }
            _ => return Scan::Invalid,
        }
        self.value_ended()
    }

    fn value_ended(&mut self) -> Scan {
        if std::mem::take(&mut self.key) {
            return self.go(State::Colon);
        }
        if self.open.is_empty() {
            self.state = State::Over;
            return Scan::Done;
        }
        self.go(State::CommaOrEnd)
    }

    /// The value ended before this byte, which belongs to the bracket around it.
    fn ended_before(&mut self, byte: u8) -> Scan {
        if self.key && matches!(self.state, State::Number(_)) {
            self.output.push(b'"');
        }
        match self.value_ended() {
            Scan::More => self.step(byte),
            _ => Scan::DoneBefore,
        }
    }
}
