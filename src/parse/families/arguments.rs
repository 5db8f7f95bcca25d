//! A call's arguments written as JSON: checked byte by byte and passed on as they come.

use crate::parse::calls::Calls;
use crate::parse::json_scanner::{JsonScanner, Scan};

/// Reads the JSON value of a call's arguments.
#[derive(Debug)]
pub(super) struct Arguments {
    scanner: JsonScanner,
    /// JSON text that is not passed on yet.
    text: Vec<u8>,
    /// Bytes that are not white space.
    solid: usize,
    /// Whether the value is an object and can be passed on as it comes.
    streams: bool,
    complete: bool,
    /// Whether nothing was written: null or an empty string.
    null: bool,
}

impl Arguments {
    pub(super) fn new() -> Self {
        let scanner = JsonScanner::new();
        Self { scanner, text: Vec::new(), solid: 0, streams: false, complete: false, null: false }
    }

    /// The arguments of a call that has none.
    pub(super) fn empty() -> Self {
        Self { text: b"{}".to_vec(), streams: true, complete: true, ..Self::new() }
    }

    /// Whether the call can be announced: from the first byte behind the opening bracket.
    pub(super) fn is_ready(&self) -> bool {
        self.streams && (self.complete || self.solid > 1)
    }

    /// Whether what was written says that there are none.
    pub(super) fn is_null(&self) -> bool {
        self.null
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether an object was written, as itself or in a string.
    pub(super) fn is_object(&self) -> bool {
        self.solid > 0 && self.streams
    }

    /// Passes on what is known to belong to the announced call.
    pub(super) fn pass(&mut self, calls: &mut Calls) {
        calls.append(&self.text);
        self.text.clear();
    }

    /// Takes a byte; one that ends or breaks the value from behind is not part of it. A value that is no object is
    /// invalid.
    pub(super) fn push(&mut self, byte: u8) -> Scan {
        let in_string = self.scanner.in_string();
        let scan = self.scanner.push(byte);
        if matches!(scan, Scan::More | Scan::Done) {
            self.take(byte, in_string);
        }
        if matches!(scan, Scan::Done | Scan::DoneBefore) {
            self.end();
            if !self.streams && !self.null {
                return Scan::Invalid;
            }
        }
        scan
    }

    fn take(&mut self, byte: u8, in_string: bool) {
        let white = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        if self.solid == 0 {
            if white {
                return;
            }
            self.streams = byte == b'{';
        }
        self.solid += usize::from(!white);
        if in_string && byte < 0x20 {
            self.text.extend(format!("\\u{byte:04x}").bytes());
        } else {
            self.text.push(byte);
        }
    }

    /// The value ended: what is no object is brought into the form that clients expect.
    fn end(&mut self) {
        self.complete = true;
        if self.streams {
            return;
        }
        if matches!(&self.text[..], b"null" | b"\"\"") {
            self.null = true;
            return;
        }
        // Some models write the object as a string.
        let Ok(text) = serde_json::from_slice::<String>(&self.text) else {
            return;
        };
        if serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text).is_ok() {
            self.text = text.into_bytes();
            self.streams = true;
        }
    }
}
