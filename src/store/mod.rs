//! The store: journals of conversations on disk, and the one thread that writes them.
//!
//! [`Journal`] is what the rest of the server sees: append batches, read events back, look ids and keys up.
//! [`SledJournal`] keeps it on disk, [`MemoryJournal`] in memory for tests. All appends go through a
//! [`WriterHandle`]: one thread, one flush for everything that waits. [`dump()`] and [`load`] turn a store into
//! JSON lines and back.
//!
//! **Invariant:** an append that returned is on disk; nothing that is not on disk can be read; and one damaged
//! conversation never keeps the others from being read. A store that lost acknowledged writes is not opened.

mod acknowledged;
mod codec;
mod dump;
mod error;
mod fold;
mod folder;
mod journal;
mod keys;
mod memory_journal;
mod migrate;
mod retention;
mod sled_fold;
mod sled_journal;
mod writer;

#[cfg(test)]
mod tests;

pub use dump::{DumpSummary, LoadSummary, dump, load};
pub use error::Error;
pub use journal::{Batch, Durability, Journal, KeyRecord, KeyScope, KeyedAnswer, Operation, Record};
pub use memory_journal::{Failure, MemoryJournal, Unflushed};
pub use migrate::SCHEMA;
pub use retention::expired_keys;
pub use sled_journal::SledJournal;
pub use writer::{ManualWriter, Writer, WriterHandle, WriterStatus};
