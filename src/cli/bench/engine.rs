//! Prompts and decoding, measured at the engine: no sockets, no conversations.
use std::sync::Arc;

use anyhow::bail;
use serde::Serialize;

use super::limits::Limits;
use super::report::median;
use crate::clock::monotonic;
use crate::engine::{Engine, EngineEvent, Generation, GenerationRequest, LocalEngine, Work};

/// Tokens of the prompt behind which decoding is measured.
pub(super) const CONTEXT: usize = 128;
/// Tokens that each sequence decodes while all are measured.
const DECODED: usize = 64;
/// A prompt gets at least so many tokens of every step, whatever else decodes.
const PROMPT_STEP_TOKENS_MIN: usize = 16;

/// Most positions that a sequence needs while so many decode together: the first one decodes already while the
/// prompts of the others are read.
pub(super) fn positions(sequences: usize) -> usize {
    CONTEXT + tokens_max(sequences)
}

fn tokens_max(sequences: usize) -> usize {
    CONTEXT / PROMPT_STEP_TOKENS_MIN * sequences + 2 * DECODED
}

/// How one length of prompt is read.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Prefill {
    /// Tokens of the prompt.
    pub(super) tokens: usize,
    /// Until the first token of the answer, when nothing of the prompt is cached.
    pub(super) cold_seconds: f64,
    /// The same when it was read before.
    pub(super) cached_seconds: f64,
    /// How many of its tokens were then not run again.
    pub(super) cached_tokens: u32,
    /// Tokens read per second, cold.
    pub(super) tokens_per_second: f64,
    /// Which part of the machine's int8 operations the matrices took.
    pub(super) int8_share: f64,
}

/// How so many sequences decode together.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Decode {
    /// Sequences.
    pub(super) sequences: usize,
    /// Tokens of each one's prompt.
    pub(super) context: usize,
    /// Tokens of all of them.
    pub(super) tokens_per_second: f64,
    /// Which part of the machine's reading the weights, keys and values took. Above 1 where they stay in the cache.
    pub(super) read_share: f64,
    /// Which part of the machine's int8 operations the matrices took.
    pub(super) int8_share: f64,
}

/// An engine that is measured and does nothing else meanwhile.
pub(super) struct MeasuredEngine {
    engine: Arc<LocalEngine>,
    rounds: usize,
    /// A salt of its own for every prompt that is to be cold.
    next_salt: u64,
}

impl MeasuredEngine {
    pub(super) fn new(engine: Arc<LocalEngine>, rounds: usize) -> Self {
        Self { engine, rounds, next_salt: 0 }
    }

    /// Reads a prompt of so many tokens, cold and cached.
    pub(super) fn prefill(&mut self, tokens: usize, work: &Work, limits: &Limits) -> anyhow::Result<Prefill> {
        let (mut cold, mut cached, mut cached_tokens) = (Vec::new(), Vec::new(), 0);
        for _ in 0..self.rounds {
            let salt = self.salt();
            cold.push(self.first_token(tokens, salt)?.0);
            let (seconds, found) = self.first_token(tokens, salt)?;
            cached.push(seconds);
            cached_tokens = found;
        }
        let (cold_seconds, cached_seconds) = (median(&mut cold), median(&mut cached));
        let operations = work.prompt_operations(tokens) as f64;
        Ok(Prefill {
            tokens,
            cold_seconds,
            cached_seconds,
            cached_tokens,
            tokens_per_second: tokens as f64 / cold_seconds,
            int8_share: operations / cold_seconds / limits.int8_operations_per_second,
        })
    }

    /// Seconds to the first token, and how many tokens of the prompt came from the cache.
    fn first_token(&self, tokens: usize, salt: u64) -> anyhow::Result<(f64, u32)> {
        let begin = monotonic();
        let mut generation = self.submit(tokens, 1, salt)?;
        let mut cached = 0;
        loop {
            match generation.events.blocking_recv() {
                Some(EngineEvent::Started { cached_tokens }) => cached = cached_tokens,
                Some(EngineEvent::Token(_)) => break,
                other => bail!("a prompt of {tokens} tokens gave no token: {other:?}"),
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        drain(&mut generation);
        Ok((seconds, cached))
    }

    /// Lets so many sequences decode together.
    pub(super) fn decode(&mut self, sequences: usize, work: &Work, limits: &Limits) -> anyhow::Result<Decode> {
        let mut rates = (0..self.rounds).map(|_| self.decode_once(sequences)).collect::<Result<Vec<_>, _>>()?;
        let tokens_per_second = median(&mut rates);
        let steps_per_second = tokens_per_second / sequences as f64;
        let bytes = work.step_bytes(sequences, CONTEXT + DECODED / 2) as f64;
        let operations = work.step_operations(sequences) as f64;
        Ok(Decode {
            sequences,
            context: CONTEXT,
            tokens_per_second,
            read_share: bytes * steps_per_second / limits.read_bytes_per_second,
            int8_share: operations * steps_per_second / limits.int8_operations_per_second,
        })
    }

    /// Tokens per second of all sequences together, while all of them decode.
    fn decode_once(&mut self, sequences: usize) -> anyhow::Result<f64> {
        let most = tokens_max(sequences);
        let mut running = Vec::new();
        for _ in 0..sequences {
            let salt = self.salt();
            running.push(self.submit(CONTEXT, most, salt)?);
        }
        // All decode once the last one has sent its first token; the first one ends first.
        let last = running.len() - 1;
        next_token(&mut running[last])?;
        let (begin, before) = (monotonic(), self.engine.stats().tokens_sampled);
        for _ in 0..DECODED {
            next_token(&mut running[last])?;
        }
        let rate = (self.engine.stats().tokens_sampled - before) as f64 / begin.elapsed().as_secs_f64();
        for generation in &mut running {
            generation.abort.abort();
            drain(generation);
        }
        Ok(rate)
    }

    fn salt(&mut self) -> u64 {
        self.next_salt += 1;
        self.next_salt
    }

    fn submit(&self, tokens: usize, max_tokens: usize, salt: u64) -> anyhow::Result<Generation> {
        let vocabulary = self.engine.model().tokenizer.vocab_size();
        // Neither one token nor a run of neighbours, so that no two places of a prompt are alike.
        let token = |index: usize| ((index * 7_919 + 311) % vocabulary) as u32;
        Ok(self.engine.submit(GenerationRequest {
            cache_salt: salt,
            channel_capacity: max_tokens,
            ..GenerationRequest::greedy((0..tokens).map(token).collect(), max_tokens as u32)
        })?)
    }
}

fn next_token(generation: &mut Generation) -> anyhow::Result<()> {
    loop {
        match generation.events.blocking_recv() {
            Some(EngineEvent::Token(_)) => return Ok(()),
            Some(EngineEvent::Started { .. }) => {}
            other => bail!("a sequence ended while it was measured: {other:?}"),
        }
    }
}

/// Waits until the engine has let the sequence go.
fn drain(generation: &mut Generation) {
    while generation.events.blocking_recv().is_some() {}
}
