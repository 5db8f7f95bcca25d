//! The reference: a conversation as lists and flags, without events, ids or time. It says what must be answered, where
//! everything stands, and what the model is to read. Deliberately simple: one page of the protocol, as code.

mod calls;
mod ends;
mod forks;

use crate::conversation::{IfBusy, OnDisconnect, OnLate, OnMultiple, ToolsOnSteer, When};
use crate::error::Code;

/// Instructions and turns that may wait.
const WAITING_MAX: usize = 16;
/// Restarts without a new token that a response survives.
const ATTEMPTS_MAX: u32 = 3;

/// What clients, engine and process do. Numbers name responses, instructions and calls in the order in which they
/// came to be.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Create {
        if_busy: IfBusy,
        answers: bool,
        unread: OnDisconnect,
    },
    /// From here on the fork behind the turn at this place is the conversation.
    Fork {
        place: usize,
        answers: bool,
        unread: OnDisconnect,
    },
    Steer {
        target: usize,
        when: When,
        on_multiple: OnMultiple,
        on_late: OnLate,
        tools: ToolsOnSteer,
    },
    Withdraw(usize),
    Cancel {
        target: usize,
        cascade: bool,
    },
    Claim(usize),
    Answer {
        call: usize,
        output: u8,
    },
    /// All calls of a response at once.
    Inject {
        target: usize,
        output: u8,
    },
    Interrupt(usize),
    /// The object of a response.
    Delete(usize),
    /// The last reader leaves.
    Leave,
    /// A reader comes.
    Return,
    /// Longer than any grace, and than any lease.
    TimePasses,
    Text,
    Call,
    End(End),
    Restart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Stop,
    Length,
    Aborted,
    Failed,
}

/// What the model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    User(String),
    Assistant(String),
    Call(usize),
    Result(usize, String),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    pub(super) status: Status,
    own: Vec<Entry>,
    pub(super) input: Vec<Entry>,
    output: Vec<Entry>,
    /// A message is open.
    open: bool,
    cancelled: bool,
    deleted: bool,
    unread: OnDisconnect,
    readers: Readers,
    attempts: u32,
    successor: Option<usize>,
    came: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Status {
    #[default]
    Running,
    Completed,
    Incomplete,
    /// Incomplete too, and no results go on from it.
    GivenUp,
    Cancelled,
    Failed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Readers {
    #[default]
    There,
    Gone,
    /// Gone, and it stands until they come.
    Awaited,
}

#[derive(Clone, Debug)]
pub(super) struct Steer {
    target: usize,
    text: String,
    when: When,
    awaits: bool,
    enqueued: bool,
    pub(super) outcome: Outcome,
    came: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Accepted,
    Pending,
    Committed,
    Failed,
    Superseded,
    Withdrawn,
}

#[derive(Clone, Debug)]
pub(super) struct Called {
    turn: usize,
    pub(super) is: Is,
    /// The result, until a turn takes it.
    result: Option<String>,
    /// What a client said it is.
    given: Option<u8>,
    /// The turn goes on by itself once all results are there.
    goes_on: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    Open,
    Claimed,
    Answered,
    Closed,
}

/// A conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct Reference {
    /// All responses, as they were created.
    pub(super) turns: Vec<Turn>,
    /// Those whose turn has come, in the transcript's order.
    pub(super) begun: Vec<usize>,
    pub(super) queue: Vec<usize>,
    pub(super) steers: Vec<Steer>,
    pub(super) calls: Vec<Called>,
    staged: Vec<Entry>,
    clock: usize,
    /// What the last act was answered.
    pub(super) answer: Option<Code>,
}

impl Reference {
    pub(super) fn active(&self) -> Option<usize> {
        self.begun.last().copied().filter(|turn| self.turns[*turn].status == Status::Running)
    }

    /// The transcript that the last response reads.
    pub(super) fn reads(&self) -> Vec<Entry> {
        let mut all = Vec::new();
        for (place, turn) in self.begun.iter().enumerate() {
            all.extend(self.turns[*turn].input.iter().cloned());
            if place + 1 < self.begun.len() {
                all.extend(self.turns[*turn].output.iter().cloned());
            }
        }
        all
    }

    pub(super) fn act(&mut self, act: &Act) {
        self.clock += 1;
        self.answer = self.answer_to(act).err();
    }

    fn answer_to(&mut self, act: &Act) -> Result<(), Code> {
        match *act {
            Act::Create { if_busy, answers, unread } => return self.create(if_busy, answers, unread),
            Act::Fork { place, answers, unread } => return self.fork(place, answers, unread),
            Act::Steer { target, when, on_multiple, on_late, tools } => {
                return self.steer(target, when, on_multiple, on_late, tools);
            }
            Act::Withdraw(steer) => {
                if !self.is_undecided(steer) {
                    return Err(Code::InterventionDecided);
                }
                self.steers[steer].outcome = Outcome::Withdrawn;
                self.next_turn();
            }
            Act::Cancel { target, .. } | Act::Interrupt(target) | Act::Delete(target) if self.turns[target].deleted => {
                return Err(Code::ResponseNotFound);
            }
            Act::Cancel { target, cascade } => self.cancel(target, cascade),
            Act::Interrupt(target) => return self.interrupt(target),
            Act::Delete(target) => match self.turns[target].status {
                Status::Running => return Err(Code::ConversationBusy),
                _ => self.turns[target].deleted = true,
            },
            Act::Inject { target, output } => return self.inject(target, output),
            Act::Leave => self.attend(false),
            Act::Return => self.attend(true),
            Act::TimePasses => self.time_passes(),
            Act::Claim(call) => match self.calls[call].is {
                Is::Open => self.calls[call].is = Is::Claimed,
                Is::Claimed => return Err(Code::ToolCallClaimed),
                Is::Answered | Is::Closed => return Err(Code::ToolCallClosed),
            },
            Act::Answer { call, output } => return self.answer_call(call, output),
            Act::Text => self.text(),
            Act::Call => self.call(),
            Act::End(end) => self.end(end),
            Act::Restart => self.restart(),
        }
        Ok(())
    }

    fn create(&mut self, if_busy: IfBusy, answers: bool, unread: OnDisconnect) -> Result<(), Code> {
        let said = Entry::User(format!("create {}", self.clock));
        let turn = Turn { own: vec![said], unread, came: self.clock, ..Turn::default() };
        if let Some(active) = self.active() {
            match if_busy {
                IfBusy::Fail => return Err(Code::ConversationBusy),
                IfBusy::Steer if !self.turns[active].cancelled => self.create_in_place(active, unread),
                IfBusy::Steer | IfBusy::Enqueue => {
                    self.check_room(0)?;
                    self.queue.push(self.turns.len());
                    self.turns.push(turn);
                }
            }
            return Ok(());
        }
        let answers_some = answers && (0..self.calls.len()).any(|call| self.is_open(call));
        let is_turn = |steer: &Steer| steer.outcome == Outcome::Accepted;
        if !answers_some && (!self.queue.is_empty() || self.steers.iter().any(is_turn)) {
            self.check_room(0)?;
            self.queue.push(self.turns.len());
            self.turns.push(turn);
            self.close_calls(None, false);
            self.next_turn();
            return Ok(());
        }
        for call in 0..self.calls.len() {
            if answers && self.is_open(call) {
                self.calls[call].is = Is::Answered;
                self.calls[call].given = Some(0);
                self.calls[call].result = Some("0".to_owned());
            }
        }
        self.close_calls(None, false);
        self.commit_pending(self.turns.len());
        self.turns.push(turn);
        self.begin(self.turns.len() - 1);
        Ok(())
    }

    /// The request cuts the response that runs, as a steer does.
    fn create_in_place(&mut self, active: usize, unread: OnDisconnect) {
        let text = format!("create {}", self.clock);
        self.steers.push(Steer {
            target: active,
            text,
            when: When::Now,
            awaits: false,
            enqueued: false,
            outcome: Outcome::Accepted,
            came: self.clock,
        });
        self.close_calls(None, false);
        let successor = self.turns.len();
        for steer in self.at_boundary(active) {
            self.commit_steer(steer, successor);
        }
        self.turns[active].status = Status::Incomplete;
        self.turns.push(Turn { came: self.clock, unread, ..Turn::default() });
        self.begin(successor);
    }

    /// A turn with the settings of another.
    fn push_like(&mut self, like: usize) {
        self.turns.push(Turn { came: self.clock, unread: self.turns[like].unread, ..Turn::default() });
    }

    fn steer(
        &mut self,
        target: usize,
        when: When,
        on_multiple: OnMultiple,
        on_late: OnLate,
        tools: ToolsOnSteer,
    ) -> Result<(), Code> {
        if self.turns[target].deleted {
            return Err(Code::ResponseNotFound);
        }
        let other = self.queue.contains(&target) || self.active().is_some_and(|active| active != target);
        let has_open = (0..self.calls.len()).any(|call| self.is_open(call) && self.calls[call].turn == target);
        let ended = self.turns[target].status != Status::Running;
        let late = self.turns[target].cancelled || ended && !has_open;
        let enqueued = on_late == OnLate::Enqueue && (late || other);
        if !enqueued && other {
            return Err(Code::ResponseNotActive);
        }
        if !enqueued && late {
            return Err(Code::ResponseAlreadyCompleted);
        }
        let replaced = if on_multiple == OnMultiple::Replace { self.meant_for(target) } else { Vec::new() };
        if enqueued || when != When::Now || tools == ToolsOnSteer::Await && has_open {
            self.check_room(replaced.len())?;
        }
        for earlier in replaced {
            self.steers[earlier].outcome = Outcome::Superseded;
        }
        let (text, awaits) = (format!("steer {}", self.clock), tools == ToolsOnSteer::Await);
        let (outcome, came) = (Outcome::Accepted, self.clock);
        self.steers.push(Steer { target, text, when, awaits, enqueued, outcome, came });
        if enqueued || ended && when == When::After {
            self.next_turn();
        } else if ended {
            self.commit(target, None);
        } else if when == When::Now || when == When::Item && self.is_at_border(target) {
            self.commit(target, Some(Status::Incomplete));
        }
        Ok(())
    }

    fn check_room(&self, replaced: usize) -> Result<(), Code> {
        let undecided = (0..self.steers.len()).filter(|steer| self.is_undecided(*steer)).count();
        let waiting = undecided - replaced + self.queue.len();
        if waiting < WAITING_MAX { Ok(()) } else { Err(Code::TooManyPendingSteers) }
    }

    fn is_undecided(&self, steer: usize) -> bool {
        matches!(self.steers[steer].outcome, Outcome::Accepted | Outcome::Pending)
    }

    /// Undecided instructions that were meant for a response and did not come late.
    fn meant_for(&self, turn: usize) -> Vec<usize> {
        let all = 0..self.steers.len();
        all.filter(|it| self.is_undecided(*it) && self.steers[*it].target == turn && !self.steers[*it].enqueued)
            .collect()
    }

    /// Those of them that the next boundary commits.
    fn at_boundary(&self, turn: usize) -> Vec<usize> {
        self.meant_for(turn).into_iter().filter(|steer| self.steers[*steer].when != When::After).collect()
    }

    /// Commits what waits for a boundary of a response, and ends it if it runs.
    fn commit(&mut self, turn: usize, ending: Option<Status>) {
        let steers = self.at_boundary(turn);
        let has_open = (0..self.calls.len()).any(|call| self.is_open(call));
        let waits = has_open && !steers.is_empty() && steers.iter().all(|steer| self.steers[*steer].awaits);
        let successor = self.turns.len();
        if waits {
            for steer in steers {
                self.steers[steer].outcome = Outcome::Pending;
            }
        } else {
            self.close_calls(None, false);
            for steer in steers {
                self.commit_steer(steer, successor);
            }
        }
        if let Some(status) = ending {
            self.turns[turn].status = status;
        }
        if !waits {
            self.push_like(turn);
            self.begin(successor);
        }
    }

    /// Nothing of an item would be cut, or nobody waits for its end.
    fn is_at_border(&self, turn: usize) -> bool {
        !self.turns[turn].open || self.is_paused(turn)
    }

    fn commit_steer(&mut self, steer: usize, successor: usize) {
        self.steers[steer].outcome = Outcome::Committed;
        self.staged.push(Entry::User(self.steers[steer].text.clone()));
        let target = self.steers[steer].target;
        self.turns[target].successor = Some(successor);
    }

    fn commit_pending(&mut self, successor: usize) {
        for steer in 0..self.steers.len() {
            if self.steers[steer].outcome == Outcome::Pending {
                self.commit_steer(steer, successor);
            }
        }
    }

    fn begin(&mut self, turn: usize) {
        let mut input = Vec::new();
        for (place, call) in self.calls.iter_mut().enumerate() {
            input.extend(call.result.take().map(|result| Entry::Result(place, result)));
        }
        input.append(&mut self.staged);
        input.append(&mut self.turns[turn].own);
        self.turns[turn].input = input;
        self.begun.push(turn);
    }

    fn is_open(&self, call: usize) -> bool {
        matches!(self.calls[call].is, Is::Open | Is::Claimed)
    }

    /// Closes the open calls of a turn, or all; the model sees that nobody ran them, or that somebody may have.
    fn close_calls(&mut self, turn: Option<usize>, goes_on: bool) {
        for call in self.calls.iter_mut().filter(|call| turn.is_none_or(|turn| call.turn == turn)) {
            let text = match call.is {
                Is::Open => "not started",
                Is::Claimed => "outcome unknown, may have run",
                Is::Answered | Is::Closed => continue,
            };
            (call.is, call.result, call.goes_on) = (Is::Closed, Some(text.to_owned()), goes_on);
        }
    }

    /// Begins what has waited longest, if nothing runs.
    fn next_turn(&mut self) {
        let has_open = (0..self.calls.len()).any(|call| self.is_open(call));
        let is_pending = |steer: &Steer| steer.outcome == Outcome::Pending;
        if self.active().is_some() || has_open && self.steers.iter().any(is_pending) {
            return;
        }
        let pending = (0..self.steers.len()).find(|steer| self.steers[*steer].outcome == Outcome::Pending);
        let steer = pending.or((0..self.steers.len()).find(|steer| self.is_undecided(*steer)));
        let queued = self.queue.first().copied();
        let queued_first = match (steer, queued) {
            (Some(steer), Some(turn)) => pending.is_none() && self.turns[turn].came < self.steers[steer].came,
            (None, Some(_)) => true,
            _ => false,
        };
        if let Some(turn) = queued.filter(|_| queued_first) {
            self.queue.remove(0);
            self.close_calls(None, false);
            self.commit_pending(turn);
            self.begin(turn);
        } else if let Some(steer) = steer.filter(|steer| !(has_open && self.steers[*steer].awaits)) {
            self.close_calls(None, false);
            let next = self.turns.len();
            self.commit_pending(next);
            if self.is_undecided(steer) {
                self.commit_steer(steer, next);
            }
            let meant = self.steers[steer].target;
            let last = self.begun.last().copied().filter(|_| self.turns[meant].deleted);
            self.push_like(last.unwrap_or(meant));
            self.begin(next);
        }
    }

    /// The response that is generated and still takes news.
    fn generating(&self) -> Option<usize> {
        self.active().filter(|active| !self.turns[*active].cancelled && !self.is_paused(*active))
    }

    fn text(&mut self) {
        let Some(active) = self.generating() else { return };
        let turn = &mut self.turns[active];
        turn.attempts = 0;
        let word = format!("word {} ", self.clock);
        match turn.output.last_mut() {
            Some(Entry::Assistant(text)) if turn.open => text.push_str(&word),
            _ => turn.output.push(Entry::Assistant(word)),
        }
        turn.open = true;
    }

    fn call(&mut self) {
        let Some(active) = self.generating() else { return };
        let ends_item = std::mem::take(&mut self.turns[active].open);
        if ends_item && !self.at_boundary(active).is_empty() {
            return self.commit(active, Some(Status::Incomplete));
        }
        self.turns[active].attempts = 0;
        self.turns[active].output.push(Entry::Call(self.calls.len()));
        self.calls.push(Called { turn: active, is: Is::Open, result: None, given: None, goes_on: false });
    }

    fn end(&mut self, end: End) {
        let Some(active) = self.active().filter(|active| !self.is_paused(*active)) else { return };
        if self.turns[active].cancelled {
            return self.end_outside(active, Status::Cancelled);
        }
        let status = match end {
            End::Aborted => return,
            End::Failed => return self.end_outside(active, Status::Failed),
            End::Stop => Status::Completed,
            End::Length => Status::Incomplete,
        };
        if self.at_boundary(active).is_empty() {
            self.turns[active].status = status;
            self.continue_turn();
        } else {
            self.commit(active, Some(status));
        }
        self.next_turn();
    }
}
