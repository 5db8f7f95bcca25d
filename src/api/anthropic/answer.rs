//! A response as a message: its blocks in the order in which they were generated, why it ended, and its tokens.

use serde_json::{Value, json};

use super::marks::Marked;
use crate::api::object::seal;
use crate::conversation::{Ending, Item, ItemBody, ItemStatus, OutputItem, Purpose, Response, ResponseStatus};
use crate::engine::settings::units;
use crate::ids::ResponseId;
use crate::protocol::messages::{AppliedEdits, Block, CacheCreation, Message, MessageEnd, OutputTokensDetails, Usage};

/// What the client wants of an answer besides.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    /// What was thought is given sealed only.
    pub(super) omits_thinking: bool,
    /// Whole calls are told once more, in a stream.
    pub(super) dispatches: bool,
    /// What was left out of its prompt, where the request asks for that.
    pub(super) edits: Option<AppliedEdits>,
    /// Tokens of its prompt that are to be kept in the cache.
    pub(super) marked: Marked,
    /// Names the request where the answer breaks off.
    pub(super) request_id: String,
}

/// The answer as it ended.
pub(super) fn message(response: &Response, shown: &Shown) -> Message {
    let end = end(response);
    let outputs = response.output.iter().filter(|output| !output.discarded);
    Message {
        content: outputs.filter_map(|output| block(response, output, shown)).collect(),
        stop_reason: Some(end.stop_reason),
        stop_sequence: end.stop_sequence,
        ..opened(response, shown)
    }
}

/// The message before anything was generated.
pub(super) fn opened(response: &Response, shown: &Shown) -> Message {
    Message {
        id: message_id(response.id),
        kind: "message",
        role: "assistant",
        model: response.config.model.clone(),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage: usage(response, shown),
        context_management: shown.edits.clone(),
    }
}

/// The message's id: the response's digits.
fn message_id(id: ResponseId) -> String {
    id.to_string().replacen("resp_", "msg_", 1)
}

/// A whole block; none of what says nothing.
fn block(response: &Response, output: &OutputItem, shown: &Shown) -> Option<Block> {
    let text = output.item.text();
    match &output.item.body {
        ItemBody::Reasoning { .. } => {
            let signature = seal(response, output).unwrap_or_default();
            let thinking = if shown.omits_thinking { String::new() } else { text };
            Some(Block::Thinking { thinking, signature })
        }
        // One that was cut off is here too, as streams show it: why the message stopped says that nobody may run it.
        ItemBody::FunctionCall { .. } => call(&output.item, input(&text)),
        _ => (!text.is_empty()).then_some(Block::Text { text, citations: None }),
    }
}

/// A call with this input.
pub(super) fn call(item: &Item, input: Value) -> Option<Block> {
    let ItemBody::FunctionCall { call_id, name, .. } = &item.body else { return None };
    Some(Block::ToolUse { id: call_id.to_string(), name: name.clone(), input })
}

/// What a tool is called with: an object always, and an empty one where nothing is said yet. What a model wrote that is
/// none stands in one, marked as Anthropic's clients mark it when they give it back.
pub(super) fn input(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        _ if arguments.trim().is_empty() => json!({}),
        Ok(Value::Object(fields)) => fields.into(),
        _ => json!({"INVALID_JSON": arguments}),
    }
}

/// Why the message ended.
pub(super) fn end(response: &Response) -> MessageEnd {
    let calls = |output: &OutputItem| {
        matches!(output.item.body, ItemBody::FunctionCall { .. }) && output.item.status == ItemStatus::Completed
    };
    let most = response.config.max_output_tokens;
    let stop_reason = match &response.status {
        ResponseStatus::Ended(Ending::Incomplete { reason }) if reason == "max_output_tokens" => {
            let reached = most.is_none_or(|most| response.usage.output_tokens >= most);
            if reached { "max_tokens" } else { "model_context_window_exceeded" }
        }
        ResponseStatus::Ended(Ending::Incomplete { reason }) => cut(reason),
        _ if response.config.purpose == Purpose::Prefill => "max_tokens",
        ResponseStatus::Ended(Ending::Completed) if response.output.iter().any(calls) => "tool_use",
        ResponseStatus::Ended(Ending::Completed) if response.stop_string.is_some() => "stop_sequence",
        _ => "end_turn",
    };
    let stop_sequence = response.stop_string.clone().filter(|_| stop_reason == "stop_sequence");
    MessageEnd { stop_reason, stop_sequence }
}

/// Why a message ended that was cut for another reason than its own bound.
fn cut(reason: &str) -> &'static str {
    match reason {
        "max_conversation_tokens" => "max_tokens",
        "content_filter" => "refusal",
        // Somebody else or a policy ended it: what there is of it can be gone on with.
        _ => "pause_turn",
    }
}

/// Tokens so far.
pub(super) fn usage(response: &Response, shown: &Shown) -> Usage {
    let usage = &response.usage;
    let created = |marked: u32| marked.min(usage.input_tokens).saturating_sub(usage.cached_tokens);
    let (created, hour) = (created(shown.marked.all), created(shown.marked.hour));
    Usage {
        input_tokens: usage.input_tokens.saturating_sub(usage.cached_tokens + created),
        cache_creation_input_tokens: created,
        cache_creation: CacheCreation { ephemeral_5m_input_tokens: created - hour, ephemeral_1h_input_tokens: hour },
        cache_read_input_tokens: usage.cached_tokens,
        output_tokens: usage.output_tokens,
        output_tokens_details: OutputTokensDetails { thinking_tokens: usage.reasoning_tokens },
        service_tier: "standard",
        cost: usage.cost_nanos.map(units),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_gone_on_with_is_not_called_a_pause() {
        for (reason, word) in [
            ("max_conversation_tokens", "max_tokens"),
            ("content_filter", "refusal"),
            ("steered", "pause_turn"),
            ("interrupted", "pause_turn"),
            ("disconnected", "pause_turn"),
            ("max_unattended_tokens", "pause_turn"),
        ] {
            assert_eq!(cut(reason), word, "{reason}");
        }
    }
}
