//! The steps from one schema of the store to the next, in order.
//!
//! A step works on the lines of a dump: the header, then conversations' events, then records. It is pure: lines
//! of schema n go in, lines of schema n + 1 come out, and nothing else is read or written. Each step has a file
//! of its own, `NNNN_name.rs`, and is never changed once released.

use serde_json::Value;

#[path = "0001_heads_epochs_tombstones.rs"]
mod heads_epochs_tombstones;

/// The lines of a dump behind its header.
pub(crate) type Lines<'a> = Box<dyn Iterator<Item = Result<Value, String>> + 'a>;

/// One step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Migration {
    /// The schema it reads; it writes the next one.
    pub(crate) from: u32,
    /// What it changes, for the log.
    pub(crate) name: &'static str,
    /// Turns the lines.
    pub(crate) run: for<'a> fn(Lines<'a>) -> Lines<'a>,
}

/// All steps.
pub(crate) const ALL: &[Migration] =
    &[Migration { from: 1, name: "heads, epochs, tombstones", run: heads_epochs_tombstones::run }];
