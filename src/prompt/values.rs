//! From messages to the values that a template sees.

use minijinja::Value;
use serde_json::{Map, Value as Json, json};

use super::arguments::mapping;
use super::guard::Guard;
use super::{Message, Role, ToolCall, ToolDefinition};

/// How a template wants the arguments of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    Mapping,
    Text,
}

/// How a template wants the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentForm {
    Text,
    Parts,
}

/// How a template wants the reasoning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReasoningForm {
    /// In a field of this name.
    Field(&'static str),
    /// As a part of the content.
    Parts,
}

/// How a template wants messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) arguments: Arguments,
    pub(super) content: ContentForm,
    pub(super) reasoning: ReasoningForm,
    pub(super) empty_call_content_is_none: bool,
}

/// The template's value of JSON, unprotected.
pub(super) fn plain(json: &Json) -> Value {
    to_value(json, None)
}

/// The template's value of JSON; with a guard, control texts in it are marked.
pub(super) fn to_value(json: &Json, guard: Option<Guard<'_>>) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64()),
        },
        Json::String(text) => Value::from(protect(text, guard)),
        Json::Array(items) => Value::from(items.iter().map(|item| to_value(item, guard)).collect::<Vec<_>>()),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(key, value)| (protect(key, guard), to_value(value, guard))))
        }
    }
}

pub(super) fn protect(text: &str, guard: Option<Guard<'_>>) -> String {
    guard.map_or_else(|| text.to_owned(), |guard| guard.protect(text))
}

/// A message as the template expects it.
pub(super) fn message(message: &Message, shape: Shape, guard: Option<Guard<'_>>) -> Value {
    let reasoning = message.reasoning_content.as_ref().map(|text| Value::from(protect(text, guard)));
    assemble(message, reasoning, message.tool_calls.iter(), shape, guard)
}

/// Messages as the template expects them, where reasoning between calls goes into one message as a list: neighbouring
/// assistant messages that call, and say nothing between, are one.
pub(super) fn with_segments(messages: &[Message], shape: Shape, guard: Option<Guard<'_>>) -> Vec<Value> {
    let calls = |message: &Message| message.role == Role::Assistant && !message.tool_calls.is_empty();
    let mut values = Vec::with_capacity(messages.len());
    let mut rest = messages;
    while let Some(first) = rest.first() {
        let more = rest[1..].iter().take_while(|message| calls(message) && message.content.is_empty()).count();
        let len = if calls(first) { 1 + more } else { 1 };
        let group = &rest[..len];
        rest = &rest[len..];
        if len == 1 {
            values.push(message(first, shape, guard));
            continue;
        }
        let segments = group.iter().flat_map(|message| {
            let reasoning = message.reasoning_content.as_deref().unwrap_or_default();
            let in_front = std::iter::once(protect(reasoning, guard));
            in_front.chain(message.tool_calls.iter().skip(1).map(|_| String::new()))
        });
        let segments: Vec<String> = segments.chain([String::new()]).collect();
        let reasoning = Some(Value::from(segments));
        values.push(assemble(first, reasoning, group.iter().flat_map(|message| &message.tool_calls), shape, guard));
    }
    values
}

fn assemble<'a>(
    message: &Message,
    reasoning: Option<Value>,
    calls: impl Iterator<Item = &'a ToolCall>,
    shape: Shape,
    guard: Option<Guard<'_>>,
) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let calls: Vec<Value> = calls.map(|call| call_value(call, shape.arguments, guard)).collect();
    let said = match (message.role, guard) {
        (Role::User | Role::Tool, Some(guard)) => guard.protect_said(&message.content),
        _ => protect(&message.content, guard),
    };
    let thought = reasoning.clone().filter(|_| shape.reasoning == ReasoningForm::Parts);
    let content = match thought {
        None if message.content.is_empty() && !calls.is_empty() && shape.empty_call_content_is_none => Value::from(()),
        thought => content(said, thought, shape.content),
    };
    let mut fields = vec![("role", Value::from(role)), ("content", content)];
    if let (Some(reasoning), ReasoningForm::Field(name)) = (reasoning, shape.reasoning) {
        fields.push((name, reasoning));
    }
    let mut optional = |key, text: &Option<String>| {
        if let Some(text) = text {
            fields.push((key, Value::from(protect(text, guard))));
        }
    };
    optional("tool_call_id", &message.tool_call_id);
    optional("name", &message.name);
    if !calls.is_empty() {
        fields.push(("tool_calls", Value::from(calls)));
    }
    Value::from_pairs(fields)
}

/// The content, with reasoning as a part in front of it where the template wants that.
fn content(text: String, reasoning: Option<Value>, form: ContentForm) -> Value {
    let part = |kind: &'static str, field: &'static str, value: Value| {
        Value::from_pairs([("type", Value::from(kind)), (field, value)])
    };
    match (reasoning, form) {
        (None, ContentForm::Text) => Value::from(text),
        (None, ContentForm::Parts) => Value::from(vec![part("text", "text", Value::from(text))]),
        (Some(reasoning), _) => {
            let mut parts = vec![part("thinking", "thinking", reasoning)];
            if !text.is_empty() {
                parts.push(part("text", "text", Value::from(text)));
            }
            Value::from(parts)
        }
    }
}

fn call_value(call: &ToolCall, arguments_as: Arguments, guard: Option<Guard<'_>>) -> Value {
    let arguments = match arguments_as {
        Arguments::Mapping => mapping(&call.arguments, guard),
        Arguments::Text => Value::from(protect(&call.arguments, guard)),
    };
    let function = [("name", Value::from(protect(&call.name, guard))), ("arguments", arguments)];
    Value::from_pairs([
        ("id", Value::from(protect(&call.id, guard))),
        ("type", Value::from("function")),
        ("function", Value::from_pairs(function)),
    ])
}

/// A tool in `OpenAI`'s shape, as templates expect it.
pub(super) fn tool_json(tool: &ToolDefinition) -> Json {
    let mut function = Map::new();
    function.insert("name".to_owned(), Json::from(tool.name.as_str()));
    if let Some(description) = &tool.description {
        function.insert("description".to_owned(), Json::from(description.as_str()));
    }
    function.insert("parameters".to_owned(), tool.parameters.clone());
    json!({"type": "function", "function": function})
}

/// Calls `visit` with every text in JSON, keys included.
pub(super) fn visit_texts<'a>(json: &'a Json, visit: &mut impl FnMut(&'a str)) {
    match json {
        Json::String(text) => visit(text),
        Json::Array(items) => items.iter().for_each(|item| visit_texts(item, visit)),
        Json::Object(fields) => fields.iter().for_each(|(key, value)| {
            visit(key);
            visit_texts(value, visit);
        }),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
