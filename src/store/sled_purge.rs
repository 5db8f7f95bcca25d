//! Removing what is left of deleted conversations: their events, then what the index still says of them. And the
//! events that were trimmed from others.
//!
//! The deletion itself is one small batch that hides everything, so that no size of a conversation holds up others
//! or the flush they share. What is done here changes nothing that can be read; a restart goes on with it where there
//! is a tombstone. The tombstone goes last: one that stayed would keep the segment of the log that it lies in.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::{MutexGuard, PoisonError};

use super::codec;
use super::error::Error;
use super::journal::{Journal, Record};
use super::keys;
use super::sled_journal::{SledJournal, decode_record};
use super::writes::Writes;
use crate::crash;
use crate::ids::ConversationId;

/// Rows removed in one part: few enough that an append which comes meanwhile hardly waits. It bounds memory, too: for
/// each row of a batch sled copies the leaf that it lies in, and frees none of the copies in front of the batch's end.
pub(super) const PART_ROWS: usize = 512;

/// Rows of the index looked at in one part.
const PART_INDEX_ROWS: usize = 4096;

/// Conversations of one part of which nothing but their names is left to be removed.
const PART_CONVERSATIONS: usize = PART_ROWS / 2;

/// The kinds whose rows name a conversation in their value.
const SWEPT: [u8; 5] = [keys::RESPONSE, keys::INTERVENTION, keys::IDEMPOTENCY, keys::ITEM, keys::CHAT];

/// Conversations that are remembered as deleted when nothing is left of them, until the process ends: more than can
/// still be about to write.
const BURIED_MAX: usize = 1 << 16;

/// Deleted conversations of which nothing is left, the latest.
#[derive(Debug, Default)]
pub(super) struct Buried {
    known: HashSet<ConversationId>,
    order: VecDeque<ConversationId>,
}

impl Buried {
    pub(super) fn contains(&self, conversation: ConversationId) -> bool {
        self.known.contains(&conversation)
    }

    fn add(&mut self, conversation: ConversationId) {
        if self.known.insert(conversation) {
            self.order.push_back(conversation);
        }
        if self.order.len() > BURIED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// How far the purge is.
#[derive(Debug, Default)]
pub(super) struct Purge {
    /// Deleted conversations of which rows may be left.
    pub(super) pending: BTreeSet<ConversationId>,
    /// Deleted conversations without events, of which the index may still tell.
    emptied: BTreeSet<ConversationId>,
    /// Conversations of which trimmed events may be left.
    pub(super) trimmed: BTreeSet<ConversationId>,
    sweep: Option<Sweep>,
}

/// One pass over the index, for all conversations whose events are gone when it begins.
#[derive(Debug)]
struct Sweep {
    gone: BTreeSet<ConversationId>,
    /// The index in [`SWEPT`] and the last key looked at.
    kind: usize,
    after: Vec<u8>,
}

impl SledJournal {
    /// Finds the deletions, and the removals of trimmed events, that a crash interrupted.
    pub(super) fn find_unpurged(&self) -> Result<(), Error> {
        let mut purge = self.purging();
        let mut rows = self.db.scan_prefix([keys::DELETED]);
        while let Some((key, _)) = self.access.next(&mut rows)? {
            // Only the key counts: a tombstone is a tombstone, damaged or not.
            purge.pending.extend(keys::id(&key).map(ConversationId::from_bytes));
        }
        let mut rows = self.db.scan_prefix([keys::OLDEST]);
        while let Some((key, _)) = self.access.next(&mut rows)? {
            purge.trimmed.extend(keys::id(&key).map(ConversationId::from_bytes));
        }
        Ok(())
    }

    /// Removes the next part. Whether there is more.
    pub(super) fn purge_part(&self) -> Result<bool, Error> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        let mut purge = self.purging();
        self.purge_next(&mut purge).inspect_err(|error| self.note_failure(error))?;
        let waiting = [&purge.pending, &purge.trimmed, &purge.emptied];
        Ok(purge.sweep.is_some() || waiting.iter().any(|conversations| !conversations.is_empty()))
    }

    fn purge_next(&self, purge: &mut Purge) -> Result<(), Error> {
        if let Some(sweep) = &mut purge.sweep {
            if !self.sweep_part(sweep)? && !self.bury_part(&mut sweep.gone)? {
                purge.sweep = None;
            }
            return Ok(());
        }
        if let Some(conversation) = purge.trimmed.first().copied() {
            // One that was damaged since is left to its repair.
            let oldest = self.oldest_seq(conversation).unwrap_or(1);
            match self.remove_rows_of(keys::JOURNAL, conversation, oldest - 1) {
                Ok(true) => {}
                Ok(false) | Err(Error::Damaged { .. }) => {
                    purge.trimmed.remove(&conversation);
                }
                Err(error) => return Err(error),
            }
            return Ok(());
        }
        for _ in 0..PART_CONVERSATIONS {
            let Some(conversation) = purge.pending.first().copied() else { break };
            for kind in [keys::JOURNAL, keys::KEPT] {
                match self.remove_rows_of(kind, conversation, u64::MAX) {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    // It is hidden by its tombstone, which stays until the journal is written anew.
                    Err(Error::Damaged { conversation, .. }) => {
                        purge.pending.remove(&conversation);
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
            purge.pending.remove(&conversation);
            purge.emptied.insert(conversation);
        }
        if purge.pending.is_empty() && !purge.emptied.is_empty() {
            let (gone, after) = (std::mem::take(&mut purge.emptied), vec![SWEPT[0]]);
            purge.sweep = Some(Sweep { gone, kind: 0, after });
        }
        Ok(())
    }

    /// Removes a part of a conversation's rows of a kind up to `last`. Whether there were any.
    fn remove_rows_of(&self, kind: u8, conversation: ConversationId, last: u64) -> Result<bool, Error> {
        let mut batch = sled::Batch::default();
        let mut count = 0;
        let mut rows =
            self.db.range(keys::row(kind, conversation, 0, 0)..=keys::row(kind, conversation, last, u16::MAX));
        while count < PART_ROWS {
            let row = self.access.next(&mut rows).map_err(|error| Error::of_conversation(conversation, 0, error))?;
            let Some((key, _)) = row else { break };
            batch.remove(key);
            count += 1;
        }
        if count == 0 {
            return Ok(false);
        }
        // A reader that began before they were hidden ends first.
        let _alone = self.folding.write().unwrap_or_else(PoisonError::into_inner);
        crash::point("purge_before");
        self.access.apply(&self.db, &batch)?;
        crash::point("purge_after");
        Ok(true)
    }

    /// Removes what one part of the index says of the conversations. Whether there is more of it.
    fn sweep_part(&self, sweep: &mut Sweep) -> Result<bool, Error> {
        let Some(kind) = SWEPT.get(sweep.kind).copied() else {
            return Ok(false);
        };
        let mut writes = Writes::default();
        let (mut seen, mut is_full) = (0, false);
        let end = vec![kind + 1];
        let mut rows = self.db.range((Bound::Excluded(sweep.after.clone()), Bound::Excluded(end)));
        while let Some((key, value)) = self.access.next(&mut rows)? {
            // One that cannot be read is damage that no conversation owns, and stays to be told.
            if sweep.names_gone(kind, &key, &value) {
                if keys::INDEX.contains(&kind) {
                    writes.remove(key.to_vec());
                } else {
                    writes.journal.push((key.to_vec(), None));
                }
            }
            seen += 1;
            is_full = seen == PART_INDEX_ROWS || writes.index.len() + writes.journal.len() == PART_ROWS;
            if is_full {
                sweep.after = key.to_vec();
                break;
            }
        }
        if !is_full {
            sweep.kind += 1;
            sweep.after = SWEPT.get(sweep.kind).map_or_else(Vec::new, |kind| vec![*kind]);
        }
        if !writes.index.is_empty() || !writes.journal.is_empty() {
            self.write_unseen(writes)?;
        }
        Ok(true)
    }

    /// Removes some tombstones, since nothing is left, and makes all of it durable. Whether there are more.
    fn bury_part(&self, gone: &mut BTreeSet<ConversationId>) -> Result<bool, Error> {
        crash::point("purge_burying");
        let mut writes = Writes::default();
        let part: Vec<_> = gone.iter().take(PART_CONVERSATIONS).copied().collect();
        let mut buried = self.buried.write().unwrap_or_else(PoisonError::into_inner);
        for conversation in &part {
            buried.add(*conversation);
            writes.journal.push((keys::folded(*conversation), None));
            writes.remove(keys::deleted(*conversation));
        }
        drop(buried);
        self.write_unseen(writes)?;
        self.flush()?;
        for conversation in &part {
            gone.remove(conversation);
        }
        Ok(!gone.is_empty())
    }

    fn purging(&self) -> MutexGuard<'_, Purge> {
        self.purge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sweep {
    /// Whether a row of the index names a conversation that is gone.
    fn names_gone(&self, kind: u8, key: &[u8], value: &[u8]) -> bool {
        if !keys::INDEX.contains(&kind) {
            let conversation = codec::unseal(key, value).and_then(codec::decode_conversation);
            return conversation.is_ok_and(|conversation| self.gone.contains(&conversation));
        }
        decode_record(kind, key, value).is_ok_and(|(conversation, record)| self.is_gone(conversation, &record))
    }

    fn is_gone(&self, conversation: ConversationId, record: &Record) -> bool {
        let is_gone = |id| self.gone.contains(&id);
        is_gone(conversation) || matches!(record, Record::Key(record) if record.is_of(is_gone))
    }
}
