//! `/v1/models`, in the shapes of the clients that ask: OpenAI's, Anthropic's, and Codex's catalogue.

use schemars::JsonSchema;
use serde::Serialize;

/// A model as OpenAI lists it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Model {
    /// The id that requests name.
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// Who answers.
    pub owned_by: String,
    /// Most tokens that prompt and answer may have together.
    pub context_length: u32,
    /// Most tokens that an answer may have: what an empty prompt would leave of the context.
    pub max_output_tokens: u32,
    /// How its tool calls are written, as it was set or found out.
    pub tool_format: &'static str,
    /// How its reasoning is marked, as it was set or found out.
    pub reasoning_format: &'static str,
    /// The words that `reasoning.effort` takes.
    pub reasoning_efforts: Vec<String>,
}

/// All models.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// The models; the first is the default.
    pub data: Vec<Model>,
    /// The same for Codex, where it asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<CodexModel>>,
}

/// A model as Anthropic lists it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AnthropicModel {
    /// Always `model`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The id that requests name.
    pub id: String,
    /// For people.
    pub display_name: String,
    /// When it was made, as RFC 3339.
    pub created_at: String,
    /// Most tokens of a prompt.
    pub max_input_tokens: u32,
    /// Most tokens of an answer.
    pub max_tokens: u32,
    /// Always `active`.
    pub lifecycle: &'static str,
}

/// All models, as Anthropic lists them.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AnthropicModelList {
    /// The models.
    pub data: Vec<AnthropicModel>,
    /// The first one's id.
    pub first_id: Option<String>,
    /// The last one's id.
    pub last_id: Option<String>,
    /// Whether there are more in the direction that was asked for.
    pub has_more: bool,
}

/// What Codex reads as its `model_catalog_json`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CodexCatalog {
    /// The models, in the order in which Codex offers them.
    pub models: Vec<CodexModel>,
}

/// What Codex knows of a model. Its names and values are Codex's.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs, reason = "names and values are Codex's")]
#[allow(clippy::struct_excessive_bools, reason = "names and values are Codex's")]
pub struct CodexModel {
    pub slug: String,
    pub display_name: String,
    pub description: Option<String>,
    pub default_reasoning_level: Option<&'static str>,
    pub supported_reasoning_levels: Vec<CodexEffort>,
    pub shell_type: &'static str,
    pub visibility: &'static str,
    pub supported_in_api: bool,
    pub priority: u32,
    pub base_instructions: &'static str,
    pub supports_reasoning_summaries: bool,
    pub support_verbosity: bool,
    pub apply_patch_tool_type: &'static str,
    pub truncation_policy: CodexTruncation,
    pub supports_parallel_tool_calls: bool,
    pub context_window: u32,
    pub max_context_window: u32,
    pub auto_compact_token_limit: u32,
    pub experimental_supported_tools: [&'static str; 0],
    pub input_modalities: [&'static str; 1],
    pub prefer_websockets: bool,
}

/// How hard a model can think.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CodexEffort {
    /// The word of the request.
    pub effort: String,
    /// For people.
    pub description: String,
}

/// How Codex shortens what tools say.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct CodexTruncation {
    /// `tokens` or `bytes`.
    pub mode: &'static str,
    /// How many of them.
    pub limit: u32,
}
