//! Finds literals in a stream of bytes, and gives a call that broke what is in front of one. Knows no family.

use super::Step;
use crate::parse::calls::Calls;

/// What a byte did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// The literal does not go on like this, or does not begin here.
    No,
    /// It goes on.
    Part,
    /// It is whole.
    Whole,
}

/// A literal at the place where it is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Literal {
    text: &'static str,
    matched: usize,
}

impl Literal {
    pub(super) fn new(text: &'static str) -> Self {
        Self { text, matched: 0 }
    }

    /// The bytes that have matched so far.
    pub(super) fn bytes(&self) -> &'static [u8] {
        &self.text.as_bytes()[..self.matched]
    }

    pub(super) fn is_inside(&self) -> bool {
        self.matched > 0
    }

    /// Takes a byte; after `No` and `Whole` it is at its beginning again.
    pub(super) fn push(&mut self, byte: u8) -> Match {
        if self.text.as_bytes().get(self.matched) != Some(&byte) {
            self.matched = 0;
            return Match::No;
        }
        self.matched += 1;
        if self.matched < self.text.len() {
            return Match::Part;
        }
        self.matched = 0;
        Match::Whole
    }
}

impl Literal {
    /// Takes a byte of a text in which the literal may begin anywhere, also in what looked like it.
    fn search(&mut self, byte: u8) -> Match {
        let text = self.text.as_bytes();
        while self.matched > 0 && text[self.matched] != byte {
            let matched = &text[..self.matched];
            self.matched = (0..self.matched).rev().find(|&border| matched.ends_with(&text[..border])).unwrap_or(0);
        }
        self.push(byte)
    }
}

/// One of several literals, none of which is the beginning of another.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    texts: &'static [&'static str],
    matched: Vec<u8>,
}

impl Choice {
    pub(super) fn new(texts: &'static [&'static str]) -> Self {
        Self { texts, matched: Vec::new() }
    }

    pub(super) fn is_inside(&self) -> bool {
        !self.matched.is_empty()
    }

    /// Takes a byte; with `Whole` comes which. After `No` and `Whole` it is at its beginning again.
    pub(super) fn push(&mut self, byte: u8) -> (Match, usize) {
        self.matched.push(byte);
        let begins = |text: &&str| text.as_bytes().starts_with(&self.matched);
        let Some(index) = self.texts.iter().position(begins) else {
            self.matched.clear();
            return (Match::No, 0);
        };
        if self.texts[index].len() > self.matched.len() {
            return (Match::Part, index);
        }
        self.matched.clear();
        (Match::Whole, index)
    }
}

/// Passes bytes on up to a literal, for what is raw until it is closed.
#[derive(Clone, Debug)]
pub(super) struct Until(Vec<Literal>);

impl Until {
    /// Up to the first of these.
    pub(super) fn new(closing: &[&'static str]) -> Self {
        Self(closing.iter().map(|text| Literal::new(text)).collect())
    }

    /// Takes a byte; gives what is certain to be in front of the closing literal. True: the literal is whole.
    pub(super) fn push(&mut self, byte: u8, give: impl FnMut(&[u8])) -> bool {
        self.push_which(byte, give).is_some()
    }

    /// Takes a byte of a call that broke: what is in front of the closing literal is the call's, as it is.
    pub(super) fn take_broken(&mut self, byte: u8, calls: &mut Calls) -> Step {
        if self.push(byte, |bytes| calls.append(bytes)) {
            calls.done(false);
            return Step::Ended;
        }
        if self.kept().is_empty() { Step::Taken } else { Step::Held }
    }

    /// Takes a byte like [`Until::push`]; says which literal is whole.
    pub(super) fn push_which(&mut self, byte: u8, mut give: impl FnMut(&[u8])) -> Option<usize> {
        let kept = self.kept();
        let mut whole = None;
        for (index, literal) in self.0.iter_mut().enumerate() {
            whole = whole.or((literal.search(byte) == Match::Whole).then_some(index));
        }
        if whole.is_some() {
            return whole;
        }
        let still = self.kept().len();
        // What no literal can begin with any more.
        let gone = (kept.len() + 1).saturating_sub(still);
        give(&kept[..gone.min(kept.len())]);
        if gone > kept.len() {
            give(&[byte]);
        }
        None
    }

    /// What may still turn out to be the closing literal.
    pub(super) fn kept(&self) -> &'static [u8] {
        self.0.iter().map(Literal::bytes).max_by_key(|bytes| bytes.len()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(closing: &[&'static str], text: &str) -> (String, bool) {
        let (mut until, mut given) = (Until::new(closing), Vec::new());
        let whole = text.bytes().any(|byte| until.push(byte, |bytes| given.extend(bytes)));
        if !whole {
            given.extend(until.kept());
        }
        (String::from_utf8(given).unwrap(), whole)
    }

    #[test]
    fn everything_in_front_of_the_closing_literal_comes_out() {
        assert_eq!(before(&["</t>"], "a<</</tx</t>b"), ("a<</</tx".to_owned(), true));
        assert_eq!(before(&["</t>", "</x>"], "a</</x>"), ("a</".to_owned(), true));
        assert_eq!(before(&["</t>"], "é</t"), ("é</t".to_owned(), false));
        assert_eq!(before(&[], "abc"), ("abc".to_owned(), false));
        assert_eq!(before(&["<｜e｜>"], "｜<｜e｜<｜e｜>"), ("｜<｜e｜".to_owned(), true));
        assert_eq!(before(&["<|c|>t<|s|>"], "a<|c|>t<|c|>t<|s|>b"), ("a<|c|>t".to_owned(), true));
    }
}
