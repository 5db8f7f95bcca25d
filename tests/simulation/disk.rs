//! The disk under a simulated server: what is written is durable only behind a flush that takes time, and a crash in
//! between loses it, keeps it or tears it between two decisions.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use midstream::conversation::{Event, Recorded, State};
use midstream::ids::{ConversationId, InterventionId, ItemId, ResponseId};
use midstream::store::{
    Batch, Epoch, Error, Failure, Journal, Kept, KeyRecord, KeyScope, ManualWriter, MemoryJournal, Record, Unflushed,
};

use serde_json::json;

use crate::dice::Dice;
use crate::world::World;

/// The durable image, and what is on its way there.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) durable: MemoryJournal,
    written: Mutex<Vec<Batch>>,
    damaged: Mutex<BTreeSet<ConversationId>>,
    /// The journals of conversations that were, or were to be, deleted.
    deleting: Mutex<BTreeMap<ConversationId, Vec<Recorded>>>,
    /// The events that were trimmed, as they were.
    pub(crate) trimmed: Mutex<BTreeMap<ConversationId, Vec<Recorded>>>,
    /// Trims that changed a state.
    pub(crate) changed: Mutex<Vec<String>>,
    world: Weak<World>,
}

/// The state that the events fold to.
pub(crate) fn fold(events: &[Recorded]) -> State {
    let mut state = State::default();
    for recorded in events {
        state.apply(recorded);
    }
    state
}

impl Disk {
    /// An empty disk of this world.
    pub(crate) fn new(world: Weak<World>) -> Self {
        Self { world, ..Self::default() }
    }

    /// Every event there ever was of a conversation.
    pub(crate) fn all(&self, id: ConversationId) -> Vec<Recorded> {
        let mut all = self.trimmed.lock().unwrap().get(&id).cloned().unwrap_or_default();
        all.extend(self.durable.read(id, all.len() as u64, usize::MAX).unwrap());
        all
    }

    /// The journals of deleted conversations, as they were at last: the server cannot read them any more, the auditor
    /// can.
    pub(crate) fn deleted(&self) -> Vec<(ConversationId, Vec<Recorded>)> {
        let mut all = self.deleting.lock().unwrap().clone();
        all.retain(|id, _| self.durable.is_deleted(*id).unwrap());
        all.into_iter().collect()
    }

    /// Fails from the next append on.
    pub(crate) fn fail(&self, failure: Failure) {
        self.durable.fail(failure);
    }

    /// Reads of this conversation fail until the next start.
    pub(crate) fn damage(&self, id: ConversationId) {
        self.damaged.lock().unwrap().insert(id);
    }

    /// The power is gone: settles what was not flushed, and gives what of it is lost.
    pub(crate) fn crash(&self, dice: &mut Dice) -> Vec<Batch> {
        self.damaged.lock().unwrap().clear();
        let mut written = std::mem::take(&mut *self.written.lock().unwrap());
        self.durable.crash(if dice.chance(50) { Unflushed::Lost } else { Unflushed::Kept });
        let lost = written.split_off(dice.place(written.len() + 1));
        // What does not continue the image was refused before it was written.
        for batch in written {
            let _ = self.append(&[batch]);
        }
        lost
    }
}

/// Writes until nobody appends any more; each flush takes as long as the dice say.
pub(crate) async fn write(mut writer: ManualWriter, disk: Arc<Disk>, mut dice: Dice) {
    while let Some(batches) = writer.gather().await {
        *disk.written.lock().unwrap() = batches;
        tokio::time::sleep(Duration::from_millis(dice.below(4))).await;
        disk.written.lock().unwrap().clear();
        writer.commit();
    }
}

impl Journal for Disk {
    fn append(&self, batches: &[Batch]) -> Result<(), Error> {
        let ends = |batch: &&Batch| {
            batch.events.last().is_some_and(|recorded| matches!(recorded.event, Event::ConversationDeleted {}))
        };
        for batch in batches.iter().filter(ends) {
            let before = self.all(batch.conversation);
            let of_it = batches.iter().filter(|other| other.conversation == batch.conversation);
            let all = before.into_iter().chain(of_it.flat_map(|it| it.events.clone())).collect();
            // Also where the write fails: what was not flushed may be on disk after the crash.
            self.deleting.lock().unwrap().insert(batch.conversation, all);
        }
        self.durable.append(batches)
    }

    fn purge(&self) -> Result<bool, Error> {
        self.durable.purge()
    }

    fn last_at_ms(&self, conversation: ConversationId) -> Result<u64, Error> {
        self.durable.last_at_ms(conversation)
    }

    fn event_bytes(&self, conversation: ConversationId, first: u64) -> Result<u64, Error> {
        self.durable.event_bytes(conversation, first)
    }

    /// Trims, and sees that the state stays what it was.
    fn trim(&self, conversation: ConversationId, oldest_seq: u64) -> Result<bool, Error> {
        let mut before = self.all(conversation);
        let more = self.durable.trim(conversation, oldest_seq)?;
        if self.durable.oldest_seq(conversation)? == oldest_seq && !before.is_empty() {
            before.truncate(usize::try_from(oldest_seq).unwrap() - 1);
            let kept = self.durable.kept(conversation, 0, usize::MAX)?;
            if fold(&kept) != fold(&before) {
                self.changed.lock().unwrap().push(format!("{conversation} in front of {oldest_seq}"));
            }
            self.trimmed.lock().unwrap().insert(conversation, before);
            let conversation = conversation.to_string();
            let world = self.world.upgrade().unwrap();
            world.note(json!({"kind": "trimmed", "conversation": conversation, "oldest_seq": oldest_seq}));
        }
        Ok(more)
    }

    fn import_kept(&self, kept: &[Kept]) -> Result<(), Error> {
        self.durable.import_kept(kept)
    }

    fn oldest_seq(&self, conversation: ConversationId) -> Result<u64, Error> {
        self.durable.oldest_seq(conversation)
    }

    fn kept(&self, conversation: ConversationId, after: u64, limit: usize) -> Result<Vec<Recorded>, Error> {
        self.durable.kept(conversation, after, limit)
    }

    fn epoch(&self, conversation: ConversationId) -> Result<Epoch, Error> {
        self.durable.epoch(conversation)
    }

    fn is_deleted(&self, conversation: ConversationId) -> Result<bool, Error> {
        self.durable.is_deleted(conversation)
    }

    fn fold(&self, conversation: ConversationId, up_to: u64) -> Result<bool, Error> {
        self.durable.fold(conversation, up_to)
    }

    fn read(&self, conversation: ConversationId, after: u64, limit: usize) -> Result<Vec<Recorded>, Error> {
        if self.damaged.lock().unwrap().contains(&conversation) {
            return Err(Error::Damaged { conversation, seq: after + 1, why: "the simulated disk lost it".into() });
        }
        self.durable.read(conversation, after, limit)
    }

    fn last_seq(&self, conversation: ConversationId) -> Result<u64, Error> {
        self.durable.last_seq(conversation)
    }

    fn conversation_of_response(&self, response: ResponseId) -> Result<Option<ConversationId>, Error> {
        self.durable.conversation_of_response(response)
    }

    fn conversation_of_intervention(&self, intervention: InterventionId) -> Result<Option<ConversationId>, Error> {
        self.durable.conversation_of_intervention(intervention)
    }

    fn conversation_of_item(&self, item: ItemId) -> Result<Option<ConversationId>, Error> {
        self.durable.conversation_of_item(item)
    }

    fn chats(
        &self,
        principal: &str,
        after: Option<ResponseId>,
        newest_first: bool,
        limit: usize,
    ) -> Result<Vec<(ResponseId, ConversationId)>, Error> {
        self.durable.chats(principal, after, newest_first, limit)
    }

    fn key(&self, scope: &KeyScope) -> Result<Option<KeyRecord>, Error> {
        self.durable.key(scope)
    }

    fn active(&self) -> Result<Vec<ConversationId>, Error> {
        self.durable.active()
    }

    fn conversations(&self, after: Option<ConversationId>, limit: usize) -> Result<Vec<ConversationId>, Error> {
        self.durable.conversations(after, limit)
    }

    fn records(&self, visit: &mut dyn FnMut(ConversationId, Record) -> Result<(), Error>) -> Result<usize, Error> {
        self.durable.records(visit)
    }
}
