//! The API over real sockets, against a scripted model and a journal in memory. Every test has a server of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail their test")]

#[path = "../support/certificate.rs"]
mod certificate;
mod chat;
mod chat_fields;
mod completions;
mod compressed;
mod conversations;
mod deletion;
mod description;
mod endpoints;
mod errors;
mod hostile;
mod idempotency;
mod inject;
mod interventions;
mod kept_chats;
mod keys;
mod keys_isolation;
mod keys_quotas;
mod load;
mod messages;
mod messages_edits;
mod messages_input;
mod models;
mod oracle;
mod pages;
mod policies;
mod prompts;
mod references;
mod replays;
mod responses;
mod responses_lanes;
mod responses_socket;
mod slow_readers;
mod sockets;
mod steer_dialect;
mod subscriptions;
mod support;
mod tls;
mod tool_calls;
mod tool_kinds;
mod transcripts;
mod trimming;
mod upstreams;
mod upstreams_responses;
mod waiting;
