//! Finds the tokens that are cut out of a text before anything else: control and user-defined ones.

/// A set of token texts that is searched from left to right; at one place the longest wins.
#[derive(Debug, Default)]
pub(super) struct Matcher {
    /// Texts by first byte, longest first; empty when there is none at all. Every byte of every prompt is looked up
    /// here, so it is a table.
    by_first_byte: Vec<Vec<(String, u32)>>,
}

/// Where a token's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) id: u32,
}

impl Matcher {
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (u32, &'a str)>) -> Self {
        let mut by_first_byte: Vec<Vec<(String, u32)>> = Vec::new();
        for (id, text) in tokens {
            if let Some(&first) = text.as_bytes().first() {
                by_first_byte.resize(usize::from(u8::MAX) + 1, Vec::new());
                by_first_byte[usize::from(first)].push((text.to_owned(), id));
            }
        }
        for texts in &mut by_first_byte {
            texts.sort_by(|(left, left_id), (right, right_id)| (right.len(), left_id).cmp(&(left.len(), right_id)));
        }
        Self { by_first_byte }
    }

    /// The texts of all tokens in the set.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.by_first_byte.iter().flatten().map(|(text, _)| text.as_str())
    }

    /// The first token at or behind `from`.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<Found> {
        if self.by_first_byte.is_empty() {
            return None;
        }
        let bytes = text.as_bytes();
        (from..bytes.len()).find_map(|start| {
            let mut tokens = self.by_first_byte[usize::from(bytes[start])].iter();
            let (token, id) = tokens.find(|(token, _)| bytes[start..].starts_with(token.as_bytes()))?;
            Some(Found { start, end: start + token.len(), id: *id })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leftmost_longest_token_is_found() {
        let matcher = Matcher::new([(1, "<a"), (2, "<a>"), (3, "é")].into_iter());
        assert_eq!(matcher.find("x<a>", 0), Some(Found { start: 1, end: 4, id: 2 }));
        assert_eq!(matcher.find("x<ab", 0), Some(Found { start: 1, end: 3, id: 1 }));
        assert_eq!(matcher.find("<aé", 1), Some(Found { start: 2, end: 4, id: 3 }));
        assert_eq!(matcher.find("abc", 0), None);
    }
}
