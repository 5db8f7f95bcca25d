//! The routes of Anthropic's API, over the same conversations as all others.

mod answer;
pub(crate) mod count;
mod edits;
pub(crate) mod errors;
mod marks;
pub(crate) mod messages;
pub(crate) mod models;
pub(super) mod request;
mod stream;
mod text;
mod thinking;
mod tool_changes;
mod tools;
mod transcript;
