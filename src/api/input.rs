//! From the wire's input to the core's: items, tools, sampling, limits. Everything behind this is valid.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::body::decode;
use super::constraint;
use super::errors::invalid;
use crate::conversation::{Content, Formats, Item, ItemBody, ItemStatus, Policies, Reject, Thinking, ToolPolicy};
use crate::engine::ModelInfo;
use crate::engine::settings::Constraint;
use crate::ids::{CallId, FreshIds, ItemId};
use crate::prompt::{Effort, Efforts, PromptEnd, Role, ToolDefinition, with_effort};
use crate::protocol::TextOr;
use crate::protocol::chat::ChatMessage;
use crate::protocol::items::{ContentPart, InputItem};

/// Levels of priority between the ordinary service tier and the one above or below.
const TIER_LEVELS: i8 = 5;
/// Where an agent says how urgent its request is.
const HINT: &str = "nvext.agent_hints.priority";
/// Most stop strings of one request.
const STOPS_MAX: usize = 16;

/// A completed item with a fresh id: what clients call their items is not ours to keep.
fn fresh_item(body: ItemBody, fresh: &mut FreshIds) -> Item {
    Item { id: ItemId::draw(fresh), status: ItemStatus::Completed, body }
}

/// The input of a request: a bare text is a user message.
pub(crate) fn items(input: Option<&TextOr<InputItem>>, field: &str, fresh: &mut FreshIds) -> Result<Vec<Item>, Reject> {
    match input {
        None => Ok(Vec::new()),
        Some(TextOr::Text(text)) if text.is_empty() => Err(invalid(field, format!("{field} is empty; say something"))),
        Some(TextOr::Text(text)) => Ok(vec![Item::message(ItemId::draw(fresh), Role::User, text)]),
        Some(TextOr::List(list)) => item_list(list, field, fresh),
    }
}

/// A list of input items.
pub(crate) fn item_list(list: &[InputItem], field: &str, fresh: &mut FreshIds) -> Result<Vec<Item>, Reject> {
    let mut items = Vec::with_capacity(list.len());
    for (position, wire) in list.iter().enumerate() {
        let body = item_body(wire, &format!("{field}[{position}]"))?;
        items.extend(body.map(|body| fresh_item(body, fresh)));
    }
    Ok(items)
}

/// What an item says; nothing for reasoning that nobody can read.
fn item_body(wire: &InputItem, path: &str) -> Result<Option<ItemBody>, Reject> {
    let needed = |value: &Option<String>, name: &str| {
        value.clone().ok_or_else(|| invalid(format!("{path}.{name}"), format!("{path}.{name} is missing")))
    };
    match wire.kind.as_deref().unwrap_or("message") {
        "message" => {
            let role = match needed(&wire.role, "role")?.as_str() {
                "system" => Role::System,
                "developer" => Role::Developer,
                "user" => Role::User,
                "assistant" => Role::Assistant,
                role => {
                    let message = format!("{path}.role: {role:?} is none of system, developer, user, assistant");
                    return Err(invalid(format!("{path}.role"), message));
                }
            };
            let text = text_of(wire.content.as_ref(), &format!("{path}.content"))?;
            let content = vec![Content::Text { text }];
            Ok(Some(ItemBody::Message { role, content }))
        }
        "reasoning" => {
            let mut text = text_of(wire.content.as_ref(), &format!("{path}.content"))?;
            if text.is_empty() {
                text = texts(wire.summary.as_deref().unwrap_or_default(), &format!("{path}.summary"))?.join("\n\n");
            }
            Ok(Some(ItemBody::Reasoning { text }).filter(|_| wire.content.is_some() || wire.summary.is_some()))
                .map(|body| body.filter(|body| !matches!(body, ItemBody::Reasoning { text } if text.is_empty())))
        }
        "function_call" => Ok(Some(ItemBody::FunctionCall {
            call_id: CallId(needed(&wire.call_id, "call_id")?),
            native_id: None,
            name: needed(&wire.name, "name")?,
            arguments: needed(&wire.arguments, "arguments")?,
        })),
        "function_call_output" => {
            let path = format!("{path}.output");
            let output = wire.output.as_ref();
            let output = output.ok_or_else(|| invalid(path.clone(), format!("{path} is missing")))?;
            Ok(Some(ItemBody::FunctionCallOutput {
                call_id: CallId(needed(&wire.call_id, "call_id")?),
                output: text_of(Some(output), &path)?,
                synthetic: false,
                is_error: false,
            }))
        }
        kind => {
            let message = format!("{path}.type: items of the type {kind:?} are not supported; leave the item out");
            Err(invalid(format!("{path}.type"), message))
        }
    }
}

/// The text of a content, parts joined.
fn text_of(content: Option<&TextOr<ContentPart>>, path: &str) -> Result<String, Reject> {
    match content {
        None => Ok(String::new()),
        Some(TextOr::Text(text)) => Ok(text.clone()),
        Some(TextOr::List(parts)) => Ok(texts(parts, path)?.concat()),
    }
}

fn texts<'a>(parts: &'a [ContentPart], path: &str) -> Result<Vec<&'a str>, Reject> {
    let texts = parts.iter().enumerate().map(|(position, part)| {
        let text = match part.kind.as_str() {
            "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" => part.text.as_deref(),
            "refusal" => part.refusal.as_deref(),
            kind => {
                let at = format!("{path}[{position}].type");
                let message = format!("{at}: the model reads text, and no parts of the type {kind:?}; send text");
                return Err(invalid(at, message));
            }
        };
        text.ok_or_else(|| {
            let at = format!("{path}[{position}].text");
            invalid(at.clone(), format!("{at} is missing"))
        })
    });
    texts.collect()
}

/// The transcript of a chat request as items.
pub(crate) fn chat_items(messages: &[ChatMessage], fresh: &mut FreshIds) -> Result<Vec<Item>, Reject> {
    let mut items = Vec::with_capacity(messages.len());
    for (position, message) in messages.iter().enumerate() {
        let path = format!("messages[{position}]");
        for body in chat_bodies(message, &path)? {
            items.push(fresh_item(body, fresh));
        }
    }
    Ok(items)
}

fn chat_bodies(message: &ChatMessage, path: &str) -> Result<Vec<ItemBody>, Reject> {
    let text = text_of(message.content.as_ref(), &format!("{path}.content"))?;
    let role = match message.role.as_str() {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        "assistant" => return assistant_bodies(message, text, path),
        "tool" => {
            let at = format!("{path}.tool_call_id");
            let call_id = message.tool_call_id.clone();
            let call_id = call_id.ok_or_else(|| invalid(at.clone(), format!("{at} is missing")))?;
            return Ok(vec![ItemBody::FunctionCallOutput {
                call_id: CallId(call_id),
                output: text,
                synthetic: false,
                is_error: false,
            }]);
        }
        role => {
            let message = format!("{path}.role: {role:?} is none of system, developer, user, assistant, tool");
            return Err(invalid(format!("{path}.role"), message));
        }
    };
    let content = vec![Content::Text { text }];
    Ok(vec![ItemBody::Message { role, content }])
}

fn assistant_bodies(message: &ChatMessage, text: String, path: &str) -> Result<Vec<ItemBody>, Reject> {
    let mut bodies = Vec::new();
    if let Some(text) = message.reasoning_content.clone().filter(|text| !text.is_empty()) {
        bodies.push(ItemBody::Reasoning { text });
    }
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    if !text.is_empty() || calls.is_empty() && bodies.is_empty() {
        let content = vec![Content::Text { text }];
        bodies.push(ItemBody::Message { role: Role::Assistant, content });
    }
    for (position, call) in calls.iter().enumerate() {
        let at = format!("{path}.tool_calls[{position}].function");
        let function = call.function.as_ref();
        let function = function.ok_or_else(|| invalid(at.clone(), format!("{at} is missing")))?;
        bodies.push(ItemBody::FunctionCall {
            call_id: CallId(call.id.clone()),
            native_id: None,
            name: function.name.clone(),
            arguments: function.arguments.clone(),
        });
    }
    Ok(bodies)
}

/// How the answer is read: as this model's are now.
pub(crate) fn formats(model: &ModelInfo, constraint: Option<&Constraint>) -> Formats {
    let (tool, reasoning) = (model.tool_format.name().to_owned(), model.reasoning.name().to_owned());
    Formats { tool, reasoning, bare_calls: constraint::bare_calls(constraint, model) }
}

/// What the request asks for beyond the answer.
pub(crate) fn policies(body: &Value) -> Result<Policies, Reject> {
    const BUDGET: &str = "max_conversation_tokens";
    const NAMES: [&str; 7] =
        ["durability", "on_disconnect", "grace_ms", "on_restart", "max_unattended_tokens", BUDGET, "if_busy"];
    let named = |name: &str| Some((name.to_owned(), body.get(name).filter(|value| !value.is_null())?.clone()));
    let policies: Policies = decode(&Value::Object(NAMES.into_iter().filter_map(named).collect()))?;
    within_a_month(policies.grace_ms, "grace_ms")?;
    if policies.max_conversation_tokens == Some(0) {
        return Err(invalid(BUDGET, format!("{BUDGET} must be at least 1")));
    }
    Ok(policies)
}

/// Longest time that a request may set, in milliseconds: what is timed stays in memory.
const TIMER_MS_MAX: u64 = 31 * 24 * 3_600_000;

fn within_a_month(asked_ms: Option<u64>, name: &str) -> Result<(), Reject> {
    match asked_ms.filter(|asked_ms| *asked_ms > TIMER_MS_MAX) {
        Some(_) => Err(invalid(name, format!("{name} must be at most {TIMER_MS_MAX}, a month"))),
        None => Ok(()),
    }
}

/// The most calls that may be claimed at once.
pub(crate) fn parallel_limit(body: &Value) -> Result<Option<u32>, Reject> {
    let name = "max_parallel_tool_calls";
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().and_then(|limit| u32::try_from(limit).ok()).filter(|limit| *limit > 0) {
            Some(limit) => Ok(Some(limit)),
            None => Err(invalid(name, format!("{name} must be a whole number of at least 1"))),
        },
    }
}

/// How the calls of each tool are watched over: the tools' `x_midstream`.
pub(crate) fn tool_policies(tools: Option<&[Value]>) -> Result<BTreeMap<String, ToolPolicy>, Reject> {
    let mut policies = BTreeMap::new();
    for (position, tool) in tools.unwrap_or_default().iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let asked = tool.get("x_midstream").or_else(|| function.get("x_midstream"));
        let (Some(asked), Some(name)) = (asked, function.get("name").and_then(Value::as_str)) else { continue };
        let policy = decode::<ToolPolicy>(asked).map_err(|reject| {
            let at = format!("tools[{position}].x_midstream");
            invalid(at.clone(), format!("{at}: {}", reject.message))
        })?;
        within_a_month(policy.timeout_ms, &format!("tools[{position}].x_midstream.timeout_ms"))?;
        policies.insert(name.to_owned(), policy);
    }
    Ok(policies)
}

/// What a word for how hard to think stands for; `at` is the field that has it.
fn effort<'a>(efforts: &'a Efforts, word: &str, at: &str) -> Result<&'a Effort, Reject> {
    efforts.get(word).ok_or_else(|| {
        let known = efforts.words().collect::<Vec<_>>().join(", ");
        invalid(at, format!("{at} is {word:?}, which the model does not know; it takes {known}"))
    })
}

/// How long the model may think from now on: a word, or a number of tokens.
pub(crate) fn thinking(asked: Option<&Value>, efforts: &Efforts) -> Result<Option<Thinking>, Reject> {
    let Some(asked) = asked.filter(|asked| !asked.is_null()) else { return Ok(None) };
    if let Some(tokens) = asked.get("budget_tokens").filter(|tokens| !tokens.is_null()) {
        let tokens = tokens.as_u64().and_then(|tokens| u32::try_from(tokens).ok());
        let text = "reasoning.budget_tokens must be a whole number of tokens";
        let budget_tokens = Some(tokens.ok_or_else(|| invalid("reasoning.budget_tokens", text))?);
        return Ok(Some(Thinking { budget_tokens, effort: None }));
    }
    let Some(word) = asked.get("effort").and_then(Value::as_str) else {
        let known = efforts.words().collect::<Vec<_>>().join(", ");
        return Err(invalid("reasoning", format!("reasoning takes budget_tokens, or effort as one of {known}")));
    };
    let budget_tokens = effort(efforts, word, "reasoning.effort")?.budget_tokens;
    Ok(Some(Thinking { budget_tokens, effort: Some(word.to_owned()) }))
}

/// How hard a request wants its answer thought about, by the word in the field `at`; and with it the template's
/// variables, which are recorded with the response, so that a later change of its budget does not change its prompt.
pub(crate) fn thought(
    word: Option<&str>,
    at: &str,
    asked: Option<&Map<String, Value>>,
    model: &ModelInfo,
) -> Result<(Option<Thinking>, Map<String, Value>), Reject> {
    let kwargs = asked.cloned().unwrap_or_default();
    let Some(word) = word else { return Ok((None, kwargs)) };
    let effort = effort(&model.efforts, word, at)?;
    let thinking = Thinking { budget_tokens: effort.budget_tokens, effort: Some(word.to_owned()) };
    Ok((Some(thinking), with_effort(kwargs, word, effort)))
}

/// Where the prompt ends, as users of vLLM say it.
pub(crate) fn prompt_end(adds: Option<bool>, continues: Option<bool>, input: &[Item]) -> Result<PromptEnd, Reject> {
    const NAME: &str = "continue_final_message";
    if continues != Some(true) {
        return Ok(PromptEnd::generation_prompt(adds.unwrap_or(true)));
    }
    if adds == Some(true) {
        let text = "continue_final_message and add_generation_prompt exclude each other; give one of them";
        return Err(invalid(NAME, text));
    }
    let says =
        |item: &&Item| matches!(item.body, ItemBody::Message { role: Role::Assistant, .. }) && !item.text().is_empty();
    input.last().filter(says).map(|_| PromptEnd::Message).ok_or_else(|| {
        invalid(NAME, "continue_final_message wants a last message of the assistant that has text and no calls")
    })
}

/// A tool's result as text.
pub(crate) fn tool_output(output: Option<&TextOr<ContentPart>>) -> Result<String, Reject> {
    match output {
        Some(output) => text_of(Some(output), "output"),
        None => Err(invalid("output", "output is missing; give what the model is to see")),
    }
}

/// The functions among the tools, in either API's shape; other kinds are ignored. With the choice `none` the
/// model sees none.
pub(crate) fn tools(tools: Option<&[Value]>, choice: Option<&Value>) -> Result<Vec<ToolDefinition>, Reject> {
    if choice.is_some_and(|choice| choice == "none") {
        return Ok(Vec::new());
    }
    let tools = tools.unwrap_or_default().iter().enumerate();
    let functions = tools.filter(|(_, tool)| tool.get("type").is_some_and(|kind| kind == "function"));
    functions.map(|(position, tool)| tool_definition(tool, position)).collect()
}

fn tool_definition(tool: &Value, position: usize) -> Result<ToolDefinition, Reject> {
    let (function, path) = match tool.get("function") {
        Some(function) => (function, format!("tools[{position}].function")),
        None => (tool, format!("tools[{position}]")),
    };
    let text = |name: &str| match function.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(invalid(format!("{path}.{name}"), format!("{path}.{name} must be a string"))),
    };
    let name = text("name")?.filter(|name| !name.is_empty());
    Ok(ToolDefinition {
        name: name.ok_or_else(|| invalid(format!("{path}.name"), format!("{path}.name is missing")))?,
        description: text("description")?,
        parameters: function.get("parameters").cloned().unwrap_or_default(),
    })
}

/// How urgent a request is: as its agent hints, else by its service tier; a hint beyond all levels is the last one.
pub(crate) fn priority(body: &Value) -> Result<Option<i8>, Reject> {
    match body.pointer("/nvext/agent_hints/priority") {
        None | Some(Value::Null) => Ok(match body.get("service_tier").and_then(Value::as_str) {
            Some("priority") => Some(TIER_LEVELS),
            Some("flex") => Some(-TIER_LEVELS),
            _ => None,
        }),
        Some(hint) => match hint.as_i64() {
            Some(level) => Ok(Some(level.clamp(i8::MIN.into(), i8::MAX.into()) as i8)),
            None => Err(invalid(HINT, format!("{HINT} is {hint}, but must be a whole number"))),
        },
    }
}

/// The stop strings.
pub(crate) fn stops(stop: Option<&TextOr<String>>) -> Result<Vec<String>, Reject> {
    let stops = match stop {
        None => Vec::new(),
        Some(TextOr::Text(text)) => vec![text.clone()],
        Some(TextOr::List(list)) => list.clone(),
    };
    if stops.len() > STOPS_MAX {
        let message = format!("stop has {} strings, but at most {STOPS_MAX} are taken", stops.len());
        return Err(invalid("stop", message));
    }
    match stops.iter().position(String::is_empty) {
        Some(position) => Err(invalid(format!("stop[{position}]"), "an empty stop string would end every answer")),
        None => Ok(stops),
    }
}

/// A token limit of at least one.
pub(crate) fn token_limit(limit: Option<u32>, name: &str) -> Result<Option<u32>, Reject> {
    match limit {
        Some(0) => Err(invalid(name, format!("{name} must be at least 1"))),
        limit => Ok(limit),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn urgent_is_what_the_hint_says_else_the_tier() {
        for (body, expected) in [
            (json!({}), None),
            (json!({"service_tier": "auto"}), None),
            (json!({"service_tier": "priority"}), Some(5)),
            (json!({"service_tier": "flex"}), Some(-5)),
            (json!({"nvext": {"agent_hints": {"priority": 3}}, "service_tier": "flex"}), Some(3)),
            (json!({"nvext": {"agent_hints": {"priority": 1000}}}), Some(127)),
            (json!({"nvext": {"agent_hints": {"priority": null}}}), None),
        ] {
            assert_eq!(priority(&body).unwrap(), expected, "{body}");
        }
        let refused = priority(&json!({"nvext": {"agent_hints": {"priority": 1.5}}})).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some(HINT));
    }
}
