//! Items: what a transcript is made of.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::tools::{CallKind, Toolbox};
use crate::ids::{CallId, ItemId};
use crate::prompt::Role;

/// One entry of the transcript.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Its id; the wire adds the prefix of its kind.
    pub id: ItemId,
    /// Whether it is whole.
    pub status: ItemStatus,
    /// What it says.
    pub body: ItemBody,
}

/// Whether an item is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// Still being generated.
    InProgress,
    /// Whole.
    Completed,
    /// Cut off by a steer, a cancel, a limit or a failure.
    Incomplete,
}

impl ItemStatus {
    /// The text on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}

/// What an item says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ItemBody {
    /// A message of any role.
    Message {
        /// Who speaks.
        role: Role,
        /// Its parts, in order.
        content: Vec<Content>,
    },
    /// The model's reasoning.
    Reasoning {
        /// The reasoning's text.
        text: String,
        /// What it was made of, where a client brought it along so, or its maker wants something of it again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        made: Option<Made>,
    },
    /// A tool call by the model.
    FunctionCall {
        /// The id that its result names.
        call_id: CallId,
        /// The id that the model itself gave it: what its template shows it again. No client sees it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        native_id: Option<String>,
        /// The tool's name, without its namespace.
        name: String,
        /// JSON text, as generated.
        arguments: String,
        /// What kind of tool it calls.
        #[serde(default, skip_serializing_if = "CallKind::is_function")]
        call_kind: CallKind,
        /// The namespace that the tool was declared in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
    },
    /// The result of a tool call.
    FunctionCallOutput {
        /// The call it answers.
        call_id: CallId,
        /// What the model sees.
        output: String,
        /// Written by the server because the call was closed without a result.
        #[serde(default)]
        synthetic: bool,
        /// The tool failed; the text says how.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
        /// What kind of tool was called.
        #[serde(default, skip_serializing_if = "CallKind::is_function")]
        call_kind: CallKind,
    },
    /// What stands for a longer transcript: its summary.
    Compaction {
        /// The summary.
        text: String,
    },
    /// Tools that can be called from here on, beside those of the requests. The transcript shows nothing of it.
    AdditionalTools {
        /// The tools.
        toolbox: Toolbox,
        /// A search found them: its result tells the model, and the list of tools at the head of the prompt does not.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        found: bool,
    },
}

/// What a text was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The fingerprint of the model that made it, or the name of another maker: to others it means nothing.
    pub fingerprint: String,
    /// The tokens; none where nobody told them.
    pub tokens: Vec<u32>,
    /// What its maker gave beside the text, to read it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Value>,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Content {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
}

impl Item {
    /// A message of one text.
    pub fn message(id: ItemId, role: Role, text: impl Into<String>) -> Self {
        Self {
            id,
            status: ItemStatus::Completed,
            body: ItemBody::Message { role, content: vec![Content::Text { text: text.into() }] },
        }
    }

    /// All text of the item that a reader would see, parts joined.
    pub fn text(&self) -> String {
        match &self.body {
            ItemBody::Message { content, .. } => {
                content.iter().map(|Content::Text { text }| text.as_str()).collect::<Vec<_>>().concat()
            }
            ItemBody::Reasoning { text, .. } | ItemBody::Compaction { text } => text.clone(),
            ItemBody::FunctionCall { arguments, .. } => arguments.clone(),
            ItemBody::FunctionCallOutput { output, .. } => output.clone(),
            ItemBody::AdditionalTools { .. } => String::new(),
        }
    }

    /// The call it makes, if it makes one.
    pub fn calls(&self) -> Option<&CallId> {
        match &self.body {
            ItemBody::FunctionCall { call_id, .. } => Some(call_id),
            _ => None,
        }
    }

    /// The kind of the call with this id, if it makes that one.
    pub(super) fn call_kind_of(&self, wanted: &CallId) -> Option<CallKind> {
        match &self.body {
            ItemBody::FunctionCall { call_id, call_kind, .. } if call_id == wanted => Some(*call_kind),
            _ => None,
        }
    }

    /// The call it answers, if it answers one.
    pub fn answers(&self) -> Option<&CallId> {
        match &self.body {
            ItemBody::FunctionCallOutput { call_id, .. } => Some(call_id),
            _ => None,
        }
    }

    /// The prefix of the item's id on the wire.
    pub fn id_prefix(&self) -> &'static str {
        match &self.body {
            ItemBody::Message { .. } => "msg",
            ItemBody::Reasoning { .. } => "rs",
            ItemBody::FunctionCall { call_kind, .. } => call_kind.id_prefixes().0,
            ItemBody::FunctionCallOutput { call_kind, .. } => call_kind.id_prefixes().1,
            ItemBody::Compaction { .. } => "cmp",
            ItemBody::AdditionalTools { .. } => "at",
        }
    }

    /// The item's id on the wire.
    pub fn wire_id(&self) -> String {
        self.id.wire(self.id_prefix())
    }
}
