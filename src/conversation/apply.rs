//! Folding events into a state. Total: it never fails and never decides.

use std::sync::Arc;

use super::event::{Event, NewResponse, Recorded, TokenLogprob};
use super::item::{Content, Item, ItemBody, ItemStatus};
use super::state::{
    Call, CallStatus, Intervention, InterventionStatus, OutputItem, Response, ResponseStatus, State, Unattended,
};
use crate::ids::{CallId, ItemId, ResponseId};

impl State {
    /// Gives an event its place: the next seq and, for OpenAI's stream, the next number of its response.
    pub fn number(&self, event: Event, at_ms: u64) -> Recorded {
        let shows = |id: &ResponseId| self.response(*id).is_none_or(|response| response.streams(&event));
        let number = stream_response(&event).filter(shows);
        let number = number.map(|id| self.response(id).map_or(0, |response| response.next_number));
        Recorded { seq: self.last_seq + 1, number, at_ms, event }
    }

    /// Folds in the next event of a conversation that is read whole.
    pub fn apply_next(&mut self, recorded: &Recorded) {
        debug_assert_eq!(recorded.seq, self.last_seq + 1, "events are applied in order, none is left out");
        self.apply(recorded);
    }

    /// Folds one event in: the next one, or, of events that were trimmed, the next that is kept.
    pub fn apply(&mut self, recorded: &Recorded) {
        debug_assert!(recorded.seq > self.last_seq, "events are applied in order, each once");
        self.last_seq = recorded.seq;
        let suspends = matches!(recorded.event, Event::ResponseSuspended { .. } | Event::ConversationSuspended {});
        self.suspended = suspends;
        match &recorded.event {
            Event::ConversationCreated { id, principal, tenant, metadata, defaults, template_ms, .. } => {
                self.id = Some(*id);
                self.principal.clone_from(principal);
                self.tenant.clone_from(tenant);
                self.metadata.clone_from(metadata);
                self.defaults = *defaults;
                self.created_ms = recorded.at_ms;
                self.template_ms = template_ms.unwrap_or(recorded.at_ms);
            }
            Event::ConversationUpdated { metadata } => self.metadata.clone_from(metadata),
            Event::ConversationRewound { seq, epoch } => self.rewinds.push((*epoch, *seq)),
            Event::ConversationDeleted {} => self.deleted = true,
            Event::ItemsAdded { items } => self.staged.extend_from_slice(items),
            Event::TurnsCopied { turns } => self.apply_copied(turns, recorded),
            Event::ItemDeleted { item_id } => self.delete_item(*item_id),
            Event::ResponseCreated(new) => self.apply_created(new, recorded),
            Event::ResponseDequeued { response_id } => self.apply_dequeued(*response_id, recorded.seq),
            Event::ConversationBudgetLow { max_conversation_tokens, .. } => {
                self.warned_of_budget = Some(*max_conversation_tokens);
            }
            event => self.apply_to_part(event, recorded),
        }
        if let Event::OutputDelta { tokens, .. } | Event::ResponseEnded { tail_tokens: tokens, .. } = &recorded.event {
            self.generated_tokens += tokens.len() as u64;
        }
        if let Some(number) = recorded.number
            && let Some(response) = stream_response(&recorded.event).and_then(|id| self.response_mut(id))
        {
            // Where events were trimmed, not every number is there.
            response.next_number = number + 1;
        }
    }

    /// Events about a call, an instruction or one response.
    fn apply_to_part(&mut self, event: &Event, recorded: &Recorded) {
        match event {
            Event::ToolCallRequested { .. }
            | Event::ToolCallClaimed { .. }
            | Event::ToolResultAccepted { .. }
            | Event::ToolResultDiscarded { .. }
            | Event::ToolCallClosed { .. } => self.apply_to_call(event, recorded),
            Event::InterventionAccepted { .. }
            | Event::InterventionPending { .. }
            | Event::InterventionFailed { .. }
            | Event::InterventionSuperseded { .. }
            | Event::InterventionWithdrawn { .. }
            | Event::InterventionCommitted { .. } => self.apply_to_intervention(event, recorded.seq),
            event => self.apply_to_response(event, recorded),
        }
    }

    fn apply_created(&mut self, new: &NewResponse, recorded: &Recorded) {
        let response = Response::new(new, recorded);
        if new.enqueued {
            self.queue.push(Arc::new(response));
        } else {
            self.begin_turn(response, recorded.seq);
        }
    }

    fn apply_dequeued(&mut self, id: ResponseId, seq: u64) {
        if let Some(place) = self.queue.iter().position(|waiting| waiting.id == id) {
            let mut response = Arc::unwrap_or_clone(self.queue.remove(place));
            response.previous = self.responses.last().map(|last| last.id);
            self.begin_turn(response, seq);
        }
    }

    /// The response's turn has come: its input is what waited for it, then its own. Results stand first, in the
    /// order of their calls.
    fn begin_turn(&mut self, mut response: Response, seq: u64) {
        let own = std::mem::take(&mut response.input);
        let (mut answers, own): (Vec<Item>, Vec<Item>) =
            own.into_iter().partition(|item| item.answers().is_some_and(|id| self.is_open(id)));
        for call in &mut self.calls {
            if let Some(place) = answers.iter().position(|item| item.answers() == Some(&call.call_id)) {
                (call.status, call.seq) = (CallStatus::Completed, seq);
                response.input.push(answers.remove(place));
            }
            response.input.extend(call.output.take());
        }
        response.input.append(&mut self.staged);
        response.input.extend(own);
        response.generation = Some(seq);
        self.responses.push(Arc::new(response));
    }

    fn is_open(&self, call_id: &CallId) -> bool {
        self.call(call_id).is_some_and(|call| call.status.is_open())
    }

    /// Takes an item out of the transcript; of a call and its result, both.
    fn delete_item(&mut self, item_id: ItemId) {
        let given = self.responses.iter().flat_map(|response| &response.input).chain(&self.staged);
        let made = self.responses.iter().flat_map(|response| &response.output).map(|output| &output.item);
        let results = self.calls.iter().filter_map(|call| call.output.as_ref());
        let found = given.chain(made).chain(results).find(|item| item.id == item_id);
        let call_id = found.and_then(|item| item.calls().or(item.answers())).cloned();
        let is_gone = |item: &Item| {
            item.id == item_id
                || call_id.is_some() && (item.calls() == call_id.as_ref() || item.answers() == call_id.as_ref())
        };
        self.calls.retain(|call| Some(&call.call_id) != call_id.as_ref());
        self.staged.retain(|item| !is_gone(item));
        for response in &mut self.responses {
            let mut outputs = response.output.iter().map(|output| &output.item);
            if response.input.iter().any(is_gone) || outputs.any(is_gone) {
                let response = Arc::make_mut(response);
                response.input.retain(|item| !is_gone(item));
                response.output.retain(|output| !is_gone(&output.item));
            }
        }
    }

    fn apply_to_call(&mut self, event: &Event, recorded: &Recorded) {
        if let Event::ToolCallRequested { response_id, call_id, attempt } = event
            && *attempt == 1
        {
            let response = self.response_even_deleted(*response_id);
            let name = response.and_then(|response| response.calls().find(|(id, _)| *id == call_id));
            let name = name.map(|(_, name)| name.to_owned()).unwrap_or_default();
            let policy = response.and_then(|it| it.config.tool_policies.get(&it.visible_name_of(call_id)?));
            let policy = policy.copied().unwrap_or_default();
            self.calls.push(Call {
                response_id: *response_id,
                call_id: call_id.clone(),
                name,
                attempt: 1,
                status: CallStatus::Requested,
                policy,
                due_ms: policy.timeout_ms.map(|timeout_ms| recorded.at_ms.saturating_add(timeout_ms)),
                output: None,
                seq: recorded.seq,
                closed: None,
                discarded_attempt: 0,
            });
            return;
        }
        let call = call_of(event).and_then(|id| self.calls.iter_mut().rev().find(|call| call.call_id == *id));
        let Some(call) = call else { return };
        match event {
            Event::ToolCallRequested { attempt, .. } => {
                (call.status, call.attempt) = (CallStatus::Requested, *attempt);
            }
            Event::ToolCallClaimed { lease_until_ms, .. } => {
                call.status = CallStatus::Claimed { lease_until_ms: *lease_until_ms };
            }
            Event::ToolResultAccepted { output, .. } => {
                (call.status, call.output) = (CallStatus::Answered, Some(output.clone()));
            }
            Event::ToolCallClosed { reason, output, .. } => {
                let was_claimed = matches!(call.status, CallStatus::Claimed { .. });
                call.status = if was_claimed { CallStatus::Unknown } else { CallStatus::Cancelled };
                (call.closed, call.output) = (Some(reason.clone()), Some(output.clone()));
            }
            Event::ToolResultDiscarded { attempt, .. } => {
                // The event that decided the call stays named.
                call.discarded_attempt = *attempt;
                return;
            }
            _ => return,
        }
        call.seq = recorded.seq;
    }

    fn apply_to_intervention(&mut self, event: &Event, seq: u64) {
        if let Event::InterventionAccepted { intervention_id, response_id, items, when, tools, enqueued, thinking } =
            event
        {
            let accepted = Intervention {
                response_id: *response_id,
                items: items.clone(),
                when: *when,
                tools: *tools,
                enqueued: *enqueued,
                thinking: thinking.clone(),
                accepted_seq: seq,
                status: InterventionStatus::Accepted,
                seq,
            };
            self.interventions.insert(*intervention_id, Arc::new(accepted));
            return;
        }
        let (id, status) = match event {
            Event::InterventionPending { intervention_id, .. } => (intervention_id, InterventionStatus::Pending),
            Event::InterventionFailed { intervention_id, error, .. } => {
                (intervention_id, InterventionStatus::Failed { error: error.clone() })
            }
            Event::InterventionSuperseded { intervention_id, by, .. } => {
                (intervention_id, InterventionStatus::Superseded { by: *by })
            }
            Event::InterventionWithdrawn { intervention_id, .. } => (intervention_id, InterventionStatus::Withdrawn),
            Event::InterventionCommitted { intervention_id, successor_id, cut, .. } => {
                (intervention_id, InterventionStatus::Committed { successor_id: *successor_id, cut: *cut })
            }
            _ => return,
        };
        let Some(intervention) = self.interventions.get_mut(id).map(Arc::make_mut) else { return };
        (intervention.status, intervention.seq) = (status, seq);
        if let InterventionStatus::Committed { successor_id, .. } = intervention.status {
            self.staged.extend_from_slice(&intervention.items);
            let (response_id, thinking) = (intervention.response_id, intervention.thinking.clone());
            if let Some(response) = self.response_mut(response_id) {
                if response_id == successor_id {
                    response.config.thinking = thinking;
                } else {
                    response.successor = Some(successor_id);
                }
            }
        }
    }

    /// Events that change one response and nothing else.
    fn apply_to_response(&mut self, event: &Event, recorded: &Recorded) {
        let Some(response) = response_of(event).and_then(|id| self.response_mut(id)) else {
            return;
        };
        match event {
            Event::ResponseInProgress { prompt_tokens, cached_tokens, prompt, .. } => {
                response.status = ResponseStatus::InProgress;
                // A sign of life says nothing of it.
                if prompt.is_some() {
                    response.prompt.clone_from(prompt);
                }
                response.usage.input_tokens = *prompt_tokens;
                response.usage.cached_tokens = *cached_tokens;
            }
            Event::ResponseSuspended { .. } => response.suspended = true,
            Event::ResponseUnattended { until_ms, .. } => {
                let since_token = response.unattended.map_or(response.usage.output_tokens, |left| left.since_token);
                response.unattended = Some(Unattended { until_ms: *until_ms, since_token });
            }
            Event::ResponseAttended { .. } => response.unattended = None,
            Event::ResponsePaused { .. } => (response.paused, response.generation) = (true, None),
            Event::ResponseDeleted { .. } => response.deleted = true,
            Event::ResponseResumed { attempt, .. } => {
                (response.suspended, response.paused) = (false, false);
                response.attempts = *attempt;
                response.generation = Some(recorded.seq);
            }
            Event::OutputItemAdded { item, first_token, .. } => {
                let (item, first_token) = (item.clone(), *first_token);
                let (tokens, logprobs) = (Vec::new(), Vec::new());
                response.output.push(OutputItem { item, first_token, tokens, logprobs, discarded: false });
            }
            Event::OutputDelta { item_id, text, tokens, logprobs, .. } => {
                response.apply_delta(*item_id, text, tokens, logprobs);
            }
            Event::OutputItemDone { item_id, status, native_id: behind, made: signed, .. } => {
                if let Some(output) = response.output_mut(*item_id) {
                    output.item.status = *status;
                    match &mut output.item.body {
                        ItemBody::FunctionCall { native_id, .. } if behind.is_some() => native_id.clone_from(behind),
                        ItemBody::Reasoning { made, .. } if signed.is_some() => made.clone_from(signed),
                        _ => {}
                    }
                }
            }
            Event::OutputItemDiscarded { item_id, .. } => {
                if let Some(output) = response.output_mut(*item_id) {
                    (output.item.status, output.discarded) = (ItemStatus::Incomplete, true);
                }
            }
            Event::CancelRequested { .. } => response.cancel_requested = true,
            Event::ResponseEnded { ending, tail_tokens, stop_string, usage, .. } => {
                response.status = ResponseStatus::Ended(ending.clone());
                response.stop_string.clone_from(stop_string);
                response.usage.output_tokens += tail_tokens.len() as u32;
                let counted_here = u64::from(response.usage.output_tokens);
                response.usage = usage.unwrap_or(response.usage);
                response.usage.cost_nanos = response.config.price.map(|price| response.usage.nanos_at(price));
                let output_tokens = u64::from(response.usage.output_tokens);
                response.tail_tokens.clone_from(tail_tokens);
                (response.generation, response.unattended, response.paused) = (None, None, false);
                response.ended_ms = Some(recorded.at_ms);
                response.ended_seq = Some(recorded.seq);
                self.generated_tokens = (self.generated_tokens + output_tokens).saturating_sub(counted_here);
                self.leave_queue(recorded);
            }
            _ => {}
        }
    }

    /// A response that ended before its turn came said nothing, and asked nothing of the model.
    fn leave_queue(&mut self, recorded: &Recorded) {
        let Some(id) = response_of(&recorded.event) else { return };
        if let Some(place) = self.queue.iter().position(|waiting| waiting.id == id) {
            self.unbegun.push(self.queue.remove(place));
        }
    }
}

impl Response {
    fn output_mut(&mut self, id: ItemId) -> Option<&mut OutputItem> {
        self.output.iter_mut().rev().find(|output| output.item.id == id)
    }

    fn apply_delta(&mut self, item_id: ItemId, delta: &str, tokens: &[u32], logprobs: &[TokenLogprob]) {
        self.attempts = if tokens.is_empty() { self.attempts } else { 0 };
        self.usage.output_tokens += tokens.len() as u32;
        let Some(output) = self.output_mut(item_id) else { return };
        output.tokens.extend_from_slice(tokens);
        output.logprobs.extend_from_slice(logprobs);
        match &mut output.item.body {
            ItemBody::Message { content, .. } => match content.last_mut() {
                Some(Content::Text { text }) => text.push_str(delta),
                None => content.push(Content::Text { text: delta.to_owned() }),
            },
            ItemBody::Reasoning { text, .. } => {
                text.push_str(delta);
                self.usage.reasoning_tokens += tokens.len() as u32;
            }
            ItemBody::Compaction { text } => text.push_str(delta),
            ItemBody::FunctionCall { arguments, .. } => arguments.push_str(delta),
            ItemBody::FunctionCallOutput { .. } | ItemBody::AdditionalTools { .. } => {}
        }
    }

    /// Whether its OpenAI-shaped stream has something for how an item grows.
    fn streams(&self, event: &Event) -> bool {
        let (Event::OutputDelta { item_id, .. } | Event::OutputDone { item_id, .. }) = event else { return true };
        self.output_item(*item_id).is_none_or(|(_, output)| match &output.item.body {
            ItemBody::FunctionCall { call_kind, .. } => call_kind.is_streamed(),
            // It is shown whole, and sealed.
            ItemBody::Compaction { .. } => false,
            _ => true,
        })
    }
}

/// The response an event belongs to, if one.
pub(super) fn response_of(event: &Event) -> Option<ResponseId> {
    match event {
        Event::ResponseCreated(new) => Some(new.id),
        Event::ResponseInProgress { response_id, .. }
        | Event::ResponseDeleted { response_id }
        | Event::ResponseDequeued { response_id }
        | Event::ResponseQueued { response_id }
        | Event::ResponseUnattended { response_id, .. }
        | Event::ResponseAttended { response_id }
        | Event::ResponsePaused { response_id }
        | Event::ResponseSuspended { response_id }
        | Event::ResponseResumed { response_id, .. }
        | Event::ConversationBudgetLow { response_id, .. }
        | Event::OutputItemAdded { response_id, .. }
        | Event::ContentPartAdded { response_id, .. }
        | Event::OutputDelta { response_id, .. }
        | Event::OutputDone { response_id, .. }
        | Event::ContentPartDone { response_id, .. }
        | Event::OutputItemDone { response_id, .. }
        | Event::OutputItemDiscarded { response_id, .. }
        | Event::ToolCallRequested { response_id, .. }
        | Event::ToolCallClaimed { response_id, .. }
        | Event::ToolResultAccepted { response_id, .. }
        | Event::ToolResultDiscarded { response_id, .. }
        | Event::ToolCallClosed { response_id, .. }
        | Event::CancelRequested { response_id }
        | Event::ResponseEnded { response_id, .. }
        | Event::InterventionAccepted { response_id, .. }
        | Event::InterventionPending { response_id, .. }
        | Event::InterventionFailed { response_id, .. }
        | Event::InterventionSuperseded { response_id, .. }
        | Event::InterventionWithdrawn { response_id, .. }
        | Event::InterventionCommitted { response_id, .. } => Some(*response_id),
        Event::ConversationCreated { .. }
        | Event::ConversationUpdated { .. }
        | Event::ConversationRewound { .. }
        | Event::ConversationDeleted {}
        | Event::ConversationSuspended {}
        | Event::ConversationResumed {}
        | Event::ItemsAdded { .. }
        | Event::TurnsCopied { .. }
        | Event::ItemDeleted { .. } => None,
    }
}

/// The call an event is about, if it is about one.
fn call_of(event: &Event) -> Option<&CallId> {
    match event {
        Event::ToolCallRequested { call_id, .. }
        | Event::ToolCallClaimed { call_id, .. }
        | Event::ToolResultAccepted { call_id, .. }
        | Event::ToolResultDiscarded { call_id, .. }
        | Event::ToolCallClosed { call_id, .. } => Some(call_id),
        _ => None,
    }
}

/// The response whose OpenAI-shaped stream shows this event, if one does.
fn stream_response(event: &Event) -> Option<ResponseId> {
    match event {
        Event::ResponseCreated(_)
        | Event::ResponseQueued { .. }
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
    /// Whether it only adds to what is shown of an answer: it accepts nothing, decides nothing and ends nothing.
    pub fn is_growth(&self) -> bool {
        matches!(
            self,
            Self::OutputItemAdded { .. }
                | Self::ContentPartAdded { .. }
                | Self::OutputDelta { .. }
                | Self::OutputDone { .. }
                | Self::ContentPartDone { .. }
                | Self::OutputItemDone { .. }
        )
    }

    /// The response it belongs to, if one.
    pub fn response_id(&self) -> Option<ResponseId> {
        response_of(self)
    }
}

impl OutputItem {
    /// Whether it joins the transcript: a call that was cut never runs and is never seen by the model.
    pub fn is_kept(&self) -> bool {
        let is_cut_call =
            matches!(self.item.body, ItemBody::FunctionCall { .. }) && self.item.status != ItemStatus::Completed;
        !is_cut_call && !self.discarded
    }
}
