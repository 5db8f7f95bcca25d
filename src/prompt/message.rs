//! The messages that a chat template is rendered from.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions of the application.
    System,
    /// Instructions of the developer; templates without the role see `system`.
    Developer,
    /// The person or the calling program.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// Where a prompt ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptEnd {
    /// Where the assistant's answer begins.
    #[default]
    Answer,
    /// Inside the last message, if it is a text of the assistant, behind its last letter: the answer goes on with it.
    /// Behind any other message as [`PromptEnd::Answer`].
    Message,
    /// Behind the last message.
    Nothing,
}

impl PromptEnd {
    /// As templates are asked: whether the prompt ends where the answer begins, or behind the last message.
    pub fn generation_prompt(adds: bool) -> Self {
        if adds { Self::Answer } else { Self::Nothing }
    }

    /// Whether it is where answers begin.
    pub fn is_answer(&self) -> bool {
        *self == Self::Answer
    }

    /// The text that the answer goes on with, if it does.
    pub fn continued(self, messages: &[Message]) -> Option<&str> {
        let says = |message: &&Message| {
            message.role == Role::Assistant && !message.content.is_empty() && message.tool_calls.is_empty()
        };
        messages.last().filter(|_| self == Self::Message).filter(says).map(|message| message.content.as_str())
    }
}

/// One message of the transcript, in the shape that chat templates expect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text; several parts are joined already.
    pub content: String,
    /// Reasoning that led to this message or to its calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// What came with the reasoning for its maker to read again, in order; templates see nothing of it.
    #[serde(skip)]
    pub thoughts: Vec<Thought>,
    /// Calls the assistant made, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool's name on a tool message, or the speaker's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message that is only text.
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning_content: None,
            thoughts: Vec::new(),
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }
}

/// A part of the reasoning, as its maker takes it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thought {
    /// Who made it: to others it means nothing.
    pub maker: String,
    /// The reasoning's text; empty where its maker shows none.
    pub text: String,
    /// What its maker gave, but for the text.
    pub native: Value,
}

/// A call the assistant made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's id, which its result names.
    pub id: String,
    /// The id that the model itself gave the call. The template sees it, for the call and for its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native_id: Option<String>,
    /// The function's name.
    pub name: String,
    /// The arguments as JSON text, exactly as generated.
    pub arguments: String,
}

impl ToolCall {
    /// A call to which the model gave no id of its own.
    pub fn new(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self { id: id.into(), native_id: None, name: name.into(), arguments: arguments.into() }
    }
}

/// A tool the model may call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// The function's name.
    pub name: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema of the arguments.
    #[serde(default)]
    pub parameters: Value,
}
