//! The schema number, and the way from older ones: a dump of an older store is loaded through the steps of
//! `migrations/`.
//!
//! **Invariant:** a store is used only with the schema this build writes; nothing is rewritten in place.

use super::error::Error;

#[path = "../../migrations/mod.rs"]
mod migrations;

pub(super) use migrations::{Lines, Migration};

/// The schema this build writes.
pub const SCHEMA: u32 = 2;

/// Refuses a store with a schema that this build cannot read.
pub(super) fn check(found: u32) -> Result<u32, Error> {
    if found > SCHEMA { Err(Error::NewerSchema { found, known: SCHEMA }) } else { Ok(found) }
}

/// The lines of a dump with schema `found`, as this build's schema has them.
pub(super) fn upgrade(lines: Lines<'_>, found: u32) -> Result<Lines<'_>, Error> {
    chain(lines, found, SCHEMA, migrations::ALL)
}

/// Runs the lines through the steps between two schemas.
pub(super) fn chain<'a>(mut lines: Lines<'a>, found: u32, known: u32, steps: &[Migration]) -> Result<Lines<'a>, Error> {
    if found > known {
        return Err(Error::NewerSchema { found, known });
    }
    for schema in found..known {
        let step = steps
            .iter()
            .find(|step| step.from == schema)
            .ok_or_else(|| Error::Invalid(format!("there is no way from schema {schema} to {}", schema + 1)))?;
        tracing::info!(from = schema, step = step.name, "the dump is brought to a newer schema");
        lines = (step.run)(lines);
    }
    Ok(lines)
}
