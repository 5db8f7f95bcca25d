//! What the pipeline emits.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One piece of a model's output, in the order in which it was generated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// Reasoning text.
    Reasoning(String),
    /// Text for the reader.
    Text(String),
    /// A tool call began and its name is known.
    ToolCallStarted {
        /// Position among the calls of this answer, from 0.
        index: u32,
        /// The id that the model itself gave the call, where it stands in front of the arguments.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments: all fragments joined are JSON text.
    ToolCallArguments {
        /// Which call.
        index: u32,
        /// The next part of the JSON text.
        fragment: String,
    },
    /// A call ended.
    ToolCallDone {
        /// Which call.
        index: u32,
        /// The id that the model itself gave the call, if it did, wherever it stands.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The whole JSON text of the arguments.
        arguments: String,
        /// False when the output ended or broke inside the call: it must not be run.
        complete: bool,
    },
    /// The reasoning in front of it is whole, and whoever made it wants this again beside its text. No parser says so:
    /// it comes from engines that read answers themselves.
    Thought {
        /// Who made it: to others it means nothing.
        maker: String,
        /// The text that it belongs to, and to no other.
        text: String,
        /// What it gave beside the text.
        native: Value,
    },
    /// A stop string was reached; what follows is dropped.
    Stopped {
        /// The stop string.
        stop: String,
    },
}

impl Piece {
    /// Whether the answer says more with it: text, reasoning, or a part of a call's arguments.
    pub fn grows(&self) -> bool {
        matches!(self, Self::Reasoning(_) | Self::Text(_) | Self::ToolCallArguments { .. })
    }
}
