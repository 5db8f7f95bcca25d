//! midstream's side of the rows that need no server: the engine in this process.
use std::path::Path;

use midstream::clock::monotonic;
use midstream::engine::{Engine, EngineEvent, Generation, GenerationRequest, LoadOptions, LocalEngine};

use super::Outcome;

/// An engine of a model.
pub(crate) struct Own {
    engine: LocalEngine,
    /// Another one for each prompt, so that none comes from the cache.
    next_salt: u64,
}

impl Own {
    pub(crate) fn load(model: &Path, threads: usize) -> Outcome<Self> {
        let options = LoadOptions { threads: Some(threads), guessed_tokens: 0, ..LoadOptions::default() };
        Ok(Self { engine: LocalEngine::load(model, &options)?, next_salt: 0 })
    }

    /// Tokens per second until the first token of the answer.
    pub(crate) fn prefill(&mut self, tokens: usize) -> Outcome<f64> {
        let begin = monotonic();
        let mut generation = self.submit(tokens, 1)?;
        next_token(&mut generation)?;
        let rate = tokens as f64 / begin.elapsed().as_secs_f64();
        end(&mut generation);
        Ok(rate)
    }

    /// Tokens per second of so many sequences together behind prompts of `context` tokens, while all of them decode.
    pub(crate) fn decode(&mut self, sequences: usize, context: usize, decoded: usize) -> Outcome<f64> {
        // The first ones decode already while the prompts of the others are read.
        let most = 2 * decoded + sequences * context.div_ceil(16);
        let mut running = (0..sequences).map(|_| self.submit(context, most)).collect::<Outcome<Vec<_>>>()?;
        let last = running.len() - 1;
        next_token(&mut running[last])?;
        let (begin, before) = (monotonic(), self.engine.stats().tokens_sampled);
        for _ in 0..decoded {
            next_token(&mut running[last])?;
        }
        let rate = (self.engine.stats().tokens_sampled - before) as f64 / begin.elapsed().as_secs_f64();
        for generation in &mut running {
            end(generation);
        }
        Ok(rate)
    }

    fn submit(&mut self, tokens: usize, max_tokens: usize) -> Outcome<Generation> {
        self.next_salt += 1;
        let vocabulary = self.engine.model().tokenizer.vocab_size();
        Ok(self.engine.submit(GenerationRequest {
            cache_salt: self.next_salt,
            channel_capacity: max_tokens,
            ..GenerationRequest::greedy(
                (0..tokens).map(|index| ((index * 7_919 + 311) % vocabulary) as u32).collect(),
                max_tokens as u32,
            )
        })?)
    }
}

fn next_token(generation: &mut Generation) -> Outcome<()> {
    loop {
        match generation.events.blocking_recv() {
            Some(EngineEvent::Token(_)) => return Ok(()),
            Some(EngineEvent::Started { .. }) => {}
            other => return Err(format!("the sequence ended early: {other:?}").into()),
        }
    }
}

fn end(generation: &mut Generation) {
    generation.abort.abort();
    while generation.events.blocking_recv().is_some() {}
}
