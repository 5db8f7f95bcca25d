//! Decisions: which events follow from an input, given the state.
//!
//! A [`Draft`] folds each event in as it is decided, so that later parts of a decision see the earlier ones. The
//! whole of it is journaled as one batch: nothing in between can ever be seen. What follows from each kind of
//! input has a file of its own.

use super::effect::{Effect, Step};
use super::event::{Ending, Event, NewResponse, ResponseError};
use super::input::{Answer, Input, Now, Reject};
use super::item::ItemStatus;
use super::state::{InterventionStatus, Response, State};
use super::terminal::Terminal;
use crate::error::Code;
use crate::ids::ResponseId;

/// Decides what follows from `input`. Pure: the same arguments give the same step.
pub fn decide(state: &State, input: Input, now: Now) -> Result<Step, Reject> {
    if state.deleted {
        return Err(Reject::new(Code::ConversationNotFound, "the conversation was deleted; open a new one"));
    }
    let mut draft = Draft::new(state.clone(), now);
    let answer = draft.decide(input)?;
    Ok(Step { events: draft.events, effects: draft.effects, answer })
}

/// A decision in the making.
pub(super) struct Draft {
    /// The state with all events of the draft folded in.
    pub(super) state: State,
    pub(super) now: Now,
    events: Vec<super::event::Recorded>,
    effects: Vec<Effect>,
}

impl Draft {
    pub(super) fn new(state: State, now: Now) -> Self {
        Self { state, now, events: Vec::new(), effects: Vec::new() }
    }

    fn decide(&mut self, input: Input) -> Result<Answer, Reject> {
        match input {
            Input::Open { id, principal, tenant, metadata, items, fork, defaults } => {
                if self.state.id.is_none() {
                    self.check_tool_outputs(&items)?;
                    let (forked_from, template_ms) = fork.as_ref().map(|fork| (fork.from, fork.template_ms)).unzip();
                    self.push(Event::ConversationCreated {
                        id,
                        principal,
                        tenant,
                        metadata,
                        forked_from,
                        defaults,
                        template_ms,
                    });
                    self.copy_turns(fork.map(|fork| fork.turns).unwrap_or_default());
                    if !items.is_empty() {
                        self.add(items);
                    }
                }
                return Ok(Answer::Opened);
            }
            Input::Update { metadata } => {
                self.push(Event::ConversationUpdated { metadata });
                return Ok(Answer::Done);
            }
            Input::AddItems { items } => return self.add_items(items),
            Input::DeleteItem { item_id } => return self.delete_item(item_id),
            Input::DeleteResponse { response_id } => return self.delete_response(response_id),
            Input::Delete => return Ok(self.delete()),
            Input::Create(create) => return self.create(*create),
            Input::Intervene(intervene) => return self.intervene(intervene),
            Input::Withdraw { intervention_id } => return self.withdraw(intervention_id),
            Input::Cancel { response_id, cascade } => return self.cancel(response_id, cascade),
            Input::Interrupt { response_id } => return self.interrupt(response_id),
            Input::ClaimCall { call, lease_ms } => return self.claim_call(&call, lease_ms),
            Input::AnswerCall { call, output, is_error } => return self.answer_call(&call, output, is_error),
            Input::AnswerCalls { response_id, results } => return self.answer_calls(response_id, results),
            Input::Attendance { present, fingerprint } => self.attendance(present, fingerprint.as_deref()),
            Input::Tick => self.tick(),
            Input::GenerationStarted { generation, prompt_tokens, cached_tokens, prompt } => {
                self.generation_started(generation, prompt_tokens, cached_tokens, prompt);
            }
            Input::Generated { generation, outputs } => self.generated(generation, outputs),
            Input::GenerationEnded { generation, outputs, tail_tokens, usage, end } => {
                self.generation_ended(generation, outputs, (tail_tokens, usage), end);
            }
            Input::Stopping => self.stopping(),
            Input::Restarted { fingerprint } => self.restarted(fingerprint.as_deref()),
            Input::Rewound { epoch } => self.rewound(epoch),
            Input::Silence => self.silence(),
        }
        Ok(Answer::None)
    }

    /// Adds an event and gives its seq.
    pub(super) fn push(&mut self, event: Event) -> u64 {
        let recorded = self.state.number(event, self.now.unix_ms);
        self.state.apply_next(&recorded);
        self.events.push(recorded);
        self.state.last_seq
    }

    /// Records a new response and asks for its generation.
    pub(super) fn start(&mut self, mut new: NewResponse) {
        let response_id = new.id;
        self.take_brought_tools(&mut new);
        self.generate(response_id, Event::ResponseCreated(Box::new(new)));
    }

    /// Tools that the transcript brought can be called by whatever is generated behind it.
    pub(super) fn take_brought_tools(&self, new: &mut NewResponse) {
        let earlier = self.state.responses.iter().flat_map(|response| &response.input);
        new.config.take_tools(earlier.chain(&self.state.staged).chain(&new.input));
    }

    /// Asks for the generation that this event stands for, unless its conversation has no tokens left for it.
    pub(super) fn generate(&mut self, response_id: ResponseId, event: Event) {
        let generation = self.push(event);
        if self.ends_unbegun(response_id) {
            return;
        }
        self.effects.push(Effect::StartGeneration { generation, response_id });
    }

    /// Takes the sequence of a response out of the engine.
    pub(super) fn abort(&mut self, generation: Option<u64>) {
        self.effects.extend(generation.map(|generation| Effect::AbortGeneration { generation }));
    }

    /// The response may think this long from now on.
    pub(super) fn limit_thinking(&mut self, generation: Option<u64>, budget_tokens: Option<u32>) {
        let effect = |generation| Effect::LimitThinking { generation, budget_tokens };
        self.effects.extend(generation.map(effect));
    }

    /// While a turn's calls are made, what is certain of the next prompt can be computed; and while a person reads, if
    /// the request says that more will come.
    pub(super) fn foresee(&mut self, response_id: ResponseId) {
        let Some(response) = self.state.response(response_id) else { return };
        let has_calls = self.state.open_calls().any(|call| call.response_id == response_id);
        let is_wanted = response.config.extras.speculative_prefill.unwrap_or(has_calls);
        if is_wanted && self.state.active().is_none() {
            self.effects.push(Effect::Foresee { response_id });
        }
    }

    /// Writes the terminal of a response that ended by itself, and in the same batch what follows: its steers'
    /// successor, the turn that takes its calls' results, or the next turn that waits.
    pub(super) fn end_naturally(&mut self, id: ResponseId, item: ItemStatus, terminal: Terminal) {
        self.close_item(id, item);
        if self.steers_of(id).is_empty() {
            self.push(terminal.of(id));
            self.continue_turn();
        } else {
            self.commit(id, None, Some(terminal));
        }
        self.next_turn();
    }

    /// Writes the terminal of a response that was ended from outside: its calls are closed, what waited for it
    /// fails, and its input goes back.
    pub(super) fn end(&mut self, response_id: ResponseId, ending: Ending) {
        self.close_item(response_id, ItemStatus::Incomplete);
        let (code, reason) = match &ending {
            Ending::Cancelled => (Code::ResponseCancelled, "cancelled"),
            Ending::Failed { .. } => (Code::ResponseFailed, "failed"),
            Ending::Incomplete { reason } if reason == "interrupted" => (Code::ResponseCancelled, "interrupted"),
            Ending::Incomplete { reason } if reason == "conversation_deleted" => {
                (Code::ConversationDeleted, "conversation_deleted")
            }
            _ => (Code::Disconnected, "disconnected"),
        };
        self.fail_steers(response_id, code);
        // An interrupt leaves its finished calls to the client, who says how it goes on.
        if reason != "interrupted" {
            self.close_calls(reason, |call| call.response_id == response_id);
        }
        self.push(Terminal::from(ending).of(response_id));
        self.next_turn();
    }

    /// Begins what waits for its turn, if nothing runs: responses and instructions in the order in which they came.
    pub(super) fn next_turn(&mut self) {
        if self.state.active().is_some() || self.state.deleted {
            return;
        }
        let has_open_calls = self.state.open_calls().next().is_some();
        let undecided = self.state.undecided();
        // What waited for results cut a turn short: it goes before whatever is a turn of its own.
        let pending = undecided.iter().find(|(_, waiting)| waiting.status == InterventionStatus::Pending);
        if has_open_calls && pending.is_some() {
            return;
        }
        let instruction = pending.or(undecided.first());
        let response = self.state.queue.first().map(|response| (response.id, response.created_seq));
        match (instruction, response) {
            (Some((_, first)), Some((id, seq))) if pending.is_none() && seq < first.accepted_seq => self.dequeue(id),
            (Some((_, first)), _) if has_open_calls && first.tools == super::policy::ToolsOnSteer::Await => {}
            (Some((id, _)), _) => {
                let id = *id;
                self.commit_turn(id);
            }
            (None, Some((id, _))) => self.dequeue(id),
            (None, None) => {}
        }
    }

    fn dequeue(&mut self, response_id: ResponseId) {
        self.close_calls("superseded", |_| true);
        self.close_staged_calls();
        self.commit_pending(response_id);
        self.generate(response_id, Event::ResponseDequeued { response_id });
    }

    /// The response that this generation belongs to, unless its result comes too late.
    pub(super) fn generating(&self, generation: u64) -> Option<&Response> {
        self.state.active().filter(|active| active.generation == Some(generation))
    }
}

pub(super) fn response_not_found(id: ResponseId) -> Reject {
    Reject::no_response(id).param("response_id")
}

/// The conversation is at work on something else.
pub(super) fn busy(active: ResponseId) -> Reject {
    let text = format!("{active} is running; wait for it, steer it, or cancel it first");
    Reject::new(Code::ConversationBusy, text).detail("active_id", active.to_string())
}

/// A failure with its code and text.
pub(super) fn failed(code: Code, message: impl Into<String>) -> Ending {
    Ending::Failed { error: ResponseError { code, message: message.into() } }
}
