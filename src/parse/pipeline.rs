//! The way from a token's bytes to pieces: characters, then reasoning and calls, then stop strings.

use super::calls::Calls;
use super::families::{Reads, Setup, StreamParser};
use super::formats::{ReasoningFormat, ToolFormat};
use super::piece::Piece;
use super::sink::Sink;
use super::splitter::{Splitter, Wanted};
use super::stop::StopFilter;
use super::tools::{DeclaredTool, Tools};
use crate::engine::tokenizer::Detokenizer;

/// What a pipeline looks for.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineConfig {
    /// How calls are written.
    pub tool_format: ToolFormat,
    /// How reasoning is marked.
    pub reasoning: ReasoningFormat,
    /// Whether the prompt ends inside reasoning; where it does not say, the format decides.
    pub starts_in_reasoning: Option<bool>,
    /// Strings that end the answer when they come up in its text.
    pub stop: Vec<String>,
    /// The declared tools. Their schemas say what type an argument has where the format does not. Marked calls of
    /// other names are calls too.
    pub tools: Vec<DeclaredTool>,
    /// Whether an answer without markers that is nothing but a call of a declared tool is a call.
    pub bare_calls: bool,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self {
            tool_format: ToolFormat::default(),
            reasoning: ReasoningFormat::default(),
            starts_in_reasoning: None,
            stop: Vec::new(),
            tools: Vec::new(),
            bare_calls: true,
        }
    }
}

/// Turns one answer's tokens into pieces. The pieces do not depend on how the answer is cut into tokens.
#[derive(Debug)]
pub struct Pipeline {
    detokenizer: Detokenizer,
    parser: Box<dyn StreamParser>,
    calls: Calls,
    stop: StopFilter,
    text: String,
}

impl Pipeline {
    /// A pipeline at the beginning of an answer.
    pub fn new(config: PipelineConfig) -> Self {
        let stop = StopFilter::new(config.stop.clone());
        let parser = stream_parser(config);
        Self { detokenizer: Detokenizer::new(), parser, calls: Calls::default(), stop, text: String::new() }
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
            self.parser.finish(cut, &mut sink);
            self.stop.release(out);
        }
    }

    /// Whether something was taken that is not shown yet: half a character, what may become a marker or a stop
    /// string, or a call that is not announced. False means that the pieces so far stand for all tokens so far.
    pub fn held(&self) -> bool {
        !self.stop.stopped() && (self.detokenizer.held() || self.parser.held() || self.stop.held())
    }

    /// Whether a stop string was reached; further tokens are ignored.
    pub fn stopped(&self) -> bool {
        self.stop.stopped()
    }

    /// Whether the answer is inside reasoning.
    pub fn in_reasoning(&self) -> bool {
        self.parser.in_reasoning()
    }

    /// Whether the answer is inside what is, or may become, a call.
    pub fn in_call(&self) -> bool {
        self.parser.in_call()
    }

    fn advance(&mut self, text: &str, out: &mut Vec<Piece>) {
        let mut sink = Sink { stop: &mut self.stop, calls: &mut self.calls, out };
        self.parser.push(text, &mut sink);
    }

    /// Steps taken so far, for the proof that work is linear.
    #[cfg(test)]
    pub(super) fn work(&self) -> usize {
        self.parser.work()
    }
}

/// A reader of the whole output where one of the formats has channels, else the splitter.
fn stream_parser(config: PipelineConfig) -> Box<dyn StreamParser> {
    let PipelineConfig { tool_format, reasoning, starts_in_reasoning, tools, bare_calls, .. } = config;
    let calls = tool_format.family().and_then(|family| match family.reads {
        Reads::Output(stream) => Some(stream),
        Reads::Calls(_) | Reads::Framed { .. } => None,
    });
    let thoughts = reasoning.format().and_then(|format| format.stream);
    if let Some(stream) = calls.or(thoughts) {
        let (calls, reasoning) = (calls.is_some(), thoughts.is_some());
        return stream(Setup { calls, reasoning, starts_in_reasoning });
    }
    Box::new(Splitter::new(Wanted {
        tool_format,
        reasoning,
        starts_in_reasoning,
        tools: Tools::new(tools),
        bare_calls,
    }))
}
