//! Who asks. Without configured keys any credential, or none, is accepted; the server then listens on loopback only.
//!
//! Every page that a browser shows can reach loopback too. No such page is let in, unless it is served from there.

use std::convert::Infallible;
use std::net::IpAddr;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::errors::OpenAiError;
use crate::conversation::Reject;
use crate::error::Code;

/// The one principal of a server without keys.
const LOCAL: &str = "local";

/// Whose conversations a request may see.
#[derive(Clone, Debug)]
pub(crate) struct Principal(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = Infallible;

    async fn from_request_parts(_parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(Self(LOCAL.to_owned()))
    }
}

/// Browsers say which page a request comes from; one from elsewhere has no business here.
pub(crate) async fn refuse_foreign_pages(request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN);
    if origin.is_some_and(|origin| !origin.to_str().is_ok_and(is_local)) {
        let text = "pages of other sites may not use this server; without API keys only this machine may";
        return OpenAiError(Reject::new(Code::PermissionDenied, text)).into_response();
    }
    next.run(request).await
}

/// Whether the origin is this machine.
fn is_local(origin: &str) -> bool {
    let Ok(uri) = origin.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_from_this_machine_are_local() {
        for origin in ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8080", "http://127.1.2.3:1"] {
            assert!(is_local(origin), "{origin}");
        }
        for origin in
            ["null", "", "https://example.com", "http://localhost.example.com", "http://127.0.0.1.example.com"]
        {
            assert!(!is_local(origin), "{origin}");
        }
    }
}
