//! The way from a token's bytes to pieces: characters, then reasoning and calls, then stop strings.

use super::calls::Calls;
use super::piece::{Piece, ReasoningFormat, ToolFormat};
use super::sink::Sink;
use super::splitter::Splitter;
use super::stop::StopFilter;
use crate::engine::tokenizer::Detokenizer;

/// What a pipeline looks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipelineConfig {
    /// How calls are written.
    pub tool_format: ToolFormat,
    /// How reasoning is marked.
    pub reasoning: ReasoningFormat,
    /// Whether the prompt ends inside reasoning.
    pub starts_in_reasoning: bool,
    /// Strings that end the answer when they come up in its text.
    pub stop: Vec<String>,
    /// Names of the declared tools. An answer without markers that is nothing but a call to one of them is a call;
    /// marked calls of other names are calls too.
    pub tools: Vec<String>,
}

/// Turns one answer's tokens into pieces. The pieces do not depend on how the answer is cut into tokens.
#[derive(Debug)]
pub struct Pipeline {
    detokenizer: Detokenizer,
    splitter: Splitter,
    calls: Calls,
    stop: StopFilter,
    text: String,
}

impl Pipeline {
    /// A pipeline at the beginning of an answer.
    pub fn new(config: PipelineConfig) -> Self {
        let PipelineConfig { tool_format, reasoning, starts_in_reasoning, stop, tools } = config;
        Self {
            detokenizer: Detokenizer::new(),
            splitter: Splitter::new(tool_format, reasoning, starts_in_reasoning, tools),
            calls: Calls::default(),
            stop: StopFilter::new(stop),
            text: String::new(),
        }
    }

    /// Takes a token's bytes and appends what is certain to `out`. Control tokens have no bytes, except where a
    /// format's markers are control tokens: there their text is passed.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<Piece>) {
        let mut text = std::mem::take(&mut self.text);
        self.detokenizer.push(bytes, &mut text);
        self.advance(&text, out);
        text.clear();
        self.text = text;
    }

    /// The answer ends; `cut` says that it was cut off, by the token limit or by an abort, and not ended by the
    /// model. Everything held back comes out.
    pub fn finish(&mut self, out: &mut Vec<Piece>, cut: bool) {
        let mut text = String::new();
        self.detokenizer.finish(&mut text);
        self.advance(&text, out);
        if !self.stop.stopped() {
            let mut sink = Sink { stop: &mut self.stop, calls: &mut self.calls, out };
            self.splitter.finish(cut, &mut sink);
            self.stop.release(out);
        }
    }

    /// Whether something was taken that is not shown yet: half a character, what may become a marker or a stop
    /// string, or a call that is not announced. False means that the pieces so far stand for all tokens so far.
    pub fn held(&self) -> bool {
        !self.stop.stopped() && (self.detokenizer.held() || self.splitter.held() || self.stop.held())
    }

    /// Whether a stop string was reached; further tokens are ignored.
    pub fn stopped(&self) -> bool {
        self.stop.stopped()
    }

    /// Whether the answer is inside reasoning.
    pub fn in_reasoning(&self) -> bool {
        self.splitter.in_reasoning()
    }

    /// Whether the answer is inside what is, or may become, a call.
    pub fn in_call(&self) -> bool {
        self.splitter.in_call()
    }

    fn advance(&mut self, text: &str, out: &mut Vec<Piece>) {
        let mut sink = Sink { stop: &mut self.stop, calls: &mut self.calls, out };
        self.splitter.push(text, &mut sink);
    }

    /// Steps taken so far, for the proof that work is linear.
    #[cfg(test)]
    pub(super) fn work(&self) -> usize {
        self.splitter.work
    }
}
