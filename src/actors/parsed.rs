//! What is read of an answer's tokens: the parser, how long the model has thought, how likely each token was.
//!
//! Pure: no engine, no mailbox.

use super::prompt::Rendered;
use super::reading::Reading;
use crate::conversation::{GenerationEnd, ResponseConfig, TokenLogprob};
use crate::engine::{ModelInfo, TokenLogprobs, tokenizer::Tokenizer};
use crate::parse::{DeclaredTool, Piece, Pipeline, PipelineConfig, closes_reasoning, control_markers};
use crate::prompt::ToolDefinition;

/// How reasoning ends where it may be stopped a little early.
const RESTS: [char; 7] = ['\n', '.', '!', '?', '。', '！', '？'];
/// The last of so many parts of a budget of reasoning is that part, and the most tokens of it.
const REST_PART: u64 = 8;
const REST_TOKENS_MAX: u64 = 64;

/// The parser, and how many tokens it has read as reasoning.
pub(super) struct Parsed {
    pub(super) pipeline: Pipeline,
    thought: u64,
    /// What it thought last ends a sentence or a line.
    rests: bool,
    /// The tokens that close reasoning.
    pub(super) closing: Vec<u32>,
}

impl Parsed {
    /// The parser as it stood behind the durable tokens: they are read again, and what they say was shown already.
    pub(super) fn behind(model: &ModelInfo, config: &ResponseConfig, rendered: &Rendered, resumed: &[u32]) -> Self {
        let Reading { tool_format, reasoning, bare_calls } = Reading::of(config, model);
        let tools = config.known_tools();
        let pipeline = Pipeline::new(PipelineConfig {
            tool_format,
            reasoning,
            starts_in_reasoning: rendered.starts_in_reasoning,
            stop: config.stop.clone(),
            tools: tools.iter().map(declared).collect(),
            // Without tools nothing is a call that does not say so.
            bare_calls: bare_calls && !tools.is_empty(),
            control: control_markers(tool_format, reasoning, model.tokenizer.control_texts()),
        });
        let closing = closes_reasoning(reasoning).map(|text| model.tokenizer.encode(text, true));
        let mut parsed = Self { pipeline, thought: 0, rests: false, closing: closing.unwrap_or_default() };
        let mut shown = Vec::new();
        for &token in resumed {
            parsed.push(model, token, &mut shown);
            shown.clear();
        }
        parsed
    }

    pub(super) fn push(&mut self, model: &ModelInfo, token: u32, pieces: &mut Vec<Piece>) {
        match model.tokenizer.special_text(token) {
            Some(text) => self.pipeline.push_control(text, pieces),
            None => self.pipeline.push(model.tokenizer.token_bytes(token), pieces),
        }
        self.thought += u64::from(self.pipeline.in_reasoning());
        if let Some(Piece::Reasoning(text)) = pieces.last() {
            self.rests = text.ends_with(RESTS);
        }
    }

    /// The end of a generation whose stop string was found.
    pub(super) fn stopped(&self) -> GenerationEnd {
        let found = self.pipeline.stop_string().unwrap_or_default();
        GenerationEnd::StopString(found.to_owned())
    }

    /// Whether the model has thought as long as it may, and still thinks. It is stopped where it rests, if it does so
    /// in the last part of its budget; it depends on the tokens alone, so that a restart stops it in the same place.
    pub(super) fn is_over(&self, budget_tokens: u64) -> bool {
        let part = (budget_tokens / REST_PART).min(REST_TOKENS_MAX);
        let is_over = self.thought >= budget_tokens || self.rests && self.thought >= budget_tokens - part;
        self.pipeline.in_reasoning() && is_over && !self.closing.is_empty()
    }
}

fn declared(tool: &ToolDefinition) -> DeclaredTool {
    DeclaredTool { name: tool.name.clone(), parameters: tool.parameters.clone() }
}

/// How likely a token was, in terms of text. One that was set and not sampled was certain.
pub(super) fn logprob(tokenizer: &Tokenizer, token: u32, weighed: Option<&TokenLogprobs>) -> TokenLogprob {
    let bytes = |token: u32| match tokenizer.special_text(token) {
        Some(text) => text.as_bytes().to_vec(),
        None => tokenizer.token_bytes(token).to_vec(),
    };
    let top = weighed.map(|weighed| &weighed.top[..]).unwrap_or_default();
    TokenLogprob {
        bytes: bytes(token),
        logprob: weighed.map_or(0.0, |weighed| weighed.logprob),
        top: top.iter().map(|(token, logprob)| (bytes(*token), *logprob)).collect(),
    }
}
