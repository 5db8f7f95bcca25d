//! How model families mark their reasoning.

use super::piece::ReasoningFormat;

/// The markers around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Markers {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

/// What closes reasoning in this format, if it marks it at all.
pub fn closes_reasoning(format: ReasoningFormat) -> Option<&'static str> {
    markers(format).map(|markers| markers.close)
}

/// The markers of a format, if it has any.
pub(super) fn markers(format: ReasoningFormat) -> Option<Markers> {
    match format {
        ReasoningFormat::None => None,
        ReasoningFormat::Qwen3 => Some(Markers { open: "<think>", close: "</think>" }),
    }
}
