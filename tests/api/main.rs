//! The API over real sockets, against a scripted model and a journal in memory. Every test has a server of its own.

mod chat;
mod conversations;
mod errors;
mod idempotency;
mod interventions;
mod responses;
mod sockets;
mod support;
