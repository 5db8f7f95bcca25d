//! Choices of how the APIs look to clients.

use serde::{Deserialize, Serialize};

/// The field of a chat's answer that has the reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningField {
    /// `reasoning_content`.
    #[default]
    ReasoningContent,
    /// `reasoning`.
    Reasoning,
    /// Both, the same text in each.
    Both,
}
