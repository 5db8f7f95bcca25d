//! From a conversation to prompt tokens, with the model's own chat template.
//!
//! Pure: no clock, no I/O, no server types. [`Message`] is what a template sees; [`ChatTemplate`] renders; [`build`]
//! makes tokens and keeps those that are already held.

mod build;
mod depth;
mod environment;
mod guard;
mod hermes;
mod json;
mod message;
mod template;
mod time;
mod values;

#[cfg(test)]
mod tests;

pub use build::{Built, build, starts_in_reasoning};
pub use message::{Message, Role, ToolCall, ToolDefinition};
pub use template::{ChatTemplate, Rendering, TemplateError};
