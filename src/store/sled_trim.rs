//! Trimming on disk: what is kept of old events is written beside them, part by part; then one small batch moves the
//! oldest event that can be read, and hides those in front of it. The purge removes them.
//!
//! **Invariant:** nothing that is read changes but by that one batch, which is durable when it returns. What lies in
//! front of it and behind it is repeated or gone on with after a crash.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::codec::{self, Head};
use super::error::Error;
use super::journal::{Journal, Kept, check_kept};
use super::keys;
use super::sled_journal::SledJournal;
use super::writes::Writes;
use crate::conversation::{Recorded, reduce};
use crate::crash;
use crate::ids::ConversationId;

/// Events looked at in one part: few enough that an append which comes meanwhile hardly waits.
const PART_EVENTS: usize = 256;

/// Bytes of one part's entries, should the events be large.
const PART_BYTES: usize = 256 * 1024;

impl SledJournal {
    /// Does the next part of a trim. Whether there is more.
    pub(super) fn trim_part(&self, conversation: ConversationId, oldest_seq: u64) -> Result<bool, Error> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        if self.is_deleted(conversation)? || oldest_seq <= self.oldest_seq(conversation)? {
            return Ok(false);
        }
        let last_seq = self.last_seq(conversation)?;
        if oldest_seq > last_seq {
            return Err(Error::Invalid(format!(
                "{conversation} ends at {last_seq}: {oldest_seq} cannot be its oldest"
            )));
        }
        if self.kept_to(conversation)? + 1 < oldest_seq {
            self.keep_part(conversation, oldest_seq - 1)?;
            return Ok(true);
        }
        let mut writes = Writes::default();
        writes.put(keys::oldest(conversation), &codec::encode_seq(oldest_seq));
        crash::point("trim_before");
        self.write(writes, 1).inspect_err(|error| self.note_failure(error))?;
        crash::point("trim_after");
        self.purge.lock().unwrap_or_else(PoisonError::into_inner).trimmed.insert(conversation);
        Ok(false)
    }

    /// Writes what is kept of the next events up to `last`. Nobody reads it yet.
    fn keep_part(&self, conversation: ConversationId, last: u64) -> Result<(), Error> {
        let done = self.kept_to(conversation)?;
        let mut part: Vec<Recorded> = Vec::new();
        let (mut next, mut bytes) = (done + 1, 0);
        let mut rows = self.rows(conversation, next, last);
        while next <= last && part.len() < PART_EVENTS && bytes < PART_BYTES {
            let Some((entry, events)) = rows.next_events(next)? else {
                return Err(Error::damaged(conversation, next, "the event is missing"));
            };
            // What was prepared for a trim that never came may end inside a folded run.
            let mut events = events.into_iter().skip_while(|recorded| recorded.seq < next).peekable();
            if events.peek().is_none_or(|first| first.seq != next) {
                return Err(Error::damaged(conversation, next, "the event is missing"));
            }
            bytes += entry.len();
            part.extend(events);
            next = part.last().map_or(next, |recorded| recorded.seq) + 1;
        }
        let mut writes = Writes::default();
        put_kept(&mut writes, conversation, done, &reduce(&part))?;
        crash::point("trim_keeping");
        self.access.apply(&self.db, &writes.into_batch()).inspect_err(|_| self.failed.store(true, Ordering::SeqCst))?;
        Ok(())
    }

    /// Up to which seq something is kept, seen or not: the last event of each part is.
    pub(super) fn kept_to(&self, conversation: ConversationId) -> Result<u64, Error> {
        let all = keys::kept(conversation, 0, 0)..=keys::kept(conversation, u64::MAX, u16::MAX);
        let mut rows = self.db.range(all);
        let last = self.access.read(|| rows.next_back().transpose());
        let last = last.map_err(|error| Error::of_conversation(conversation, 0, error))?;
        Ok(last.and_then(|(key, _)| keys::event_parts(&key)).map_or(0, |(seq, _)| seq))
    }

    /// Reads what is kept in front of the oldest event.
    pub(super) fn read_kept(
        &self,
        conversation: ConversationId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Recorded>, Error> {
        // As long as it is held, the purge of a deletion removes nothing of it.
        let _reading = self.folding.read().unwrap_or_else(PoisonError::into_inner);
        let last = self.oldest_seq(conversation)? - 1;
        let (mut kept, mut before) = (Vec::new(), after);
        let mut rows = self.rows_of(keys::KEPT, conversation, after + 1, last);
        while kept.len() < limit && before < last {
            let recorded = rows.next_kept(before)?;
            before = recorded.seq;
            kept.push(recorded);
        }
        Ok(kept)
    }

    /// Writes what a dump kept, in one batch.
    pub(super) fn load_kept(&self, kept: &[Kept]) -> Result<(), Error> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        check_kept(self, kept)?;
        let mut writes = Writes::default();
        for Kept { conversation, events } in kept {
            let Some(last) = events.last() else { continue };
            put_kept(&mut writes, *conversation, self.kept_to(*conversation)?, events)?;
            writes.put_lookups(*conversation, events);
            writes.put(keys::oldest(*conversation), &codec::encode_seq(last.seq + 1));
            writes.put(keys::head(*conversation), &codec::encode_head(Head { seq: last.seq, at_ms: last.at_ms }));
        }
        self.write(writes, kept.len()).inspect_err(|error| self.note_failure(error))
    }
}

/// The rows of kept events behind the one of `before`.
fn put_kept(
    writes: &mut Writes,
    conversation: ConversationId,
    mut before: u64,
    events: &[Recorded],
) -> Result<(), Error> {
    for recorded in events {
        writes
            .put_kept(conversation, recorded, before)
            .map_err(|why| Error::Invalid(format!("{conversation} cannot be stored: {why}")))?;
        before = recorded.seq;
    }
    Ok(())
}
