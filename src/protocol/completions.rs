//! `/v1/completions`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::TextOr;
use super::chat::{StreamOptions, Usage};

/// `POST /v1/completions`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct CompletionRequest {
    /// The model; none means the default.
    pub model: Option<String>,
    /// A text, token ids, or a list of either.
    pub prompt: Option<Value>,
    /// What stands behind the answer; not served.
    pub suffix: Option<String>,
    /// Whether the answer begins with the prompt.
    pub echo: Option<bool>,
    /// How many choices for each prompt.
    pub n: Option<u32>,
    /// Of how many the best are chosen; without it, of as many as there are choices.
    pub best_of: Option<u32>,
    /// Of how many of the likeliest tokens it is told how likely they were.
    pub logprobs: Option<u8>,
    /// The most tokens of an answer.
    pub max_tokens: Option<u32>,
    /// Texts that end the answer.
    pub stop: Option<TextOr<String>>,
    /// Whether to stream.
    pub stream: Option<bool>,
    /// What the stream carries besides.
    pub stream_options: Option<StreamOptions>,
    /// Whether a text begins with the token that the model's texts begin with; the default.
    pub add_special_tokens: Option<bool>,
}

/// A whole answer, or a part of one.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TextCompletion {
    /// `cmpl-…`
    pub id: String,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// The model.
    pub model: String,
    /// The choices: all of them, or the one that goes on.
    pub choices: Vec<TextChoice>,
    /// Tokens; in a stream there and null until the last part, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// Which build of which model answered.
    pub system_fingerprint: String,
}

/// A choice, or what is new of it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TextChoice {
    /// The text.
    pub text: String,
    /// Position among the choices of all prompts.
    pub index: u32,
    /// How likely its tokens were, where the request asked for it.
    pub logprobs: Option<TextLogprobs>,
    /// Why it ended, once it has.
    pub finish_reason: Option<&'static str>,
}

/// How likely the tokens of a text were, each list with one entry for a token.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct TextLogprobs {
    /// What they say.
    pub tokens: Vec<String>,
    /// The natural logarithms of their probabilities.
    pub token_logprobs: Vec<f64>,
    /// The likeliest tokens in their places, and the tokens themselves.
    pub top_logprobs: Vec<Map<String, Value>>,
    /// Where they begin, in characters.
    pub text_offset: Vec<usize>,
}
