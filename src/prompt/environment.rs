//! The template language as chat templates expect it: minijinja with what Hugging Face's Jinja adds or does otherwise.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::{json, methods, time, values};

/// The name of the one template in an environment.
pub(super) const TEMPLATE: &str = "chat";
/// The context variable that carries the time; templates read it through `strftime_now`.
pub(super) const NOW: &str = "__midstream_now_unix_ms";
/// A template called `raise_exception`: the template's own words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// An environment that holds the template.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    environment.set_syntax(syntax);
    environment.set_unknown_method_callback(methods::call);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("from_json", from_json);
    environment.add_filter("fromjson", from_json);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("callable", methods::is_callable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_template_owned(TEMPLATE, without_generation_tags(source))?;
    Ok(environment)
}

fn raise_exception(words: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "the template refuses").with_source(Raised(words)))
}

fn strftime_now(state: &State<'_, '_>, pattern: &str) -> String {
    let now = state.lookup(NOW).and_then(|now| u64::try_from(now).ok());
    time::format(now.unwrap_or(0), pattern)
}

fn from_json(text: &str) -> Result<Value, Error> {
    serde_json::from_str(text)
        .map(|json| values::plain(&json))
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// As Python has it: none is not iterable.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// As Jinja2 has it: whatever has a length and items, so strings and mappings too.
fn is_sequence(value: &Value) -> bool {
    value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
}

/// The source with `generation` blocks, which only mark text for training, as blocks that always run.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(len) = rest.find("%}").map(|end| end + 2) else {
            break;
        };
        let tag = &rest[..len];
        let inner = tag[2..len - 2].trim_matches(['-', '+']).trim();
        match inner {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = &rest[len..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, context: &serde_json::Value) -> Result<String, Error> {
        environment(source)?.get_template(TEMPLATE)?.render(values::plain(context))
    }

    #[track_caller]
    fn check(source: &str, context: &serde_json::Value, expected: &str) {
        assert_eq!(render(source, context).unwrap(), expected);
    }

    #[test]
    fn generation_blocks_keep_their_white_space_marks() {
        check("a {%- generation -%} b {%- endgeneration %} c", &serde_json::json!({}), "ab c");
        check("a{% generation %}b{% endgeneration %}c", &serde_json::json!({}), "abc");
        check("{{ '{% x' }}", &serde_json::json!({}), "{% x");
    }

    #[test]
    fn none_is_not_iterable_and_strings_and_mappings_are_sequences() {
        let context = serde_json::json!({"none": null, "text": "x", "list": [], "map": {}, "one": 1});
        for (name, iterable, sequence) in [
            ("none", false, false),
            ("text", true, true),
            ("list", true, true),
            ("map", true, true),
            ("one", false, false),
        ] {
            let source = format!("{{{{ {name} is iterable }}}} {{{{ {name} is sequence }}}}");
            let python = |truth| if truth { "True" } else { "False" };
            check(&source, &context, &format!("{} {}", python(iterable), python(sequence)));
        }
    }

    #[test]
    fn blocks_take_their_line_with_them() {
        check("{% if true %}\n  x\n  {% endif %}\ny", &serde_json::json!({}), "  x\ny");
    }

    #[test]
    fn python_methods_and_json_filters_work() {
        check("{{ ' a,b '.strip().split(',')[-1] }}", &serde_json::json!({}), "b");
        check("{{ ('{\"a\": [1]}' | from_json)['a'][0] }}", &serde_json::json!({}), "1");
        check(
            "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}",
            &serde_json::json!({"map": {"b": 1, "a": 2}}),
            "b=1;a=2;",
        );
    }
}
