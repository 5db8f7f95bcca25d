//! What the pipeline emits, and the formats it knows.

use serde::{Deserialize, Serialize};

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
        /// The whole JSON text of the arguments.
        arguments: String,
        /// False when the output ended or broke inside the call: it must not be run.
        complete: bool,
    },
    /// A stop string was reached; what follows is dropped.
    Stopped {
        /// The stop string.
        stop: String,
    },
}

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFormat {
    /// Tool calls are not looked for.
    None,
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`
    #[default]
    Hermes,
}

/// How a model marks its reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningFormat {
    /// Reasoning is not looked for.
    None,
    /// `<think>…</think>`, beginning outside unless the prompt ends inside.
    #[default]
    Qwen3,
}
