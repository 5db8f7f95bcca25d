//! What pages in browsers may do. Every page that a browser shows can reach this machine's addresses; none is let in
//! unless it is served from here, or its origin is allowed by name.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::App;
use super::errors::OpenAiError;
use crate::conversation::Reject;
use crate::error::Code;

/// Allows every origin.
const ANY: &str = "*";
/// What pages of allowed origins may do; credentials of a browser are none of it.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
/// Seconds for which a browser need not ask again.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The origins whose pages may use the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages(Arc<[String]>);

impl Pages {
    pub(crate) fn new(allowed_origins: &[String]) -> Self {
        let origins = allowed_origins.iter().map(|origin| origin.trim_end_matches('/').to_ascii_lowercase());
        Self(origins.collect())
    }

    /// Whether the origin is allowed by name.
    fn allows(&self, origin: &str) -> bool {
        self.0.iter().any(|allowed| allowed == ANY || allowed.eq_ignore_ascii_case(origin))
    }

    /// Whether a browser may reach the server by this host without being led astray. A page whose name leads to this
    /// machine's addresses is no page of this machine: without keys only the names that always mean it are answered to.
    fn knows_host(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let of_origin = |origin: &String| host_of(origin).is_some_and(|host| host == authority);
        is_local_host(authority.host()) || self.0.iter().any(of_origin)
    }

    /// Why the request may not come from where it does.
    fn refusal(&self, request: &Request, locked: bool) -> Option<Reject> {
        let host = host(request);
        if !locked && host.is_some_and(|host| !self.knows_host(host)) {
            let text = "without API keys this server answers to localhost only; create a key (midstream keys create) \
                        or allow the page's origin (allowed_origins)";
            return Some(Reject::new(Code::PermissionDenied, text));
        }
        let origin = request.headers().get(header::ORIGIN)?;
        let is_known = |origin: &str| {
            let is_own = || locked && host.and_then(|host| host.parse().ok()) == host_of(origin);
            self.allows(origin) || is_local(origin) || is_own()
        };
        let text = "pages of other sites may not use this server; allow their origin with the setting allowed_origins";
        (!origin.to_str().is_ok_and(is_known)).then(|| Reject::new(Code::PermissionDenied, text))
    }
}

/// Refuses what foreign pages send, answers browsers that ask beforehand, and tells them who may read the answer.
pub(crate) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    if let Some(reject) = app.pages.refusal(&request, app.gate.is_locked()) {
        return OpenAiError(reject).into_response();
    }
    let origin = request.headers().get(header::ORIGIN);
    let allowed = origin.filter(|origin| origin.to_str().is_ok_and(|origin| app.pages.allows(origin))).cloned();
    let Some(origin) = allowed else { return next.run(request).await };
    let asks =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let wanted = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = if asks { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    tell_browser(response.headers_mut(), origin);
    if asks {
        allow_what_is_asked(response.headers_mut(), wanted);
    }
    response
}

/// The page may read the answer, all of its headers too.
fn tell_browser(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(ANY));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}

/// The page may send what the browser asks for, with the headers that it wants to.
fn allow_what_is_asked(headers: &mut HeaderMap, wanted: Option<HeaderValue>) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    headers.extend(wanted.map(|wanted| (header::ACCESS_CONTROL_ALLOW_HEADERS, wanted)));
}

/// By which name the server was reached. What is no browser may leave it out.
fn host(request: &Request) -> Option<&str> {
    let named = request.uri().authority().map(Authority::as_str);
    named.or_else(|| Some(request.headers().get(header::HOST)?.to_str().unwrap_or_default()))
}

/// Whether the origin is this machine.
fn is_local(origin: &str) -> bool {
    host_of(origin).is_some_and(|authority| is_local_host(authority.host()))
}

fn host_of(origin: &str) -> Option<Authority> {
    origin.parse::<Uri>().ok()?.into_parts().authority
}

fn is_local_host(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
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

    #[test]
    fn without_keys_only_names_that_always_mean_this_machine_are_answered_to() {
        let pages = Pages::new(&["https://chat.example.com/".to_owned()]);
        for host in ["localhost:8080", "LOCALHOST", "127.0.0.1:8080", "[::1]:8080", "chat.example.com"] {
            assert!(pages.knows_host(host), "{host}");
        }
        for host in ["", "evil.example.com:8080", "localhost.evil.example.com", "10.0.0.1", "chat.example.com.evil.net"]
        {
            assert!(!pages.knows_host(host), "{host}");
        }
    }

    #[test]
    fn a_page_may_come_from_here_from_an_allowed_origin_and_with_keys_from_the_server_itself() {
        let pages = Pages::new(&["https://app.example.com".to_owned()]);
        let refused = |origin: &str, host: &str, locked: bool| {
            let request = Request::get("/").header("origin", origin).header("host", host);
            pages.refusal(&request.body(axum::body::Body::empty()).unwrap(), locked).is_some()
        };
        assert!(!refused("http://localhost:3000", "127.0.0.1:8080", false));
        assert!(!refused("https://app.example.com", "127.0.0.1:8080", false));
        assert!(refused("https://other.example.com", "127.0.0.1:8080", false));
        assert!(refused("http://rebound.example.com:8080", "rebound.example.com:8080", false));
        assert!(!refused("http://box.example.com:8080", "box.example.com:8080", true), "the server's own page");
        assert!(refused("http://box.example.com", "box.example.com:8080", true));
        assert!(refused("null", "box.example.com", true));
    }
}
