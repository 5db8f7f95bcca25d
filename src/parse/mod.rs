//! From generated tokens to ordered pieces: reasoning, text, tool calls.
//!
//! Pure and total: no I/O, never fails; the worst case is text. Work per byte is bounded.

mod calls;
mod families;
mod json_scanner;
mod piece;
mod pipeline;
mod reasoning;
mod sink;
mod splitter;
mod stop;

#[cfg(test)]
mod tests;

pub use piece::{Piece, ReasoningFormat, ToolFormat};
pub use pipeline::{Pipeline, PipelineConfig};
