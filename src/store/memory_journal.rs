//! A journal in memory, for tests: the durable image is apart from what a failed append left in between, and
//! failures and crashes are the test's to choose.
//!
//! **Invariant:** reads show the durable image only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::error::Error;
use super::journal::{Batch, Epoch, Journal, Kept, KeyRecord, KeyScope, Record, Sequence, check_kept};
use super::{keys, lookups};
use crate::conversation::{Recorded, reduce};
use crate::ids::{ConversationId, InterventionId, ItemId, ResponseId};

/// How an append is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The write fails, as on a full disk; nothing of it reaches the disk.
    Append,
    /// The flush fails; whether the batches reached the disk shows at the crash.
    Flush,
    /// The sync fails; whether the batches reached the disk shows at the crash.
    Sync,
}

/// What a crash does with batches that were written and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unflushed {
    /// They are gone.
    Lost,
    /// They reached the disk, though nobody was told.
    Kept,
}

/// Journals in memory.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    state: Mutex<State>,
    resumed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    durable: Image,
    unflushed: Vec<Batch>,
    failure: Option<Failure>,
    failed: bool,
    paused: bool,
    waiting: usize,
    appends: Vec<usize>,
}

#[derive(Debug, Default)]
struct Image {
    /// The events that can be read.
    conversations: BTreeMap<ConversationId, Vec<Recorded>>,
    /// What is kept of those in front of them.
    kept: BTreeMap<ConversationId, Vec<Recorded>>,
    responses: BTreeMap<ResponseId, ConversationId>,
    interventions: BTreeMap<InterventionId, ConversationId>,
    active: BTreeSet<ConversationId>,
    /// By the bytes that the store on disk sorts them by, so that dumps are equal.
    keys: BTreeMap<Vec<u8>, (ConversationId, KeyRecord)>,
    epochs: BTreeMap<ConversationId, Epoch>,
    /// What can be looked up in events, by the keys of the store on disk.
    lookups: BTreeMap<Vec<u8>, ConversationId>,
    deleted: BTreeSet<ConversationId>,
}

impl MemoryJournal {
    /// An empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next append fails so, and every one after it until [`MemoryJournal::crash`].
    pub fn fail(&self, failure: Failure) {
        self.state().failure = Some(failure);
    }

    /// Forgets failures, as a restart of the process does, and settles what was not acknowledged.
    pub fn crash(&self, unflushed: Unflushed) {
        let mut state = self.state();
        let batches = std::mem::take(&mut state.unflushed);
        if unflushed == Unflushed::Kept {
            state.durable.apply(&batches);
        }
        state.failure = None;
        state.failed = false;
    }

    /// Appends wait from now on.
    pub fn pause(&self) {
        self.state().paused = true;
    }

    /// Appends go on.
    pub fn resume(&self) {
        self.state().paused = false;
        self.resumed.notify_all();
    }

    /// How many batches wait in an append because of [`MemoryJournal::pause`].
    pub fn waiting(&self) -> usize {
        self.state().waiting
    }

    /// How many batches each append so far brought: its length is the number of flushes.
    pub fn appends(&self) -> Vec<usize> {
        self.state().appends.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Image {
    fn apply(&mut self, batches: &[Batch]) {
        for batch in batches {
            self.apply_one(batch);
        }
    }

    fn apply_one(&mut self, batch: &Batch) {
        let conversation = batch.conversation;
        if batch.deletes() {
            self.delete(conversation);
            return;
        }
        if !batch.events.is_empty() {
            self.add_lookups(conversation, &batch.events);
            let events = self.conversations.entry(conversation).or_default();
            events.extend(batch.events.iter().cloned());
        }
        if let Some(epoch) = batch.epoch() {
            self.epochs.insert(conversation, epoch);
        }
        for record in &batch.records {
            match record {
                Record::Response(id) => {
                    self.responses.insert(*id, conversation);
                }
                Record::Intervention(id) => {
                    self.interventions.insert(*id, conversation);
                }
                Record::Active(true) => {
                    self.active.insert(conversation);
                }
                Record::Active(false) => {
                    self.active.remove(&conversation);
                }
                Record::Key(record) => {
                    self.keys.insert(keys::idempotency(&record.scope), (conversation, record.clone()));
                }
                Record::ForgetKey(scope) => {
                    self.keys.remove(&keys::idempotency(scope));
                }
                // Seen to already.
                Record::Epoch(_) | Record::Deleted => {}
            }
        }
    }

    fn add_lookups(&mut self, conversation: ConversationId, events: &[Recorded]) {
        let keys = events.iter().flat_map(|recorded| lookups::keys_of(&recorded.event));
        self.lookups.extend(keys.map(|key| (key, conversation)));
    }

    fn delete(&mut self, gone: ConversationId) {
        self.conversations.remove(&gone);
        self.kept.remove(&gone);
        self.responses.retain(|_, at| *at != gone);
        self.interventions.retain(|_, at| *at != gone);
        self.active.remove(&gone);
        self.keys.retain(|_, (at, record)| *at != gone && !record.is_of(|id| id == gone));
        self.epochs.remove(&gone);
        self.lookups.retain(|_, at| *at != gone);
        self.deleted.insert(gone);
    }

    fn events(&self, conversation: ConversationId) -> &[Recorded] {
        self.conversations.get(&conversation).map_or(&[], Vec::as_slice)
    }

    fn kept(&self, conversation: ConversationId) -> &[Recorded] {
        self.kept.get(&conversation).map_or(&[], Vec::as_slice)
    }

    fn last(&self, conversation: ConversationId) -> Option<&Recorded> {
        self.events(conversation).last().or(self.kept(conversation).last())
    }

    fn oldest_seq(&self, conversation: ConversationId) -> u64 {
        self.kept(conversation).last().map_or(0, |recorded| recorded.seq) + 1
    }

    fn records(&self) -> Vec<(ConversationId, Record)> {
        let responses = self.responses.iter().map(|(id, at)| (*at, Record::Response(*id)));
        let interventions = self.interventions.iter().map(|(id, at)| (*at, Record::Intervention(*id)));
        let active = self.active.iter().map(|at| (*at, Record::Active(true)));
        let keys = self.keys.values().map(|(at, record)| (*at, Record::Key(record.clone())));
        let epochs = self.epochs.iter().map(|(at, epoch)| (*at, Record::Epoch(*epoch)));
        responses.chain(interventions).chain(active).chain(keys).chain(epochs).collect()
    }
}

impl Journal for MemoryJournal {
    fn append(&self, batches: &[Batch]) -> Result<(), Error> {
        let mut state = self.state();
        state.waiting = batches.len();
        while state.paused {
            state = self.resumed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting = 0;
        drop(state);
        let mut sequence = Sequence::new(self);
        batches.iter().try_for_each(|batch| sequence.accept(batch))?;
        let mut state = self.state();
        if state.failed {
            return Err(Error::Unavailable("an earlier write failed".into()));
        }
        state.failed = state.failure.is_some();
        match state.failure {
            None => {
                state.appends.push(batches.len());
                state.durable.apply(batches);
                Ok(())
            }
            Some(Failure::Append) => Err(Error::Unavailable("no space left on device".into())),
            Some(failure) => {
                state.unflushed.extend_from_slice(batches);
                Err(match failure {
                    Failure::Sync => Error::SyncFailed("input/output error".into()),
                    Failure::Append | Failure::Flush => Error::Unavailable("input/output error".into()),
                })
            }
        }
    }

    fn fold(&self, _conversation: ConversationId, _up_to: u64) -> Result<bool, Error> {
        Ok(false)
    }

    fn purge(&self) -> Result<bool, Error> {
        Ok(false)
    }

    fn trim(&self, conversation: ConversationId, oldest_seq: u64) -> Result<bool, Error> {
        let mut state = self.state();
        if state.failed {
            return Err(Error::Unavailable("an earlier write failed".into()));
        }
        let count = usize::try_from(oldest_seq.saturating_sub(state.durable.oldest_seq(conversation))).unwrap_or(0);
        let Some(events) = state.durable.conversations.get_mut(&conversation).filter(|_| count > 0) else {
            return Ok(false);
        };
        if count >= events.len() {
            return Err(Error::Invalid(format!(
                "{conversation} has no event {oldest_seq}, which cannot be its oldest"
            )));
        }
        let trimmed: Vec<Recorded> = events.drain(..count).collect();
        state.durable.kept.entry(conversation).or_default().extend(reduce(&trimmed));
        Ok(false)
    }

    fn import_kept(&self, kept: &[Kept]) -> Result<(), Error> {
        check_kept(self, kept)?;
        let mut state = self.state();
        for Kept { conversation, events } in kept {
            state.durable.conversations.entry(*conversation).or_default();
            state.durable.kept.entry(*conversation).or_default().extend_from_slice(events);
            state.durable.add_lookups(*conversation, events);
        }
        Ok(())
    }

    fn oldest_seq(&self, conversation: ConversationId) -> Result<u64, Error> {
        Ok(self.state().durable.oldest_seq(conversation))
    }

    fn kept(&self, conversation: ConversationId, after: u64, limit: usize) -> Result<Vec<Recorded>, Error> {
        let state = self.state();
        let kept = state.durable.kept(conversation).iter();
        Ok(kept.filter(|recorded| recorded.seq > after).take(limit).cloned().collect())
    }

    fn read(&self, conversation: ConversationId, after: u64, limit: usize) -> Result<Vec<Recorded>, Error> {
        let state = self.state();
        let oldest_seq = state.durable.oldest_seq(conversation);
        if after.saturating_add(1) < oldest_seq {
            return Err(Error::Expired { conversation, oldest_seq });
        }
        let skipped = usize::try_from(after.saturating_add(1) - oldest_seq).unwrap_or(usize::MAX);
        Ok(state.durable.events(conversation).iter().skip(skipped).take(limit).cloned().collect())
    }

    fn last_seq(&self, conversation: ConversationId) -> Result<u64, Error> {
        Ok(self.state().durable.last(conversation).map_or(0, |recorded| recorded.seq))
    }

    fn last_at_ms(&self, conversation: ConversationId) -> Result<u64, Error> {
        Ok(self.state().durable.last(conversation).map_or(0, |recorded| recorded.at_ms))
    }

    fn event_bytes(&self, conversation: ConversationId, first: u64) -> Result<u64, Error> {
        let state = self.state();
        let all = state.durable.kept(conversation).iter().chain(state.durable.events(conversation));
        let wanted = all.filter(|recorded| recorded.seq >= first);
        Ok(wanted.map(|recorded| serde_json::to_vec(recorded).map_or(0, |json| json.len() as u64)).sum())
    }

    fn epoch(&self, conversation: ConversationId) -> Result<Epoch, Error> {
        Ok(self.state().durable.epochs.get(&conversation).copied().unwrap_or_default())
    }

    fn is_deleted(&self, conversation: ConversationId) -> Result<bool, Error> {
        Ok(self.state().durable.deleted.contains(&conversation))
    }

    fn conversation_of_response(&self, response: ResponseId) -> Result<Option<ConversationId>, Error> {
        Ok(self.state().durable.responses.get(&response).copied())
    }

    fn conversation_of_intervention(&self, intervention: InterventionId) -> Result<Option<ConversationId>, Error> {
        Ok(self.state().durable.interventions.get(&intervention).copied())
    }

    fn conversation_of_item(&self, item: ItemId) -> Result<Option<ConversationId>, Error> {
        Ok(self.state().durable.lookups.get(&keys::item(item)).copied())
    }

    fn chats(
        &self,
        principal: &str,
        after: Option<ResponseId>,
        newest_first: bool,
        limit: usize,
    ) -> Result<Vec<(ResponseId, ConversationId)>, Error> {
        let state = self.state();
        let rows = state.durable.lookups.range(keys::chats(principal, after, newest_first));
        let found = rows.filter_map(|(key, at)| Some((keys::chat_response(key)?, *at)));
        Ok(if newest_first { found.rev().take(limit).collect() } else { found.take(limit).collect() })
    }

    fn key(&self, scope: &KeyScope) -> Result<Option<KeyRecord>, Error> {
        Ok(self.state().durable.keys.get(&keys::idempotency(scope)).map(|(_, record)| record.clone()))
    }

    fn active(&self) -> Result<Vec<ConversationId>, Error> {
        Ok(self.state().durable.active.iter().copied().collect())
    }

    fn conversations(&self, after: Option<ConversationId>, limit: usize) -> Result<Vec<ConversationId>, Error> {
        let state = self.state();
        let ids = state.durable.conversations.keys().copied();
        Ok(ids.filter(|id| after.is_none_or(|after| *id > after)).take(limit).collect())
    }

    fn records(&self, visit: &mut dyn FnMut(ConversationId, Record) -> Result<(), Error>) -> Result<usize, Error> {
        // The lock is let go before `visit`, which may read.
        let records = self.state().durable.records();
        for (conversation, record) in records {
            visit(conversation, record)?;
        }
        Ok(0)
    }
}
