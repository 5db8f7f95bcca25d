//! What can go wrong in the store, each with the code that a client sees.

use std::path::PathBuf;

use crate::error::Code;
use crate::ids::ConversationId;

/// What is said of a record whose checksum in the log does not fit.
const UNREADABLE: &str = "a part of its file cannot be read";

/// Why the store could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The batch does not follow the journal's last event: somebody else wrote. Nothing was written.
    #[error("{conversation}: the next event must have seq {expected}, not {found}; read the journal again")]
    Conflict {
        /// Whose journal.
        conversation: ConversationId,
        /// The seq that comes next.
        expected: u64,
        /// The seq that was brought.
        found: u64,
    },
    /// The conversation was deleted: nothing can be written to it.
    #[error("{0} was deleted; open a new conversation")]
    Deleted(ConversationId),
    /// The event was trimmed.
    #[error("{conversation}: the events in front of seq {oldest_seq} are no longer kept")]
    Expired {
        /// Whose journal.
        conversation: ConversationId,
        /// The first event that can be read.
        oldest_seq: u64,
    },
    /// The storage cannot be written or read; nothing more is taken until the process starts again.
    #[error("the journal cannot be written: {0}; free disk space or repair the disk, then restart")]
    Unavailable(String),
    /// The sync failed: what is on disk is unknown and the handle cannot be trusted. The process must exit.
    #[error("the journal's sync failed: {0}; the process must exit, and a restart reads what is on disk")]
    SyncFailed(String),
    /// Whoever a dump is written to takes no more of it.
    #[error("the dump is not whole: nobody reads on")]
    ReaderGone,
    /// One conversation cannot be read; the others can.
    #[error("{conversation} is damaged at seq {seq}: {why}; it is set aside, the others are not touched")]
    Damaged {
        /// Which conversation.
        conversation: ConversationId,
        /// The first event that cannot be read.
        seq: u64,
        /// What is wrong with it.
        why: String,
    },
    /// Something that no conversation owns is damaged.
    #[error("the store is damaged: {0}; restore the folder from a copy, or start on an empty one")]
    StoreDamaged(String),
    /// Acknowledged writes are gone: the log was damaged, and recovery left out what lies behind the damage.
    #[error(
        "the store is damaged: {0}; restore the whole data folder from a copy, or see what is left with midstream \
         conversations repair, and go on with that with repair --apply"
    )]
    Lost(String),
    /// Another process has the folder.
    #[error("another midstream runs on this data folder: {}; stop it, or choose another --data-dir", .0.display())]
    InUse(PathBuf),
    /// The store was written by a newer version.
    #[error("the store has schema {found}, but this version knows only up to {known}; use a newer midstream")]
    NewerSchema {
        /// What the store says.
        found: u32,
        /// What this build writes.
        known: u32,
    },
    /// A file of the data folder could not be opened, read or written.
    #[error("{what}: {why}")]
    File {
        /// What was tried, with the path.
        what: String,
        /// The system's answer.
        why: String,
    },
    /// What was brought cannot be stored or loaded.
    #[error("{0}")]
    Invalid(String),
    /// The writer was stopped.
    #[error("the journal is closed because the server stops; retry after it has started again")]
    Stopped,
}

impl Error {
    /// The code that a client sees.
    pub fn code(&self) -> Code {
        match self {
            Self::Unavailable(_) | Self::SyncFailed(_) | Self::StoreDamaged(_) | Self::Lost(_) | Self::File { .. } => {
                Code::StorageUnavailable
            }
            Self::Damaged { .. } => Code::ConversationDamaged,
            Self::Deleted(_) => Code::ConversationNotFound,
            Self::Expired { .. } => Code::CursorExpired,
            Self::Stopped => Code::Draining,
            Self::Conflict { .. } | Self::InUse(_) | Self::NewerSchema { .. } | Self::Invalid(_) | Self::ReaderGone => {
                Code::Internal
            }
        }
    }

    /// Whether nothing can be written after it until the process starts again.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::SyncFailed(_) | Self::StoreDamaged(_) | Self::File { .. })
    }

    /// Damage of one event.
    pub(super) fn damaged(conversation: ConversationId, seq: u64, why: impl Into<String>) -> Self {
        Self::Damaged { conversation, seq, why: why.into() }
    }

    /// What the database says of bytes that it cannot read, as damage of the conversation that they belong to.
    pub(super) fn of_conversation(conversation: ConversationId, seq: u64, error: sled::Error) -> Self {
        match error {
            sled::Error::Corruption { .. } => Self::damaged(conversation, seq, UNREADABLE),
            other => other.into(),
        }
    }

    /// A failed operation on a file.
    pub(super) fn file(what: impl Into<String>, why: &std::io::Error) -> Self {
        Self::File { what: what.into(), why: why.to_string() }
    }
}

impl From<sled::Error> for Error {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Corruption { .. } => Self::StoreDamaged(UNREADABLE.into()),
            other => Self::Unavailable(other.to_string()),
        }
    }
}
