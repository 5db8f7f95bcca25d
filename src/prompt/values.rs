//! From messages to the values that a template sees.

use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use serde_json::{Map, Value as Json, json};

use super::guard::Guard;
use super::{Message, Role, ToolDefinition};

/// How a template wants the arguments of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentsAs {
    Mapping,
    Text,
}

/// The arguments of a call: a mapping that remembers how it was written, so that `tojson` gives back exactly what
/// the model generated and the prompt goes on where the answer ended.
#[derive(Debug)]
pub(super) struct CallArguments {
    raw: String,
    fields: Value,
}

impl CallArguments {
    pub(super) fn raw(&self) -> &str {
        &self.raw
    }
}

impl Object for CallArguments {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.fields.get_item(key).ok().filter(|value| !value.is_undefined())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.fields.try_iter().map(Iterator::collect).unwrap_or_default())
    }
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

fn protect(text: &str, guard: Option<Guard<'_>>) -> String {
    guard.map_or_else(|| text.to_owned(), |guard| guard.protect(text))
}

/// A message as templates expect it.
pub(super) fn message(message: &Message, arguments_as: ArgumentsAs, guard: Option<Guard<'_>>) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut fields = vec![("role", Value::from(role)), ("content", Value::from(protect(&message.content, guard)))];
    let mut optional = |key, text: &Option<String>| {
        if let Some(text) = text {
            fields.push((key, Value::from(protect(text, guard))));
        }
    };
    optional("reasoning_content", &message.reasoning_content);
    optional("tool_call_id", &message.tool_call_id);
    optional("name", &message.name);
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            let arguments = arguments(&call.arguments, arguments_as, guard);
            let function = [("name", Value::from(protect(&call.name, guard))), ("arguments", arguments)];
            Value::from_pairs([
                ("id", Value::from(protect(&call.id, guard))),
                ("type", Value::from("function")),
                ("function", Value::from_pairs(function)),
            ])
        });
        fields.push(("tool_calls", Value::from(calls.collect::<Vec<_>>())));
    }
    Value::from_pairs(fields)
}

fn arguments(raw: &str, arguments_as: ArgumentsAs, guard: Option<Guard<'_>>) -> Value {
    match (arguments_as, serde_json::from_str::<Map<String, Json>>(raw)) {
        (ArgumentsAs::Mapping, Ok(fields)) => {
            let fields = to_value(&Json::Object(fields), guard);
            Value::from_object(CallArguments { raw: protect(raw, guard), fields })
        }
        _ => Value::from(protect(raw, guard)),
    }
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
