//! Stopping and starting: what is put down in good order, and what goes on.

use super::decide::{Draft, failed};
use super::event::{Ending, Event};
use super::policy::OnRestart;
use super::state::CallStatus;
use crate::error::Code;
use crate::ids::ResponseId;

/// Restarts without a new token after which a response is given up.
const ATTEMPTS_MAX: u32 = 3;

impl Draft {
    pub(super) fn stopping(&mut self) {
        if self.state.suspended {
            return;
        }
        match self.state.active() {
            Some(active) if !active.cancel_requested && !active.paused => {
                let (response_id, generation) = (active.id, active.generation);
                self.push(Event::ResponseSuspended { response_id });
                self.abort(generation);
            }
            Some(active) if active.cancel_requested => {}
            _ if self.state.is_outstanding() => {
                self.push(Event::ConversationSuspended {});
            }
            _ => {}
        }
    }

    pub(super) fn restarted(&mut self, fingerprint: Option<&str>) {
        let in_good_order = self.state.suspended;
        if !in_good_order {
            if self.state.is_relaxed() {
                self.rewound(self.state.epoch() + 1);
            }
            self.offer_claimed_again();
        }
        if let Some(response_id) = self.state.active().map(|active| active.id) {
            self.go_on(response_id, fingerprint);
        }
        self.continue_turn();
        self.next_turn();
        if self.state.suspended {
            // From here on an end without good order is a crash again.
            self.push(Event::ConversationResumed {});
        }
    }

    /// What clients saw beyond the last event may not be what follows it now.
    pub(super) fn rewound(&mut self, epoch: u64) {
        if epoch > self.state.epoch() {
            self.push(Event::ConversationRewound { seq: self.state.last_seq, epoch });
        }
    }

    /// Nobody knows whether the worker of a claimed call still lives.
    fn offer_claimed_again(&mut self) {
        let claimed = self.state.open_calls().filter(|call| matches!(call.status, CallStatus::Claimed { .. }));
        let claimed: Vec<_> = claimed.map(|call| call.call_id.clone()).collect();
        for call_id in claimed {
            self.offer_again(&call_id, "restarted");
        }
    }

    /// The response that was running goes on from its last durable token, unless something ends it first.
    fn go_on(&mut self, response_id: ResponseId, fingerprint: Option<&str>) {
        let Some(active) = self.state.active() else { return };
        let attempt = active.attempts + u32::from(!active.suspended);
        let exact = fingerprint == Some(active.config.fingerprint.as_str());
        if active.cancel_requested {
            return self.end(response_id, Ending::Cancelled);
        }
        if active.paused && self.steers_of(response_id).is_empty() {
            return;
        }
        if active.config.policy.on_restart == OnRestart::Fail {
            let message = "the server restarted, and the response was not to go on after that";
            return self.end(response_id, failed(Code::ServerRestarted, message));
        }
        if attempt > ATTEMPTS_MAX {
            let message = format!("the server restarted {ATTEMPTS_MAX} times without a new token");
            return self.end(response_id, failed(Code::ServerRestarted, message));
        }
        let (is_left, is_steered) = (active.unattended.is_some(), !self.steers_of(response_id).is_empty());
        if is_steered {
            return self.cut(response_id);
        }
        if is_left {
            // Its readers could not come back before now.
            let until_ms = self.grace_end(response_id);
            self.push(Event::ResponseUnattended { response_id, until_ms });
        }
        self.generate(response_id, Event::ResponseResumed { response_id, attempt, exact });
    }
}
