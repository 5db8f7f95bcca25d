//! Byte-pair encoding: pieces by the pre-tokenizer's patterns, bytes as characters, merges by rank.

use std::collections::HashSet;

use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    Model, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior, Token,
};

use super::Error;
use super::pre_tokenizer::Recipe;
use super::vocabulary::{Kind, METASPACE, Vocabulary};

/// A byte-pair encoder.
#[derive(Debug)]
pub(super) struct Bpe {
    splits: Vec<Split>,
    /// None where pieces are characters.
    bytes: Option<ByteLevel>,
    model: BPE,
    /// Characters of bytes that are no token. They are lost, and nothing merges across them.
    missing: Vec<char>,
}

impl Bpe {
    pub(super) fn new(vocabulary: &Vocabulary, merges: &[String], recipe: &Recipe) -> Result<Self, Error> {
        // Plain text must never become a control token, so neither the table nor a merge may lead to one.
        let control: HashSet<&str> = vocabulary.of_kind(Kind::Control).map(|(_, text)| text).collect();
        let table = vocabulary.texts().iter().zip(0u32..).filter(|(text, _)| !control.contains(text.as_str()));
        let table: tokenizers::models::bpe::Vocab = table.map(|(text, id)| (text.clone(), id)).collect();
        let mut pairs = Vec::with_capacity(merges.len());
        for merge in merges {
            let (left, right) = split_merge(merge).ok_or_else(|| Error::Merge(merge.clone()))?;
            if !control.contains(format!("{left}{right}").as_str()) {
                pairs.push((left.to_owned(), right.to_owned()));
            }
        }
        let builder = BPE::builder().vocab_and_merges(table, pairs).ignore_merges(recipe.ignore_merges);
        let builder = builder.byte_fallback(recipe.characters);
        let model = builder.build().map_err(|error| Error::Merge(error.to_string()))?;
        let splits = recipe.patterns.iter().map(|pattern| {
            Split::new(SplitPattern::Regex(pattern.clone()), SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| Error::Pattern(error.to_string()))
        });
        let splits = splits.collect::<Result<_, _>>()?;
        let is_missing = |letter: &char| model.token_to_id(letter.encode_utf8(&mut [0; 4])).is_none();
        let bytes = (!recipe.characters).then(|| ByteLevel::new(false, false, false));
        let alphabet = bytes.iter().flat_map(|_| ByteLevel::alphabet());
        let missing = alphabet.filter(is_missing).collect();
        Ok(Self { splits, bytes, model, missing })
    }

    /// Appends the tokens of a text that holds no special token.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        // The steps below cannot fail on valid UTF-8; if the library ever does, losing text would be worse than
        // a slower encoding, so the text then goes byte by byte.
        if self.try_encode(text, out).is_err() {
            text.chars().for_each(|character| {
                let _ = self.try_encode(character.encode_utf8(&mut [0; 4]), out);
            });
        }
    }

    fn try_encode(&self, text: &str, out: &mut Vec<u32>) -> tokenizers::Result<()> {
        let mut pieces = match &self.bytes {
            Some(_) => PreTokenizedString::from(text),
            None => PreTokenizedString::from(text.replace(' ', METASPACE)),
        };
        for split in &self.splits {
            split.pre_tokenize(&mut pieces)?;
        }
        if let Some(bytes) = &self.bytes {
            bytes.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.merge(piece.get()))?;
        for (_, _, tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            out.extend(tokens.iter().flatten().map(|token| token.id));
        }
        Ok(())
    }

    fn merge(&self, piece: &str) -> tokenizers::Result<Vec<Token>> {
        if self.missing.is_empty() {
            return self.model.tokenize(piece);
        }
        let mut tokens = Vec::new();
        for part in piece.split(self.missing.as_slice()).filter(|part| !part.is_empty()) {
            tokens.extend(self.model.tokenize(part)?);
        }
        Ok(tokens)
    }
}

/// The two halves of a merge; a half may itself begin with a space.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let at = first + merge[first..].find(' ')?;
    let (left, right) = (&merge[..at], &merge[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}
