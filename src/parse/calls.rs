//! The calls of one answer: numbers them and collects their arguments. Knows no wire form.

use std::collections::HashSet;

use super::mask::Unmask;
use super::piece::Piece;

/// Takes what parsers find and turns it into pieces.
#[derive(Debug, Default)]
pub(super) struct Calls {
    next: u32,
    open: Option<Open>,
    /// The model's own ids that were used: two calls never share one.
    ids: HashSet<String>,
    /// Takes marks out of the fragments of the open call, once there are any.
    unmask: Option<Unmask>,
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Open {
    index: u32,
    id: Option<String>,
    arguments: Vec<u8>,
    /// Bytes of the arguments that are in pieces already.
    passed: usize,
}

impl Calls {
    /// Announces a call.
    pub(super) fn start(&mut self, name: &str) {
        self.start_with_id(name, None);
    }

    /// Announces a call that has an id of the model's own.
    pub(super) fn start_with_id(&mut self, name: &str, id: Option<&str>) {
        let id = id.map(|id| self.whole(id)).filter(|id| self.ids.insert(id.clone()));
        let name = self.whole(name);
        self.unmask = self.unmask.take().map(|_| Unmask::default());
        self.pieces.push(Piece::ToolCallStarted { index: self.next, id: id.clone(), name });
        self.open = Some(Open { index: self.next, id, arguments: Vec::new(), passed: 0 });
        self.next += 1;
    }

    /// The model writes the open call's id behind its arguments. The first id counts.
    pub(super) fn identify(&mut self, id: &str) {
        let id = self.whole(id);
        if let Some(open) = self.open.as_mut().filter(|open| open.id.is_none())
            && self.ids.insert(id.clone())
        {
            open.id = Some(id);
        }
    }

    /// From here on there may be marks in what comes.
    pub(super) fn expect_marks(&mut self) {
        self.unmask = Some(Unmask::default());
    }

    /// A text that is whole, without marks.
    fn whole(&self, text: &str) -> String {
        if self.unmask.is_some() { Unmask::whole(text) } else { text.to_owned() }
    }

    /// More of the open call's arguments; may end inside a character.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        if let Some(open) = &mut self.open {
            open.arguments.extend(bytes);
        }
    }

    /// Closes the open call.
    pub(super) fn done(&mut self, complete: bool) {
        self.flush();
        if let Some(Open { index, id, arguments, .. }) = self.open.take() {
            let arguments = self.whole(&String::from_utf8_lossy(&arguments));
            self.pieces.push(Piece::ToolCallDone { index, id, arguments, complete });
        }
    }

    /// Whether there are pieces to be given out.
    pub(super) fn has_news(&self) -> bool {
        let unsent = self.open.as_ref().is_some_and(|open| open.passed < open.arguments.len());
        unsent || !self.pieces.is_empty()
    }

    /// Whether a call is announced and not closed.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// How many calls were announced.
    pub(super) fn count(&self) -> u32 {
        self.next
    }

    /// Gives out all pieces; called where the arguments end with a whole character.
    pub(super) fn drain(&mut self, out: &mut Vec<Piece>) {
        self.flush();
        out.append(&mut self.pieces);
    }

    fn flush(&mut self) {
        if let Some(open) = &mut self.open
            && open.passed < open.arguments.len()
        {
            let fragment = String::from_utf8_lossy(&open.arguments[open.passed..]);
            let fragment = match &mut self.unmask {
                Some(unmask) => unmask.show(&fragment),
                None => fragment.into_owned(),
            };
            open.passed = open.arguments.len();
            if !fragment.is_empty() {
                self.pieces.push(Piece::ToolCallArguments { index: open.index, fragment });
            }
        }
    }
}
