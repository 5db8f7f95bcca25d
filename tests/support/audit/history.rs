//! What clients did and saw, in the order in which it happened: a list of observations as JSON.
//!
//! | kind | fields |
//! |---|---|
//! | `request` | `request` (a number), `principal`, `operation`, `conversation`, `target`, `key`, `input` (its text) |
//! | `answer` | `request`, `answer{conversation, response, intervention, successor, seq, outcome}` |
//! | `refused` | `request`, `status`, `code` |
//! | `attach` | `stream` (a number), `principal`, `conversation`, `after` |
//! | `event` | `stream`, `seq`, `text`: as stored, where the client is in the same process |
//! | `frame` | `stream`, `frame`: as sent, where it is not |
//! | `model_input` | `messages`: what an engine was given |

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

    /// The observations of a kind.
    pub(super) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.observations.iter().filter(move |observation| text(observation, "kind") == kind)
    }
}
