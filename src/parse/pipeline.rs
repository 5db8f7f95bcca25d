//! The way from a token's bytes to pieces: characters, then reasoning and calls, then stop strings.

use super::calls::Calls;
use super::families::{Reads, Setup, StreamParser};
use super::formats::{ReasoningFormat, ToolFormat};
use super::mask::{Mask, Unmask};
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
    /// Parts of markers that are control tokens of the model, as [`control_markers`](super::control_markers) finds
    /// them. They count where such a token was generated; spelled out with other tokens they are text. What is not
    /// here is told by its text.
    pub control: Vec<String>,
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
            control: Vec::new(),
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
    mask: Mask,
    /// Once there are marks to be taken out.
    unmask: Option<Unmask>,
    text: String,
    /// The same with marks.
    masked: String,
}

impl Pipeline {
    /// A pipeline at the beginning of an answer.
    pub fn new(mut config: PipelineConfig) -> Self {
        let stop = StopFilter::new(std::mem::take(&mut config.stop));
        let mask = Mask::new(std::mem::take(&mut config.control));
        Self {
            detokenizer: Detokenizer::new(),
            parser: stream_parser(config),
            calls: Calls::default(),
            stop,
            mask,
            unmask: None,
            text: String::new(),
            masked: String::new(),
        }
    }

    /// Takes the bytes of an ordinary token, or of any text, and appends what is certain to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<Piece>) {
        let mut text = std::mem::take(&mut self.text);
        self.detokenizer.push(bytes, &mut text);
        self.spelled(&text, out);
        text.clear();
        self.text = text;
    }

    /// Takes a control token of this text. One that is no part of a marker says nothing.
    pub fn push_control(&mut self, text: &str, out: &mut Vec<Piece>) {
        if !self.mask.knows(text) {
            return;
        }
        let mut before = String::new();
        self.detokenizer.finish(&mut before);
        self.spelled(&before, out);
        self.mask.interrupt();
        self.advance(text, out);
    }

    /// The answer ends; `cut` says that it was cut off, by the token limit or by an abort, and not ended by the
    /// model. Everything held back comes out.
    pub fn finish(&mut self, out: &mut Vec<Piece>, cut: bool) {
        let mut text = String::new();
        self.detokenizer.finish(&mut text);
        self.spelled(&text, out);
        if !self.stop.stopped() {
            let Self { parser, calls, stop, unmask, .. } = self;
            parser.finish(cut, &mut Sink { stop, calls, unmask: unmask.as_mut(), out });
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

    /// The stop string that was found.
    pub fn stop_string(&self) -> Option<&str> {
        self.stop.found()
    }

    /// Whether the answer is inside reasoning.
    pub fn in_reasoning(&self) -> bool {
        self.parser.in_reasoning()
    }

    /// Whether the answer is inside what is, or may become, a call.
    pub fn in_call(&self) -> bool {
        self.parser.in_call()
    }

    /// Text of ordinary tokens.
    fn spelled(&mut self, text: &str, out: &mut Vec<Piece>) {
        if self.mask.is_empty() {
            return self.advance(text, out);
        }
        let mut masked = std::mem::take(&mut self.masked);
        if self.mask.spell(text, &mut masked) && self.unmask.is_none() {
            self.unmask = Some(Unmask::default());
            self.calls.expect_marks();
        }
        self.advance(&masked, out);
        masked.clear();
        self.masked = masked;
    }

    fn advance(&mut self, text: &str, out: &mut Vec<Piece>) {
        let Self { parser, calls, stop, unmask, .. } = self;
        parser.push(text, &mut Sink { stop, calls, unmask: unmask.as_mut(), out });
    }

    /// Steps taken so far, for the proof that work is linear.
    #[cfg(any(test, fuzzing))]
    pub(super) fn work(&self) -> usize {
        self.parser.work()
    }
}

/// A reader of the whole output where one of the formats has channels, else the splitter.
fn stream_parser(config: PipelineConfig) -> Box<dyn StreamParser> {
    let PipelineConfig { tool_format, reasoning, starts_in_reasoning, tools, bare_calls, .. } = config;
    let calls = tool_format.family().and_then(|family| match family.reads {
        Reads::Output(stream) => Some(stream),
        Reads::Calls(_) | Reads::Framed { .. } | Reads::Sections { .. } => None,
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
