//! Calls as rules: in the family's own form, as far as that can say what a tool's schema asks for; else in another
//! that its reader reads. Must never allow a call that its tool does not take.

use llguidance::api::GrammarWithLexer;
use serde_json::{Map, Value, json};

use super::rules::{Rules, json_schema, quoted};
use super::{Uncompilable, bounds};
use crate::engine::settings::{CallRule, Callable, INPUT, InputRule};
use crate::engine::tokenizer::Segment;
use crate::parse::{BARE_CALL, CallPart, Each, ToolFormat, Writing};
use crate::prompt::ToolDefinition;

/// A tool that may be called, and what its arguments must be.
struct Tool<'a> {
    name: &'a str,
    wants: Wants<'a>,
}

enum Wants<'a> {
    /// Any arguments.
    Anything,
    /// Those of its schema.
    Schema(&'a Value),
    /// One text.
    Input(&'a InputRule),
}

/// An argument that stands for itself.
struct Argument<'a> {
    key: &'a str,
    is_required: bool,
    value: Told<'a>,
}

/// What may be said for an argument.
enum Told<'a> {
    /// Any text.
    Text,
    /// A text of a rule.
    Input(&'a InputRule),
    /// One of these words, as they are, which stand for values of this type.
    Words(Vec<&'a str>, &'a str),
    /// JSON of the schema, of this type.
    Json(&'a Value, &'a str),
    /// The same as a JSON string.
    JsonText(Value),
}

/// A way to write the calls of a tool.
type Way = &'static [CallPart];

impl Rules<'_> {
    /// Adds the rule `calls`, and `behind`: a first call behind the opening text. Gives the form that they are in.
    pub(super) fn calls(
        &mut self,
        writing: &'static Writing,
        rule: &CallRule,
        tools: &[ToolDefinition],
    ) -> Result<&'static Writing, Uncompilable> {
        let tools: Vec<Tool<'_>> = rule.tools.iter().map(|callable| tool(callable, tools)).collect::<Result<_, _>>()?;
        for tool in &tools {
            // As a whole: an argument by itself would have another place.
            if let Wants::Schema(parameters) = tool.wants {
                bounds::schema(parameters)?;
            }
        }
        let (writing, ways) = form_for(writing, &tools);
        let mut calls = Vec::with_capacity(tools.len());
        for (number, (tool, way)) in tools.iter().zip(ways).enumerate() {
            calls.push(self.call(number, tool, way)?);
        }
        self.rule("one", &calls.join(" | "));
        let [open, begin, between, close] =
            [writing.open, writing.begin, writing.between, writing.close].map(|text| self.literal(text));
        let more = if rule.several && writing.several { format!(" ({between} {begin} one)*") } else { String::new() };
        self.rule("behind", &format!("one{more} {close}"));
        self.rule("calls", &format!("{open} {begin} behind"));
        Ok(writing)
    }

    /// A call behind its beginning.
    fn call(&mut self, number: usize, tool: &Tool<'_>, way: Way) -> Result<String, Uncompilable> {
        let mut said = Vec::with_capacity(way.len());
        for part in way {
            said.push(match part {
                CallPart::Text(text) => self.literal(text),
                CallPart::Name => quoted(tool.name),
                CallPart::QuotedName => quoted(&quoted(tool.name)),
                CallPart::Number => "/[0-9]+/".to_owned(),
                CallPart::Object => {
                    let arguments = GrammarWithLexer::from_json_schema(json_schema(&object(&tool.wants))?);
                    format!("@{}", self.part(&format!("arguments_{number}"), arguments))
                }
                CallPart::Each(each) => self.each(number, tool, each)?,
            });
        }
        Ok(said.join(" "))
    }

    /// The arguments one behind the other.
    fn each(&mut self, number: usize, tool: &Tool<'_>, each: &Each) -> Result<String, Uncompilable> {
        let Some(arguments) = arguments(&tool.wants, each) else {
            return Ok(self.any_arguments(number, each));
        };
        let between = self.literal(each.between);
        // From the last to the first: what may follow if one stood before, and if none did.
        let (mut behind_one, mut first) = (String::new(), String::new());
        for (place, argument) in arguments.iter().enumerate().rev() {
            let said = self.argument(&format!("{number}_{place}"), argument, each)?;
            let names = [format!("more_{number}_{place}"), format!("first_{number}_{place}")];
            let or = |rest: &str, said: String| match rest {
                _ if argument.is_required => said,
                "" => format!("({said})?"),
                rest => format!("({said}) | {rest}"),
            };
            self.rule(&names[0], &or(&behind_one, format!("{between} {said} {behind_one}")));
            self.rule(&names[1], &or(&first, format!("{said} {behind_one}")));
            [behind_one, first] = names;
        }
        Ok(first)
    }

    /// Arguments of any names, as texts: the reader knows their types.
    fn any_arguments(&mut self, number: usize, each: &Each) -> String {
        let [before, behind] = each.text;
        let (in_front, before) = before.split_once("$key").unwrap_or((before, ""));
        let value = self.raw(&format!("any_{number}"), "/(.|\\n)*/", behind);
        let one = format!("{} /[A-Za-z_][A-Za-z0-9_]*/ {} {value}", self.literal(in_front), self.literal(before));
        let between = self.literal(each.between);
        let name = format!("any_arguments_{number}");
        self.rule(&name, &format!("({one} ({between} {one})*)?"));
        name
    }

    fn argument(&mut self, name: &str, argument: &Argument<'_>, each: &Each) -> Result<String, Uncompilable> {
        let kind = match argument.value {
            Told::Json(_, kind) | Told::Words(_, kind) => kind,
            Told::Text | Told::Input(_) | Told::JsonText(_) => "string",
        };
        let texts = if kind == "string" { each.text } else { each.other };
        let [before, behind] = texts.map(|text| text.replace("$key", argument.key).replace("$kind", kind));
        let value = match &argument.value {
            Told::Text => self.raw(name, "/(.|\\n)*/", &behind),
            Told::Input(InputRule::Regex { pattern }) => {
                bounds::regex(pattern)?;
                self.raw(name, &format!("/({})/", escaped(pattern)), &behind)
            }
            Told::Input(InputRule::Lark { grammar }) => {
                bounds::lark(grammar)?;
                let input = self.part(&format!("input_{name}"), GrammarWithLexer::from_lark(grammar.clone()));
                format!("@{input} {}", self.literal(&behind))
            }
            Told::Words(words, _) => {
                let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
                format!("({}) {}", words.join(" | "), self.literal(&behind))
            }
            Told::Json(schema, _) => self.json(name, schema, &behind)?,
            Told::JsonText(schema) => self.json(name, schema, &behind)?,
        };
        Ok(format!("{} {value}", self.literal(&before)))
    }

    fn json(&mut self, name: &str, schema: &Value, behind: &str) -> Result<String, Uncompilable> {
        let value = self.part(&format!("value_{name}"), GrammarWithLexer::from_json_schema(json_schema(schema)?));
        Ok(format!("@{value} {}", self.literal(behind)))
    }

    /// A text of an expression, as it is, up to what stands behind it.
    fn raw(&mut self, name: &str, expression: &str, behind: &str) -> String {
        let rule = format!("text_{name}");
        match self.tokenizer.segments(behind).first() {
            // It ends in front of the first that comes.
            Some(Segment::Text(text)) => {
                let rest = self.literal(&behind[text.len()..]);
                self.rule(&format!("{rule}[suffix={}]", quoted(text)), expression);
                format!("{rule} {rest}")
            }
            // A control token is no text.
            Some(Segment::Control(_)) | None => {
                self.rule(&rule, expression);
                format!("{rule} {}", self.literal(behind))
            }
        }
    }

    /// The start of an answer of any text with calls in it. What is no call is nothing that is read as one.
    pub(super) fn calls_in_prose(&mut self, writing: &Writing, format: ToolFormat, several: bool) -> String {
        let (first, later) = self.prose(format);
        if writing.unmarked {
            // Without a mark a call is the whole answer.
            return format!("{first}? | calls");
        }
        let opening = [writing.open, writing.begin].concat();
        if let Some(Segment::Control(_)) = self.tokenizer.segments(&opening).first() {
            // A control token is no text: where it comes, a call begins.
            let times = if several { "*" } else { "?" };
            return format!("{first} (calls {later}){times}");
        }
        // Its mark in ordinary tokens; what follows it is forced.
        let marker = format.openings().iter().find(|marker| opening.starts_with(**marker)).map_or(0, |it| it.len());
        let is_word = opening[..marker].ends_with(char::is_alphanumeric);
        let end =
            if is_word { opening[marker..].find('[').map_or(opening.len(), |at| marker + at + 1) } else { marker };
        let (mark, rest) = opening.split_at(end);
        let rest = self.literal(rest);
        for (name, text) in [("until_first", first), ("until_next", later)] {
            self.rule(&format!("{name}[suffix={}]", quoted(mark)), text);
        }
        let more = if several { format!("(until_next {rest} behind)*") } else { String::new() };
        format!("{first}? | until_first {rest} behind {more} {later}?")
    }

    /// The start of an answer of any text without calls in it.
    pub(super) fn prose_alone(&mut self, format: ToolFormat) -> String {
        format!("{}?", self.prose(format).0)
    }

    /// Adds the texts that may be said in front of the first call, and behind one.
    fn prose(&mut self, format: ToolFormat) -> (&'static str, &'static str) {
        self.rule("ANY", "/(.|\\n)*/");
        let mut later = "ANY".to_owned();
        // In control tokens it is no text.
        let is_text = |marker: &&&str| !matches!(self.tokenizer.segments(marker)[..], [Segment::Control(_), ..]);
        let openings: Vec<String> = format.openings().iter().filter(is_text).map(|marker| opened(marker)).collect();
        if !openings.is_empty() {
            self.rule("OPENED", &format!("ANY ({}) ANY", openings.join(" | ")));
            later.push_str(" & ~OPENED");
        }
        let mut first = later.clone();
        if let Some(own) = format.bare() {
            let own = own.iter().map(|byte| format!(" | {}", quoted(&char::from(*byte).to_string())));
            let begins = format!("\"{{\" | {FENCED_OBJECT}{}", own.collect::<String>());
            self.rule("BARE", &format!("{SPACE} ({begins}) ANY"));
            first.push_str(" & ~BARE");
        }
        self.rule("FIRST", &first);
        self.rule("LATER", &later);
        ("FIRST", "LATER")
    }
}

/// White space.
const SPACE: &str = "/[ \\t\\n\\r\\f]*/";
/// The beginning of an object in a fence that may be one of a call.
const FENCED_OBJECT: &str = "/```(?i:json|tool_call)?[ \\t\\r\\f]*\\n[ \\t\\n\\r\\f]*\\{/";

/// A marker as it opens a call; one that is a word is also used as such.
fn opened(marker: &str) -> String {
    let objects = if marker.ends_with(char::is_alphanumeric) { format!(" {SPACE} /[\\[{{]/") } else { String::new() };
    format!("{}{objects}", quoted(marker))
}

/// An expression between two slashes.
fn escaped(pattern: &str) -> String {
    let mut escaped = String::with_capacity(pattern.len());
    let mut is_escaped = false;
    for character in pattern.chars() {
        match character {
            '/' if !is_escaped => escaped.push_str("\\/"),
            '\n' => escaped.push_str(if is_escaped { "n" } else { "\\n" }),
            character => escaped.push(character),
        }
        is_escaped = character == '\\' && !is_escaped;
    }
    escaped
}

fn tool<'a>(callable: &'a Callable, tools: &'a [ToolDefinition]) -> Result<Tool<'a>, Uncompilable> {
    let Callable { name, by_schema, input } = callable;
    let declared = tools.iter().find(|tool| tool.name == *name);
    let declared = declared.ok_or_else(|| Uncompilable(format!("no tool is called {name:?}")))?;
    let wants = match input {
        Some(input) => Wants::Input(input),
        None if *by_schema => Wants::Schema(&declared.parameters),
        None => Wants::Anything,
    };
    Ok(Tool { name, wants })
}

/// The form for all of these tools, and for each the first way that can say what it wants. A JSON object says every
/// schema.
fn form_for(writing: &'static Writing, tools: &[Tool<'_>]) -> (&'static Writing, Vec<Way>) {
    let way = |tool: &Tool<'_>| {
        let exact = writing.ways.iter().copied().find(|way| can_say(way, tool));
        // In JSON a text of a grammar is any text.
        exact.or_else(|| writing.ways.iter().copied().find(|way| is_object(way) && has_grammar(tool)))
    };
    match tools.iter().map(way).collect() {
        Some(ways) => (writing, ways),
        None => (&BARE_CALL, tools.iter().map(|_| BARE_CALL.ways[0]).collect()),
    }
}

/// The tools whose Lark grammar is only told to the model, with that: in the form that these calls are made in, which
/// is JSON, a text of a grammar is any text.
pub fn only_told<'a>(
    writing: &'static Writing,
    rule: &'a CallRule,
    tools: &'a [ToolDefinition],
) -> Vec<(&'a str, &'a str)> {
    let tools: Vec<Tool<'a>> = rule.tools.iter().filter_map(|callable| tool(callable, tools).ok()).collect();
    let (_, ways) = form_for(writing, &tools);
    let in_json = tools.iter().zip(ways).filter(|(_, way)| is_object(way));
    let told = in_json.filter_map(|(tool, _)| match tool.wants {
        Wants::Input(InputRule::Lark { grammar }) => Some((tool.name, grammar.as_str())),
        _ => None,
    });
    told.collect()
}

/// Whether calls may have to be written without a mark: there are schemas that no marked form of the family can say.
pub fn may_be_unmarked(writing: &Writing, rule: &CallRule) -> bool {
    let says_name = |part: &CallPart, name: &str| !matches!(part, CallPart::Name) || is_plain(name);
    let says_all = |way: &Way, name: &str| {
        is_object(way) && way.iter().all(|part| says_name(part, name) && !matches!(part, CallPart::Each(_)))
    };
    let is_marked = |callable: &Callable| writing.ways.iter().any(|way| says_all(way, &callable.name));
    writing.unmarked || !rule.tools.iter().all(is_marked)
}

fn is_object(way: Way) -> bool {
    way.iter().any(|part| matches!(part, CallPart::Object))
}

fn has_grammar(tool: &Tool<'_>) -> bool {
    matches!(tool.wants, Wants::Input(InputRule::Lark { .. }))
}

fn can_say(way: Way, tool: &Tool<'_>) -> bool {
    way.iter().all(|part| match part {
        CallPart::Text(_) | CallPart::QuotedName | CallPart::Number => true,
        CallPart::Name => is_plain(tool.name),
        CallPart::Object => !has_grammar(tool),
        CallPart::Each(each) => match tool.wants {
            // Of an argument of any name and type nothing around it can tell the type, nor its end repeat the name.
            Wants::Anything => each.is_raw && each.text == each.other && !each.text[1].contains('$'),
            _ => arguments(&tool.wants, each).is_some(),
        },
    })
}

/// Whether a name stands for itself wherever it is written.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|character| character.is_alphanumeric() || "_-.".contains(character))
}

/// The schema of all arguments as one object, whatever else it says.
fn object(wants: &Wants<'_>) -> Value {
    match wants {
        Wants::Anything => Value::Null,
        Wants::Input(rule) => {
            let text = match rule {
                InputRule::Regex { pattern } => pattern_schema(pattern),
                InputRule::Lark { .. } => json!({"type": "string"}),
            };
            let properties = json!({ INPUT: text });
            json!({"type": "object", "properties": properties, "required": [INPUT], "additionalProperties": false})
        }
        Wants::Schema(parameters) => match parameters.as_object().filter(|fields| !fields.is_empty()) {
            None => Value::Null,
            Some(fields) if fields.contains_key("type") || fields.contains_key("$ref") => (*parameters).clone(),
            Some(fields) => {
                let mut fields = fields.clone();
                fields.insert("type".to_owned(), "object".into());
                Value::Object(fields)
            }
        },
    }
}

fn pattern_schema(pattern: &str) -> Value {
    json!({"type": "string", "pattern": format!("^(?:{pattern})$")})
}

/// The arguments one by one, if they can be said so.
fn arguments<'a>(wants: &Wants<'a>, each: &Each) -> Option<Vec<Argument<'a>>> {
    match wants {
        Wants::Anything => None,
        Wants::Input(input) => {
            let value = match input {
                input if each.is_raw => Told::Input(input),
                InputRule::Regex { pattern } => Told::JsonText(pattern_schema(pattern)),
                InputRule::Lark { .. } => return None,
            };
            Some(vec![Argument { key: INPUT, is_required: true, value }])
        }
        Wants::Schema(schema) => of_schema(schema, each),
    }
}

/// Keywords of an object that say nothing beyond its properties.
const OF_OBJECTS: [&str; 8] =
    ["type", "properties", "required", "additionalProperties", "description", "title", "$schema", "default"];
/// Keywords that only tell.
const TELLING: [&str; 6] = ["description", "title", "default", "examples", "$comment", "deprecated"];

fn of_schema<'a>(schema: &'a Value, each: &Each) -> Option<Vec<Argument<'a>>> {
    let fields = schema.as_object()?;
    let is_object = fields.get("type").is_none_or(|kind| kind == "object");
    if !is_object || !fields.keys().all(|keyword| OF_OBJECTS.contains(&keyword.as_str())) {
        return None;
    }
    let required: Vec<&str> = match fields.get("required") {
        Some(names) => names.as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?,
        None => Vec::new(),
    };
    let properties = match fields.get("properties") {
        Some(properties) => properties.as_object()?,
        None => return required.is_empty().then(Vec::new),
    };
    if !required.iter().all(|name| properties.contains_key(*name)) {
        return None;
    }
    let argument = |(key, schema): (&'a String, &'a Value)| {
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let fits = if each.is_raw { is_plain(key) } else { !key.is_empty() && key.chars().all(is_word) };
        let value = told(schema.as_object().filter(|_| fits)?, schema, key, each)?;
        Some(Argument { key, is_required: required.contains(&key.as_str()), value })
    };
    properties.iter().map(argument).collect()
}

/// How a value of this schema is said, if it can be.
fn told<'a>(fields: &'a Map<String, Value>, schema: &'a Value, key: &str, each: &Each) -> Option<Told<'a>> {
    let says_only = |keywords: &[&str]| {
        fields.keys().all(|keyword| keywords.contains(&keyword.as_str()) || TELLING.contains(&keyword.as_str()))
    };
    let kind = match fields.get("type") {
        Some(kind) => Some(kind.as_str()?),
        None => None,
    };
    let one_of: Option<Vec<&str>> = match (fields.get("enum"), fields.get("const")) {
        (Some(values), None) => values.as_array()?.iter().map(Value::as_str).collect(),
        (None, Some(value)) => value.as_str().map(|value| vec![value]),
        _ => None,
    };
    let refers = || schema.to_string().contains("\"$ref\"");
    let [yes, no, nothing] = each.words;
    match kind {
        Some("string") if !each.is_raw => Some(Told::JsonText(schema.clone())),
        // A reader knows that it is a text by the schema's type.
        Some("string") => match one_of {
            Some(texts) if says_only(&["type", "enum", "const"]) => {
                let close = each.text[1].replace("$key", key);
                let ends = |text: &&str| text.is_empty() || text.contains(close.trim());
                (!texts.is_empty() && !texts.iter().any(ends)).then_some(Told::Words(texts, "string"))
            }
            None if says_only(&["type"]) => Some(Told::Text),
            _ => None,
        },
        Some("boolean") if says_only(&["type"]) => Some(Told::Words(vec![yes, no], "boolean")),
        Some("null") if says_only(&["type"]) => Some(Told::Words(vec![nothing], "null")),
        Some(kind @ ("integer" | "number")) => Some(Told::Json(schema, kind)),
        Some(kind @ ("array" | "object")) if each.nests_json && !refers() => Some(Told::Json(schema, kind)),
        _ => None,
    }
}
