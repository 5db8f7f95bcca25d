//! What is no longer kept: idempotency keys that are old and whose outcome is settled.

use std::collections::HashSet;

use super::error::Error;
use super::journal::{Batch, Durability, Journal, Record};

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
