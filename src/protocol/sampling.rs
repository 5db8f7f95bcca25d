//! The fields of a request that say how its answer is generated, the same in every OpenAI-like API: OpenAI's own, and
//! what vLLM and llama.cpp add to them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

/// How tokens are chosen, and what the answer must look like.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct GenerationParams {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Keep the smallest set of tokens that reaches this probability.
    pub top_p: Option<f32>,
    /// Keep the k most likely tokens.
    pub top_k: Option<i64>,
    /// Drop tokens less likely than this share of the most likely one.
    pub min_p: Option<f32>,
    /// Equal seeds give equal answers.
    pub seed: Option<i64>,
    /// Subtracted once for each time that the answer has a token.
    pub frequency_penalty: Option<f32>,
    /// Subtracted once if the answer has a token.
    pub presence_penalty: Option<f32>,
    /// Divides the logits of what was there; llama.cpp says `repeat_penalty`.
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    /// How many of the last tokens the penalties look at; -1 means all.
    pub repeat_last_n: Option<i64>,
    /// Keep what is about as surprising as expected.
    #[serde(alias = "typ_p")]
    pub typical_p: Option<f32>,
    /// Keep logits within this many standard deviations of the greatest.
    pub top_n_sigma: Option<f32>,
    /// How often the top choices are excluded.
    pub xtc_probability: Option<f32>,
    /// From which probability on a token is a top choice.
    pub xtc_threshold: Option<f32>,
    /// How much prolonging a repetition costs.
    pub dry_multiplier: Option<f32>,
    /// How much more each further token of it costs.
    pub dry_base: Option<f32>,
    /// How long a repetition costs nothing.
    pub dry_allowed_length: Option<u32>,
    /// How many of the last tokens are looked at; -1 means all.
    pub dry_penalty_last_n: Option<i64>,
    /// What no repetition reaches across.
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// 1 or 2 turns it on.
    pub mirostat: Option<u8>,
    /// The surprise to hold, in bits.
    pub mirostat_tau: Option<f32>,
    /// How fast it learns.
    pub mirostat_eta: Option<f32>,
    /// The steps of the chain by name, in order.
    pub samplers: Option<Vec<String>>,
    /// Added to the logits of tokens, by their ids.
    pub logit_bias: Option<Map<String, Value>>,
    /// Whether to tell how likely the tokens of the text were: Chat's way of asking.
    pub logprobs: Option<bool>,
    /// Of how many of the likeliest tokens in each place.
    pub top_logprobs: Option<u8>,
    /// What the answer is to bring besides: Responses' way of asking.
    pub include: Option<Vec<Value>>,
    /// What the answer must look like, in the form of Chat.
    pub response_format: Option<Value>,
    /// The same in the form of Responses: its `format`.
    pub text: Option<Value>,
    /// The same in vLLM's form.
    pub structured_outputs: Option<StructuredOutputs>,
    /// vLLM's older names for it.
    pub guided_json: Option<Value>,
    /// Text that this expression describes as a whole.
    pub guided_regex: Option<String>,
    /// One of these texts.
    pub guided_choice: Option<Vec<String>>,
    /// Text of this Lark grammar.
    pub guided_grammar: Option<String>,
    /// The tools.
    pub tools: Option<Vec<Value>>,
    /// Whether tools may be used, must be used, and which.
    pub tool_choice: Option<Value>,
    /// Whether several calls may be made.
    pub parallel_tool_calls: Option<bool>,
}

impl GenerationParams {
    /// Whether the answer is to bring this besides.
    pub fn includes(&self, wanted: &str) -> bool {
        self.include.iter().flatten().any(|name| name == wanted)
    }
}

/// What the answer must look like, as vLLM takes it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct StructuredOutputs {
    /// JSON of this schema.
    pub json: Option<Value>,
    /// Text that this expression describes as a whole.
    pub regex: Option<String>,
    /// One of these texts.
    pub choice: Option<Vec<String>>,
    /// Text of this Lark grammar.
    pub grammar: Option<String>,
    /// A JSON object.
    pub json_object: Option<bool>,
    /// Structures behind marks; not served.
    pub structural_tag: Option<Value>,
}
