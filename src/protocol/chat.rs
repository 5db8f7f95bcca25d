//! `/v1/chat/completions`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::TextOr;
use super::items::ContentPart;
use super::logprobs::ChoiceLogprobs;

/// `POST /v1/chat/completions`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct ChatRequest {
    /// The model; none means the default.
    pub model: Option<String>,
    /// The transcript.
    pub messages: Option<Vec<ChatMessage>>,
    /// Whether to stream.
    pub stream: Option<bool>,
    /// What the stream carries besides.
    pub stream_options: Option<StreamOptions>,
    /// How many choices.
    pub n: Option<u32>,
    /// The tools.
    pub tools: Option<Vec<Value>>,
    /// Whether tools may be used.
    pub tool_choice: Option<Value>,
    /// Texts that end the answer.
    pub stop: Option<TextOr<String>>,
    /// The most tokens of the answer, by its old name.
    pub max_tokens: Option<u32>,
    /// The most tokens of the answer.
    pub max_completion_tokens: Option<u32>,
    /// Extra variables for the chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the prompt ends where the answer begins; the default.
    pub add_generation_prompt: Option<bool>,
    /// Whether the answer goes on with the last message, which is the assistant's.
    pub continue_final_message: Option<bool>,
    /// How long the model may think, as a word.
    pub reasoning_effort: Option<String>,
    /// Whether a billing line at the head of the system text is left out of the prompt.
    pub strip_preamble: Option<bool>,
    /// Whether the conversation is kept.
    pub store: Option<bool>,
    /// The client's own labels.
    pub metadata: Option<Map<String, Value>>,
    /// What the answer is made of: always text.
    pub modalities: Option<Vec<String>>,
    /// How an answer in sound is made; there is none.
    pub audio: Option<Value>,
}

/// What a stream carries besides.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "ChatStreamOptions")]
pub struct StreamOptions {
    /// A last chunk with the usage.
    pub include_usage: Option<bool>,
    /// Whole calls and whole reasoning as events of their own.
    pub include_dispatch: Option<bool>,
}

/// A message of the transcript.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text.
    pub content: Option<TextOr<ContentPart>>,
    /// Reasoning of an assistant message.
    pub reasoning_content: Option<String>,
    /// The same by its other name; of other forms nothing is known.
    pub reasoning: Option<Value>,
    /// Calls of an assistant message.
    pub tool_calls: Option<Vec<ChatToolCall>>,
    /// Which call a tool message answers.
    pub tool_call_id: Option<String>,
}

/// A call as a client repeats it: of a function, or of a tool that takes a text.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct ChatToolCall {
    /// Its id.
    pub id: String,
    /// The function.
    pub function: Option<ChatFunction>,
    /// The tool that takes a text.
    pub custom: Option<ChatCustom>,
}

/// The called function.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChatFunction {
    /// Its name.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// The called tool that takes a text.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChatCustom {
    /// Its name.
    pub name: String,
    /// The text.
    pub input: String,
}

/// A whole answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Completion {
    /// `chatcmpl-…`
    pub id: String,
    /// Always `chat.completion`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// The model.
    pub model: String,
    /// The choices, in order.
    pub choices: Vec<Choice>,
    /// Tokens.
    pub usage: Usage,
    /// How urgent it was, where the request said something of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<String>,
    /// Which build of which model answered.
    pub system_fingerprint: String,
    /// The client's own labels, of one that is kept; and what of the request was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
}

/// A page of completions that are kept.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CompletionList {
    /// Always `list`.
    pub object: &'static str,
    /// The completions.
    pub data: Vec<Completion>,
    /// The first one's id.
    pub first_id: Option<String>,
    /// The last one's id.
    pub last_id: Option<String>,
    /// Whether there are more behind the last.
    pub has_more: bool,
}

/// `POST /v1/chat/completions/{id}`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct UpdateCompletion {
    /// The client's own labels, all of them.
    pub metadata: Option<Map<String, Value>>,
}

/// A message of a request whose completion is kept.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct KeptMessage {
    /// The completion's id and the message's place.
    pub id: String,
    /// Who speaks.
    pub role: &'static str,
    /// The text.
    pub content: Option<String>,
    /// The reasoning in front of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The calls behind it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<AnswerCall>,
    /// Which call it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// A page of such messages.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KeptMessageList {
    /// Always `list`.
    pub object: &'static str,
    /// The messages.
    pub data: Vec<KeptMessage>,
    /// The first one's id.
    pub first_id: Option<String>,
    /// The last one's id.
    pub last_id: Option<String>,
    /// Whether there are more behind the last.
    pub has_more: bool,
}

/// A choice of a whole answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Choice {
    /// Position among the choices.
    pub index: u32,
    /// What was said.
    pub message: AnswerMessage,
    /// How likely its tokens were, where the request asked for it.
    pub logprobs: Option<ChoiceLogprobs>,
    /// Why it ended.
    pub finish_reason: &'static str,
}

/// What the model said.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct AnswerMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// The text; absent when there are only calls.
    pub content: Option<String>,
    /// Always absent.
    pub refusal: Option<String>,
    /// The reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same by its other name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<AnswerCall>,
    /// The call, of a request that declares its functions the older way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<ChatFunction>,
}

/// A whole call.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AnswerCall {
    /// Its id.
    pub id: String,
    /// What it calls, under its kind.
    #[serde(flatten)]
    pub called: Called,
}

/// What is called.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Called {
    /// A function.
    Function {
        /// The function.
        function: ChatFunction,
    },
    /// A tool that takes a text.
    Custom {
        /// The tool.
        custom: ChatCustom,
    },
}

/// A chunk of a stream.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Chunk {
    /// `chatcmpl-…`
    pub id: String,
    /// Always `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// The model.
    pub model: String,
    /// How urgent it is, where the request said something of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<String>,
    /// Which build of which model answers.
    pub system_fingerprint: String,
    /// One choice; none in the chunk with the usage.
    pub choices: Vec<ChunkChoice>,
    /// What of the request was left out, in the first chunk, with the client's own labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// Tokens: there and null until the last chunk, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
}

/// The choice of a chunk.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ChunkChoice {
    /// Position among the choices.
    pub index: u32,
    /// What is new.
    pub delta: Delta,
    /// How likely its tokens were, where the request asked for it.
    pub logprobs: Option<ChoiceLogprobs>,
    /// Why it ended, in its last chunk.
    pub finish_reason: Option<&'static str>,
}

/// What is new.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ChatDelta")]
pub struct Delta {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same by its other name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Parts of calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CallDelta>,
    /// A part of the call, of a request that declares its functions the older way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionDelta>,
}

/// A part of a call.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CallDelta {
    /// Position among the answer's calls.
    pub index: u32,
    /// Its id, in its first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function` or `custom`, in its first part.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// The function that it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionDelta>,
    /// The tool that it calls, where that takes a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomDelta>,
}

/// A part of a called function.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FunctionDelta {
    /// Its name, in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More JSON text.
    pub arguments: String,
}

/// A part of a called tool that takes a text.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CustomDelta {
    /// Its name, in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More of the text.
    pub input: String,
}

/// A whole call beside the chunks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CallDispatch {
    /// Position among the choices.
    pub choice_index: u32,
    /// The call.
    pub tool_call: DispatchedCall,
}

/// A whole call, with its place.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DispatchedCall {
    /// Position among the answer's calls.
    pub index: u32,
    /// The call.
    #[serde(flatten)]
    pub call: AnswerCall,
}

/// A whole piece of reasoning beside the chunks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ReasoningDispatch {
    /// Position among the choices.
    pub choice_index: u32,
    /// The text.
    pub reasoning_content: String,
}

/// Tokens.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatUsage")]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub completion_tokens: u32,
    /// Their sum.
    pub total_tokens: u32,
    /// Of the prompt's.
    pub prompt_tokens_details: PromptDetails,
    /// Of the answer's.
    pub completion_tokens_details: CompletionDetails,
    /// What they cost, where the model has a price. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

/// Of the prompt's tokens.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct PromptDetails {
    /// Came from the KV cache.
    pub cached_tokens: u32,
}

/// Of the answer's tokens.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct CompletionDetails {
    /// Were reasoning.
    pub reasoning_tokens: u32,
}
