//! Which frames of a conversation's stream a reader wants: `types` of a subscription and of the event stream.
//!
//! Frames that say what a cursor means are never left out; those that no journal event stands for come only where
//! they are named.

use serde_json::Value;

use super::errors::invalid;
use super::frame::{DISPATCH, REASONING_DISPATCH, dispatch};
use crate::conversation::{Recorded, Reject, State};

/// Most types of one list.
const TYPES_MAX: usize = 64;
/// Stands for every frame of the journal.
const ALL: &str = "*";
/// Whoever misses these takes seqs for what they are not.
const ALWAYS: [&str; 2] = ["conversation.rewound", "conversation.deleted"];

/// Every type that an event's frame has, and the one of the frame beside it.
const KNOWN: [&str; 52] = [
    "conversation.budget_low",
    "conversation.created",
    "conversation.deleted",
    "conversation.item.deleted",
    "conversation.items.added",
    "conversation.resumed",
    "conversation.rewound",
    "conversation.suspended",
    "conversation.turns.copied",
    "conversation.updated",
    "intervention.accepted",
    "intervention.committed",
    "intervention.failed",
    "intervention.pending",
    "intervention.superseded",
    "intervention.withdrawn",
    "response.attended",
    "response.cancel.requested",
    "response.completed",
    "response.content_part.added",
    "response.content_part.done",
    "response.created",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.deleted",
    "response.dequeued",
    "response.failed",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.in_progress",
    "response.incomplete",
    "response.output_item.added",
    "response.output_item.done",
    "response.output_item.growing",
    "response.output_item.grown",
    "response.output_item.interrupted",
    "response.output_text.delta",
    "response.output_text.done",
    "response.paused",
    "response.queued",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.resumed",
    "response.suspended",
    "response.unattended",
    "tool_call.claimed",
    "tool_call.closed",
    "tool_call.requested",
    "tool_result.accepted",
    "tool_result.discarded",
    DISPATCH,
    REASONING_DISPATCH,
];

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
        if let Some(unknown) = list.iter().find(|kind| *kind != ALL && !KNOWN.contains(&kind.as_str())) {
            let text = format!("types: there is no {unknown:?}; there are {ALL}, {}", KNOWN.join(", "));
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
        let names = |kind: &str| self.0.iter().any(|wanted| wanted == kind);
        if !names(DISPATCH) && !names(REASONING_DISPATCH) {
            return None;
        }
        dispatch(state, &recorded.event).filter(|frame| frame["type"].as_str().is_some_and(names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kinds: &[&str]) -> Result<Types, Reject> {
        Types::read(Some(kinds.iter().map(|kind| (*kind).to_owned()).collect()))
    }

    #[test]
    fn every_frame_can_be_asked_for_and_no_other() {
        let frames = include_str!("../../tests/golden/frames/conversation.snap");
        for line in frames.lines().filter(|line| line.starts_with('{')) {
            let frame: Value = serde_json::from_str(line).unwrap();
            let kind = frame["type"].as_str().unwrap();
            assert!(read(&[kind, ALL]).is_ok(), "{kind}");
        }
        let refused = read(&["response.created", "response.create"]).unwrap_err();
        assert!(refused.message.contains("\"response.create\"") && refused.message.contains("response.completed"));
        assert_eq!(refused.param.as_deref(), Some("types"));
    }

    /// The types that a table of the protocol's page names; `.b` behind `x.a` stands for `x.b`.
    fn named_in_the_table(heading: &str) -> Vec<String> {
        let page = include_str!("../../docs/protocol.md");
        let table = page.split_once(heading).unwrap().1.split_once("\n\n").unwrap().0;
        let mut named: Vec<String> = Vec::new();
        for row in table.lines().filter(|line| line.starts_with("| `")) {
            let names = row.trim_start_matches("| ").split(" | ").next().unwrap();
            for name in names.split(", ").map(|name| name.trim_matches('`')) {
                let before = named.last().and_then(|last| last.rsplit_once('.')).map_or("", |(before, _)| before);
                named.push(if name.starts_with('.') { format!("{before}{name}") } else { name.to_owned() });
            }
        }
        named
    }

    #[test]
    fn the_page_of_the_protocol_names_every_frame_and_no_other() {
        let named = named_in_the_table("| server | fields |\n");
        for kind in KNOWN {
            assert!(named.iter().any(|named| named == kind), "{kind} is missing in docs/protocol.md");
        }
        let beside = ["conversation.snapshot", "error", "response.cancel.result"];
        for kind in named.iter().map(String::as_str).filter(|kind| !kind.ends_with(".*")) {
            let answers = kind.ends_with(".result") || beside.contains(&kind);
            assert!(answers || KNOWN.contains(&kind), "docs/protocol.md names {kind}, which is no frame");
        }
    }
}
