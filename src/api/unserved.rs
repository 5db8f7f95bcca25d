//! What a request may ask for and this version does not do: refused by name, never silently left out.

use serde_json::Value;

use super::errors::invalid;
use crate::conversation::Reject;

/// Fields that name what is not there.
const UNSERVED: [&str; 3] = ["prompt", "grammar", "json_schema"];

/// Refuses a body that asks for something that would not happen.
pub(crate) fn refuse(body: &Value) -> Result<(), Reject> {
    for name in UNSERVED {
        if let Some(value) = body.get(name).filter(|value| asks(value)) {
            let text = format!("{name}: {value} is not supported by this version; leave it out");
            return Err(invalid(name, text));
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
        for name in UNSERVED {
            let reject = refuse(&json!({name: {"id": "p"}})).unwrap_err();
            assert_eq!(reject.param.as_deref(), Some(name));
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
