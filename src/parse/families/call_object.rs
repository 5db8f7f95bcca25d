//! The JSON object that several families write a call as: a name and arguments, in either order.

use super::arguments::Arguments;
use crate::parse::calls::Calls;
use crate::parse::json_scanner::{JsonScanner, Scan};

/// Longer keys and names belong to no call.
const NAME_BYTES_MAX: usize = 256;
/// An object that nothing marks as a call has its name within so many bytes,
const UNNAMED_BYTES_MAX: usize = 256;
/// or, where its arguments come first, within so many.
const ARGUMENTS_FIRST_BYTES_MAX: usize = 1 << 18;

/// What a byte did to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectStep {
    More,
    /// The object ended with this byte, and it is a call.
    Complete,
    /// The object is broken or no call.
    Invalid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Id,
    Arguments,
    Other,
}

#[derive(Debug)]
enum State {
    Open,
    KeyOrEnd,
    Key(Text),
    Colon(Field),
    Value(Field, JsonScanner),
    Arguments,
    CommaOrEnd,
    NextKey,
}

/// A key as it stands in the text, without its quotes.
#[derive(Debug, Default)]
struct Text {
    raw: Vec<u8>,
    escaped: bool,
}

/// Reads a call object byte by byte.
#[derive(Debug)]
pub(super) struct CallObject {
    state: State,
    /// The raw JSON string of the name while it is read.
    name_raw: Vec<u8>,
    name: Option<String>,
    /// The same of the id.
    id_raw: Vec<u8>,
    /// The id that the model gives the call.
    id: Option<String>,
    arguments: Option<Arguments>,
    announced: bool,
    /// Bytes read.
    read: usize,
    /// Whether it has a key that calls do not have.
    foreign: bool,
}

impl CallObject {
    pub(super) fn new() -> Self {
        Self {
            state: State::Open,
            name_raw: Vec::new(),
            name: None,
            id_raw: Vec::new(),
            id: None,
            arguments: None,
            announced: false,
            read: 0,
            foreign: false,
        }
    }

    /// Whether this, where nothing marks it as a call, is rather an answer in JSON: it is not to be held any longer.
    pub(super) fn is_rather_json(&self) -> bool {
        let most = if self.arguments.is_some() { ARGUMENTS_FIRST_BYTES_MAX } else { UNNAMED_BYTES_MAX };
        self.foreign || self.name.is_none() && self.read > most
    }

    /// The name, once it is known.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether arguments were written, and as an object.
    pub(super) fn has_object(&self) -> bool {
        self.arguments.as_ref().is_some_and(Arguments::is_object)
    }

    /// Whether the call was announced.
    pub(super) fn is_announced(&self) -> bool {
        self.announced
    }

    /// Whether nothing of the arguments is missing.
    pub(super) fn arguments_complete(&self) -> bool {
        self.arguments.as_ref().is_some_and(Arguments::is_complete)
    }

    /// Announces the call as soon as it can be, and passes its arguments on, and its id where that comes behind them.
    pub(super) fn pass(&mut self, calls: &mut Calls) {
        if let (Some(name), Some(arguments)) = (&self.name, &mut self.arguments)
            && arguments.is_ready()
        {
            let id = self.id.take();
            if !self.announced {
                calls.start_with_id(name, id.as_deref());
                self.announced = true;
            } else if let Some(id) = id {
                calls.identify(&id);
            }
            arguments.pass(calls);
        }
    }

    pub(super) fn push(&mut self, byte: u8) -> ObjectStep {
        self.read += 1;
        self.step(byte)
    }

    fn step(&mut self, byte: u8) -> ObjectStep {
        let white = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match &mut self.state {
            State::Key(text) => {
                if byte == b'"' && !text.escaped {
                    let field = field(&text.raw);
                    self.foreign |= field == Field::Other && !matches!(&text.raw[..], b"type" | b"function");
                    return self.go(State::Colon(field));
                }
                text.escaped = byte == b'\\' && !text.escaped;
                text.raw.push(byte);
                if text.raw.len() > NAME_BYTES_MAX { ObjectStep::Invalid } else { ObjectStep::More }
            }
            State::Value(field, scanner) => {
                let field = *field;
                let scan = scanner.push(byte);
                self.value(field, byte, scan)
            }
            State::Arguments => {
                let scan = self.arguments.as_mut().map_or(Scan::Invalid, |arguments| arguments.push(byte));
                self.value(Field::Arguments, byte, scan)
            }
            _ if white => ObjectStep::More,
            State::Open if byte == b'{' => self.go(State::KeyOrEnd),
            State::KeyOrEnd | State::NextKey if byte == b'"' => self.go(State::Key(Text::default())),
            State::Colon(field) if byte == b':' => {
                let field = *field;
                if field == Field::Arguments && self.arguments.as_ref().is_none_or(Arguments::is_null) {
                    self.arguments = Some(Arguments::new());
                    return self.go(State::Arguments);
                }
                self.go(State::Value(field, JsonScanner::new()))
            }
            State::CommaOrEnd if byte == b',' => self.go(State::NextKey),
            State::KeyOrEnd | State::CommaOrEnd if byte == b'}' => self.end(),
            _ => ObjectStep::Invalid,
        }
    }

    fn go(&mut self, state: State) -> ObjectStep {
        self.state = state;
        ObjectStep::More
    }

    fn value(&mut self, field: Field, byte: u8, scan: Scan) -> ObjectStep {
        let names = field == Field::Name && self.name.is_none();
        if names && scan != Scan::DoneBefore {
            self.name_raw.push(byte);
        }
        let identifies = field == Field::Id && self.id.is_none() && self.id_raw.len() <= NAME_BYTES_MAX;
        if identifies && scan != Scan::DoneBefore {
            self.id_raw.push(byte);
        }
        match scan {
            Scan::Invalid => ObjectStep::Invalid,
            Scan::More if self.name_raw.len() > NAME_BYTES_MAX => ObjectStep::Invalid,
            Scan::More => ObjectStep::More,
            Scan::Done | Scan::DoneBefore => {
                if names && !self.end_name() {
                    return ObjectStep::Invalid;
                }
                if identifies {
                    self.id = serde_json::from_slice::<String>(&self.id_raw).ok().filter(|id| !id.is_empty());
                    self.id_raw.clear();
                }
                self.state = State::CommaOrEnd;
                if scan == Scan::DoneBefore { self.step(byte) } else { ObjectStep::More }
            }
        }
    }

    fn end_name(&mut self) -> bool {
        self.name = serde_json::from_slice::<String>(&self.name_raw).ok().filter(|name| !name.is_empty());
        self.name.is_some()
    }

    fn end(&mut self) -> ObjectStep {
        if self.name.is_none() {
            return ObjectStep::Invalid;
        }
        if self.arguments.as_ref().is_none_or(Arguments::is_null) {
            self.arguments = Some(Arguments::empty());
        }
        ObjectStep::Complete
    }
}

fn field(key: &[u8]) -> Field {
    match key {
        b"name" => Field::Name,
        b"id" => Field::Id,
        b"arguments" | b"parameters" | b"args" => Field::Arguments,
        _ => Field::Other,
    }
}
