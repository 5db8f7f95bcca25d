//! Idempotency keys: where they stand in a request, and what makes two requests the same.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::errors::invalid;
use crate::conversation::Reject;

/// The header that marks a repeated answer.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Most bytes of a key.
const KEY_BYTES_MAX: usize = 256;

/// Fields of a request that say how it is delivered or what already scopes the key, not what it does.
const DELIVERY: [&str; 7] = ["type", "event_id", "stream", "stream_id", "conversation", "response_id", "wait"];

/// The key in the request's headers.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>, Reject> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let text = value.to_str().map_err(|_| invalid("Idempotency-Key", "the Idempotency-Key must be visible ASCII"))?;
    checked(text, "Idempotency-Key").map(Some)
}

/// The key in a frame.
pub(crate) fn event_id(frame: &Value) -> Result<Option<String>, Reject> {
    match frame.get("event_id") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => checked(text, "event_id").map(Some),
        Some(_) => Err(invalid("event_id", "event_id must be a string")),
    }
}

fn checked(text: &str, param: &str) -> Result<String, Reject> {
    if text.is_empty() || text.len() > KEY_BYTES_MAX {
        let message = format!("{param} must have between 1 and {KEY_BYTES_MAX} bytes");
        return Err(invalid(param, message));
    }
    Ok(text.to_owned())
}

/// What the request does, in 32 bytes: the same over HTTP and on a socket. `target` is what the path or the frame
/// names besides the body.
pub(crate) fn fingerprint(body: &Value, target: Option<&str>) -> [u8; 32] {
    let mut fields = body.as_object().cloned().unwrap_or_default();
    fields.retain(|name, value| !DELIVERY.contains(&name.as_str()) && !value.is_null());
    let mut text = String::new();
    write_canonical(&json!({"body": fields, "target": target}), &mut text);
    Sha256::digest(text.as_bytes()).into()
}

/// JSON with sorted keys and no insignificant space.
fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (position, (name, value)) in fields.into_iter().enumerate() {
                text.push_str(if position == 0 { "" } else { "," });
                text.push_str(&Value::from(name.as_str()).to_string());
                text.push(':');
                write_canonical(value, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (position, item) in items.iter().enumerate() {
                text.push_str(if position == 0 { "" } else { "," });
                write_canonical(item, text);
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

/// Marks an answer as a repeated one.
pub(crate) fn replayed(mut response: Response) -> Response {
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// Adds what a socket's answer echoes.
pub(crate) fn echo(frame: &mut Value, event_id: Option<&str>, replayed: bool) {
    let fields: Option<&mut Map<String, Value>> = frame.as_object_mut();
    if let Some(fields) = fields {
        if let Some(event_id) = event_id {
            fields.insert("event_id".to_owned(), event_id.into());
        }
        if replayed {
            fields.insert("replayed".to_owned(), true.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_space_and_delivery_make_no_difference() {
        let over_http = json!({"input": "a", "temperature": 0.5, "stream": true, "conversation": "conv_1"});
        let on_a_socket =
            json!({"type": "response.create", "event_id": "k", "stream_id": "s", "temperature": 0.5, "input": "a"});
        assert_eq!(fingerprint(&over_http, None), fingerprint(&on_a_socket, None));
    }

    #[test]
    fn another_input_or_target_makes_another_request() {
        let body = json!({"input": "a"});
        assert_ne!(fingerprint(&body, None), fingerprint(&json!({"input": "b"}), None));
        assert_ne!(fingerprint(&body, Some("resp_1")), fingerprint(&body, Some("resp_2")));
    }

    #[test]
    fn a_key_is_bounded() {
        assert!(event_id(&json!({"event_id": ""})).is_err());
        assert!(event_id(&json!({"event_id": "x".repeat(257)})).is_err());
        assert!(event_id(&json!({"event_id": 3})).is_err());
        assert_eq!(event_id(&json!({})).unwrap(), None);
    }
}
