//! How the answer to a response is read: as it was when the response was asked for, whatever the server is set to now.

use crate::conversation::{Formats, Purpose, ResponseConfig};
use crate::engine::ModelInfo;
use crate::parse::{ReasoningFormat, ToolFormat};

/// The formats of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) tool_format: ToolFormat,
    pub(super) reasoning: ReasoningFormat,
    pub(super) bare_calls: bool,
}

impl Reading {
    /// As the response says; what it does not say, or in a word of another version, is as for the model.
    pub(super) fn of(config: &ResponseConfig, model: &ModelInfo) -> Self {
        let own = Self { tool_format: model.tool_format, reasoning: model.reasoning, bare_calls: model.bare_calls };
        let said = match &config.formats {
            None => own,
            Some(Formats { tool, reasoning, bare_calls }) => Self {
                tool_format: tool.parse().unwrap_or(own.tool_format),
                reasoning: reasoning.parse().unwrap_or(own.reasoning),
                bare_calls: *bare_calls,
            },
        };
        match config.purpose {
            // Whatever it writes is the summary.
            Purpose::Summary => Self { tool_format: ToolFormat::NONE, bare_calls: false, ..said },
            Purpose::Answer | Purpose::Prefill => said,
        }
    }
}
