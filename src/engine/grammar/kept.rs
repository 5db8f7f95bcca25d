//! Compiled grammars that are kept, by their content: agents ask for the same few again and again.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;
use sha2::{Digest, Sha256};

/// How many are kept.
pub(super) const KEPT_MAX: usize = 64;

/// The content of a grammar.
pub(super) type Key = [u8; 32];

/// The latest last.
#[derive(Default)]
pub(super) struct Kept(Mutex<VecDeque<(Key, Matcher)>>);

impl Kept {
    pub(super) fn find(&self, key: Key) -> Option<Matcher> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let position = kept.iter().position(|(known, _)| *known == key)?;
        let entry = kept.remove(position)?;
        let matcher = entry.1.clone();
        kept.push_back(entry);
        Some(matcher)
    }

    /// Adds one that is not among them, in the place of the one that was not asked for the longest.
    pub(super) fn add(&self, key: Key, matcher: Matcher) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((key, matcher));
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

pub(super) fn key(grammar: &TopLevelGrammar) -> Key {
    let mut digest = Sha256::new();
    for part in &grammar.grammars {
        for text in [part.name.clone(), part.lark_grammar.clone(), part.json_schema.as_ref().map(ToString::to_string)] {
            let text = text.unwrap_or_default();
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
    }
    digest.finalize().into()
}
