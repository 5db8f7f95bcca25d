//! Folding events into a state. Total: it never fails and never decides.

use std::sync::Arc;

use super::event::{Event, NewResponse, Recorded};
use super::item::{Content, ItemBody, ItemStatus};
use super::state::{Intervention, InterventionStatus, OpenCall, OutputItem, Response, ResponseStatus, State};
use crate::ids::{ItemId, ResponseId};

impl State {
    /// Gives an event its place: the next seq and, for OpenAI's stream, the next number of its response.
    pub fn number(&self, event: Event, at_ms: u64) -> Recorded {
        let number = stream_response(&event).map(|id| self.response(id).map_or(0, |response| response.next_number));
        Recorded { seq: self.last_seq + 1, number, at_ms, event }
    }

    /// Folds one event in.
    pub fn apply(&mut self, recorded: &Recorded) {
        debug_assert_eq!(recorded.seq, self.last_seq + 1, "events are applied in order, each once");
        self.last_seq = recorded.seq;
        match &recorded.event {
            Event::ConversationCreated { id, principal, metadata, .. } => {
                self.id = Some(*id);
                self.principal.clone_from(principal);
                self.metadata.clone_from(metadata);
                self.created_ms = recorded.at_ms;
            }
            Event::ItemsAdded { items } => self.staged.extend_from_slice(items),
            Event::ResponseCreated(new) => self.apply_created(new, recorded),
            Event::ToolCallRequested { response_id, call_id, attempt } => {
                let name = self.response(*response_id).and_then(|response| {
                    response.calls().find(|(id, _)| *id == call_id).map(|(_, name)| name.to_owned())
                });
                self.open_calls.push(OpenCall {
                    response_id: *response_id,
                    call_id: call_id.clone(),
                    name: name.unwrap_or_default(),
                    attempt: *attempt,
                });
            }
            Event::ToolCallClosed { call_id, output, .. } => {
                self.open_calls.retain(|call| call.call_id != *call_id);
                self.staged.push(output.clone());
            }
            Event::InterventionAccepted { intervention_id, response_id, items } => {
                let accepted = Intervention {
                    response_id: *response_id,
                    items: items.clone(),
                    status: InterventionStatus::Accepted,
                    seq: recorded.seq,
                };
                self.interventions.insert(*intervention_id, accepted);
            }
            Event::InterventionCommitted { intervention_id, response_id, successor_id, cut } => {
                if let Some(intervention) = self.interventions.get_mut(intervention_id) {
                    intervention.status = InterventionStatus::Committed { successor_id: *successor_id, cut: *cut };
                    intervention.seq = recorded.seq;
                    self.staged.extend_from_slice(&intervention.items);
                }
                if let Some(response) = self.response_mut(*response_id) {
                    response.successor = Some(*successor_id);
                }
            }
            event => self.apply_to_response(event, recorded),
        }
        if recorded.number.is_some()
            && let Some(response) = stream_response(&recorded.event).and_then(|id| self.response_mut(id))
        {
            response.next_number += 1;
        }
    }

    fn apply_created(&mut self, new: &NewResponse, recorded: &Recorded) {
        let mut input = std::mem::take(&mut self.staged);
        input.extend_from_slice(&new.input);
        for item in &new.input {
            if let ItemBody::FunctionCallOutput { call_id, .. } = &item.body {
                self.open_calls.retain(|call| call.call_id != *call_id);
            }
        }
        self.responses.push(Arc::new(Response {
            id: new.id,
            previous: new.previous,
            created_ms: recorded.at_ms,
            created_seq: recorded.seq,
            ended_ms: None,
            config: new.config.clone(),
            input,
            output: Vec::new(),
            status: ResponseStatus::Queued,
            cancel_requested: false,
            generation: Some(recorded.seq),
            usage: super::event::Usage::default(),
            tail_tokens: Vec::new(),
            next_number: 0,
            ended_seq: None,
            attempts: 0,
            suspended: false,
            successor: None,
        }));
    }

    /// Events that change one response and nothing else.
    fn apply_to_response(&mut self, event: &Event, recorded: &Recorded) {
        let Some(response) = response_of(event).and_then(|id| self.response_mut(id)) else {
            return;
        };
        match event {
            Event::ResponseInProgress { prompt_tokens, cached_tokens, .. } => {
                response.status = ResponseStatus::InProgress;
                response.usage.input_tokens = *prompt_tokens;
                response.usage.cached_tokens = *cached_tokens;
            }
            Event::ResponseSuspended { .. } => response.suspended = true,
            Event::ResponseResumed { attempt, .. } => {
                response.suspended = false;
                response.attempts = *attempt;
                response.generation = Some(recorded.seq);
            }
            Event::OutputItemAdded { item, first_token, .. } => {
                let tokens = Vec::new();
                response.output.push(OutputItem { item: item.clone(), first_token: *first_token, tokens });
            }
            Event::OutputDelta { item_id, text, tokens, .. } => response.apply_delta(*item_id, text, tokens),
            Event::OutputItemDone { item_id, status, .. } => {
                if let Some(output) = response.output_mut(*item_id) {
                    output.item.status = *status;
                }
            }
            Event::CancelRequested { .. } => response.cancel_requested = true,
            Event::ResponseEnded { ending, tail_tokens, .. } => {
                response.status = ResponseStatus::Ended(ending.clone());
                response.usage.output_tokens += tail_tokens.len() as u32;
                response.tail_tokens.clone_from(tail_tokens);
                response.generation = None;
                response.ended_ms = Some(recorded.at_ms);
                response.ended_seq = Some(recorded.seq);
            }
            _ => {}
        }
    }
}

impl Response {
    fn output_mut(&mut self, id: ItemId) -> Option<&mut OutputItem> {
        self.output.iter_mut().rev().find(|output| output.item.id == id)
    }

    fn apply_delta(&mut self, item_id: ItemId, delta: &str, tokens: &[u32]) {
        self.attempts = if tokens.is_empty() { self.attempts } else { 0 };
        self.usage.output_tokens += tokens.len() as u32;
        let Some(output) = self.output_mut(item_id) else { return };
        output.tokens.extend_from_slice(tokens);
        match &mut output.item.body {
            ItemBody::Message { content, .. } => match content.last_mut() {
                Some(Content::Text { text }) => text.push_str(delta),
                None => content.push(Content::Text { text: delta.to_owned() }),
            },
            ItemBody::Reasoning { text } => {
                text.push_str(delta);
                self.usage.reasoning_tokens += tokens.len() as u32;
            }
            ItemBody::FunctionCall { arguments, .. } => arguments.push_str(delta),
            ItemBody::FunctionCallOutput { .. } => {}
        }
    }
}

/// The response an event belongs to, if one.
pub(super) fn response_of(event: &Event) -> Option<ResponseId> {
    match event {
        Event::ResponseCreated(new) => Some(new.id),
        Event::ResponseInProgress { response_id, .. }
        | Event::ResponseSuspended { response_id }
        | Event::ResponseResumed { response_id, .. }
        | Event::OutputItemAdded { response_id, .. }
        | Event::ContentPartAdded { response_id, .. }
        | Event::OutputDelta { response_id, .. }
        | Event::OutputDone { response_id, .. }
        | Event::ContentPartDone { response_id, .. }
        | Event::OutputItemDone { response_id, .. }
        | Event::ToolCallRequested { response_id, .. }
        | Event::ToolCallClosed { response_id, .. }
        | Event::CancelRequested { response_id }
        | Event::ResponseEnded { response_id, .. }
        | Event::InterventionAccepted { response_id, .. }
        | Event::InterventionCommitted { response_id, .. } => Some(*response_id),
        Event::ConversationCreated { .. } | Event::ItemsAdded { .. } => None,
    }
}

/// The response whose OpenAI-shaped stream shows this event, if one does.
fn stream_response(event: &Event) -> Option<ResponseId> {
    match event {
        Event::ResponseCreated(_)
        | Event::ResponseInProgress { .. }
        | Event::OutputItemAdded { .. }
        | Event::ContentPartAdded { .. }
        | Event::OutputDelta { .. }
        | Event::OutputDone { .. }
        | Event::ContentPartDone { .. }
        | Event::OutputItemDone { .. }
        | Event::ResponseEnded { .. } => response_of(event),
        _ => None,
    }
}

impl Event {
    /// The response it belongs to, if one.
    pub fn response_id(&self) -> Option<ResponseId> {
        response_of(self)
    }
}

impl OutputItem {
    /// Whether it joins the transcript: a call that was cut never runs and is never seen by the model.
    pub fn is_kept(&self) -> bool {
        !(matches!(self.item.body, ItemBody::FunctionCall { .. }) && self.item.status != ItemStatus::Completed)
    }
}
