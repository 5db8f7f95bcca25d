//! A model's vocabulary as the grammar library sees it.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::engine::tokenizer::Tokenizer;

struct Environment {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

/// The vocabulary. Its control tokens belong to no text; its ends of generation end a grammar.
pub(super) fn environment(tokenizer: &Arc<Tokenizer>) -> TokEnv {
    let words: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32)
        .map(|id| match tokenizer.special_text(id) {
            // The mark makes it another word than the same text in ordinary tokens.
            Some(text) => [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat(),
            None => tokenizer.token_bytes(id).to_vec(),
        })
        .collect();
    let ends = tokenizer.end_of_generation();
    let end = ends.first().copied().or(tokenizer.eos()).unwrap_or(u32::MAX);
    let trie = TokTrie::from(&TokRxInfo::new(tokenizer.vocab_size() as u32, end), &words);
    let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(ends) };
    Arc::new(Environment { tokenizer: Arc::clone(tokenizer), trie })
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let tokens = self.trie.tokenize_with_greedy_fallback(bytes, |text| self.tokenizer.encode_behind_text(text));
        // A tokenizer that writes a text differently than it was is no guide to what may come.
        let says: Vec<u8> = tokens.iter().flat_map(|token| self.tokenizer.token_bytes(*token)).copied().collect();
        if says == bytes { tokens } else { self.trie.greedy_tokenize(bytes) }
    }
}
