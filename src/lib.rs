//! midstream: serves language models to agents; conversations are durable, steerable actors.
//!
//! The path of one request: [`api`] reads the wire, [`actors`] find the conversation, the pure core in
//! [`conversation`] decides, [`store`] makes the decision durable, readers see it, and only then do effects
//! run: [`prompt`] renders, [`engine`] generates, [`parse`] turns tokens into ordered pieces, which are inputs
//! to the core again. `ARCHITECTURE.md` is the map.
//!
//! With `default-features = false` only the pure text modules are built: [`parse`], [`prompt`], `protocol` and
//! the tokenizer under [`engine`].
#![forbid(unsafe_code)]

pub mod engine;
pub mod parse;
pub mod prompt;
pub mod protocol;

#[cfg(feature = "server")]
pub mod access;
#[cfg(feature = "server")]
pub mod actors;
#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
pub mod app;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod clock;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod conversation;
#[cfg(feature = "server")]
pub mod crash;
#[cfg(feature = "server")]
pub mod error;
#[cfg(feature = "server")]
pub mod ids;
#[cfg(feature = "server")]
pub mod log;
#[cfg(feature = "server")]
pub mod models;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod telemetry;
#[cfg(feature = "server")]
pub mod upstream;
