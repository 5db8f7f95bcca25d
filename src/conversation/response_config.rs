//! What a response is generated with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::extras::Extras;
use super::policy::{Policy, Thinking, ToolPolicy};
use super::purpose::{Purpose, ToolsAllowed};
use super::seal_key::SealKey;
use super::tools::ToolShapes;
use crate::engine::settings::{Constraint, Price, Sampling};
use crate::ids::ResponseId;
use crate::prompt::{PromptEnd, ToolDefinition};

/// How a response is generated; a steer's successor inherits it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseConfig {
    /// The model's id.
    pub model: String,
    /// The engine's fingerprint at creation: see `ModelInfo`.
    pub fingerprint: String,
    /// System text for this response only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Tools that the model may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolDefinition>,
    /// What those tools stand for that are no plain functions.
    #[serde(default, skip_serializing_if = "ToolShapes::is_empty")]
    pub tool_shapes: ToolShapes,
    /// How tokens are chosen. The seed is always there: drawn when the client gave none.
    pub sampling: Sampling,
    /// The most tokens the answer may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u32>,
    /// Texts that end the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Extra variables for the chat template.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub template_kwargs: Map<String, Value>,
    /// Runs on without a reader.
    #[serde(default)]
    pub background: bool,
    /// Whether it outlives the request.
    pub store: bool,
    /// The client's own labels.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Fields of the request that the response object repeats and nothing here interprets.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub echo: Map<String, Value>,
    /// What disconnects, restarts and flushes mean for it.
    #[serde(default, skip_serializing_if = "Policy::is_default")]
    pub policy: Policy,
    /// How calls of a tool are watched over, by the name that the model sees.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tool_policies: BTreeMap<String, ToolPolicy>,
    /// The most calls that may be claimed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel_tool_calls: Option<u32>,
    /// How long it may think.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// Whether a billing line at the head of the system text is left out of the prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strip_preamble: bool,
    /// How its answer is read, in every run of the server; absent, as the server reads the model's answers now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formats: Option<Formats>,
    /// Where its prompt ends. One that ends inside the last message of the input makes the answer part of it.
    #[serde(default, skip_serializing_if = "PromptEnd::is_answer")]
    pub prompt_end: PromptEnd,
    /// Whether to tell how likely each token of a message was, and of how many of the likeliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u8>,
    /// What the answer must look like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<Constraint>,
    /// How urgent it is: higher ones come sooner. Absent, it is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i8>,
    /// Which of several answers to one request it is; absent where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<ChoiceOf>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Purpose::is_answer")]
    pub purpose: Purpose,
    /// What its reasoning is sealed with, for a client that keeps its conversation itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<SealKey>,
    /// What becomes of tools that items of the transcript bring.
    #[serde(default, skip_serializing_if = "ToolsAllowed::is_all")]
    pub tools_allowed: ToolsAllowed,
    /// What its tokens cost, as it was when they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// What few requests ask for.
    #[serde(default, skip_serializing_if = "Extras::is_none")]
    pub extras: Extras,
}

impl ResponseConfig {
    /// A stored answer of this model, greedy and bound by nothing; `fingerprint` is the engine's.
    pub fn new(model: impl Into<String>, fingerprint: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            fingerprint: fingerprint.into(),
            instructions: None,
            tools: Vec::new(),
            tool_shapes: ToolShapes::new(),
            sampling: Sampling::GREEDY,
            max_output_tokens: None,
            stop: Vec::new(),
            template_kwargs: Map::new(),
            background: false,
            store: true,
            metadata: Map::new(),
            echo: Map::new(),
            policy: Policy::default(),
            tool_policies: BTreeMap::new(),
            max_parallel_tool_calls: None,
            thinking: None,
            strip_preamble: false,
            formats: None,
            prompt_end: PromptEnd::Answer,
            logprobs: None,
            constraint: None,
            priority: None,
            choice: None,
            purpose: Purpose::Answer,
            seal: None,
            tools_allowed: ToolsAllowed::All,
            price: None,
            extras: Extras::default(),
        }
    }
}

/// Which of several answers to one request a response is. Each lives in a conversation of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChoiceOf {
    /// The first of them.
    pub first: ResponseId,
    /// From 0.
    pub index: u32,
}

/// How an answer is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formats {
    /// The name of the format of its tool calls. A name that is not known here is as none.
    pub tool: String,
    /// The name of the format of its reasoning.
    pub reasoning: String,
    /// Whether an answer that is nothing but a call of a declared tool, without markers, is a call.
    pub bare_calls: bool,
}
