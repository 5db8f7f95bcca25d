//! What clients did and saw, in the order in which it happened: a list of observations as JSON.
//!
//! | kind | fields |
//! |---|---|
//! | `request` | `request` (a number), `principal`, `operation`, `conversation`, `key`, `input` (its text) |
//! | `answer` | `request`, `answer{conversation, response, intervention, successor, seq, outcome, call, attempt}` |
//! | `refused` | `request`, `status`, `code` |
//! | `attach` | `stream` (a number), `principal`, `conversation`, `after` |
//! | `event` | `stream`, `seq`, `text`: as stored, where the client is in the same process |
//! | `frame` | `stream`, `frame`: as sent, where it is not |
//! | `trimmed` | `conversation`, `oldest_seq`: the events in front of it can no longer be read |
//! | `model_input` | `messages`: what an engine was given |

use std::collections::BTreeSet;

use serde_json::Value;

use super::text;

/// Observations, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) observations: Vec<Value>,
}

impl History {
    /// Adds what was seen last.
    pub(crate) fn note(&mut self, observation: Value) {
        self.observations.push(observation);
    }

    /// The conversations that a client asked to delete: what of them is there is the server's to say.
    pub(super) fn deleted(&self) -> BTreeSet<String> {
        let deletions = self.of_kind("request").filter(|request| text(request, "operation") == "delete");
        deletions.map(|request| text(request, "conversation").to_owned()).collect()
    }

    /// The observations of a kind.
    pub(super) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.observations.iter().filter(move |observation| text(observation, "kind") == kind)
    }
}
