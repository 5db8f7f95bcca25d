//! Decisions: which events follow from an input, given the state.
//!
//! A [`Draft`] folds each event in as it is decided, so that later parts of a decision see the earlier ones. The
//! whole of it is journaled as one batch: nothing in between can ever be seen.

use serde_json::Value;

use super::calls::unanswered;
use super::effect::{Effect, Step};
use super::event::{Cut, Ending, Event, NewResponse, ResponseError};
use super::input::{Answer, CancelOutcome, Create, GenerationEnd, Input, Intervene, Now, Output, Receipt, Reject};
use super::item::{Item, ItemBody, ItemStatus};
use super::state::{Response, ResponseStatus, State};
use crate::error::Code;
use crate::ids::{CallId, ResponseId};

/// Restarts without a new token after which a response is given up.
const ATTEMPTS_MAX: u32 = 3;

/// Decides what follows from `input`. Pure: the same arguments give the same step.
pub fn decide(state: &State, input: Input, now: Now) -> Result<Step, Reject> {
    let mut draft = Draft { state: state.clone(), now, events: Vec::new(), effects: Vec::new() };
    let answer = match input {
        Input::Open { id, principal, metadata, items, forked_from } => {
            if state.id.is_none() {
                draft.push(Event::ConversationCreated { id, principal, metadata, forked_from });
                if !items.is_empty() {
                    draft.push(Event::ItemsAdded { items });
                }
            }
            Answer::Opened
        }
        Input::Create(create) => draft.create(*create)?,
        Input::Intervene(intervene) => draft.intervene(intervene)?,
        Input::Cancel { response_id } => draft.cancel(response_id)?,
        Input::Disconnected { response_id } => draft.disconnected(response_id),
        Input::GenerationStarted { generation, prompt_tokens, cached_tokens } => {
            draft.generation_started(generation, prompt_tokens, cached_tokens)
        }
        Input::Generated { generation, outputs } => draft.generated(generation, outputs),
        Input::GenerationEnded { generation, outputs, tail_tokens, end } => {
            draft.generation_ended(generation, outputs, tail_tokens, end)
        }
        Input::Stopping => draft.stopping(),
        Input::Restarted { fingerprint } => draft.restarted(fingerprint.as_deref()),
        Input::Silence => draft.silence(),
    };
    Ok(Step { events: draft.events, effects: draft.effects, answer })
}

/// A decision in the making.
pub(super) struct Draft {
    /// The state with all events of the draft folded in.
    pub(super) state: State,
    pub(super) now: Now,
    events: Vec<super::event::Recorded>,
    effects: Vec<Effect>,
}

impl Draft {
    /// Adds an event and gives its seq.
    pub(super) fn push(&mut self, event: Event) -> u64 {
        let recorded = self.state.number(event, self.now.unix_ms);
        self.state.apply(&recorded);
        self.events.push(recorded);
        self.state.last_seq
    }

    fn create(&mut self, create: Create) -> Result<Answer, Reject> {
        let last = self.state.responses.last().map(|response| response.id);
        if let Some(previous) = create.previous
            && Some(previous) != last
        {
            return Err(Reject::new(
                Code::ResponseNotActive,
                format!("{previous} is not the last response of its conversation; the request must fork it"),
            )
            .param("previous_response_id"));
        }
        if let Some(active) = self.state.active() {
            let text = format!("{} is running; wait for it, steer it, or cancel it first", active.id);
            return Err(Reject::new(Code::ConversationBusy, text).detail("active_id", active.id.to_string()));
        }
        if create.input.is_empty() && self.state.staged.is_empty() && self.state.responses.is_empty() {
            let text = "the input is empty; give at least one message";
            return Err(Reject::new(Code::InvalidInput, text).param("input"));
        }
        self.check_tool_outputs(&create.input)?;
        let answered: Vec<CallId> = create.input.iter().filter_map(Item::answers).cloned().collect();
        self.close_calls("superseded", |call| !answered.contains(call));
        let input = self.close_brought_calls(create.input);
        let response_id = create.response_id;
        self.start(NewResponse { id: response_id, previous: last, input, config: create.config });
        Ok(Answer::Created(response_id))
    }

    /// Records a new response and asks for its generation.
    fn start(&mut self, new: NewResponse) {
        let response_id = new.id;
        let generation = self.push(Event::ResponseCreated(Box::new(new)));
        self.effects.push(Effect::StartGeneration { generation, response_id });
    }

    /// Each result answers one open call, or a call that the same input brings along.
    fn check_tool_outputs(&self, input: &[Item]) -> Result<(), Reject> {
        let mut open: Vec<CallId> = self.state.open_calls.iter().map(|call| call.call_id.clone()).collect();
        open.extend(unanswered(self.state.staged.iter()).into_iter().map(|(_, call_id)| call_id));
        for (place, item) in input.iter().enumerate() {
            open.extend(item.calls().cloned());
            let Some(call_id) = item.answers() else { continue };
            if let Some(place) = open.iter().position(|open| open == call_id) {
                open.remove(place);
            } else if self.was_called(call_id, &input[..place]) {
                let text = format!("the call {call_id} takes no result any more: it was answered or closed");
                return Err(Reject::new(Code::ToolCallClosed, text).param("input"));
            } else {
                let text = format!("no call {call_id} is open in this conversation");
                return Err(Reject::new(Code::ToolCallNotFound, text).param("input"));
            }
        }
        Ok(())
    }

    /// Whether the model made the call, or a client brought it, at any time before.
    fn was_called(&self, call_id: &CallId, input: &[Item]) -> bool {
        let brought = self.state.responses.iter().flat_map(|response| &response.input);
        let mut brought = brought.chain(&self.state.staged).chain(input).filter_map(Item::calls);
        let mut made = self.state.responses.iter().flat_map(|response| response.calls());
        made.any(|(id, _)| id == call_id) || brought.any(|id| id == call_id)
    }

    /// Closes the open calls that `which` picks; the model sees a synthetic result in their place.
    fn close_calls(&mut self, reason: &str, which: impl Fn(&CallId) -> bool) {
        for call in self.state.open_calls.clone().into_iter().filter(|call| which(&call.call_id)) {
            let output = self.not_started(call.call_id.clone());
            self.push(Event::ToolCallClosed {
                response_id: call.response_id,
                call_id: call.call_id,
                attempt: call.attempt,
                reason: reason.to_owned(),
                output,
            });
        }
    }

    fn intervene(&mut self, intervene: Intervene) -> Result<Answer, Reject> {
        let response_id = intervene.response_id;
        let Some(response) = self.state.response(response_id) else {
            return Err(response_not_found(response_id));
        };
        if let Some(active) = self.state.active()
            && active.id != response_id
        {
            let text = format!("{response_id} has ended and {} is running; steer that one", active.id);
            let reject = Reject::new(Code::ResponseNotActive, text).detail("active_id", active.id.to_string());
            return Err(reject.detail("input", given_back(&intervene.items)));
        }
        let has_open_calls = self.state.open_calls.iter().any(|call| call.response_id == response_id);
        if response.cancel_requested || response.status.is_terminal() && !has_open_calls {
            return Err(already_completed(response, &intervene.items));
        }
        let running = !response.status.is_terminal();
        let (generation, config) = (response.generation, response.config.clone());
        let cut = running.then(|| self.cut(response_id));
        let intervention_id = intervene.intervention_id;
        self.push(Event::InterventionAccepted { intervention_id, response_id, items: intervene.items });
        self.close_item(response_id, ItemStatus::Incomplete);
        self.close_calls("steered", |_| true);
        // Before the terminal, so that the last thing a reader of the old response sees names the successor.
        let successor_id = ResponseId::draw(&mut self.now.fresh);
        let seq = self.push(Event::InterventionCommitted { intervention_id, response_id, successor_id, cut });
        if running {
            let ending = Ending::Incomplete { reason: "steered".to_owned() };
            self.push(Event::ResponseEnded { response_id, ending, tail_tokens: Vec::new() });
        }
        self.effects.extend(generation.map(|generation| Effect::AbortGeneration { generation }));
        self.start(NewResponse { id: successor_id, previous: Some(response_id), input: Vec::new(), config });
        Ok(Answer::Intervened(Receipt { intervention_id, response_id, successor_id: Some(successor_id), seq }))
    }

    /// Where the response would be cut now: behind its last shown token, or in front of an unfinished call.
    fn cut(&self, response_id: ResponseId) -> Cut {
        let response = self.state.response(response_id);
        let open = response.and_then(Response::open_item);
        let shown = response.map_or(0, |response| response.usage.output_tokens);
        Cut {
            item_id: open.map(|output| output.item.id),
            token_index: match open {
                Some(output) if matches!(output.item.body, ItemBody::FunctionCall { .. }) => output.first_token,
                _ => shown,
            },
        }
    }

    fn cancel(&mut self, response_id: Option<ResponseId>) -> Result<Answer, Reject> {
        let id = match (response_id, self.state.active()) {
            (Some(id), _) => id,
            (None, Some(active)) => active.id,
            (None, None) => {
                return Err(Reject::new(Code::ResponseNotActive, "no response is running; nothing to cancel"));
            }
        };
        let Some(response) = self.state.response(id) else {
            return Err(response_not_found(id));
        };
        let outcome = match &response.status {
            ResponseStatus::Ended(Ending::Cancelled) => CancelOutcome::AlreadyCancelled,
            ResponseStatus::Ended(_) => {
                let successor_id = response.successor;
                self.close_calls_of(id, "cancelled");
                CancelOutcome::TooLate { successor_id }
            }
            _ if response.cancel_requested => CancelOutcome::Requested,
            _ => {
                let generation = response.generation;
                self.push(Event::CancelRequested { response_id: id });
                self.effects.extend(generation.map(|generation| Effect::AbortGeneration { generation }));
                CancelOutcome::Requested
            }
        };
        Ok(Answer::Cancel { response_id: id, outcome })
    }

    fn close_calls_of(&mut self, response_id: ResponseId, reason: &str) {
        let calls: Vec<CallId> = self
            .state
            .open_calls
            .iter()
            .filter(|call| call.response_id == response_id)
            .map(|call| call.call_id.clone())
            .collect();
        self.close_calls(reason, |call| calls.contains(call));
    }

    fn disconnected(&mut self, response_id: ResponseId) -> Answer {
        if let Some(active) = self.state.active()
            && active.id == response_id
            && !active.cancel_requested
        {
            let generation = active.generation;
            self.end(
                response_id,
                ItemStatus::Incomplete,
                Ending::Incomplete { reason: "disconnected".to_owned() },
                Vec::new(),
            );
            self.effects.extend(generation.map(|generation| Effect::AbortGeneration { generation }));
        }
        Answer::None
    }

    /// The response that this generation belongs to, unless its result comes too late.
    fn generating(&self, generation: u64) -> Option<&Response> {
        self.state.active().filter(|active| active.generation == Some(generation))
    }

    fn generation_started(&mut self, generation: u64, prompt_tokens: u32, cached_tokens: u32) -> Answer {
        if let Some(active) = self.generating(generation)
            && active.status == ResponseStatus::Queued
            && !active.cancel_requested
        {
            let response_id = active.id;
            self.push(Event::ResponseInProgress { response_id, prompt_tokens, cached_tokens });
        }
        Answer::None
    }

    fn generated(&mut self, generation: u64, outputs: Vec<Output>) -> Answer {
        if let Some(active) = self.generating(generation)
            && !active.cancel_requested
        {
            let response_id = active.id;
            self.record_outputs(response_id, outputs);
        }
        Answer::None
    }

    fn generation_ended(
        &mut self,
        generation: u64,
        outputs: Vec<Output>,
        tail_tokens: Vec<u32>,
        end: GenerationEnd,
    ) -> Answer {
        let Some(active) = self.generating(generation) else {
            return Answer::None;
        };
        let response_id = active.id;
        if active.cancel_requested {
            self.end(response_id, ItemStatus::Incomplete, Ending::Cancelled, Vec::new());
            return Answer::None;
        }
        // An abort that nobody asked for is the server draining: the response goes on after the restart.
        let (item, ending) = match end {
            GenerationEnd::Aborted => return Answer::None,
            GenerationEnd::Stop => (ItemStatus::Completed, Ending::Completed),
            GenerationEnd::Length => {
                (ItemStatus::Incomplete, Ending::Incomplete { reason: "max_output_tokens".to_owned() })
            }
            GenerationEnd::Failed { code, message } => {
                (ItemStatus::Incomplete, Ending::Failed { error: ResponseError { code, message } })
            }
        };
        self.record_outputs(response_id, outputs);
        self.end(response_id, item, ending, tail_tokens);
        Answer::None
    }

    /// Writes the terminal, and before it whatever is still open. Calls survive only a response that ended by
    /// itself: their results continue it.
    fn end(&mut self, response_id: ResponseId, item: ItemStatus, ending: Ending, tail_tokens: Vec<u32>) {
        self.close_item(response_id, item);
        let reason = match &ending {
            Ending::Completed => None,
            Ending::Incomplete { reason } if reason == "max_output_tokens" => None,
            Ending::Incomplete { reason } => Some(reason.clone()),
            Ending::Cancelled => Some("cancelled".to_owned()),
            Ending::Failed { .. } => Some("failed".to_owned()),
        };
        if let Some(reason) = reason {
            self.close_calls_of(response_id, &reason);
        }
        self.push(Event::ResponseEnded { response_id, ending, tail_tokens });
    }

    fn stopping(&mut self) -> Answer {
        if let Some(active) = self.state.active()
            && !active.cancel_requested
            && !active.suspended
        {
            let (response_id, generation) = (active.id, active.generation);
            self.push(Event::ResponseSuspended { response_id });
            self.effects.extend(generation.map(|generation| Effect::AbortGeneration { generation }));
        }
        Answer::None
    }

    fn restarted(&mut self, fingerprint: Option<&str>) -> Answer {
        let Some(active) = self.state.active() else {
            return Answer::None;
        };
        let (response_id, attempt) = (active.id, active.attempts + u32::from(!active.suspended));
        let exact = fingerprint == Some(active.config.fingerprint.as_str());
        if active.cancel_requested {
            self.end(response_id, ItemStatus::Incomplete, Ending::Cancelled, Vec::new());
        } else if attempt > ATTEMPTS_MAX {
            let message = format!("the server restarted {ATTEMPTS_MAX} times without a new token");
            let error = ResponseError { code: Code::ServerRestarted, message };
            self.end(response_id, ItemStatus::Incomplete, Ending::Failed { error }, Vec::new());
        } else {
            let generation = self.push(Event::ResponseResumed { response_id, attempt, exact });
            self.effects.push(Effect::StartGeneration { generation, response_id });
        }
        Answer::None
    }

    fn silence(&mut self) -> Answer {
        if let Some(active) = self.state.active()
            && active.status == ResponseStatus::InProgress
            && !active.cancel_requested
        {
            let (prompt_tokens, cached_tokens) = (active.usage.input_tokens, active.usage.cached_tokens);
            self.push(Event::ResponseInProgress { response_id: active.id, prompt_tokens, cached_tokens });
        }
        Answer::None
    }
}

fn response_not_found(id: ResponseId) -> Reject {
    Reject::new(Code::ResponseNotFound, format!("no response {id} in this conversation")).param("response_id")
}

/// The instruction came too late: names the end that won, and gives the input back.
fn already_completed(response: &Response, items: &[Item]) -> Reject {
    let final_status = if response.cancel_requested { "cancelled" } else { response.status.as_str() };
    let text = format!("{} has ended ({final_status}); send the instruction as the next turn", response.id);
    Reject::new(Code::ResponseAlreadyCompleted, text)
        .detail("final_status", final_status)
        .detail("final_seq", response.ended_seq)
        .detail("successor_id", response.successor.map(|id| id.to_string()))
        .detail("input", given_back(items))
}

/// The instruction's text, for the client to use again.
fn given_back(items: &[Item]) -> Value {
    items.iter().map(Item::text).collect()
}
