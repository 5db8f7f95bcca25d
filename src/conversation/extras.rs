//! What few requests ask for beyond the usual; each is absent where it is not asked for.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::prompt::ToolDefinition;

/// What few requests ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extras {
    /// The prompt, token for token: nothing is rendered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Arc<[u32]>>,
    /// Stands for what the client calls its cache: keys and values are shared with requests that say the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<u64>,
    /// Whether what is certain of the next prompt is computed while the turn's calls are made. Absent, it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculative_prefill: Option<bool>,
    /// Whether the oldest turns are left out of a prompt that would be too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncates: bool,
    /// The most calls that the answer may make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tool_calls: Option<u32>,
    /// Among whose kept chats the answer is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_of: Option<String>,
    /// Tools that were found: they can be called as others can, but a result shows them, and not the prompt's head.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found_tools: Vec<ToolDefinition>,
}

impl Extras {
    /// Whether nothing is asked for.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
