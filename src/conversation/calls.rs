//! Calls that a client brings along in its items: which of them have their result, and how the others get one.
//!
//! Calls that the model made are tracked as open calls of the state; nothing here knows of those.

use super::decide::Draft;
use super::event::Event;
use super::item::Item;
use crate::ids::CallId;

impl Draft {
    /// Adds items to the transcript outside of a response. Calls that a later item leaves behind without a result get
    /// a synthetic one in their place; the last ones may still be answered.
    pub(super) fn add(&mut self, items: Vec<Item>) {
        let says_something = items.iter().any(|item| item.calls().is_none() && item.answers().is_none());
        let left = unanswered(self.state.staged.iter().chain(&items)).into_iter();
        let staged = self.state.staged.len();
        let left: Vec<CallId> = left.filter(|(place, _)| *place < staged).map(|(_, call_id)| call_id).collect();
        let mut added: Vec<Item> = Vec::new();
        if says_something {
            added.extend(left.into_iter().map(|call_id| self.not_started(call_id)));
        }
        let (closed, _) = self.close_in_place(items);
        added.extend(closed);
        self.push(Event::ItemsAdded { items: added });
    }

    /// Closes the staged calls that nobody has answered, before a response takes them that no client describes.
    pub(super) fn close_staged_calls(&mut self) {
        self.close_brought_calls(Vec::new());
    }

    /// Closes every brought call, staged or in `input`, that neither answers: no model input holds an unanswered
    /// call. Gives the input as the response takes it.
    pub(super) fn close_brought_calls(&mut self, input: Vec<Item>) -> Vec<Item> {
        let staged = self.state.staged.len();
        let unanswered = unanswered(self.state.staged.iter().chain(&input)).into_iter();
        let in_staged = unanswered.filter(|(place, _)| *place < staged).map(|(_, call_id)| call_id);
        let items: Vec<Item> = in_staged.map(|call_id| self.not_started(call_id)).collect();
        if !items.is_empty() {
            self.push(Event::ItemsAdded { items });
        }
        let (mut closed, waiting) = self.close_in_place(input);
        closed.extend(waiting.into_iter().map(|call_id| self.not_started(call_id)));
        closed
    }

    /// Puts a synthetic result behind each group of calls that something else follows before all have theirs. Gives
    /// the calls of the last group that still have none.
    pub(super) fn close_in_place(&mut self, items: Vec<Item>) -> (Vec<Item>, Vec<CallId>) {
        let mut unanswered = unanswered(items.iter()).into_iter().peekable();
        let mut closed = Vec::with_capacity(items.len());
        let mut waiting: Vec<CallId> = Vec::new();
        for (place, item) in items.into_iter().enumerate() {
            // A result stands behind all calls of its group: templates want them together.
            if item.calls().is_none() && item.answers().is_none() {
                closed.extend(waiting.drain(..).map(|call_id| self.not_started(call_id)));
            }
            waiting.extend(unanswered.next_if(|(at, _)| *at == place).map(|(_, call_id)| call_id));
            closed.push(item);
        }
        (closed, waiting)
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
