//! `/v1/models`.

use serde::Serialize;

/// A model as it is listed.
#[derive(Clone, Debug, Serialize)]
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
    /// How its tool calls are written, as it was set or found out.
    pub tool_format: &'static str,
    /// How its reasoning is marked, as it was set or found out.
    pub reasoning_format: &'static str,
    /// The words that `reasoning.effort` takes.
    pub reasoning_efforts: Vec<String>,
}

/// All models.
#[derive(Clone, Debug, Serialize)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// The models; the first is the default.
    pub data: Vec<Model>,
}
