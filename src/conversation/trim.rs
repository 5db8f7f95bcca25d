//! Trimming: behind which events a conversation may begin for its readers, and what is kept of those in front.
//!
//! **Invariant:** pure. At every border, the fold of what [`reduce`] keeps equals the fold of the events themselves.

use std::collections::HashSet;

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
            // The last one counts, and the one that says the prompt; the others were signs of life.
            Event::ResponseInProgress { response_id, ref prompt, .. } => {
                !progressed.insert(response_id) && prompt.is_none()
            }
            _ => false,
        })
        .collect();
    traceless.reverse();
    traceless
}

/// Adds a delta to the delta before it, if it belongs to the same item.
fn grow(last: &mut Recorded, next: &Recorded) -> bool {
    let Event::OutputDelta { item_id: next_item, text: more, tokens: next_tokens, logprobs: next_logprobs, .. } =
        &next.event
    else {
        return false;
    };
    match &mut last.event {
        Event::OutputDelta { item_id, text, tokens, logprobs, .. } if item_id == next_item => {
            text.push_str(more);
            tokens.extend_from_slice(next_tokens);
            logprobs.extend_from_slice(next_logprobs);
            (last.seq, last.number, last.at_ms) = (next.seq, next.number, next.at_ms);
            true
        }
        _ => false,
    }
}

/// Whether a turn begins with this event: its response is created, or has waited and its turn has come. Nothing runs in
/// front of it.
pub fn begins_turn(event: &Event) -> bool {
    match event {
        Event::ResponseCreated(new) => !new.enqueued,
        Event::ResponseDequeued { .. } => true,
        _ => false,
    }
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

    /// The borders in front of which nothing began that is not finished by now: every response has ended, every call
    /// has its result or takes none, every instruction has its outcome. What waited may have been finished behind the
    /// border: in a conversation whose turns always wait for each other something always does.
    pub fn borders(self) -> Vec<Border> {
        let unfinished = first_unfinished(&self.state);
        let mut borders = self.borders;
        borders.retain(|border| border.seq <= unfinished);
        borders
    }
}

/// The seq with which the first thing began that is not finished.
fn first_unfinished(state: &State) -> u64 {
    let responses = state.responses.iter().chain(&state.queue).filter(|response| !response.status.is_terminal());
    let responses = responses.map(|response| response.created_seq);
    let calls = state.open_calls().map(|call| {
        let made_by = state.response_even_deleted(call.response_id);
        made_by.map_or(call.seq, |response| response.created_seq)
    });
    let undecided = state.undecided().into_iter().map(|(_, intervention)| intervention.accepted_seq);
    responses.chain(calls).chain(undecided).min().unwrap_or(u64::MAX)
}
