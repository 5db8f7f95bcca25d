//! The store: journals of conversations on disk, and the one thread that writes them.
//!
//! [`Journal`] is what the rest of the server sees: append batches, read events back, look ids and keys up.
//! [`SledJournal`] keeps it on disk, [`MemoryJournal`] in memory for tests. All appends go through a
//! [`WriterHandle`]: one thread, one flush for everything that waits. [`dump()`] and [`load`] turn a store into
//! JSON lines and back.
//!
//! **Invariant:** an append that returned is on disk; nothing that is not on disk can be read; and one damaged
//! conversation never keeps the others from being read or written. A store that lost acknowledged writes is not opened.

mod acknowledged;
mod codec;
mod dump;
mod error;
mod fold;
mod folder;
mod inspect;
mod journal;
mod keys;
mod kv_files;
mod lookups;
mod memory_journal;
mod migrate;
mod rebuild;
mod repair;
mod retention;
mod sled_access;
mod sled_fold;
mod sled_journal;
mod sled_purge;
mod sled_rows;
mod sled_trim;
mod swap;
mod writer;
mod writes;

#[cfg(test)]
pub(crate) mod tests;

pub use dump::{DumpSummary, LoadSummary, dump, load};
pub use error::Error;
pub use folder::holds_journal;
pub use inspect::{Mended, inspect, mend};
pub use journal::{Batch, Durability, Epoch, Journal, Kept, KeyRecord, KeyScope, KeyedAnswer, Operation, Record};
pub use kv_files::{KvContent, KvDraft, KvFileError, KvFiles, KvReader};
pub use memory_journal::{Failure, MemoryJournal, Unflushed};
pub use migrate::SCHEMA;
pub use rebuild::{Compacted, compact};
pub use repair::{Damage, DamageReport, find_damage, repair};
pub use retention::{
    EventRetention, Expired, ExpiredEvents, KeyRetention, Retention, expired_conversations, expired_events,
    expired_keys,
};
pub use sled_journal::SledJournal;
pub use writer::{Ack, ManualWriter, Writer, WriterHandle, WriterStatus};
