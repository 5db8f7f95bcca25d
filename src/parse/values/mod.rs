//! How models write values, turned into JSON text while they are written.
//!
//! Every converter takes bytes, does bounded work for each, and appends JSON text of which each prefix is the beginning
//! of a JSON value. None knows a call's markers, and none ever loses a byte: what it could not convert it gives back
//! as it came.

mod escape;
mod keywords;
mod kinds;
mod literal;
mod typed;

#[cfg(test)]
mod tests;

pub(super) use escape::escape;
pub(super) use keywords::Keywords;
pub(super) use kinds::{Kinds, Place, property_names};
pub(super) use literal::{Dialect, Literal};
pub(super) use typed::Typed;
