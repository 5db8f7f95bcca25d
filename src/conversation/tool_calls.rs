//! Calls that the model made for the client: claimed, answered, timed, closed, and the turn that goes on with them.
//!
//! **Invariants:** a call has one result, and a call that is closed never takes another; a result that comes late
//! is recorded and never reaches the model.

use super::decide::{Draft, response_not_found};
use super::event::{Event, NewResponse};
use super::input::{Answer, CallRef, Reject};
use super::item::{Item, ItemBody, ItemStatus};
use super::state::{Call, CallStatus, Response, State};
use crate::engine::settings::TextRule;
use crate::error::Code;
use crate::ids::{CallId, ItemId, ResponseId};

/// What the model sees in place of the result of a call that was closed before anybody took it.
const NOT_STARTED: &str = "not started";
/// What it sees when somebody had.
const MAY_HAVE_RUN: &str = "outcome unknown, may have run";
/// Reasons of closings that come from the calls themselves: the turn goes on after them.
const OWN_REASONS: [&str; 3] = ["timeout", "lease_ended", "restarted"];

impl Call {
    /// Whether the server itself goes on with its result, and none has gone on yet.
    pub fn is_gone_on_with(&self) -> bool {
        self.output.is_some() && (self.status == CallStatus::Answered || self.closed_by_itself())
    }

    /// Whether nobody closed it: its time or its worker's was over.
    fn closed_by_itself(&self) -> bool {
        self.closed.as_deref().is_some_and(|reason| OWN_REASONS.contains(&reason))
    }
}

impl State {
    /// Whether the server itself goes on with results of this response's calls, now or once all are there. It does
    /// not where the response or one of its calls was ended from outside: there the client goes on, or nobody.
    pub fn goes_on_with_results(&self, id: ResponseId) -> bool {
        let Some(response) = self.response_even_deleted(id) else { return false };
        let mut staged = self.calls.iter().filter(|call| call.response_id == id && call.output.is_some());
        let ended_outside = staged.any(|call| !call.is_gone_on_with());
        let waits = |call: &Call| call.response_id == id && (call.status.is_open() || call.is_gone_on_with());
        let has_ended = response.status.is_terminal();
        !ended_outside && (!has_ended || response.awaits_results()) && (!has_ended || self.calls.iter().any(waits))
    }
}

impl Draft {
    pub(super) fn claim_call(&mut self, wanted: &CallRef, lease_ms: u64) -> Result<Answer, Reject> {
        self.watch_calls();
        let call = self.find_call(wanted)?;
        let (response_id, call_id, attempt) = (call.response_id, call.call_id.clone(), call.attempt);
        match call.status {
            CallStatus::Requested => {}
            CallStatus::Claimed { lease_until_ms } => {
                let text = format!(
                    "the call {call_id} is another worker's until its lease ends; take another call, or ask again then"
                );
                let reject = Reject::new(Code::ToolCallClaimed, text).detail("attempt", attempt);
                return Err(reject.detail("lease_until", lease_until_ms));
            }
            _ => return Err(self.closed_call(&call_id)),
        }
        if wanted.attempt.is_some_and(|wanted| wanted != attempt) {
            return Err(stale_attempt(&call_id, attempt));
        }
        self.check_parallel(response_id)?;
        let lease_until_ms = self.now.unix_ms.saturating_add(lease_ms);
        self.push(Event::ToolCallClaimed { response_id, call_id, attempt, lease_until_ms });
        Ok(Answer::Claimed { response_id, attempt, lease_until_ms })
    }

    /// Only so many calls of one response may run at once.
    fn check_parallel(&self, response_id: ResponseId) -> Result<(), Reject> {
        let response = self.state.response_even_deleted(response_id);
        let Some(max) = response.and_then(|response| response.config.max_parallel_tool_calls) else { return Ok(()) };
        let claimed = |call: &&Call| call.response_id == response_id && call.status != CallStatus::Requested;
        let running = self.state.open_calls().filter(claimed).count();
        if running < max as usize {
            return Ok(());
        }
        let text =
            format!("{running} calls of {response_id} are claimed, and no more may be at once; answer one first");
        Err(Reject::new(Code::ToolCallClaimed, text))
    }

    pub(super) fn answer_call(&mut self, wanted: &CallRef, output: String, is_error: bool) -> Result<Answer, Reject> {
        let call = self.find_call(wanted)?.clone();
        let (response_id, call_id) = (call.response_id, call.call_id.clone());
        let attempt = wanted.attempt.unwrap_or(call.attempt);
        if attempt > call.attempt || attempt == 0 {
            let text =
                format!("the call {call_id} has had no attempt {attempt}; give {}, or leave attempt out", call.attempt);
            return Err(Reject::new(Code::ToolCallNotFound, text).param("attempt"));
        }
        match call.status {
            CallStatus::Completed | CallStatus::Answered => return self.answered_before(&call, &output, is_error),
            CallStatus::Cancelled | CallStatus::Unknown => {
                let reject = self.closed_call(&call_id);
                let reason = call.closed.clone().unwrap_or_default();
                self.discard(&call, attempt, reason);
                return Ok(Answer::Refused(reject));
            }
            CallStatus::Requested | CallStatus::Claimed { .. } if attempt != call.attempt => {
                self.discard(&call, attempt, "stale_attempt".to_owned());
                return Ok(Answer::Refused(stale_attempt(&call_id, call.attempt)));
            }
            CallStatus::Requested | CallStatus::Claimed { .. } => {}
        }
        let (call_id_of, call_kind) = (call_id.clone(), self.state.call_kind(&call_id));
        let body = ItemBody::FunctionCallOutput { call_id: call_id_of, output, synthetic: false, is_error, call_kind };
        let output = Item { id: ItemId::draw(&mut self.now.fresh), status: ItemStatus::Completed, body };
        let accepted_seq = self.push(Event::ToolResultAccepted { response_id, call_id, attempt, output });
        Ok(self.answered(accepted_seq))
    }

    /// Takes results of calls of one response. One that cannot be taken refuses them all; one that was given before
    /// changes nothing.
    pub(super) fn answer_calls(&mut self, response_id: ResponseId, results: Vec<Item>) -> Result<Answer, Reject> {
        if self.state.response(response_id).is_none() {
            return Err(response_not_found(response_id));
        }
        let mut fresh: Vec<(Call, Item)> = Vec::new();
        let mut closed: Vec<Call> = Vec::new();
        let mut before = None;
        for item in results {
            let ItemBody::FunctionCallOutput { call_id, output, is_error, .. } = &item.body else {
                return Err(Reject::new(
                    Code::InvalidInput,
                    "only results of calls can be taken here; leave other items out",
                )
                .param("input"));
            };
            let wanted = CallRef { response_id: Some(response_id), call_id: call_id.clone(), attempt: None };
            let call = self.find_call(&wanted)?;
            if fresh.iter().any(|(other, _)| other.call_id == call.call_id) {
                let text = format!("the call {call_id} has two results here; give one");
                return Err(Reject::new(Code::InvalidInput, text).param("input"));
            }
            match call.status {
                CallStatus::Completed | CallStatus::Answered => {
                    before = Some(self.answered_before(call, output, *is_error)?);
                }
                CallStatus::Cancelled | CallStatus::Unknown => {
                    closed.push(call.clone());
                }
                CallStatus::Requested | CallStatus::Claimed { .. } => fresh.push((call.clone(), item)),
            }
        }
        if let Some(first) = closed.first() {
            let reject = self.closed_call(&first.call_id);
            for call in &closed {
                self.discard(call, call.attempt, call.closed.clone().unwrap_or_default());
            }
            return Ok(Answer::Refused(reject));
        }
        let accepted = fresh.into_iter().map(|(call, output)| {
            let Call { call_id, attempt, .. } = call;
            self.push(Event::ToolResultAccepted { response_id, call_id, attempt, output })
        });
        match (accepted.last(), before) {
            (Some(accepted_seq), _) => Ok(self.answered(accepted_seq)),
            (None, Some(before)) => Ok(before),
            (None, None) => {
                Err(Reject::new(Code::InvalidInput, "no result is given; give at least one").param("input"))
            }
        }
    }

    /// Goes on if the results are all there.
    fn answered(&mut self, accepted_seq: u64) -> Answer {
        let runs = self.state.active().is_some();
        if self.continue_turn().is_none() {
            self.next_turn();
        }
        let successor_id = self.state.active().filter(|_| !runs).map(|active| active.id);
        let open_calls = self.state.open_calls().map(|call| call.call_id.clone()).collect();
        Answer::Answered { accepted_seq, open_calls, successor_id, replayed: false }
    }

    /// The same result again is the same answer again; another one is a conflict.
    fn answered_before(&self, call: &Call, again: &str, is_error_again: bool) -> Result<Answer, Reject> {
        let taken = self.state.responses.iter().rev().flat_map(|response| &response.input);
        let mut results = call.output.iter().chain(taken);
        let first = results.find(|item| item.answers() == Some(&call.call_id));
        let is_same = first.is_some_and(|item| match &item.body {
            ItemBody::FunctionCallOutput { output, is_error, .. } => output == again && *is_error == is_error_again,
            _ => false,
        });
        if !is_same {
            let text = format!("the call {} has another result already, which stays", call.call_id);
            return Err(Reject::new(Code::ToolResultConflict, text).detail("by_seq", call.seq));
        }
        Ok(Answer::Answered {
            accepted_seq: call.seq,
            open_calls: self.state.open_calls().map(|call| call.call_id.clone()).collect(),
            successor_id: self.gone_on_with(call),
            replayed: true,
        })
    }

    /// The response with which the server itself went on from the call's turn. Where a client answered or closed a call
    /// of that turn, what took the results is the client's own.
    fn gone_on_with(&self, call: &Call) -> Option<ResponseId> {
        let mut turn = self.state.calls.iter().filter(|other| other.response_id == call.response_id);
        let is_native = turn.all(|other| other.status == CallStatus::Answered || other.closed_by_itself());
        let made_by = self.state.response_even_deleted(call.response_id);
        if !is_native || !made_by.is_some_and(Response::awaits_results) {
            return None;
        }
        let takes = |item: &Item| item.answers() == Some(&call.call_id);
        let successor = self.state.responses.iter().find(|response| response.input.iter().any(takes));
        successor.map(|response| response.id)
    }

    /// Records a late result, once for each attempt, so that repeating it grows nothing.
    fn discard(&mut self, call: &Call, attempt: u32, reason: String) {
        if attempt > call.discarded_attempt {
            let (response_id, call_id, by_seq) = (call.response_id, call.call_id.clone(), call.seq);
            self.push(Event::ToolResultDiscarded { response_id, call_id, attempt, reason, by_seq });
        }
    }

    fn find_call(&self, wanted: &CallRef) -> Result<&Call, Reject> {
        let is_it = |call: &&Call| wanted.response_id.is_none_or(|id| id == call.response_id);
        self.state.call(&wanted.call_id).filter(is_it).ok_or_else(|| {
            let text =
                format!("no call {} was made in this conversation; check its id and response_id", wanted.call_id);
            Reject::new(Code::ToolCallNotFound, text).param("call_id")
        })
    }

    /// The call takes no result any more.
    pub(super) fn closed_call(&self, call_id: &CallId) -> Reject {
        let text = format!("the call {call_id} takes no result any more: it was answered or closed");
        let reject = Reject::new(Code::ToolCallClosed, text);
        match self.state.call(call_id) {
            Some(call) => {
                let reason = call.closed.clone().unwrap_or_else(|| "completed".to_owned());
                reject.detail("reason", reason).detail("by_seq", call.seq)
            }
            None => reject,
        }
    }

    /// Closes the open calls that `which` picks; the model sees a synthetic result in their place.
    pub(super) fn close_calls(&mut self, reason: &str, which: impl Fn(&Call) -> bool) {
        let open: Vec<Call> = self.state.open_calls().filter(|call| which(call)).cloned().collect();
        for call in open {
            self.close_call(&call, reason);
        }
    }

    fn close_call(&mut self, call: &Call, reason: &str) {
        let (response_id, call_id, attempt) = (call.response_id, call.call_id.clone(), call.attempt);
        let (text, is_error) = match (reason, call.status) {
            ("timeout", _) => {
                let timeout_ms = call.policy.timeout_ms.unwrap_or_default();
                (format!("tool_timeout: no result within {timeout_ms} ms"), true)
            }
            (_, CallStatus::Claimed { .. }) => (MAY_HAVE_RUN.to_owned(), false),
            _ => (NOT_STARTED.to_owned(), false),
        };
        let output = self.synthetic(call_id.clone(), text, is_error);
        let reason = reason.to_owned();
        self.push(Event::ToolCallClosed { response_id, call_id, attempt, reason, output });
    }

    /// The synthetic result of a call that was closed before it began.
    pub(super) fn not_started(&mut self, call_id: CallId) -> Item {
        self.synthetic(call_id, NOT_STARTED.to_owned(), false)
    }

    fn synthetic(&mut self, call_id: CallId, output: String, is_error: bool) -> Item {
        let call_kind = self.state.call_kind(&call_id);
        let body = ItemBody::FunctionCallOutput { call_id, output, synthetic: true, is_error, call_kind };
        Item { id: ItemId::draw(&mut self.now.fresh), status: ItemStatus::Completed, body }
    }

    /// A timer ended: whatever is due now happens.
    pub(super) fn tick(&mut self) {
        self.grace_over();
        self.watch_calls();
        self.continue_turn();
        self.next_turn();
    }

    /// Closes calls that are overdue, and offers those again whose lease has ended.
    fn watch_calls(&mut self) {
        let now_ms = self.now.unix_ms;
        let open: Vec<Call> = self.state.open_calls().cloned().collect();
        for call in open {
            if call.due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
                self.close_call(&call, "timeout");
            } else if matches!(call.status, CallStatus::Claimed { lease_until_ms } if lease_until_ms <= now_ms) {
                self.offer_again(&call.call_id, "lease_ended");
            }
        }
    }

    /// A claimed call lost its worker: it is offered again if it may run twice, else nobody knows what it did.
    pub(super) fn offer_again(&mut self, call_id: &CallId, reason: &str) {
        let Some(call) = self.state.call(call_id).cloned() else { return };
        if call.policy.idempotent && call.attempt < call.policy.max_attempts {
            let (response_id, call_id, attempt) = (call.response_id, call.call_id, call.attempt + 1);
            self.push(Event::ToolCallRequested { response_id, call_id, attempt });
        } else {
            self.close_call(&call, reason);
        }
    }

    /// When every call of the turn has its result and at least one came from outside of a request, the server
    /// itself goes on; what waited for the results goes along.
    pub(super) fn continue_turn(&mut self) -> Option<ResponseId> {
        if self.state.active().is_some() || self.state.open_calls().next().is_some() {
            return None;
        }
        let made_by = self.state.calls.iter().rev().find(|call| call.is_gone_on_with())?.response_id;
        if !self.state.goes_on_with_results(made_by) {
            return None;
        }
        let config = self.state.response_even_deleted(made_by)?.config.clone();
        let previous = self.state.responses.last().map(|last| last.id);
        let id = ResponseId::draw(&mut self.now.fresh);
        self.close_staged_calls();
        self.commit_pending(id);
        let mut config = self.with_thinking(config, id);
        // A choice of tools is for one answer: one that must call, and goes on behind its results, would call for ever.
        config.constraint = config.constraint.filter(|constraint| constraint.text != TextRule::Nothing);
        self.start(NewResponse { id, previous, input: Vec::new(), config, enqueued: false });
        Some(id)
    }
}

fn stale_attempt(call_id: &CallId, attempt: u32) -> Reject {
    let text = format!("the call {call_id} is at attempt {attempt}; an older one takes no result any more");
    Reject::new(Code::ToolCallClosed, text).detail("reason", "stale_attempt").detail("attempt", attempt)
}
