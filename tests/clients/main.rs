//! Real clients against the real server on loopback: each is installed at a pinned version below `target/` once, and
//! runs with a home, an environment and a key of its own. One that cannot be installed fails its tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail their test")]

mod anthropic;
mod claude;
mod codex;
mod codex_app;
mod confined;
mod examples;
mod install;
mod openclaw;
mod opencode;
mod proxy;
mod schemathesis;
mod sdks;
mod server;
