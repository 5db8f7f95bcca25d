//! The shells around the core: one actor per live conversation, and what supervises and feeds them.
//!
//! The outside sees handles and readers only; actor references and channels stay in here. Nothing a promise
//! needs may sit in `post_stop`: a kill runs none.

mod chat;
mod chats;
mod checkpoints;
mod conversation;
mod courier;
mod directory;
mod effects;
mod foresight;
mod handle;
mod journal;
mod keys;
mod kv;
mod listing;
mod offload;
mod parsed;
mod preview;
mod prompt;
mod pump;
mod reader;
mod reading;
mod root;
mod shared;
mod shorten;
mod standing;
mod unflushed;

#[cfg(test)]
mod choice_tests;
#[cfg(test)]
mod durability_tests;
#[cfg(test)]
mod foresight_tests;
#[cfg(test)]
mod fork_tests;
#[cfg(test)]
mod native_id_tests;
#[cfg(test)]
mod prompt_tests;
#[cfg(test)]
mod reading_tests;
#[cfg(test)]
mod retention_tests;
#[cfg(test)]
mod shorten_tests;
#[cfg(test)]
mod steer_tests;
#[cfg(test)]
mod teller;
#[cfg(test)]
mod tests;

pub use chats::ChatsFrom;
pub use directory::{DirectoryHandle, Open};
pub use foresight::Foresight;
pub use handle::{AnsweredCall, Cancelled, Claimed, ConversationHandle};
pub use keys::{Claim, KeyClaim, Keys};
pub use kv::KvKeeper;
pub use listing::{Listed, Part};
pub(crate) use offload::offload;
pub use preview::preview_prompt;
pub use reader::{Cursor, Reader};
pub use root::{RootHandle, start};
pub use shared::{Parts, Running, Unstored};
