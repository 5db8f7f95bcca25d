//! Instructions for a running response: when they cut it, when they wait, and how all of them are committed.
//!
//! A commit is one batch: the open item closed, open calls closed with synthetic results, every merged
//! instruction committed, the old response ended, the successor created.

use std::sync::Arc;

use serde_json::Value;

use super::decide::{Draft, response_not_found};
use super::event::{Cut, Ending, Event, NewResponse, ResponseError};
use super::input::{Answer, Intervene, Receipt, Reject};
use super::item::{Item, ItemBody, ItemStatus};
use super::policy::{OnLate, OnMultiple, ToolsOnSteer, When};
use super::purpose::Purpose;
use super::response_config::ResponseConfig;
use super::state::{Intervention, InterventionStatus, Response, ResponseStatus};
use super::terminal::Terminal;
use crate::error::Code;
use crate::ids::{InterventionId, ResponseId};
use crate::prompt::PromptEnd;

/// Most instructions and turns of one conversation that wait.
const WAITING_MAX: usize = 16;
/// Most bytes of text in them.
const WAITING_BYTES_MAX: usize = 64 << 10;

impl Draft {
    pub(super) fn intervene(&mut self, intervene: Intervene) -> Result<Answer, Reject> {
        if intervene.items.is_empty() {
            return self.change_thinking(intervene);
        }
        let Intervene { intervention_id, response_id, items, when, on_multiple, on_late, tools, thinking } = intervene;
        let Some(response) = self.state.response(response_id) else {
            return Err(response_not_found(response_id));
        };
        let other = self.not_its_turn(response_id);
        let has_open_calls = self.state.open_calls().any(|call| call.response_id == response_id);
        let is_late = response.cancel_requested || response.status.is_terminal() && !has_open_calls;
        let enqueued = on_late == OnLate::Enqueue && (is_late || other.is_some());
        if !enqueued {
            if let Some(reject) = other {
                return Err(reject.detail("input", given_back(&items)));
            }
            if is_late {
                return Err(already_completed(response, &items));
            }
        }
        let running = !response.status.is_terminal();
        // The item that is open in a paused response may never end.
        let at_boundary = response.open_item().is_none() || response.paused;
        let replaced: Vec<InterventionId> = match on_multiple {
            OnMultiple::Merge => Vec::new(),
            OnMultiple::Replace => self.undecided_of(response_id),
        };
        if enqueued || when != When::Now || tools == ToolsOnSteer::Await && has_open_calls {
            self.check_room(&items, &replaced)?;
        }
        self.push(Event::InterventionAccepted { intervention_id, response_id, items, when, tools, enqueued, thinking });
        for earlier in replaced {
            self.push(Event::InterventionSuperseded { intervention_id: earlier, response_id, by: intervention_id });
        }
        if enqueued || !running && when == When::After {
            self.next_turn();
        } else if !running {
            self.commit(response_id, None, None);
        } else if when == When::Now || when == When::Item && at_boundary {
            self.cut(response_id);
        }
        Ok(self.receipt(intervention_id, response_id))
    }

    /// Another response runs, or this one still waits for its turn: only what has begun can be steered.
    fn not_its_turn(&self, response_id: ResponseId) -> Option<Reject> {
        let active = self.state.active().map(|active| active.id);
        let waits = self.state.queue.iter().any(|waiting| waiting.id == response_id);
        if !waits && active.is_none_or(|active| active == response_id) {
            return None;
        }
        let text = match active {
            Some(active) => format!("{response_id} does not run, {active} does; steer that one"),
            None => format!("{response_id} waits for its turn; steer it when it has begun, or cancel it"),
        };
        let active = active.map(|active| active.to_string());
        Some(Reject::new(Code::ResponseNotActive, text).detail("active_id", active))
    }

    /// Without items only the thinking of the response that runs changes, and nothing is cut.
    fn change_thinking(&mut self, intervene: Intervene) -> Result<Answer, Reject> {
        let Intervene { intervention_id, response_id, when, tools, thinking, .. } = intervene;
        let Some(response) = self.state.response(response_id) else {
            return Err(response_not_found(response_id));
        };
        if let Some(reject) = self.not_its_turn(response_id) {
            return Err(reject);
        }
        if response.status.is_terminal() || response.cancel_requested {
            return Err(already_completed(response, &[]));
        }
        let (generation, has_thought) = (response.generation, response.has_thought());
        let budget_tokens = thinking.as_ref().and_then(|thinking| thinking.budget_tokens);
        let (items, enqueued) = (Vec::new(), false);
        self.push(Event::InterventionAccepted { intervention_id, response_id, items, when, tools, enqueued, thinking });
        if has_thought {
            let message = "the response has closed its reasoning; nothing is left to change".to_owned();
            let error = ResponseError { code: Code::ReasoningAlreadyEnded, message };
            self.push(Event::InterventionFailed { intervention_id, response_id, error });
        } else {
            let successor_id = response_id;
            self.push(Event::InterventionCommitted { intervention_id, response_id, successor_id, cut: None });
            self.limit_thinking(generation, budget_tokens);
        }
        Ok(self.receipt(intervention_id, response_id))
    }

    fn receipt(&self, intervention_id: InterventionId, response_id: ResponseId) -> Answer {
        let decided = self.state.interventions.get(&intervention_id);
        let successor_id = decided.and_then(|decided| match decided.status {
            InterventionStatus::Committed { successor_id, .. } => Some(successor_id),
            _ => None,
        });
        let seq = decided.map_or(0, |decided| decided.seq);
        Answer::Intervened(Receipt { intervention_id, response_id, successor_id, seq })
    }

    pub(super) fn withdraw(&mut self, intervention_id: InterventionId) -> Result<Answer, Reject> {
        let Some(intervention) = self.state.interventions.get(&intervention_id) else {
            return Err(Reject::no_intervention(intervention_id).param("intervention_id"));
        };
        if !intervention.status.is_undecided() {
            let status = intervention.status.as_str();
            let text = format!("{intervention_id} is decided ({status}) and cannot be taken back; steer again instead");
            let reject = Reject::new(Code::InterventionDecided, text).detail("status", status);
            return Err(reject.detail("seq", intervention.seq));
        }
        let response_id = intervention.response_id;
        self.push(Event::InterventionWithdrawn { intervention_id, response_id });
        // What stood behind it may have its turn now.
        self.next_turn();
        Ok(Answer::Done)
    }

    /// Refuses what would make too much wait.
    pub(super) fn check_room(&self, items: &[Item], replaced: &[InterventionId]) -> Result<(), Reject> {
        let bytes = |items: &[Item]| items.iter().map(|item| item.text().len()).sum::<usize>();
        let undecided = self.state.undecided();
        let kept: Vec<_> = undecided.iter().filter(|(id, _)| !replaced.contains(id)).collect();
        let queued = &self.state.queue;
        let waiting = kept.len() + queued.len();
        let held = kept.iter().map(|(_, waiting)| bytes(&waiting.items)).sum::<usize>()
            + queued.iter().map(|response| bytes(&response.input)).sum::<usize>();
        if waiting < WAITING_MAX && held + bytes(items) <= WAITING_BYTES_MAX {
            return Ok(());
        }
        let text = format!(
            "{waiting} instructions wait with {held} bytes; at most {WAITING_MAX} and {WAITING_BYTES_MAX} bytes may: \
             wait, or take some back"
        );
        Err(Reject::new(Code::TooManyPendingSteers, text).detail("input", given_back(items)))
    }

    /// Everything undecided that was meant for this response and did not come late.
    fn undecided_of(&self, response_id: ResponseId) -> Vec<InterventionId> {
        let meant = |waiting: &Intervention| waiting.response_id == response_id && !waiting.enqueued;
        self.state.undecided().into_iter().filter(|(_, waiting)| meant(waiting)).map(|(id, _)| id).collect()
    }

    /// The instructions that the next boundary of this response commits.
    pub(super) fn steers_of(&self, response_id: ResponseId) -> Vec<InterventionId> {
        let all = self.undecided_of(response_id).into_iter();
        all.filter(|id| self.state.interventions.get(id).is_some_and(|it| it.when != When::After)).collect()
    }

    /// Nothing that waits for this response joins the transcript any more.
    pub(super) fn fail_steers(&mut self, response_id: ResponseId, code: Code) {
        let message = format!("{response_id} ended before the instruction was decided");
        for intervention_id in self.undecided_of(response_id) {
            let error = ResponseError { code, message: message.clone() };
            self.push(Event::InterventionFailed { intervention_id, response_id, error });
        }
    }

    /// Cuts the response that runs, and commits all that wait for a boundary.
    pub(super) fn cut(&mut self, response_id: ResponseId) {
        let Some(response) = self.state.response(response_id) else { return };
        self.abort(response.generation);
        let cut = self.cut_at(response_id);
        self.close_item(response_id, ItemStatus::Incomplete);
        let ending = Ending::Incomplete { reason: "steered".to_owned() };
        self.commit(response_id, Some(cut), Some(ending.into()));
    }

    /// As [`Self::cut`], for a successor that a client describes.
    pub(super) fn cut_for(&mut self, response_id: ResponseId, successor_id: ResponseId, config: ResponseConfig) {
        let Some(response) = self.state.response(response_id) else { return };
        self.abort(response.generation);
        let cut = self.cut_at(response_id);
        self.close_item(response_id, ItemStatus::Incomplete);
        self.close_calls("steered", |_| true);
        self.commit_all(self.steers_of(response_id), successor_id, Some(cut));
        let ending = Ending::Incomplete { reason: "steered".to_owned() };
        self.push(Terminal::from(ending).of(response_id));
        self.succeed(response_id, successor_id, config);
    }

    /// Where the response would be cut now: behind its last shown token, or in front of an unfinished call.
    fn cut_at(&self, response_id: ResponseId) -> Cut {
        let response = self.state.response(response_id);
        let open = response.and_then(Response::open_item);
        let shown = response.map_or(0, |response| response.usage.output_tokens);
        Cut {
            item_id: open.map(|output| output.item.id),
            token_index: match open {
                Some(output) if matches!(output.item.body, ItemBody::FunctionCall { .. }) => output.first_token,
                _ => shown,
            },
        }
    }

    /// Where a response was cut that a steer has ended.
    fn was_cut_at(&self, response_id: ResponseId) -> Option<Cut> {
        let response = self.state.response_even_deleted(response_id)?;
        if !matches!(&response.status, ResponseStatus::Ended(Ending::Incomplete { reason }) if reason == "steered") {
            return None;
        }
        let last = response.output.last();
        let kept = response.output.iter().map(|output| output.tokens.len() as u32).sum();
        let cut = last.filter(|output| output.item.status == ItemStatus::Incomplete);
        Some(Cut {
            item_id: cut.map(|output| output.item.id),
            token_index: last.filter(|output| !output.is_kept()).map_or(kept, |output| output.first_token),
        })
    }

    /// Commits what waits for a boundary of this response, and ends it if it runs. Where all of it awaits open
    /// calls, it waits on.
    pub(super) fn commit(&mut self, id: ResponseId, cut: Option<Cut>, terminal: Option<Terminal>) {
        let steers = self.steers_of(id);
        let awaits = |steer: &InterventionId| {
            self.state.interventions.get(steer).is_some_and(|steer| steer.tools == ToolsOnSteer::Await)
        };
        let has_open_calls = self.state.open_calls().next().is_some();
        let waits = has_open_calls && !steers.is_empty() && steers.iter().all(awaits);
        let successor_id = ResponseId::draw(&mut self.now.fresh);
        if waits {
            self.make_pending(&steers);
        } else {
            self.close_calls("steered", |_| true);
            self.close_staged_calls();
            // Before the terminal, so that the last thing a reader of the old response sees names the successor.
            self.commit_all(steers, successor_id, cut);
        }
        if let Some(terminal) = terminal {
            self.push(terminal.of(id));
        }
        if !waits && let Some(config) = self.state.response(id).map(|response| response.config.clone()) {
            let config = self.with_thinking(config, successor_id);
            self.succeed(id, successor_id, config);
        }
    }

    fn make_pending(&mut self, steers: &[InterventionId]) {
        for id in steers {
            let waiting = self.state.interventions.get(id).filter(|it| it.status == InterventionStatus::Accepted);
            if let Some(response_id) = waiting.map(|waiting| waiting.response_id) {
                self.push(Event::InterventionPending { intervention_id: *id, response_id });
            }
        }
    }

    fn succeed(&mut self, previous: ResponseId, id: ResponseId, config: ResponseConfig) {
        let previous = Some(previous);
        self.start(NewResponse { id, previous, input: Vec::new(), config, enqueued: false });
    }

    /// An instruction has its turn, and what waited for results goes along.
    pub(super) fn commit_turn(&mut self, id: InterventionId) {
        let Some(meant_for) = self.state.interventions.get(&id).map(|waiting| waiting.response_id) else { return };
        let last = self.state.responses.last();
        let like = self.state.response(meant_for).or(last.map(AsRef::as_ref));
        let (Some(config), Some(previous)) = (like.map(|it| it.config.clone()), last.map(|last| last.id)) else {
            return;
        };
        let successor_id = ResponseId::draw(&mut self.now.fresh);
        self.close_calls("steered", |_| true);
        self.close_staged_calls();
        self.commit_pending(successor_id);
        let is_undecided = self.state.interventions.get(&id).is_some_and(|turn| turn.status.is_undecided());
        self.commit_all(if is_undecided { vec![id] } else { Vec::new() }, successor_id, None);
        let config = self.with_thinking(config, successor_id);
        self.succeed(previous, successor_id, config);
    }

    /// Whatever waited for results joins this response.
    pub(super) fn commit_pending(&mut self, successor_id: ResponseId) {
        let undecided = self.state.undecided().into_iter();
        let pending = undecided.filter(|(_, waiting)| waiting.status == InterventionStatus::Pending);
        let pending: Vec<_> = pending.map(|(id, waiting)| (id, waiting.response_id)).collect();
        for (id, response_id) in pending {
            self.commit_all(vec![id], successor_id, self.was_cut_at(response_id));
        }
    }

    /// The settings of a successor: inherited, but for the thinking that its instructions ask for; the last one wins.
    /// It begins an answer of its own.
    pub(super) fn with_thinking(&self, mut config: ResponseConfig, successor_id: ResponseId) -> ResponseConfig {
        let answers = |steer: &&Arc<Intervention>| match steer.status {
            InterventionStatus::Committed { successor_id: id, .. } => id == successor_id,
            _ => false,
        };
        let mut committed: Vec<_> = self.state.interventions.values().filter(answers).collect();
        committed.sort_by_key(|intervention| intervention.accepted_seq);
        if let Some(thinking) = committed.into_iter().rev().find_map(|intervention| intervention.thinking.clone()) {
            config.thinking = Some(thinking);
        }
        (config.prompt_end, config.purpose, config.extras.prompt) = (PromptEnd::Answer, Purpose::Answer, None);
        // Nobody asked for this one to be kept among the chats.
        config.extras.chat_of = None;
        config
    }

    fn commit_all(&mut self, steers: Vec<InterventionId>, successor_id: ResponseId, cut: Option<Cut>) {
        for intervention_id in steers {
            let Some(response_id) = self.state.interventions.get(&intervention_id).map(|it| it.response_id) else {
                continue;
            };
            self.push(Event::InterventionCommitted { intervention_id, response_id, successor_id, cut });
        }
    }

    /// Whether an instruction waits for the output item that has just ended.
    pub(super) fn waits_for_item(&self, response_id: ResponseId) -> bool {
        !self.steers_of(response_id).is_empty()
    }
}

/// The instruction came too late: names the end that won, and gives the input back.
fn already_completed(response: &Response, items: &[Item]) -> Reject {
    let final_status = if response.cancel_requested { "cancelled" } else { response.status.as_str() };
    let text = format!("{} has ended ({final_status}); send the instruction as the next turn", response.id);
    Reject::new(Code::ResponseAlreadyCompleted, text)
        .detail("final_status", final_status)
        .detail("final_seq", response.ended_seq)
        .detail("successor_id", response.successor.map(|id| id.to_string()))
        .detail("input", given_back(items))
}

/// The instruction's text, for the client to use again.
fn given_back(items: &[Item]) -> Value {
    items.iter().map(Item::text).collect()
}
