//! Which frames of a conversation's stream a reader wants: `types` of a subscription and of the event stream.
//!
//! Frames that say what a cursor means are never left out; those that no journal event stands for come only where
//! they are named.

use serde_json::Value;

use super::errors::invalid;
use super::frame::{DISPATCH, dispatch};
use crate::conversation::{Recorded, Reject, State};

/// Most types of one list.
const TYPES_MAX: usize = 64;
/// Stands for every frame of the journal.
const ALL: &str = "*";
/// Whoever misses these takes seqs for what they are not.
const ALWAYS: [&str; 2] = ["conversation.rewound", "conversation.deleted"];

/// The types that are wanted.
#[derive(Clone, Debug)]
pub(crate) struct Types(Vec<String>);

impl Default for Types {
    fn default() -> Self {
        Self(vec![ALL.to_owned()])
    }
}

impl Types {
    /// Reads the list; without one, everything that the journal has is wanted.
    pub(crate) fn read(list: Option<Vec<String>>) -> Result<Self, Reject> {
        let Some(list) = list else { return Ok(Self::default()) };
        if list.is_empty() || list.len() > TYPES_MAX || list.iter().any(String::is_empty) {
            let text = format!("types must name between 1 and {TYPES_MAX} types of events; {ALL} stands for all");
            return Err(invalid("types", text));
        }
        Ok(Self(list))
    }

    /// Reads the list as it stands in a query, with commas.
    pub(crate) fn of_query(text: Option<&String>) -> Result<Self, Reject> {
        Self::read(text.map(|text| text.split(',').map(str::to_owned).collect()))
    }

    /// Whether the frame of an event is wanted.
    pub(crate) fn want(&self, frame: &Value) -> bool {
        let kind = frame["type"].as_str().unwrap_or_default();
        ALWAYS.contains(&kind) || self.0.iter().any(|wanted| wanted == ALL || wanted == kind)
    }

    /// What is shown behind the event's own frame, where it is asked for.
    pub(crate) fn beside(&self, state: &State, recorded: &Recorded) -> Option<Value> {
        let wanted = self.0.iter().any(|wanted| wanted == DISPATCH);
        wanted.then(|| dispatch(state, &recorded.event)).flatten()
    }
}
