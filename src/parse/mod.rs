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
mod values;

#[cfg(test)]
mod tests;

pub use piece::{Piece, ReasoningFormat, ToolFormat};
pub use pipeline::{Pipeline, PipelineConfig};
pub use reasoning::closes_reasoning;

/// Whether a control token of this text is a marker of the formats, so that the pipeline must see it; other control
/// tokens are silent.
pub fn is_marker(tool_format: ToolFormat, reasoning: ReasoningFormat, text: &str) -> bool {
    families::markers(tool_format).contains(&text)
        || families::closing_markers(tool_format).contains(&text)
        || reasoning::markers(reasoning).is_some_and(|markers| markers.open == text || markers.close == text)
}
