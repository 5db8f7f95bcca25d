//! What an upstream's refusal means: whether to try again and when, and what a client is told. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use hyper::header::HeaderMap;
use serde_json::Value;

use crate::engine::{FinishReason, Refusal};

/// Most bytes of an upstream's text that a client is told.
const TEXT_BYTES_MAX: usize = 1000;

/// Most bytes of an upstream's code that is logged.
const CODE_BYTES_MAX: usize = 64;

/// Words of refusals that mean: prompt and answer do not fit. Every kind has its own.
const TOO_LONG: [&str; 7] = [
    "context_length_exceeded",
    "context length",
    "context window",
    "context size",
    "prompt is too long",
    "maximum context",
    "max_model_len",
];

/// What went wrong with a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trouble {
    /// Whether the same request may be answered later.
    pub(super) may_pass: bool,
    /// How long the upstream asks to wait.
    pub(super) retry_after: Option<Duration>,
    /// Whether it may be the wish for a stream that is refused.
    pub(super) refuses_streams: bool,
    /// Whose fault it is.
    pub(super) fault: Fault,
    /// What the client is told in the end.
    pub(super) end: FinishReason,
    /// What is logged: of what the upstream said only its status and code, since its texts may quote the request's.
    pub(super) log: Log,
}

/// What is logged of a failure.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Log {
    /// The HTTP status, where there was one.
    pub(super) status: Option<u16>,
    /// The upstream's own name for what went wrong.
    pub(super) code: String,
    /// What happened, in words from here.
    pub(super) what: String,
}

/// Whose fault it is that there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The upstream's: another may answer.
    Upstream,
    /// The request's: nobody would answer it.
    Request,
    /// The upstream was not asked: it has no words for the request.
    Unsent,
}

impl Trouble {
    /// The upstream failed in a way that may pass.
    pub(super) fn passing(text: String) -> Self {
        Self { may_pass: true, ..Self::lasting(FinishReason::Failed(text)) }
    }

    /// It will not answer.
    pub(super) fn lasting(end: FinishReason) -> Self {
        let log = Log::default();
        Self { may_pass: false, retry_after: None, refuses_streams: false, fault: Fault::Upstream, end, log }
    }

    /// The same, and what is logged of it; none of it may be the upstream's own text.
    pub(super) fn logged(self, what: impl Into<String>) -> Self {
        Self { log: Log { what: what.into(), ..self.log }, ..self }
    }

    /// The upstream cannot be asked for it.
    pub(super) fn unsent(end: FinishReason) -> Self {
        Self { fault: Fault::Unsent, ..Self::lasting(end) }
    }

    /// Nobody would answer this request.
    pub(super) fn of_request(end: FinishReason) -> Self {
        Self { fault: Fault::Request, ..Self::lasting(end) }
    }
}

/// A refusal that came in the place of an answer. `name` is the upstream's.
pub(super) fn refused(name: &str, status: StatusCode, headers: &HeaderMap, body: &[u8], unix_ms: u64) -> Trouble {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let should_retry = headers.get("x-should-retry").and_then(|value| value.to_str().ok()?.parse::<bool>().ok());
    let trouble = told(name, Some(status), &body);
    let may_pass = should_retry.unwrap_or(trouble.may_pass);
    Trouble {
        may_pass,
        fault: if may_pass { Fault::Upstream } else { trouble.fault },
        retry_after: retry_after(headers, unix_ms),
        ..trouble
    }
}

/// An error that came inside of a stream.
pub(super) fn broken(name: &str, body: &Value) -> Trouble {
    let error = &body["error"];
    let status = error["code"].as_u64().or_else(|| error["status"].as_u64());
    let status = status
        .and_then(|code| u16::try_from(code).ok())
        .or_else(|| [&error["type"], &error["code"]].into_iter().find_map(|name| status_of(name.as_str()?)));
    told(name, status.and_then(|status| StatusCode::from_u16(status).ok()), body)
}

/// The status that an error would have had in the place of an answer, by Anthropic's names for errors, and OpenAI's for
/// those of responses.
fn status_of(kind: &str) -> Option<u16> {
    Some(match kind {
        "invalid_request_error" | "invalid_prompt" => 400,
        "authentication_error" => 401,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        "rate_limit_error" | "rate_limit_exceeded" => 429,
        "server_error" => 500,
        "overloaded_error" => 529,
        _ => return None,
    })
}

/// What an error means, and what is logged of it.
fn told(name: &str, status: Option<StatusCode>, body: &Value) -> Trouble {
    let (text, code) = words(body);
    // A code is one word; whatever else stands in its place may be anybody's.
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let is_code = code.len() <= CODE_BYTES_MAX && code.bytes().all(is_word);
    let status_code = status.map(|status| status.as_u16());
    let log = Log {
        status: status_code,
        code: if is_code { code.clone() } else { String::new() },
        what: "it said so itself".to_owned(),
    };
    Trouble { log, ..meaning(name, status, &text, &code) }
}

fn meaning(name: &str, status: Option<StatusCode>, text: &str, code: &str) -> Trouble {
    let said = if text.is_empty() { String::new() } else { format!(": {text}") };
    let is_too_long = TOO_LONG.iter().any(|words| text.to_lowercase().contains(words) || code == *words);
    let refused = |refusal| FinishReason::Refused(refusal, format!("the upstream {name} refused the request{said}"));
    match status.map(|status| status.as_u16()) {
        // What it says of a key may repeat it.
        Some(code @ (401 | 403)) => Trouble::lasting(FinishReason::Failed(format!(
            "the upstream {name} does not accept the server's key ({code}); its operator must see to that"
        ))),
        Some(402) => Trouble::lasting(FinishReason::Failed(format!(
            "the upstream {name} wants to be paid (402); its operator must see to that"
        ))),
        Some(400) if text.contains("credit balance") => Trouble::lasting(FinishReason::Failed(format!(
            "the upstream {name} wants to be paid (400); its operator must see to that"
        ))),
        Some(404) => Trouble::lasting(FinishReason::Failed(format!(
            "the upstream {name} does not know the model or the address (404){said}"
        ))),
        Some(429 | 503 | 529) => {
            let text = format!("the upstream {name} has no room now{said}; retry later");
            Trouble { end: FinishReason::Refused(Refusal::Overloaded, text), ..Trouble::passing(String::new()) }
        }
        Some(400 | 413 | 422) if is_too_long => Trouble::of_request(refused(Refusal::ContextLength)),
        Some(400..=499) if status != Some(StatusCode::REQUEST_TIMEOUT) => {
            let refuses_streams = text.to_lowercase().contains("stream");
            Trouble { refuses_streams, ..Trouble::of_request(refused(Refusal::Input)) }
        }
        _ if is_too_long => Trouble::of_request(refused(Refusal::ContextLength)),
        Some(code) => Trouble::passing(format!("the upstream {name} failed ({code}){said}")),
        None => Trouble::passing(format!("the upstream {name} failed{said}")),
    }
}

/// An error's text and code, in the writings that are met: `{error: {message, code}}`, `{error: text}`, `{message}`,
/// `{detail}`.
fn words(body: &Value) -> (String, String) {
    let error = &body["error"];
    let text = [&error["message"], error, &body["message"], &body["detail"]].into_iter().find_map(Value::as_str);
    let mut text = text.unwrap_or_default().trim().to_owned();
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
    }
    let code = error["code"].as_str().or_else(|| error["type"].as_str());
    (text, code.unwrap_or_default().to_owned())
}

/// How long to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date.
fn retry_after(headers: &HeaderMap, unix_ms: u64) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    if let Some(ms) = text("retry-after-ms").and_then(number) {
        return Duration::try_from_secs_f64(ms / 1000.0).ok();
    }
    let after = text("retry-after")?;
    if let Some(seconds) = number(after) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until: SystemTime = httpdate::parse_http_date(after).ok()?;
    let until = until.duration_since(UNIX_EPOCH).ok()?;
    Some(until.saturating_sub(Duration::from_millis(unix_ms)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn how_long_to_wait_is_read_in_milliseconds_seconds_and_as_a_date() {
        let now_ms = 784_111_777_000; // the date below
        let wait = |pairs: &[(&'static str, &str)]| retry_after(&headers(pairs), now_ms).map(|wait| wait.as_millis());
        assert_eq!(wait(&[]), None);
        assert_eq!(wait(&[("retry-after-ms", "250.5"), ("retry-after", "9")]), Some(250));
        assert_eq!(wait(&[("retry-after", "2")]), Some(2000));
        assert_eq!(wait(&[("retry-after", " 0.5 ")]), Some(500));
        assert_eq!(wait(&[("retry-after", "Sun, 06 Nov 1994 08:49:42 GMT")]), Some(5000));
        assert_eq!(wait(&[("retry-after", "Sun, 06 Nov 1994 08:49:30 GMT")]), Some(0));
        for nonsense in ["soon", "-1", "NaN", "1e400", ""] {
            assert_eq!(wait(&[("retry-after", nonsense)]), None, "{nonsense}");
        }
    }

    #[test]
    fn a_refusal_says_whether_it_passes_and_what_the_client_is_told() {
        let refused = |status: u16, pairs: &[(&'static str, &str)], body: Value| {
            let status = StatusCode::from_u16(status).unwrap();
            super::refused("gpu", status, &headers(pairs), body.to_string().as_bytes(), 0)
        };
        let long = "This model's maximum context length is 9 tokens";
        for (body, status) in [
            (json!({"error": {"message": long, "type": "invalid_request_error"}}), 400),
            (json!({"error": {"message": "no", "code": "context_length_exceeded"}}), 400),
            (json!({"message": long}), 422),
            (json!({"error": {"code": 500, "message": "the request exceeds the available context size"}}), 500),
        ] {
            let trouble = refused(status, &[], body);
            assert!(!trouble.may_pass);
            assert!(matches!(trouble.end, FinishReason::Refused(Refusal::ContextLength, _)), "{trouble:?}");
        }
        let input = refused(400, &[], json!({"error": {"message": "temperature is too hot"}}));
        let text = "the upstream gpu refused the request: temperature is too hot".to_owned();
        assert!(!input.refuses_streams);
        let log = Log { status: Some(400), code: String::new(), what: input.log.what.clone() };
        assert_eq!(input, Trouble { log, ..Trouble::of_request(FinishReason::Refused(Refusal::Input, text)) });
        assert_eq!(refused(404, &[], json!(null)).fault, Fault::Upstream, "another may know the model");
        let unpaid = json!({"error": {"message": "Your credit balance is too low to access the API"}});
        for trouble in [refused(402, &[], json!(null)), refused(400, &[], unpaid)] {
            assert!(trouble.fault == Fault::Upstream && !trouble.may_pass);
            assert!(matches!(trouble.end, FinishReason::Failed(text) if text.contains("wants to be paid")));
        }
        let busy = refused(429, &[("retry-after", "3")], json!({"error": "slow down"}));
        assert_eq!((busy.may_pass, busy.retry_after), (true, Some(Duration::from_secs(3))));
        assert!(matches!(busy.end, FinishReason::Refused(Refusal::Overloaded, text) if text.contains("slow down")));
        assert!(refused(500, &[], json!(null)).may_pass && refused(408, &[], json!(null)).may_pass);
        assert!(!refused(503, &[("x-should-retry", "false")], json!(null)).may_pass);
        let again = refused(409, &[("x-should-retry", "true")], json!(null));
        assert!(again.may_pass && again.fault == Fault::Upstream);
    }

    #[test]
    fn an_error_inside_of_a_stream_means_what_it_would_have_meant_in_its_place() {
        let told = |kind: &str| broken("gpu", &json!({"type": "error", "error": {"type": kind, "message": "no"}}));
        let busy = told("overloaded_error");
        assert!(busy.may_pass && matches!(busy.end, FinishReason::Refused(Refusal::Overloaded, _)));
        assert!(told("rate_limit_error").may_pass && told("api_error").may_pass);
        assert!(told("invalid_request_error").fault == Fault::Request && !told("authentication_error").may_pass);
        let response = |code: &str| broken("gpu", &json!({"error": {"code": code, "message": "no"}}));
        assert!(matches!(response("rate_limit_exceeded").end, FinishReason::Refused(Refusal::Overloaded, _)));
        assert!(response("server_error").may_pass && response("invalid_prompt").fault == Fault::Request);
    }

    #[test]
    fn of_what_an_upstream_says_only_status_and_code_are_logged() {
        let logged = |error: Value| broken("gpu", &json!({"error": error})).log;
        let quoting = "cannot answer 'prompt-of-somebody'";
        for code in ["server_error", "rate-limit.1"] {
            let log = logged(json!({"message": quoting, "code": code, "status": 500}));
            assert_eq!((log.status, log.code.as_str()), (Some(500), code));
            assert!(!log.what.contains("prompt"), "{log:?}");
        }
        let long = "x".repeat(CODE_BYTES_MAX + 1);
        for code in [quoting, &long] {
            assert_eq!(logged(json!({"message": quoting, "code": code})).code, "");
        }
    }

    #[test]
    fn what_is_said_of_a_key_is_not_repeated_and_long_texts_are_cut() {
        let key = json!({"error": {"message": "Incorrect API key provided: sk-secret"}});
        let refused =
            |status, body: &Value| super::refused("gpu", status, &HeaderMap::new(), body.to_string().as_bytes(), 0).end;
        let FinishReason::Failed(text) = refused(StatusCode::UNAUTHORIZED, &key) else { panic!() };
        assert!(!text.contains("secret") && text.contains("gpu"), "{text}");
        let long = json!({"error": {"message": "é".repeat(3000)}});
        let FinishReason::Refused(_, text) = refused(StatusCode::BAD_REQUEST, &long) else { panic!() };
        assert!(text.len() < 1100 && text.ends_with('…'));
    }
}
