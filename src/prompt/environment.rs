//! The template language as chat templates expect it: minijinja with what Hugging Face's Jinja adds or does otherwise.

use std::collections::BTreeMap;

use minijinja::machinery::{eval, get_compiled_template, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::vet::vet;
use super::{format, json, meter, methods, time};

/// The name of the one template in an environment.
pub(super) const TEMPLATE: &str = "chat";
/// The context variable that carries the time; templates read it through `strftime_now`.
pub(super) const NOW: &str = "__midstream_now_unix_ms";
/// A template called `raise_exception`: the template's own words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Frames that may be open at once, where a macro's call counts as six. A schema that holds schemas takes a template
/// some seven for each.
const RECURSION_MAX: usize = 250;

/// An environment that holds the template.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let source = vet(source, &syntax)?;
    environment.set_syntax(syntax);
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_unknown_method_callback(methods::call);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("from_json", json::from_json);
    environment.add_filter("fromjson", json::from_json);
    environment.add_filter("format", format::printf);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("callable", methods::is_callable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    // These show the engine's inside, indented, and Jinja2 lacks them or has them for people who write templates.
    environment.remove_global("debug");
    for name in ["pprint", "chain", "zip"] {
        environment.remove_filter(name);
    }
    environment.add_template_owned(TEMPLATE, source)?;
    Ok(environment)
}

/// What a rendering may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Steps of the engine.
    pub(super) fuel: u64,
    /// How heavy a value may get.
    pub(super) weight: u64,
}

/// The template's text for these variables.
pub(super) fn render(environment: &Environment<'static>, context: Value, limits: Limits) -> Result<String, Error> {
    let mut environment = environment.clone();
    environment.set_fuel(Some(limits.fuel));
    meter::register(&mut environment, limits.weight);
    let template = environment.get_template(TEMPLATE)?;
    let compiled = get_compiled_template(&template);
    let instructions = meter::metered(&compiled.instructions);
    let blocks = BTreeMap::new();
    let mut text = String::new();
    let escape = compiled.initial_auto_escape.clone();
    eval(&environment, &instructions, context, &blocks, &mut make_string_output(&mut text), escape)?;
    Ok(text)
}

fn raise_exception(words: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "the template refuses").with_source(Raised(words)))
}

fn strftime_now(state: &State<'_, '_>, pattern: &str) -> String {
    let now = state.lookup(NOW).and_then(|now| u64::try_from(now).ok());
    time::format(now.unwrap_or(0), pattern)
}

/// As Python has it: none is not iterable.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// As Jinja2 has it: whatever has a length and items, so strings and mappings too.
fn is_sequence(value: &Value) -> bool {
    value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
}

#[cfg(test)]
mod tests {
    use super::super::values;
    use super::*;

    fn render(source: &str, context: &serde_json::Value) -> Result<String, Error> {
        super::render(&environment(source)?, values::plain(context), Limits { fuel: 100_000, weight: 1 << 20 })
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
