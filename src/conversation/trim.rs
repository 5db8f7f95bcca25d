//! Trimming: behind which events a conversation may begin for its readers, and what is kept of those in front.
//!
//! **Invariant:** pure. At every border, the fold of what [`reduce`] keeps equals the fold of the events themselves.

use std::collections::{HashMap, HashSet};

use super::event::{Event, Recorded};
use super::state::State;
use crate::ids::ResponseId;

/// The events, without those that leave no trace in a state, and with neighbouring deltas of one item as one event.
/// What is merged stands at the place of its last part. The last event is always kept, and so is every event in front
/// of which a turn begins: each stretch between two borders folds to the same state on its own.
pub fn reduce(events: &[Recorded]) -> Vec<Recorded> {
    let traceless = traceless(events);
    let mut kept: Vec<Recorded> = Vec::new();
    for (place, recorded) in events.iter().enumerate() {
        let is_edge = events.get(place + 1).is_none_or(|next| begins_turn(&next.event));
        if traceless[place] && !is_edge {
            continue;
        }
        let grown = kept.last_mut().is_some_and(|last| grow(last, recorded));
        if !grown {
            kept.push(recorded.clone());
        }
    }
    kept
}

/// Whether each event changes nothing that a later one of the same stretch does not change again.
fn traceless(events: &[Recorded]) -> Vec<bool> {
    let mut progressed: HashSet<ResponseId> = HashSet::new();
    let mut traceless: Vec<bool> = events
        .iter()
        .rev()
        .map(|recorded| match recorded.event {
            Event::ResponseQueued { .. }
            | Event::ContentPartAdded { .. }
            | Event::OutputDone { .. }
            | Event::ContentPartDone { .. } => true,
            // The last one counts; the others were signs of life.
            Event::ResponseInProgress { response_id, .. } => !progressed.insert(response_id),
            _ => false,
        })
        .collect();
    traceless.reverse();
    traceless
}

/// Adds a delta to the delta before it, if it belongs to the same item.
fn grow(last: &mut Recorded, next: &Recorded) -> bool {
    let Event::OutputDelta { item_id: next_item, text: more, tokens: next_tokens, .. } = &next.event else {
        return false;
    };
    match &mut last.event {
        Event::OutputDelta { item_id, text, tokens, .. } if item_id == next_item => {
            text.push_str(more);
            tokens.extend_from_slice(next_tokens);
            (last.seq, last.number, last.at_ms) = (next.seq, next.number, next.at_ms);
            true
        }
        _ => false,
    }
}

/// Whether a turn begins with this event that did not wait for another one.
pub fn begins_turn(event: &Event) -> bool {
    matches!(event, Event::ResponseCreated(new) if !new.enqueued)
}

/// A place where a conversation may begin for its readers: the first event of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Border {
    /// The seq of that event.
    pub seq: u64,
    /// When the youngest event in front of it was decided, in milliseconds since the Unix epoch.
    pub newest_ms: u64,
}

/// Looks at a conversation's events, in order, for the borders between them.
#[derive(Debug, Default)]
pub struct Survey {
    state: State,
    borders: Vec<Border>,
    newest_ms: u64,
}

impl Survey {
    /// The next event.
    pub fn observe(&mut self, recorded: &Recorded) {
        if begins_turn(&recorded.event) && !self.state.responses.is_empty() {
            self.borders.push(Border { seq: recorded.seq, newest_ms: self.newest_ms });
        }
        self.newest_ms = self.newest_ms.max(recorded.at_ms);
        self.state.apply(recorded);
    }

    /// The borders in front of which all is finished: every response has ended, every call has its result or takes
    /// none, every instruction has its outcome.
    pub fn borders(self) -> Vec<Border> {
        let mut spans = spans(&self.state);
        spans.sort_unstable();
        let (mut spans, mut reach) = (spans.into_iter().peekable(), 0);
        let mut borders = self.borders;
        borders.retain(|border| {
            while let Some((_, end)) = spans.next_if(|(start, _)| *start < border.seq) {
                reach = reach.max(end);
            }
            reach < border.seq
        });
        borders
    }
}

/// From where to where each thing lasts that a border must not part, by seq.
fn spans(state: &State) -> Vec<(u64, u64)> {
    let all = state.responses.iter().chain(&state.queue).chain(&state.unbegun);
    let mut spans: Vec<(u64, u64)> =
        all.map(|response| (response.created_seq, response.ended_seq.unwrap_or(u64::MAX))).collect();
    let all = state.responses.iter().chain(&state.queue).chain(&state.unbegun);
    let created: HashMap<ResponseId, u64> = all.map(|response| (response.id, response.created_seq)).collect();
    spans.extend(state.calls.iter().map(|call| {
        // A request that brings the result begins its turn with it.
        let end = if call.status.is_open() { u64::MAX } else { call.seq.saturating_sub(1) };
        (created.get(&call.response_id).copied().unwrap_or(call.seq), end)
    }));
    spans.extend(state.interventions.values().map(|intervention| {
        let is_undecided = intervention.status.is_undecided();
        (intervention.accepted_seq, if is_undecided { u64::MAX } else { intervention.seq })
    }));
    spans
}
