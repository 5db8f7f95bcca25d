//! What an answer must look like.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an answer must look like, behind its reasoning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    /// What it may say.
    pub text: TextRule,
    /// What it may call; absent where only the text is bound: then it calls nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallRule>,
    /// The request's field that asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// What the text of an answer must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TextRule {
    /// Anything; where calls are allowed, they may stand in it.
    Any,
    /// Nothing: the answer is calls.
    Nothing,
    /// JSON that a JSON Schema describes.
    JsonSchema {
        /// The schema.
        schema: Value,
    },
    /// Text that a regular expression describes as a whole, in the syntax of the crate `regex`.
    Regex {
        /// The expression.
        pattern: String,
    },
    /// Text of a grammar, in llguidance's variant of Lark.
    Lark {
        /// The grammar; it begins with `start`.
        grammar: String,
    },
    /// One of these.
    Choice {
        /// The texts.
        texts: Vec<String>,
    },
}

/// Which calls an answer may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRule {
    /// The tools that may be called.
    pub tools: Vec<Callable>,
    /// Whether there may be several calls.
    pub several: bool,
}

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callable {
    /// The name of a declared tool.
    pub name: String,
    /// Whether its arguments must follow its schema; else they are any JSON object.
    pub by_schema: bool,
    /// What its one argument, [`INPUT`], must be: that of a tool that takes a text and no arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InputRule>,
}

/// The argument of a tool that takes a text and no arguments.
pub const INPUT: &str = "input";

/// What the text must be that a tool takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum InputRule {
    /// Text that a regular expression describes as a whole.
    Regex {
        /// The expression.
        pattern: String,
    },
    /// Text of a grammar, in llguidance's variant of Lark.
    Lark {
        /// The grammar; it begins with `start`.
        grammar: String,
    },
}
