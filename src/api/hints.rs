//! What a request says of how it is to be served, beside what it asks for: how urgent it is, with whom it shares keys
//! and values, what may be computed ahead. None of it changes a token.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::errors::invalid;
use crate::conversation::{Extras, Reject};

/// Levels of priority between the ordinary service tier and the one above or below.
const TIER_LEVELS: i64 = 5;
/// Priorities beyond it, up or down, count as this one.
const PRIORITY_MAX: i64 = 10;
/// The strict tiers; each of them stands above all priorities of the one below.
const STRICT_MAX: i64 = 5;
/// Where agents say it.
const HINTS: &str = "nvext.agent_hints";
/// Most bytes of a cache's name.
const SALT_BYTES_MAX: usize = 1024;

/// A hint of this name, if it is given.
fn hint<'a>(body: &'a Value, name: &str) -> Option<&'a Value> {
    body.get("nvext")?.get("agent_hints")?.get(name).filter(|hint| !hint.is_null())
}

fn wrong(name: &str, hint: &Value, expected: &str) -> Reject {
    let at = format!("{HINTS}.{name}");
    invalid(at.clone(), format!("{at} is {hint}, but must be {expected}"))
}

/// A whole number, if it is given.
fn whole(body: &Value, name: &str) -> Result<Option<i64>, Reject> {
    let Some(hint) = hint(body, name) else { return Ok(None) };
    hint.as_i64().map(Some).ok_or_else(|| wrong(name, hint, "a whole number"))
}

/// How urgent a request is: as its agent hints, else by its service tier. A hint beyond all levels is the last one.
pub(crate) fn priority(body: &Value) -> Result<Option<i8>, Reject> {
    let sensitivity = match hint(body, "latency_sensitivity") {
        None => None,
        Some(hint) => {
            let number = hint.as_f64().ok_or_else(|| wrong("latency_sensitivity", hint, "a number"))?;
            Some(number.round() as i64)
        }
    };
    if let Some(hint) = hint(body, "osl").filter(|hint| hint.as_u64().is_none()) {
        // Read for its form: one engine has nothing to balance by the length of an answer.
        return Err(wrong("osl", hint, "a whole number of tokens"));
    }
    let tier = match body.get("service_tier").and_then(Value::as_str) {
        Some("priority") => Some(TIER_LEVELS),
        Some("flex") => Some(-TIER_LEVELS),
        _ => None,
    };
    let level = whole(body, "priority")?.or(sensitivity).or(tier).map(|level| level.clamp(-PRIORITY_MAX, PRIORITY_MAX));
    let strict = whole(body, "strict_priority")?.map(|tier| tier.clamp(0, STRICT_MAX) * (2 * PRIORITY_MAX + 1));
    Ok(match (level, strict) {
        (None, None) => None,
        (level, strict) => Some((level.unwrap_or(0) + strict.unwrap_or(0)) as i8),
    })
}

/// What few requests ask for.
pub(crate) fn extras(body: &Value) -> Result<Extras, Reject> {
    let speculative_prefill = match hint(body, "speculative_prefill") {
        None => None,
        Some(Value::Bool(wanted)) => Some(*wanted),
        Some(hint) => return Err(wrong("speculative_prefill", hint, "true or false")),
    };
    Ok(Extras { cache_salt: cache_salt(body)?, speculative_prefill, ..Extras::default() })
}

/// What stands for the name that a client gives its cache.
fn cache_salt(body: &Value) -> Result<Option<u64>, Reject> {
    const NAME: &str = "cache_salt";
    let name = match body.get(NAME) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(name)) if (1..=SALT_BYTES_MAX).contains(&name.len()) => name,
        Some(_) => {
            return Err(invalid(NAME, format!("{NAME} must be a text of 1 to {SALT_BYTES_MAX} bytes")));
        }
    };
    let digest: [u8; 32] = Sha256::digest(name.as_bytes()).into();
    let (head, _) = digest.split_at(8);
    // 0 is the cache without a name.
    Ok(Some(head.iter().fold(0, |salt: u64, byte| salt << 8 | u64::from(*byte)).max(1)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hinted(hints: &Value) -> Value {
        json!({"nvext": {"agent_hints": hints}})
    }

    #[test]
    fn urgent_is_what_the_hint_says_else_the_tier() {
        for (body, expected) in [
            (json!({}), None),
            (json!({"service_tier": "auto"}), None),
            (json!({"service_tier": "priority"}), Some(5)),
            (json!({"service_tier": "flex"}), Some(-5)),
            (json!({"nvext": {"agent_hints": {"priority": 3}}, "service_tier": "flex"}), Some(3)),
            (hinted(&json!({"priority": 1000})), Some(10)),
            (hinted(&json!({"priority": null})), None),
            (hinted(&json!({"latency_sensitivity": 2.6})), Some(3)),
            (hinted(&json!({"latency_sensitivity": 2.6, "priority": 1})), Some(1)),
            (hinted(&json!({"osl": 1024, "unknown": []})), None),
        ] {
            assert_eq!(priority(&body).unwrap(), expected, "{body}");
        }
    }

    #[test]
    fn a_strict_tier_stands_above_every_priority_of_the_one_below() {
        let level = |strict: i64, level: i64| {
            priority(&hinted(&json!({"strict_priority": strict, "priority": level}))).unwrap().unwrap()
        };
        assert!(level(1, -10) > level(0, 10) && level(2, -1000) > level(1, 1000));
        assert!(level(1, 3) > level(1, 2));
        assert_eq!(level(1_000_000, 10), level(STRICT_MAX, 10));
    }

    #[test]
    fn a_hint_of_the_wrong_kind_is_refused_by_its_name() {
        for (name, hint) in [
            ("priority", json!(1.5)),
            ("strict_priority", json!("high")),
            ("osl", json!(-1)),
            ("latency_sensitivity", json!({})),
        ] {
            let refused = priority(&hinted(&json!({name: hint}))).unwrap_err();
            assert_eq!(refused.param, Some(format!("{HINTS}.{name}")));
        }
        let refused = extras(&hinted(&json!({"speculative_prefill": 1}))).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("nvext.agent_hints.speculative_prefill"));
    }

    #[test]
    fn caches_of_one_name_are_one_and_others_are_others() {
        let salt = |name: &str| extras(&json!({"cache_salt": name})).unwrap().cache_salt.unwrap();
        assert_eq!(salt("a"), salt("a"));
        assert!(salt("a") != salt("b") && salt("a") != 0);
        assert_eq!(extras(&json!({})).unwrap(), Extras::default());
        for wrong in [json!(""), json!(3), json!("x".repeat(SALT_BYTES_MAX + 1))] {
            assert_eq!(extras(&json!({"cache_salt": wrong})).unwrap_err().param.as_deref(), Some("cache_salt"));
        }
    }
}
