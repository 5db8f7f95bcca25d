//! Idempotency keys: at most one effect per key, and the first answer again.
//!
//! A key is claimed before any state is looked at. While the first request runs, the claim stands in memory; its
//! answer is journaled in the same batch as its effect, and from then on the journal answers. What is not stored keeps
//! its claims, answers included, as long as it lives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::reader::store_reject;
use crate::conversation::{Answer, CancelOutcome, Reject};
use crate::crash;
use crate::error::Code;
use crate::ids::ConversationId;
use crate::store::{Journal, KeyRecord, KeyScope, KeyedAnswer};

/// All keys.
#[derive(Clone)]
pub struct Keys {
    journal: Arc<dyn Journal>,
    claimed: Arc<Mutex<HashMap<KeyScope, Held>>>,
}

/// A key that stands in memory.
struct Held {
    fingerprint: [u8; 32],
    /// The answer, where no journal keeps it.
    answer: Option<KeyedAnswer>,
}

/// What is known about a key.
pub enum Claim {
    /// Nothing: go on, and hand the claim to the actor with the request.
    Fresh(KeyClaim),
    /// It was used for the same request, and this was the answer.
    Replay(KeyedAnswer),
    /// The first request with it has no answer yet.
    InProgress,
}

/// The right to be the first request with a key. Dropped without an answer, the key is free again.
pub struct KeyClaim {
    scope: KeyScope,
    fingerprint: [u8; 32],
    keys: Keys,
}

impl Keys {
    /// Keys whose answers live in `journal`: as long as one is there it holds, whatever its age.
    pub fn new(journal: Arc<dyn Journal>) -> Self {
        Self { journal, claimed: Arc::default() }
    }

    /// Claims a key for a request with this fingerprint.
    pub fn claim(&self, scope: KeyScope, fingerprint: [u8; 32]) -> Result<Claim, Reject> {
        let mut claimed = self.claimed();
        if let Some(first) = claimed.get(&scope) {
            return match &first.answer {
                _ if first.fingerprint != fingerprint => Err(reused()),
                Some(answer) => Ok(Claim::Replay(answer.clone())),
                None => Ok(Claim::InProgress),
            };
        }
        // Under the lock: a claim is given up only after its record is durable, so one of the two is always seen.
        match self.journal.key(&scope).map_err(|error| store_reject(&error))? {
            Some(record) if record.fingerprint == fingerprint => Ok(Claim::Replay(record.answer)),
            Some(_) => Err(reused()),
            None => {
                claimed.insert(scope.clone(), Held { fingerprint, answer: None });
                crash::point("key_claimed");
                Ok(Claim::Fresh(KeyClaim { scope, fingerprint, keys: self.clone() }))
            }
        }
    }

    fn claimed(&self) -> MutexGuard<'_, HashMap<KeyScope, Held>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyClaim {
    /// The record that goes into the batch of the request's effect.
    pub(super) fn record(&self, at_ms: u64, answer: KeyedAnswer) -> KeyRecord {
        KeyRecord { scope: self.scope.clone(), fingerprint: self.fingerprint, at_ms, answer }
    }
}

impl KeyClaim {
    /// Keeps the answer in memory, for as long as the claim lives: what is not stored has no other place for it.
    pub(super) fn hold(&self, answer: KeyedAnswer) {
        if let Some(held) = self.keys.claimed().get_mut(&self.scope) {
            held.answer = Some(answer);
        }
    }
}

impl Drop for KeyClaim {
    fn drop(&mut self) {
        self.keys.claimed().remove(&self.scope);
    }
}

/// The answer in the form that is kept with an idempotency key. `seq` is the last of the decision's events.
pub(super) fn keyed_answer(conversation: ConversationId, answer: &Answer, seq: u64) -> Option<KeyedAnswer> {
    Some(match answer {
        Answer::None | Answer::Refused(_) | Answer::Done => return None,
        Answer::Opened => KeyedAnswer::Opened { conversation },
        Answer::Created(response) => KeyedAnswer::Created { conversation, response: *response },
        Answer::Intervened(receipt) => KeyedAnswer::Intervened {
            conversation,
            response: receipt.response_id,
            intervention: receipt.intervention_id,
            successor: receipt.successor_id,
            seq: receipt.seq,
        },
        Answer::Claimed { response_id, attempt, lease_until_ms } => KeyedAnswer::Claimed {
            conversation,
            response: *response_id,
            attempt: *attempt,
            lease_until_ms: *lease_until_ms,
        },
        Answer::Answered { accepted_seq, open_calls, successor_id, .. } => KeyedAnswer::Answered {
            conversation,
            accepted_seq: *accepted_seq,
            open_calls: open_calls.clone(),
            successor: *successor_id,
        },
        Answer::Cancel { response_id, outcome, cascaded } => KeyedAnswer::Cancelled {
            conversation,
            response: *response_id,
            cascaded: *cascaded,
            seq: Some(seq),
            outcome: match outcome {
                CancelOutcome::Requested => "requested".to_owned(),
                CancelOutcome::TooLate { .. } => "too_late".to_owned(),
                CancelOutcome::AlreadyCancelled => "already_cancelled".to_owned(),
            },
        },
    })
}

fn reused() -> Reject {
    Reject::new(Code::IdempotencyKeyReused, "this idempotency key was used with another request; use a new key")
}
