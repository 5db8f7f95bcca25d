//! The wire: the types of the HTTP and WebSocket APIs as clients send and read them.
//!
//! Only serde and schemas here, no domain type and no decision: `api` converts. Requests accept any field they do not
//! know; a field they know has one type.

pub mod chat;
pub mod completions;
pub mod conversations;
pub mod error;
pub mod items;
pub mod logprobs;
pub mod messages;
pub mod models;
pub mod responses;
pub mod sampling;
mod text_or;
pub mod tokenize;

pub use text_or::TextOr;
