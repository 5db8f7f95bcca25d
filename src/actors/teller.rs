//! An engine for tests that gives answers as lists of tokens, and remembers what it was asked.

use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;

use super::shared::Parts;
use crate::engine::gguf::{Array, Gguf, Value, Writer};
use crate::engine::tokenizer::Tokenizer;
use crate::engine::{
    AbortHandle, Catalog, Engine, EngineError, EngineEvent, FinishReason, Generation, GenerationRequest, ModelInfo,
};

/// The first id behind the tokens that are bytes.
pub(super) const BEHIND_BYTES: u32 = 256;

/// Gives one answer after the other, the last again and again. Of a resumed one it gives what is left.
pub(super) struct Teller {
    model: ModelInfo,
    answers: Vec<Vec<u32>>,
    /// The first answer ends only when it is aborted.
    halts: bool,
    requests: Mutex<Vec<GenerationRequest>>,
}

impl Teller {
    /// Takes the place of all engines.
    pub(super) fn serve(parts: &mut Parts, model: ModelInfo, answers: Vec<Vec<u32>>) -> Arc<Self> {
        Self { model, answers, halts: false, requests: Mutex::default() }.served(parts)
    }

    /// As [`Self::serve`], but the first answer ends only when it is aborted.
    pub(super) fn serve_halting(parts: &mut Parts, model: ModelInfo, answers: Vec<Vec<u32>>) -> Arc<Self> {
        Self { model, answers, halts: true, requests: Mutex::default() }.served(parts)
    }

    fn served(self, parts: &mut Parts) -> Arc<Self> {
        let teller = Arc::new(self);
        parts.catalog = Arc::new(Catalog::new(vec![teller.clone() as Arc<dyn Engine>]));
        teller
    }

    /// All prompts so far.
    pub(super) fn prompts(&self) -> Vec<Vec<u32>> {
        self.requests.lock().unwrap().iter().map(|request| request.prompt.to_vec()).collect()
    }

    /// All that was asked so far.
    pub(super) fn requests(&self) -> Vec<GenerationRequest> {
        self.requests.lock().unwrap().clone()
    }
}

impl Engine for Teller {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn submit(&self, request: GenerationRequest) -> Result<Generation, EngineError> {
        let mut requests = self.requests.lock().unwrap();
        let answer = &self.answers[requests.len().min(self.answers.len() - 1)];
        let (events, readable) = mpsc::channel(answer.len() + 2);
        let said = answer.iter().skip(request.resumed.len()).map(|token| EngineEvent::Token(*token));
        let all = [EngineEvent::Started { cached_tokens: 0 }].into_iter().chain(said);
        let halts = self.halts && requests.is_empty();
        let end = (!halts).then_some(EngineEvent::Finished(FinishReason::Stop));
        all.chain(end).for_each(|event| events.try_send(event).unwrap());
        requests.push(request);
        let halted = halts.then_some(events);
        let abort = AbortHandle::new(move || {
            // A second abort finds no room, and nobody who reads.
            if let Some(events) = &halted {
                drop(events.try_send(EngineEvent::Finished(FinishReason::Aborted)));
            }
        });
        Ok(Generation { events: readable, abort })
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A tokenizer of all bytes, then these control tokens, then these syllables. The last control token ends answers.
pub(super) fn tokenizer(control: &[&str], syllables: &[&str]) -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut kinds = vec![6; tokens.len()];
    for (texts, kind) in [(control, 3), (syllables, 1)] {
        tokens.extend(texts.iter().map(|text| (*text).to_owned()));
        kinds.extend(texts.iter().map(|_| kind));
    }
    let file = Writer::new()
        .entry("tokenizer.ggml.model", Value::String("llama".to_owned()))
        .entry("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; tokens.len()])))
        .entry("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)))
        .entry("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)))
        .entry("tokenizer.ggml.eos_token_id", Value::U32(BEHIND_BYTES - 1 + control.len() as u32))
        .entry("tokenizer.ggml.add_bos_token", Value::Bool(false))
        .entry("tokenizer.ggml.add_space_prefix", Value::Bool(false))
        .finish();
    Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap()
}
