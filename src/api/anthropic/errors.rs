//! A refusal as Anthropic's clients read it. They match on the class and on some sentences, so both are Anthropic's.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::api::errors::with_headers;
use crate::conversation::Reject;
use crate::error::Code;
use crate::protocol::messages::{ErrorBody, ErrorDetails, ErrorObject};

/// The status that Anthropic's clients know of a server that has no room for them: they come back.
const OVERLOADED: u16 = 529;

/// The HTTP answer that refuses.
pub(crate) fn refusal(reject: &Reject, request_id: Option<String>) -> Response {
    let status = StatusCode::from_u16(status(reject.code)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = ErrorBody { kind: "error", error: object(reject.clone()), request_id };
    with_headers(reject, (status, Json(body)).into_response())
}

/// The error object of a refusal.
pub(super) fn object(reject: Reject) -> ErrorObject {
    let message = match &reject.param {
        Some(path) => reject.message.replace(path, &dotted(path)),
        None => reject.message,
    };
    ErrorObject {
        kind: kind(reject.code),
        message,
        details: ErrorDetails { error_code: reject.code.to_string(), others: reject.details },
    }
}

/// A path with its numbers between dots, as all are spelled here.
pub(super) fn dotted(path: &str) -> String {
    path.replace('[', ".").replace(']', "")
}

fn status(code: Code) -> u16 {
    match code.status() {
        503 => OVERLOADED,
        status => status,
    }
}

/// Anthropic's class of errors.
fn kind(code: Code) -> &'static str {
    match status(code) {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        OVERLOADED => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_spelled_with_dots_wherever_the_refusal_comes_from() {
        let reject = Reject::new(Code::InvalidInput, "messages[2].content[0].id: expected a string");
        let object = object(reject.param("messages[2].content[0].id"));
        assert_eq!(object.message, "messages.2.content.0.id: expected a string");
    }

    #[test]
    fn every_code_has_a_class_that_clients_know_and_says_when_to_come_back() {
        for code in Code::ALL {
            let response = refusal(&Reject::new(*code, "text"), None);
            let comes_back = matches!(response.status().as_u16(), 429 | 529);
            assert_eq!(
                response.headers().contains_key("retry-after"),
                comes_back || code.status() == 409 && *code == Code::IdempotencyInProgress,
                "{code}"
            );
            assert_ne!(response.status(), 503, "{code}");
        }
        assert_eq!(kind(Code::ContextLengthExceeded), "invalid_request_error");
        assert_eq!(kind(Code::ModelNotFound), "not_found_error");
        assert_eq!(kind(Code::Draining), "overloaded_error");
        assert_eq!(kind(Code::EngineFailed), "api_error");
    }
}
