//! From the core's types to the wire's: responses, items, conversations, interventions.

use serde_json::{Map, Value, json};

use super::seal::{Kept, sealed};
use super::tools;
use crate::actors::Listed;
use crate::conversation::{CallKind, CallStatus, Made, Toolbox, custom_input, title};
use crate::conversation::{
    Content, Ending, Intervention, InterventionStatus, Item, ItemBody, ItemStatus, Response, State, Usage,
};
use crate::conversation::{OutputItem, ResponseStatus, TokenLogprob};
use crate::engine::settings::{Sampling, units};
use crate::ids::InterventionId;
use crate::prompt::Role;
use crate::protocol::conversations as wire_conversation;
use crate::protocol::items::{Item as WireItem, Part};
use crate::protocol::logprobs::{Logprob, TopLogprob};
use crate::protocol::responses as wire;

/// A response as it stands in this state.
pub(crate) fn response(state: &State, response: &Response) -> wire::Response {
    let config = &response.config;
    let Sampling { temperature, top_p, .. } = config.sampling;
    let (error, reason) = match &response.status {
        ResponseStatus::Ended(Ending::Failed { error }) => (Some(error), None),
        ResponseStatus::Ended(Ending::Incomplete { reason }) => (None, Some(reason.clone())),
        ResponseStatus::Ended(Ending::Cancelled) => (None, Some("cancelled".to_owned())),
        _ => (None, None),
    };
    let completed = response.status == ResponseStatus::Ended(Ending::Completed);
    let mut echo = echoed(&config.echo);
    let (tools, shapes) = (&config.tools, &config.tool_shapes);
    let toolbox = || Toolbox { tools: tools.clone(), shapes: shapes.clone(), ..Toolbox::default() };
    let own = || tools::wire(&toolbox()).into();
    let tools = echo.shift_remove("tools").unwrap_or_else(own);
    wire::Response {
        id: response.id.to_string(),
        object: "response",
        created_at: response.created_ms / 1000,
        completed_at: response.ended_ms.filter(|_| completed).map(|at_ms| at_ms / 1000),
        status: response.status.as_str(),
        background: config.background,
        error: error.map(|error| wire::ResponseError { code: error.code.as_str(), message: error.message.clone() }),
        incomplete_details: reason.map(|reason| wire::IncompleteDetails { reason }),
        instructions: config.instructions.clone(),
        max_output_tokens: config.max_output_tokens,
        metadata: config.metadata.clone(),
        model: config.model.clone(),
        output: response.output.iter().filter(|it| !it.discarded).map(|it| output(response, it)).collect(),
        previous_response_id: response.previous.map(|id| id.to_string()),
        successor_id: response.successor.map(|id| id.to_string()),
        conversation: state.id.filter(|_| config.store).map(|id| wire::ConversationRef { id: id.to_string() }),
        store: config.store,
        temperature: widened(temperature),
        top_p: widened(top_p),
        tools,
        usage: response.status.is_terminal().then(|| usage(&response.usage)),
        echo,
    }
}

/// The fields that every response object has, with what the request said about them.
fn echoed(echo: &Map<String, Value>) -> Map<String, Value> {
    let defaults = json!({
        "tool_choice": "auto",
        "parallel_tool_calls": true,
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": null, "summary": null},
        "truncation": "disabled",
        "service_tier": "default",
        "top_logprobs": 0,
        "max_tool_calls": null,
        "prompt_cache_key": null,
        "safety_identifier": null,
        "user": null,
    });
    let mut fields = match defaults {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    fields.extend(echo.iter().map(|(name, value)| (name.clone(), value.clone())));
    fields
}

/// The number that the client wrote: 0.7 and not 0.699999988.
fn widened(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

fn usage(usage: &Usage) -> wire::Usage {
    wire::Usage {
        input_tokens: usage.input_tokens,
        input_tokens_details: wire::InputDetails { cached_tokens: usage.cached_tokens, cache_write_tokens: 0 },
        output_tokens: usage.output_tokens,
        output_tokens_details: wire::OutputDetails { reasoning_tokens: usage.reasoning_tokens },
        total_tokens: usage.input_tokens + usage.output_tokens,
        cost: usage.cost_nanos.map(units),
    }
}

/// An item of an answer, with what was asked for of its tokens, and of its reasoning.
pub(crate) fn output(response: &Response, output: &OutputItem) -> WireItem {
    let mut item = item(&output.item);
    let seal = || seal(response, output);
    match &mut item {
        WireItem::Message { content, .. } => {
            if let [Part::OutputText { logprobs, .. }] = &mut content[..] {
                *logprobs = self::logprobs(&output.logprobs);
            }
        }
        WireItem::Reasoning { encrypted_content, .. } => *encrypted_content = seal(),
        // A part of a summary must not be taken for one when it is brought back.
        WireItem::Compaction { encrypted_content, .. } => {
            let is_whole = output.item.status == ItemStatus::Completed;
            *encrypted_content = seal().filter(|_| is_whole).unwrap_or_default();
        }
        _ => {}
    }
    item
}

/// An item of an answer, sealed, once it is whole: where its response seals.
pub(crate) fn seal(response: &Response, output: &OutputItem) -> Option<String> {
    let key = response.config.seal.as_ref().filter(|_| output.item.status != ItemStatus::InProgress)?;
    let signed = match &output.item.body {
        ItemBody::Reasoning { made, .. } => made.clone(),
        _ => None,
    };
    let (fingerprint, tokens) = (response.config.fingerprint.clone(), output.tokens.clone());
    let made = signed.unwrap_or(Made { fingerprint, tokens, native: None });
    sealed(key, output.item.id, &Kept { text: output.item.text(), made })
}

/// How likely tokens were.
pub(crate) fn logprobs(logprobs: &[TokenLogprob]) -> Vec<Logprob> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let top = |(bytes, logprob): &(Vec<u8>, f32)| TopLogprob {
        token: text(bytes),
        logprob: widened(*logprob),
        bytes: bytes.clone(),
    };
    let one = |it: &TokenLogprob| Logprob {
        token: text(&it.bytes),
        logprob: widened(it.logprob),
        bytes: it.bytes.clone(),
        top_logprobs: it.top.iter().map(top).collect(),
    };
    logprobs.iter().map(one).collect()
}

/// An item.
pub(crate) fn item(item: &Item) -> WireItem {
    let (id, status) = (item.wire_id(), item.status.as_str());
    match &item.body {
        ItemBody::Message { role, content } => WireItem::Message {
            id,
            status,
            role: role_text(*role),
            content: content.iter().map(|Content::Text { text }| part(*role, text)).collect(),
        },
        ItemBody::Reasoning { text, .. } => WireItem::Reasoning {
            id,
            summary: Vec::new(),
            content: reasoning_parts(text),
            encrypted_content: None,
            status,
        },
        ItemBody::FunctionCall { call_id, name, arguments, call_kind, namespace, .. } => {
            let (name, namespace) = (name.clone(), namespace.clone());
            call(*call_kind, arguments, CallHead { id, call_id: call_id.to_string(), name, namespace, status })
        }
        ItemBody::FunctionCallOutput { call_id, output, call_kind, .. } => {
            result(*call_kind, id, call_id.to_string(), output.clone(), status)
        }
        ItemBody::Compaction { .. } => WireItem::Compaction { id, encrypted_content: String::new() },
        ItemBody::AdditionalTools { toolbox, .. } => {
            WireItem::AdditionalTools { id, role: "developer", tools: tools::wire(toolbox) }
        }
    }
}

/// What calls of every kind have.
struct CallHead {
    id: String,
    call_id: String,
    name: String,
    namespace: Option<String>,
    status: &'static str,
}

/// A call, in the shape of its kind.
fn call(kind: CallKind, arguments: &str, head: CallHead) -> WireItem {
    let CallHead { id, call_id, name, namespace, status } = head;
    match kind {
        CallKind::Function => {
            WireItem::FunctionCall { id, call_id, name, namespace, arguments: arguments.to_owned(), status }
        }
        CallKind::Custom => {
            WireItem::CustomToolCall { id, call_id, name, namespace, input: custom_input(arguments), status }
        }
        CallKind::ToolSearch => {
            let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.into());
            WireItem::ToolSearchCall { id, call_id, execution: "client", arguments, status }
        }
        CallKind::LocalShell => {
            let mut action = json!({"type": "exec", "command": [], "env": {}});
            if let (Some(action), Ok(Value::Object(asked))) = (action.as_object_mut(), serde_json::from_str(arguments))
            {
                action.extend(asked);
            }
            WireItem::LocalShellCall { id, call_id, action, status }
        }
    }
}

/// The result of a call, in the shape of its kind.
fn result(kind: CallKind, id: String, call_id: String, output: String, status: &'static str) -> WireItem {
    match kind {
        CallKind::Function => WireItem::FunctionCallOutput { id, call_id, output, status },
        CallKind::Custom => WireItem::CustomToolCallOutput { id, call_id, output, status },
        CallKind::ToolSearch => {
            let tools = serde_json::from_str(&output).unwrap_or_else(|_| json!([]));
            WireItem::ToolSearchOutput { id, call_id, execution: "client", tools, status }
        }
        CallKind::LocalShell => WireItem::LocalShellCallOutput { id, call_id, output, status },
    }
}

fn reasoning_parts(text: &str) -> Vec<Part> {
    let part = Part::ReasoningText { text: text.to_owned() };
    if text.is_empty() { Vec::new() } else { vec![part] }
}

fn part(role: Role, text: &str) -> Part {
    match role {
        Role::Assistant => Part::output(text),
        _ => Part::InputText { text: text.to_owned() },
    }
}

/// Who speaks, as the wire says it.
pub(crate) fn role_text(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

/// Items in their order.
pub(crate) fn items(items: &[Item]) -> Vec<WireItem> {
    items.iter().map(item).collect()
}

/// A conversation.
pub(crate) fn conversation(state: &State) -> wire_conversation::Conversation {
    wire_conversation::Conversation {
        id: state.id.map(|id| id.to_string()).unwrap_or_default(),
        object: "conversation",
        created_at: state.created_ms / 1000,
        metadata: state.metadata.clone(),
    }
}

/// A page of conversations.
pub(crate) fn conversations(listed: &[Listed], has_more: bool) -> wire_conversation::ConversationList {
    let entry = |listed: &Listed| wire_conversation::ListedConversation {
        title: title(&listed.state),
        updated_at: listed.last_ms / 1000,
        conversation: conversation(&listed.state),
    };
    let data: Vec<_> = listed.iter().map(entry).collect();
    let id = |entry: Option<&wire_conversation::ListedConversation>| Some(entry?.conversation.id.clone());
    wire_conversation::ConversationList {
        object: "list",
        first_id: id(data.first()),
        last_id: id(data.last()),
        data,
        has_more,
    }
}

/// The whole transcript: inputs, outputs that are kept, and what waits for the next response.
pub(crate) fn transcript(state: &State) -> Vec<Item> {
    let mut items = Vec::new();
    for response in &state.responses {
        items.extend(response.input.iter().cloned());
        let kept = response.output.iter().filter(|output| output.is_kept());
        items.extend(kept.map(|output| output.item.clone()));
    }
    items.extend(state.next_input());
    items
}

/// What became of an intervention.
pub(crate) fn intervention(
    state: &State,
    id: InterventionId,
    intervention: &Intervention,
) -> wire_conversation::Intervention {
    let (successor_id, error) = match &intervention.status {
        InterventionStatus::Committed { successor_id, .. } => (Some(successor_id.to_string()), None),
        InterventionStatus::Failed { error } => (None, Some(json!({"code": error.code, "message": error.message}))),
        _ => (None, None),
    };
    let status = intervention.status.as_str();
    let decided = !intervention.status.is_undecided();
    let outcome = if intervention.enqueued && successor_id.is_some() { "enqueued" } else { status };
    wire_conversation::Intervention {
        object: "intervention",
        id: id.to_string(),
        response_id: intervention.response_id.to_string(),
        outcome: decided.then_some(outcome),
        successor_id,
        status,
        seq: intervention.seq,
        input: items(&intervention.items),
        error,
        durable: state.response_even_deleted(intervention.response_id).is_none_or(|response| response.config.store),
    }
}

/// Where the conversation stands, and which event is the first that can be read.
pub(crate) fn snapshot(state: &State, oldest_seq: u64) -> wire_conversation::Snapshot {
    wire_conversation::Snapshot {
        kind: "conversation.snapshot",
        conversation_id: state.id.map(|id| id.to_string()),
        status: state.status(),
        phase: state.phase(),
        active_response: state.active().map(|response| response.id.to_string()),
        last_seq: state.last_seq,
        oldest_seq,
        epoch: state.epoch(),
        pending_interventions: state.undecided().iter().map(|(id, _)| id.to_string()).collect(),
        queued_responses: state.queue.iter().map(|response| response.id.to_string()).collect(),
        open_calls: state
            .open_calls()
            .map(|call| wire_conversation::OpenCall {
                response_id: call.response_id.to_string(),
                call_id: call.call_id.to_string(),
                name: call.name.clone(),
                attempt: call.attempt,
                claimed_until_ms: match call.status {
                    CallStatus::Claimed { lease_until_ms } => Some(lease_until_ms),
                    _ => None,
                },
            })
            .collect(),
    }
}
