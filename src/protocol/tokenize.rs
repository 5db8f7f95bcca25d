//! `/v1/tokenize`, `/v1/detokenize`, `/v1/chat/render`, as users of vLLM know them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `POST /v1/tokenize` and `POST /v1/chat/render`, besides the fields of a chat completion or a response.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Tokenize {
    /// The model; none means the default.
    pub model: Option<String>,
    /// A text, in place of a conversation.
    pub prompt: Option<String>,
    /// Whether the prompt ends where the answer begins; the default.
    pub add_generation_prompt: Option<bool>,
    /// Whether the answer goes on with the last message, which is the assistant's.
    pub continue_final_message: Option<bool>,
    /// Whether a text begins with the token that begins texts, where the model has one; the default.
    pub add_special_tokens: Option<bool>,
    /// Whether the text of each token is answered too.
    pub return_token_strs: Option<bool>,
}

/// Tokens and how many they are.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Tokenized {
    /// How many.
    pub count: usize,
    /// Most tokens that prompt and answer may have together.
    pub max_model_len: u32,
    /// The ids.
    pub tokens: Vec<u32>,
    /// The text of each, where asked for; a token need not hold whole characters.
    pub token_strs: Option<Vec<String>>,
}

/// A rendered conversation.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RenderedChat {
    /// Always `chat.render`.
    pub object: &'static str,
    /// The model.
    pub model: String,
    /// The text.
    pub prompt: String,
    /// Whether the answer begins inside reasoning.
    pub starts_in_reasoning: bool,
    /// How many tokens.
    pub count: usize,
    /// Most tokens that prompt and answer may have together.
    pub max_model_len: u32,
    /// The ids.
    pub tokens: Vec<u32>,
    /// The text of each, where asked for.
    pub token_strs: Option<Vec<String>>,
}

/// `POST /v1/detokenize`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Detokenize {
    /// The model; none means the default.
    pub model: Option<String>,
    /// The ids.
    pub tokens: Vec<u32>,
}

/// The text of tokens, control tokens included.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Detokenized {
    /// The text.
    pub prompt: String,
}
