//! What a template can do, found out by rendering a few small conversations with it when it is loaded.
//!
//! Pure and under fuel. Nothing is believed because of the template's name: what counts is what comes out.

use std::cell::Cell;

use minijinja::Value;
use serde_json::{Map, Value as Json, json};

use super::template::{ChatTemplate, Input, TemplateError};
use super::values::{self, Arguments, ContentForm, ReasoningForm, Shape};
use super::{Message, Role, ToolCall, ToolDefinition, call_ids};

const USER: &str = "midstream probe user";
const OTHER_USER: &str = "midstream probe second user";
const SYSTEM: &str = "midstream probe system";
const ANSWER: &str = "midstream probe answer";
const REASONING: &str = "midstream probe reasoning";
const RESULT: &str = "midstream probe result";
/// The name of the tool that the probe calls.
pub const TOOL: &str = "midstream_probe_tool";
const VALUE: &str = "midstream probe value";
const OTHER_VALUE: &str = "midstream probe other value";
/// Two spaces, which nobody but this text writes.
const ARGUMENTS: &str = r#"{"probe_key":  "midstream probe value"}"#;
const OTHER_ARGUMENTS: &str = r#"{"probe_key":  "midstream probe other value"}"#;

/// Variables that keep earlier reasoning in known templates, with the value that does.
const KEEPING: [(&str, bool); 6] = [
    ("truncate_history_thinking", false),
    ("preserve_thinking", true),
    ("clear_thinking", false),
    ("keep_thinking", true),
    ("preserve_reasoning", true),
    ("drop_thinking", false),
];

/// Variables that switch thinking on in known templates.
const THINKING: [&str; 2] = ["enable_thinking", "thinking"];

/// What a template supports, and how it wants its input.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub struct Capabilities {
    /// Writes the definitions of tools.
    pub tools: bool,
    /// Writes an assistant's calls.
    pub tool_calls: bool,
    /// Writes messages of the role `tool`.
    pub tool_results: bool,
    /// Writes a system message at the beginning.
    pub system: bool,
    /// Writes a system message where it stands, in the middle of a conversation too.
    pub system_anywhere: bool,
    /// Knows the role `developer`.
    pub developer: bool,
    /// Takes two user messages in a row.
    pub consecutive_users: bool,
    /// Takes two assistant messages in a row.
    pub consecutive_assistants: bool,
    /// Takes a user message right behind a tool's result.
    pub user_after_result: bool,
    /// Takes ids of calls with nine letters or digits only.
    pub short_call_ids: bool,
    /// Writes the id of a call in place of its name, so that the name must stand in it: `functions.NAME:NUMBER`.
    pub call_ids_name_tools: bool,
    /// Wants the content as a list of parts.
    pub content_as_parts: bool,
    /// Wants the arguments of calls as JSON text instead of a mapping.
    pub arguments_as_text: bool,
    /// Wants no content, rather than an empty one, in messages that only call.
    pub call_content_is_none: bool,
    /// Takes content and reasoning in one message that calls.
    pub call_takes_both: bool,
    /// The field that it reads reasoning from; `content` stands for parts of the type `thinking`.
    pub reasoning_field: Option<&'static str>,
    /// Takes reasoning as a list: the reasoning in front of each call, then what comes behind the last.
    pub reasoning_segments: bool,
    /// Writes the reasoning of answers and calls before the last user message.
    pub keeps_earlier_reasoning: bool,
    /// Variables with which it keeps earlier reasoning, where it does not without them.
    pub keeps_reasoning_with: Vec<(&'static str, bool)>,
    /// The variable that switches thinking, where one does.
    pub thinking_switch: Option<&'static str>,
    /// How an assistant's call is written, from behind the assistant's header on; for the choice of a parser.
    pub tool_call_sample: Option<String>,
}

impl Capabilities {
    /// Of a template that shows nothing of what is put in: everything is given to it as it is.
    pub(super) fn unknown() -> Self {
        Self {
            tools: true,
            tool_calls: true,
            tool_results: true,
            system: true,
            system_anywhere: true,
            developer: true,
            consecutive_users: true,
            consecutive_assistants: true,
            user_after_result: true,
            short_call_ids: false,
            call_ids_name_tools: false,
            content_as_parts: false,
            arguments_as_text: false,
            call_content_is_none: false,
            call_takes_both: true,
            reasoning_field: Some("reasoning_content"),
            reasoning_segments: false,
            keeps_earlier_reasoning: true,
            keeps_reasoning_with: Vec::new(),
            thinking_switch: None,
            tool_call_sample: None,
        }
    }

    /// How messages are given to the template.
    pub(super) fn shape(&self) -> Shape {
        Shape {
            arguments: if self.arguments_as_text { Arguments::Text } else { Arguments::Mapping },
            content: if self.content_as_parts { ContentForm::Parts } else { ContentForm::Text },
            empty_call_content_is_none: self.call_content_is_none,
            reasoning: match self.reasoning_field {
                Some("content") => ReasoningForm::Parts,
                Some(field) => ReasoningForm::Field(field),
                None => ReasoningForm::Field("reasoning_content"),
            },
        }
    }
}

/// Finds out what the template supports.
pub(super) fn probe(template: &ChatTemplate) -> Capabilities {
    let mut probe = Probe { template, found: Capabilities::unknown(), kwargs: Map::new(), endless: Cell::new(false) };
    let plain = probe.shows(&[user(USER)], USER);
    probe.found.content_as_parts = !plain && {
        probe.found.content_as_parts = true;
        probe.shows(&[user(USER)], USER)
    };
    let readable = plain || probe.found.content_as_parts;
    probe.roles(readable);
    probe.tools();
    probe.calls();
    if readable {
        probe.order();
    }
    probe.reasoning();
    probe.switch();
    probe.found
}

struct Probe<'a> {
    template: &'a ChatTemplate,
    /// What is known so far; messages are given accordingly.
    found: Capabilities,
    kwargs: Map<String, Json>,
    /// The template did not come to an end: nothing more is asked of it.
    endless: Cell<bool>,
}

impl Probe<'_> {
    fn roles(&mut self, readable: bool) {
        self.found.system = self.shows(&[system(), user(USER)], SYSTEM);
        self.found.developer = self.template.source().contains("developer")
            && self.render(&[Message::text(Role::Developer, SYSTEM), user(USER)]).is_some();
        let middle = self.render(&[user(USER), answer(), system(), user(OTHER_USER)]);
        // A system text that is gathered at the beginning would change the prompt in front of everything else.
        let in_place = |text: String| in_order(&text, &[USER, ANSWER, SYSTEM, OTHER_USER]);
        self.found.system_anywhere = self.found.system && (!readable || middle.is_some_and(in_place));
    }

    /// Which orders of messages it takes. That something is missing says nothing here: only a refusal counts.
    fn order(&mut self) {
        self.found.consecutive_users = self.render(&[user(USER), user(OTHER_USER)]).is_some();
        let answers = [user(USER), answer(), answer(), user(OTHER_USER)];
        self.found.consecutive_assistants = self.render(&answers).is_some();
        let turn = [user(USER), call(ARGUMENTS), result(), user(OTHER_USER)];
        let long = |mut message: Message| {
            message.tool_calls.iter_mut().for_each(|call| LONG_CALL_ID.clone_into(&mut call.id));
            message.tool_call_id = message.tool_call_id.map(|_| LONG_CALL_ID.to_owned());
            message
        };
        let longer = [user(USER), long(call(ARGUMENTS)), long(result())];
        self.found.short_call_ids = self.found.tool_calls && self.render(&longer).is_none();
        let native = self.found.tool_calls && self.found.tool_results;
        self.found.user_after_result = !native || self.render(&turn).is_some();
    }

    fn tools(&mut self) {
        let tools = [tool()];
        let shown = |messages: &[Message]| self.render_with(messages, &tools, false).map(|text| text.contains(TOOL));
        let shown = [shown(&[user(USER)]), shown(&[system(), user(USER)])];
        self.found.tools = match shown {
            [Some(true), _] | [_, Some(true)] => true,
            [None, None] => self.template.source().contains("tools"),
            _ => false,
        };
    }

    fn calls(&mut self) {
        let turn = [user(USER), call(ARGUMENTS), result()];
        let mut best = None;
        for (none, text) in [(false, false), (false, true), (true, false), (true, true)] {
            self.found.call_content_is_none = none;
            self.found.arguments_as_text = text;
            let rendered = self.render(&turn).filter(|text| text.contains(TOOL) || text.contains(VALUE));
            let rank = match rendered {
                // The arguments came through as they were written, not as a string in a string.
                Some(rendered) if rendered.contains(ARGUMENTS) => 2,
                Some(rendered) if rendered.contains(VALUE) && !rendered.contains("\\\"probe_key") => 1,
                _ => 0,
            };
            if rank > best.map_or(0, |(rank, _)| rank) {
                best = Some((rank, (none, text)));
            }
        }
        let (none, text) = best.map_or((false, false), |(_, form)| form);
        self.found.call_content_is_none = none;
        self.found.arguments_as_text = text;
        self.found.tool_calls = best.is_some();
        self.found.tool_results = self.shows(&turn, RESULT);
        if self.found.tool_calls {
            self.found.call_ids_name_tools = self.names_by_id();
            self.found.tool_call_sample = self.sample();
        }
    }

    /// Whether a call's name stands in its id alone, or the template makes such an id of the name.
    fn names_by_id(&self) -> bool {
        let shown = self.render(&[user(USER), call(ARGUMENTS)]).filter(|text| text.contains(VALUE));
        let made = call_ids::naming(TOOL, "");
        shown.is_some_and(|text| text.contains(CALL_ID) && !text.contains(TOOL) || text.contains(&made))
    }

    /// What a call looks like, behind what the prompt for an answer ends with.
    fn sample(&self) -> Option<String> {
        let mut turn = [user(USER), call(ARGUMENTS), result()];
        if self.found.call_ids_name_tools {
            let id = call_ids::naming(TOOL, "0");
            turn[1].tool_calls.iter_mut().for_each(|call| call.id.clone_from(&id));
            turn[2].tool_call_id = Some(id);
        }
        let whole = self.render(&turn[..2]).or_else(|| {
            let whole = self.render(&turn)?;
            let end = whole.find(RESULT).unwrap_or(whole.len());
            Some(whole[..end].to_owned())
        })?;
        let prompt = self.render_with(&turn[..1], &[], true).unwrap_or_default();
        let shared = whole.char_indices().zip(prompt.chars()).find(|((_, left), right)| left != right);
        let begin = shared.map_or(prompt.len().min(whole.len()), |((place, _), _)| place);
        // Where the prompt ends in another tag than the call begins with, both begin alike.
        let tag = whole.get(..begin)?.rfind(['<', '[']);
        let begin = tag.filter(|tag| !whole[*tag..begin].contains(['>', ']'])).unwrap_or(begin);
        let begin = if begin <= whole.find(TOOL).unwrap_or(whole.len()) { begin } else { 0 };
        whole.get(begin..).map(|sample| sample.trim_start().to_owned())
    }

    fn reasoning(&mut self) {
        let with_call = || [user(USER), with_reasoning(call(ARGUMENTS)), result()];
        let plain = || [user(USER), with_reasoning(answer())];
        let fields = ["reasoning_content", "reasoning", "thinking", "content"];
        let source = self.template.source();
        let thinks = ["reasoning", "think"].iter().any(|word| source.contains(word));
        let field = fields.into_iter().filter(|_| thinks).find(|field| {
            self.found.reasoning_field = Some(field);
            self.shows(&with_call(), REASONING) || self.shows(&plain(), REASONING)
        });
        self.found.reasoning_field = field;
        self.found.keeps_earlier_reasoning = field.is_some() && self.keeps_earlier();
        if field.is_some() && !self.found.keeps_earlier_reasoning {
            self.find_what_keeps();
        }
        let both = Message { content: ANSWER.to_owned(), ..with_reasoning(call(ARGUMENTS)) };
        let native = self.found.tool_calls && field.is_some() && !self.found.call_content_is_none;
        self.found.call_takes_both = !native || self.render(&[user(USER), both, result()]).is_some();
        self.found.reasoning_segments = field.is_some_and(|field| field != "content") && self.takes_segments();
    }

    fn keeps_earlier(&self) -> bool {
        let calls = [user(USER), with_reasoning(call(ARGUMENTS)), result(), answer(), user(OTHER_USER)];
        let plain = [user(USER), with_reasoning(answer()), user(OTHER_USER)];
        let kept = |messages: &[Message]| self.render(messages).is_some_and(|text| text.contains(REASONING));
        kept(&plain) && (!self.found.tool_calls || kept(&calls))
    }

    fn find_what_keeps(&mut self) {
        let named = |name: &&str| self.template.source().contains(*name);
        let thinking: Vec<_> = THINKING.iter().filter(|name| named(name)).map(|name| (*name, true)).collect();
        for (name, value) in KEEPING.into_iter().filter(|(name, _)| named(name)) {
            let all = thinking.iter().copied().chain([(name, value)]);
            self.kwargs = all.map(|(name, value)| (name.to_owned(), Json::Bool(value))).collect();
            if self.keeps_earlier() {
                self.found.keeps_reasoning_with.push((name, value));
            }
        }
        self.kwargs.clear();
    }

    /// Whether reasoning between calls can be told apart from reasoning in front of them all.
    fn takes_segments(&self) -> bool {
        let turn = [
            user(USER),
            with_reasoning(call(ARGUMENTS)),
            Message { reasoning_content: Some(ANSWER.to_owned()), ..call(OTHER_ARGUMENTS) },
            result(),
            result(),
        ];
        let values: Vec<Value> = values::with_segments(&turn, self.found.shape(), None);
        let rendered = self.try_out(Input { messages: values, ..Input::default() });
        rendered.is_some_and(|text| in_order(&text, &[REASONING, VALUE, ANSWER, OTHER_VALUE, RESULT]))
    }

    fn switch(&mut self) {
        let named = |name: &&str| self.template.source().contains(*name);
        let known: Vec<_> = THINKING.into_iter().filter(named).collect();
        let mut prompt = |name: &str, value: bool| {
            self.kwargs = Map::from_iter([(name.to_owned(), Json::Bool(value))]);
            self.render_with(&[user(USER)], &[], true)
        };
        let switch = known.into_iter().find(|name| prompt(name, true) != prompt(name, false));
        self.kwargs.clear();
        self.found.thinking_switch = switch;
    }

    fn shows(&self, messages: &[Message], text: &str) -> bool {
        self.render(messages).is_some_and(|rendered| rendered.contains(text))
    }

    fn render(&self, messages: &[Message]) -> Option<String> {
        self.render_with(messages, &[], false)
    }

    fn render_with(&self, messages: &[Message], tools: &[ToolDefinition], prompt: bool) -> Option<String> {
        let shape = self.found.shape();
        self.try_out(Input {
            messages: messages.iter().map(|message| values::message(message, shape, None)).collect(),
            tools: tools.iter().map(|tool| values::plain(&values::tool_json(tool))).collect(),
            kwargs: self.kwargs.iter().map(|(name, value)| (name.clone(), values::plain(value))).collect(),
            add_generation_prompt: prompt,
            ..Input::default()
        })
    }

    fn try_out(&self, input: Input) -> Option<String> {
        if self.endless.get() {
            return None;
        }
        let rendered = self.template.render_values(&Input { tries: true, ..input });
        self.endless.set(rendered == Err(TemplateError::TooExpensive));
        rendered.ok()
    }
}

fn user(text: &str) -> Message {
    Message::text(Role::User, text)
}

fn system() -> Message {
    Message::text(Role::System, SYSTEM)
}

fn answer() -> Message {
    Message::text(Role::Assistant, ANSWER)
}

/// Nine letters and digits, as the strictest templates want it.
const CALL_ID: &str = "probe0001";
const LONG_CALL_ID: &str = "callprobe0000000000000000001";

fn call(arguments: &str) -> Message {
    Message { tool_calls: vec![ToolCall::new(CALL_ID, TOOL, arguments)], ..Message::text(Role::Assistant, "") }
}

fn result() -> Message {
    let (id, name) = (Some(CALL_ID.to_owned()), Some(TOOL.to_owned()));
    Message { tool_call_id: id, name, ..Message::text(Role::Tool, RESULT) }
}

fn with_reasoning(message: Message) -> Message {
    Message { reasoning_content: Some(REASONING.to_owned()), ..message }
}

fn tool() -> ToolDefinition {
    let description = "midstream probe description".to_owned();
    let key = json!({"type": "string", "description": "midstream probe"});
    let parameters = json!({"type": "object", "properties": {"probe_key": key}, "required": ["probe_key"]});
    ToolDefinition { name: TOOL.to_owned(), description: Some(description), parameters }
}

/// Whether the texts come one behind the other.
fn in_order(text: &str, parts: &[&str]) -> bool {
    let mut rest = text;
    parts.iter().all(|part| match rest.find(part) {
        Some(place) => {
            rest = &rest[place + part.len()..];
            true
        }
        None => false,
    })
}
