//! From a refusal to an HTTP answer: OpenAI's error object, a problem around it on our own routes, or Anthropic's.

use axum::Json;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::admission::RETRY_AFTER;
use super::anthropic::errors::refusal;
use super::coding;
use super::idempotency::echo;
use crate::conversation::{Reject, ResponseError};
use crate::error::Code;
use crate::ids::ResponseId;
use crate::protocol::error::{ErrorBody, ErrorObject, Problem, kind};

/// Routes of our own, which refuse with a problem.
pub(super) const OWN_ROUTES: [&str; 7] = [
    "/v1/responses/{id}/interventions",
    "/v1/responses/{id}/prefix",
    "/v1/interventions/{id}",
    "/v1/conversations/{id}/events",
    "/v1/conversations/{id}/ws",
    "/v1/conversations/{id}/tool_results",
    "/v1/conversations/{id}/tool_calls/{call_id}/claim",
];

/// How the paths of Anthropic's routes begin.
pub(super) const ANTHROPICS_ROUTES: &str = "/v1/messages";

/// Seconds after which a client that was turned away may try again.
const RETRY_AFTER_S: u64 = 1;

/// A refusal on a route of OpenAI's.
#[derive(Debug)]
pub(crate) struct OpenAiError(pub(crate) Reject);

/// A refusal on a route of our own.
#[derive(Debug)]
pub(crate) struct NativeError(pub(crate) Reject);

impl From<Reject> for OpenAiError {
    fn from(reject: Reject) -> Self {
        Self(reject)
    }
}

impl From<Reject> for NativeError {
    fn from(reject: Reject) -> Self {
        Self(reject)
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let error = object(self.0.clone());
        let response = (status(self.0.code), Json(ErrorBody { error })).into_response();
        let mut response = with_headers(&self.0, response);
        response.extensions_mut().insert(self.0);
        response
    }
}

/// Names the request, in its extensions.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// Gives refusals the form of the route: whoever refuses in front of a handler does not know which that is.
pub(crate) async fn in_the_form_of_the_route(request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let is_own = path.is_some_and(|path| OWN_ROUTES.contains(&path.as_str()));
    // Its clients say their version, wherever they ask.
    let is_anthropics =
        request.headers().contains_key("anthropic-version") || request.uri().path().starts_with(ANTHROPICS_ROUTES);
    let id = request.extensions().get().map(|RequestId(id)| id.clone());
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<Reject>() {
        Some(reject) if is_anthropics => refusal(&reject, id),
        Some(reject) if is_own => NativeError(reject).into_response(),
        _ => response,
    }
}

impl IntoResponse for NativeError {
    fn into_response(self) -> Response {
        let code = self.0.code;
        let error = object(self.0.clone());
        let problem = Problem {
            kind: "about:blank",
            title: status(code).canonical_reason().unwrap_or("Error").to_owned(),
            status: code.status(),
            detail: error.message.clone(),
            details: error.details.clone(),
            error,
        };
        let mut response = (status(code), Json(problem)).into_response();
        let problem_json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, problem_json);
        with_headers(&self.0, response)
    }
}

/// The error object of a refusal.
pub(crate) fn object(reject: Reject) -> ErrorObject {
    ErrorObject {
        message: reject.message,
        kind: kind(reject.code.status()),
        param: reject.param,
        code: reject.code.to_string(),
        details: reject.details,
    }
}

/// In how many seconds a client that was turned away may try again; none where that would not help.
fn retry_after_s(reject: &Reject) -> Option<u64> {
    let is_retried = matches!(reject.code.status(), 429 | 503) || reject.code == Code::IdempotencyInProgress;
    let told = || reject.details.get(RETRY_AFTER).and_then(Value::as_u64);
    is_retried.then(|| told().unwrap_or(RETRY_AFTER_S))
}

/// The frame that a socket answers a refused request with.
pub(crate) fn frame(reject: Reject, event_id: Option<&str>) -> Value {
    let (status, wait_s) = (reject.code.status(), retry_after_s(&reject));
    let mut frame = json!({"type": "error", "status": status, "error": object(reject)});
    if let Some(wait_s) = wait_s {
        // As the head of an HTTP answer says it.
        frame["headers"] = json!({"retry-after": wait_s.to_string()});
    }
    echo(&mut frame, event_id, false);
    frame
}

/// A frame asks for something that no socket does, or that this one does not.
pub(crate) fn unknown_frame(kind: Option<&str>) -> Reject {
    let text = match kind {
        None => "the frame has no type; it says what the frame asks for".to_owned(),
        Some(kind) => format!("frames of the type {kind:?} are not known to this version, or not on this socket"),
    };
    invalid("type", text)
}

/// A field has the wrong type or value.
pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Reject {
    Reject::new(Code::InvalidInput, message).param(param)
}

/// The first request with this key still runs.
pub(crate) fn in_progress(response_id: Option<ResponseId>) -> Reject {
    let text = "the first request with this idempotency key is still running; ask again later";
    Reject::new(Code::IdempotencyInProgress, text).detail("response_id", response_id.map(|id| id.to_string()))
}

/// The key belongs to a request of another kind.
pub(crate) fn wrong_operation() -> Reject {
    Reject::new(Code::IdempotencyKeyReused, "the idempotency key was used for another operation; use a new one")
}

/// A response that failed before it said anything.
pub(crate) fn failed(error: &ResponseError, response_id: ResponseId) -> Reject {
    let reject = Reject::new(error.code, error.message.clone()).detail("response_id", response_id.to_string());
    if error.code == Code::ContextLengthExceeded { reject.param("input") } else { reject }
}

fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Adds what a client's library acts on by itself.
pub(crate) fn with_headers(reject: &Reject, mut response: Response) -> Response {
    let (code, headers) = (reject.code, response.headers_mut());
    if code == Code::InvalidApiKey {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if code == Code::UnsupportedEncoding {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(coding::ACCEPTED));
    }
    if let Some(wait_s) = retry_after_s(reject) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(wait_s));
    } else if code.status() == 409 {
        let no = HeaderValue::from_static("false");
        headers.insert(HeaderName::from_static("x-should-retry"), no);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_race_is_not_to_be_retried_but_a_key_in_progress_is() {
        let lost = OpenAiError(Reject::new(Code::ConversationBusy, "busy")).into_response();
        assert_eq!(lost.headers()["x-should-retry"], "false");
        let running = OpenAiError(in_progress(None)).into_response();
        assert_eq!(running.headers()["retry-after"], "1");
        assert!(!running.headers().contains_key("x-should-retry"));
    }

    #[test]
    fn a_socket_says_as_http_does_when_to_come_back() {
        for reject in [
            Reject::new(Code::RateLimitExceeded, "text").detail(RETRY_AFTER, 42),
            Reject::new(Code::Overloaded, "text"),
            in_progress(None),
            Reject::new(Code::ConversationBusy, "text"),
        ] {
            let said = OpenAiError(reject.clone()).into_response();
            let said = said.headers().get("retry-after").map(|wait| wait.to_str().unwrap().to_owned());
            let frame = frame(reject.clone(), None);
            assert_eq!(frame["headers"]["retry-after"].as_str(), said.as_deref(), "{reject:?}");
        }
    }

    #[test]
    fn a_prompt_that_is_too_long_is_the_inputs_fault() {
        let error = |code| ResponseError { code, message: "text".to_owned() };
        let id = ResponseId::from_bytes([1; 16]);
        assert_eq!(failed(&error(Code::ContextLengthExceeded), id).param.as_deref(), Some("input"));
        assert_eq!(failed(&error(Code::EngineFailed), id).param, None);
    }

    #[test]
    fn every_turned_away_client_is_told_when_to_come_back() {
        for code in Code::ALL {
            let response = NativeError(Reject::new(*code, "text")).into_response();
            let told = response.headers().contains_key("retry-after");
            let expected = matches!(code.status(), 429 | 503) || *code == Code::IdempotencyInProgress;
            assert_eq!(told, expected, "{code}");
            let is_final = response.headers().get("x-should-retry").is_some_and(|told| told == "false");
            assert_eq!(is_final, code.status() == 409 && !expected, "{code}: whoever lost a race has lost it");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
        }
    }
}
