//! Changes to what is kept: items added and taken out, responses and the conversation deleted.

use super::decide::{Draft, busy, response_not_found};
use super::event::{Ending, Event};
use super::input::{Answer, Reject};
use super::item::Item;
use super::terminal::Terminal;
use crate::error::Code;
use crate::ids::{ItemId, ResponseId};

impl Draft {
    /// The transcript changes only between turns.
    fn check_idle(&self) -> Result<(), Reject> {
        self.state.active().map_or(Ok(()), |active| Err(busy(active.id)))
    }

    pub(super) fn add_items(&mut self, items: Vec<Item>) -> Result<Answer, Reject> {
        self.check_idle()?;
        if let Some(item) = items.iter().find(|item| item.answers().is_some_and(|id| self.state.call(id).is_some())) {
            let call_id = item.answers().map(ToString::to_string).unwrap_or_default();
            let text = format!(
                "{call_id} is a call of this conversation; give its result to tool_results, or with the next response"
            );
            return Err(Reject::new(Code::InvalidInput, text).param("items"));
        }
        self.check_tool_outputs(&items)?;
        self.add(items);
        Ok(Answer::Done)
    }

    pub(super) fn delete_item(&mut self, item_id: ItemId) -> Result<Answer, Reject> {
        self.check_idle()?;
        let state = &self.state;
        let given = state.responses.iter().flat_map(|response| &response.input).chain(&state.staged);
        let made = state.responses.iter().flat_map(|response| &response.output).map(|output| &output.item);
        let results = state.calls.iter().filter_map(|call| call.output.as_ref());
        if !given.chain(made).chain(results).any(|item| item.id == item_id) {
            return Err(Reject::new(
                Code::NotFound,
                "there is no such item in this conversation; GET its items for the ids there are",
            )
            .param("item_id"));
        }
        self.push(Event::ItemDeleted { item_id });
        // It may have been a call that others waited for.
        self.continue_turn();
        self.next_turn();
        Ok(Answer::Done)
    }

    pub(super) fn delete_response(&mut self, response_id: ResponseId) -> Result<Answer, Reject> {
        let Some(response) = self.state.response(response_id) else {
            return Err(response_not_found(response_id));
        };
        if !response.status.is_terminal() {
            return Err(busy(response_id));
        }
        self.push(Event::ResponseDeleted { response_id });
        Ok(Answer::Done)
    }

    /// Ends whatever runs or waits; nothing is begun any more, and the conversation is gone.
    pub(super) fn delete(&mut self) -> Answer {
        let reason = || Ending::Incomplete { reason: "conversation_deleted".to_owned() };
        for (intervention_id, response_id) in self.undecided_ids() {
            let message = "the conversation was deleted".to_owned();
            let error = super::event::ResponseError { code: Code::ConversationDeleted, message };
            self.push(Event::InterventionFailed { intervention_id, response_id, error });
        }
        let waiting: Vec<ResponseId> = self.state.queue.iter().map(|response| response.id).collect();
        for response_id in waiting {
            self.push(Terminal::from(reason()).of(response_id));
        }
        if let Some(active) = self.state.active() {
            let (id, generation) = (active.id, active.generation);
            let ending = if active.cancel_requested { Ending::Cancelled } else { reason() };
            self.abort(generation);
            self.end(id, ending);
        }
        self.push(Event::ConversationDeleted {});
        Answer::Done
    }

    fn undecided_ids(&self) -> Vec<(crate::ids::InterventionId, ResponseId)> {
        self.state.undecided().into_iter().map(|(id, waiting)| (id, waiting.response_id)).collect()
    }
}
