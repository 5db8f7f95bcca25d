//! A request for a response: at once, behind the one that runs, or in its place.

use super::calls::unanswered;
use super::decide::{Draft, busy};
use super::event::{Event, NewResponse};
use super::input::{Answer, Create, Now, Reject};
use super::item::{Item, ItemBody};
use super::policy::{IfBusy, ToolsOnSteer, When};
use super::purpose::Purpose;
use super::state::{Intervention, InterventionStatus, State};
use crate::error::Code;
use crate::ids::{CallId, InterventionId};

/// The state with this request's response as its last, whatever runs and waits there. Of `whole` input, calls that
/// nobody answered are closed at its end too, as they would be; else something may follow.
pub fn imagined(state: State, create: Create, whole: bool, now: Now) -> State {
    let mut draft = Draft::new(state, now);
    let input = if whole { draft.close_unanswered(create.input) } else { draft.close_in_place(create.input).0 };
    let mut new = NewResponse { id: create.response_id, previous: None, input, config: create.config, enqueued: false };
    draft.take_brought_tools(&mut new);
    draft.push(Event::ResponseCreated(Box::new(new)));
    draft.state
}

impl Draft {
    pub(super) fn create(&mut self, mut create: Create) -> Result<Answer, Reject> {
        let last = self.state.responses.last().map(|response| response.id);
        if let Some(previous) = create.previous
            && Some(previous) != last
        {
            return Err(Reject::new(
                Code::ResponseNotActive,
                format!("{previous} is not the last response of its conversation; the request must fork it"),
            )
            .param("previous_response_id"));
        }
        let policies = create.policies.or(self.state.defaults);
        let outlives = create.config.background || create.in_conversation;
        create.config.policy = policies.resolve(create.config.store, outlives);
        let response_id = create.response_id;
        self.check_prefill(&create)?;
        if let Some(active) = self.state.active() {
            let ending = active.cancel_requested;
            match policies.if_busy.unwrap_or_default() {
                IfBusy::Fail => return Err(busy(active.id)),
                IfBusy::Steer if !ending => self.create_in_place(create)?,
                IfBusy::Steer | IfBusy::Enqueue => self.enqueue(create)?,
            }
            return Ok(Answer::Created(response_id));
        }
        let is_first = self.state.next_input().is_empty() && self.state.responses.is_empty();
        if create.input.is_empty() && is_first && create.config.purpose != Purpose::Prefill {
            let text = "the input is empty; give at least one message";
            return Err(Reject::new(Code::InvalidInput, text).param("input"));
        }
        // Some clients send the call again beside its result: it is in the transcript already.
        let is_open = |call_id: &CallId| self.state.open_calls().any(|call| call.call_id == *call_id);
        create.input.retain(|item| !item.calls().is_some_and(is_open));
        self.check_tool_outputs(&create.input)?;
        if self.has_earlier_turns() && !create.input.iter().any(|item| item.answers().is_some()) {
            self.take_turn_behind(create)?;
            return Ok(Answer::Created(response_id));
        }
        let input = self.close_unanswered(create.input);
        self.commit_pending(response_id);
        self.start(NewResponse { id: response_id, previous: last, input, config: create.config, enqueued: false });
        Ok(Answer::Created(response_id))
    }

    /// Closes every call that the input does not answer, and gives the input as its response takes it.
    fn close_unanswered(&mut self, input: Vec<Item>) -> Vec<Item> {
        let answered: Vec<CallId> = input.iter().filter_map(Item::answers).cloned().collect();
        self.close_calls("superseded", |call| !answered.contains(&call.call_id));
        self.close_brought_calls(input)
    }

    /// A prompt that is only computed decides nothing: it has no place where calls wait for their results, or
    /// instructions and responses for their turn.
    fn check_prefill(&self, create: &Create) -> Result<(), Reject> {
        if create.config.purpose != Purpose::Prefill {
            return Ok(());
        }
        if let Some(active) = self.state.active() {
            return Err(busy(active.id));
        }
        let is_answered = |call: &CallId| create.input.iter().any(|item| item.answers() == Some(call));
        let waits = self.state.open_calls().any(|call| !is_answered(&call.call_id));
        if waits || !self.state.undecided().is_empty() || !self.state.queue.is_empty() {
            let text = "calls wait for their results, or instructions for their turn; give the results first, or leave \
                        generate out";
            return Err(Reject::new(Code::ConversationBusy, text).param("generate"));
        }
        Ok(())
    }

    /// Only messages can wait, or cut in: results and calls belong to the turn that runs.
    fn check_messages(&self, create: &Create) -> Result<(), Reject> {
        if create.input.is_empty() {
            let text = "the input is empty; give at least one message";
            return Err(Reject::new(Code::InvalidInput, text).param("input"));
        }
        match create.input.iter().position(|item| !matches!(item.body, ItemBody::Message { .. })) {
            Some(place) if create.input[place].answers().is_some() => {
                Err(self.state.active().map_or_else(|| Reject::new(Code::Internal, "nothing runs"), |it| busy(it.id)))
            }
            Some(place) => {
                let text = "behind or instead of a running response only messages can be given; leave other items out";
                Err(Reject::new(Code::InvalidInput, text).param(format!("input[{place}]")))
            }
            None => Ok(()),
        }
    }

    fn enqueue(&mut self, create: Create) -> Result<(), Reject> {
        self.check_messages(&create)?;
        self.check_room(&create.input, &[])?;
        let (id, input, config) = (create.response_id, create.input, create.config);
        let mut new = NewResponse { id, previous: None, input, config, enqueued: true };
        self.take_brought_tools(&mut new);
        self.push(Event::ResponseCreated(Box::new(new)));
        Ok(())
    }

    /// Whether turns of their own wait although nothing runs: behind calls that something awaits.
    fn has_earlier_turns(&self) -> bool {
        let is_turn = |waiting: &Intervention| waiting.status == InterventionStatus::Accepted;
        !self.state.queue.is_empty() || self.state.undecided().iter().any(|(_, waiting)| is_turn(waiting))
    }

    /// The request closes the open calls, and so lets the turns go on that came before it; its own comes then.
    fn take_turn_behind(&mut self, create: Create) -> Result<(), Reject> {
        self.enqueue(create)?;
        self.close_calls("superseded", |_| true);
        self.next_turn();
        Ok(())
    }

    /// The request cuts the response that runs; its own settings win.
    fn create_in_place(&mut self, create: Create) -> Result<(), Reject> {
        self.check_messages(&create)?;
        let Some(response_id) = self.state.active().map(|active| active.id) else { return Ok(()) };
        let intervention_id = InterventionId::draw(&mut self.now.fresh);
        let (items, when, tools) = (create.input, When::Now, ToolsOnSteer::Cancel);
        let (enqueued, thinking) = (false, None);
        self.push(Event::InterventionAccepted { intervention_id, response_id, items, when, tools, enqueued, thinking });
        self.cut_for(response_id, create.response_id, create.config);
        Ok(())
    }

    /// Each result answers one open call, or a call that the same input brings along.
    pub(super) fn check_tool_outputs(&self, input: &[Item]) -> Result<(), Reject> {
        let mut open: Vec<CallId> = self.state.open_calls().map(|call| call.call_id.clone()).collect();
        open.extend(unanswered(self.state.staged.iter()).into_iter().map(|(_, call_id)| call_id));
        for (place, item) in input.iter().enumerate() {
            open.extend(item.calls().cloned());
            let Some(call_id) = item.answers() else { continue };
            if let Some(place) = open.iter().position(|open| open == call_id) {
                open.remove(place);
            } else if let Some(first) = input[..place].iter().position(|item| item.answers() == Some(call_id)) {
                let text = format!(
                    "the call {call_id} has two results, the items {first} and {place} of the input, counted from 0; \
                     give one"
                );
                return Err(Reject::new(Code::InvalidInput, text).param("input"));
            } else if self.was_called(call_id, &input[..place]) {
                return Err(self.closed_call(call_id).param("input"));
            } else {
                let text =
                    format!("no call {call_id} is open in this conversation; give results of its own calls only");
                return Err(Reject::new(Code::ToolCallNotFound, text).param("input"));
            }
        }
        Ok(())
    }

    /// Whether the model made the call, or a client brought it, at any time before.
    fn was_called(&self, call_id: &CallId, input: &[Item]) -> bool {
        let brought = self.state.responses.iter().flat_map(|response| &response.input);
        let mut brought = brought.chain(&self.state.staged).chain(input).filter_map(Item::calls);
        self.state.call(call_id).is_some() || brought.any(|id| id == call_id)
    }
}
