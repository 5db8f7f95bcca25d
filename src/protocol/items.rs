//! Items of the Responses and Conversations APIs.

use super::logprobs::Logprob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TextOr;

/// An input item of any kind. Which fields a kind needs is checked where it is converted, so that the error can
/// name the kind.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct InputItem {
    /// The kind; a missing one means `message`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Who speaks, for a message.
    pub role: Option<String>,
    /// The text of a message or of reasoning.
    pub content: Option<TextOr<ContentPart>>,
    /// Summaries of reasoning.
    pub summary: Option<Vec<ContentPart>>,
    /// What a server sealed for the client to keep.
    pub encrypted_content: Option<String>,
    /// The call, for `function_call` and `function_call_output`.
    pub call_id: Option<String>,
    /// The item's id: what clients call their items is not kept, but a shell's result names its call so.
    pub id: Option<String>,
    /// The tool's name.
    pub name: Option<String>,
    /// The namespace that the tool was declared in.
    pub namespace: Option<String>,
    /// JSON text; JSON itself of a search for tools.
    pub arguments: Option<Value>,
    /// What a custom tool is called with.
    pub input: Option<String>,
    /// What a shell is called with.
    pub action: Option<Value>,
    /// The call's result: a text, or parts.
    pub output: Option<Value>,
    /// Tools that the item brings.
    pub tools: Option<Value>,
}

/// A part of a message of any kind.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct ContentPart {
    /// `input_text`, `output_text`, `text`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The text, where the kind has one.
    pub text: Option<String>,
    /// The text of a refusal.
    pub refusal: Option<String>,
}

/// An item as the server shows it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Item {
    /// A message of any role.
    Message {
        /// `msg_…`
        id: String,
        /// `in_progress`, `completed` or `incomplete`.
        status: &'static str,
        /// Who speaks.
        role: &'static str,
        /// Its parts.
        content: Vec<Part>,
    },
    /// The model's reasoning.
    Reasoning {
        /// `rs_…`
        id: String,
        /// Always empty: the text itself is shown.
        summary: Vec<Part>,
        /// The text.
        content: Vec<Part>,
        /// The same, sealed, where the request asked for it.
        encrypted_content: Option<String>,
        /// As for a message.
        status: &'static str,
    },
    /// A tool call by the model.
    FunctionCall {
        /// `fc_…`
        id: String,
        /// What its result names.
        call_id: String,
        /// The function.
        name: String,
        /// The namespace that it was declared in.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// JSON text.
        arguments: String,
        /// As for a message.
        status: &'static str,
    },
    /// A call of a tool that takes any text.
    CustomToolCall {
        /// `ctc_…`
        id: String,
        /// What its result names.
        call_id: String,
        /// The tool.
        name: String,
        /// The namespace that it was declared in.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// The text.
        input: String,
        /// As for a message.
        status: &'static str,
    },
    /// The result of such a call.
    CustomToolCallOutput {
        /// `ctco_…`
        id: String,
        /// The call it answers.
        call_id: String,
        /// What the model sees.
        output: String,
        /// As for a message.
        status: &'static str,
    },
    /// A search for further tools.
    ToolSearchCall {
        /// `tsc_…`
        id: String,
        /// What its result names.
        call_id: String,
        /// Always `client`.
        execution: &'static str,
        /// What is searched for.
        arguments: Value,
        /// As for a message.
        status: &'static str,
    },
    /// What the search found.
    ToolSearchOutput {
        /// `tso_…`
        id: String,
        /// The call it answers.
        call_id: String,
        /// Always `client`.
        execution: &'static str,
        /// The tools.
        tools: Value,
        /// As for a message.
        status: &'static str,
    },
    /// A command for the client's machine.
    LocalShellCall {
        /// `lsh_…`
        id: String,
        /// What its result names.
        call_id: String,
        /// The command.
        action: Value,
        /// As for a message.
        status: &'static str,
    },
    /// The command's output.
    LocalShellCallOutput {
        /// `lsho_…`
        id: String,
        /// The call it answers.
        call_id: String,
        /// What the model sees.
        output: String,
        /// As for a message.
        status: &'static str,
    },
    /// What stands for a longer transcript.
    Compaction {
        /// `cmp_…`
        id: String,
        /// The summary, sealed; empty where its response is not known any more.
        encrypted_content: String,
    },
    /// Tools beside those of the request.
    AdditionalTools {
        /// `at_…`
        id: String,
        /// Always `developer`.
        role: &'static str,
        /// The tools.
        tools: Vec<Value>,
    },
    /// The result of a tool call.
    FunctionCallOutput {
        /// `fco_…`
        id: String,
        /// The call it answers.
        call_id: String,
        /// What the model sees.
        output: String,
        /// As for a message.
        status: &'static str,
    },
}

/// A part of a shown message.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Text by the model.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        annotations: [(); 0],
        /// How likely its tokens were, where the request asked for it.
        logprobs: Vec<Logprob>,
    },
    /// Text by anybody else.
    InputText {
        /// The text.
        text: String,
    },
    /// Reasoning.
    ReasoningText {
        /// The text.
        text: String,
    },
}

impl Part {
    /// Text by the model.
    pub fn output(text: impl Into<String>) -> Self {
        Self::OutputText { text: text.into(), annotations: [], logprobs: Vec::new() }
    }
}
