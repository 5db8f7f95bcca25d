//! The directory: which conversations are awake, and the only place that wakes them or puts them to sleep.
//!
//! There is never more than one actor per conversation: a retiring one is waited for before the next is started.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::conversation::{ConversationActor, ConversationArgs, ConversationMsg};
use super::handle::ConversationHandle;
use super::keys::KeyClaim;
use super::reader::{Reader, store_reject};
use super::shared::Parts;
use crate::access::Usage;
use crate::conversation::{Create, Ending, Fork, Input, Item, Policies, Reject, ResponseStatus, State, fork};
use crate::crash;
use crate::error::Code;
use crate::ids::{ConversationId, FreshIds, InterventionId, ItemId, ResponseId};
use crate::store::{Batch, Expired, WriterStatus};

type Woken = Result<ActorRef<ConversationMsg>, Reject>;

/// What can be said to the directory.
pub(super) enum DirectoryMsg {
    /// The conversation's actor, started if it sleeps.
    Wake { id: ConversationId, stored: bool, room: Room, reply: oneshot::Sender<Woken> },
    /// These are no longer kept: those that sleep and have not gone on are deleted. The reply says how many.
    Delete { expired: Vec<Expired>, reply: oneshot::Sender<usize> },
    /// The conversation has nothing to do.
    Retire { id: ConversationId },
    /// The server stops: no conversation wakes any more, the reply comes when all are down.
    StopAll { reply: oneshot::Sender<()> },
}

/// Whether a conversation needs room to wake.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Needed,
    /// It had it when the process ended: what was accepted goes on, however many there are.
    HadIt,
}

pub(super) struct DirectoryActor;

/// Who is awake.
pub(super) struct Awake {
    parts: Parts,
    /// In an order that does not change from run to run: who is stopped or put to sleep first follows from it.
    entries: BTreeMap<ConversationId, Entry>,
    ids: HashMap<ActorId, ConversationId>,
    /// Set while the server stops.
    stopping: Option<oneshot::Sender<()>>,
}

struct Entry {
    actor: ActorRef<ConversationMsg>,
    stored: bool,
    /// Told by the actor: a response is running, or somebody reads.
    working: Arc<AtomicBool>,
    /// Those who want it awake again, while it goes to sleep.
    retiring: Option<Vec<oneshot::Sender<Woken>>>,
}

impl Entry {
    /// What was said to it already is still heard.
    fn retire(&mut self) {
        self.retiring = Some(Vec::new());
        let _ = self.actor.drain();
    }
}

impl Actor for DirectoryActor {
    type Msg = DirectoryMsg;
    type State = Awake;
    type Arguments = Parts;

    async fn pre_start(&self, _: ActorRef<DirectoryMsg>, parts: Parts) -> Result<Awake, ActorProcessingErr> {
        Ok(Awake { parts, entries: BTreeMap::new(), ids: HashMap::new(), stopping: None })
    }

    async fn handle(
        &self,
        myself: ActorRef<DirectoryMsg>,
        message: DirectoryMsg,
        awake: &mut Awake,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            DirectoryMsg::Wake { id, stored, room, reply } => awake.wake(&myself, (id, stored), room, reply).await,
            DirectoryMsg::Delete { expired, reply } => {
                let _ = reply.send(awake.delete(expired).await);
            }
            DirectoryMsg::Retire { id } => {
                if let Some(entry) = awake.entries.get_mut(&id).filter(|entry| entry.retiring.is_none()) {
                    entry.retire();
                }
            }
            DirectoryMsg::StopAll { reply } => {
                awake.stopping = Some(reply);
                for entry in awake.entries.values() {
                    // One that has ended already needs no telling.
                    let _ = entry.actor.cast(ConversationMsg::Stop);
                }
                awake.report_stopped();
            }
        }
        Ok(())
    }

    /// A conversation's end never ends the directory. One that failed is started again: it replays its journal
    /// and goes on, and the attempts it journals bound how often.
    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<DirectoryMsg>,
        event: SupervisionEvent,
        awake: &mut Awake,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(cell, ..) => awake.ended(&myself, &cell, false).await,
            SupervisionEvent::ActorFailed(cell, error) => {
                tracing::error!(%error, "a conversation's actor failed and is started again");
                awake.ended(&myself, &cell, true).await;
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl Awake {
    async fn wake(
        &mut self,
        myself: &ActorRef<DirectoryMsg>,
        (id, stored): (ConversationId, bool),
        room: Room,
        reply: oneshot::Sender<Woken>,
    ) {
        if let Some(entry) = self.entries.get_mut(&id) {
            match &mut entry.retiring {
                Some(waiting) => waiting.push(reply),
                None => drop(reply.send(Ok(entry.actor.clone()))),
            }
            return;
        }
        let has_room = if room == Room::HadIt { Ok(()) } else { self.make_room() };
        let woken = match has_room {
            Ok(()) => self.start(myself, id, stored).await,
            Err(reject) => Err(reject),
        };
        let _ = reply.send(woken);
    }

    /// At the bound, conversations that nobody reads and that do nothing go to sleep; those on their way there are
    /// not counted. What goes on after a failure needs no room: it had it.
    fn make_room(&mut self) -> Result<(), Reject> {
        let bound = self.parts.config.conversations_live_max;
        if self.entries.len() < bound {
            return Ok(());
        }
        let awake = self.entries.values().filter(|entry| entry.retiring.is_none()).count();
        let idle =
            |entry: &&mut Entry| entry.stored && entry.retiring.is_none() && !entry.working.load(Ordering::SeqCst);
        // Some more than the one that is needed now, so that not every request has to look.
        let put_to_sleep = self.entries.values_mut().filter(idle).take(bound / 16 + 1).map(Entry::retire).count();
        if awake - put_to_sleep < bound {
            return Ok(());
        }
        Err(Reject::new(Code::Overloaded, "too many conversations are at work; retry later"))
    }

    async fn start(&mut self, myself: &ActorRef<DirectoryMsg>, id: ConversationId, stored: bool) -> Woken {
        if self.stopping.is_some() {
            return Err(Reject::new(Code::Draining, "the server is stopping; retry when it is back"));
        }
        let working = Arc::new(AtomicBool::new(false));
        let (parts, directory) = (self.parts.clone(), myself.clone());
        let args = ConversationArgs { id, stored, parts, directory, working: working.clone() };
        match Actor::spawn_linked(None, ConversationActor, args, myself.get_cell()).await {
            Ok((actor, _)) => {
                self.ids.insert(actor.get_id(), id);
                self.entries.insert(id, Entry { actor: actor.clone(), stored, working, retiring: None });
                Ok(actor)
            }
            Err(error) => Err(Reject::new(Code::Internal, format!("the conversation could not be started: {error}"))),
        }
    }

    /// Nothing wakes meanwhile, since only the directory wakes. Who asks later finds nothing.
    async fn delete(&self, expired: Vec<Expired>) -> usize {
        let mut waiting = Vec::new();
        for Expired { conversation, last_seq } in expired {
            let sleeps = !self.entries.contains_key(&conversation);
            if sleeps
                && self.parts.journal.last_seq(conversation) == Ok(last_seq)
                && let Ok(ack) = self.parts.writer.enqueue(Batch::deletion(conversation)).await
            {
                waiting.push((conversation, ack));
            }
        }
        let mut deleted = 0;
        for (conversation, ack) in waiting {
            // What the journal refuses stays for the next round.
            if ack.await.is_ok() {
                deleted += 1;
                self.parts.kv.remove(conversation);
            }
        }
        deleted
    }

    async fn ended(&mut self, myself: &ActorRef<DirectoryMsg>, cell: &ActorCell, failed: bool) {
        let Some(id) = self.ids.remove(&cell.get_id()) else { return };
        let Some(entry) = self.entries.remove(&id) else { return };
        let waiting = entry.retiring.unwrap_or_default();
        // A request may have come in when the conversation had asked to sleep: what it began goes on.
        let is_wanted = failed || !waiting.is_empty() || entry.working.load(Ordering::SeqCst);
        if entry.stored && is_wanted {
            let woken = self.start(myself, id, true).await;
            for reply in waiting {
                let _ = reply.send(woken.clone());
            }
        }
        self.report_stopped();
    }

    fn report_stopped(&mut self) {
        if self.entries.is_empty()
            && let Some(reply) = self.stopping.take()
        {
            let _ = reply.send(());
        }
    }
}

/// A conversation to be opened.
#[derive(Clone, Debug, Default)]
pub struct Open {
    /// Who may see it.
    pub principal: String,
    /// With whom its prompts share keys and values; none: with everybody who names none.
    pub tenant: Option<String>,
    /// The client's own labels.
    pub metadata: Map<String, Value>,
    /// First items of the transcript.
    pub items: Vec<Item>,
    /// What its responses inherit.
    pub defaults: Policies,
}

impl Open {
    /// A conversation that goes on with this one's transcript.
    fn like(parent: &State, principal: &str) -> Self {
        let (principal, tenant) = (principal.to_owned(), parent.tenant.clone());
        Self { principal, tenant, metadata: parent.metadata.clone(), items: Vec::new(), defaults: parent.defaults }
    }

    fn input(self, id: ConversationId, fork: Option<Fork>) -> Input {
        let Self { principal, tenant, metadata, items, defaults } = self;
        Input::Open { id, principal, tenant, metadata, items, fork: fork.map(Box::new), defaults }
    }
}

/// Finds, opens and forks conversations.
#[derive(Clone)]
pub struct DirectoryHandle {
    pub(super) actor: ActorRef<DirectoryMsg>,
    pub(super) parts: Parts,
}

impl DirectoryHandle {
    /// Whether the journal takes writes; once it has refused one, only another start mends it.
    pub fn is_writable(&self) -> bool {
        !matches!(self.parts.writer.status(), WriterStatus::Failed(_) | WriterStatus::Fatal(_))
    }

    /// Opens a stored conversation.
    pub async fn open(&self, open: Open, key: Option<KeyClaim>) -> Result<ConversationHandle, Reject> {
        let handle = self.fresh(true).await?;
        handle.request(vec![open.input(handle.id, None)], key, false).await?;
        Ok(handle)
    }

    /// Opens a stored conversation with its first response, in one decision.
    pub async fn create_in_new(
        &self,
        open: Open,
        create: Create,
        key: Option<KeyClaim>,
    ) -> Result<(ConversationHandle, Reader), Reject> {
        self.open_with(true, open, None, create, key).await
    }

    /// Copies the transcript up to and including `previous` into a new conversation and creates a response there. The
    /// conversation is stored if the response is to be; else it dies with its last reader.
    pub async fn fork(
        &self,
        principal: &str,
        previous: ResponseId,
        create: Create,
        key: Option<KeyClaim>,
    ) -> Result<(ConversationHandle, Reader), Reject> {
        let parent = self.of_response(previous, principal).await?.state().await?;
        let fresh = &mut FreshIds::random();
        let forked = fork(&parent, previous, &create, fresh)?;
        let kept = create.config.store;
        let mut open = if kept {
            Open::like(&parent, principal)
        } else {
            Open { principal: principal.to_owned(), tenant: parent.tenant.clone(), ..Open::default() }
        };
        if parent.responses.last().is_some_and(|last| last.id == previous) {
            // What was added behind it is before whatever goes on from there.
            open.items = parent.staged.iter().map(|item| Item { id: ItemId::draw(fresh), ..item.clone() }).collect();
        }
        self.open_with(kept, open, Some(forked), Create { previous: None, ..create }, key).await
    }

    /// A conversation that is not stored: it dies with its last reader, and its response with it.
    pub async fn ephemeral(
        &self,
        open: Open,
        create: Create,
        key: Option<KeyClaim>,
    ) -> Result<(ConversationHandle, Reader), Reject> {
        self.open_with(false, open, None, create, key).await
    }

    /// Opens a conversation with its first response, in one decision.
    async fn open_with(
        &self,
        stored: bool,
        open: Open,
        fork: Option<Fork>,
        create: Create,
        key: Option<KeyClaim>,
    ) -> Result<(ConversationHandle, Reader), Reject> {
        let handle = self.fresh(stored).await?;
        let inputs = vec![open.input(handle.id, fork), Input::Create(Box::new(create))];
        let reader = handle.follow(inputs, key).await?;
        Ok((handle, reader))
    }

    /// What each principal uses.
    pub fn usage(&self) -> &Usage {
        self.parts.running.usage()
    }

    /// The conversation with this id.
    pub async fn conversation(&self, id: ConversationId, principal: &str) -> Result<ConversationHandle, Reject> {
        let not_found = || Reject::no_conversation(id);
        if self.parts.journal.last_seq(id).map_err(|error| store_reject(&error))? == 0 {
            return Err(not_found());
        }
        let handle = self.handle(id, self.wake(id).await?, true);
        if handle.state().await?.principal == principal { Ok(handle) } else { Err(not_found()) }
    }

    /// The conversation of this response.
    pub async fn of_response(&self, id: ResponseId, principal: &str) -> Result<ConversationHandle, Reject> {
        let found = self.parts.journal.conversation_of_response(id).map_err(|error| store_reject(&error))?;
        let not_found = || Reject::no_response(id);
        if found.is_none()
            && let Some((home, actor)) = self.parts.unstored.find(id)
        {
            return self.owned_unstored(home, actor, principal).await.ok_or_else(not_found);
        }
        self.owned(found, principal, not_found).await
    }

    /// The conversation of this intervention.
    pub async fn of_intervention(&self, id: InterventionId, principal: &str) -> Result<ConversationHandle, Reject> {
        let found = self.parts.journal.conversation_of_intervention(id).map_err(|error| store_reject(&error))?;
        let not_found = || Reject::no_intervention(id);
        if found.is_none()
            && let Some((home, actor)) = self.parts.unstored.find_intervention(id)
        {
            return self.owned_unstored(home, actor, principal).await.ok_or_else(not_found);
        }
        self.owned(found, principal, not_found).await
    }

    /// The stored conversation that has, or had, this item, if there is one.
    pub async fn of_item(&self, id: ItemId, principal: &str) -> Result<Option<ConversationHandle>, Reject> {
        let found = self.parts.journal.conversation_of_item(id).map_err(|error| store_reject(&error))?;
        let Some(found) = found else { return Ok(None) };
        match self.conversation(found, principal).await {
            Err(reject) if reject.code == Code::ConversationNotFound => Ok(None),
            handle => handle.map(Some),
        }
    }

    /// A conversation that no journal knows, if it lives and is this principal's.
    async fn owned_unstored(
        &self,
        home: ConversationId,
        actor: ActorRef<ConversationMsg>,
        principal: &str,
    ) -> Option<ConversationHandle> {
        let handle = self.handle(home, actor, false);
        let owned = handle.state().await.is_ok_and(|state| state.principal == principal);
        owned.then_some(handle)
    }

    /// What is somebody else's does not exist.
    async fn owned(
        &self,
        found: Option<ConversationId>,
        principal: &str,
        not_found: impl Fn() -> Reject,
    ) -> Result<ConversationHandle, Reject> {
        let id = found.ok_or_else(&not_found)?;
        self.conversation(id, principal).await.map_err(|reject| match reject.code {
            Code::ConversationNotFound => not_found(),
            _ => reject,
        })
    }

    /// Wakes every conversation that was running when the process ended; says how many of them go on.
    pub(super) async fn recover(&self) -> Result<usize, Reject> {
        let active = self.parts.journal.active().map_err(|error| store_reject(&error))?;
        let mut going_on = 0;
        for id in &active {
            crash::point("recovery_waking");
            // Waits until it has replayed; one that cannot go on is reported by itself and disturbs no other.
            let replayed = match self.start(*id, true, Room::HadIt).await {
                Ok(actor) => self.handle(*id, actor, true).state().await,
                Err(reject) => Err(reject),
            };
            match replayed {
                Ok(state) => match self.unserved_model(&state) {
                    Some(model) => tracing::warn!(
                        conversation = %id,
                        model,
                        "its answer ends as failed, since this server does not serve the model; it keeps what it said"
                    ),
                    None => going_on += 1,
                },
                Err(reject) => {
                    let reason = reject.message;
                    tracing::error!(conversation = %id, %reason, "a conversation could not be resumed");
                }
            }
        }
        crash::point("recovery_done");
        Ok(going_on)
    }

    /// The model that the running response wants, where it is not served.
    fn unserved_model<'a>(&self, state: &'a State) -> Option<&'a str> {
        let last = state.responses.last()?;
        let fails = match &last.status {
            ResponseStatus::Ended(Ending::Failed { error }) => error.code == Code::ModelNotFound,
            status => !status.is_terminal(),
        };
        let model = last.config.model.as_str();
        (fails && self.parts.catalog.get(Some(model)).is_none()).then_some(model)
    }

    /// Stops every conversation; what is running stays in the journal and goes on after the restart.
    pub(super) async fn stop_all(&self) {
        let (reply, stopped) = oneshot::channel();
        if self.actor.cast(DirectoryMsg::StopAll { reply }).is_ok() {
            let _ = stopped.await;
        }
    }

    pub(super) async fn wake(&self, id: ConversationId) -> Woken {
        self.start(id, true, Room::Needed).await
    }

    async fn fresh(&self, stored: bool) -> Result<ConversationHandle, Reject> {
        let id = ConversationId::draw(&mut FreshIds::random());
        Ok(self.handle(id, self.start(id, stored, Room::Needed).await?, stored))
    }

    async fn start(&self, id: ConversationId, stored: bool, room: Room) -> Woken {
        let stopped = || Reject::new(Code::Draining, "the server is stopping; retry when it is back");
        let (reply, woken) = oneshot::channel();
        self.actor.cast(DirectoryMsg::Wake { id, stored, room, reply }).map_err(|_| stopped())?;
        woken.await.map_err(|_| stopped())?
    }

    fn handle(&self, id: ConversationId, actor: ActorRef<ConversationMsg>, stored: bool) -> ConversationHandle {
        ConversationHandle { id, actor, directory: self.clone(), stored }
    }
}
