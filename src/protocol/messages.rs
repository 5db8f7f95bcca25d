//! `/v1/messages`, as Anthropic's clients send and read it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::TextOr;

/// `POST /v1/messages` and `POST /v1/messages/count_tokens`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct MessagesRequest {
    /// The model; none means the default.
    pub model: Option<String>,
    /// The transcript.
    pub messages: Option<Vec<InputMessage>>,
    /// What stands in front of it.
    pub system: Option<TextOr<InputBlock>>,
    /// The most tokens of the answer. None at all: the prompt is only computed.
    pub max_tokens: Option<u32>,
    /// Whether to stream.
    pub stream: Option<bool>,
    /// What the stream carries besides.
    pub stream_options: Option<StreamOptions>,
    /// The tools.
    pub tools: Option<Vec<ToolDeclaration>>,
    /// Whether tools may be used, must be used, and which.
    pub tool_choice: Option<ToolChoice>,
    /// Whether and how long the model may think.
    pub thinking: Option<ThinkingConfig>,
    /// How much effort, and what the answer must look like.
    pub output_config: Option<OutputConfig>,
    /// The form of the answer, by its older name.
    pub output_format: Option<Value>,
    /// What of the transcript is left out of the prompt.
    pub context_management: Option<ContextManagement>,
    /// Texts that end the answer.
    pub stop_sequences: Option<Vec<String>>,
    /// Which sampling fields were given is all that is read here: see [`super::sampling::GenerationParams`].
    pub temperature: Option<Value>,
    /// See `temperature`.
    pub top_p: Option<Value>,
    /// See `temperature`.
    pub top_k: Option<Value>,
    /// Where hosted tools would run.
    pub container: Option<Value>,
    /// Servers whose tools would be called from here.
    pub mcp_servers: Option<Vec<Value>>,
    /// A mark at the end of all.
    pub cache_control: Option<CacheControl>,
    /// Extra variables for the chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether a billing line at the head of the system text is left out of the prompt; the default.
    pub strip_preamble: Option<bool>,
}

/// What a stream carries besides.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesStreamOptions")]
pub struct StreamOptions {
    /// An event with each whole call.
    pub include_dispatch: Option<bool>,
}

/// A message of the transcript.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct InputMessage {
    /// `user`, `assistant` or `system`.
    pub role: String,
    /// A text, or blocks.
    pub content: Option<TextOr<InputBlock>>,
    /// What holds from a system message on.
    pub output_config: Option<OutputConfig>,
    /// How long a system message is shown.
    pub clear_at: Option<String>,
}

/// A block of any kind. Which fields a kind needs is checked where it is converted, so that the error can name it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct InputBlock {
    /// The kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text` block.
    pub text: Option<String>,
    /// The text of a `thinking` block.
    pub thinking: Option<String>,
    /// What the server sealed of it.
    pub signature: Option<String>,
    /// What the server sealed of a `redacted_thinking` block.
    pub data: Option<String>,
    /// The id of a `tool_use` block.
    pub id: Option<String>,
    /// The name of the tool that it calls.
    pub name: Option<String>,
    /// What it is called with.
    pub input: Option<Value>,
    /// The call that a `tool_result` block answers.
    pub tool_use_id: Option<String>,
    /// A text or blocks, of blocks that have any inside.
    pub content: Option<Value>,
    /// Whether the tool failed.
    pub is_error: Option<bool>,
    /// Where a document is from.
    pub source: Option<Value>,
    /// What a document is called.
    pub title: Option<String>,
    /// What is to be known of a document.
    pub context: Option<String>,
    /// Whether places in the text are to be cited, or which are.
    pub citations: Option<Value>,
    /// The tool that a `tool_reference` block names.
    pub tool_name: Option<String>,
    /// The tool that is added or removed.
    pub tool: Option<Value>,
    /// How a `compaction` block left the tools.
    pub tool_changes: Option<Vec<InputBlock>>,
    /// What is before it is to be kept in the cache.
    pub cache_control: Option<CacheControl>,
}

/// A mark up to which a prompt is to be kept in the cache.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct CacheControl {
    /// How long; five minutes unless it says.
    pub ttl: Option<CacheTtl>,
}

/// How long a mark keeps what is before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum CacheTtl {
    /// Five minutes.
    #[serde(rename = "5m")]
    Minutes,
    /// An hour.
    #[serde(rename = "1h")]
    Hour,
}

/// A tool. One without a type is a function; what others mean is fixed by their type.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct ToolDeclaration {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its input.
    pub input_schema: Option<Value>,
    /// Inputs as examples.
    pub input_examples: Option<Vec<Value>>,
    /// Whether its input is held to the schema.
    pub strict: Option<bool>,
    /// Whether the model sees it only once it was found.
    pub defer_loading: Option<bool>,
    /// What is before it is to be kept in the cache.
    pub cache_control: Option<CacheControl>,
}

/// Whether tools may be used.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct ToolChoice {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The tool that must be used.
    pub name: Option<String>,
    /// Whether at most one call may be made.
    pub disable_parallel_tool_use: Option<bool>,
}

/// Whether and how long the model may think.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct ThinkingConfig {
    /// `enabled`, `adaptive`, `between_tools` or `disabled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The most tokens of it.
    pub budget_tokens: Option<u32>,
    /// `omitted`: its text is not shown.
    pub display: Option<String>,
}

/// How much effort, and what the answer must look like.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct OutputConfig {
    /// `low`, `medium`, `high`, `xhigh` or `max`.
    pub effort: Option<String>,
    /// The form of the answer.
    pub format: Option<Value>,
}

/// What of the transcript is left out of the prompt.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct ContextManagement {
    /// One after the other.
    pub edits: Option<Vec<Edit>>,
}

/// A way of making a transcript shorter.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Edit {
    /// `clear_thinking_20251015` or `clear_tool_uses_20250919`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What of the newest stays: `all`, or an amount.
    pub keep: Option<Value>,
    /// From which size on.
    pub trigger: Option<Amount>,
    /// How much must be gained.
    pub clear_at_least: Option<Amount>,
    /// Tools whose uses stay.
    pub exclude_tools: Option<Vec<String>>,
    /// Whether inputs go too, or those of which tools.
    pub clear_tool_inputs: Option<Value>,
}

/// How much of something.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Amount {
    /// Of what: `input_tokens`, `tool_uses`, `thinking_turns`.
    #[serde(rename = "type")]
    pub kind: String,
    /// How much.
    pub value: Option<u32>,
}

/// What was left out of the prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AppliedEdits {
    /// Those edits that left something out, in their order.
    pub applied_edits: Vec<AppliedEdit>,
}

/// What an edit left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub enum AppliedEdit {
    /// Thinking.
    #[serde(rename = "clear_thinking_20251015")]
    Thinking {
        /// Of so many turns.
        cleared_thinking_turns: usize,
        /// Tokens of the prompt.
        cleared_input_tokens: usize,
    },
    /// Uses of tools.
    #[serde(rename = "clear_tool_uses_20250919")]
    ToolUses {
        /// How many.
        cleared_tool_uses: usize,
        /// Tokens of the prompt.
        cleared_input_tokens: usize,
    },
}

/// A whole answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Message {
    /// `msg_…`
    pub id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Always `assistant`.
    pub role: &'static str,
    /// The model.
    pub model: String,
    /// The blocks, in the order in which they were generated.
    pub content: Vec<Block>,
    /// Why it ended; absent until it has.
    pub stop_reason: Option<&'static str>,
    /// The text that ended it.
    pub stop_sequence: Option<String>,
    /// Tokens.
    pub usage: Usage,
    /// What was left out of the prompt, where the request asks for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_management: Option<AppliedEdits>,
}

/// A block of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// What the model thought.
    Thinking {
        /// The text; empty where it is not shown.
        thinking: String,
        /// The block, sealed: with it the same tokens come back.
        signature: String,
    },
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Always absent.
        citations: Option<Value>,
    },
    /// A call.
    ToolUse {
        /// Its id.
        id: String,
        /// The tool.
        name: String,
        /// What it is called with.
        input: Value,
    },
}

/// Tokens. The prompt's are `input_tokens`, `cache_creation_input_tokens` and `cache_read_input_tokens` together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "MessagesUsage")]
pub struct Usage {
    /// Tokens of the prompt that were not in the cache and stand behind the last mark.
    pub input_tokens: u32,
    /// Tokens of the prompt that were put into the cache, up to the last mark.
    pub cache_creation_input_tokens: u32,
    /// The same by how long they are to be kept.
    pub cache_creation: CacheCreation,
    /// Tokens of the prompt that were in the cache.
    pub cache_read_input_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// Of the answer's.
    pub output_tokens_details: OutputTokensDetails,
    /// Always `standard`.
    pub service_tier: &'static str,
    /// What they cost, where the model has a price. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

/// Tokens of the prompt that were put into the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CacheCreation {
    /// For five minutes.
    pub ephemeral_5m_input_tokens: u32,
    /// For an hour.
    pub ephemeral_1h_input_tokens: u32,
}

/// Of the answer's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OutputTokensDetails {
    /// Were thinking.
    pub thinking_tokens: u32,
}

/// An event of a stream.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessagesStreamEvent")]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamEvent {
    /// The first: the message without content.
    MessageStart {
        /// The message.
        message: Box<Message>,
    },
    /// A block began.
    ContentBlockStart {
        /// Its place among the blocks.
        index: usize,
        /// The block, empty.
        content_block: Block,
    },
    /// A block grew.
    ContentBlockDelta {
        /// Its place among the blocks.
        index: usize,
        /// What is new.
        delta: Delta,
    },
    /// A block ended.
    ContentBlockStop {
        /// Its place among the blocks.
        index: usize,
    },
    /// A call is whole; only for who asks.
    ToolCallDispatch {
        /// Its place among the blocks.
        index: usize,
        /// The call's id.
        id: String,
        /// The tool.
        name: String,
        /// What it is called with.
        input: Value,
    },
    /// The message ended.
    MessageDelta {
        /// How.
        delta: MessageEnd,
        /// Tokens of the whole message.
        usage: Usage,
        /// What was left out of the prompt, where the request asks for that.
        #[serde(skip_serializing_if = "Option::is_none")]
        context_management: Option<AppliedEdits>,
    },
    /// The last.
    MessageStop,
    /// A sign of life.
    Ping,
    /// The stream breaks off.
    Error {
        /// Why.
        error: ErrorObject,
        /// The request, for people.
        request_id: String,
    },
}

impl StreamEvent {
    /// The event's name, which is its type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::ToolCallDispatch { .. } => "tool_call_dispatch",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
            Self::Error { .. } => "error",
        }
    }
}

/// What is new of a block.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessagesDelta")]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Delta {
    /// Thinking.
    ThinkingDelta {
        /// The text.
        thinking: String,
    },
    /// The seal of a thinking block.
    SignatureDelta {
        /// The seal.
        signature: String,
    },
    /// Text.
    TextDelta {
        /// The text.
        text: String,
    },
    /// More of what a tool is called with.
    InputJsonDelta {
        /// JSON text.
        partial_json: String,
    },
}

/// How a message ended.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct MessageEnd {
    /// Why.
    pub stop_reason: &'static str,
    /// The text that ended it.
    pub stop_sequence: Option<String>,
}

/// `{"type": "error", …}`, as Anthropic's clients read it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessagesErrorBody")]
pub struct ErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What went wrong.
    pub error: ErrorObject,
    /// The request, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessagesErrorObject")]
pub struct ErrorObject {
    /// Anthropic's class of errors.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What was wrong and what to do.
    pub message: String,
    /// The stable code and the rest.
    pub details: ErrorDetails,
}

/// The stable code of an error, and what belongs to it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ErrorDetails {
    /// The stable code.
    pub error_code: String,
    /// The winner of a lost race, the input given back.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The answer to `POST /v1/messages/count_tokens`.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct TokenCount {
    /// Tokens of the prompt.
    pub input_tokens: usize,
    /// What it would be otherwise, where the request edits its transcript.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_management: Option<UneditedCount>,
}

/// Tokens of a prompt of which nothing is left out.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct UneditedCount {
    /// How many.
    pub original_input_tokens: usize,
}
