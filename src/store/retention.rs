//! What is no longer kept: idempotency keys that are old and whose outcome is settled, and conversations that are
//! old, or the oldest where there is no room for all.

use std::collections::HashSet;

use super::error::Error;
use super::journal::{Batch, Durability, Journal, Record};
use crate::ids::ConversationId;

/// Conversations looked at before the next page is read.
const PAGE: usize = 512;

/// How long conversations are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Those whose last event was decided before this are let go, in milliseconds since the Unix epoch.
    pub before_ms: u64,
    /// The most bytes that the events of all may take; the oldest are let go first. None is no bound.
    pub bytes_max: Option<u64>,
}

/// A conversation that is no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Which one.
    pub conversation: ConversationId,
    /// Its last event when that was decided: one that has gone on since is kept.
    pub last_seq: u64,
}

/// Batches that forget the keys recorded before `before_ms`, for the writer to append. Keys of conversations with
/// outstanding work are kept: their outcome is not terminal. It reads all records, so it is no work for an async
/// thread.
pub fn expired_keys(journal: &dyn Journal, before_ms: u64) -> Result<Vec<Batch>, Error> {
    let active: HashSet<_> = journal.active()?.into_iter().collect();
    let mut expired = Vec::new();
    journal.records(&mut |conversation, record| {
        if let Record::Key(record) = record
            && record.at_ms < before_ms
            && !active.contains(&conversation)
        {
            expired.push(Batch {
                conversation,
                events: Vec::new(),
                records: vec![Record::ForgetKey(record.scope)],
                durability: Durability::Group,
            });
        }
        Ok(())
    })?;
    Ok(expired)
}

/// The conversations to be deleted, oldest first: never one with outstanding work, and never a damaged one, which
/// somebody may want to repair. Whether somebody reads one, the store does not know. With a bound of bytes it reads
/// all journals, so it is no work for an async thread.
pub fn expired_conversations(journal: &dyn Journal, retention: Retention) -> Result<Vec<Expired>, Error> {
    let active: HashSet<_> = journal.active()?.into_iter().collect();
    let mut idle = Vec::new();
    let mut bytes = 0;
    let mut after = None;
    loop {
        let page = journal.conversations(after, PAGE)?;
        for conversation in &page {
            let (last_seq, at_ms) = match (journal.last_seq(*conversation), journal.last_at_ms(*conversation)) {
                (Ok(last_seq), Ok(at_ms)) => (last_seq, at_ms),
                (Err(Error::Damaged { .. }), _) | (_, Err(Error::Damaged { .. })) => continue,
                (Err(error), _) | (_, Err(error)) => return Err(error),
            };
            let size = if retention.bytes_max.is_some() { journal.event_bytes(*conversation)? } else { 0 };
            bytes += size;
            // Deleted since the page was read.
            if last_seq > 0 && !active.contains(conversation) {
                idle.push((at_ms, size, Expired { conversation: *conversation, last_seq }));
            }
        }
        match page.last() {
            Some(last) => after = Some(*last),
            None => break,
        }
    }
    idle.sort_unstable_by_key(|(at_ms, _, expired)| (*at_ms, expired.conversation));
    let bytes_max = retention.bytes_max.unwrap_or(u64::MAX);
    let let_go = idle.into_iter().take_while(|(at_ms, size, _)| {
        let is_over = *at_ms < retention.before_ms || bytes > bytes_max;
        bytes -= if is_over { *size } else { 0 };
        is_over
    });
    Ok(let_go.map(|(.., expired)| expired).collect())
}
