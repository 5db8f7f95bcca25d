//! Reading requests: JSON bodies within their bound, ids in paths, cursors; and errors that name the field.

use std::collections::HashMap;

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::App;
use super::admission::Permit;
use super::auth;
use super::coding;
use super::errors::{OpenAiError, invalid};
use crate::actors::Cursor;
use crate::conversation::Reject;
use crate::error::Code;

/// Room for a request that generates, taken before its body is read: what is turned away costs nothing.
pub(crate) struct Admitted(pub(crate) Permit);

impl FromRequestParts<App> for Admitted {
    type Rejection = OpenAiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, OpenAiError> {
        Ok(app.admit(auth::identity(parts)?).map(Self)?)
    }
}

/// Room for a request that asks what a prompt would be, taken before its body is read.
pub(crate) struct Counting(pub(crate) Permit);

impl FromRequestParts<App> for Counting {
    type Rejection = OpenAiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, OpenAiError> {
        Ok(app.admit_count(auth::identity(parts)?).map(Self)?)
    }
}

/// Room for a request that changes what is stored, taken before its body is read as well.
pub(crate) struct AdmittedToWrite(pub(crate) Permit);

impl FromRequestParts<App> for AdmittedToWrite {
    type Rejection = OpenAiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, OpenAiError> {
        Ok(app.admit_write(auth::identity(parts)?).map(Self)?)
    }
}

/// Room for one more reader.
pub(crate) struct Seated(pub(crate) Permit);

impl FromRequestParts<App> for Seated {
    type Rejection = OpenAiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, OpenAiError> {
        Ok(app.seat(auth::identity(parts)?).map(Self)?)
    }
}

/// Most bytes of a body on these routes, where they take fewer than the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyBytesMax(pub(crate) usize);

/// A JSON object, compressed or not. An empty body is an empty object: some requests need none.
pub(crate) struct JsonBody(pub(crate) Value);

impl FromRequest<App> for JsonBody {
    type Rejection = OpenAiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, OpenAiError> {
        let (parts, body) = request.into_parts();
        let bytes_max = parts.extensions.get().map_or(app.limits.body_bytes_max, |BodyBytesMax(bytes)| *bytes);
        let bytes = coding::read(&parts.headers, body, bytes_max, app.limits.body_timeout).await?;
        parsed(bytes).await.map(Self).map_err(OpenAiError)
    }
}

/// An id in the path, whatever it looks like: what is no id of ours is not found.
pub(crate) struct PathId(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = OpenAiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, OpenAiError> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(id)) => Ok(Self(id)),
            Err(_) => Err(Reject::new(Code::NotFound, "the path is not valid UTF-8, so nothing has this id").into()),
        }
    }
}

/// The ids of a path that has several, by name.
pub(crate) struct PathIds(HashMap<String, String>);

impl PathIds {
    /// The id of this name; the router has seen to it that there is one.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PathIds {
    type Rejection = OpenAiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, OpenAiError> {
        match Path::<HashMap<String, String>>::from_request_parts(parts, state).await {
            Ok(Path(ids)) => Ok(Self(ids)),
            Err(_) => Err(Reject::new(Code::NotFound, "the path is not valid UTF-8, so nothing has these ids").into()),
        }
    }
}

/// Most values in a request's JSON. Each takes hundreds of bytes of memory, of which the text may have two: without a
/// bound, a few kilobytes that expand to megabytes of zeros would take gigabytes. A bias for each token of the largest
/// vocabularies, and a prompt of ids as long as any context, have fewer.
const JSON_VALUES_MAX: usize = 1 << 18;

/// Whether a JSON text may have more values than that: there is one at most behind each comma and each opening bracket.
fn has_too_many_values(bytes: &[u8]) -> bool {
    let (mut values, mut in_text, mut is_escaped) = (1, false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values > JSON_VALUES_MAX
}

/// Most bytes of a text that is parsed where it came: that takes less time than handing it to another thread.
const PARSED_AT_ONCE_BYTES_MAX: usize = 64 << 10;

/// Most longer texts that are parsed at once. Each takes a thread, and the memory of its values.
const PARSED_BESIDE_MAX: usize = 4;

/// Room to parse longer texts.
static PARSERS: Semaphore = Semaphore::const_new(PARSED_BESIDE_MAX);

/// Parses a JSON object; a long one on a thread that nobody else waits for.
pub(crate) async fn parsed(text: impl AsRef<[u8]> + Send + 'static) -> Result<Value, Reject> {
    if text.as_ref().len() <= PARSED_AT_ONCE_BYTES_MAX {
        return object(text.as_ref());
    }
    let failed = |_| Reject::new(Code::Internal, "the request could not be read; send it again");
    // Held by the thread, which goes on when its client has gone.
    let place = PARSERS.acquire().await.map_err(|_| Reject::new(Code::Internal, "no request is read any more"))?;
    let parse = move || {
        let parsed = object(text.as_ref());
        drop(place);
        parsed
    };
    tokio::task::spawn_blocking(parse).await.map_err(failed)?
}

/// Parses a JSON object.
fn object(bytes: &[u8]) -> Result<Value, Reject> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Object(Map::new()));
    }
    // Where it is short it needs no second look.
    if bytes.len() > JSON_VALUES_MAX && has_too_many_values(bytes) {
        let text = format!("the request has more than {JSON_VALUES_MAX} JSON values; send it in parts, or as text");
        return Err(Reject::new(Code::InvalidInput, text));
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| {
        let text = match error.to_string() {
            deep if deep.starts_with("recursion limit") => {
                "the request is nested too deeply: 128 levels at most are read; send it with fewer".to_owned()
            }
            error => format!("the request is not valid JSON: {error}; send one JSON object"),
        };
        Reject::new(Code::InvalidInput, text)
    })?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Reject::new(Code::InvalidInput, "the request must be a JSON object, in braces"))
    }
}

/// Reads a known type out of JSON; the error names the field.
pub(crate) fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, Reject> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, said) = (error.path().to_string(), error.inner().to_string());
        // A field that is not there has no path of its own; that of the body is a dot.
        match said.strip_prefix("missing field `").and_then(|rest| rest.split_once('`')) {
            Some((field, _)) => {
                let path = if path == "." { field.to_owned() } else { format!("{path}.{field}") };
                invalid(path.clone(), format!("{path} is missing"))
            }
            None => invalid(path.clone(), format!("{path}: {}", in_words(&said))),
        }
    })
}

/// What was expected, in a client's words and not in those of the types here.
fn in_words(said: &str) -> String {
    let Some((wrong, expected)) = said.rsplit_once(", expected ") else { return said.to_owned() };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "string or map" => "a string",
        "a map" => "an object",
        "a sequence" => "a list",
        kind if kind.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{wrong}, expected {expected}")
}

/// Reads a cursor: a seq, or `epoch-seq`.
pub(crate) fn cursor(text: &str, param: &str) -> Result<Cursor, Reject> {
    let (epoch, seq) = text.split_once('-').map_or((None, text), |(epoch, seq)| (Some(epoch), seq));
    match (epoch.map(str::parse).transpose(), seq.parse()) {
        (Ok(epoch), Ok(seq)) => Ok(Cursor { epoch, seq }),
        _ => Err(invalid(param, format!("{param}: {text:?} is no cursor; give the seq of the last event seen"))),
    }
}

/// Reads `true` or `false` in a query.
pub(crate) fn flag(text: &str, param: &str) -> Result<bool, Reject> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(invalid(param, format!("{param} must be true or false, not {text:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::thread::ThreadId;

    use futures_util::FutureExt;

    use super::*;
    use crate::protocol::responses::CreateResponse;

    fn fault(body: &str) -> Reject {
        let value = object(body.as_bytes()).unwrap();
        decode::<CreateResponse>(&value).unwrap_err()
    }

    #[test]
    fn a_field_of_the_wrong_type_is_named_by_its_path() {
        assert_eq!(fault(r#"{"background": "hot"}"#).param.unwrap(), "background");
        assert_eq!(fault(r#"{"input": [{"role": 3}]}"#).param.unwrap(), "input[0].role");
        assert_eq!(fault(r#"{"stop": ["a", 1]}"#).param.unwrap(), "stop[1]");
        assert_eq!(fault(r#"{"input": 7}"#).param.unwrap(), "input");
    }

    #[test]
    fn what_was_expected_is_said_in_the_words_of_json() {
        use crate::conversation::Policies;
        let said = |body: Value| decode::<Policies>(&body).unwrap_err().message;
        assert!(said(serde_json::json!({"grace_ms": -1})).ends_with("expected a whole number of 0 or more"));
        assert!(said(serde_json::json!({"grace_ms": {}})).ends_with("expected a whole number of 0 or more"));
        assert!(said(serde_json::json!({"if_busy": 7})).ends_with("expected a string"));
        let words = |body| fault(body).message;
        assert!(words(r#"{"tools": 3}"#).ends_with("expected a list"));
        assert!(words(r#"{"metadata": []}"#).ends_with("expected an object"));
        for body in [r#"{"conversation": 7}"#, r#"{"temperature": "hot", "stop": 3}"#, r#"{"tools": [3]}"#] {
            let value = object(body.as_bytes()).unwrap();
            if let Err(reject) = decode::<CreateResponse>(&value) {
                let types = ["u32", "u64", "f32", "struct", "sequence", "a map", "enum"];
                assert!(!types.iter().any(|name| reject.message.contains(name)), "{}", reject.message);
            }
        }
    }

    #[test]
    fn a_field_that_is_missing_is_named() {
        use crate::protocol::tokenize::Detokenize;
        let missing = decode::<Detokenize>(&serde_json::json!({})).unwrap_err();
        assert_eq!((missing.param.as_deref(), missing.message.as_str()), (Some("tokens"), "tokens is missing"));
        let wrong = decode::<Detokenize>(&serde_json::json!({"tokens": [1, "a"]})).unwrap_err();
        assert_eq!(wrong.param.as_deref(), Some("tokens[1]"));
    }

    #[test]
    fn fields_that_nobody_knows_are_accepted() {
        let value = object(br#"{"input": "a", "client_metadata": {"x": 1}, "tools": [{"type": "magic"}]}"#).unwrap();
        assert!(decode::<CreateResponse>(&value).is_ok());
    }

    #[test]
    fn more_values_than_memory_is_worth_are_refused_before_they_are_read_and_long_texts_are_not() {
        let zeros = |count: usize| format!("{{\"metadata\": {{\"a\": [0{}]}}}}", ",0".repeat(count));
        let refused = object(zeros(JSON_VALUES_MAX).as_bytes()).unwrap_err();
        assert!(refused.code == Code::InvalidInput && refused.message.contains("262144 JSON values"), "{refused:?}");
        assert!(object(zeros(JSON_VALUES_MAX - 10).as_bytes()).is_ok());
        let text = r#"{[,\"\\"#.repeat(JSON_VALUES_MAX);
        let body = format!("{{\"input\": {}}}", Value::from(text.as_str()));
        assert_eq!(object(body.as_bytes()).unwrap()["input"], *text);
    }

    /// A text that notes the thread on which it is looked at last.
    struct Seen(Vec<u8>, Arc<Mutex<Option<ThreadId>>>);

    impl AsRef<[u8]> for Seen {
        fn as_ref(&self) -> &[u8] {
            *self.1.lock().unwrap() = Some(std::thread::current().id());
            &self.0
        }
    }

    #[tokio::test]
    async fn long_texts_are_parsed_on_threads_of_their_own_and_only_so_many_at_once() {
        let text = |bytes: usize| Seen(format!("{{\"a\": \"{}\"}}", "x".repeat(bytes)).into_bytes(), Arc::default());
        let (short, long) = (text(100), text(PARSED_AT_ONCE_BYTES_MAX));
        let (by_short, by_long, own) = (short.1.clone(), long.1.clone(), std::thread::current().id());
        let all = PARSERS.acquire_many(PARSED_BESIDE_MAX as u32).await.unwrap();
        let mut waiting = Box::pin(parsed(long));
        assert!((&mut waiting).now_or_never().is_none(), "there is no room for it");
        assert!(parsed(short).await.is_ok(), "short ones need none");
        drop(all);
        assert!(waiting.await.unwrap()["a"].is_string());
        assert_eq!(*by_short.lock().unwrap(), Some(own));
        assert_ne!(*by_long.lock().unwrap(), Some(own));
    }

    #[test]
    fn what_is_no_json_object_is_refused_in_words() {
        assert!(object(b"{").unwrap_err().message.contains("not valid JSON"));
        assert!(object(b"[1]").unwrap_err().message.contains("JSON object"));
        assert_eq!(object(b" \n").unwrap(), Value::Object(Map::new()));
    }

    #[test]
    fn a_cursor_has_two_forms() {
        assert_eq!(cursor("12", "after").unwrap(), Cursor { epoch: None, seq: 12 });
        assert_eq!(cursor("3-12", "after").unwrap(), Cursor { epoch: Some(3), seq: 12 });
        for text in ["", "-1", "x", "1-", "1-2-3", "+-1"] {
            assert_eq!(cursor(text, "after").unwrap_err().code, Code::InvalidInput, "{text}");
        }
    }
}
