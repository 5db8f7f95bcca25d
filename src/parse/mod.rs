//! From generated tokens to ordered pieces: reasoning, text, tool calls.
//!
//! Pure and total: no I/O, never fails; the worst case is text. Work per byte is bounded.

mod piece;

pub use piece::{Piece, ReasoningFormat, ToolFormat};
