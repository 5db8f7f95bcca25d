//! The arguments of calls as templates see them: a mapping whose text stays what the model generated, so that the
//! prompt goes on where the answer ended.
//!
//! Never refuses arguments: what is no object is a mapping without fields.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use serde_json::{Map, Value as Json};

use super::guard::Guard;
use super::values::{protect, to_value};

/// The arguments of a call: a mapping that remembers how it was written, so that `tojson` gives that back.
#[derive(Debug)]
pub(super) struct CallArguments {
    raw: String,
    fields: Value,
}

impl CallArguments {
    pub(super) fn raw(&self) -> &str {
        &self.raw
    }
}

impl Object for CallArguments {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.fields.get_item(key).ok().filter(|value| !value.is_undefined())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.fields.try_iter().map(Iterator::collect).unwrap_or_default())
    }
}

/// A number that is shown as it was written: `1.50` and integers of any length.
#[derive(Debug)]
pub(super) struct RawNumber(String);

impl RawNumber {
    pub(super) fn raw(&self) -> &str {
        &self.0
    }
}

impl Object for RawNumber {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The arguments as a mapping, whatever they are: templates ask for their fields, and one call that was cut or has
/// none must not make every later prompt of its conversation fail.
pub(super) fn mapping(raw: &str, guard: Option<Guard<'_>>) -> Value {
    let nothing = matches!(raw.trim(), "" | "null");
    let fields: Map<String, Json> = serde_json::from_str(raw).unwrap_or_default();
    let mut numbers = Numbers::new(raw, &fields);
    let fields =
        Value::from_pairs(fields.iter().map(|(key, value)| (protect(key, guard), numbers.value(value, guard))));
    let raw = if nothing { "{}".to_owned() } else { protect(raw, guard) };
    Value::from_object(CallArguments { raw, fields })
}

/// The texts of the numbers that are still to come, in the order of the document.
struct Numbers<'a>(std::vec::IntoIter<&'a str>);

impl<'a> Numbers<'a> {
    fn new(raw: &'a str, fields: &Map<String, Json>) -> Self {
        let texts = number_texts(raw);
        // A key that stands twice takes numbers away, and nothing says which.
        let all = texts.len() == fields.values().map(count).sum::<usize>();
        Self(if all { texts } else { Vec::new() }.into_iter())
    }

    fn value(&mut self, json: &Json, guard: Option<Guard<'_>>) -> Value {
        match json {
            Json::Number(_) => {
                let plain = to_value(json, guard);
                match self.0.next() {
                    Some(text) if plain.to_string() != text || super::json::number(&plain) != text => {
                        Value::from_object(RawNumber(text.to_owned()))
                    }
                    _ => plain,
                }
            }
            Json::Array(items) => Value::from(items.iter().map(|item| self.value(item, guard)).collect::<Vec<_>>()),
            Json::Object(fields) => {
                Value::from_pairs(fields.iter().map(|(key, value)| (protect(key, guard), self.value(value, guard))))
            }
            Json::Null | Json::Bool(_) | Json::String(_) => to_value(json, guard),
        }
    }
}

fn count(json: &Json) -> usize {
    match json {
        Json::Number(_) => 1,
        Json::Array(items) => items.iter().map(count).sum(),
        Json::Object(fields) => fields.values().map(count).sum(),
        Json::Null | Json::Bool(_) | Json::String(_) => 0,
    }
}

/// The numbers in a JSON text, outside its strings.
fn number_texts(raw: &str) -> Vec<&str> {
    let bytes = raw.as_bytes();
    let (mut texts, mut at, mut quoted) = (Vec::new(), 0, false);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => at += 1,
            b'-' | b'0'..=b'9' if !quoted => {
                let of_number = |byte: &&u8| matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let end = at + bytes[at..].iter().take_while(of_number).count();
                texts.push(&raw[at..end]);
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(source: &str, raw: &str) -> String {
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", crate::prompt::json::tojson);
        environment.render_str(source, Value::from_pairs([("arguments", mapping(raw, None))])).unwrap()
    }

    const PAIRS: &str =
        "{% for key, value in arguments | items %}{{ key }}={{ value }}/{{ value | tojson }};{% endfor %}";

    #[test]
    fn numbers_are_written_as_the_model_wrote_them() {
        let raw = r#"{"a":1.50,"b":[123456789012345678901234567890,1e2],"c":{"d":"7 \" 8","e":-0.0},"f":3}"#;
        let shown = show(PAIRS, raw);
        assert!(shown.starts_with("a=1.50/1.50;b=[123456789012345678901234567890, 1e2]/"), "{shown}");
        assert!(shown.contains("[123456789012345678901234567890, 1e2];") && shown.ends_with("f=3/3;"), "{shown}");
        assert!(shown.contains(r#"/{"d": "7 \" 8", "e": -0.0};"#), "{shown}");
    }

    #[test]
    fn a_key_that_stands_twice_gives_no_number_to_another() {
        assert_eq!(show(PAIRS, r#"{"a":1.50,"a":2.50,"b":3.50}"#), "a=2.5/2.5;b=3.5/3.5;");
    }

    #[test]
    fn arguments_that_are_no_object_have_no_fields_and_keep_their_text() {
        for (raw, shown) in [("", "{}"), (" null ", "{}"), ("[1]", "[1]"), (r#"{"a": "x"#, r#"{"a": "x"#)] {
            assert_eq!(show(PAIRS, raw), "", "{raw}");
            assert_eq!(
                show("{{ arguments is mapping }} {{ arguments | tojson }}", raw),
                format!("True {shown}"),
                "{raw}"
            );
        }
    }
}
