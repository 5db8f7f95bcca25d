//! The schema number, and whether a store of another one can be used.

use std::cmp::Ordering;

use super::error::Error;

/// The schema this build writes.
pub const SCHEMA: u32 = 1;

/// Whether a store with schema `found` can be opened.
pub(super) fn check(found: u32) -> Result<(), Error> {
    match found.cmp(&SCHEMA) {
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(Error::NewerSchema { found, known: SCHEMA }),
        Ordering::Less => Err(Error::StoreDamaged(format!("schema {found} never existed"))),
    }
}
