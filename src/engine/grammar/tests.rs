//! What a constraint allows, over a tokenizer whose tokens are bytes.

mod families;
mod hostile;

use std::sync::Arc;

use serde_json::{Value, json};

use super::kept::KEPT_MAX;
use super::*;
use crate::engine::gguf::{self, Array, Gguf, Writer};
use crate::engine::settings::{CallRule, Callable, TextRule};

/// The byte tokenizer's end of a turn.
const END: u32 = 257;

fn grammars() -> Grammars {
    Grammars::new(Arc::new(Tokenizer::bytes()))
}

fn tool(name: &str, parameters: Value) -> ToolDefinition {
    ToolDefinition { name: name.to_owned(), description: None, parameters }
}

fn text(text: TextRule) -> Constraint {
    Constraint { text, calls: None, at: None }
}

fn schema(schema: Value) -> Constraint {
    text(TextRule::JsonSchema { schema })
}

fn call_rule(names: &[&str], several: bool) -> CallRule {
    let tools = names.iter().map(|name| Callable { name: (*name).to_owned(), by_schema: true, input: None }).collect();
    CallRule { tools, several }
}

fn weather() -> ToolDefinition {
    let properties = json!({"city": {"type": "string"}, "days": {"type": "integer"}});
    tool(
        "weather",
        json!({"type": "object", "properties": properties, "required": ["city"], "additionalProperties": false}),
    )
}

/// An object with one truth value.
fn one_field(name: &str) -> Value {
    let properties = json!({name: {"type": "boolean"}});
    json!({"type": "object", "properties": properties, "required": [name], "additionalProperties": false})
}

struct Scene {
    tools: Vec<ToolDefinition>,
    format: &'static str,
    reasoning: &'static str,
}

const PLAIN: Scene = Scene { tools: Vec::new(), format: "hermes", reasoning: "none" };

impl Scene {
    fn surroundings(&self) -> Surroundings<'_> {
        let (tool_format, reasoning) = (self.format.parse().unwrap(), self.reasoning.parse().unwrap());
        Surroundings { tools: &self.tools, tool_format, reasoning }
    }

    fn compile(&self, constraint: &Constraint) -> Result<Compiled, Uncompilable> {
        grammars().compile(constraint, &self.surroundings())
    }

    fn guide(&self, constraint: &Constraint, starts_inside: Option<bool>) -> Guide {
        self.compile(constraint).unwrap().guide(starts_inside)
    }

    fn takes(&self, constraint: &Constraint, answer: &str) -> bool {
        takes(&mut self.guide(constraint, None), answer)
    }
}

/// Whether an answer may be this text as a whole.
fn takes(guide: &mut Guide, answer: &str) -> bool {
    for token in answer.bytes().map(u32::from) {
        let allowed = guide.mask().unwrap().is_none_or(|mask| mask.is_allowed(token));
        if !allowed || guide.accept(token).is_err() {
            return false;
        }
    }
    guide.mask().unwrap().is_none_or(|mask| mask.is_allowed(END))
}

#[test]
fn an_answer_follows_its_schema() {
    let constraint = schema(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    }));
    for right in [r#"{"name": "Ada", "age": 36}"#, r#"{"name": "", "age": 0, "tags": ["a", "b"]}"#] {
        assert!(PLAIN.takes(&constraint, right), "{right}");
    }
    for wrong in [
        "",
        "{}",
        r#"{"name": "Ada"}"#,
        r#"{"name": "Ada", "age": -1}"#,
        r#"{"name": "Ada", "age": 36"#,
        r#"{"name": "Ada", "age": 36, "tags": ["c"]}"#,
        r#"{"name": "Ada", "age": 36} "#,
        "Sure! {",
    ] {
        assert!(!PLAIN.takes(&constraint, wrong), "{wrong}");
    }
}

#[test]
fn behind_a_complete_answer_only_its_end_is_allowed() {
    let mut guide = PLAIN.guide(&text(TextRule::Choice { texts: vec!["yes".to_owned(), "no".to_owned()] }), None);
    for token in b"no" {
        guide.accept(u32::from(*token)).unwrap();
    }
    let mask = guide.mask().unwrap().unwrap();
    let allowed: Vec<u32> = (0..=258).filter(|token| mask.is_allowed(*token)).collect();
    assert_eq!(allowed, [257, 258], "the ends of generation");
}

#[test]
fn an_answer_follows_an_expression_a_choice_and_a_grammar() {
    let regex = text(TextRule::Regex { pattern: "[0-9]{4}-[0-9]{2}".to_owned() });
    assert!(PLAIN.takes(&regex, "2026-11") && !PLAIN.takes(&regex, "2026-1") && !PLAIN.takes(&regex, "2026-111"));
    let choice = text(TextRule::Choice { texts: vec!["a \"b\"".to_owned(), "a\n".to_owned()] });
    assert!(PLAIN.takes(&choice, "a \"b\"") && PLAIN.takes(&choice, "a\n") && !PLAIN.takes(&choice, "a "));
    let grammar = "start: sum\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/\n".to_owned();
    let lark = text(TextRule::Lark { grammar });
    assert!(PLAIN.takes(&lark, "1+22+3") && !PLAIN.takes(&lark, "1+") && !PLAIN.takes(&lark, "+1"));
}

#[test]
fn dates_and_times_are_valid_ones() {
    let formatted = |format: &str| schema(json!({"type": "string", "format": format}));
    assert!(PLAIN.takes(&formatted("date-time"), "\"2026-11-30T23:59:59.5+01:00\""));
    for wrong in ["2026-02-30T00:00:00Z", "2026-11-31T00:00:00Z", "2026-11-30T23:59:60Z", "2026-11-30 10:00:00Z"] {
        assert!(!PLAIN.takes(&formatted("date-time"), &format!("\"{wrong}\"")), "{wrong}");
    }
    assert!(PLAIN.takes(&formatted("date"), "\"2026-02-28\"") && !PLAIN.takes(&formatted("date"), "\"2026-13-01\""));
    assert!(PLAIN.takes(&formatted("time"), "\"08:30:00Z\"") && !PLAIN.takes(&formatted("time"), "\"24:00:00Z\""));
    // A property may be called like a keyword, and data may look like a schema.
    let data = schema(json!({"const": {"format": "date"}}));
    assert!(PLAIN.takes(&data, "{\"format\": \"date\"}"));
}

#[test]
fn a_call_that_must_be_made_is_in_the_models_form_with_arguments_of_its_schema() {
    let constraint = Constraint { text: TextRule::Nothing, calls: Some(call_rule(&["weather"], true)), at: None };
    let hermes = Scene { tools: vec![weather()], ..PLAIN };
    let one = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";
    assert!(hermes.takes(&constraint, one));
    assert!(hermes.takes(&constraint, &format!("{one}\n{one}")));
    for wrong in [
        "Bern is nice.",
        "",
        "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>",
    ] {
        assert!(!hermes.takes(&constraint, wrong), "{wrong}");
    }
    let single = Constraint { text: TextRule::Nothing, calls: Some(call_rule(&["weather"], false)), at: None };
    assert!(hermes.takes(&single, one) && !hermes.takes(&single, &format!("{one}\n{one}")));
}

/// Follows a guide, choosing a token of each mask, until it ends.
fn walk(guide: &mut Guide, mut choose: impl FnMut(&[u8], &TokenSet) -> u32) -> String {
    let mut bytes = Vec::new();
    for _ in 0..2_000 {
        let mask = guide.mask().unwrap().unwrap();
        let token = choose(&bytes, &mask);
        if token == END {
            return String::from_utf8(bytes).unwrap();
        }
        assert!(mask.is_allowed(token));
        bytes.push(token as u8);
        guide.accept(token).unwrap();
    }
    panic!("no end: {:?}", String::from_utf8_lossy(&bytes));
}

#[test]
fn text_of_a_form_or_a_call() {
    let answer = TextRule::JsonSchema { schema: one_field("ok") };
    let constraint = Constraint { text: answer, calls: Some(call_rule(&["weather"], true)), at: None };
    let scene = Scene { tools: vec![weather()], ..PLAIN };
    assert!(scene.takes(&constraint, r#"{"ok": true}"#));
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}\n</tool_call>";
    assert!(scene.takes(&constraint, call));
    assert!(!scene.takes(&constraint, "Let me see."));
}

#[test]
fn strict_calls_may_stand_in_any_text() {
    let constraint = Constraint { text: TextRule::Any, calls: Some(call_rule(&["weather"], true)), at: None };
    let scene = Scene { tools: vec![weather()], ..PLAIN };
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";
    for right in [
        "",
        "Just text < with <tool and {braces}.",
        call,
        &format!("Let me see.\n{call}"),
        &format!("{call}\n{call}\nDone."),
    ] {
        assert!(scene.takes(&constraint, right), "{right}");
    }
    let single = Constraint { text: TextRule::Any, calls: Some(call_rule(&["weather"], false)), at: None };
    assert!(scene.takes(&single, &format!("Let me see.\n{call}\nDone.")));
    assert!(!scene.takes(&single, &format!("{call}\n{call}")));
    let wrong = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\"";
    assert!(!scene.takes(&constraint, wrong));
}

#[test]
fn the_constraint_holds_behind_the_reasoning() {
    let constraint = schema(json!({"type": "object", "properties": {}, "additionalProperties": false}));
    let thinker = Scene { reasoning: "qwen3", ..PLAIN };
    let mut inside = thinker.guide(&constraint, Some(true));
    assert!(!takes(&mut inside.clone(), "I think </thin"), "an answer that only reasons has no form");
    assert!(takes(&mut inside.clone(), "hm {</think>\n\n{}") || takes(&mut inside.clone(), "hm {</think>\n{}"));
    assert!(!takes(&mut inside, "hm {</think>hello"));
    // The prompt says that it is over; or the answer does not begin with it.
    for starts in [Some(false), None] {
        let mut guide = thinker.guide(&constraint, starts);
        assert!(takes(&mut guide.clone(), "{}") && !takes(&mut guide, "x"), "{starts:?}");
    }
    let always = Scene { reasoning: "deepseek_r1", ..PLAIN };
    assert!(takes(&mut always.guide(&constraint, None), "so</think>{}"));
    assert!(!takes(&mut always.guide(&constraint, None), "so</think>no"));
}

/// A tokenizer of all bytes, then these control tokens, the last of which ends answers, then these syllables.
fn tokenizer(control: &[&str], syllables: &[&str]) -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut kinds = vec![6; tokens.len()];
    for (texts, kind) in [(control, 3), (syllables, 1)] {
        tokens.extend(texts.iter().map(|text| (*text).to_owned()));
        kinds.extend(texts.iter().map(|_| kind));
    }
    let file = Writer::new()
        .entry("tokenizer.ggml.model", gguf::Value::String("llama".to_owned()))
        .entry("tokenizer.ggml.scores", gguf::Value::Array(Array::F32(vec![0.0; tokens.len()])))
        .entry("tokenizer.ggml.tokens", gguf::Value::Array(Array::String(tokens)))
        .entry("tokenizer.ggml.token_type", gguf::Value::Array(Array::I32(kinds)))
        .entry("tokenizer.ggml.eos_token_id", gguf::Value::U32(255 + control.len() as u32))
        .finish();
    Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap()
}

#[test]
fn no_token_of_the_reasoning_reaches_into_the_answer_or_opens_a_call() {
    let syllables = [">{", "<tool", "_call>", "x<tool_call>", "</think>{"];
    let grammars = Grammars::new(Arc::new(tokenizer(&["<tool_call>", "</s>"], &syllables)));
    let [control, closes_and_more, begins_call, ends_call, has_call, has_close] = [256, 258, 259, 260, 261, 262];
    let thinker = Scene { reasoning: "nemotron_v3", ..PLAIN };
    let compiled = grammars.compile(&schema(one_field("ok")), &thinker.surroundings()).unwrap();
    let allows = |guide: &mut Guide, token: u32| guide.mask().unwrap().unwrap().is_allowed(token);
    let mut guide = compiled.guide(None);
    for token in [control, has_call, has_close] {
        assert!(!allows(&mut guide, token), "{token}");
    }
    assert!(allows(&mut guide, closes_and_more) && allows(&mut guide, ends_call));
    guide.accept(begins_call).unwrap();
    assert!(!allows(&mut guide, ends_call) && allows(&mut guide, u32::from(b'_')));
    for token in b"</think".map(u32::from) {
        guide.accept(token).unwrap();
    }
    assert!(!allows(&mut guide, closes_and_more) && allows(&mut guide, u32::from(b'>')));
    guide.accept(u32::from(b'>')).unwrap();
    assert!(allows(&mut guide, u32::from(b'{')) && !allows(&mut guide, u32::from(b'x')));
    // Of a format whose reasoning no call ends, its mark is a word like any other.
    let other = Scene { reasoning: "deepseek_r1", ..PLAIN };
    let compiled = grammars.compile(&schema(one_field("ok")), &other.surroundings()).unwrap();
    assert!(allows(&mut compiled.guide(None), control));
}

#[test]
fn what_is_certain_is_known_ahead() {
    let constraint = schema(one_field("answer"));
    let mut guide = PLAIN.guide(&constraint, None);
    let forced: Vec<u8> = guide.forced().iter().map(|token| *token as u8).collect();
    assert_eq!(String::from_utf8(forced).unwrap(), "{\"answer\": ");
    for token in b"{\"answer\": t" {
        assert!(guide.mask().unwrap().unwrap().is_allowed(u32::from(*token)));
        guide.accept(u32::from(*token)).unwrap();
    }
    let forced: Vec<u8> = guide.forced().iter().map(|token| *token as u8).collect();
    assert_eq!(String::from_utf8(forced).unwrap(), "rue}");
}

#[test]
fn what_cannot_be_held_to_is_refused_with_its_keyword() {
    for (wrong, word) in [
        (json!({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}), "not"),
        (json!({"type": "string", "pattern": "(["}), "["),
        (json!({"allOf": [{"type": "string"}, {"type": "integer"}]}), "nsatisfiable"),
    ] {
        let error = PLAIN.compile(&schema(wrong.clone())).unwrap_err().0;
        assert!(error.contains(word), "{wrong}: {error}");
    }
    assert!(PLAIN.compile(&text(TextRule::Regex { pattern: "a(".to_owned() })).is_err());
    assert!(PLAIN.compile(&text(TextRule::Lark { grammar: "start: missing".to_owned() })).is_err());
    let unknown = Constraint { text: TextRule::Nothing, calls: Some(call_rule(&["other"], true)), at: None };
    assert_eq!(PLAIN.compile(&unknown).unwrap_err().0, "no tool is called \"other\"");
}

#[test]
fn what_is_seen_to_be_wrong_with_a_schema_is_refused_with_its_keyword_and_its_place() {
    for (wrong, keyword) in [
        (json!({"type": "nothing"}), "type"),
        (json!({"type": ["string", "nothing"]}), "type"),
        (json!({"$ref": "#/$defs/missing"}), "$ref"),
        (json!({"$ref": "https://example.com/schema.json"}), "$ref"),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), "minimum"),
        (json!({"type": "string", "minLength": 3, "maxLength": 2}), "minLength"),
        (json!({"type": "array", "minItems": 3, "maxItems": 2}), "minItems"),
        (json!({"type": "object", "minProperties": 3, "maxProperties": 2}), "minProperties"),
    ] {
        let in_list = json!({"anyOf": [{"type": "null"}, wrong]});
        let nested = json!({"type": "object", "properties": {"a/b": {"type": "array", "items": wrong}}});
        let defined = json!({"$defs": {"type": wrong}, "type": "null"});
        for (whole, place) in [
            (wrong.clone(), "#"),
            (in_list, "#/anyOf/1"),
            (nested, "#/properties/a~1b/items"),
            (defined, "#/$defs/type"),
        ] {
            let error = PLAIN.compile(&schema(whole.clone())).unwrap_err();
            assert!(error.0.starts_with(keyword), "{whole}: {error}");
            assert!(error.0.ends_with(&format!(", at {place}/{keyword}")), "{whole}: {error}");
            let rule = Constraint { text: TextRule::Nothing, calls: Some(call_rule(&["f"], false)), at: None };
            for format in ["hermes", "qwen3_coder", "gemma4"] {
                let scene = Scene { tools: vec![tool("f", whole.clone())], format, ..PLAIN };
                assert_eq!(scene.compile(&rule).unwrap_err(), error, "{format}");
            }
        }
        // Data and names of the client's are no keywords.
        let named = json!({"type": "object", "properties": {"type": {"type": "string"}, "$ref": {"const": wrong}}});
        assert_eq!(fault(&named), None);
    }
}

#[test]
fn a_choice_may_be_among_many() {
    let texts: Vec<String> = (0..9_000).map(|index| format!("c{index}")).collect();
    let choice = text(TextRule::Choice { texts });
    assert!(PLAIN.takes(&choice, "c8999") && !PLAIN.takes(&choice, "c9000"));
}

#[test]
fn one_answer_uses_up_nothing_that_another_needs() {
    let grammars = grammars();
    let scene = PLAIN;
    let pattern = text(TextRule::Regex { pattern: "(.*a){9}(.*b){9}[^x]{40}".to_owned() });
    let mut spent = grammars.compile(&pattern, &scene.surroundings()).unwrap().guide(None);
    for index in 0..4_000_u32 {
        let token = 97 + index * index % 26;
        if spent.mask().is_err() || spent.accept(token).is_err() {
            break;
        }
    }
    let mut fresh = grammars.compile(&pattern, &scene.surroundings()).unwrap().guide(None);
    assert!(fresh.mask().unwrap().is_some());
    fresh.accept(97).unwrap();
    assert!(fresh.mask().unwrap().is_some());
}

#[test]
fn reasoning_is_not_the_end_of_an_answer() {
    let constraint = schema(one_field("ok"));
    let thinker = Scene { reasoning: "qwen3", ..PLAIN };
    let mut guide = thinker.guide(&constraint, Some(true));
    let mask = guide.mask().unwrap().unwrap();
    assert!(!mask.is_allowed(END) && mask.is_allowed(97));
}

#[test]
fn a_long_text_that_is_certain_is_followed_to_its_end() {
    let word: String = (0..4_000_u32).map(|index| char::from(97 + (index * index % 26) as u8)).collect();
    let constraint = schema(json!({"const": word}));
    let mut guide = PLAIN.guide(&constraint, None);
    let mut said = String::new();
    loop {
        let forced = guide.forced();
        let mask = guide.mask().unwrap().unwrap();
        if mask.is_allowed(END) {
            break;
        }
        assert!(mask.is_allowed(forced[0]));
        said.push(char::from(forced[0] as u8));
        guide.accept(forced[0]).unwrap();
    }
    assert_eq!(said, format!("\"{word}\""));
}

#[test]
fn what_a_form_allows_has_the_version_of_the_library_that_says_it() {
    let lock = include_str!("../../../Cargo.lock");
    let version = lock.split_once("name = \"llguidance\"\nversion = \"").unwrap().1.split_once('"').unwrap().0;
    let ours = FORMS_VERSION.strip_prefix(version).and_then(|rest| rest.strip_prefix('.'));
    assert!(ours.is_some_and(|number| number.parse::<u32>().is_ok()), "{version} in Cargo.lock, {FORMS_VERSION} here");
}

#[test]
fn a_constraint_that_was_compiled_is_found_again() {
    let grammars = grammars();
    let constraint = schema(json!({"type": "object"}));
    let scene = PLAIN;
    let surroundings = scene.surroundings();
    for _ in 0..3 {
        grammars.compile(&constraint, &surroundings).unwrap();
    }
    assert_eq!(grammars.workshop.kept.count(), 1);
    for index in 0..2 * KEPT_MAX {
        let choice = text(TextRule::Choice { texts: vec![index.to_string()] });
        grammars.compile(&choice, &surroundings).unwrap();
    }
    assert_eq!(grammars.workshop.kept.count(), KEPT_MAX);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 40, ..Default::default() })]

    /// However a model chooses among what is allowed, the answer is JSON of the schema.
    #[test]
    fn whatever_is_chosen_the_answer_is_json(choices in proptest::collection::vec(proptest::num::u8::ANY, 400)) {
        let constraint = schema(json!({
            "type": "object",
            "properties": {
                "id": {"type": "integer"}, "name": {"type": "string", "maxLength": 12},
                "tags": {"type": "array", "items": {"type": "string", "enum": ["x", "y z"]}, "maxItems": 3},
                "next": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
            },
            "required": ["id", "name", "tags", "next"],
            "additionalProperties": false,
        }));
        let mut choices = choices.into_iter();
        let mut guide = PLAIN.guide(&constraint, None);
        let said = walk(&mut guide, |_, mask| {
            let allowed: Vec<u32> = (0..=END).filter(|token| mask.is_allowed(*token)).collect();
            // Behind the drawn choices, whatever ends soonest: quotes and closing marks.
            match choices.next() {
                Some(choice) => allowed[choice as usize % allowed.len()],
                None => *allowed.iter().find(|token| [34, 44, 93, 125, END].contains(token)).unwrap_or(&allowed[0]),
            }
        });
        let value: Value = serde_json::from_str(&said).unwrap();
        proptest::prop_assert!(value["id"].is_i64() || value["id"].is_u64() || value["id"].is_f64());
        proptest::prop_assert!(value["name"].as_str().is_some_and(|name| name.chars().count() <= 12));
        proptest::prop_assert!(value["tags"].as_array().is_some_and(|tags| tags.len() <= 3));
        proptest::prop_assert!(value["next"].is_null() || value["next"].is_boolean());
    }
}
