//! How likely tokens were, as Chat and Responses show it.

use schemars::JsonSchema;
use serde::Serialize;

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Logprob {
    /// What it says; a part of a character as U+FFFD.
    pub token: String,
    /// The natural logarithm of its probability.
    pub logprob: f64,
    /// The bytes of what it says.
    pub bytes: Vec<u8>,
    /// The likeliest tokens in its place.
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the likeliest tokens.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TopLogprob {
    /// What it says.
    pub token: String,
    /// The natural logarithm of its probability.
    pub logprob: f64,
    /// The bytes of what it says.
    pub bytes: Vec<u8>,
}

/// Of a choice of a chat completion.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ChoiceLogprobs {
    /// One for each token of the text.
    pub content: Vec<Logprob>,
    /// Always absent.
    pub refusal: Option<Vec<Logprob>>,
}
