//! Tools that take a text and no arguments, of OpenAI's kind `custom`: what the text must be. A model sees such a tool
//! as a function of one text; where the tool has a grammar, its calls are held to that.

use serde_json::Value;

use super::errors::invalid;
use crate::conversation::{Reject, visible_name};
use crate::engine::settings::InputRule;

/// Tools as a request declares them, and where.
#[derive(Clone, Debug)]
pub(crate) struct Declarations<'a> {
    /// The field.
    pub(crate) at: String,
    /// In either API's shape.
    pub(crate) tools: &'a [Value],
}

/// The names that the model sees of those custom tools of a request whose text must follow a rule.
pub(crate) fn input_rules(declared: &[Declarations<'_>]) -> Result<Vec<(String, InputRule)>, Reject> {
    let mut rules = Vec::new();
    declared.iter().try_for_each(|declared| add_rules(declared.tools, None, &declared.at, &mut rules))?;
    Ok(rules)
}

fn add_rules(
    tools: &[Value],
    namespace: Option<&str>,
    path: &str,
    rules: &mut Vec<(String, InputRule)>,
) -> Result<(), Reject> {
    for (position, tool) in tools.iter().enumerate() {
        let at = format!("{path}[{position}]");
        match tool["type"].as_str() {
            Some("custom") => {
                let rule = rule_of(tool, &at)?;
                rules.extend(rule.map(|(name, rule)| (visible_name(namespace, &name), rule)));
            }
            Some("namespace") => {
                let inner = tool["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
                // What stands in a namespace's namespace is in that one alone.
                add_rules(inner, tool["name"].as_str(), &format!("{at}.tools"), rules)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn rule_of(tool: &Value, at: &str) -> Result<Option<(String, InputRule)>, Reject> {
    // Chat has one more level than Responses.
    let (said, at) = match tool.get("custom") {
        Some(said) => (said, format!("{at}.custom")),
        None => (tool, at.to_owned()),
    };
    let Some(rule) = input_rule(said.get("format"), &format!("{at}.format"))? else { return Ok(None) };
    let name = said.get("name").and_then(Value::as_str);
    Ok(name.map(|name| (name.to_owned(), rule)))
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

    fn rules_of(tools: &Value) -> Result<Vec<(String, InputRule)>, Reject> {
        input_rules(&[Declarations { at: "tools".to_owned(), tools: tools.as_array().unwrap() }])
    }

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
        let expected = vec![("patch".to_owned(), InputRule::Lark { grammar: "start: \"a\"".to_owned() })];
        for tools in [responses, chat] {
            assert_eq!(rules_of(&tools).unwrap(), expected);
        }
    }

    #[test]
    fn a_rule_in_a_namespace_is_of_the_name_that_the_model_sees() {
        let custom = json!({"type": "custom", "name": "patch", "format":
            {"type": "grammar", "syntax": "regex", "definition": "a"}});
        let tools = json!([{"type": "namespace", "name": "files", "tools": [custom]}]);
        assert_eq!(rules_of(&tools).unwrap()[0].0, "files__patch");
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
            assert_eq!(rules_of(&json!([tool])).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
