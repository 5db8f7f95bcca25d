//! The real binary, killed without warning. What a client was told must still hold when it is back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail their test")]

#[path = "../support/audit/mod.rs"]
mod audit;
mod constrained;
mod crowd;
mod disk;
mod hostile;
mod kept;
mod keys;
mod kills;
mod kv;
mod metrics;
mod model;
mod operators;
mod order;
mod points;
mod retention;
mod secrets;
mod start;
mod stop;
mod support;
mod upstream;
mod witness;
