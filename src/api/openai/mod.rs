//! The routes of OpenAI's API.

pub(crate) mod cancel;
pub(crate) mod chat;
mod chat_stream;
pub(in crate::api) mod choices;
pub(crate) mod compact;
pub(crate) mod completions;
mod completions_form;
pub(crate) mod functions;
pub(crate) mod kept_chats;
mod lane;
pub(crate) mod models;
pub(crate) mod responses;
pub(crate) mod responses_socket;
pub(crate) mod tokenize;
