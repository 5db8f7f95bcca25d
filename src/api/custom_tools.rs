//! What the calls of a request's tools are held to: strict functions to their schemas, and tools of OpenAI's kind
//! `custom`, which take a text and no arguments, to the grammar that they may have. A model sees such a tool as a
//! function of one text.

use std::collections::BTreeMap;

use serde_json::Value;

use super::errors::invalid;
use crate::conversation::{Hold, Reject, visible_name};
use crate::engine::settings::InputRule;

/// What calls of these tools of a request, in either API's shape, are held to, by the names that the model sees.
pub(crate) fn holds(tools: &[Value], at: &str) -> Result<BTreeMap<String, Hold>, Reject> {
    let mut holds = BTreeMap::new();
    walk(tools, None, at, &mut |tool, name, at| {
        let hold = match tool["type"].as_str() {
            Some("custom") => rule_of(tool, at)?.map(|rule| Hold::Input { rule }),
            _ => strict(tool, at)?,
        };
        holds.extend(hold.map(|hold| (name, hold)));
        Ok(())
    })?;
    Ok(holds)
}

/// Where the schema stands of the tool that the model knows by this name, and the schema.
pub(crate) fn schema_of<'a>(tools: &'a [Value], wanted: &str) -> Option<(String, &'a Value)> {
    let mut found = None;
    let look = &mut |tool: &'a Value, name: String, at: &str| {
        let (under, function) = tool.get("function").map_or(("", tool), |function| (".function", function));
        if let Some(schema) = function.get("parameters").filter(|_| name == wanted) {
            found = Some((format!("{at}{under}.parameters"), schema));
        }
        Ok(())
    };
    // Nothing is refused here.
    walk(tools, None, "tools", look).ok()?;
    found
}

/// Where the format of the custom tool stands that the model knows by this name.
pub(crate) fn format_of(tools: &[Value], wanted: &str) -> Option<String> {
    let mut found = None;
    let look = &mut |tool: &Value, name: String, at: &str| {
        if tool["type"] == "custom" && name == wanted {
            let under = if tool.get("custom").is_some() { ".custom" } else { "" };
            found = Some(format!("{at}{under}.format"));
        }
        Ok(())
    };
    // Nothing is refused here.
    walk(tools, None, "tools", look).ok()?;
    found
}

/// Shows each tool with a name, with the name that the model sees and its place.
fn walk<'a>(
    tools: &'a [Value],
    namespace: Option<&str>,
    path: &str,
    show: &mut impl FnMut(&'a Value, String, &str) -> Result<(), Reject>,
) -> Result<(), Reject> {
    for (position, tool) in tools.iter().enumerate() {
        let at = format!("{path}[{position}]");
        let said = tool.get("function").or_else(|| tool.get("custom")).unwrap_or(tool);
        let Some(name) = said["name"].as_str() else { continue };
        if tool["type"] == "namespace" {
            let inner = tool["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
            // What stands in a namespace's namespace is in that one alone.
            walk(inner, Some(name), &format!("{at}.tools"), show)?;
        } else {
            show(tool, visible_name(namespace, name), &at)?;
        }
    }
    Ok(())
}

/// Arguments of a strict function follow its schema; what is no schema could not be followed.
fn strict(tool: &Value, at: &str) -> Result<Option<Hold>, Reject> {
    if !is_strict(tool) {
        return Ok(None);
    }
    let (under, function) = tool.get("function").map_or(("", tool), |function| (".function", function));
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(Some(Hold::Schema)),
        Some(_) => {
            let at = format!("{at}{under}.parameters");
            Err(invalid(at.clone(), format!("{at} must be a JSON Schema: an object")))
        }
    }
}

/// Whether the arguments of a function's calls must follow its schema.
fn is_strict(tool: &Value) -> bool {
    let inner = || tool.get("function")?.get("strict");
    inner().or_else(|| tool.get("strict")).and_then(Value::as_bool) == Some(true)
}

fn rule_of(tool: &Value, at: &str) -> Result<Option<InputRule>, Reject> {
    // Chat has one more level than Responses.
    let (said, at) = match tool.get("custom") {
        Some(said) => (said, format!("{at}.custom")),
        None => (tool, at.to_owned()),
    };
    input_rule(said.get("format"), &format!("{at}.format"))
}

fn input_rule(format: Option<&Value>, at: &str) -> Result<Option<InputRule>, Reject> {
    let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
    let wrong = |field: &str, text: &str| {
        let at = format!("{at}.{field}");
        Err(invalid(at.clone(), format!("{at} {text}")))
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => return Ok(None),
        Some("grammar") => {}
        _ => return wrong("type", "must be text or grammar"),
    }
    let (said, under) = format.get("grammar").map_or((format, ""), |said| (said, "grammar."));
    let Some(definition) = said.get("definition").and_then(Value::as_str) else {
        return wrong(&format!("{under}definition"), "is missing: the grammar's text");
    };
    match said.get("syntax").and_then(Value::as_str) {
        Some("lark") => Ok(Some(InputRule::Lark { grammar: definition.to_owned() })),
        Some("regex") => Ok(Some(InputRule::Regex { pattern: definition.to_owned() })),
        _ => wrong(&format!("{under}syntax"), "must be lark or regex"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn either_api_s_shape_says_the_same_rule() {
        let responses = json!([
            {"type": "function", "name": "f", "format": {"type": "grammar"}},
            {"type": "custom", "name": "patch", "description": "Patches.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}},
            {"type": "custom", "name": "say", "format": {"type": "text"}},
        ]);
        let chat = json!([
            {"type": "custom", "custom": {"name": "patch", "format":
                {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: \"a\""}}}},
            {"type": "custom", "custom": {"name": "say"}},
        ]);
        let rule = InputRule::Lark { grammar: "start: \"a\"".to_owned() };
        let expected = BTreeMap::from([("patch".to_owned(), Hold::Input { rule })]);
        for tools in [responses, chat] {
            assert_eq!(holds(tools.as_array().unwrap(), "tools").unwrap(), expected);
        }
    }

    #[test]
    fn what_holds_in_a_namespace_is_of_the_name_that_the_model_sees() {
        let custom = json!({"type": "custom", "name": "patch", "format":
            {"type": "grammar", "syntax": "regex", "definition": "a"}});
        let strict = json!({"type": "function", "name": "look", "strict": true, "parameters": {"type": "object"}});
        let tools = json!([{"type": "namespace", "name": "files", "tools": [custom, strict]}]);
        let tools = tools.as_array().unwrap();
        let holds = holds(tools, "tools").unwrap();
        assert_eq!(holds.keys().collect::<Vec<_>>(), ["files__look", "files__patch"]);
        let (at, schema) = schema_of(tools, "files__look").unwrap();
        assert_eq!((at.as_str(), &schema["type"]), ("tools[0].tools[1].parameters", &json!("object")));
    }

    #[test]
    fn a_strict_function_has_a_schema_that_is_an_object_or_none() {
        let flat =
            |parameters: Value| json!({"type": "function", "name": "f", "strict": true, "parameters": parameters});
        for wrong in [json!("text"), json!([]), json!(7), json!(false)] {
            let in_chat =
                json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": wrong.clone()}});
            let inside = json!({"type": "namespace", "name": "n", "tools": [flat(wrong.clone())]});
            for (tool, param) in [
                (flat(wrong.clone()), "tools[0].parameters"),
                (in_chat, "tools[0].function.parameters"),
                (inside, "tools[0].tools[0].parameters"),
            ] {
                let refused = holds(&[tool], "tools").unwrap_err();
                assert_eq!(refused.param.as_deref(), Some(param), "{wrong}");
                assert!(refused.message.starts_with(param), "{}", refused.message);
            }
        }
        for right in [json!({}), json!({"type": "object"}), Value::Null] {
            assert_eq!(holds(&[flat(right)], "tools").unwrap().len(), 1);
        }
        // Of a function that is not strict nobody follows it.
        assert!(holds(&[json!({"type": "function", "name": "f", "parameters": "text"})], "tools").unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_with_a_rule_is_refused_by_its_place() {
        let grammar = |fields: Value| {
            let mut format = json!({"type": "grammar", "syntax": "regex", "definition": "a"});
            format.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({"type": "custom", "name": "a", "format": format})
        };
        for (tool, param) in [
            (grammar(json!({"type": "xml"})), "tools[0].format.type"),
            (grammar(json!({"definition": null})), "tools[0].format.definition"),
            (grammar(json!({"syntax": "ebnf"})), "tools[0].format.syntax"),
            (
                json!({"type": "custom", "custom": {"name": "a", "format":
                    {"type": "grammar", "grammar": {"syntax": "lark"}}}}),
                "tools[0].custom.format.grammar.definition",
            ),
        ] {
            assert_eq!(holds(&[tool], "tools").unwrap_err().param.as_deref(), Some(param));
        }
    }
}
