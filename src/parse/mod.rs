//! From generated tokens to ordered pieces: reasoning, text, tool calls.
//!
//! Pure and total: no I/O, never fails; the worst case is text. Work per byte is bounded.

mod calls;
#[cfg(any(test, fuzzing))]
pub mod checks;
mod detect;
mod families;
mod formats;
mod json_scanner;
mod mask;
mod piece;
mod pipeline;
mod prose;
mod reasoning;
mod reread;
mod sink;
mod splitter;
mod stop;
mod tools;
mod values;

#[cfg(test)]
mod tests;

pub use detect::{TemplateFacts, detect};
pub use families::{BARE_CALL, CallPart, Each, Writing};
pub use formats::{ReasoningFormat, ToolFormat, UnknownFormat};
pub use piece::Piece;
pub use pipeline::{Pipeline, PipelineConfig};
use reasoning::Reasoning;
pub use tools::DeclaredTool;

/// Those control tokens of a model that are markers of the formats, or parts of one: what
/// [`PipelineConfig::control`] wants. Others are silent.
pub fn control_markers<'a>(
    tool_format: ToolFormat,
    reasoning: ReasoningFormat,
    texts: impl Iterator<Item = &'a str>,
) -> Vec<String> {
    let calls = tool_format.family().into_iter().flat_map(families::Family::texts);
    let thoughts = reasoning.format().into_iter().flat_map(|format| format.open.iter().chain(format.close).copied());
    let markers: Vec<&str> = calls.chain(thoughts).collect();
    let is_part = |text: &&str| !text.is_empty() && markers.iter().any(|marker| marker.contains(text));
    texts.filter(is_part).map(str::to_owned).collect()
}

/// What closes reasoning in this format, if it marks it at all.
pub fn closes_reasoning(format: ReasoningFormat) -> Option<&'static str> {
    format.format().and_then(|format| format.close.first().copied())
}

/// Whether a text that an answer goes on with ends inside reasoning.
pub fn text_ends_in_reasoning(format: ReasoningFormat, text: &str) -> bool {
    let last = |markers: &[&str]| markers.iter().filter_map(|marker| text.rfind(marker)).max();
    format.format().is_some_and(|format| last(format.open) > last(format.close))
}

/// How reasoning is marked inside an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningMarks {
    /// What may open it.
    pub open: &'static [&'static str],
    /// What may close it.
    pub close: &'static [&'static str],
    /// Whether an answer begins inside it where the prompt does not say otherwise.
    pub starts_inside: bool,
    /// Whether a call ends it as well.
    pub ends_at_call: bool,
}

/// The marks of a format; absent where nothing is reasoning, and where reasoning is a channel of its own.
pub fn reasoning_marks(format: ReasoningFormat) -> Option<ReasoningMarks> {
    let format = format.format().filter(|format| format.stream.is_none())?;
    let Reasoning { open, close, starts_inside, ends_at_call, .. } = *format;
    Some(ReasoningMarks { open, close, starts_inside, ends_at_call })
}

/// Whether a prompt ends inside reasoning, as far as its end says.
pub fn ends_in_reasoning(format: ReasoningFormat, prompt: &str) -> Option<bool> {
    let format = format.format()?;
    let end = prompt.trim_end();
    let ends_with = |markers: &[&str]| markers.iter().any(|marker| end.ends_with(marker));
    if ends_with(format.open) { Some(true) } else { ends_with(format.close).then_some(false) }
}
