//! What a group of batches writes: rows, of which those of the index are kept apart, since the last counts.

use std::collections::HashMap;

use super::codec::{self, Entry, Head};
use super::error::Error;
use super::journal::{Batch, Record};
use super::{keys, lookups, sled_fold};
use crate::conversation::Recorded;
use crate::ids::ConversationId;

/// Rows of one atomic batch.
#[derive(Default)]
pub(super) struct Writes {
    /// Rows of journals, how far they are folded, and what can be looked up in them.
    pub(super) journal: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Rows that the tally counts; none removes.
    pub(super) index: HashMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Writes {
    /// What the batches say, each event under a key of its own.
    pub(super) fn of(batches: &[Batch]) -> Result<Self, Error> {
        Self::each(batches, Self::put_event)
    }

    /// What the batches say, deltas folded.
    pub(super) fn folded(batches: &[Batch]) -> Result<Self, Error> {
        Self::each(batches, Self::put_folded)
    }

    fn each(
        batches: &[Batch],
        put: fn(&mut Self, ConversationId, &[Recorded]) -> Result<(), String>,
    ) -> Result<Self, Error> {
        let mut writes = Self::default();
        for batch in batches {
            writes
                .add(batch, put)
                .map_err(|why| Error::Invalid(format!("{} cannot be stored: {why}", batch.conversation)))?;
        }
        Ok(writes)
    }

    fn add(
        &mut self,
        batch: &Batch,
        put: fn(&mut Self, ConversationId, &[Recorded]) -> Result<(), String>,
    ) -> Result<(), String> {
        let conversation = batch.conversation;
        if batch.deletes() {
            self.delete(conversation);
            return Ok(());
        }
        if let Some(last) = batch.events.last() {
            put(self, conversation, &batch.events)?;
            self.put_lookups(conversation, &batch.events);
            let head = Head { seq: last.seq, at_ms: last.at_ms };
            self.put(keys::head(conversation), &codec::encode_head(head));
        }
        if let Some(epoch) = batch.epoch() {
            self.put(keys::epoch(conversation), &codec::encode_epoch(epoch));
        }
        for record in &batch.records {
            match record {
                Record::Response(id) => self.put(keys::response(*id), &conversation.to_bytes()),
                Record::Intervention(id) => self.put(keys::intervention(*id), &conversation.to_bytes()),
                Record::Active(true) => self.put(keys::active(conversation), &[]),
                Record::Active(false) => self.remove(keys::active(conversation)),
                Record::ForgetKey(scope) => self.remove(keys::idempotency(scope)),
                Record::Key(record) => {
                    let body = codec::encode_key(conversation, record)?;
                    self.put(keys::idempotency(&record.scope), &body);
                }
                // Seen to already.
                Record::Epoch(_) | Record::Deleted => {}
            }
        }
        Ok(())
    }

    /// Hides everything of the conversation; the purge removes what is left.
    fn delete(&mut self, conversation: ConversationId) {
        self.put(keys::deleted(conversation), &[]);
        self.remove(keys::head(conversation));
        self.remove(keys::oldest(conversation));
        self.remove(keys::epoch(conversation));
        self.remove(keys::active(conversation));
    }

    fn put_event(&mut self, conversation: ConversationId, events: &[Recorded]) -> Result<(), String> {
        for recorded in events {
            self.put_entry(conversation, recorded.seq, &Entry::event(recorded)?)?;
        }
        Ok(())
    }

    fn put_folded(&mut self, conversation: ConversationId, events: &[Recorded]) -> Result<(), String> {
        for (seq, entry) in sled_fold::entries(events)? {
            self.put_entry(conversation, seq, &entry)?;
        }
        if let Some(last) = events.last() {
            self.put_row(keys::folded(conversation), &codec::encode_seq(last.seq));
        }
        Ok(())
    }

    fn put_entry(&mut self, conversation: ConversationId, seq: u64, entry: &Entry) -> Result<(), String> {
        self.put_chunks(entry, |chunk| keys::event(conversation, seq, chunk))
    }

    fn put_chunks(&mut self, entry: &Entry, key: impl Fn(u16) -> Vec<u8>) -> Result<(), String> {
        for (chunk, body) in (0_u16..).zip(entry.chunks()?) {
            self.put_row(key(chunk), &body);
        }
        Ok(())
    }

    /// Sets what is kept of a trimmed event, behind the kept event `before`.
    pub(super) fn put_kept(&mut self, id: ConversationId, recorded: &Recorded, before: u64) -> Result<(), String> {
        self.put_chunks(&Entry::kept(recorded, before)?, |chunk| keys::kept(id, recorded.seq, chunk))
    }

    /// Sets what of the events can be looked up.
    pub(super) fn put_lookups(&mut self, conversation: ConversationId, events: &[Recorded]) {
        for key in events.iter().flat_map(|recorded| lookups::keys_of(&recorded.event)) {
            self.put_row(key, &conversation.to_bytes());
        }
    }

    fn put_row(&mut self, key: Vec<u8>, body: &[u8]) {
        let value = codec::seal(&key, body);
        self.journal.push((key, Some(value)));
    }

    /// Sets a row of the index.
    pub(super) fn put(&mut self, key: Vec<u8>, body: &[u8]) {
        let value = codec::seal(&key, body);
        self.index.insert(key, Some(value));
    }

    /// Removes a row of the index.
    pub(super) fn remove(&mut self, key: Vec<u8>) {
        self.index.insert(key, None);
    }

    /// The rows as one atomic batch.
    pub(super) fn into_batch(self) -> sled::Batch {
        let mut batch = sled::Batch::default();
        for (key, value) in self.journal.into_iter().chain(self.index) {
            match value {
                Some(value) => batch.insert(key, value),
                None => batch.remove(key),
            }
        }
        batch
    }
}
