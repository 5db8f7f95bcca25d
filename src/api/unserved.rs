//! What a request may ask for and this version does not do: refused by name, never silently left out.

use serde_json::Value;

use super::errors::invalid;
use crate::conversation::Reject;

/// Fields, where they stand in a body, and the values that say what is done anyway.
const UNSERVED: [(&str, &[&str]); 1] = [("/prompt", &[])];

/// Refuses a body that asks for something that would not happen.
pub(crate) fn refuse(body: &Value) -> Result<(), Reject> {
    for (pointer, served) in UNSERVED {
        if let Some(value) = body.pointer(pointer).filter(|value| asks(value))
            && !value.as_str().is_some_and(|text| served.contains(&text))
        {
            let name = pointer[1..].replace('/', ".");
            let instead = match served {
                [] => "leave it out".to_owned(),
                served => format!("leave it out, or use {}", served.join(" or ")),
            };
            return Err(invalid(&name, format!("{name}: {value} is not supported by this version; {instead}")));
        }
    }
    Ok(())
}

/// Whether the value asks for anything: some clients send what means nothing.
fn asks(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(asked) => *asked,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Object(fields) => !fields.is_empty(),
        Value::String(_) | Value::Array(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_done_is_refused_by_its_name() {
        for (body, name) in [
            (json!({"prompt": {"id": "p"}}), "prompt"),
        ] {
            let reject = refuse(&body).unwrap_err();
            assert_eq!(reject.param.as_deref(), Some(name), "{body}");
            assert!(reject.message.contains("not supported"), "{reject:?}");
        }
    }

    #[test]
    fn what_means_nothing_or_happens_anyway_is_taken() {
        let body = json!({
            "text": {"verbosity": "low"},
            "reasoning": {"effort": "low"}, "include": [],
        });
        assert!(refuse(&body).is_ok());
    }
}
