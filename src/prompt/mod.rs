//! From a conversation to prompt tokens, with the model's own chat template.
//!
//! Pure: no clock, no I/O, no server types. [`Message`] is what a template sees; [`ChatTemplate`] renders.

mod message;

pub use message::{Message, Role, ToolCall, ToolDefinition};

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {}
