//! `/v1/responses`: the request, the response object, and the events of its stream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::TextOr;
use super::chat::StreamOptions;
use super::items::{InputItem, Item, Part};
use super::logprobs::Logprob;

/// `POST /v1/responses`, and `response.create`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct CreateResponse {
    /// The model; none means the default.
    pub model: Option<String>,
    /// The input.
    pub input: Option<TextOr<InputItem>>,
    /// System text for this response only.
    pub instructions: Option<String>,
    /// Whether to stream.
    pub stream: Option<bool>,
    /// What the stream carries besides.
    pub stream_options: Option<StreamOptions>,
    /// Whether it is kept; the default.
    pub store: Option<bool>,
    /// Whether it runs without a reader.
    pub background: Option<bool>,
    /// The conversation it joins.
    pub conversation: Option<ConversationParam>,
    /// The response it continues.
    pub previous_response_id: Option<String>,
    /// The client's own labels.
    pub metadata: Option<Map<String, Value>>,
    /// The tools; kinds that are not run here are ignored.
    pub tools: Option<Vec<Value>>,
    /// Whether tools may be used.
    pub tool_choice: Option<Value>,
    /// Whether several calls may be made.
    pub parallel_tool_calls: Option<bool>,
    /// Texts that end the answer.
    pub stop: Option<TextOr<String>>,
    /// The most tokens of the answer.
    pub max_output_tokens: Option<u32>,
    /// Extra variables for the chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether it answers; else its prompt is only computed, for the response that continues it.
    pub generate: Option<bool>,
    /// Whether a billing line at the head of the system text is left out of the prompt.
    pub strip_preamble: Option<bool>,
}

/// `response.steer`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Steer {
    /// The response that is steered.
    pub previous_response_id: Option<String>,
    /// What the user says.
    pub input: Option<TextOr<InputItem>>,
}

/// `response.interrupt`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Interrupt {
    /// The response that ends.
    pub response_id: Option<String>,
    /// What becomes of the item that is open: always `discard_partial_items`.
    pub mode: Option<String>,
}

/// `response.inject`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Inject {
    /// The response that waits for results.
    pub response_id: Option<String>,
    /// The results.
    pub input: Option<Vec<InputItem>>,
}

/// A conversation's id, bare or in an object.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a conversation's id or an object with its id")]
pub enum ConversationParam {
    /// Bare.
    Id(String),
    /// In an object.
    Object {
        /// The id.
        id: String,
    },
}

impl ConversationParam {
    /// The id.
    pub fn id(&self) -> &str {
        match self {
            Self::Id(id) | Self::Object { id } => id,
        }
    }
}

/// A response.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Response {
    /// `resp_…`
    pub id: String,
    /// Always `response`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created_at: u64,
    /// When it completed.
    pub completed_at: Option<u64>,
    /// `queued`, `in_progress`, `completed`, `incomplete`, `cancelled` or `failed`.
    pub status: &'static str,
    /// Whether it runs without a reader.
    pub background: bool,
    /// Why it failed.
    pub error: Option<ResponseError>,
    /// Why it is incomplete.
    pub incomplete_details: Option<IncompleteDetails>,
    /// System text for this response only.
    pub instructions: Option<String>,
    /// The most tokens of the answer.
    pub max_output_tokens: Option<u32>,
    /// The client's own labels.
    pub metadata: Map<String, Value>,
    /// The model.
    pub model: String,
    /// What was generated.
    pub output: Vec<Item>,
    /// The response before it.
    pub previous_response_id: Option<String>,
    /// The response that goes on after a steer of this one; ours, beside OpenAI's fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub successor_id: Option<String>,
    /// The conversation it belongs to.
    pub conversation: Option<ConversationRef>,
    /// Whether it is kept.
    pub store: bool,
    /// 0 is greedy.
    pub temperature: f64,
    /// See the request.
    pub top_p: f64,
    /// The tools.
    pub tools: Value,
    /// Tokens, once it ended.
    pub usage: Option<Usage>,
    /// Fields of the request that are repeated: `tool_choice`, `reasoning`, `text`, …
    #[serde(flatten)]
    pub echo: Map<String, Value>,
}

/// The conversation a response belongs to.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConversationRef {
    /// `conv_…`
    pub id: String,
}

/// Why a response failed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ResponseError {
    /// The stable code.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

/// Why a response is incomplete.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct IncompleteDetails {
    /// `max_output_tokens`, `steered`, `disconnected`, `cancelled`.
    pub reason: String,
}

/// Tokens.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Of the prompt's.
    pub input_tokens_details: InputDetails,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// Of the answer's.
    pub output_tokens_details: OutputDetails,
    /// Their sum.
    pub total_tokens: u32,
    /// What they cost, where the model has a price. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

/// Of the prompt's tokens.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct InputDetails {
    /// Came from the KV cache.
    pub cached_tokens: u32,
    /// Always 0: nobody pays for what is written to the cache.
    pub cache_write_tokens: u32,
}

/// Of the answer's tokens.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct OutputDetails {
    /// Were reasoning.
    pub reasoning_tokens: u32,
}

/// An event of a response's stream, in OpenAI's shape.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StreamEvent {
    /// What happened.
    #[serde(flatten)]
    pub body: StreamBody,
    /// Position in the stream, from 0.
    pub sequence_number: u64,
}

/// What happened in a response's stream.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[allow(missing_docs, reason = "names and fields are OpenAI's")]
pub enum StreamBody {
    #[serde(rename = "response.created")]
    Created { response: Box<Response> },
    #[serde(rename = "response.queued")]
    Queued { response: Box<Response> },
    #[serde(rename = "response.in_progress")]
    InProgress { response: Box<Response> },
    #[serde(rename = "response.completed")]
    Completed { response: Box<Response> },
    #[serde(rename = "response.incomplete")]
    Incomplete { response: Box<Response> },
    #[serde(rename = "response.failed")]
    Failed { response: Box<Response> },
    #[serde(rename = "response.output_item.added")]
    OutputItemAdded { output_index: usize, item: Item },
    #[serde(rename = "response.output_item.done")]
    OutputItemDone { output_index: usize, item: Item },
    #[serde(rename = "response.content_part.added")]
    ContentPartAdded { item_id: String, output_index: usize, content_index: usize, part: Part },
    #[serde(rename = "response.content_part.done")]
    ContentPartDone { item_id: String, output_index: usize, content_index: usize, part: Part },
    #[serde(rename = "response.output_text.delta")]
    OutputTextDelta {
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
        logprobs: Vec<Logprob>,
    },
    #[serde(rename = "response.output_text.done")]
    OutputTextDone { item_id: String, output_index: usize, content_index: usize, text: String, logprobs: Vec<Logprob> },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningTextDelta { item_id: String, output_index: usize, content_index: usize, delta: String },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningTextDone { item_id: String, output_index: usize, content_index: usize, text: String },
    #[serde(rename = "response.function_call_arguments.delta")]
    FunctionCallArgumentsDelta { item_id: String, output_index: usize, delta: String },
    #[serde(rename = "response.function_call_arguments.done")]
    FunctionCallArgumentsDone { item_id: String, output_index: usize, name: String, arguments: String },
    #[serde(rename = "response.custom_tool_call_input.delta")]
    CustomToolCallInputDelta { item_id: String, output_index: usize, delta: String },
    #[serde(rename = "response.custom_tool_call_input.done")]
    CustomToolCallInputDone { item_id: String, output_index: usize, input: String },
}
