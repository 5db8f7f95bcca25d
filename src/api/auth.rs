//! Who asks: the owner of the key that a request shows. Without keys whoever reaches the server is its one principal,
//! whatever is shown.
//!
//! Every route asks, unless it is listed here: one that is added is closed until somebody opens it.

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use super::App;
use super::admission::tell_standing;
use super::errors::OpenAiError;
use crate::access::{Gate, Identity};
use crate::conversation::Reject;
use crate::error::Code;

/// How a key is shown that is no `x-api-key`.
const SCHEME: &str = "bearer ";

/// Whose conversations a request may see.
#[derive(Clone, Debug)]
pub(crate) struct Principal(pub(crate) Identity);

impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = OpenAiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, OpenAiError> {
        identity(parts).cloned().map(Self).map_err(OpenAiError)
    }
}

/// Who was let in with this request.
pub(crate) fn identity(parts: &Parts) -> Result<&Identity, Reject> {
    parts.extensions.get().ok_or_else(|| Reject::new(Code::Internal, "nobody was asked who sends this request"))
}

/// Lets the request pass in its owner's name, or refuses it.
pub(crate) async fn authenticate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    if is_open(&request) {
        return next.run(request).await;
    }
    let shown = shown(request.headers());
    let Some(who) = app.gate.identify(shown.iter().copied()) else {
        return OpenAiError(refusal(shown.is_empty())).into_response();
    };
    request.extensions_mut().insert(who.clone());
    let mut response = next.run(request).await;
    tell_standing(&app, &who, response.headers_mut());
    ended_with_its_key(app.gate, who, response)
}

/// Whether the route says nothing of anybody: probes, and the greeting that clients send first.
fn is_open(request: &Request) -> bool {
    match request.uri().path() {
        "/healthz" | "/readyz" | "/api/hello" | "/openapi.json" => true,
        "/" => request.method() == Method::HEAD,
        _ => false,
    }
}

/// What is shown as keys. Clients that have one key for two APIs send it in both headers.
fn shown(headers: &HeaderMap) -> Vec<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, key) = value.split_at_checked(SCHEME.len())?;
        scheme.eq_ignore_ascii_case(SCHEME).then_some(key.trim())
    });
    let own = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    bearer.into_iter().chain(own).collect()
}

fn refusal(nothing_shown: bool) -> Reject {
    let text = if nothing_shown {
        "this server asks for an API key: send it as Authorization: Bearer KEY, or as x-api-key: KEY"
    } else {
        "the API key is not known here, or was revoked; send one that `midstream keys list` shows"
    };
    Reject::new(Code::InvalidApiKey, text)
}

/// The key that a socket or a stream was opened with is not in force any more.
pub(crate) fn revoked() -> Reject {
    refusal(false)
}

/// A stream that would go on for long ends when its key does.
fn ended_with_its_key(gate: Gate, who: Identity, response: Response) -> Response {
    if response.headers().get(header::CONTENT_TYPE).is_none_or(|kind| kind != "text/event-stream") {
        return response;
    }
    let closed = Box::pin(async move { gate.closed_to(&who).await });
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(closed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_in_either_header() {
        let of = |headers: &[(&'static str, &'static str)]| -> Vec<String> {
            let headers: HeaderMap =
                headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            shown(&headers).into_iter().map(str::to_owned).collect()
        };
        assert_eq!(of(&[("authorization", "Bearer a")]), ["a"]);
        assert_eq!(of(&[("authorization", "bearer  a")]), ["a"]);
        assert_eq!(of(&[("x-api-key", "b"), ("authorization", "Bearer a")]), ["a", "b"]);
        assert_eq!(of(&[("authorization", "Basic YTpi")]), [""; 0]);
        assert_eq!(of(&[("authorization", "Bear\u{e9}r")]), [""; 0]);
        assert_eq!(of(&[]), [""; 0]);
    }
}
