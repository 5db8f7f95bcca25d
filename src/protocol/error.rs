//! The error object of all routes.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// `{"error": {…}}`, as OpenAI's clients read it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorObject,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ErrorObject {
    /// What was wrong and what to do.
    pub message: String,
    /// OpenAI's class of errors.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The field at fault.
    pub param: Option<String>,
    /// The stable code.
    pub code: String,
    /// The winner of a lost race, the input given back.
    #[serde(flatten)]
    pub details: Map<String, Value>,
}

/// The error of our own routes, `application/problem+json`: the same object with the problem's fields around it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Problem {
    /// Names the kind of problem; the code says it already.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The HTTP status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The message once more.
    pub detail: String,
    /// The error object.
    pub error: ErrorObject,
    /// The error's details once more, as members of the problem.
    #[serde(flatten)]
    pub details: Map<String, Value>,
}

/// OpenAI's class of errors for an HTTP status.
pub fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}
