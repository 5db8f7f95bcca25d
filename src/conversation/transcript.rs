//! The transcript as a chat template sees it.

use serde_json::Value;

use super::event::Ending;
use super::item::{Item, ItemBody, ItemStatus};
use super::purpose::Purpose;
use super::state::{OutputItem, Response, ResponseStatus, State};
use super::tools::{CallKind, found_tools, visible_name};
use crate::ids::ResponseId;
use crate::prompt::{Message, PromptEnd, Role, Thought, ToolCall};

/// What a summary says in front of itself, to a model that sees nothing of what it stands for.
const SUMMARISED: &str = "The conversation until here was replaced by this summary of it:\n\n";

/// What the result of a tool says in front of itself that failed.
const FAILED: &str = "The tool failed:\n";

/// The responses up to and including this one, in order: each is a turn of the transcript.
pub fn turns(state: &State, upto: ResponseId) -> impl Iterator<Item = &Response> {
    let count = state.responses.iter().position(|response| response.id == upto).map_or(0, |place| place + 1);
    state.responses[..count].iter().map(AsRef::as_ref)
}

/// The messages that `response` answers: everything before it and its own input.
pub fn messages(state: &State, response: &Response) -> Vec<Message> {
    messages_within(state, response, 0)
}

/// As [`messages`], where the conversation forgets its reasoning when it rests: before a response that was asked for
/// more than so many milliseconds after the one before it had ended, there is none. With 0 it forgets nothing.
///
/// When a response was asked for is recorded, so that a restart forgets the same.
pub fn messages_within(state: &State, response: &Response, rest_ms: u64) -> Vec<Message> {
    gather(state, response, rest_ms, false)
}

/// The messages that `response` answers, and its answer.
pub fn messages_with_answer(state: &State, response: &Response, rest_ms: u64) -> Vec<Message> {
    gather(state, response, rest_ms, true)
}

/// The tokens of answers that clients brought along, sealed, in their order: as far as this model made them.
pub fn known_runs<'a>(state: &'a State, response: &Response, fingerprint: &str) -> Vec<&'a [u32]> {
    let items = turns(state, response.id).flat_map(|turn| &turn.input);
    let runs = items.filter_map(|item| match &item.body {
        ItemBody::Reasoning { made: Some(made), .. } if made.fingerprint == fingerprint => Some(&made.tokens[..]),
        _ => None,
    });
    runs.collect()
}

fn gather(state: &State, response: &Response, rest_ms: u64, with_answer: bool) -> Vec<Message> {
    let mut messages = Vec::new();
    if let Some(instructions) = &response.config.instructions {
        messages.push(Message::text(Role::System, instructions));
    }
    let forgotten = forgotten(state, response, rest_ms);
    let answered = |turn: &Response| turn.id != response.id || with_answer;
    let turns: Vec<_> = turns(state, response.id).collect();
    let summary = turns.iter().rposition(|turn| answered(turn) && is_summary(turn));
    for (place, turn) in turns.into_iter().enumerate() {
        let is_summed_up = summary.is_some_and(|summary| place <= summary);
        let kept = |item: &Item| {
            let is_known = place >= forgotten || !matches!(item.body, ItemBody::Reasoning { .. });
            let is_over = answered(turn) && turn.status.is_terminal();
            is_known && (!is_summed_up || said(item)) && !(is_over && asks(turn, item))
        };
        let mut builder = Builder { messages: &mut messages, open: None };
        turn.input.iter().filter(|item| kept(item)).for_each(|item| builder.add(item));
        // An answer that goes on with the last message is one with it.
        if turn.config.prompt_end != PromptEnd::Message {
            builder.close();
        }
        if answered(turn) {
            let output = turn.output.iter().filter(|output| output.is_kept()).map(|output| &output.item);
            let shown = |item: &Item| match (turn.config.purpose, &item.body) {
                (Purpose::Summary, ItemBody::Compaction { .. }) => summary == Some(place),
                // What was thought of a summary is of no use without it, nor with it.
                (Purpose::Summary, _) => false,
                _ => kept(item),
            };
            output.filter(|item| shown(item)).for_each(|item| builder.add(item));
        }
        builder.close();
    }
    name_tool_results(&mut messages);
    messages
}

/// Whether a turn's answer is a whole summary: it stands for what was before it.
fn is_summary(turn: &Response) -> bool {
    let is_whole = |output: &OutputItem| {
        matches!(output.item.body, ItemBody::Compaction { .. }) && output.item.status == ItemStatus::Completed
    };
    // A copied turn has always ended well.
    turn.config.purpose == Purpose::Summary
        && turn.status == ResponseStatus::Ended(Ending::Completed)
        && turn.output.iter().any(is_whole)
}

/// What stays of a turn that a summary stands for, as a client has it that keeps its transcript itself: what users and
/// applications said.
fn said(item: &Item) -> bool {
    matches!(&item.body, ItemBody::Message { role, .. } if *role != Role::Assistant)
}

/// Whether the item asks for a summary, and nobody said it: the last of the input of a turn that is for one.
fn asks(turn: &Response, item: &Item) -> bool {
    turn.config.purpose == Purpose::Summary && turn.input.last().is_some_and(|last| last.id == item.id)
}

/// How many turns from the first lie before the last long rest.
fn forgotten(state: &State, response: &Response, rest_ms: u64) -> usize {
    let turns: Vec<_> = turns(state, response.id).collect();
    let rested = |pair: &[&Response]| {
        let ended_ms = pair[0].ended_ms.unwrap_or(pair[1].created_ms);
        // A tool that took long is no rest: its call's reasoning is still needed.
        let asks = |item: &Item| matches!(item.body, ItemBody::Message { role: Role::User, .. });
        pair[1].created_ms.saturating_sub(ended_ms) > rest_ms && pair[1].input.iter().any(asks)
    };
    if rest_ms == 0 { 0 } else { turns.windows(2).rposition(rested).map_or(0, |place| place + 1) }
}

/// Gathers neighbouring assistant items into messages.
struct Builder<'a> {
    messages: &'a mut Vec<Message>,
    open: Option<Message>,
}

impl Builder<'_> {
    fn add(&mut self, item: &Item) {
        match &item.body {
            ItemBody::Message { role: Role::Assistant, .. } => {
                // Text behind a call is a message of its own, or the order would be lost.
                self.assistant(|message| message.tool_calls.is_empty()).content.push_str(&item.text());
            }
            ItemBody::Message { role, .. } => {
                self.close();
                self.messages.push(Message::text(*role, item.text()));
            }
            ItemBody::Reasoning { text, made } => {
                let message = self.assistant(|message| message.content.is_empty() && message.tool_calls.is_empty());
                let native = made.as_ref().and_then(|made| Some((&made.fingerprint, made.native.as_ref()?)));
                // Without a text it is for its maker alone.
                if native.is_none() || !text.is_empty() {
                    message.reasoning_content.get_or_insert_default().push_str(text);
                }
                let thought = |(maker, native): (&String, &Value)| Thought {
                    maker: maker.clone(),
                    text: text.clone(),
                    native: native.clone(),
                };
                message.thoughts.extend(native.map(thought));
            }
            ItemBody::FunctionCall { call_id, native_id, name, arguments, namespace, .. } => {
                let (id, native_id, arguments) = (call_id.0.clone(), native_id.clone(), arguments.clone());
                let call = ToolCall { id, native_id, name: visible_name(namespace.as_deref(), name), arguments };
                self.assistant(|_| true).tool_calls.push(call);
            }
            ItemBody::FunctionCallOutput { call_id, output, call_kind, is_error, .. } => {
                self.close();
                let mut message = match call_kind {
                    CallKind::ToolSearch => Message::text(Role::Tool, found_tools(output)),
                    // No template has a place for it.
                    _ if *is_error => Message::text(Role::Tool, format!("{FAILED}{output}")),
                    _ => Message::text(Role::Tool, output),
                };
                message.tool_call_id = Some(call_id.0.clone());
                self.messages.push(message);
            }
            ItemBody::Compaction { text } => {
                self.close();
                self.messages.push(Message::text(Role::User, format!("{SUMMARISED}{text}")));
            }
            ItemBody::AdditionalTools { .. } => {}
        }
    }

    /// The open assistant message if `fits`, else a new one.
    fn assistant(&mut self, fits: impl Fn(&Message) -> bool) -> &mut Message {
        if self.open.as_ref().is_some_and(|open| !fits(open)) {
            self.close();
        }
        self.open.get_or_insert_with(|| Message::text(Role::Assistant, ""))
    }

    fn close(&mut self) {
        self.messages.extend(self.open.take());
    }
}

/// Some templates want the tool's name on its result.
fn name_tool_results(messages: &mut [Message]) {
    let names: Vec<(String, String)> = messages
        .iter()
        .flat_map(|message| &message.tool_calls)
        .map(|call| (call.id.clone(), call.name.clone()))
        .collect();
    for message in messages.iter_mut().filter(|message| message.role == Role::Tool) {
        message.name =
            names.iter().find(|(id, _)| Some(id) == message.tool_call_id.as_ref()).map(|(_, name)| name.clone());
    }
}
