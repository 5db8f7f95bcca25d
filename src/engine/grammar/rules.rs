//! From a constraint to a grammar in the library's terms. Must never allow more than the constraint: what cannot be
//! said in a grammar is refused.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};

use super::{Surroundings, Uncompilable, bounds};
use crate::engine::settings::{CallRule, Callable, Constraint, TextRule};
use crate::engine::tokenizer::{Segment, Tokenizer};
use crate::parse::ToolFormat;
use crate::prompt::ToolDefinition;

/// How calls are written: `open call between call … close`, a call being its name among three texts.
struct Form {
    open: &'static str,
    /// In front of the name, between name and arguments, and behind those.
    call: [&'static str; 3],
    between: &'static str,
    close: &'static str,
    /// Whether the name is a JSON string.
    quoted: bool,
    /// Whether there can be several.
    several: bool,
}

/// A call object that is the whole answer: every model can write it, and every family's parser reads it.
const BARE: Form = Form {
    open: "",
    call: ["{\"name\": ", ", \"arguments\": ", "}"],
    between: "",
    close: "",
    quoted: true,
    several: false,
};

/// Call objects in a list.
const LISTED: Form = Form { between: ", ", several: true, ..BARE };

/// The form of a family, by its name.
fn form(family: &str) -> Form {
    match family {
        "hermes" | "qwen3_coder" => Form {
            call: ["<tool_call>\n{\"name\": ", ", \"arguments\": ", "}\n</tool_call>"],
            between: "\n",
            several: true,
            ..BARE
        },
        "llama3_json" => Form { call: ["{\"name\": ", ", \"parameters\": ", "}"], ..BARE },
        "nemotron_deci" => Form { open: "<TOOLCALL>[", close: "]</TOOLCALL>", ..LISTED },
        "mistral" => Form { open: "[TOOL_CALLS][", close: "]", ..LISTED },
        "phi4" => Form { open: "functools[", close: "]", ..LISTED },
        "jamba" => Form { open: "<tool_calls>[", close: "]</tool_calls>", ..LISTED },
        "deepseek_v3" => Form {
            open: "<｜tool▁calls▁begin｜>",
            call: ["<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"],
            between: "\n",
            close: "<｜tool▁calls▁end｜>",
            quoted: false,
            several: true,
        },
        "deepseek_v3_1" => Form {
            open: "<｜tool▁calls▁begin｜>",
            call: ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
            between: "",
            close: "<｜tool▁calls▁end｜>",
            quoted: false,
            several: true,
        },
        "harmony" => Form {
            open: "",
            call: ["<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "<|call|>"],
            between: "",
            close: "",
            quoted: false,
            several: false,
        },
        _ => BARE,
    }
}

/// Whether calls of a constrained answer have no mark in this format: its reader must take a bare object for a call.
pub fn calls_are_bare(format: ToolFormat) -> bool {
    is_bare(&form(format.name()))
}

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
    let family = surroundings.tool_format.name();
    let in_channels = surroundings.reasoning.name() == "gpt_oss";
    let text = text_grammar(&constraint.text)?;
    if constraint.calls.is_none() && !in_channels {
        let text = text.ok_or_else(|| Uncompilable("the constraint allows everything".to_owned()))?;
        return Ok(TopLevelGrammar::from_grammar(text));
    }
    let mut rules = Rules { lark: String::new(), parts: Vec::new(), tokenizer };
    let form = form(family);
    if let Some(calls) = &constraint.calls {
        rules.calls(&form, calls, surroundings.tools)?;
    }
    let says = match (&constraint.text, text) {
        (TextRule::Nothing, _) => None,
        (_, Some(text)) => Some(format!("@{}", rules.part("text", text))),
        (_, None) => Some("free".to_owned()),
    };
    let start = if in_channels {
        rules.lark.push_str(FREE);
        let says = says.map(|says| format!("{} {says}", rules.literal(FINAL)));
        let analysis = format!("{} free {}", rules.literal(ANALYSIS[0]), rules.literal(ANALYSIS[1]));
        format!("({analysis})? ({})", either(says, constraint.calls.as_ref().map(|_| "calls".to_owned())))
    } else if constraint.text == TextRule::Any {
        let several = constraint.calls.as_ref().is_some_and(|calls| calls.several);
        rules.calls_in_prose(&form, several)
    } else {
        either(says, Some("calls".to_owned()))
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
fn json_schema(schema: &Value) -> Result<Value, Uncompilable> {
    bounds::schema(schema)?;
    let fields: Map<String, Value> = match schema {
        Value::Null => json!({"type": "object"}).as_object().cloned().unwrap_or_default(),
        Value::Object(fields) => fields.clone(),
        other => return Err(Uncompilable(format!("a schema must be an object, and this is {other}"))),
    };
    let spacing = json!({
        "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": true,
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
fn names_schemas(keyword: &str) -> bool {
    matches!(keyword, "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas")
}

/// A string of the grammar's language.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A grammar as it grows.
struct Rules<'a> {
    lark: String,
    parts: Vec<GrammarWithLexer>,
    tokenizer: &'a Tokenizer,
}

impl Rules<'_> {
    /// Adds a grammar that rules can name.
    fn part(&mut self, name: &str, grammar: GrammarWithLexer) -> String {
        self.parts.push(GrammarWithLexer { name: Some(name.to_owned()), ..grammar });
        name.to_owned()
    }

    fn rule(&mut self, name: &str, body: &str) {
        self.lark.extend([name, ": ", body, "\n"]);
    }

    /// A text of the family's form: its control tokens as such, the rest as text.
    fn literal(&self, text: &str) -> String {
        let segments = self.tokenizer.segments(text);
        let parts = segments.iter().map(|segment| match segment {
            Segment::Control(id) => format!("<[{id}]>"),
            Segment::Text(text) => quoted(text),
        });
        parts.collect::<Vec<_>>().join(" ")
    }

    /// Adds the rule `calls`, and `behind`: a first call behind the opening text.
    fn calls(&mut self, form: &Form, rule: &CallRule, tools: &[ToolDefinition]) -> Result<(), Uncompilable> {
        let [before, between, behind] = form.call.map(|text| self.literal(text));
        let mut calls = Vec::with_capacity(rule.tools.len());
        for (number, Callable { name, by_schema }) in rule.tools.iter().enumerate() {
            let tool = tools.iter().find(|tool| tool.name == *name);
            let tool = tool.ok_or_else(|| Uncompilable(format!("no tool is called {name:?}")))?;
            let parameters = if *by_schema { &tool.parameters } else { &Value::Null };
            let arguments = GrammarWithLexer::from_json_schema(arguments_schema(parameters)?);
            let arguments = self.part(&format!("arguments_{number}"), arguments);
            let name = if form.quoted { quoted(&quoted(name)) } else { quoted(name) };
            calls.push(format!("{name} {between} @{arguments}"));
        }
        if calls.is_empty() {
            return Err(Uncompilable("there is no tool that may be called".to_owned()));
        }
        self.rule("one", &calls.join(" | "));
        let more = if rule.several && form.several {
            format!(" ({} {before} one {behind})*", self.literal(form.between))
        } else {
            String::new()
        };
        let (open, close) = (self.literal(form.open), self.literal(form.close));
        self.rule("behind", &format!("one {behind}{more} {close}"));
        self.rule("calls", &format!("{open} {before} behind"));
        Ok(())
    }

    /// The start of an answer of any text with calls in it.
    fn calls_in_prose(&mut self, form: &Form, several: bool) -> String {
        let opening = [form.open, form.call[0]].concat();
        let times = if several { "*" } else { "?" };
        self.lark.push_str(FREE);
        match self.tokenizer.segments(&opening).first() {
            // A control token is no text: where it comes, a call begins.
            Some(Segment::Control(_)) => format!("free (calls free){times}"),
            // Without a mark a call is the whole answer.
            _ if is_bare(form) => {
                self.lark.push_str("prose: /[^{](.|\\n)*/\n");
                "prose? | calls".to_owned()
            }
            _ => {
                // Its mark in ordinary tokens; what follows it is forced.
                let end = opening.find(['>', '[']).map_or(opening.len(), |end| end + 1);
                let (mark, rest) = opening.split_at(end);
                self.rule(&format!("until[suffix={}]", quoted(mark)), "/(.|\\n)*/");
                // What is no call has no mark in it; it would be read as one.
                let marked = mark.replace(['[', '(', '|'], ".");
                self.rule("TAIL", &format!("/(.|\\n)*/ & ~/(.|\\n)*{marked}(.|\\n)*/"));
                format!("(until {} behind){times} TAIL?", self.literal(rest))
            }
        }
    }
}

fn is_bare(form: &Form) -> bool {
    form.open.is_empty() && form.call[0] == BARE.call[0]
}

/// The schema of a tool's arguments: an object, whatever else it says.
fn arguments_schema(parameters: &Value) -> Result<Value, Uncompilable> {
    match parameters.as_object().filter(|fields| !fields.is_empty()) {
        None => json_schema(&Value::Null),
        Some(fields) if fields.contains_key("type") || fields.contains_key("$ref") => json_schema(parameters),
        Some(fields) => {
            let mut fields = fields.clone();
            fields.insert("type".to_owned(), "object".into());
            json_schema(&Value::Object(fields))
        }
    }
}
