//! The routes of OpenAI's API.

pub(crate) mod cancel;
pub(crate) mod chat;
mod chat_stream;
pub(crate) mod compact;
mod lane;
pub(crate) mod models;
pub(crate) mod responses;
pub(crate) mod responses_socket;
pub(crate) mod tokenize;
