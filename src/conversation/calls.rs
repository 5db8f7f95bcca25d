//! Calls that a client brings along in its items: which of them have their result, and how the others get one.
//!
//! Calls that the model made are tracked as open calls of the state; nothing here knows of those.

use super::decide::Draft;
use super::event::Event;
use super::item::Item;
use crate::ids::CallId;

impl Draft {
    /// Closes every brought call, staged or in `input`, that neither answers: no model input holds an unanswered
    /// call. Gives the input as the response takes it.
    pub(super) fn close_brought_calls(&mut self, input: Vec<Item>) -> Vec<Item> {
        let staged = self.state.staged.len();
        let unanswered = unanswered(self.state.staged.iter().chain(&input));
        let (in_staged, in_input): (Vec<_>, Vec<_>) = unanswered.into_iter().partition(|(place, _)| *place < staged);
        let items: Vec<Item> = in_staged.into_iter().map(|(_, call_id)| self.not_started(call_id)).collect();
        if !items.is_empty() {
            self.push(Event::ItemsAdded { items });
        }
        let mut in_input = in_input.into_iter().peekable();
        let mut closed = Vec::with_capacity(input.len());
        let mut waiting: Vec<CallId> = Vec::new();
        for (place, item) in input.into_iter().enumerate() {
            // A result stands behind all calls of its group: templates want them together.
            if item.calls().is_none() && item.answers().is_none() {
                closed.extend(waiting.drain(..).map(|call_id| self.not_started(call_id)));
            }
            waiting.extend(in_input.next_if(|(at, _)| *at == staged + place).map(|(_, call_id)| call_id));
            closed.push(item);
        }
        closed.extend(waiting.into_iter().map(|call_id| self.not_started(call_id)));
        closed
    }
}

/// The calls among the items that no later item answers, with their places, in order.
pub(super) fn unanswered<'a>(items: impl Iterator<Item = &'a Item>) -> Vec<(usize, CallId)> {
    let mut open: Vec<(usize, CallId)> = Vec::new();
    for (place, item) in items.enumerate() {
        open.extend(item.calls().map(|call_id| (place, call_id.clone())));
        if let Some(answered) = open.iter().position(|(_, call_id)| Some(call_id) == item.answers()) {
            open.remove(answered);
        }
    }
    open
}
