//! From the wire's input to the core's: items, tools, sampling, limits. Everything behind this is valid.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::body::decode;
use super::constraint;
use super::errors::invalid;
pub(crate) use super::hints::{extras, priority};
use super::references::{ITEM_REFERENCE, Referred, is_reference};
use super::seal::{Kept, Seal};
use super::tools::{self, Noted};
use crate::conversation::{
    CallKind, Content, Formats, Item, ItemBody, ItemStatus, Policies, Reject, Thinking, custom_arguments,
};
use crate::engine::ModelInfo;
use crate::engine::settings::Constraint;
use crate::ids::{CallId, FreshIds, ItemId};
use crate::prompt::{Effort, Efforts, PromptEnd, Role, with_effort};
use crate::protocol::TextOr;
use crate::protocol::chat::ChatMessage;
use crate::protocol::items::{ContentPart, InputItem};

/// Most stop strings of one request.
const STOPS_MAX: usize = 16;

/// A completed item with a fresh id: what clients call their items is not ours to keep.
fn fresh_item(body: ItemBody, fresh: &mut FreshIds) -> Item {
    Item { id: ItemId::draw(fresh), status: ItemStatus::Completed, body }
}

/// What items may stand for that do not say it themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known<'a> {
    /// Opens what was sealed; without it nothing is opened.
    pub(crate) seal: Option<&'a Seal>,
    /// What references stand for; without it none is taken.
    pub(crate) referred: Option<&'a Referred>,
}

/// The input of a request: a bare text is a user message.
pub(crate) fn items(
    input: Option<&TextOr<InputItem>>,
    field: &str,
    known: Known<'_>,
    fresh: &mut FreshIds,
) -> Result<Vec<Item>, Reject> {
    match input {
        None => Ok(Vec::new()),
        Some(TextOr::Text(text)) if text.is_empty() => Err(invalid(field, format!("{field} is empty; say something"))),
        Some(TextOr::Text(text)) => Ok(vec![Item::message(ItemId::draw(fresh), Role::User, text)]),
        Some(TextOr::List(list)) => item_list(list, field, known, fresh),
    }
}

/// A list of input items.
pub(crate) fn item_list(
    list: &[InputItem],
    field: &str,
    known: Known<'_>,
    fresh: &mut FreshIds,
) -> Result<Vec<Item>, Reject> {
    let mut items = Vec::with_capacity(list.len());
    for (position, wire) in list.iter().enumerate() {
        let path = format!("{field}[{position}]");
        if wire.kind.as_deref() == Some(COMPACTION_TRIGGER) && (field != "input" || position + 1 < list.len()) {
            let at = format!("{path}.type");
            let text = format!("{at}: {COMPACTION_TRIGGER} asks for a summary as the last item of a request's input");
            return Err(invalid(at, text));
        }
        let body = item_body(wire, &path, known)?;
        let found = match &body {
            Some(ItemBody::FunctionCallOutput { output, call_kind: CallKind::ToolSearch, .. }) => {
                Some(if is_reference(wire) { serde_json::from_str(output).ok() } else { wire.tools.clone() })
            }
            _ => None,
        };
        items.extend(body.map(|body| fresh_item(body, fresh)));
        // What a search found can be called behind its result.
        if let Some(found) = found {
            let list = found.as_ref().and_then(Value::as_array).map(Vec::as_slice);
            let toolbox = tools::declared_at(list, &format!("{path}.tools"))?.toolbox;
            items.push(fresh_item(ItemBody::AdditionalTools { toolbox, found: true }, fresh));
        }
    }
    Ok(items)
}

/// Reads a request with a list of items in this field. Of an item of a kind that is not known nothing but the kind is
/// read: what its other fields are is not known either.
pub(crate) fn decode_with_items<T: DeserializeOwned>(body: &Value, field: &str) -> Result<T, Reject> {
    let unknown = |item: &Value| {
        let kind = item["type"].as_str().filter(|kind| !KNOWN.contains(kind));
        kind.map(|kind| json!({"type": kind}))
    };
    let list = body[field].as_array();
    if list.is_none_or(|list| list.iter().all(|item| unknown(item).is_none())) {
        return decode(body);
    }
    let mut body = body.clone();
    let list = body[field].as_array_mut();
    list.into_iter().flatten().for_each(|item| *item = unknown(item).unwrap_or_else(|| item.take()));
    decode(&body)
}

/// The kinds of items that mean nothing here.
pub(crate) fn unknown_kinds(input: Option<&TextOr<InputItem>>) -> Noted {
    let mut noted = Noted::default();
    let Some(TextOr::List(list)) = input else { return noted };
    let kinds = list.iter().filter_map(|item| item.kind.as_deref()).filter(|kind| !KNOWN.contains(kind));
    kinds.for_each(|kind| noted.note(kind));
    noted
}

/// The kinds of items that [`item_body`] reads.
const KNOWN: [&str; 14] = [
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "tool_search_call",
    "tool_search_output",
    "local_shell_call",
    "local_shell_call_output",
    "additional_tools",
    "compaction",
    COMPACTION_TRIGGER,
    ITEM_REFERENCE,
];

/// What an item says; nothing for reasoning that nobody can read, and for kinds that mean nothing here.
fn item_body(wire: &InputItem, path: &str, known: Known<'_>) -> Result<Option<ItemBody>, Reject> {
    let kept = || known.seal?.open(wire.encrypted_content.as_deref()?);
    if is_reference(wire) {
        return referred(wire, path, known.referred);
    }
    Ok(Some(match wire.kind.as_deref().unwrap_or("message") {
        "message" => message(wire, path)?,
        "reasoning" => return reasoning(wire, path, kept()),
        "function_call" => call(wire, path, CallKind::Function)?,
        "custom_tool_call" => call(wire, path, CallKind::Custom)?,
        "tool_search_call" => call(wire, path, CallKind::ToolSearch)?,
        "local_shell_call" => call(wire, path, CallKind::LocalShell)?,
        "function_call_output" => result(wire, path, CallKind::Function)?,
        "custom_tool_call_output" => result(wire, path, CallKind::Custom)?,
        "tool_search_output" => result(wire, path, CallKind::ToolSearch)?,
        "local_shell_call_output" => result(wire, path, CallKind::LocalShell)?,
        "additional_tools" => {
            let list = wire.tools.as_ref().and_then(Value::as_array).map(Vec::as_slice);
            ItemBody::AdditionalTools {
                toolbox: tools::declared_at(list, &format!("{path}.tools"))?.toolbox,
                found: false,
            }
        }
        "compaction" => ItemBody::Compaction { text: kept().ok_or_else(|| unopened(path))?.text },
        COMPACTION_TRIGGER => {
            let content = vec![Content::Text { text: SUMMARISE.to_owned() }];
            ItemBody::Message { role: Role::User, content }
        }
        _ => return Ok(None),
    }))
}

/// What a reference stands for; nothing where that is in front of the request already.
fn referred(wire: &InputItem, path: &str, referred: Option<&Referred>) -> Result<Option<ItemBody>, Reject> {
    let found = referred.and_then(|referred| referred.get(wire.id.as_deref()?));
    found.cloned().ok_or_else(|| {
        invalid(format!("{path}.type"), format!("{path}: references to items are not taken here; send the item itself"))
    })
}

/// A summary cannot be left out as reasoning can: everything that it stands for would be missing.
fn unopened(path: &str) -> Reject {
    let at = format!("{path}.encrypted_content");
    invalid(at.clone(), format!("{at} was not sealed by this server, or was changed since; send the transcript itself"))
}

/// The last item of a request whose answer is to stand for the transcript.
pub(crate) const COMPACTION_TRIGGER: &str = "compaction_trigger";

/// What the model is asked for then.
const SUMMARISE: &str = "Stop here and write a summary of this whole conversation for another model, which will go on \
    with the work and see nothing else of it. Say what was asked for and what is decided, what was done and found, \
    with the names, paths, commands and values that are still needed, what did not work, and what is to be done next. \
    Write the summary only, and call no tool.";

/// Whether the answer is to stand for the transcript.
pub(crate) fn compacts(input: Option<&TextOr<InputItem>>) -> bool {
    let Some(TextOr::List(list)) = input else { return false };
    list.last().is_some_and(|item| item.kind.as_deref() == Some(COMPACTION_TRIGGER))
}

fn missing(path: &str, name: &str) -> Reject {
    invalid(format!("{path}.{name}"), format!("{path}.{name} is missing"))
}

fn message(wire: &InputItem, path: &str) -> Result<ItemBody, Reject> {
    let role = match wire.role.as_deref().ok_or_else(|| missing(path, "role"))? {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        role => {
            let message = format!("{path}.role: {role:?} is none of system, developer, user, assistant");
            return Err(invalid(format!("{path}.role"), message));
        }
    };
    let known =
        wire.content.as_ref().map(|content| if role == Role::Assistant { said(content) } else { content.clone() });
    let text = text_of(known.as_ref(), &format!("{path}.content"))?;
    Ok(ItemBody::Message { role, content: vec![Content::Text { text }] })
}

fn reasoning(wire: &InputItem, path: &str, kept: Option<Kept>) -> Result<Option<ItemBody>, Reject> {
    if let Some(Kept { text, made }) = kept {
        return Ok(Some(ItemBody::Reasoning { text, made: Some(made) }));
    }
    let mut text = text_of(wire.content.as_ref().map(said).as_ref(), &format!("{path}.content"))?;
    if text.is_empty() {
        text =
            texts(&known_parts(wire.summary.as_deref().unwrap_or_default()), &format!("{path}.summary"))?.join("\n\n");
    }
    Ok((!text.is_empty()).then_some(ItemBody::Reasoning { text, made: None }))
}

/// A call of the model's, as the client shows it: the arguments as the model wrote them, or what they stand for.
fn call(wire: &InputItem, path: &str, kind: CallKind) -> Result<ItemBody, Reject> {
    let json = |value: &Option<Value>| match value {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Null) | None => None,
        Some(value) => Some(value.to_string()),
    };
    let own_name = || wire.name.clone().ok_or_else(|| missing(path, "name"));
    let (name, arguments) = match kind {
        CallKind::Function => (own_name()?, json(&wire.arguments).ok_or_else(|| missing(path, "arguments"))?),
        CallKind::Custom => {
            (own_name()?, custom_arguments(wire.input.as_deref().ok_or_else(|| missing(path, "input"))?))
        }
        CallKind::ToolSearch => (tools::TOOL_SEARCH.to_owned(), json(&wire.arguments).unwrap_or_default()),
        CallKind::LocalShell => {
            let mut action = wire.action.clone().unwrap_or_default();
            action.as_object_mut().map(|fields| fields.shift_remove("type"));
            (tools::LOCAL_SHELL.to_owned(), action.to_string())
        }
    };
    let (call_id, namespace) = (call_id(wire, path)?, wire.namespace.clone());
    Ok(ItemBody::FunctionCall { call_id, native_id: None, name, arguments, call_kind: kind, namespace })
}

fn result(wire: &InputItem, path: &str, kind: CallKind) -> Result<ItemBody, Reject> {
    let output = match (&wire.output, kind) {
        // What was found is the result.
        (None, CallKind::ToolSearch) => wire.tools.as_ref().map(Value::to_string).unwrap_or_default(),
        (None | Some(Value::Null), _) => return Err(missing(path, "output")),
        (Some(output), _) => result_text(output, &format!("{path}.output"))?,
    };
    let call_id = call_id(wire, path)?;
    Ok(ItemBody::FunctionCallOutput { call_id, output, synthetic: false, is_error: false, call_kind: kind })
}

/// The call's id; OpenAI's shell names it by the item's.
fn call_id(wire: &InputItem, path: &str) -> Result<CallId, Reject> {
    let id = wire.call_id.as_ref().or(wire.id.as_ref());
    id.cloned().map(CallId).ok_or_else(|| missing(path, "call_id"))
}

/// A tool's result as text. What is no text cannot be shown to the model, and says so in its place: a tool that gave a
/// picture once must not end the conversation.
fn result_text(output: &Value, path: &str) -> Result<String, Reject> {
    let parts = match decode::<TextOr<ContentPart>>(output) {
        Ok(TextOr::Text(text)) => return Ok(text),
        Ok(TextOr::List(parts)) => parts,
        Err(reject) => {
            let at = reject.param.filter(|at| at != ".").map_or_else(|| path.to_owned(), |at| format!("{path}{at}"));
            return Err(invalid(at, format!("{path}: give a text, or a list of parts that have texts")));
        }
    };
    let text = |part: &ContentPart| match &part.text {
        Some(text) => text.clone(),
        None => left_out(&part.kind),
    };
    Ok(parts.iter().map(text).collect())
}

/// A content of the model's own. Parts of kinds that are not known were made elsewhere, and would end the thread for
/// good.
fn said(content: &TextOr<ContentPart>) -> TextOr<ContentPart> {
    match content {
        TextOr::Text(text) => TextOr::Text(text.clone()),
        TextOr::List(parts) => TextOr::List(known_parts(parts)),
    }
}

fn known_parts(parts: &[ContentPart]) -> Vec<ContentPart> {
    parts.iter().filter(|part| TEXT_KINDS.contains(&part.kind.as_str()) || part.kind == REFUSAL).cloned().collect()
}

/// The text of a content, parts joined.
fn text_of(content: Option<&TextOr<ContentPart>>, path: &str) -> Result<String, Reject> {
    match content {
        None => Ok(String::new()),
        Some(TextOr::Text(text)) => Ok(text.clone()),
        Some(TextOr::List(parts)) => Ok(texts(parts, path)?.concat()),
    }
}

/// Kinds of parts that are text.
const TEXT_KINDS: [&str; 5] = ["text", "input_text", "output_text", "summary_text", "reasoning_text"];
/// The kind of a part that refuses.
const REFUSAL: &str = "refusal";

/// Kinds of parts that some models see or hear: without them an answer would be about something else.
const MEDIA: [&str; 9] =
    ["image", "image_url", "input_image", "audio", "input_audio", "video_url", "input_video", "file", "input_file"];

fn texts<'a>(parts: &'a [ContentPart], path: &str) -> Result<Vec<Cow<'a, str>>, Reject> {
    let texts = parts.iter().enumerate().map(|(position, part)| {
        let text = match part.kind.as_str() {
            kind if TEXT_KINDS.contains(&kind) => part.text.as_deref(),
            REFUSAL => part.refusal.as_deref(),
            kind if MEDIA.contains(&kind) => {
                let at = format!("{path}[{position}].type");
                let message = format!("{at}: the model reads text, and no parts of the type {kind:?}; send text");
                return Err(invalid(at, message));
            }
            kind => return Ok(Cow::Owned(left_out(kind))),
        };
        text.map(Cow::Borrowed).ok_or_else(|| {
            let at = format!("{path}[{position}].text");
            invalid(at.clone(), format!("{at} is missing"))
        })
    });
    texts.collect()
}

/// What the model sees in the place of a part.
fn left_out(kind: &str) -> String {
    format!("[a part of the type {kind} is left out: this model reads text]")
}

/// The kinds of parts in what was asked that mean nothing here.
pub(crate) fn unknown_parts<'a>(contents: impl Iterator<Item = Option<&'a TextOr<ContentPart>>>) -> Noted {
    let mut noted = Noted::default();
    for content in contents.flatten() {
        let TextOr::List(parts) = content else { continue };
        let kinds = parts.iter().map(|part| part.kind.as_str());
        let is_known = |kind: &str| TEXT_KINDS.contains(&kind) || kind == REFUSAL || MEDIA.contains(&kind);
        kinds.filter(|kind| !is_known(kind)).for_each(|kind| noted.note(kind));
    }
    noted
}

/// The transcript of a chat request as items.
pub(crate) fn chat_items(messages: &[ChatMessage], fresh: &mut FreshIds) -> Result<Vec<Item>, Reject> {
    let mut items = Vec::with_capacity(messages.len());
    let mut called: HashMap<String, CallKind> = HashMap::new();
    for (position, message) in messages.iter().enumerate() {
        let path = format!("messages[{position}]");
        for body in chat_bodies(message, &path, &called)? {
            if let ItemBody::FunctionCall { call_id, call_kind, .. } = &body {
                called.insert(call_id.0.clone(), *call_kind);
            }
            items.push(fresh_item(body, fresh));
        }
    }
    Ok(items)
}

/// What a message says behind calls with these ids.
fn chat_bodies(message: &ChatMessage, path: &str, called: &HashMap<String, CallKind>) -> Result<Vec<ItemBody>, Reject> {
    let text = text_of(message.content.as_ref(), &format!("{path}.content"))?;
    let role = match message.role.as_str() {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        "assistant" => return assistant_bodies(message, text, path),
        "tool" => {
            let at = format!("{path}.tool_call_id");
            let call_id = message.tool_call_id.clone().map(CallId);
            let call_id = call_id.ok_or_else(|| invalid(at.clone(), format!("{at} is missing")))?;
            let call_kind = called.get(&call_id.0).copied().unwrap_or_default();
            let (output, synthetic, is_error) = (text, false, false);
            return Ok(vec![ItemBody::FunctionCallOutput { call_id, output, synthetic, is_error, call_kind }]);
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
    let reasoning = message.reasoning_content.as_deref().or(message.reasoning.as_ref().and_then(Value::as_str));
    if let Some(text) = reasoning.filter(|text| !text.is_empty()).map(str::to_owned) {
        bodies.push(ItemBody::Reasoning { text, made: None });
    }
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    if !text.is_empty() || calls.is_empty() && bodies.is_empty() {
        let content = vec![Content::Text { text }];
        bodies.push(ItemBody::Message { role: Role::Assistant, content });
    }
    for (position, call) in calls.iter().enumerate() {
        let (name, arguments, call_kind) = match (&call.function, &call.custom) {
            (Some(function), _) => (function.name.clone(), function.arguments.clone(), CallKind::Function),
            (None, Some(custom)) => (custom.name.clone(), custom_arguments(&custom.input), CallKind::Custom),
            (None, None) => return Err(missing(&format!("{path}.tool_calls[{position}]"), "function")),
        };
        let call_id = CallId(call.id.clone());
        bodies.push(ItemBody::FunctionCall { call_id, native_id: None, name, arguments, call_kind, namespace: None });
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

pub(crate) fn within_a_month(asked_ms: Option<u64>, name: &str) -> Result<(), Reject> {
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

/// How much is to be said, as a variable of the template: one that does not know it is not changed by it.
pub(crate) fn with_verbosity(mut kwargs: Map<String, Value>, verbosity: Option<&Value>) -> Map<String, Value> {
    const NAME: &str = "verbosity";
    if let Some(word) = verbosity.and_then(Value::as_str).filter(|_| !kwargs.contains_key(NAME)) {
        kwargs.insert(NAME.to_owned(), word.into());
    }
    kwargs
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
