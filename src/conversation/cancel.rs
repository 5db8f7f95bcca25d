//! Ending a response from outside: cancel, interrupt, and readers that are gone.

use super::decide::{Draft, response_not_found};
use super::event::{Ending, Event};
use super::input::{Answer, CancelOutcome, Reject};
use super::policy::OnDisconnect;
use super::state::{Response, ResponseStatus};
use crate::error::Code;
use crate::ids::{CallId, ResponseId};

impl Draft {
    pub(super) fn cancel(&mut self, response_id: Option<ResponseId>, cascade: bool) -> Result<Answer, Reject> {
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
                CancelOutcome::TooLate { successor_id, closed_calls: self.cancel_calls(id) }
            }
            _ => {
                self.cancel_running(id);
                CancelOutcome::Requested
            }
        };
        let cascaded = match &outcome {
            CancelOutcome::TooLate { successor_id: Some(successor), .. } if cascade => {
                self.cancel_successor(*successor)
            }
            _ => None,
        };
        Ok(Answer::Cancel { response_id: id, outcome, cascaded })
    }

    /// The calls of an ended response that still wait are closed; so is what waited for them.
    fn cancel_calls(&mut self, id: ResponseId) -> Vec<CallId> {
        let open = self.state.open_calls().filter(|call| call.response_id == id);
        let open: Vec<CallId> = open.map(|call| call.call_id.clone()).collect();
        if !open.is_empty() {
            self.fail_steers(id, Code::ResponseCancelled);
            self.close_calls("cancelled", |call| call.response_id == id);
            self.next_turn();
        }
        open
    }

    /// Records the cancel: from here on the response counts as ended. One that has no sequence in the engine ends
    /// at once.
    fn cancel_running(&mut self, id: ResponseId) {
        let Some(response) = self.state.response(id).filter(|response| !response.cancel_requested) else { return };
        let generation = response.generation;
        self.push(Event::CancelRequested { response_id: id });
        if generation.is_none() {
            return self.end(id, Ending::Cancelled);
        }
        self.fail_steers(id, Code::ResponseCancelled);
        self.close_calls("cancelled", |call| call.response_id == id);
        self.abort(generation);
    }

    /// Cancels the response that now runs in this one's place, if one does.
    fn cancel_successor(&mut self, first: ResponseId) -> Option<ResponseId> {
        let mut id = first;
        while let Some(next) = self.state.response_even_deleted(id).and_then(|response| response.successor) {
            id = next;
        }
        let runs = self.state.response(id).is_some_and(|response| !response.status.is_terminal());
        runs.then(|| self.cancel_running(id)).map(|()| id)
    }

    pub(super) fn interrupt(&mut self, response_id: ResponseId) -> Result<Answer, Reject> {
        let Some(response) = self.state.response(response_id) else {
            return Err(response_not_found(response_id));
        };
        if response.cancel_requested || response.status.is_terminal() {
            let text = format!("{response_id} has ended; there is nothing to interrupt, send the next request");
            let reject = Reject::new(Code::ResponseAlreadyCompleted, text);
            return Err(reject.detail("final_status", response.status.as_str()));
        }
        let (generation, open) = (response.generation, response.open_item().map(|open| open.item.id));
        if let Some(item_id) = open {
            self.push(Event::OutputItemDiscarded { response_id, item_id });
        }
        self.abort(generation);
        self.end(response_id, Ending::Incomplete { reason: "interrupted".to_owned() });
        Ok(Answer::Done)
    }

    /// Somebody reads, or nobody does any more.
    pub(super) fn attendance(&mut self, present: bool, fingerprint: Option<&str>) {
        let Some(active) = self.state.active() else { return };
        if active.cancel_requested || !active.config.policy.minds_readers() {
            return;
        }
        let response_id = active.id;
        if present {
            self.attended(response_id, fingerprint);
        } else if active.unattended.is_none() {
            if active.dies_with_its_readers() {
                return self.disconnect(response_id);
            }
            let until_ms = self.grace_end(response_id);
            self.push(Event::ResponseUnattended { response_id, until_ms });
        }
    }

    fn attended(&mut self, response_id: ResponseId, fingerprint: Option<&str>) {
        let Some(active) = self.state.active() else { return };
        let (is_paused, attempt) = (active.paused, active.attempts);
        let exact = fingerprint == Some(active.config.fingerprint.as_str());
        if active.unattended.is_some() {
            self.push(Event::ResponseAttended { response_id });
        }
        if is_paused {
            self.generate(response_id, Event::ResponseResumed { response_id, attempt, exact });
        }
    }

    /// When the policy of a response that nobody reads from now on acts.
    pub(super) fn grace_end(&self, response_id: ResponseId) -> Option<u64> {
        let policy = self.state.response(response_id)?.config.policy;
        let acts = policy.on_disconnect != OnDisconnect::Continue;
        acts.then(|| self.now.unix_ms.saturating_add(policy.grace_ms))
    }

    /// The grace of a response that nobody reads is over.
    pub(super) fn grace_over(&mut self) {
        let over = |active: &&Response| {
            let until_ms = active.unattended.and_then(|left| left.until_ms);
            !active.cancel_requested && !active.paused && until_ms.is_some_and(|until| until <= self.now.unix_ms)
        };
        let Some(active) = self.state.active().filter(over) else { return };
        let (response_id, generation) = (active.id, active.generation);
        match active.config.policy.on_disconnect {
            OnDisconnect::Continue => {}
            OnDisconnect::Cancel => self.disconnect(response_id),
            // The item that a steer waits for may never end.
            OnDisconnect::Pause if !self.steers_of(response_id).is_empty() => self.cut(response_id),
            OnDisconnect::Pause => {
                self.push(Event::ResponsePaused { response_id });
                self.abort(generation);
            }
        }
    }

    /// It has generated as much as it may while nobody reads.
    pub(super) fn unattended_limit(&mut self, response_id: ResponseId) {
        let Some(active) = self.state.active().filter(|active| active.id == response_id) else { return };
        let (Some(left), Some(max)) = (active.unattended, active.config.policy.max_unattended_tokens) else { return };
        if active.usage.output_tokens.saturating_sub(left.since_token) >= max {
            let generation = active.generation;
            self.abort(generation);
            self.end(response_id, Ending::Incomplete { reason: "max_unattended_tokens".to_owned() });
        }
    }

    fn disconnect(&mut self, response_id: ResponseId) {
        let generation = self.state.response(response_id).and_then(|response| response.generation);
        self.abort(generation);
        self.end(response_id, Ending::Incomplete { reason: "disconnected".to_owned() });
    }
}
