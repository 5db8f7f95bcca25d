//! From a constraint to a grammar in the library's terms. Must never allow more than the constraint: what cannot be
//! said in a grammar is refused.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};

use super::{Surroundings, Uncompilable, bounds};
use crate::engine::settings::{Constraint, TextRule};
use crate::engine::tokenizer::{Segment, Tokenizer};
use crate::parse::BARE_CALL;

/// Any text.
const FREE: &str = "free: /(.|\\n)*/\n";

/// What a channel of gpt-oss says before it comes to its answer.
const ANALYSIS: [&str; 2] = ["<|channel|>analysis<|message|>", "<|end|><|start|>assistant"];
const FINAL: &str = "<|channel|>final<|message|>";

/// The grammar of a constraint.
pub(super) fn grammar(
    constraint: &Constraint,
    surroundings: &Surroundings<'_>,
    tokenizer: &Tokenizer,
) -> Result<TopLevelGrammar, Uncompilable> {
    let in_channels = surroundings.reasoning.name() == "gpt_oss";
    let text = text_grammar(&constraint.text)?;
    if constraint.calls.is_none() && !in_channels {
        let text = text.ok_or_else(|| Uncompilable("the constraint allows everything".to_owned()))?;
        return Ok(TopLevelGrammar::from_grammar(text));
    }
    let mut rules = Rules { lark: String::new(), parts: Vec::new(), tokenizer };
    // Of no tools there are no calls.
    let calls = constraint.calls.as_ref().filter(|calls| !calls.tools.is_empty());
    let writing = match calls {
        Some(calls) => rules.calls(surroundings.tool_format.writing(), calls, surroundings.tools)?,
        None => &BARE_CALL,
    };
    let says = match (&constraint.text, text) {
        (TextRule::Nothing, _) => None,
        (_, Some(text)) => Some(format!("@{}", rules.part("text", text))),
        (_, None) => Some("free".to_owned()),
    };
    let start = if in_channels {
        rules.lark.push_str(FREE);
        let says = says.map(|says| format!("{} {says}", rules.literal(FINAL)));
        let analysis = format!("{} free {}", rules.literal(ANALYSIS[0]), rules.literal(ANALYSIS[1]));
        format!("({analysis})? ({})", either(says, calls.map(|_| "calls".to_owned())))
    } else if constraint.text == TextRule::Any {
        match calls {
            Some(calls) => rules.calls_in_prose(writing, surroundings.tool_format, calls.several),
            None => rules.prose_alone(surroundings.tool_format),
        }
    } else {
        either(says, calls.map(|_| "calls".to_owned()))
    };
    let main = GrammarWithLexer {
        name: Some("answer".to_owned()),
        lark_grammar: Some(format!("start: {start}\n{}", rules.lark)),
        ..GrammarWithLexer::default()
    };
    let mut grammars = vec![main];
    grammars.extend(rules.parts);
    Ok(TopLevelGrammar { grammars, max_tokens: None })
}

/// A grammar by itself.
pub(super) fn lark(grammar: &str) -> Result<TopLevelGrammar, Uncompilable> {
    bounds::lark(grammar)?;
    Ok(TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(grammar.to_owned())))
}

fn either(one: Option<String>, other: Option<String>) -> String {
    one.into_iter().chain(other).collect::<Vec<_>>().join(" | ")
}

/// The grammar of a text alone; absent where it may be anything, or nothing.
fn text_grammar(rule: &TextRule) -> Result<Option<GrammarWithLexer>, Uncompilable> {
    Ok(match rule {
        TextRule::Any | TextRule::Nothing => None,
        TextRule::JsonSchema { schema } => Some(GrammarWithLexer::from_json_schema(json_schema(schema)?)),
        TextRule::Regex { pattern } => {
            bounds::regex(pattern)?;
            Some(GrammarWithLexer::from_regex(pattern))
        }
        TextRule::Lark { grammar } => {
            bounds::lark(grammar)?;
            Some(GrammarWithLexer::from_lark(grammar.clone()))
        }
        TextRule::Choice { texts } => {
            bounds::choice(texts)?;
            let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
            // One terminal: the library looks at a rule's alternatives one by one, and at a terminal's together.
            Some(GrammarWithLexer::from_lark(format!("start: CHOICE\nCHOICE: {}\n", texts.join(" | "))))
        }
    })
}

/// A schema with how its JSON is spaced: on one line, as `json.dumps` writes it. Models know that form, and a model
/// that may put any space anywhere can go on doing so for ever.
pub(super) fn json_schema(schema: &Value) -> Result<Value, Uncompilable> {
    bounds::schema(schema)?;
    let fields: Map<String, Value> = match schema {
        Value::Null => json!({"type": "object"}).as_object().cloned().unwrap_or_default(),
        Value::Object(fields) => fields.clone(),
        other => return Err(Uncompilable(format!("a schema must be an object, and this is {other}"))),
    };
    let spacing = json!({
        "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": false,
    });
    let mut schema = Value::Object(fields);
    narrow_formats(&mut schema);
    if let Value::Object(fields) = &mut schema {
        fields.insert("x-guidance".to_owned(), spacing);
    }
    Ok(schema)
}

/// A date and a time of day (RFC 3339, section 5.6), without what is only sometimes valid: leap days and seconds.
const DATE: &str =
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
const TIME: &str = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

/// Puts a pattern in place of each format that the library takes too widely, wherever there is no other pattern.
fn narrow_formats(schema: &mut Value) {
    match schema {
        Value::Array(values) => values.iter_mut().for_each(narrow_formats),
        Value::Object(fields) => {
            let pattern = match fields.get("format").and_then(Value::as_str) {
                Some("date") => Some(format!("^{DATE}$")),
                Some("time") => Some(format!("^{TIME}$")),
                Some("date-time") => Some(format!("^{DATE}T{TIME}$")),
                _ => None,
            };
            if let Some(pattern) = pattern.filter(|_| !fields.contains_key("pattern")) {
                fields.shift_remove("format");
                fields.insert("pattern".to_owned(), pattern.into());
            }
            for (name, value) in fields.iter_mut().filter(|(name, _)| !is_data(name)) {
                match value {
                    // Its keys are names of the client's, whatever they look like.
                    Value::Object(named) if names_schemas(name) => named.values_mut().for_each(narrow_formats),
                    value => narrow_formats(value),
                }
            }
        }
        _ => {}
    }
}

/// Whether what stands under this keyword is no schema but data.
fn is_data(keyword: &str) -> bool {
    matches!(keyword, "const" | "enum" | "default" | "examples")
}

/// Whether what stands under this keyword are schemas by names.
pub(super) fn names_schemas(keyword: &str) -> bool {
    matches!(keyword, "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas")
}

/// A string of the grammar's language.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A grammar as it grows.
pub(super) struct Rules<'a> {
    pub(super) lark: String,
    parts: Vec<GrammarWithLexer>,
    pub(super) tokenizer: &'a Tokenizer,
}

impl Rules<'_> {
    /// Adds a grammar that rules can name.
    pub(super) fn part(&mut self, name: &str, grammar: GrammarWithLexer) -> String {
        self.parts.push(GrammarWithLexer { name: Some(name.to_owned()), ..grammar });
        name.to_owned()
    }

    pub(super) fn rule(&mut self, name: &str, body: &str) {
        self.lark.extend([name, ": ", body, "\n"]);
    }

    /// A text of the family's form: its control tokens as such, the rest as text.
    pub(super) fn literal(&self, text: &str) -> String {
        let segments = self.tokenizer.segments(text);
        let parts = segments.iter().map(|segment| match segment {
            Segment::Control(id) => format!("<[{id}]>"),
            Segment::Text(text) => quoted(text),
        });
        parts.collect::<Vec<_>>().join(" ")
    }
}
