//! The routes of Anthropic's API, over the same conversations as all others.

mod answer;
pub(crate) mod count;
pub(crate) mod errors;
pub(crate) mod messages;
mod request;
mod stream;
mod text;
mod thinking;
mod tools;
mod transcript;
