//! The calls of one answer: numbers them and collects their arguments. Knows no wire form.

use super::piece::Piece;

/// Takes what parsers find and turns it into pieces.
#[derive(Debug, Default)]
pub(super) struct Calls {
    next: u32,
    /// The open call's arguments so far, and how many bytes of them are in pieces already.
    open: Option<(u32, Vec<u8>, usize)>,
    pieces: Vec<Piece>,
}

impl Calls {
    /// Announces a call.
    pub(super) fn start(&mut self, name: &str) {
        self.pieces.push(Piece::ToolCallStarted { index: self.next, name: name.to_owned() });
        self.open = Some((self.next, Vec::new(), 0));
        self.next += 1;
    }

    /// More of the open call's arguments; may end inside a character.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        if let Some((_, arguments, _)) = &mut self.open {
            arguments.extend(bytes);
        }
    }

    /// Closes the open call.
    pub(super) fn done(&mut self, complete: bool) {
        self.flush();
        if let Some((index, arguments, _)) = self.open.take() {
            let arguments = String::from_utf8_lossy(&arguments).into_owned();
            self.pieces.push(Piece::ToolCallDone { index, arguments, complete });
        }
    }

    /// Whether there are pieces to be given out.
    pub(super) fn has_news(&self) -> bool {
        let unsent = self.open.as_ref().is_some_and(|(_, arguments, passed)| *passed < arguments.len());
        unsent || !self.pieces.is_empty()
    }

    /// Whether a call is announced and not closed.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Gives out all pieces; called where the arguments end with a whole character.
    pub(super) fn drain(&mut self, out: &mut Vec<Piece>) {
        self.flush();
        out.append(&mut self.pieces);
    }

    fn flush(&mut self) {
        if let Some((index, arguments, passed)) = &mut self.open
            && *passed < arguments.len()
        {
            let fragment = String::from_utf8_lossy(&arguments[*passed..]).into_owned();
            *passed = arguments.len();
            self.pieces.push(Piece::ToolCallArguments { index: *index, fragment });
        }
    }
}
