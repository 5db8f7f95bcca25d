//! A model's logits behind every position of given tokens, for measuring: agreement with another implementation,
//! perplexity of a text.
//!
//! Runs the backend alone: no thread of its own, no queue, no sampling, no cache between calls. It gives the bits
//! that the engine samples from. Must never take part in serving.

use std::path::Path;

use super::backend::cpu::CpuBackend;
use super::backend::{Backend, StepError};
use super::contract::{ModelInfo, SequenceId};
use super::kv::{BlockId, blocks_for};
use super::local::{self, LoadError, LoadOptions};
use super::scheduler::Chunk;

/// Most tokens scored in one step: each has logits of its own.
const SCORED_PER_STEP: usize = 128;

/// A model whose logits can be asked for.
pub struct Scorer {
    model: ModelInfo,
    backend: CpuBackend,
    step_tokens: usize,
}

/// Why tokens could not be scored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScoreError {
    /// More tokens than the model can see at once.
    #[error("{tokens} tokens are more than the context of {context} holds; score them in parts")]
    TooLong {
        /// How many there are.
        tokens: usize,
        /// How many fit.
        context: usize,
    },
    /// A context in which nothing could be scored.
    #[error("a context of {0} tokens has no second half to score; 3 are needed at least")]
    ContextTooShort(usize),
    /// A text that does not fill one context.
    #[error("the text has {tokens} tokens, but one context has {context}; take a longer text or a shorter context")]
    TextTooShort {
        /// How many there are.
        tokens: usize,
        /// How many are needed.
        context: usize,
    },
    /// The model could not be run.
    #[error("the model could not be run: {0}")]
    Step(String),
}

/// How well a model predicts a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// The exponential of the mean negative log-probability of the scored tokens.
    pub value: f64,
    /// How many tokens were scored.
    pub scored: usize,
}

impl Scorer {
    /// Loads the model in `path`.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, LoadError> {
        let (model, _, backend) = local::open(path, options)?;
        Ok(Self { model, backend, step_tokens: options.step_tokens.clamp(1, SCORED_PER_STEP) })
    }

    /// What was loaded.
    pub fn model(&self) -> &ModelInfo {
        &self.model
    }

    /// Gives the logits behind position `from` and every later one, in order, to `visit`: the position, and one
    /// logit for each token of the vocabulary.
    pub fn score(
        &mut self,
        tokens: &[u32],
        from: usize,
        mut visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), ScoreError> {
        let context = self.model.context_length as usize;
        if tokens.len() > context {
            return Err(ScoreError::TooLong { tokens: tokens.len(), context });
        }
        let blocks: Vec<BlockId> = (0..blocks_for(tokens.len()) as u32).map(BlockId).collect();
        let vocabulary = self.backend.vocabulary();
        for start in (0..tokens.len()).step_by(self.step_tokens) {
            let end = (start + self.step_tokens).min(tokens.len());
            // One chunk for each token, so that each has its logits: how tokens are cut into chunks changes no bit.
            let chunk = |position: usize| Chunk {
                sequence: SequenceId(0),
                start: position,
                tokens: vec![tokens[position]],
                blocks: blocks.clone(),
                sampled: usize::from(position >= from),
            };
            let chunks: Vec<Chunk> = (start..end).map(chunk).collect();
            let logits = self.backend.forward(&chunks)?;
            for (position, row) in (start.max(from)..end).zip(logits.chunks_exact(vocabulary)) {
                visit(position, row);
            }
        }
        Ok(())
    }

    /// Perplexity of a text as llama.cpp's tool of that name has it: the tokens are cut into whole contexts, what is
    /// left over is dropped, each context begins with BOS if the model wants one, and its second half is scored.
    pub fn perplexity(&mut self, text: &str, context: usize) -> Result<Perplexity, ScoreError> {
        let first = context / 2;
        if first + 2 > context {
            return Err(ScoreError::ContextTooShort(context));
        }
        let tokenizer = &self.model.tokenizer;
        let opening = tokenizer.bos().filter(|_| tokenizer.add_bos());
        let tokens: Vec<u32> = opening.into_iter().chain(tokenizer.encode(text, false)).collect();
        let (mut negative, mut scored) = (0.0, 0);
        for part in tokens.chunks_exact(context) {
            let mut part = part.to_vec();
            if let Some(bos) = opening {
                part[0] = bos;
            }
            self.score(&part, first, |position, logits| {
                if let Some(next) = part.get(position + 1) {
                    negative -= log_probability(logits, *next);
                    scored += 1;
                }
            })?;
        }
        if scored == 0 {
            return Err(ScoreError::TextTooShort { tokens: tokens.len(), context });
        }
        Ok(Perplexity { value: (negative / scored as f64).exp(), scored })
    }
}

/// The logarithm of the probability that the logits give to a token.
fn log_probability(logits: &[f32], token: u32) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    f64::from(logits[token as usize]) - largest - sum.ln()
}

impl From<StepError> for ScoreError {
    fn from(error: StepError) -> Self {
        Self::Step(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::model::tiny::{Tiny, VOCABULARY};
    use crate::engine::{Engine, EngineEvent, GenerationRequest, KvFormat, LocalEngine};

    const TEXT: &str = "It rains, it pours, the old man is snoring; he went to bed and bumped his head.";

    fn file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), Tiny::default().file()).unwrap();
        file
    }

    fn scorer(step_tokens: usize) -> Scorer {
        let options = LoadOptions { threads: Some(1), step_tokens, ..LoadOptions::default() };
        Scorer::load(file().path(), &options).unwrap()
    }

    fn rows(scorer: &mut Scorer, tokens: &[u32], from: usize) -> Vec<(usize, Vec<u32>)> {
        let mut rows = Vec::new();
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect();
        scorer.score(tokens, from, |position, logits| rows.push((position, bits(logits)))).unwrap();
        rows
    }

    fn tokens() -> Vec<u32> {
        (0..45).map(|index| (index * 31 + index * index) % 256).collect()
    }

    fn best(logits: &[u32]) -> u32 {
        let value = |token: &usize| f32::from_bits(logits[*token]);
        (0..logits.len()).rev().max_by(|a, b| value(a).total_cmp(&value(b))).unwrap() as u32
    }

    #[test]
    fn every_position_from_the_first_wanted_has_one_row_of_the_vocabularys_size() {
        let all = rows(&mut scorer(64), &tokens(), 0);
        assert_eq!(all.iter().map(|(position, _)| *position).collect::<Vec<_>>(), (0..45).collect::<Vec<_>>());
        assert!(all.iter().all(|(_, row)| row.len() == VOCABULARY));
        assert_eq!(rows(&mut scorer(64), &tokens(), 40), all[40..]);
    }

    #[test]
    fn the_bits_do_not_depend_on_the_size_of_the_steps_nor_on_earlier_calls() {
        let all = rows(&mut scorer(64), &tokens(), 0);
        let mut narrow = scorer(7);
        rows(&mut narrow, &[9; 40], 0);
        assert_eq!(rows(&mut narrow, &tokens(), 0), all);
    }

    #[test]
    fn the_likeliest_token_is_the_one_that_the_engine_samples() {
        let file = file();
        let options = LoadOptions { threads: Some(1), ..LoadOptions::default() };
        let engine = LocalEngine::load(file.path(), &options).unwrap();
        let request = GenerationRequest { channel_capacity: 16, ..GenerationRequest::greedy(tokens().into(), 5) };
        let mut generation = engine.submit(request).unwrap();
        let mut sampled = Vec::new();
        while let Some(event) = generation.events.blocking_recv() {
            if let EngineEvent::Token(token) = event {
                sampled.push(token);
            }
        }
        let mut forced = tokens();
        forced.extend(&sampled[..4]);
        let scored = rows(&mut scorer(64), &forced, 44);
        assert_eq!(scored.iter().map(|(_, row)| best(row)).collect::<Vec<_>>(), sampled);
    }

    #[test]
    fn int8_keys_and_values_leave_the_default_model_as_sure_of_a_text_as_f16_does() {
        let path = std::env::var_os("MIDSTREAM_TEST_MODEL").unwrap_or_else(|| {
            panic!("MIDSTREAM_TEST_MODEL must name SmolLM2-135M-Instruct.Q4_1.gguf; scripts/test fetches and sets it")
        });
        // Records of decisions do not change.
        let text = include_str!("../../docs/decisions/0001-event-sourced-core.md");
        let [f16, q8] = KvFormat::ALL.map(|kv_format| {
            let options = LoadOptions { kv_format, ..LoadOptions::default() };
            Scorer::load(Path::new(&path), &options).unwrap().perplexity(text, 128).unwrap()
        });
        assert!((q8.value / f16.value - 1.0).abs() < 0.01, "{q8:?} instead of {f16:?}");
        assert_ne!(q8.value.to_bits(), f16.value.to_bits());
    }

    #[test]
    fn perplexity_scores_the_second_half_of_each_whole_context() {
        let mut scorer = scorer(64);
        let tokenizer = Arc::clone(&scorer.model().tokenizer);
        let mut ids = tokenizer.encode(TEXT, false);
        if tokenizer.add_bos() {
            ids.splice(0..0, tokenizer.bos());
        }
        let (mut negative, mut scored) = (0.0, 0);
        for part in ids.chunks_exact(16) {
            let mut part = part.to_vec();
            if tokenizer.add_bos() {
                part[0] = tokenizer.bos().unwrap();
            }
            for (position, row) in rows(&mut scorer, &part, 8).into_iter().take(7) {
                let weights: Vec<f64> = row.iter().map(|bits| f64::from(f32::from_bits(*bits)).exp()).collect();
                let share = weights[part[position + 1] as usize] / weights.iter().sum::<f64>();
                negative -= share.ln();
                scored += 1;
            }
        }
        let found = scorer.perplexity(TEXT, 16).unwrap();
        assert_eq!(found.scored, scored);
        let expected = (negative / f64::from(scored as u32)).exp();
        assert!((found.value / expected - 1.0).abs() < 1e-9, "{} is not {expected}", found.value);
    }

    #[test]
    fn what_cannot_be_scored_is_an_error() {
        let mut scorer = scorer(64);
        let context = scorer.model().context_length as usize;
        let too_long = scorer.score(&vec![1; context + 1], 0, |_, _| {});
        assert_eq!(too_long, Err(ScoreError::TooLong { tokens: context + 1, context }));
        assert!(matches!(scorer.score(&[VOCABULARY as u32], 0, |_, _| {}), Err(ScoreError::Step(_))));
        assert_eq!(scorer.perplexity(TEXT, 2), Err(ScoreError::ContextTooShort(2)));
        assert!(matches!(scorer.perplexity("a", 16), Err(ScoreError::TextTooShort { context: 16, .. })));
        assert_eq!(scorer.score(&[], 0, |_, _| {}), Ok(()));
    }
}
