//! Who may use the server, as whom, and how much: API keys, of which only hashes are kept, in one file of the data
//! folder; and what each principal uses.
//!
//! Knows no HTTP: [`Gate`] turns what a client showed into an [`Identity`], or into nothing.

mod file;
mod gate;
mod key;
mod limits;
mod secret;
#[cfg(test)]
mod tests;
mod usage;

pub use file::KeyFile;
pub use gate::{Gate, Identity};
pub use key::{DEFAULT_TENANT, Key, LOCAL, NewKey, create, revoke};
pub use limits::Limits;
pub use secret::Secret;
pub use usage::{Held, Meter, Over, Room, Standing, Usage};

use std::path::PathBuf;

/// Keys cannot be read, written or changed as asked; the text says why and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be reached.
    #[error("the file of API keys {}: {source}", path.display())]
    File {
        /// Where it should be.
        path: PathBuf,
        /// What is wrong.
        source: std::io::Error,
    },
    /// The file holds something else than keys.
    #[error("{} holds no API keys as midstream writes them ({why}); restore it or mend it", path.display())]
    Unreadable {
        /// Where it is.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The system gave no random bytes.
    #[error("no random bytes for a new key: {0}")]
    Random(std::io::Error),
    /// A text that names nothing.
    #[error("the {what} {text:?} cannot be used; write 1 to 64 letters, digits, dots, @, _ and -")]
    Name {
        /// What it was to name.
        what: &'static str,
        /// What was given.
        text: String,
    },
    /// Another key has the name.
    #[error("there is a key named {0} already; choose another name, or revoke that one first")]
    NameTaken(String),
    /// The principal's other keys are of another tenant.
    #[error(
        "the principal {principal} belongs to the tenant {tenant}, and to one only; leave --tenant out, or name it"
    )]
    OtherTenant {
        /// The principal.
        principal: String,
        /// Where it belongs.
        tenant: String,
    },
    /// No key has this name or id.
    #[error("no key has the name or id {0}; midstream keys list shows all")]
    Unknown(String),
}
