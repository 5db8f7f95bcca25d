//! Conversations: OpenAI's objects, and our own sub-resources: events, socket, interventions.

pub(crate) mod events;
pub(crate) mod http;
pub(crate) mod interventions;
pub(crate) mod tool_calls;
pub(crate) mod ws;
mod ws_requests;
