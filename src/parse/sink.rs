//! Where the splitter's findings go: stop strings are applied to text, and the pieces come out in order.

use std::borrow::Cow;

use super::calls::Calls;
use super::mask::Unmask;
use super::piece::Piece;
use super::stop::StopFilter;

/// One push's way out.
pub(super) struct Sink<'a> {
    pub(super) stop: &'a mut StopFilter,
    pub(super) calls: &'a mut Calls,
    /// Takes marks out of text and reasoning, where there are any.
    pub(super) unmask: Option<&'a mut Unmask>,
    pub(super) out: &'a mut Vec<Piece>,
}

impl Sink<'_> {
    pub(super) fn stopped(&self) -> bool {
        self.stop.stopped()
    }

    pub(super) fn text(&mut self, text: &str) {
        let text = self.unmasked(text);
        if !text.is_empty() {
            self.drain_calls();
            self.stop.push(&text, self.out);
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        let text = self.unmasked(text);
        if text.is_empty() {
            return;
        }
        self.drain_calls();
        self.stop.release(self.out);
        match self.out.last_mut() {
            Some(Piece::Reasoning(last)) => last.push_str(&text),
            _ => self.out.push(Piece::Reasoning(text.into_owned())),
        }
    }

    fn unmasked<'t>(&mut self, text: &'t str) -> Cow<'t, str> {
        match &mut self.unmask {
            Some(unmask) => Cow::Owned(unmask.show(text)),
            None => Cow::Borrowed(text),
        }
    }

    /// Puts what calls have yielded behind the text before them.
    pub(super) fn drain_calls(&mut self) {
        if self.calls.has_news() {
            self.stop.release(self.out);
            self.calls.drain(self.out);
        }
    }
}
