//! A model's chat template: what it supports, and rendering a conversation with it.

use std::borrow::Cow;

use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use super::depth::too_deep;
use super::environment::{NOW, Raised, TEMPLATE, environment};
use super::guard::Guard;
use super::values::{self, ArgumentsAs};
use super::{Message, Role, ToolDefinition, hermes};
use crate::engine::gguf::Gguf;
use crate::engine::tokenizer::Tokenizer;

/// `ChatML`, for models that bring no template. It knows no tools; they are written into the messages.
const CHATML: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Texts that a probe looks for in what a template renders.
const PROBE_TOOL: &str = "midstream_probe_tool";
const PROBE_SYSTEM: &str = "midstream probe of the system role";

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
}

/// What is rendered.
#[derive(Clone, Copy, Debug)]
pub struct Rendering<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// The tools the model may call.
    pub tools: &'a [ToolDefinition],
    /// Whether the text ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`.
    pub kwargs: &'a Map<String, Json>,
    /// The time for templates that show the date. Keep it for all turns of a conversation, else a new day makes a
    /// new prompt.
    pub now_unix_ms: u64,
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_text: String,
    eos_text: String,
    knows: Knows,
}

/// What a template does with its input; what it does not know is written into the messages for it.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)] // four independent facts
struct Knows {
    tools: bool,
    system: bool,
    developer: bool,
    reasoning: bool,
}

impl ChatTemplate {
    /// Compiles a template and finds out what it supports.
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<Self, TemplateError> {
        if let Some(operators) = too_deep(source) {
            let text = format!("an expression with {operators} operators is more than any chat template needs");
            return Err(TemplateError::Syntax(text));
        }
        let environment = environment(source).map_err(|error| TemplateError::Syntax(describe(&error)))?;
        let mut template = Self {
            environment,
            source: source.to_owned(),
            bos_text: bos_text.to_owned(),
            eos_text: eos_text.to_owned(),
            knows: Knows { tools: true, system: true, developer: true, reasoning: true },
        };
        template.knows = template.probe();
        Ok(template)
    }

    /// The built-in `ChatML` template.
    pub fn chatml() -> Result<Self, TemplateError> {
        Self::new(CHATML, "", "<|im_end|>")
    }

    /// The template of a model file, or `ChatML` when it has none.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let source = gguf.string("tokenizer.chat_template").ok().flatten();
        let source = source.filter(|source| !source.trim().is_empty());
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.special_text(id)).unwrap_or_default();
        Self::new(source.unwrap_or(CHATML), text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template writes tools itself. Where it does not, calls come in the Hermes format.
    pub fn knows_tools(&self) -> bool {
        self.knows.tools
    }

    /// Whether the template reads `reasoning_content`.
    pub fn knows_reasoning(&self) -> bool {
        self.knows.reasoning
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
        let messages = self.adapt(rendering);
        let has_calls = messages.iter().any(|message| !message.tool_calls.is_empty());
        let first = self.render_with(rendering, &messages, guard, ArgumentsAs::Mapping);
        match first {
            // Most templates want a call's arguments as a mapping; some add them to a string.
            Err(TemplateError::Failed(_) | TemplateError::Raised(_)) if has_calls => {
                self.render_with(rendering, &messages, guard, ArgumentsAs::Text).or(first)
            }
            _ => first,
        }
    }

    fn render_with(
        &self,
        rendering: &Rendering<'_>,
        messages: &[Message],
        guard: Option<Guard<'_>>,
        arguments_as: ArgumentsAs,
    ) -> Result<String, TemplateError> {
        let mut context: Vec<(String, Value)> = Vec::new();
        for (key, value) in rendering.kwargs {
            context.push((key.clone(), values::to_value(value, guard)));
        }
        let messages = messages.iter().map(|message| values::message(message, arguments_as, guard));
        context.push(("messages".to_owned(), Value::from(messages.collect::<Vec<_>>())));
        // Never none: templates ask whether tools are defined.
        if self.knows.tools && !rendering.tools.is_empty() {
            let tools = rendering.tools.iter().map(|tool| values::to_value(&values::tool_json(tool), guard));
            context.push(("tools".to_owned(), Value::from(tools.collect::<Vec<_>>())));
        }
        context.push(("add_generation_prompt".to_owned(), Value::from(rendering.add_generation_prompt)));
        context.push(("bos_token".to_owned(), Value::from(self.bos_text.as_str())));
        context.push(("eos_token".to_owned(), Value::from(self.eos_text.as_str())));
        context.push((NOW.to_owned(), Value::from(rendering.now_unix_ms)));
        let template = self.environment.get_template(TEMPLATE).map_err(|error| convert(&error))?;
        template.render(Value::from_pairs(context)).map_err(|error| convert(&error))
    }

    /// The messages with what the template does not know written in a way it does.
    fn adapt<'a>(&self, rendering: &Rendering<'a>) -> Cow<'a, [Message]> {
        let mut messages = Cow::Borrowed(rendering.messages);
        if !self.knows.developer && messages.iter().any(|message| message.role == Role::Developer) {
            for message in messages.to_mut() {
                if message.role == Role::Developer {
                    message.role = Role::System;
                }
            }
        }
        if !self.knows.reasoning {
            keep_reasoning_of_calls(&mut messages);
        }
        if !self.knows.tools {
            messages = hermes::adapt(messages, rendering.tools);
        }
        if !self.knows.system {
            move_system_into_user(&mut messages);
        }
        messages
    }

    fn probe(&self) -> Knows {
        let render = |messages: &[Message], tools: &[ToolDefinition]| {
            let kwargs = Map::new();
            self.render(&Rendering { messages, tools, add_generation_prompt: false, kwargs: &kwargs, now_unix_ms: 0 })
        };
        let user = Message::text(Role::User, "x");
        let tool = ToolDefinition {
            name: PROBE_TOOL.to_owned(),
            description: Some("x".to_owned()),
            parameters: serde_json::json!({"type": "object", "properties": {}}),
        };
        let system = [Message::text(Role::System, PROBE_SYSTEM), user.clone()];
        let shows = |rendered: Result<String, TemplateError>, text: &str, otherwise: bool| {
            rendered.map_or(otherwise, |rendered| rendered.contains(text))
        };
        Knows {
            tools: shows(render(&[user], &[tool]), PROBE_TOOL, self.source.contains("tools")),
            system: shows(render(&system, &[]), PROBE_SYSTEM, false),
            developer: self.source.contains("developer"),
            reasoning: self.source.contains("reasoning_content"),
        }
    }
}

/// Reasoning that led to calls stays in its place, inside the content; other reasoning is left out.
fn keep_reasoning_of_calls(messages: &mut Cow<'_, [Message]>) {
    let explains = |message: &Message| message.reasoning_content.is_some() && !message.tool_calls.is_empty();
    if !messages.iter().any(explains) {
        return;
    }
    for message in messages.to_mut().iter_mut().filter(|message| explains(message)) {
        let reasoning = message.reasoning_content.take().unwrap_or_default();
        message.content = format!("<think>\n{}\n</think>\n\n{}", reasoning.trim_matches('\n'), message.content);
    }
}

/// A leading system message becomes the beginning of the first user message.
fn move_system_into_user(messages: &mut Cow<'_, [Message]>) {
    if messages.first().is_none_or(|message| message.role != Role::System) {
        return;
    }
    let messages = messages.to_mut();
    let system = messages.remove(0);
    match messages.first_mut().filter(|message| message.role == Role::User) {
        Some(user) => user.content = format!("{}\n\n{}", system.content, user.content),
        None => messages.insert(0, Message::text(Role::User, system.content)),
    }
}

fn convert(error: &minijinja::Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooExpensive;
    }
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Raised(words)) = cause.downcast_ref() {
            return TemplateError::Raised(words.clone());
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
    error.line().map_or_else(|| text.clone(), |line| format!("line {line}: {text}"))
}
