//! The core against the reference, under random sequences of what clients, engine and process do.

use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::reference::{Act, End, Entry, Is, Outcome, Reference, Status};
use super::*;
use crate::error::Code;
use crate::ids::CallId;

/// How long a claimed call is its worker's, and a response that nobody reads goes on.
const LEASE_MS: u64 = 1_000;

/// The core, and what the reference's numbers mean in it.
pub(super) struct Real {
    talk: Talk,
    responses: Vec<ResponseId>,
    steers: Vec<InterventionId>,
    calls: Vec<CallId>,
    clock: usize,
}

impl ReferenceStateMachine for Reference {
    type State = Self;
    type Transition = Act;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Act> {
        let if_busy = select(vec![IfBusy::Fail, IfBusy::Enqueue, IfBusy::Steer]);
        let unread = select(vec![OnDisconnect::Continue, OnDisconnect::Pause, OnDisconnect::Cancel]);
        let create = (if_busy, any::<bool>(), unread.clone()).prop_map(|(if_busy, answers, unread)| Act::Create {
            if_busy,
            answers,
            unread,
        });
        let end = select(vec![End::Stop, End::Stop, End::Length, End::Aborted, End::Failed]).prop_map(Act::End);
        let mut acts: Vec<(u32, BoxedStrategy<Act>)> = vec![
            (3, create.boxed()),
            (6, Just(Act::Text).boxed()),
            (4, Just(Act::Call).boxed()),
            (4, end.boxed()),
            (1, Just(Act::Restart).boxed()),
            (2, select(vec![Act::Leave, Act::Leave, Act::Return, Act::TimePasses]).boxed()),
        ];
        if !state.turns.is_empty() {
            // Mostly the last ones, since the others only refuse.
            let last = state.turns.len();
            let target = || prop_oneof![5 => last.saturating_sub(2)..last, 1 => 0..last];
            acts.push((6, steer(target().boxed())));
            let cancel = (target(), any::<bool>()).prop_map(|(target, cascade)| Act::Cancel { target, cascade });
            acts.push((2, cancel.boxed()));
            acts.push((1, target().prop_map(Act::Interrupt).boxed()));
            let fork = (0..state.begun.len(), any::<bool>(), unread);
            let fork = fork.prop_map(|(place, answers, unread)| Act::Fork { place, answers, unread });
            acts.push((1, fork.boxed()));
            acts.push((1, target().prop_map(Act::Delete).boxed()));
            acts.push((1, (target(), 0..2_u8).prop_map(|(target, output)| Act::Inject { target, output }).boxed()));
        }
        if !state.steers.is_empty() {
            acts.push((1, (0..state.steers.len()).prop_map(Act::Withdraw).boxed()));
        }
        if !state.calls.is_empty() {
            let last = state.calls.len();
            let call = move || last.saturating_sub(3)..last;
            acts.push((2, call().prop_map(Act::Claim).boxed()));
            acts.push((5, (call(), 0..2_u8).prop_map(|(call, output)| Act::Answer { call, output }).boxed()));
        }
        proptest::strategy::Union::new_weighted(acts).boxed()
    }

    fn apply(mut state: Self, act: &Act) -> Self {
        state.act(act);
        state
    }

    /// Shrinking takes acts away: what a later one names must still be there.
    fn preconditions(state: &Self, act: &Act) -> bool {
        match *act {
            Act::Steer { target, .. }
            | Act::Cancel { target, .. }
            | Act::Interrupt(target)
            | Act::Delete(target)
            | Act::Inject { target, .. } => target < state.turns.len(),
            Act::Fork { place, .. } => place < state.begun.len(),
            Act::Withdraw(steer) => steer < state.steers.len(),
            Act::Claim(call) | Act::Answer { call, .. } => call < state.calls.len(),
            _ => true,
        }
    }
}

fn steer(target: BoxedStrategy<usize>) -> BoxedStrategy<Act> {
    let when = select(vec![When::Now, When::Item, When::After]);
    let on_multiple = select(vec![OnMultiple::Merge, OnMultiple::Merge, OnMultiple::Replace]);
    let on_late = select(vec![OnLate::Fail, OnLate::Enqueue]);
    let tools = select(vec![ToolsOnSteer::Cancel, ToolsOnSteer::Await]);
    (target, when, on_multiple, on_late, tools)
        .prop_map(|(target, when, on_multiple, on_late, tools)| Act::Steer {
            target,
            when,
            on_multiple,
            on_late,
            tools,
        })
        .boxed()
}

impl Real {
    /// Says it to the core and gives the code of its refusal.
    fn say(&mut self, input: Input) -> Option<Code> {
        let now = Now { unix_ms: self.talk.now_ms, fresh: FreshIds::from_seed(self.clock as u128) };
        let step = match decide(&self.talk.state, input, now) {
            Ok(step) => step,
            Err(reject) => return Some(reject.code),
        };
        for recorded in step.events {
            self.talk.state.apply(&recorded);
            match &recorded.event {
                Event::ResponseCreated(new) => self.responses.push(new.id),
                Event::InterventionAccepted { intervention_id, .. } => self.steers.push(*intervention_id),
                Event::ToolCallRequested { call_id, attempt: 1, .. } => self.calls.push(call_id.clone()),
                _ => {}
            }
            self.talk.log.push(recorded);
        }
        match step.answer {
            Answer::Refused(reject) => Some(reject.code),
            _ => None,
        }
    }

    fn user(&mut self, text: String) -> Item {
        Item::message(ItemId::draw(&mut self.talk.fresh), Role::User, text)
    }

    fn create(&mut self, if_busy: IfBusy, answers: bool, unread: OnDisconnect) -> Option<Code> {
        let asked = answers && self.talk.state.active().is_none();
        let open = self.talk.state.open_calls().map(|call| call.call_id.clone()).filter(|_| asked).collect();
        let create = self.request(open, if_busy, unread);
        self.say(Input::Create(Box::new(create)))
    }

    /// A request with results of these calls, and what the user says.
    fn request(&mut self, answered: Vec<CallId>, if_busy: IfBusy, unread: OnDisconnect) -> Create {
        let mut input: Vec<Item> = answered.into_iter().map(|call_id| self.result(call_id, 0)).collect();
        input.push(self.user(format!("create {}", self.clock)));
        let (on_disconnect, grace_ms, if_busy) = (Some(unread), Some(LEASE_MS), Some(if_busy));
        let policies = Policies { on_disconnect, grace_ms, if_busy, ..Policies::default() };
        let response_id = ResponseId::draw(&mut self.talk.fresh);
        Create { response_id, input, config: config(), previous: None, policies, in_conversation: true }
    }

    /// The fork takes the conversation's place.
    fn fork(&mut self, place: usize, answers: bool, unread: OnDisconnect) -> Option<Code> {
        let parent = self.talk.state.clone();
        let from = parent.responses[place].id;
        let made = parent.calls.iter().filter(|call| answers && call.response_id == from);
        let create = self.request(made.map(|call| call.call_id.clone()).collect(), IfBusy::Fail, unread);
        let copy = match super::super::fork(&parent, from, &create, &mut self.talk.fresh) {
            Ok(copy) => copy,
            Err(reject) => return Some(reject.code),
        };
        (self.talk.state, self.talk.log) = (State::default(), Vec::new());
        (self.responses, self.steers) = (copy.turns.iter().map(|turn| turn.response_id).collect(), Vec::new());
        let (id, principal, metadata) = (ConversationId::draw(&mut self.talk.fresh), String::new(), Map::new());
        let (items, fork, defaults) = (vec![], Some(Box::new(copy)), Policies::default());
        let opened = self.say(Input::Open { id, principal, tenant: None, metadata, items, fork, defaults });
        self.calls.retain(|call| self.talk.state.call(call).is_some());
        opened.or_else(|| self.say(Input::Create(Box::new(create))))
    }

    fn result(&mut self, call_id: CallId, output: u8) -> Item {
        let (id, status) = (ItemId::draw(&mut self.talk.fresh), ItemStatus::Completed);
        let output = output.to_string();
        let body = ItemBody::FunctionCallOutput {
            call_id,
            output,
            synthetic: false,
            is_error: false,
            call_kind: CallKind::Function,
        };
        Item { id, status, body }
    }

    fn call(&self, call: usize) -> CallRef {
        CallRef { response_id: None, call_id: self.calls[call].clone(), attempt: None }
    }

    fn act(&mut self, act: &Act) -> Option<Code> {
        self.clock += 1;
        let generation = self.talk.state.active().and_then(|active| active.generation).unwrap_or_default();
        let token = self.clock as u32;
        match *act {
            Act::Create { if_busy, answers, unread } => self.create(if_busy, answers, unread),
            Act::Fork { place, answers, unread } => self.fork(place, answers, unread),
            Act::Steer { target, when, on_multiple, on_late, tools } => {
                let intervention_id = InterventionId::draw(&mut self.talk.fresh);
                let (response_id, items) = (self.responses[target], vec![self.user(format!("steer {}", self.clock))]);
                let thinking = None;
                let intervene =
                    Intervene { intervention_id, response_id, items, when, on_multiple, on_late, tools, thinking };
                self.say(Input::Intervene(intervene))
            }
            Act::Withdraw(steer) => self.say(Input::Withdraw { intervention_id: self.steers[steer] }),
            Act::Cancel { target, cascade } => {
                self.say(Input::Cancel { response_id: Some(self.responses[target]), cascade })
            }
            Act::Claim(call) => self.say(Input::ClaimCall { call: self.call(call), lease_ms: LEASE_MS }),
            Act::Answer { call, output } => {
                let (call, output) = (self.call(call), output.to_string());
                self.say(Input::AnswerCall { call, output, is_error: false })
            }
            Act::Inject { target, output } => {
                let response_id = self.responses[target];
                let calls = self.calls.iter().filter(|id| self.talk.state.call(id).unwrap().response_id == response_id);
                let results = calls.cloned().collect::<Vec<_>>().into_iter().map(|id| self.result(id, output));
                let results = results.collect();
                self.say(Input::AnswerCalls { response_id, results })
            }
            Act::Interrupt(target) => self.say(Input::Interrupt { response_id: self.responses[target] }),
            Act::Delete(target) => self.say(Input::DeleteResponse { response_id: self.responses[target] }),
            Act::Leave | Act::Return => {
                let (present, fingerprint) = (matches!(act, Act::Return), Some("f1".to_owned()));
                self.say(Input::Attendance { present, fingerprint })
            }
            Act::TimePasses => {
                self.talk.now_ms += LEASE_MS + 1;
                self.say(Input::Tick)
            }
            Act::Text => {
                let outputs = vec![output(token, Piece::Text(format!("word {} ", self.clock)))];
                self.say(Input::Generated { generation, outputs })
            }
            Act::Call => self.say(Input::Generated { generation, outputs: call(token, "f", "{}") }),
            Act::End(end) => {
                let end = match end {
                    End::Stop => GenerationEnd::Stop,
                    End::Length => GenerationEnd::Length,
                    End::Aborted => GenerationEnd::Aborted,
                    End::Failed => GenerationEnd::Failed { code: Code::EngineFailed, message: "x".to_owned() },
                };
                self.say(Input::GenerationEnded { generation, outputs: vec![], tail_tokens: vec![], usage: None, end })
            }
            Act::Restart => {
                let mut replayed = State::default();
                self.talk.log.iter().for_each(|recorded| replayed.apply(recorded));
                self.talk.state = replayed;
                self.say(Input::Restarted { fingerprint: None })
            }
        }
    }

    /// The transcript that the last response reads, in the reference's words.
    fn reads(&self) -> Vec<Entry> {
        let Some(last) = self.talk.state.responses.last() else { return Vec::new() };
        let number = |id: &str| self.calls.iter().position(|call| call.0 == id).unwrap();
        let mut entries = Vec::new();
        for message in messages(&self.talk.state, last) {
            match message.role {
                Role::Tool => {
                    let id = message.tool_call_id.clone().unwrap();
                    entries.push(Entry::Result(number(&id), message.content));
                }
                Role::Assistant => {
                    if !message.content.is_empty() {
                        entries.push(Entry::Assistant(message.content));
                    }
                    entries.extend(message.tool_calls.iter().map(|call| Entry::Call(number(&call.id))));
                }
                _ => entries.push(Entry::User(message.content)),
            }
        }
        entries
    }
}

impl StateMachineTest for Real {
    type SystemUnderTest = Self;
    type Reference = Reference;

    fn init_test(_: &Reference) -> Self {
        Self { talk: Talk::new(17), responses: vec![], steers: vec![], calls: vec![], clock: 0 }
    }

    fn apply(mut real: Self, reference: &Reference, act: Act) -> Self {
        assert_eq!(real.act(&act), reference.answer, "the answer to {act:?}");
        real
    }

    fn check_invariants(real: &Self, reference: &Reference) {
        let state = &real.talk.state;
        let status = |id: &ResponseId| match &state.response_even_deleted(*id).unwrap().status {
            ResponseStatus::Queued | ResponseStatus::InProgress => Status::Running,
            ResponseStatus::Ended(Ending::Completed) => Status::Completed,
            ResponseStatus::Ended(Ending::Incomplete { reason }) => match reason.as_str() {
                "interrupted" | "disconnected" => Status::GivenUp,
                _ => Status::Incomplete,
            },
            ResponseStatus::Ended(Ending::Cancelled) => Status::Cancelled,
            ResponseStatus::Ended(Ending::Failed { .. }) => Status::Failed,
        };
        let statuses: Vec<_> = real.responses.iter().map(status).collect();
        assert_eq!(statuses, reference.turns.iter().map(|turn| turn.status).collect::<Vec<_>>(), "responses");
        let outcome = |id: &InterventionId| match &state.interventions[id].status {
            InterventionStatus::Accepted => Outcome::Accepted,
            InterventionStatus::Pending => Outcome::Pending,
            InterventionStatus::Committed { .. } => Outcome::Committed,
            InterventionStatus::Failed { .. } => Outcome::Failed,
            InterventionStatus::Superseded { .. } => Outcome::Superseded,
            InterventionStatus::Withdrawn => Outcome::Withdrawn,
        };
        let outcomes: Vec<_> = real.steers.iter().map(outcome).collect();
        assert_eq!(outcomes, reference.steers.iter().map(|steer| steer.outcome).collect::<Vec<_>>(), "instructions");
        let stands = |id: &CallId| match state.call(id).unwrap().status {
            CallStatus::Requested => Is::Open,
            CallStatus::Claimed { .. } => Is::Claimed,
            CallStatus::Completed | CallStatus::Answered => Is::Answered,
            CallStatus::Cancelled | CallStatus::Unknown => Is::Closed,
        };
        let calls: Vec<_> = real.calls.iter().map(stands).collect();
        assert_eq!(calls, reference.calls.iter().map(|call| call.is).collect::<Vec<_>>(), "calls");
        assert_eq!(state.queue.len(), reference.queue.len(), "waiting turns");
        assert_eq!(real.reads(), reference.reads(), "what the model reads");
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn the_core_does_what_the_reference_says(sequential 1..60 => Real);
}
