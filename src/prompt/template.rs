//! A model's chat template: what it supports, and rendering a conversation with it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use super::adapt::adapt;
use super::environment::{Limits, NOW, Raised, environment, render};
use super::guard::{Guard, end_mark};
use super::probe::{Capabilities, probe};
use super::values::{self, Arguments, Shape};
use super::{Message, PromptEnd, ToolDefinition, build, builtin};
use crate::engine::gguf::Gguf;
use crate::engine::tokenizer::Tokenizer;

/// Why a conversation cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template does not compile.
    #[error("the chat template does not compile: {0}")]
    Syntax(String),
    /// The template refused the conversation itself; the text is the template's.
    #[error("the model's chat template refuses this conversation: {0}")]
    Raised(String),
    /// The template failed.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// The template takes too many steps.
    #[error("the chat template does not come to an end for this conversation")]
    TooExpensive,
    /// The template does not write the text that the answer is to go on with.
    #[error("the model's chat template does not show the last message as it is, so the answer cannot go on with it")]
    NotContinued,
    /// The text cannot have as few tokens as it may.
    #[error(
        "prompt is too long: {tokens_min} tokens > {tokens_max} maximum, or more, in {bytes} bytes; shorten the input"
    )]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Tokens that it has at least.
        tokens_min: usize,
        /// Tokens that it may have.
        tokens_max: usize,
    },
}

/// What is rendered.
#[derive(Clone, Copy, Debug)]
pub struct Rendering<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// The tools the model may call.
    pub tools: &'a [ToolDefinition],
    /// Where the text ends.
    pub end: PromptEnd,
    /// Further variables, such as `enable_thinking`.
    pub kwargs: &'a Map<String, Json>,
    /// The time for templates that show the date. Keep it for all turns of a conversation, else a new day makes a
    /// new prompt.
    pub now_unix_ms: u64,
    /// Whether the billing line of Claude Code at the head of the system text is left out.
    pub strip_preamble: bool,
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_text: String,
    eos_text: String,
    capabilities: Capabilities,
}

impl ChatTemplate {
    /// Compiles a template and finds out what it supports.
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<Self, TemplateError> {
        let environment = without_panic(|| environment(source).map_err(|error| describe(&error)))
            .unwrap_or_else(|| Err(PANICKED.to_owned()))
            .map_err(TemplateError::Syntax)?;
        let mut template = Self {
            environment,
            source: source.to_owned(),
            bos_text: bos_text.to_owned(),
            eos_text: eos_text.to_owned(),
            capabilities: Capabilities::unknown(),
        };
        template.capabilities = probe(&template);
        Ok(template)
    }

    /// The built-in `ChatML` template.
    pub fn chatml() -> Result<Self, TemplateError> {
        Self::new(builtin::CHATML, "", "<|im_end|>")
    }

    /// The template of a model file, or `ChatML` when it has none.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let source = gguf.string("tokenizer.chat_template").ok().flatten();
        let source = source.filter(|source| !source.trim().is_empty());
        Self::for_tokenizer(source.unwrap_or(builtin::CHATML), tokenizer)
    }

    /// A template whose texts for begin and end are a tokenizer's.
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.special_text(id)).unwrap_or_default();
        Self::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What the template supports, and how it wants its input.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Whether the template reads the reasoning of messages.
    pub fn knows_reasoning(&self) -> bool {
        self.capabilities.reasoning_field.is_some()
    }

    /// Renders a conversation as text, for people; [`super::build`] makes the tokens.
    pub fn render(&self, rendering: &Rendering<'_>) -> Result<String, TemplateError> {
        self.render_guarded(rendering, None)
    }

    pub(super) fn render_guarded(
        &self,
        rendering: &Rendering<'_>,
        guard: Option<Guard<'_>>,
    ) -> Result<String, TemplateError> {
        if rendering.end.continued(rendering.messages).is_some() {
            return self.render_continued(rendering, guard);
        }
        let messages = adapt(rendering, &self.capabilities);
        let has_calls = messages.iter().any(|message| !message.tool_calls.is_empty());
        let shape = self.capabilities.shape();
        let first = self.render_with(rendering, &messages, guard, shape);
        match first {
            // What a small conversation did not show: some add arguments to a string in some places only.
            Err(TemplateError::Failed(_) | TemplateError::Raised(_)) if has_calls => {
                let arguments = match shape.arguments {
                    Arguments::Mapping => Arguments::Text,
                    Arguments::Text => Arguments::Mapping,
                };
                self.render_with(rendering, &messages, guard, Shape { arguments, ..shape }).or(first)
            }
            _ => first,
        }
    }

    /// The text up to the end of the last message: a mark behind it shows where that is, and keeps white space.
    fn render_continued(&self, rendering: &Rendering<'_>, guard: Option<Guard<'_>>) -> Result<String, TemplateError> {
        let mark = end_mark(build::texts(self, rendering).into_iter()).ok_or(TemplateError::NotContinued)?;
        let mut messages = rendering.messages.to_vec();
        messages.iter_mut().next_back().into_iter().for_each(|last| last.content.push(mark));
        let marked = Rendering { messages: &messages, end: PromptEnd::Nothing, ..*rendering };
        let text = self.render_guarded(&marked, guard)?;
        let end = text.rfind(mark).ok_or(TemplateError::NotContinued)?;
        Ok(text[..end].replace(mark, ""))
    }

    fn render_with(
        &self,
        rendering: &Rendering<'_>,
        messages: &[Message],
        guard: Option<Guard<'_>>,
        shape: Shape,
    ) -> Result<String, TemplateError> {
        let tools = if self.capabilities.tools { rendering.tools } else { &[] };
        self.render_values(&Input {
            size: messages.iter().map(|message| message.content.len()).sum::<usize>() + size_of_tools(tools),
            messages: if self.capabilities.reasoning_segments {
                values::with_segments(messages, shape, guard)
            } else {
                messages.iter().map(|message| values::message(message, shape, guard)).collect()
            },
            tools: tools.iter().map(|tool| values::to_value(&values::tool_json(tool), guard)).collect(),
            kwargs: rendering
                .kwargs
                .iter()
                .map(|(name, value)| (name.clone(), values::to_value(value, guard)))
                .collect(),
            add_generation_prompt: rendering.end != PromptEnd::Nothing,
            now_unix_ms: rendering.now_unix_ms,
            tries: false,
        })
    }

    pub(super) fn render_values(&self, input: &Input) -> Result<String, TemplateError> {
        let mut context: Vec<(String, Value)> = input.kwargs.clone();
        context.push(("messages".to_owned(), Value::from(input.messages.clone())));
        // Never none: templates ask whether tools are defined.
        if !input.tools.is_empty() {
            context.push(("tools".to_owned(), Value::from(input.tools.clone())));
        }
        context.push(("add_generation_prompt".to_owned(), Value::from(input.add_generation_prompt)));
        context.push(("bos_token".to_owned(), Value::from(self.bos_text.as_str())));
        context.push(("eos_token".to_owned(), Value::from(self.eos_text.as_str())));
        context.push((NOW.to_owned(), Value::from(input.now_unix_ms)));
        let limits = Limits { fuel: fuel(input), weight: WEIGHT_BASE + WEIGHT_PER_BYTE * input.size as u64 };
        let text = without_panic(|| render(&self.environment, Value::from_pairs(context), limits))
            .ok_or_else(|| TemplateError::Failed(PANICKED.to_owned()))?
            .map_err(|error| convert(&error))?;
        if text.len() > OUTPUT_BASE + OUTPUT_PER_BYTE * input.size {
            Err(TemplateError::TooExpensive)
        } else {
            Ok(text)
        }
    }
}

/// Bytes of the texts in tools, with their frames of JSON.
fn size_of_tools(tools: &[ToolDefinition]) -> usize {
    let mut size = 0;
    for tool in tools {
        size += tool.description.as_deref().map_or(0, str::len);
        values::visit_texts(&tool.parameters, &mut |text| size += 8 + text.len());
    }
    size
}

/// What a template is given.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) messages: Vec<Value>,
    pub(super) tools: Vec<Value>,
    pub(super) kwargs: Vec<(String, Value)>,
    pub(super) add_generation_prompt: bool,
    pub(super) now_unix_ms: u64,
    /// Bytes of text in the messages and tools.
    pub(super) size: usize,
    /// The template is tried out.
    pub(super) tries: bool,
}

/// Steps that a rendering may take whatever it renders.
const FUEL_BASE: u64 = 500_000;
/// Steps for each message and tool: templates of hundreds of lines take some hundred.
const FUEL_PER_MESSAGE: u64 = 20_000;
/// Never more than this: an endless loop ends in about a second.
const FUEL_MAX: u64 = 20_000_000;

/// Fuel for each rendering while a template is tried out with a few short messages. Some hundred steps are usual, and
/// a template that uses up what a conversation may cost must not do so dozens of times.
const FUEL_TO_TRY: u64 = 60_000;

/// Weight of a value, about its bytes, that a template may make whatever it renders.
const WEIGHT_BASE: u64 = 8 << 20;
/// Further weight for each byte of the messages.
const WEIGHT_PER_BYTE: u64 = 16;

/// Bytes that a rendered text may have whatever it renders, tools and instructions for them among it.
const OUTPUT_BASE: usize = 32 << 20;
/// Further bytes for each byte of the messages: JSON in JSON doubles every quote and backslash.
const OUTPUT_PER_BYTE: usize = 8;

/// What a rendering may cost. A step pays for 64 bytes of output, lists or strings made on the way, so this bounds
/// memory as well as time: a hostile template takes 32 MB for a short conversation.
///
/// What the engine lets pass, the instructions of `meter.rs` pay for: what lies inside values, and what is done with
/// long ones.
fn fuel(input: &Input) -> u64 {
    if input.tries {
        return FUEL_TO_TRY;
    }
    let messages = (input.messages.len() + input.tools.len()) as u64;
    let fuel = FUEL_BASE + messages.saturating_mul(FUEL_PER_MESSAGE) + input.size as u64;
    fuel.min(FUEL_MAX)
}

const PANICKED: &str = "the template engine failed in an unforeseen way";

/// The outcome, unless the engine panicked: a few of its operations do where a template gives them what nobody would.
pub(super) fn without_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    // What the closures use is not looked at again, or was not changed.
    catch_unwind(AssertUnwindSafe(work)).ok()
}

fn convert(error: &minijinja::Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooExpensive;
    }
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Raised(words)) = cause.downcast_ref() {
            return TemplateError::Raised(shortened(words));
        }
        if cause.downcast_ref::<minijinja::Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return TemplateError::TooExpensive;
        }
        source = cause.source();
    }
    TemplateError::Failed(describe(error))
}

/// The error with its line, on one line.
fn describe(error: &minijinja::Error) -> String {
    let text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let text = shortened(&text);
    error.line().map_or_else(|| text.clone(), |line| format!("line {line}: {text}"))
}

/// Letters of a message that comes from a template.
const WORDS_MAX: usize = 2_000;

fn shortened(text: &str) -> String {
    match text.char_indices().nth(WORDS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
