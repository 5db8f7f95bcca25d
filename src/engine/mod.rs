//! Engines: whatever turns a prompt into tokens.
//!
//! [`tokenizer`] and [`gguf`] are pure and always built. The rest (scheduler, KV, sampling, models, backends,
//! the scripted engine) is the server's. Nothing here knows about conversations, actors or HTTP: an engine gets
//! a [`GenerationRequest`] and answers with a stream of [`EngineEvent`]s.

pub mod gguf;
pub mod tokenizer;

#[cfg(feature = "server")]
mod backend;
#[cfg(feature = "server")]
mod catalog;
#[cfg(feature = "server")]
mod contract;
#[cfg(feature = "server")]
mod grammar;
#[cfg(feature = "server")]
mod kv;
#[cfg(feature = "server")]
mod local;
#[cfg(feature = "server")]
mod model;
#[cfg(feature = "server")]
mod sampling;
#[cfg(feature = "server")]
mod scheduler;
#[cfg(feature = "server")]
mod score;
#[cfg(feature = "server")]
mod scripted;
#[cfg(feature = "server")]
pub mod settings;

#[cfg(feature = "server")]
pub use catalog::Catalog;
#[cfg(feature = "server")]
pub(crate) use contract::unwanted;
#[cfg(feature = "server")]
pub use contract::{
    AbortHandle, Chat, Counted, Engine, EngineError, EngineEvent, FinishReason, Generation, GenerationRequest, KvImage,
    KvRefused, Load, Medium, ModelInfo, Refusal, SequenceId, Standing,
};
#[cfg(feature = "server")]
pub use grammar::{
    Compiled, Grammars, Guide, Lost, Refused, Surroundings, TokenSet, Uncompilable, fault, may_be_unmarked, only_told,
};
#[cfg(feature = "server")]
pub(crate) use kv::BLOCK_TOKENS;
#[cfg(feature = "server")]
pub use local::{
    Bound, EngineStats, FileFacts, LoadError, LoadOptions, LoadProgress, LocalEngine, Needs, Room, Shortage,
    read_file_facts, read_model_info,
};
#[cfg(feature = "server")]
pub use midstream_kernels::KvFormat;
#[cfg(all(test, feature = "server"))]
pub(crate) use model::tiny;
#[cfg(feature = "server")]
pub use model::{ModelError, Work};
#[cfg(feature = "server")]
pub use sampling::TokenLogprobs;
#[cfg(feature = "server")]
pub use score::{Perplexity, ScoreError, Scorer};
#[cfg(feature = "server")]
pub use scripted::{ScriptError, ScriptedEngine};
#[cfg(feature = "server")]
pub use settings::{Sampling, SamplingDefaults};
