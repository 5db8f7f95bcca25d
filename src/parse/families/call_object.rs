//! The JSON object that several families write a call as: a name and arguments, in either order.

use crate::parse::json_scanner::{JsonScanner, Scan};

/// Longer keys and names belong to no call.
const NAME_BYTES_MAX: usize = 256;

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
    /// JSON text of the arguments as far as it may be passed on.
    arguments: Vec<u8>,
    /// Bytes of the arguments that are not white space.
    solid: usize,
    /// Whether the arguments are an object and can be passed on as they come.
    streams: bool,
    arguments_seen: bool,
    arguments_complete: bool,
}

impl CallObject {
    pub(super) fn new() -> Self {
        Self {
            state: State::Open,
            name_raw: Vec::new(),
            name: None,
            arguments: Vec::new(),
            solid: 0,
            streams: false,
            arguments_seen: false,
            arguments_complete: false,
        }
    }

    /// The name, once it is known.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The name and the arguments so far, once the call can be announced: from the first argument byte behind the
    /// opening bracket.
    pub(super) fn announced(&self) -> Option<(&str, &[u8])> {
        let ready = self.arguments_complete || self.streams && self.solid > 1;
        self.name.as_deref().filter(|_| ready).map(|name| (name, self.arguments.as_slice()))
    }

    pub(super) fn arguments_complete(&self) -> bool {
        self.arguments_complete
    }

    pub(super) fn push(&mut self, byte: u8) -> ObjectStep {
        let white = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match &mut self.state {
            State::Key(text) => {
                if byte == b'"' && !text.escaped {
                    let field = field(&text.raw);
                    return self.go(State::Colon(field));
                }
                text.escaped = byte == b'\\' && !text.escaped;
                text.raw.push(byte);
                if text.raw.len() > NAME_BYTES_MAX { ObjectStep::Invalid } else { ObjectStep::More }
            }
            State::Value(field, scanner) => {
                let field = *field;
                let in_string = scanner.in_string();
                let scan = scanner.push(byte);
                self.value(field, byte, in_string, scan)
            }
            _ if white => ObjectStep::More,
            State::Open if byte == b'{' => self.go(State::KeyOrEnd),
            State::KeyOrEnd | State::NextKey if byte == b'"' => self.go(State::Key(Text::default())),
            State::Colon(field) if byte == b':' => {
                let field = *field;
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

    fn value(&mut self, field: Field, byte: u8, in_string: bool, scan: Scan) -> ObjectStep {
        let takes = field == Field::Arguments && !self.arguments_complete;
        match field {
            Field::Name if self.name.is_none() && scan != Scan::DoneBefore => self.name_raw.push(byte),
            Field::Arguments if takes && !matches!(scan, Scan::DoneBefore | Scan::Invalid) => {
                self.take_argument(byte, in_string);
            }
            _ => {}
        }
        match scan {
            Scan::Invalid => ObjectStep::Invalid,
            Scan::More if self.name_raw.len() > NAME_BYTES_MAX => ObjectStep::Invalid,
            Scan::More => ObjectStep::More,
            Scan::Done | Scan::DoneBefore => {
                if takes {
                    self.end_arguments();
                }
                if field == Field::Name && self.name.is_none() && !self.end_name() {
                    return ObjectStep::Invalid;
                }
                self.state = State::CommaOrEnd;
                if scan == Scan::DoneBefore { self.push(byte) } else { ObjectStep::More }
            }
        }
    }

    fn take_argument(&mut self, byte: u8, in_string: bool) {
        let white = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        if !self.arguments_seen {
            if white {
                return;
            }
            self.arguments_seen = true;
            self.streams = byte == b'{';
        }
        self.solid += usize::from(!white);
        if in_string && byte < 0x20 {
            self.arguments.extend(format!("\\u{byte:04x}").bytes());
        } else {
            self.arguments.push(byte);
        }
    }

    /// The arguments ended: what is no object is brought into the form that clients expect.
    fn end_arguments(&mut self) {
        self.arguments_complete = true;
        if self.streams {
            return;
        }
        if self.arguments == b"null" {
            self.arguments = b"{}".to_vec();
        }
        // Some models write the object as a string.
        let Ok(text) = serde_json::from_slice::<String>(&self.arguments) else {
            return;
        };
        if serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text).is_ok() {
            self.arguments = text.into_bytes();
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
        if !self.arguments_complete {
            self.arguments = b"{}".to_vec();
            self.arguments_complete = true;
        }
        ObjectStep::Complete
    }
}

fn field(key: &[u8]) -> Field {
    match key {
        b"name" => Field::Name,
        b"arguments" | b"parameters" => Field::Arguments,
        _ => Field::Other,
    }
}
