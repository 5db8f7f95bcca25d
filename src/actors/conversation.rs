//! The shell of one conversation: decide, journal, apply, publish, perform effects, in this order, always.
//!
//! The actor owns the state and is the only one to number events. It waits for nothing but the journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::checkpoints::Checkpoints;
use super::effects::Work;
use super::keys::{KeyClaim, keyed_answer};
use super::reader::{Fanout, Tail, replay, store_reject};
use super::shared::{Parts, RunningGuard};
use super::unflushed::Unflushed;
use crate::conversation::decide;
use crate::conversation::{Answer, Effect, Event, FlushPolicy, Input, Now, Recorded, Reject, State};
use crate::crash;
use crate::ids::{ConversationId, FreshIds, ResponseId};
use crate::store::{Batch, Durability, Record};
use crate::telemetry;

/// What can be said to a conversation.
pub(super) enum ConversationMsg {
    /// A client's request.
    Request {
        /// Decided together: all or none.
        inputs: Vec<Input>,
        key: Option<KeyClaim>,
        /// Whether the answer comes with a reader that stands in front of the request's events.
        follow: bool,
        reply: oneshot::Sender<Result<Answered, Reject>>,
    },
    /// A reader wants the live tail.
    Attach { reply: oneshot::Sender<Result<Tail, Reject>> },
    /// Somebody wants to look.
    Look { reply: oneshot::Sender<Result<State, Reject>> },
    /// Somebody waits for a response to end.
    WaitEnd { response_id: ResponseId, reply: oneshot::Sender<Result<State, Reject>> },
    /// News of a generation. The pump sends the next only when this is taken. The last has the guard with it: a server
    /// that stops when nothing runs any more does not stop in front of an answer's end.
    Generation { generation: u64, input: Input, running: Option<RunningGuard>, taken: oneshot::Sender<()> },
    /// The server stops.
    Stop,
    /// A reader is gone.
    ReaderGone,
    /// Whether anything was published since this seq is looked at; nothing was for so many looks before.
    Silence { since_seq: u64, quiet: u32 },
    /// Nothing happened for a while: sleep, if nothing is to be done.
    Doze { since_seq: u64 },
    /// The timer of this time ended, in milliseconds since the Unix epoch.
    Tick { due_ms: u64 },
}

/// The answer to a request.
pub(super) struct Answered {
    pub(super) answer: Answer,
    pub(super) tail: Option<Tail>,
}

/// What a conversation's actor is started with.
pub(super) struct ConversationArgs {
    pub(super) id: ConversationId,
    /// False for one that dies with its readers.
    pub(super) stored: bool,
    pub(super) parts: Parts,
    pub(super) directory: ActorRef<super::directory::DirectoryMsg>,
    /// Tells the directory whether something is outstanding or somebody reads.
    pub(super) working: Arc<AtomicBool>,
}

/// The actor; all of it is in its [`Live`] state.
pub(super) struct ConversationActor;

/// A live conversation.
pub(super) struct Live {
    id: ConversationId,
    stored: bool,
    parts: Parts,
    directory: ActorRef<super::directory::DirectoryMsg>,
    working: Arc<AtomicBool>,
    /// Why the conversation cannot be used, when its journal could not be read.
    broken: Option<Reject>,
    state: State,
    /// All events so far, kept only where no journal does.
    history: Vec<Arc<Recorded>>,
    readers: Fanout,
    waiting: Vec<(ResponseId, oneshot::Sender<Result<State, Reject>>)>,
    work: Work,
    timer: Option<Timer>,
    /// Whether is looked for signs of life.
    looks: bool,
    /// What was shown before it was flushed.
    unflushed: Unflushed,
    /// Earlier states, for readers that come back.
    checkpoints: Checkpoints,
    /// Keys of requests that are not stored, with their answers.
    keys: Vec<KeyClaim>,
}

impl Actor for ConversationActor {
    type Msg = ConversationMsg;
    type State = Live;
    type Arguments = ConversationArgs;

    async fn pre_start(
        &self,
        _myself: ActorRef<ConversationMsg>,
        args: ConversationArgs,
    ) -> Result<Live, ActorProcessingErr> {
        Ok(Live {
            id: args.id,
            stored: args.stored,
            parts: args.parts,
            directory: args.directory,
            working: args.working,
            broken: None,
            state: State::default(),
            history: Vec::new(),
            readers: Fanout::default(),
            waiting: Vec::new(),
            work: Work::default(),
            timer: None,
            looks: false,
            unflushed: Unflushed::default(),
            checkpoints: Checkpoints::default(),
            keys: Vec::new(),
        })
    }

    /// Replays the journal. It is here and not in `pre_start` so that waking one conversation delays no other.
    async fn post_start(&self, myself: ActorRef<ConversationMsg>, live: &mut Live) -> Result<(), ActorProcessingErr> {
        if live.stored {
            live.replay(&myself).await;
        }
        live.set_timers(&myself);
        Ok(())
    }

    /// However it ends in good order, what is outstanding is put down: waking it again is then no crash. Where the
    /// journal refuses, it is taken for one, which costs an attempt and loses nothing.
    async fn post_stop(&self, myself: ActorRef<ConversationMsg>, live: &mut Live) -> Result<(), ActorProcessingErr> {
        if live.stored && live.usable().is_ok() {
            let _ = live.commit(&myself, vec![Input::Stopping], None).await;
        }
        live.work.save_kv();
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<ConversationMsg>,
        message: ConversationMsg,
        live: &mut Live,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ConversationMsg::Request { inputs, key, follow, reply } => {
                let answered = live.request(&myself, inputs, key, follow).await;
                let _ = reply.send(answered);
            }
            ConversationMsg::Attach { reply } => {
                // What was shown before its flush is read from the journal by this reader.
                if let Err(reject) = live.unflushed.flushed().await {
                    live.broken = Some(reject);
                }
                let tail = live.usable().and_then(|()| live.tail(&myself));
                let _ = reply.send(tail);
                live.attendance(&myself).await;
            }
            ConversationMsg::Look { reply } => {
                let _ = reply.send(live.usable().map(|()| live.state.clone()));
            }
            ConversationMsg::WaitEnd { response_id, reply } => {
                live.waiting.push((response_id, reply));
                live.answer_waiting();
            }
            // What was on its way when the conversation was deleted.
            ConversationMsg::Generation { .. } if live.state.deleted => {}
            ConversationMsg::Generation { generation, input, running, taken } => {
                // Who waits for the end may count on it that nothing runs any more.
                drop(running);
                if matches!(input, Input::GenerationEnded { .. }) {
                    live.work.ended(generation);
                }
                // Where the journal refuses, the actor ends, and its sequences and those who wait with it. The next one
                // reads what is on disk.
                live.step(&myself, vec![input], None).await.map_err(|reject| reject.message)?;
                let _ = taken.send(());
            }
            ConversationMsg::Stop => myself.stop(Some("the server stops".to_owned())),
            ConversationMsg::ReaderGone => live.reader_gone(&myself).await,
            // Nobody waits for a sign of life of what does not run.
            ConversationMsg::Silence { .. } if live.state.active().is_none() => live.looks = false,
            ConversationMsg::Silence { since_seq, quiet } => {
                let quiet = if live.state.last_seq == since_seq { quiet + 1 } else { 0 };
                // Something may have been said right behind the look before: one more look would be too late.
                let is_due = quiet + 1 >= SILENCE_LOOKS;
                // A sign of life is for somebody who reads.
                if is_due && live.readers.count() > 0 {
                    let _ = live.step(&myself, vec![Input::Silence], None).await;
                }
                live.look_again(&myself, if is_due { 0 } else { quiet });
            }
            ConversationMsg::Doze { since_seq } => {
                let quiet = live.state.last_seq == since_seq && !live.state.is_outstanding();
                if quiet && live.readers.count() == 0 {
                    let _ = live.directory.cast(super::directory::DirectoryMsg::Retire { id: live.id });
                } else {
                    live.set_doze_timer(&myself);
                }
            }
            ConversationMsg::Tick { due_ms } => live.tick(&myself, due_ms).await,
        }
        Ok(())
    }
}

impl Live {
    fn usable(&self) -> Result<(), Reject> {
        if self.state.deleted {
            return Err(Reject::no_conversation(self.id));
        }
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Folds the journal, then goes on with what was running.
    async fn replay(&mut self, myself: &ActorRef<ConversationMsg>) {
        match self.parts.journal.is_deleted(self.id) {
            Ok(false) => {}
            Ok(true) => {
                self.broken = Some(Reject::no_conversation(self.id));
                return;
            }
            Err(error) => {
                self.broken = Some(store_reject(&error));
                return;
            }
        }
        match replay(self.parts.journal.clone(), self.id, &mut self.checkpoints).await {
            Ok(state) => self.state = state,
            Err(reject) => {
                self.broken = Some(reject);
                return;
            }
        }
        if let Err(reject) = self.tell_cut(myself).await {
            self.broken = Some(reject);
            return;
        }
        if self.state.is_outstanding() {
            let input = Input::Restarted { fingerprint: self.fingerprint() };
            if let Err(reject) = self.step(myself, vec![input], None).await {
                self.broken = Some(reject);
            }
        }
    }

    /// A repair may have cut the journal: its readers are told.
    async fn tell_cut(&mut self, myself: &ActorRef<ConversationMsg>) -> Result<(), Reject> {
        let cut = self.parts.journal.epoch(self.id).map_err(|error| store_reject(&error))?;
        if cut.epoch > self.state.epoch() {
            self.step(myself, vec![Input::Rewound { epoch: cut.epoch }], None).await?;
        }
        Ok(())
    }

    /// The fingerprint under which the active response would go on with the same tokens.
    fn fingerprint(&self) -> Option<String> {
        let engine = self.parts.catalog.get(Some(&self.state.active()?.config.model))?;
        Some(engine.model()).filter(|model| model.exact_resume).map(|model| model.fingerprint.clone())
    }

    /// Tells the core whether somebody reads, where a policy minds and it does not know yet.
    async fn attendance(&mut self, myself: &ActorRef<ConversationMsg>) {
        let present = self.readers.count() > 0;
        let Some(active) = self.state.active().filter(|active| active.config.policy.minds_readers()) else { return };
        if present != active.unattended.is_none() || present && active.paused {
            let input = Input::Attendance { present, fingerprint: self.fingerprint() };
            // Where the journal refuses, the next change tells it again.
            let _ = self.commit(myself, vec![input], None).await;
        }
    }

    async fn tick(&mut self, myself: &ActorRef<ConversationMsg>, due_ms: u64) {
        if self.timer.as_ref().is_none_or(|timer| timer.due_ms != due_ms) {
            return;
        }
        self.timer = None;
        if self.step(myself, vec![Input::Tick], None).await.is_err() {
            // The journal refuses: it is no use to ask at once again.
            self.timer = Some(Timer::start(myself, due_ms, TIMER_RETRY));
        }
    }

    async fn request(
        &mut self,
        myself: &ActorRef<ConversationMsg>,
        inputs: Vec<Input>,
        key: Option<KeyClaim>,
        follow: bool,
    ) -> Result<Answered, Reject> {
        self.usable()?;
        let tail = follow.then(|| self.tail(myself)).transpose()?;
        match self.step(myself, inputs, key).await? {
            Answer::Refused(reject) => Err(reject),
            answer => Ok(Answered { answer, tail }),
        }
    }

    /// A decision, and what follows from who reads and what time it is.
    async fn step(
        &mut self,
        myself: &ActorRef<ConversationMsg>,
        inputs: Vec<Input>,
        key: Option<KeyClaim>,
    ) -> Result<Answer, Reject> {
        let answer = self.commit(myself, inputs, key).await?;
        self.attendance(myself).await;
        self.set_timer(myself);
        self.watch_silence(myself);
        Ok(answer)
    }

    /// The one order of work. A refusal changes nothing.
    async fn commit(
        &mut self,
        myself: &ActorRef<ConversationMsg>,
        inputs: Vec<Input>,
        key: Option<KeyClaim>,
    ) -> Result<Answer, Reject> {
        let mut decided = Decided { state: self.state.clone(), events: Vec::new(), effects: Vec::new() };
        let mut answer = Answer::None;
        let unix_ms = self.parts.clock.unix_ms();
        for input in inputs {
            let step = decide(&decided.state, input, Now { unix_ms, fresh: FreshIds::random() })?;
            step.events.iter().for_each(|recorded| decided.state.apply_next(recorded));
            decided.events.extend(step.events);
            decided.effects.extend(step.effects);
            answer = step.answer;
        }
        let keyed = key.zip(keyed_answer(self.id, &answer, decided.state.last_seq));
        let record = keyed.as_ref().map(|(key, answer)| Record::Key(key.record(unix_ms, answer.clone())));
        let way = way(&decided.events);
        crash::point(way.decided);
        self.journal(&decided, record).await?;
        crash::point(way.journaled);
        if let Some((key, answer)) = keyed.filter(|_| !self.stored) {
            key.hold(answer);
            self.keys.push(key);
        }
        // Else its answer is durable, and from here on the journal answers for the key.
        self.state = decided.state;
        if self.stored {
            self.checkpoints.note(&self.state);
        }
        self.tell_working();
        for recorded in decided.events {
            let recorded = Arc::new(recorded);
            self.readers.publish(&recorded);
            telemetry::published(&recorded.event, &self.state);
            if !self.stored {
                match &recorded.event {
                    Event::ResponseCreated(new) => self.parts.unstored.add(new.id, (self.id, myself.clone())),
                    Event::InterventionAccepted { intervention_id, .. } => {
                        self.parts.unstored.add_intervention(*intervention_id, (self.id, myself.clone()));
                    }
                    _ => {}
                }
                self.history.push(recorded);
            }
        }
        self.answer_waiting();
        crash::point(way.published);
        for effect in decided.effects {
            self.work.perform(effect, &self.state, &self.parts, myself);
        }
        crash::point(way.performed);
        if self.state.deleted {
            self.be_gone();
        }
        Ok(answer)
    }

    /// The conversation was deleted: nothing of it stays, and its readers have seen the last event.
    fn be_gone(&mut self) {
        self.readers = Fanout::default();
        self.work.abort_all();
        self.parts.kv.remove(self.id);
        let _ = self.directory.cast(super::directory::DirectoryMsg::Retire { id: self.id });
    }

    /// Makes a decision durable.
    async fn journal(&mut self, decided: &Decided, key: Option<Record>) -> Result<(), Reject> {
        if !self.stored || decided.events.is_empty() && key.is_none() {
            return Ok(());
        }
        let mut records: Vec<Record> = key.into_iter().collect();
        records.extend(decided.events.iter().filter_map(|recorded| match &recorded.event {
            Event::ResponseCreated(new) => Some(Record::Response(new.id)),
            Event::InterventionAccepted { intervention_id, .. } => Some(Record::Intervention(*intervention_id)),
            Event::ConversationDeleted {} => Some(Record::Deleted),
            _ => None,
        }));
        let outstanding = decided.state.is_outstanding();
        if outstanding != self.state.is_outstanding() {
            records.push(Record::Active(outstanding));
        }
        let durability = self.durability(decided, !records.is_empty());
        let batch = Batch { conversation: self.id, events: decided.events.clone(), records, durability };
        if durability == Durability::Relaxed {
            // Behind a failed write nobody knows what lies on disk under the next seq: nothing may be shown under it.
            self.parts.writer.usable().map_err(|error| store_reject(&error))?;
            let ack = self.parts.writer.enqueue(batch).await.map_err(|error| store_reject(&error))?;
            return self.unflushed.add(ack);
        }
        self.parts.writer.append(batch).await.map_err(|error| store_reject(&error))?;
        // The journal keeps the order: what went before is on disk, too.
        self.unflushed.clear();
        Ok(())
    }

    /// How the decision's flush is shared. Only pure growth is ever shown before it.
    fn durability(&self, decided: &Decided, has_records: bool) -> Durability {
        let policy = |state: &State| state.active().map(|active| active.config.policy.durability);
        let (before, behind) = (policy(&self.state), policy(&decided.state));
        let grows = !has_records && decided.events.iter().all(|recorded| recorded.event.is_growth());
        if [before, behind].contains(&Some(FlushPolicy::Sync)) {
            Durability::Sync
        } else if grows && before == Some(FlushPolicy::Relaxed) && behind == before {
            Durability::Relaxed
        } else {
            Durability::Group
        }
    }

    fn tail(&mut self, myself: &ActorRef<ConversationMsg>) -> Result<Tail, Reject> {
        let oldest_seq = if self.stored { self.parts.journal.oldest_seq(self.id) } else { Ok(1) };
        let oldest_seq = oldest_seq.map_err(|error| store_reject(&error))?;
        let (live, presence) = self.readers.join(myself, self.parts.config.reader_queue_events);
        self.tell_working();
        let history = (!self.stored).then(|| self.history.clone());
        let (state, checkpoints) = (self.state.clone(), self.checkpoints.clone());
        Ok(Tail { state, oldest_seq, checkpoints, history, live, presence })
    }

    /// Tells the directory whether the conversation may be put to sleep.
    fn tell_working(&mut self) {
        let working = self.usable().is_ok() && (self.state.is_outstanding() || self.readers.count() > 0);
        self.working.store(working, Ordering::SeqCst);
    }

    /// Tells those who wait for an end that has come, or never will.
    fn answer_waiting(&mut self) {
        // Who does not wait any more is forgotten.
        self.waiting.retain(|(_, reply)| !reply.is_closed());
        for (response_id, reply) in std::mem::take(&mut self.waiting) {
            match self.state.response(response_id) {
                Some(response) if !response.status.is_terminal() && self.broken.is_none() => {
                    self.waiting.push((response_id, reply));
                }
                Some(_) => {
                    let _ = reply.send(self.usable().map(|()| self.state.clone()));
                }
                None => {
                    let _ = reply.send(Err(Reject::no_response(response_id)));
                }
            }
        }
    }

    /// A conversation that is not stored dies with its last reader, and its response with it.
    async fn reader_gone(&mut self, myself: &ActorRef<ConversationMsg>) {
        self.tell_working();
        self.attendance(myself).await;
        self.set_timer(myself);
        if !self.stored && self.readers.count() == 0 {
            let _ = self.directory.cast(super::directory::DirectoryMsg::Retire { id: self.id });
        }
    }

    /// Sets the timer for what is due next, unless it is set.
    fn set_timer(&mut self, myself: &ActorRef<ConversationMsg>) {
        let due_ms = self.state.next_due_ms();
        if due_ms != self.timer.as_ref().map(|timer| timer.due_ms) {
            let now_ms = self.parts.clock.unix_ms();
            let delay = |due_ms: u64| Duration::from_millis(due_ms.saturating_sub(now_ms));
            self.timer = due_ms.map(|due_ms| Timer::start(myself, due_ms, delay(due_ms)));
        }
    }

    fn set_timers(&mut self, myself: &ActorRef<ConversationMsg>) {
        self.watch_silence(myself);
        if self.stored {
            self.set_doze_timer(myself);
        }
    }

    /// From here on is looked whether the running response shows signs of life, unless that is done already.
    fn watch_silence(&mut self, myself: &ActorRef<ConversationMsg>) {
        if !self.looks && self.state.active().is_some() {
            self.looks = true;
            self.look_again(myself, 0);
        }
    }

    /// Looks again soon; nothing was said for so many looks.
    fn look_again(&self, myself: &ActorRef<ConversationMsg>, quiet: u32) {
        let since_seq = self.state.last_seq;
        let delay = Duration::from_millis(self.parts.config.silence_ms) / SILENCE_LOOKS;
        myself.send_after(delay, move || ConversationMsg::Silence { since_seq, quiet });
    }

    fn set_doze_timer(&self, myself: &ActorRef<ConversationMsg>) {
        let since_seq = self.state.last_seq;
        let delay = Duration::from_millis(self.parts.config.idle_sleep_ms);
        myself.send_after(delay, move || ConversationMsg::Doze { since_seq });
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if !self.stored {
            self.state.responses.iter().for_each(|response| self.parts.unstored.remove(response.id));
            self.state.interventions.keys().for_each(|id| self.parts.unstored.remove_intervention(*id));
        }
    }
}

/// The crash points on the way of a decision; those that promise most have their own.
struct Way {
    decided: &'static str,
    journaled: &'static str,
    published: &'static str,
    performed: &'static str,
}

macro_rules! way {
    ($what:literal) => {
        Way {
            decided: concat!($what, "_decided"),
            journaled: concat!($what, "_journaled"),
            published: concat!($what, "_published"),
            performed: concat!($what, "_performed"),
        }
    };
}

fn way(events: &[Recorded]) -> Way {
    let special = events.iter().find_map(|recorded| match recorded.event {
        Event::InterventionCommitted { .. } => Some(way!("steer")),
        Event::ToolCallClaimed { .. } => Some(way!("claim")),
        Event::ToolResultAccepted { .. } => Some(way!("result")),
        Event::ConversationDeleted {} => Some(way!("deletion")),
        _ => None,
    });
    special.unwrap_or(way!("other"))
}

/// How often is looked in the time that may pass in silence: the first look after something was said does not count.
const SILENCE_LOOKS: u32 = 5;
/// Time until a timer is tried again whose decision the journal refused.
const TIMER_RETRY: Duration = Duration::from_secs(1);

/// A timer that is set; dropped, it never ends.
struct Timer {
    /// When it ends, in milliseconds since the Unix epoch.
    due_ms: u64,
    task: AbortHandle,
}

impl Timer {
    fn start(myself: &ActorRef<ConversationMsg>, due_ms: u64, delay: Duration) -> Self {
        let task = myself.send_after(delay, move || ConversationMsg::Tick { due_ms }).abort_handle();
        Self { due_ms, task }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A decision that is not durable yet.
struct Decided {
    state: State,
    events: Vec<Recorded>,
    effects: Vec<Effect>,
}
