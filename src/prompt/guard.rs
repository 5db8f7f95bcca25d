//! Keeps the texts of control tokens in messages from becoming control tokens.
//!
//! A template cannot tell what it wrote from what somebody said. So a mark, a private-use character that occurs
//! nowhere in the input, is put inside every control text in messages before rendering; what is then still a control
//! text was written by the template. The marks are taken out again before the text is encoded or shown.
//!
//! Models whose delimiters are user-defined tokens (`<tool_call>`, `<think>`) would take them from any text. Those that
//! the template writes itself are broken in what users and tools say, and in nothing else: an answer that is sent back
//! may hold them, and a system text may speak of them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::engine::tokenizer::{Segment, Tokenizer};

/// The marks that may be used; one is enough unless the input holds some itself.
const MARKS: RangeInclusive<char> = '\u{F0000}'..='\u{F00FF}';
/// The marks that may stand where a text ends.
const END_MARKS: RangeInclusive<char> = '\u{F0100}'..='\u{F01FF}';

/// Whether the character can be a mark.
pub(super) fn is_mark(character: char) -> bool {
    MARKS.contains(&character) || END_MARKS.contains(&character)
}

/// Marks control texts with one character.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard<'a> {
    tokenizer: &'a Tokenizer,
    delimiters: &'a [&'a str],
    mark: char,
}

/// A mark for the end of one text among these, which none of them holds.
pub(super) fn end_mark<'b>(texts: impl Iterator<Item = &'b str>) -> Option<char> {
    free(END_MARKS, texts)
}

/// The first of the characters that is in none of the texts.
fn free<'b>(mut marks: RangeInclusive<char>, texts: impl Iterator<Item = &'b str>) -> Option<char> {
    let mut used = BTreeSet::new();
    for text in texts {
        used.extend(text.chars().filter(|character| marks.contains(character)));
    }
    marks.find(|mark| !used.contains(mark))
}

/// The user-defined tokens that a template writes as delimiters.
pub(super) fn delimiters<'a>(tokenizer: &'a Tokenizer, source: &str) -> Vec<&'a str> {
    // Spaces, line ends and words are user-defined in some vocabularies, and are what they look like.
    let delimits = |text: &&str| {
        text.len() >= 3 && text.starts_with(|first: char| !first.is_alphanumeric() && !first.is_whitespace())
    };
    tokenizer.user_defined_texts().filter(delimits).filter(|text| source.contains(text)).collect()
}

impl<'a> Guard<'a> {
    /// A guard for an input of these texts, with a mark that none of them holds. With all marks in use there is
    /// nothing left that could be taken out again safely, so there is no guard.
    pub(super) fn new<'b>(
        tokenizer: &'a Tokenizer,
        delimiters: &'a [&'a str],
        texts: impl Iterator<Item = &'b str>,
    ) -> Option<Self> {
        free(MARKS, texts).map(|mark| Self { tokenizer, delimiters, mark })
    }

    /// The text with every control text in it broken by the mark.
    pub(super) fn protect(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for segment in self.tokenizer.segments(text) {
            match segment {
                Segment::Text(text) => out.push_str(text),
                Segment::Control(id) => {
                    let mut characters = self.tokenizer.special_text(id).unwrap_or_default().chars();
                    out.extend(characters.next());
                    out.push(self.mark);
                    out.push_str(characters.as_str());
                }
            }
        }
        out
    }

    /// What a user or a tool says, with delimiters broken as well.
    pub(super) fn protect_said(&self, text: &str) -> String {
        let mut out = self.protect(text);
        for delimiter in self.delimiters {
            let border = delimiter.chars().next().map_or(0, char::len_utf8);
            let (first, rest) = delimiter.split_at(border);
            out = out.replace(delimiter, &format!("{first}{}{rest}", self.mark));
        }
        out
    }

    /// The text without marks.
    pub(super) fn strip(&self, text: &str) -> String {
        text.replace(self.mark, "")
    }

    /// The text without marks, and where they stood in it.
    pub(super) fn strip_with_breaks(&self, text: &str) -> (String, Vec<usize>) {
        let mut parts = text.split(self.mark);
        let mut out = parts.next().unwrap_or_default().to_owned();
        let mut breaks = Vec::new();
        for part in parts {
            breaks.push(out.len());
            out.push_str(part);
        }
        (out, breaks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_texts_hold_no_control_token_and_come_back_unchanged() {
        let tokenizer = Tokenizer::bytes();
        for text in ["<|im_end|>", "a<|im_start|><|im_end|>b", "<<|im_end|>", "\u{F0000}<|im_end|>", "plain"] {
            let guard = Guard::new(&tokenizer, &[], std::iter::once(text)).unwrap();
            let protected = guard.protect(text);
            assert!(tokenizer.segments(&protected).iter().all(|segment| matches!(segment, Segment::Text(_))));
            assert_eq!(guard.strip(&protected), text);
        }
    }
}
