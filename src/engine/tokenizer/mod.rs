//! Text to token ids and back.
//!
//! Built from what the model file says about its vocabulary. Encoding never turns plain text into a control token
//! unless it is told that the text may hold some; decoding gives raw bytes, and control tokens have none.

mod bpe;
mod detokenizer;
mod load;
mod pre_tokenizer;
mod special;
mod spm;
mod vocabulary;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

use bpe::Bpe;
use special::Matcher;
use spm::Spm;
use vocabulary::{Kind, Vocabulary};

pub use detokenizer::Detokenizer;

/// Why a model's tokenizer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file's metadata is missing something or has another type.
    #[error(transparent)]
    File(#[from] super::gguf::Error),
    /// A kind of tokenizer that is not known.
    #[error("the tokenizer model {0:?} is not supported; gpt2 and gemma4 (BPE) and llama (SPM) are")]
    UnknownModel(String),
    /// A name of a pre-tokenizer that is not known.
    #[error("the pre-tokenizer {0:?} is not supported; text would be cut wrongly, so the model is refused")]
    UnknownPreTokenizer(String),
    /// A list has another length than the vocabulary.
    #[error("{key} has {found} elements, but the vocabulary has {expected} tokens")]
    Length {
        /// The metadata key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The vocabulary's.
        expected: usize,
    },
    /// A token type that is not known.
    #[error("token {id} has the unknown type {kind}")]
    TokenType {
        /// The token.
        id: u32,
        /// Its type.
        kind: u32,
    },
    /// A merge is malformed or leads to no token.
    #[error("a BPE merge cannot be used: {0}")]
    Merge(String),
    /// A split pattern does not compile.
    #[error("a split pattern cannot be used: {0}")]
    Pattern(String),
    /// The vocabulary is empty.
    #[error("the vocabulary is empty")]
    Empty,
}

/// A part of a text: a control token, or text in which no control token is to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// A control token.
    Control(u32),
    /// Plain text.
    Text(&'a str),
}

#[derive(Debug)]
enum Model {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
    /// Every byte is a token.
    Bytes,
}

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: Model,
    control: Matcher,
    user_defined: Matcher,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    end_of_generation: Vec<u32>,
    warnings: Vec<String>,
    fingerprint: String,
}

impl Tokenizer {
    /// The ids of a text, without BOS. `parse_special` says that the text of a control token stands for the token;
    /// otherwise it is text like any other.
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        if parse_special {
            return self.encode_segments(&self.segments(text));
        }
        self.encode_segments(&[Segment::Text(text)])
    }

    /// The ids of a text that goes on behind other text. What looks like a control token is text.
    pub fn encode_behind_text(&self, text: &str) -> Vec<u32> {
        // No special token, so none that a space would follow.
        let mut ids = vec![u32::MAX];
        self.append_text(text, &[], &mut ids);
        ids.split_off(1)
    }

    /// The ids of segments in order. Each text is encoded by itself.
    pub fn encode_segments(&self, segments: &[Segment<'_>]) -> Vec<u32> {
        let mut out = Vec::new();
        self.append_segments(segments, &mut out);
        out
    }

    /// Appends the ids of segments to ids that stand before them: models that put a space in front of a text do so
    /// only at the beginning and behind special tokens.
    pub fn append_segments(&self, segments: &[Segment<'_>], out: &mut Vec<u32>) {
        for segment in segments {
            match *segment {
                Segment::Control(id) => out.push(id),
                Segment::Text(text) => self.append_text(text, &[], out),
            }
        }
    }

    /// Appends the ids of a text in which no user-defined token may lie across one of the breaks: places in the text,
    /// in order. So a text that looks like such a token can be spelled by others.
    pub fn append_text(&self, text: &str, breaks: &[usize], out: &mut Vec<u32>) {
        let (mut at, mut from) = (0, 0);
        while let Some(found) = self.user_defined.find(text, from) {
            let behind = breaks.partition_point(|&place| place <= found.start);
            if breaks.get(behind).is_some_and(|&place| place < found.end) {
                from = found.start + 1;
                continue;
            }
            self.encode_piece(&text[at..found.start], out);
            out.push(found.id);
            (at, from) = (found.end, found.end);
        }
        self.encode_piece(&text[at..], out);
    }

    /// Cuts a text at the control tokens in it, the longest first where several begin.
    pub fn segments<'a>(&self, text: &'a str) -> Vec<Segment<'a>> {
        let mut segments = Vec::new();
        let mut at = 0;
        while let Some(found) = self.control.find(text, at) {
            if found.start > at {
                segments.push(Segment::Text(&text[at..found.start]));
            }
            segments.push(Segment::Control(found.id));
            at = found.end;
        }
        if at < text.len() {
            segments.push(Segment::Text(&text[at..]));
        }
        segments
    }

    fn encode_piece(&self, text: &str, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(text, out),
            Model::Spm(spm) => {
                let opening = out.last().is_none_or(|&id| self.is_special(id));
                spm.encode(text, opening, out);
            }
            Model::Bytes => out.extend(text.bytes().map(u32::from)),
        }
    }

    fn is_special(&self, id: u32) -> bool {
        matches!(self.vocabulary.kind(id), Some(Kind::Control | Kind::UserDefined))
    }

    /// The raw bytes a token stands for; they need not be whole characters. Control tokens and ids that do not
    /// exist have none.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// The texts of user-defined tokens: they are cut out of every text, as control tokens are not.
    pub fn user_defined_texts(&self) -> impl Iterator<Item = &str> {
        self.vocabulary.of_kind(Kind::UserDefined).map(|(_, text)| text)
    }

    /// The text of a control token.
    pub fn special_text(&self, id: u32) -> Option<&str> {
        self.is_control(id).then(|| self.vocabulary.text(id)).flatten()
    }

    /// Whether the token is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id) == Some(Kind::Control)
    }

    /// The text of many tokens, control tokens left out and invalid bytes as U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The text of many tokens, control tokens with theirs and invalid bytes as U+FFFD.
    pub fn spell(&self, ids: &[u32]) -> String {
        let spelled = ids.iter().flat_map(|&id| self.special_text(id).map_or(self.token_bytes(id), str::as_bytes));
        String::from_utf8_lossy(&spelled.copied().collect::<Vec<_>>()).into_owned()
    }

    /// Whether a text at the beginning or behind a special token is encoded with a space in front.
    pub fn space_prefix(&self) -> bool {
        matches!(&self.model, Model::Spm(spm) if spm.space_prefix)
    }

    /// The most bytes that one token stands for: a text has at least its length divided by this many tokens.
    pub fn longest_token_bytes(&self) -> usize {
        self.vocabulary.longest_bytes()
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether a prompt must begin with the BOS token.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// The tokens that end an answer, ascending.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// The texts of all control tokens.
    pub fn control_texts(&self) -> impl Iterator<Item = &str> {
        self.control.texts()
    }

    /// What was doubtful about the model file, for the log.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Equal for tokenizers that encode alike.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}
