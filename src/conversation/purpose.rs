//! What a response is for, and which tools its request lets it call.

use serde::{Deserialize, Serialize};

/// Which tools the model may call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolsAllowed {
    /// All that there are.
    #[default]
    All,
    /// Those that the request names.
    Named,
    /// None, and it sees none.
    None,
}

impl ToolsAllowed {
    /// Whether it is the ordinary case.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    pub(super) fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// What a response is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// To answer.
    #[default]
    Answer,
    /// To have its prompt computed, for the one that continues it.
    Prefill,
    /// To write the summary that is to stand for the transcript.
    Summary,
}

impl Purpose {
    /// Whether it is the ordinary one.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    pub(super) fn is_answer(&self) -> bool {
        *self == Self::Answer
    }
}
