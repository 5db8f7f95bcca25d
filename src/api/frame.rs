//! The two encodings of an event: a frame of the conversation's own stream, and an event of OpenAI's.
//!
//! Both are pure functions of the event and the state behind it, so a replay gives the same bytes as the live
//! stream did.

use serde_json::{Value, json};

use super::object;
use crate::conversation::{CallKind, CopiedTurn, FlushPolicy, TokenLogprob, custom_input, custom_input_behind};
use crate::conversation::{
    Ending, Event, Item, ItemBody, ItemStatus, OutputItem, Recorded, Response, ResponseStatus, State,
};
use crate::ids::{InterventionId, ItemId, ResponseId};
use crate::protocol::items::Part;
use crate::protocol::responses::{StreamBody, StreamEvent};

/// The type of the frame that has a whole call in it.
pub(crate) const DISPATCH: &str = "tool_call_dispatch";
/// The type of the one that has a whole piece of reasoning in it.
pub(crate) const REASONING_DISPATCH: &str = "reasoning_dispatch";

/// The frame of an event on the conversation's own stream. `state` is the fold up to and including it.
pub(crate) fn frame(state: &State, recorded: &Recorded) -> Value {
    let mut frame = match openai(state, recorded) {
        Some(event) => serde_json::to_value(event).unwrap_or_default(),
        None => native(state, &recorded.event),
    };
    let response_id = recorded.event.response_id();
    let stored = response_id.and_then(|id| state.response(id)).is_none_or(|response| response.config.store);
    frame["seq"] = json!(recorded.seq);
    if let Some(id) = response_id {
        frame["response_id"] = json!(id);
    }
    let relaxed = response_id.and_then(|id| state.response(id)).is_some_and(|response| {
        recorded.event.is_growth() && response.config.policy.durability == FlushPolicy::Relaxed
    });
    frame["durable"] = json!(stored && !relaxed);
    frame
}

/// The event of OpenAI's stream of one response, where that stream shows it.
pub(crate) fn openai(state: &State, recorded: &Recorded) -> Option<StreamEvent> {
    let sequence_number = recorded.number?;
    let response = state.response(recorded.event.response_id()?)?;
    let whole = || Box::new(object::response(state, response));
    let body = match &recorded.event {
        Event::ResponseCreated(_) => StreamBody::Created { response: whole() },
        Event::ResponseQueued { .. } => StreamBody::Queued { response: whole() },
        Event::ResponseInProgress { .. } => StreamBody::InProgress { response: whole() },
        Event::ResponseEnded { ending, .. } => match ending {
            Ending::Completed => StreamBody::Completed { response: whole() },
            Ending::Failed { .. } => StreamBody::Failed { response: whole() },
            Ending::Incomplete { .. } | Ending::Cancelled => StreamBody::Incomplete { response: whole() },
        },
        Event::OutputItemAdded { item, .. } => {
            StreamBody::OutputItemAdded { output_index: response.output_item(item.id)?.0, item: object::item(item) }
        }
        Event::OutputItemDone { item_id, .. } => {
            let (output_index, output) = response.output_item(*item_id)?;
            let item = object::output(response, output);
            StreamBody::OutputItemDone { output_index, item }
        }
        Event::ContentPartAdded { item_id, .. } => content_part(response, *item_id, false)?,
        Event::ContentPartDone { item_id, .. } => content_part(response, *item_id, true)?,
        Event::OutputDelta { item_id, text, logprobs, .. } => delta(response, *item_id, text, logprobs)?,
        Event::OutputDone { item_id, .. } => done(response, *item_id)?,
        _ => return None,
    };
    Some(StreamEvent { body, sequence_number })
}

fn content_part(response: &Response, item_id: ItemId, done: bool) -> Option<StreamBody> {
    let (output_index, output) = response.output_item(item_id)?;
    let item = &output.item;
    let text = if done { item.text() } else { String::new() };
    let part = match &item.body {
        ItemBody::Reasoning { .. } => Part::ReasoningText { text },
        _ if done => Part::OutputText { text, annotations: [], logprobs: object::logprobs(&output.logprobs) },
        _ => Part::output(text),
    };
    let (item_id, content_index) = (item.wire_id(), 0);
    Some(if done {
        StreamBody::ContentPartDone { item_id, output_index, content_index, part }
    } else {
        StreamBody::ContentPartAdded { item_id, output_index, content_index, part }
    })
}

fn delta(response: &Response, item_id: ItemId, text: &str, logprobs: &[TokenLogprob]) -> Option<StreamBody> {
    let (output_index, OutputItem { item, .. }) = response.output_item(item_id)?;
    let (item_id, content_index, delta) = (item.wire_id(), 0, text.to_owned());
    Some(match &item.body {
        ItemBody::Reasoning { .. } => StreamBody::ReasoningTextDelta { item_id, output_index, content_index, delta },
        ItemBody::FunctionCall { arguments, call_kind, .. } => match call_kind {
            CallKind::Function => StreamBody::FunctionCallArgumentsDelta { item_id, output_index, delta },
            CallKind::Custom => {
                let delta = custom_input_behind(arguments, delta.len());
                StreamBody::CustomToolCallInputDelta { item_id, output_index, delta }
            }
            CallKind::ToolSearch | CallKind::LocalShell => return None,
        },
        _ => {
            let logprobs = object::logprobs(logprobs);
            StreamBody::OutputTextDelta { item_id, output_index, content_index, delta, logprobs }
        }
    })
}

fn done(response: &Response, item_id: ItemId) -> Option<StreamBody> {
    let (output_index, OutputItem { item, logprobs, .. }) = response.output_item(item_id)?;
    let (item_id, content_index, text) = (item.wire_id(), 0, item.text());
    Some(match &item.body {
        ItemBody::Reasoning { .. } => StreamBody::ReasoningTextDone { item_id, output_index, content_index, text },
        ItemBody::FunctionCall { name, call_kind, .. } => match call_kind {
            CallKind::Function => {
                StreamBody::FunctionCallArgumentsDone { item_id, output_index, name: name.clone(), arguments: text }
            }
            CallKind::Custom => {
                StreamBody::CustomToolCallInputDone { item_id, output_index, input: custom_input(&text) }
            }
            CallKind::ToolSearch | CallKind::LocalShell => return None,
        },
        _ => {
            let logprobs = object::logprobs(logprobs);
            StreamBody::OutputTextDone { item_id, output_index, content_index, text, logprobs }
        }
    })
}

/// Frames that OpenAI's stream does not have.
fn native(state: &State, event: &Event) -> Value {
    match event {
        Event::ConversationCreated { forked_from, .. } => json!({
            "type": "conversation.created",
            "conversation": object::conversation(state),
            "forked_from": forked_from,
        }),
        Event::TurnsCopied { turns } => json!({
            "type": "conversation.turns.copied",
            "turns": turns.iter().map(copied_turn).collect::<Vec<_>>(),
        }),
        Event::ItemsAdded { items } => json!({"type": "conversation.items.added", "items": object::items(items)}),
        Event::ConversationUpdated { metadata } => json!({"type": "conversation.updated", "metadata": metadata}),
        Event::ConversationRewound { seq, epoch } => {
            json!({"type": "conversation.rewound", "rewound_seq": seq, "epoch": epoch})
        }
        Event::ConversationDeleted {} => json!({"type": "conversation.deleted"}),
        Event::ConversationSuspended {} => json!({"type": "conversation.suspended"}),
        Event::ConversationResumed {} => json!({"type": "conversation.resumed"}),
        Event::ConversationBudgetLow { max_conversation_tokens, left_tokens, .. } => json!({
            "type": "conversation.budget_low",
            "max_conversation_tokens": max_conversation_tokens,
            "left_tokens": left_tokens,
        }),
        Event::ItemDeleted { item_id } => json!({"type": "conversation.item.deleted", "item_id": item_id}),
        Event::ResponseDeleted { .. } => json!({"type": "response.deleted"}),
        Event::ResponseDequeued { .. } => json!({"type": "response.dequeued"}),
        Event::ResponseUnattended { until_ms, .. } => json!({"type": "response.unattended", "until_ms": until_ms}),
        Event::ResponseAttended { .. } => json!({"type": "response.attended"}),
        Event::ResponsePaused { .. } => json!({"type": "response.paused"}),
        // Only of items that are shown whole: tool searches, shell calls, summaries.
        Event::OutputDelta { response_id, item_id, .. } => json!({
            "type": "response.output_item.growing",
            "item_id": wire_item_id(state, *response_id, *item_id),
            "output_index": output_index(state, *response_id, *item_id),
        }),
        Event::OutputDone { response_id, item_id } => json!({
            "type": "response.output_item.grown",
            "item_id": wire_item_id(state, *response_id, *item_id),
            "output_index": output_index(state, *response_id, *item_id),
        }),
        Event::OutputItemDiscarded { response_id, item_id } => json!({
            "type": "response.output_item.interrupted",
            "item_id": wire_item_id(state, *response_id, *item_id),
            "output_index": output_index(state, *response_id, *item_id),
        }),
        Event::ResponseSuspended { .. } => json!({"type": "response.suspended"}),
        Event::ResponseResumed { attempt, exact, .. } => {
            json!({"type": "response.resumed", "attempt": attempt, "exact": exact})
        }
        Event::CancelRequested { .. } => json!({"type": "response.cancel.requested"}),
        event => native_to_part(state, event),
    }
}

fn copied_turn(turn: &CopiedTurn) -> Value {
    let output: Vec<_> = turn.output.iter().map(|output| object::item(&output.item)).collect();
    json!({"response_id": turn.response_id, "input": object::items(&turn.input), "output": output})
}

/// A whole call or a whole piece of reasoning in one frame, for clients that ask for it. Of a call it says what
/// `tool_call.requested` does, where the call is new; one that is no JSON cannot be made.
pub(crate) fn dispatch(state: &State, event: &Event) -> Option<Value> {
    match event {
        Event::ToolCallRequested { response_id, call_id, attempt: 1 } => {
            let mut outputs = state.response(*response_id)?.output.iter().enumerate().rev();
            let (index, call) = outputs.find(|(_, output)| is_call(&output.item, &call_id.0))?;
            let (name, arguments) = name_and_arguments(&call.item);
            serde_json::from_str::<Value>(arguments?).ok()?;
            let mut frame = json!({
                "type": DISPATCH,
                "response_id": response_id,
                "index": index,
                "call_id": call_id,
                "name": name,
                "arguments": arguments,
            });
            if let ItemBody::FunctionCall { namespace: Some(namespace), .. } = &call.item.body {
                frame["namespace"] = namespace.as_str().into();
            }
            Some(frame)
        }
        Event::OutputItemDone { response_id, item_id, status: ItemStatus::Completed, .. } => {
            let (index, output) = state.response(*response_id)?.output_item(*item_id)?;
            let ItemBody::Reasoning { text, .. } = &output.item.body else { return None };
            Some(json!({
                "type": REASONING_DISPATCH,
                "response_id": response_id,
                "index": index,
                "item_id": output.item.wire_id(),
                "text": text,
            }))
        }
        _ => None,
    }
}

/// Frames about a call.
fn native_to_part(state: &State, event: &Event) -> Value {
    match event {
        Event::ToolCallRequested { response_id, call_id, attempt } => {
            let call = state.response(*response_id).and_then(|response| {
                let outputs = response.output.iter().rev();
                outputs.map(|output| &output.item).find(|item| is_call(item, &call_id.0))
            });
            let (name, arguments) = call.map_or((None, None), name_and_arguments);
            json!({
                "type": "tool_call.requested",
                "call_id": call_id,
                "attempt": attempt,
                "name": name,
                "arguments": arguments,
            })
        }
        Event::ToolCallClosed { call_id, attempt, reason, output, .. } => json!({
            "type": "tool_call.closed",
            "call_id": call_id,
            "attempt": attempt,
            "reason": reason,
            "by_seq": state.last_seq,
            "output": object::item(output),
        }),
        Event::ToolCallClaimed { call_id, attempt, lease_until_ms, .. } => json!({
            "type": "tool_call.claimed",
            "call_id": call_id,
            "attempt": attempt,
            "lease_until": lease_until_ms,
        }),
        Event::ToolResultAccepted { call_id, attempt, output, .. } => json!({
            "type": "tool_result.accepted",
            "call_id": call_id,
            "attempt": attempt,
            "output": object::item(output),
        }),
        Event::ToolResultDiscarded { call_id, attempt, reason, by_seq, .. } => json!({
            "type": "tool_result.discarded",
            "call_id": call_id,
            "attempt": attempt,
            "reason": reason,
            "by_seq": by_seq,
        }),
        event => native_to_instruction(state, event),
    }
}

/// Frames about an instruction.
fn native_to_instruction(state: &State, event: &Event) -> Value {
    match event {
        Event::InterventionAccepted { intervention_id, items, when, tools, enqueued, thinking, .. } => json!({
            "type": "intervention.accepted",
            "intervention_id": intervention_id,
            "input": object::items(items),
            "when": when,
            "tools": tools,
            "enqueued": enqueued,
            "reasoning": thinking,
        }),
        Event::InterventionPending { intervention_id, .. } => json!({
            "type": "intervention.pending",
            "intervention_id": intervention_id,
            "waiting_for": state.open_calls().map(|call| &call.call_id).collect::<Vec<_>>(),
        }),
        Event::InterventionFailed { intervention_id, error, .. } => json!({
            "type": "intervention.failed",
            "intervention_id": intervention_id,
            "error": {"code": error.code, "message": error.message},
            "input": input_of(state, *intervention_id),
        }),
        Event::InterventionSuperseded { intervention_id, by, .. } => json!({
            "type": "intervention.superseded",
            "intervention_id": intervention_id,
            "by": by,
            "input": input_of(state, *intervention_id),
        }),
        Event::InterventionWithdrawn { intervention_id, .. } => json!({
            "type": "intervention.withdrawn",
            "intervention_id": intervention_id,
            "input": input_of(state, *intervention_id),
        }),
        Event::InterventionCommitted { intervention_id, response_id, successor_id, cut } => json!({
            "type": "intervention.committed",
            "intervention_id": intervention_id,
            "successor_id": successor_id,
            "cut": cut.map(|cut| json!({
                "item_id": cut.item_id.map(|id| wire_item_id(state, *response_id, id)),
                "token_index": cut.token_index,
            })),
        }),
        // Only a journal that names an unknown response or item comes here.
        _ => json!({"type": "conversation.event"}),
    }
}

/// What an instruction said, given back.
fn input_of(state: &State, id: InterventionId) -> Value {
    let items = state.interventions.get(&id).map(|intervention| object::items(&intervention.items));
    serde_json::to_value(items).unwrap_or_default()
}

fn output_index(state: &State, response_id: ResponseId, id: ItemId) -> Option<usize> {
    state.response(response_id)?.output_item(id).map(|(index, _)| index)
}

fn is_call(item: &Item, wanted: &str) -> bool {
    matches!(&item.body, ItemBody::FunctionCall { call_id, .. } if call_id.0 == wanted)
}

fn name_and_arguments(item: &Item) -> (Option<&str>, Option<&str>) {
    match &item.body {
        ItemBody::FunctionCall { name, arguments, .. } => (Some(name), Some(arguments)),
        _ => (None, None),
    }
}

fn wire_item_id(state: &State, response_id: ResponseId, id: ItemId) -> String {
    let output = state.response(response_id).and_then(|response| response.output_item(id));
    output.map_or_else(|| id.to_string(), |(_, output)| output.item.wire_id())
}

/// Whether the event is the last of this response's stream.
pub(crate) fn is_end_of(recorded: &Recorded, id: ResponseId) -> bool {
    matches!(recorded.event, Event::ResponseEnded { response_id, .. } if response_id == id)
}

/// How the response ended, if it failed without having said anything.
pub(crate) fn silent_failure(response: &Response) -> Option<&crate::conversation::ResponseError> {
    match &response.status {
        ResponseStatus::Ended(Ending::Failed { error }) if response.output.is_empty() => Some(error),
        _ => None,
    }
}
