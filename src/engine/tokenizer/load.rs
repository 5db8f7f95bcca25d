//! Builds a tokenizer from a model file's metadata, or the built-in one of bytes.

use super::bpe::Bpe;
use super::pre_tokenizer::recipe;
use super::special::Matcher;
use super::spm::Spm;
use super::vocabulary::{Alphabet, Kind, Vocabulary};
use super::{Error, Model, Tokenizer};
use crate::engine::gguf::Gguf;

const MODEL_KEY: &str = "tokenizer.ggml.model";
const PRE_KEY: &str = "tokenizer.ggml.pre";
const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const SCORES_KEY: &str = "tokenizer.ggml.scores";
const MERGES_KEY: &str = "tokenizer.ggml.merges";

/// Texts of tokens that end an answer in some model family, whatever the file's own keys say.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "</s>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

impl Tokenizer {
    /// The tokenizer of a model file.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, Error> {
        let mut loader = Loader { gguf, warnings: Vec::new() };
        match gguf.require(MODEL_KEY)?.as_str() {
            Some("gpt2") => loader.byte_pair(None),
            // Its merges are over characters, whatever the file says about pre-tokenizers.
            Some("gemma4") => loader.byte_pair(Some("gemma4")),
            Some("llama") => loader.sentence_piece(),
            other => Err(Error::UnknownModel(other.unwrap_or_default().to_owned())),
        }
    }

    /// A tokenizer without a model: ids 0 to 255 are bytes, then come `ChatML`'s control tokens.
    pub fn bytes() -> Self {
        const CONTROL: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];
        let mut texts: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
        let mut kinds = vec![Kind::Byte; texts.len()];
        texts.extend(CONTROL.map(str::to_owned));
        kinds.extend([Kind::Control; CONTROL.len()]);
        let vocabulary = Vocabulary::new(texts, kinds, Alphabet::Metaspace);
        Self {
            control: Matcher::new(vocabulary.of_kind(Kind::Control)),
            user_defined: Matcher::default(),
            vocabulary,
            model: Model::Bytes,
            bos: None,
            eos: Some(257),
            add_bos: false,
            end_of_generation: vec![257, 258],
            warnings: Vec::new(),
            fingerprint: "bytes-1".to_owned(),
        }
    }
}

struct Loader<'a> {
    gguf: &'a Gguf,
    warnings: Vec<String>,
}

impl Loader<'_> {
    fn byte_pair(&mut self, name: Option<&'static str>) -> Result<Tokenizer, Error> {
        let name = name.map_or_else(|| self.gguf.string(PRE_KEY), |name| Ok(Some(name)))?;
        let recipe = recipe(name)?;
        if recipe.guessed {
            self.warnings.push(format!(
                "{PRE_KEY} does not name a pre-tokenizer; a default is used and text may be cut wrongly"
            ));
        }
        let alphabet = if recipe.characters { Alphabet::Metaspace } else { Alphabet::ByteLevel };
        let vocabulary = self.vocabulary(alphabet)?;
        let merges = self.gguf.strings(MERGES_KEY)?.unwrap_or_default();
        let bpe = Bpe::new(&vocabulary, merges, &recipe)?;
        let mut hash = Hash::default();
        hash.text("gpt2");
        hash.text(name.unwrap_or("default"));
        for merge in merges {
            hash.text(merge);
        }
        self.finish(vocabulary, Model::Bpe(Box::new(bpe)), recipe.add_bos, hash)
    }

    fn sentence_piece(&mut self) -> Result<Tokenizer, Error> {
        let vocabulary = self.vocabulary(Alphabet::Metaspace)?;
        let scores = self.gguf.f32s(SCORES_KEY)?.unwrap_or_default().to_vec();
        if scores.len() != vocabulary.len() {
            return Err(Error::Length { key: SCORES_KEY, found: scores.len(), expected: vocabulary.len() });
        }
        let mut hash = Hash::default();
        hash.text("llama");
        for score in &scores {
            hash.bytes(&score.to_le_bytes());
        }
        let space_prefix = self.gguf.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        hash.bytes(&[u8::from(space_prefix)]);
        let unknown = self.token("unknown", vocabulary.len())?;
        let spm = Spm::new(&vocabulary, scores, unknown, space_prefix);
        self.finish(vocabulary, Model::Spm(Box::new(spm)), true, hash)
    }

    fn vocabulary(&self, alphabet: Alphabet) -> Result<Vocabulary, Error> {
        self.gguf.require(TOKENS_KEY)?;
        let texts = self.gguf.strings(TOKENS_KEY)?.unwrap_or_default().to_vec();
        if texts.is_empty() {
            return Err(Error::Empty);
        }
        let kinds = match self.gguf.u32s(TYPES_KEY)? {
            None => vec![Kind::Normal; texts.len()],
            Some(numbers) if numbers.len() != texts.len() => {
                return Err(Error::Length { key: TYPES_KEY, found: numbers.len(), expected: texts.len() });
            }
            Some(numbers) => (0u32..)
                .zip(numbers)
                .map(|(id, kind)| Kind::from_number(kind).ok_or(Error::TokenType { id, kind }))
                .collect::<Result<_, _>>()?,
        };
        Ok(Vocabulary::new(texts, kinds, alphabet))
    }

    /// The id under `tokenizer.ggml.NAME_token_id`; one that is no token is left out with a warning.
    fn token(&mut self, name: &str, vocab_size: usize) -> Result<Option<u32>, Error> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let id = self.gguf.u32(&key)?;
        if let Some(id) = id.filter(|&id| id as usize >= vocab_size) {
            self.warnings.push(format!("{key} is {id}, but there are only {vocab_size} tokens; it is ignored"));
            return Ok(None);
        }
        Ok(id)
    }

    fn finish(
        &mut self,
        vocabulary: Vocabulary,
        model: Model,
        add_bos_default: bool,
        mut hash: Hash,
    ) -> Result<Tokenizer, Error> {
        let bos = self.token("bos", vocabulary.len())?;
        let eos = self.token("eos", vocabulary.len())?;
        let end_of_generation = self.end_of_generation(&vocabulary, eos)?;
        let add_bos = self.gguf.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos_default);
        for (text, id) in vocabulary.texts().iter().zip(0u32..) {
            hash.text(text);
            hash.bytes(&[vocabulary.kind(id).map_or(0, |kind| kind as u8)]);
        }
        Ok(Tokenizer {
            control: Matcher::new(vocabulary.of_kind(Kind::Control)),
            user_defined: Matcher::new(vocabulary.of_kind(Kind::UserDefined)),
            vocabulary,
            model,
            bos,
            eos,
            add_bos: add_bos && bos.is_some(),
            end_of_generation,
            warnings: std::mem::take(&mut self.warnings),
            fingerprint: format!("{:016x}", hash.0),
        })
    }

    fn end_of_generation(&mut self, vocabulary: &Vocabulary, eos: Option<u32>) -> Result<Vec<u32>, Error> {
        let mut ids: Vec<u32> = eos.into_iter().collect();
        for name in ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
            ids.extend(self.token(name, vocabulary.len())?);
        }
        let has = |wanted: &str| vocabulary.texts().iter().any(|text| text == wanted);
        // In gpt-oss `<|end|>` ends a message, and another may follow.
        let end_is_inner = has("<|return|>") && has("<|call|>");
        for (text, id) in vocabulary.texts().iter().zip(0u32..) {
            let special = matches!(vocabulary.kind(id), Some(Kind::Control | Kind::UserDefined));
            if special && END_TEXTS.contains(&text.as_str()) {
                ids.push(id);
            }
        }
        ids.retain(|&id| !(end_is_inner && vocabulary.text(id) == Some("<|end|>")));
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

/// FNV-1a with 64 bits: stable over builds and machines, which the standard hasher does not promise.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Length first, so that two lists of texts never hash alike by moving a border.
    fn text(&mut self, text: &str) {
        self.bytes(&(text.len() as u64).to_le_bytes());
        self.bytes(text.as_bytes());
    }
}
