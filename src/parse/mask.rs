//! Markers that a model spelled out with ordinary tokens, where it has control tokens for them: text, not markers.
//!
//! No parser is to see such a marker, and none needs to know: in front of its last character goes a mark, a character
//! that stands in no marker, and what is shown is freed of marks. A mark that the model itself writes is doubled on
//! the way in, so that nothing is lost.

use super::stop::Search;

/// A noncharacter, which no text has to hold.
const MARK: char = '\u{FDD0}';

/// Marks what was spelled out.
#[derive(Debug)]
pub(super) struct Mask {
    searches: Vec<Search>,
    /// What the texts begin with.
    firsts: Vec<char>,
}

impl Mask {
    /// For control tokens of these texts.
    pub(super) fn new(texts: Vec<String>) -> Self {
        let mut firsts: Vec<char> = texts.iter().filter_map(|text| text.chars().next()).collect();
        firsts.push(MARK);
        let searches = texts.into_iter().filter(|text| !text.is_empty()).map(Search::new).collect();
        Self { searches, firsts }
    }

    /// Whether there is nothing to look for.
    pub(super) fn is_empty(&self) -> bool {
        self.searches.is_empty()
    }

    /// Whether the token of this text is a part of a marker.
    pub(super) fn knows(&self, text: &str) -> bool {
        self.searches.iter().any(|search| search.text() == text)
    }

    /// Appends spelled text, with its marks; says whether there are any.
    pub(super) fn spell(&mut self, text: &str, out: &mut String) -> bool {
        let (mut rest, mut marked) = (text, false);
        while let Some(character) = rest.chars().next() {
            if self.searches.iter().all(Search::is_at_start) {
                let plain = rest.find(&self.firsts[..]).unwrap_or(rest.len());
                if plain > 0 {
                    out.push_str(&rest[..plain]);
                    rest = &rest[plain..];
                    continue;
                }
            }
            let mut whole = character == MARK;
            for &byte in character.encode_utf8(&mut [0; 4]).as_bytes() {
                for search in &mut self.searches {
                    whole |= search.push(byte);
                }
            }
            if whole {
                out.push(MARK);
                marked = true;
            }
            out.push(character);
            rest = &rest[character.len_utf8()..];
        }
        marked
    }

    /// A control token comes: what was spelled before it does not go on.
    pub(super) fn interrupt(&mut self) {
        self.searches.iter_mut().for_each(Search::restart);
    }
}

/// Takes marks out of one stretch of what is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Unmask {
    /// The last character was a mark, and only one more shows that it was written.
    half: bool,
}

impl Unmask {
    /// The text as the model wrote it.
    pub(super) fn show(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for character in text.chars() {
            let is_mark = character == MARK;
            if !is_mark || self.half {
                out.push(character);
            }
            self.half = is_mark && !self.half;
        }
        out
    }

    /// A text that is whole.
    pub(super) fn whole(text: &str) -> String {
        Self::default().show(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mask() -> Mask {
        Mask::new(["<|a|>", "<|ab|>", "[é]", "a]"].map(str::to_owned).to_vec())
    }

    #[test]
    fn the_last_character_of_a_spelled_marker_stands_behind_a_mark() {
        for (text, marked) in [
            ("x<|a|>y", "x<|a|\u{FDD0}>y"),
            ("<|<|ab|>", "<|<|ab|\u{FDD0}>"),
            ("[é]", "[é\u{FDD0}]"),
            ("<|a|", "<|a|"),
            ("a]a]", "a\u{FDD0}]a\u{FDD0}]"),
            ("\u{FDD0}", "\u{FDD0}\u{FDD0}"),
        ] {
            let mut out = String::new();
            mask().spell(text, &mut out);
            assert_eq!(out, marked);
        }
        let (mut mask, mut out) = (mask(), String::new());
        assert!(!mask.spell("<|a", &mut out));
        mask.interrupt();
        assert!(!mask.spell("|>", &mut out));
        assert_eq!(out, "<|a|>");
        assert!(mask.knows("[é]") && !mask.knows("[é"));
    }

    proptest! {
        #[test]
        fn what_is_marked_in_any_cut_comes_back_in_any_cut(
            parts in prop::collection::vec(
                prop::sample::select(vec!["<|a|>", "<|ab|>", "[é]", "<", "|", "a", "]", "\u{FDD0}", "\u{FDD0}x"]),
                0..20,
            ),
            cut in 1usize..4,
        ) {
            let text = parts.concat();
            let (mut whole, mut pieces, mut mask_of_pieces) = (String::new(), String::new(), mask());
            mask().spell(&text, &mut whole);
            for character in text.chars().collect::<Vec<_>>().chunks(cut) {
                mask_of_pieces.spell(&character.iter().collect::<String>(), &mut pieces);
            }
            prop_assert_eq!(&pieces, &whole);
            let mut unmask = Unmask::default();
            let characters: Vec<char> = whole.chars().collect();
            let shown: Vec<String> =
                characters.chunks(cut).map(|part| unmask.show(&part.iter().collect::<String>())).collect();
            prop_assert_eq!(shown.concat(), text);
            for marker in ["<|a|>", "<|ab|>", "[é]", "a]"] {
                prop_assert!(!whole.contains(marker));
            }
        }
    }
}
