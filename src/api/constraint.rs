//! What an answer must look like: from the wire's several ways of saying it to one constraint. A form that is not
//! understood is an error, never a free answer.

use serde_json::{Value, json};

use super::custom_tools;
use super::errors::invalid;
use super::tools::Noted;
use crate::conversation::{Reject, ResponseConfig, Toolbox};
use crate::engine::settings::{CallRule, Callable, Constraint, TextRule};
use crate::engine::{self, Medium, ModelInfo, Refused, Surroundings, Uncompilable, may_be_unmarked};
use crate::error::Code;
use crate::parse::ToolFormat;
use crate::protocol::sampling::GenerationParams;

/// A rule for text, and the field that it came from.
struct Said {
    rule: TextRule,
    at: String,
}

/// What the request says of the answer's form. `tools` are those that can be called.
pub(crate) fn constraint(
    params: &GenerationParams,
    tools: &Toolbox,
    model: &ModelInfo,
) -> Result<Option<Constraint>, Reject> {
    let said = text_rule(params)?;
    let (calls, must) = calls(params, tools, said.is_some())?;
    let constraint = match (said, calls) {
        (None, None) => return Ok(None),
        // Where a tool must be called there is no text to be bound.
        (Some(said), calls) if !must => Constraint { text: said.rule, calls, at: Some(said.at) },
        (_, calls) => {
            let text = if must { TextRule::Nothing } else { TextRule::Any };
            Constraint { text, calls, at: Some(calls_field(params)) }
        }
    };
    if model.medium == Medium::Messages {
        // Whoever answers holds to it as far as it can.
        return Ok(Some(constraint));
    }
    if model.grammars.is_none() {
        // Of strict tools an engine that cannot be held to anything does what it can, as it does of all tools.
        if constraint.text == TextRule::Any {
            return Ok(None);
        }
        let field = field(params);
        let text = format!("{field}: the engine of {} cannot hold its answers to a form; leave it out", model.id);
        return Err(invalid(field, text));
    }
    if let Some(calls) = constraint.calls.as_ref().filter(|_| model.tool_format == ToolFormat::NONE) {
        let is_held = |tool: &Callable| tool.by_schema || tool.input.is_some();
        // Nothing but the wish for one call at a time, of a model that makes none.
        if constraint.text == TextRule::Any && !calls.tools.iter().any(is_held) {
            return Ok(None);
        }
        let field = field(params);
        let text = format!("{field}: the answers of {} are not searched for calls", model.id);
        return Err(invalid(field, text));
    }
    Ok(Some(constraint))
}

/// Compiles the constraint of a response that is asked for, so that what cannot be done is refused and not begun.
/// Takes a core: not for async threads.
pub(crate) fn check(model: &ModelInfo, config: &ResponseConfig, params: &GenerationParams) -> Result<(), Reject> {
    let (Some(constraint), Some(grammars)) = (&config.constraint, &model.grammars) else { return Ok(()) };
    let tools = &config.known_tools();
    let surroundings = Surroundings { tools, tool_format: model.tool_format, reasoning: model.reasoning };
    grammars.compile_soon(constraint, &surroundings).map(|_| ()).map_err(|error| match error {
        Refused::Uncompilable(error) => refused(params, constraint, &error),
        Refused::Busy => Reject::new(Code::Overloaded, error.to_string()),
    })
}

/// The refusal, with the place of the keyword that it names, where that stands in a schema of the request.
fn refused(params: &GenerationParams, constraint: &Constraint, error: &Uncompilable) -> Reject {
    let keyword = quoted_keyword(&error.0);
    let place_in = |schema: &Value| keyword.and_then(|keyword| find(schema, keyword, false));
    // One that was found without compiling says its place itself.
    let is_in = |schema: &Value| engine::fault(schema).as_ref() == Some(error);
    let schema = match &constraint.text {
        TextRule::JsonSchema { schema } => Some(schema),
        _ => None,
    };
    let in_text = schema.and_then(place_in).map(|place| (field(params), Some(place)));
    let tools = params.tools.as_deref().unwrap_or_default();
    let held = || constraint.calls.iter().flat_map(|calls| &calls.tools);
    let by_schema = held().filter(|tool| tool.by_schema);
    let schemas: Vec<_> = by_schema.filter_map(|tool| custom_tools::schema_of(tools, &tool.name)).collect();
    let by_rule = held().filter(|tool| tool.input.is_some());
    let formats: Vec<_> = by_rule.filter_map(|tool| custom_tools::format_of(tools, &tool.name)).collect();
    let in_tool = || schemas.iter().find_map(|(at, schema)| Some((at.clone(), Some(place_in(schema)?))));
    // What names no keyword is about the only rule that there is, or about one of several.
    let only = || {
        let places: Vec<&String> = schemas.iter().map(|(at, _)| at).chain(&formats).collect();
        let [place] = places[..] else { return None };
        schema.is_none().then(|| (place.clone(), None))
    };
    let found = || schemas.iter().find(|(_, schema)| is_in(schema)).map(|(at, _)| (at.clone(), None));
    let (field, place) = in_text.or_else(in_tool).or_else(found).or_else(only).unwrap_or_else(|| (field(params), None));
    let at = place.map(|place| format!(", at {place}")).unwrap_or_default();
    invalid(field.clone(), format!("{field}: this cannot be enforced, change it or leave it out: {}{at}", error.0))
}

/// The first word that the library's message quotes as a keyword.
fn quoted_keyword(message: &str) -> Option<&str> {
    let begin = message.find("[\"")? + 2;
    let end = message[begin..].find('"')?;
    Some(&message[begin..begin + end])
}

/// Keywords whose members are called by whoever wrote the schema.
const NAMING: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// A pointer to the first place that has this keyword. Where `are_names`, the members are no keywords.
fn find(schema: &Value, keyword: &str, are_names: bool) -> Option<String> {
    let member = |name: &str, rest: &str| format!("#/{}{rest}", name.replace('~', "~0").replace('/', "~1"));
    match schema {
        Value::Object(fields) if !are_names && fields.contains_key(keyword) => Some(member(keyword, "")),
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let names = !are_names && NAMING.contains(&name.as_str());
            find(value, keyword, names).map(|rest| member(name, &rest[1..]))
        }),
        Value::Array(values) => values
            .iter()
            .enumerate()
            .find_map(|(index, value)| find(value, keyword, false).map(|rest| format!("#/{index}{}", &rest[1..]))),
        _ => None,
    }
}

/// The field that errors are about: where the text's rule came from, or else the choice of tools.
fn field(params: &GenerationParams) -> String {
    match text_rule(params) {
        Ok(Some(said)) => said.at,
        _ => calls_field(params),
    }
}

fn calls_field(params: &GenerationParams) -> String {
    let chosen = params.tool_choice.as_ref().is_some_and(|choice| !choice.is_null());
    if chosen { "tool_choice" } else { "tools" }.to_owned()
}

/// The one rule for text that the request has.
fn text_rule(params: &GenerationParams) -> Result<Option<Said>, Reject> {
    let mut said: Vec<Said> = Vec::new();
    said.extend(format_rule(params.response_format.as_ref(), "response_format")?);
    said.extend(format_rule(params.text.as_ref().and_then(|text| text.get("format")), "text.format")?);
    let outputs = params.structured_outputs.clone().unwrap_or_default();
    let (under, older) = ("structured_outputs.", "guided_");
    for (prefix, json, regex, choice, grammar) in [
        (under, outputs.json, outputs.regex, outputs.choice, outputs.grammar),
        (
            older,
            params.guided_json.clone(),
            params.guided_regex.clone(),
            params.guided_choice.clone(),
            params.guided_grammar.clone(),
        ),
    ] {
        let at = |name: &str| format!("{prefix}{name}");
        if let Some(schema) = json {
            said.push(Said { rule: TextRule::JsonSchema { schema: schema_of(schema, &at("json"))? }, at: at("json") });
        }
        said.extend(regex.map(|pattern| Said { rule: TextRule::Regex { pattern }, at: at("regex") }));
        said.extend(choice.map(|texts| Said { rule: TextRule::Choice { texts }, at: at("choice") }));
        said.extend(grammar.map(|grammar| Said { rule: TextRule::Lark { grammar }, at: at("grammar") }));
    }
    if outputs.structural_tag.is_some() {
        let at = "structured_outputs.structural_tag";
        return Err(invalid(at, format!("{at} is not supported by this version; use strict tools")));
    }
    if outputs.json_object == Some(true) {
        said.push(Said { rule: json_object(), at: at_object() });
    }
    if let [first, second, ..] = &said[..] {
        let text = format!("{} and {} exclude each other; give one of them", first.at, second.at);
        return Err(invalid(second.at.clone(), text));
    }
    let said = said.pop();
    if let Some(Said { rule, at }) = &said {
        checked_choice(rule, at)?;
    }
    Ok(said)
}

fn at_object() -> String {
    "structured_outputs.json_object".to_owned()
}

fn json_object() -> TextRule {
    TextRule::JsonSchema { schema: json!({"type": "object"}) }
}

/// A schema, which some clients send as text.
fn schema_of(schema: Value, at: &str) -> Result<Value, Reject> {
    let schema = match schema {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|error| invalid(at, format!("{at} is text, but not of a JSON Schema: {error}")))?,
        schema => schema,
    };
    if schema.is_object() { Ok(schema) } else { Err(invalid(at, format!("{at} must be a JSON Schema: an object"))) }
}

/// `response_format` of Chat, or `text.format` of Responses.
fn format_rule(format: Option<&Value>, at: &str) -> Result<Option<Said>, Reject> {
    let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => {
            // llama.cpp's way of giving a schema.
            let schema = format.get("schema").filter(|schema| !schema.is_null());
            let Some(schema) = schema else { return Ok(Some(Said { rule: json_object(), at: at.to_owned() })) };
            let at = format!("{at}.schema");
            Ok(Some(Said { rule: TextRule::JsonSchema { schema: schema_of(schema.clone(), &at)? }, at }))
        }
        Some("json_schema") => {
            // Chat has one more level than Responses.
            let (place, at) = match format.get("json_schema") {
                Some(inner) => (inner, format!("{at}.json_schema.schema")),
                None => (format, format!("{at}.schema")),
            };
            let schema = place.get("schema").filter(|schema| !schema.is_null());
            let schema = schema.ok_or_else(|| invalid(at.clone(), format!("{at} is missing")))?;
            Ok(Some(Said { rule: TextRule::JsonSchema { schema: schema_of(schema.clone(), &at)? }, at }))
        }
        _ => {
            let at = format!("{at}.type");
            Err(invalid(at.clone(), format!("{at} must be text, json_object or json_schema")))
        }
    }
}

/// A choice has texts, and none of them says nothing.
fn checked_choice(rule: &TextRule, at: &str) -> Result<(), Reject> {
    match rule {
        TextRule::Choice { texts } if texts.is_empty() || texts.iter().any(String::is_empty) => {
            Err(invalid(at, format!("{at} must be a list of texts, none of them empty")))
        }
        _ => Ok(()),
    }
}

/// Which calls the request allows, if it says more than the model would do by itself; and whether it must call.
/// `is_bound` says that the text has a rule.
fn calls(params: &GenerationParams, toolbox: &Toolbox, is_bound: bool) -> Result<(Option<CallRule>, bool), Reject> {
    let tools = &toolbox.tools;
    let is_held = tools.iter().any(|tool| toolbox.holds.contains_key(&tool.name));
    let several = params.parallel_tool_calls != Some(false);
    let choice = params.tool_choice.as_ref().filter(|choice| !choice.is_null());
    let all = || tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    let (names, must) = match choice.map(|choice| (choice, choice.as_str())) {
        Some((_, Some("none"))) => return Ok((None, false)),
        None | Some((_, Some("auto"))) => {
            // A text that must be JSON may still be preceded by nothing but calls.
            if tools.is_empty() || !is_held && !is_bound && several {
                return Ok((None, false));
            }
            (all(), false)
        }
        Some((_, Some("required" | "any"))) => (all(), true),
        Some((choice, None)) => chosen(choice, all())?,
        Some((_, Some(word))) => {
            let text = format!("tool_choice is {word:?}, but must be auto, none, required, or name a tool");
            return Err(invalid("tool_choice", text));
        }
    };
    if let Some(unknown) = names.iter().find(|name| !tools.iter().any(|tool| tool.name == **name)) {
        return Err(invalid(
            "tool_choice",
            format!("tool_choice names {unknown:?}, but no tool is called so; declare it in tools"),
        ));
    }
    // Where none must be called, there may be none that can be.
    if names.is_empty() && must {
        return Err(invalid("tool_choice", "tool_choice asks for a call, but there are no tools; declare one"));
    }
    let tools = names.iter().map(|name| toolbox.callable(name, must)).collect();
    Ok((Some(CallRule { tools, several }), must))
}

/// What an object chooses: one tool, or some of them.
fn chosen(choice: &Value, all: Vec<String>) -> Result<(Vec<String>, bool), Reject> {
    let wrong = |at: &str, text: &str| Err(invalid(at, format!("{at}: {text}")));
    let name_of = |value: &Value| {
        let inner = || value.get("function").or_else(|| value.get("custom"))?.get("name");
        let name = value.get("name").or_else(inner);
        name.and_then(Value::as_str).map(str::to_owned)
    };
    match choice.get("type").and_then(Value::as_str) {
        Some("function" | "custom") => match name_of(choice) {
            Some(name) => Ok((vec![name], true)),
            None => wrong("tool_choice.name", "the name of the tool is missing"),
        },
        Some("allowed_tools") => {
            // Chat has one more level than Responses.
            let allowed = choice.get("allowed_tools").unwrap_or(choice);
            let must = match allowed.get("mode").and_then(Value::as_str) {
                None | Some("auto") => false,
                Some("required") => true,
                Some(_) => return wrong("tool_choice.mode", "it must be auto or required"),
            };
            let Some(tools) = allowed.get("tools").and_then(Value::as_array) else {
                return wrong("tool_choice.tools", "the list of tools is missing");
            };
            // Tools of other kinds are not served; they cannot be called in any case.
            Ok((tools.iter().filter_map(name_of).collect(), must))
        }
        Some("auto") => Ok((all, false)),
        _ => wrong("tool_choice.type", "it must be function, custom or allowed_tools"),
    }
}

/// The custom tools whose grammar is only told to the model, by the names that it sees: the form of its calls holds it
/// to none.
pub(crate) fn only_told(constraint: Option<&Constraint>, tools: &Toolbox, model: &ModelInfo) -> Noted {
    let mut noted = Noted::default();
    let calls = constraint.and_then(|constraint| constraint.calls.as_ref());
    let Some(calls) = calls.filter(|_| model.medium == Medium::Tokens) else { return noted };
    for (name, _) in engine::only_told(model.tool_format.writing(), calls, &tools.tools) {
        noted.note(name);
    }
    noted
}

/// Whether a call object that is all of an answer under this constraint is taken for a call: as for the model, but
/// where a family's form has no mark, or may be unable to say what is asked for, calls are written so.
pub(crate) fn bare_calls(constraint: Option<&Constraint>, model: &ModelInfo) -> bool {
    let calls = constraint.and_then(|constraint| constraint.calls.as_ref());
    model.bare_calls || calls.is_some_and(|calls| may_be_unmarked(model.tool_format.writing(), calls))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::create;
    use crate::api::input::Known;
    use crate::engine::settings::InputRule;
    use crate::engine::{Engine, Grammars, ScriptedEngine};
    use crate::prompt::ToolDefinition;

    fn model() -> ModelInfo {
        let engine = ScriptedEngine::from_json(r#"{"tool_format": "hermes", "replies": [{"deltas": ["a"]}]}"#).unwrap();
        let grammars = Some(Arc::new(Grammars::new(engine.model().tokenizer.clone())));
        ModelInfo { grammars, ..engine.model().clone() }
    }

    /// What becomes of a request with these fields, whose functions and custom tools are all shown to the model.
    fn checked(model: &ModelInfo, body: &Value) -> Result<Option<Constraint>, Reject> {
        let params: GenerationParams = serde_json::from_value(body.clone()).unwrap();
        let declared = params.tools.iter().flatten().map(|tool| {
            let said = tool.get("function").unwrap_or(tool);
            let name = said["name"].as_str().unwrap().to_owned();
            ToolDefinition { name, description: None, parameters: said["parameters"].clone() }
        });
        let tools: Vec<ToolDefinition> = declared.collect();
        let holds = custom_tools::holds(params.tools.as_deref().unwrap_or_default(), "tools")?;
        let constraint = constraint(&params, &Toolbox { tools: tools.clone(), holds, ..Toolbox::default() }, model)?;
        if let Some(constraint) = &constraint {
            let surroundings =
                Surroundings { tools: &tools, tool_format: model.tool_format, reasoning: model.reasoning };
            let compiled = model.grammars.as_ref().unwrap().compile(constraint, &surroundings);
            compiled.map(|_| ()).map_err(|error| refused(&params, constraint, &error))?;
        }
        Ok(constraint)
    }

    #[test]
    fn a_custom_tool_is_held_to_its_grammar_wherever_it_is_called() {
        let format = json!({"type": "grammar", "syntax": "regex", "definition": "[a-c]+"});
        let custom = json!({"type": "custom", "name": "patch", "format": format});
        let other = json!({"type": "function", "name": "look", "parameters": {"type": "object"}});
        for (choice, names) in [
            (json!("auto"), &["patch", "look"][..]),
            (json!("required"), &["patch", "look"]),
            (json!({"type": "custom", "name": "patch"}), &["patch"]),
            (json!({"type": "custom", "custom": {"name": "patch"}}), &["patch"]),
            (
                json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "patch"}]}),
                &["patch"],
            ),
        ] {
            let body = json!({"tools": [custom, other], "tool_choice": choice});
            let constraint = checked(&model(), &body).unwrap().unwrap();
            let tools = constraint.calls.unwrap().tools;
            assert_eq!(tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), names);
            assert_eq!(tools[0].input, Some(InputRule::Regex { pattern: "[a-c]+".to_owned() }), "{choice}");
        }
    }

    /// What an earlier turn brought.
    fn custom_before(tools: &Value) -> Toolbox {
        crate::api::tools::declared(tools.as_array().map(Vec::as_slice)).unwrap().toolbox
    }

    #[test]
    fn a_tool_that_the_input_brings_is_held_to_as_one_that_is_declared() {
        let format = json!({"type": "grammar", "syntax": "regex", "definition": "[a-c]+"});
        let patch = json!({"type": "custom", "name": "patch", "format": format});
        let look = json!({"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": true});
        let files = json!([{"type": "namespace", "name": "files", "tools": [patch]}, look]);
        let brought = json!({"type": "additional_tools", "tools": files});
        let found = json!({"type": "tool_search_output", "call_id": "c", "tools": files});
        let call = json!({"type": "tool_search_call", "call_id": "c", "arguments": {}});
        let named = json!({"type": "custom", "namespace": "files", "name": "patch"});
        for (items, choice, names) in [
            (json!([brought]), json!("auto"), &["files__patch", "look"][..]),
            (json!([brought]), json!("required"), &["files__patch", "look"]),
            (json!([brought]), named.clone(), &["files__patch"]),
            (json!([call, found]), named, &["files__patch"]),
        ] {
            let body = json!({"input": items, "tool_choice": choice});
            let request = serde_json::from_value(body.clone()).unwrap();
            let mut create = create::create(&model(), Known::default(), &request, &body, &Toolbox::default()).unwrap();
            create.config.take_tools(create.input.iter());
            let calls = create.config.constraint.as_ref().unwrap().calls.as_ref().unwrap();
            assert_eq!(calls.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), names);
            assert_eq!(calls.tools[0].input, Some(InputRule::Regex { pattern: "[a-c]+".to_owned() }), "{choice}");
            check(&model(), &create.config, &GenerationParams::default()).unwrap();
        }
        let before = custom_before(&json!([{"type": "namespace", "name": "files", "tools": [patch]}]));
        let named = json!({"type": "custom", "namespace": "files", "name": "patch"});
        for choice in [Value::Null, json!("required"), named] {
            let body = json!({"input": "go on", "tool_choice": choice});
            let request = serde_json::from_value(body.clone()).unwrap();
            let create = create::create(&model(), Known::default(), &request, &body, &before).unwrap();
            let calls = create.config.constraint.as_ref().unwrap().calls.as_ref().unwrap();
            assert_eq!((calls.tools.len(), calls.tools[0].input.is_some()), (1, true), "{choice}");
            check(&model(), &create::as_begun(&create, &before), &GenerationParams::default()).unwrap();
        }
        let wrong = json!({"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "ebnf"}});
        let body = json!({"input": [{"type": "additional_tools", "tools": [look, wrong]}]});
        let request = serde_json::from_value(body.clone()).unwrap();
        let refused = create::create(&model(), Known::default(), &request, &body, &Toolbox::default()).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("input[0].tools[1].format.definition"));
    }

    #[test]
    fn a_grammar_that_the_form_of_calls_cannot_carry_is_told_of_and_one_that_is_none_refused() {
        let custom = |grammar: &str| {
            let format = json!({"type": "grammar", "syntax": "lark", "definition": grammar});
            json!({"type": "custom", "name": "patch", "format": format})
        };
        let in_json = ModelInfo { tool_format: "mistral".parse().unwrap(), ..model() };
        let created = |model: &ModelInfo, grammar: &str| {
            let body = json!({"input": "go", "tools": [custom(grammar)]});
            let request = serde_json::from_value(body.clone()).unwrap();
            let create = create::create(model, Known::default(), &request, &body, &Toolbox::default()).unwrap();
            let params = serde_json::from_value(body).unwrap();
            check(model, &create.config, &params).map(|()| create.config.metadata)
        };
        let right = "start: \"a\"+";
        assert_eq!(created(&in_json, right).unwrap()["midstream_unheld_tools"], "patch");
        assert!(created(&model(), right).unwrap().is_empty());
        for model in [in_json.clone(), model()] {
            let refused = created(&model, "start: missing").unwrap_err();
            assert_eq!(refused.param.as_deref(), Some("tools[0].format"), "{}", refused.message);
        }
        let grammar = json!({"type": "grammar", "grammar": {"syntax": "lark", "definition": right}});
        let body = json!({"messages": [{"role": "user", "content": "go"}],
            "tools": [{"type": "custom", "custom": {"name": "patch", "format": grammar}}]});
        let asked = |model: &ModelInfo| create::to_render(model, None, &body);
        assert!(asked(&model()).unwrap().config.metadata.is_empty());
        assert_eq!(asked(&in_json).unwrap().config.metadata["midstream_unheld_tools"], "patch");
    }

    #[test]
    fn where_one_call_may_be_made_the_answer_is_held_to_one() {
        let tools = json!([{"type": "function", "name": "look", "parameters": {"type": "object"}}]);
        let asked = |parallel: Value| checked(&model(), &json!({"tools": tools, "parallel_tool_calls": parallel}));
        for free in [Value::Null, true.into()] {
            assert_eq!(asked(free).unwrap(), None);
        }
        let held = asked(false.into()).unwrap().unwrap();
        let calls = held.calls.unwrap();
        assert_eq!((held.text, calls.several, calls.tools[0].by_schema), (TextRule::Any, false, false));
    }

    #[test]
    fn a_keyword_that_cannot_be_enforced_is_named_with_the_place_where_it_is_a_keyword() {
        let never = json!({"type": "object", "required": ["a/b"], "additionalProperties": false, "properties": {
            "not": {"type": "string"},
            "a/b": {"unevaluatedItems": false, "type": "array"},
        }});
        let pointer =
            |reject: Reject| (reject.param.unwrap(), reject.message.rsplit(", at ").next().unwrap().to_owned());
        let tool = |schema: &Value| json!({"type": "function", "name": "f", "strict": true, "parameters": schema});
        let space =
            json!({"type": "namespace", "name": "n", "tools": [tool(&json!({"type": "object"})), tool(&never)]});
        let body = json!({"tools": [{"type": "web_search"}, space]});
        let params: GenerationParams = serde_json::from_value(body).unwrap();
        let calls =
            CallRule { tools: vec![Callable { name: "n__f".to_owned(), by_schema: true, input: None }], several: true };
        let constraint = Constraint { text: TextRule::Any, calls: Some(calls), at: None };
        let error = Uncompilable(r#"Unimplemented keys: ["unevaluatedItems"]"#.to_owned());
        let expected = ("tools[1].tools[1].parameters".to_owned(), "#/properties/a~1b/unevaluatedItems".to_owned());
        assert_eq!(pointer(refused(&params, &constraint, &error)), expected);
        assert_eq!(
            find(&json!({"properties": {"not": {}, "x": {"not": {}}}}), "not", false).unwrap(),
            "#/properties/x/not"
        );
    }

    #[test]
    fn one_of_branches_that_exclude_each_other_is_enforced_and_of_others_refused() {
        let asked = |branches: Value| {
            let schema = json!({"type": "object", "properties": {"a": {"oneOf": branches}}});
            let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
            checked(&model(), &json!({"response_format": format}))
        };
        let tagged = |tag: &str| json!({"type": "object", "properties": {"t": {"const": tag}}, "required": ["t"]});
        for told_apart in [json!([tagged("a"), tagged("b")]), json!([{"type": "string"}, {"type": "null"}])] {
            assert!(asked(told_apart).unwrap().is_some());
        }
        for alike in [json!([{"type": "integer"}, {"minimum": 2}]), json!([tagged("a"), {"type": "object"}])] {
            let refused = asked(alike).unwrap_err();
            assert!(refused.message.ends_with("at #/properties/a/oneOf"), "{}", refused.message);
        }
    }

    /// Where the schema of a chat's only tool stands.
    const PARAMETERS: &str = "tools[0].function.parameters";

    /// The places of rules that may be compiled: they are within the bounds that every answer is followed under.
    const MAY_PASS: [usize; 6] = [2, 4, 5, 7, 8, 12];

    #[test]
    fn calls_without_marks_are_looked_for_where_they_may_have_to_be_written() {
        let tools = vec![Callable { name: "look".to_owned(), by_schema: true, input: None }];
        let calls = Some(CallRule { tools, several: true });
        let constraint = Constraint { text: TextRule::Any, calls, at: None };
        for (format, unmarked) in [("hermes", false), ("mistral", false), ("pythonic", true), ("gemma4", true)] {
            let model = ModelInfo { tool_format: format.parse().unwrap(), bare_calls: false, ..model() };
            assert_eq!(bare_calls(Some(&constraint), &model), unmarked, "{format}");
            assert!(!bare_calls(None, &model));
            assert!(bare_calls(Some(&constraint), &ModelInfo { bare_calls: true, ..model }));
        }
    }

    #[test]
    fn rules_that_want_too_much_are_refused_by_the_field_that_has_them() {
        let model = model();
        let schema =
            |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
        let at = "response_format.json_schema.schema";
        let function = |parameters: Value| {
            json!([{"type": "function", "function":
            {"name": "f", "strict": true, "parameters": parameters}}])
        };
        let many: Vec<String> = (0..40_000).map(|index| format!("{index}")).collect();
        let wide: serde_json::Map<String, Value> = (0..3_000)
            .map(|index| (format!("field_{index}"), json!({"type": "string", "pattern": "^(a|b)*c{0,50}$"})))
            .collect();
        let mut deep = json!({"type": "null"});
        for _ in 0..100 {
            deep = json!({"type": "array", "items": deep, "minItems": 1});
        }
        let rules = (0..2_000).map(|index| format!("r{index}: \"a\"\n")).collect::<Vec<_>>().concat();
        let mut passed = Vec::new();
        for (row, (body, at)) in [
            (schema(json!({"enum": many})), at),
            (schema(json!({"type": "object", "properties": wide})), at),
            (schema(deep.clone()), at),
            (schema(json!({"type": "string", "pattern": "a".repeat(5_000)})), at),
            (schema(json!({"type": "string", "pattern": "((a{0,1000}){0,1000}){0,1000}"})), at),
            (schema(json!({"type": "array", "minItems": 1_000_000_000_u64})), at),
            (schema(json!({"allOf": [{"type": "string"}, {"type": "null"}]})), at),
            (json!({"structured_outputs": {"regex": "((a{0,1000}){0,1000}){0,1000}"}}), "structured_outputs.regex"),
            (json!({"structured_outputs": {"regex": "(.*a){30}(.*b){30}[^x]{500}"}}), "structured_outputs.regex"),
            (json!({"structured_outputs": {"grammar": format!("start: r1\n{rules}")}}), "structured_outputs.grammar"),
            (
                json!({"guided_grammar": format!("start: {}\"a\"{}", "(".repeat(8_000), ")".repeat(8_000))}),
                "guided_grammar",
            ),
            (json!({"guided_choice": ["a".repeat(200_000)]}), "guided_choice"),
            (json!({"tools": function(json!({"type": "object", "properties": {"a": deep}}))}), PARAMETERS),
            (json!({"tools": function(json!({"type": "object", "properties": wide}))}), PARAMETERS),
            (json!({"tools": function(json!("text")), "tool_choice": "required"}), PARAMETERS),
        ]
        .into_iter()
        .enumerate()
        {
            match checked(&model, &body) {
                Ok(constraint) => passed.extend(constraint.map(|_| row)),
                Err(reject) => {
                    assert_eq!((reject.code, reject.param.as_deref()), (Code::InvalidInput, Some(at)));
                    assert!(reject.message.starts_with(at), "{}", reject.message);
                }
            }
        }
        assert!(passed.iter().all(|row| MAY_PASS.contains(row)), "{passed:?}");
    }
}
