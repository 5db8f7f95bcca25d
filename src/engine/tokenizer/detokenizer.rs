//! Bytes of tokens to text, never showing half a character.

/// Collects the bytes of tokens and gives out whole characters. What is no UTF-8 becomes U+FFFD, as late as needed
/// to know and no later, so output never stalls.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// The beginning of a character: at most three bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A detokenizer at the beginning of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next token's bytes and appends what is complete to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.pending.is_empty() {
            let held = append_valid(bytes, out);
            self.pending.extend(held);
        } else {
            self.pending.extend(bytes);
            let joined = std::mem::take(&mut self.pending);
            let held = append_valid(&joined, out);
            self.pending.extend(held);
        }
    }

    /// Whether the beginning of a character is held back.
    pub fn held(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The text ends: half a character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Appends all that can be decided and returns the unfinished character at the end.
fn append_valid<'a>(mut bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    loop {
        let Err(error) = std::str::from_utf8(bytes) else {
            out.push_str(&String::from_utf8_lossy(bytes));
            return &[];
        };
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        out.push_str(&String::from_utf8_lossy(valid));
        let Some(invalid) = error.error_len() else { return rest };
        out.push(char::REPLACEMENT_CHARACTER);
        bytes = &rest[invalid..];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_character_is_shown_when_it_is_whole() {
        let mut detokenizer = Detokenizer::new();
        let mut out = String::new();
        for &byte in &"é🦀".as_bytes()[..5] {
            detokenizer.push(&[byte], &mut out);
        }
        assert_eq!((out.as_str(), detokenizer.held()), ("é", true));
        detokenizer.push(&"🦀".as_bytes()[3..], &mut out);
        assert_eq!((out.as_str(), detokenizer.held()), ("é🦀", false));
    }

    #[test]
    fn invalid_bytes_do_not_stall() {
        let mut detokenizer = Detokenizer::new();
        let mut out = String::new();
        detokenizer.push(b"\xf0\x9f", &mut out);
        detokenizer.push(b"a", &mut out);
        assert_eq!(out, "\u{fffd}a");
        detokenizer.push(b"\xe2\x82", &mut out);
        detokenizer.finish(&mut out);
        assert_eq!(out, "\u{fffd}a\u{fffd}");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_text_of_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..60), size in 1usize..5) {
            let mut detokenizer = Detokenizer::new();
            let mut out = String::new();
            for chunk in bytes.chunks(size) {
                detokenizer.push(chunk, &mut out);
                prop_assert!(detokenizer.pending.len() < 4);
            }
            detokenizer.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
