//! The tools of a request: those that the model sees, and those that it sees once they were found.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

use super::text::missing;
use crate::api::errors::invalid;
use crate::conversation::{Reject, Toolbox};
use crate::prompt::ToolDefinition;
use crate::protocol::messages::{ToolChoice, ToolDeclaration};

/// Tools that a client runs, and whose input Anthropic's models know by heart: no other model does.
const KNOWN_BY_HEART: [&str; 6] =
    ["bash_", "text_editor_", "computer_", "memory_", "browser_toolset_", "computer_toolset_"];
/// A search for tools that would run here.
const HOSTED_SEARCH: &str = "tool_search_tool_";

/// The tools of a request.
#[derive(Debug, Default)]
pub(super) struct Declared {
    /// Those that the model sees from the beginning.
    pub(super) shown: Vec<ToolDefinition>,
    /// Those that it sees once they were found, by their names.
    pub(super) deferred: BTreeMap<String, ToolDefinition>,
    /// The names of those whose input is held to their schema.
    strict: HashSet<String>,
}

/// Reads the tools. What would run on a server of Anthropic's is left out: nothing of it runs here.
pub(super) fn declared(tools: Option<&[ToolDeclaration]>) -> Result<Declared, Reject> {
    let tools = tools.unwrap_or_default();
    let kind = |tool: &ToolDeclaration| tool.kind.clone().unwrap_or_else(|| "custom".to_owned());
    // Nobody would find what is put off, so it is not.
    let searched_here = tools.iter().any(|tool| kind(tool).starts_with(HOSTED_SEARCH));
    let mut declared = Declared::default();
    let mut names = HashSet::new();
    for (position, tool) in tools.iter().enumerate() {
        let path = format!("tools.{position}");
        let kind = kind(tool);
        if KNOWN_BY_HEART.iter().any(|known| kind.starts_with(known)) {
            let at = format!("{path}.type");
            let text = format!("{at}: this model does not know {kind} by heart; declare a tool with an input_schema");
            return Err(invalid(at, text));
        }
        if kind != "custom" {
            continue;
        }
        let definition = definition(tool, &path)?;
        if !names.insert(definition.name.clone()) {
            let text =
                format!("{path}: another tool is called {:?} as well; give each a name of its own", definition.name);
            return Err(invalid(format!("{path}.name"), text));
        }
        if tool.strict == Some(true) {
            declared.strict.insert(definition.name.clone());
        }
        if tool.defer_loading == Some(true) && !searched_here {
            declared.deferred.insert(definition.name.clone(), definition);
        } else {
            declared.shown.push(definition);
        }
    }
    Ok(declared)
}

/// A function.
pub(super) fn definition(tool: &ToolDeclaration, path: &str) -> Result<ToolDefinition, Reject> {
    let name = tool.name.clone().filter(|name| !name.is_empty()).ok_or_else(|| missing(path, "name"))?;
    let parameters = tool.input_schema.clone().filter(|schema| !schema.is_null());
    let parameters = parameters.ok_or_else(|| missing(path, "input_schema"))?;
    if !parameters.is_object() {
        let at = format!("{path}.input_schema");
        return Err(invalid(at.clone(), format!("{at} must be a JSON Schema: an object")));
    }
    let examples = tool.input_examples.iter().flatten().map(|example| format!("\n{example}"));
    let examples: String = examples.collect();
    let mut description = tool.description.clone();
    if !examples.is_empty() {
        let told = description.unwrap_or_default();
        description = Some(format!("{told}\n\nExamples of its input:{examples}"));
    }
    Ok(ToolDefinition { name, description, parameters })
}

/// A tool as the model is told of it in the middle of a conversation.
pub(super) fn told(tool: &ToolDefinition) -> String {
    let ToolDefinition { name, description, parameters } = tool;
    let function = json!({"name": name, "description": description, "parameters": parameters});
    json!({"type": "function", "function": function}).to_string()
}

impl Declared {
    /// The tool with this name, shown or not.
    pub(super) fn find(&self, name: &str) -> Option<&ToolDefinition> {
        self.deferred.get(name).or_else(|| self.shown.iter().find(|tool| tool.name == name))
    }

    /// Whether the input of the tool with this name is held to its schema.
    pub(super) fn is_strict(&self, name: &str) -> bool {
        self.strict.contains(name)
    }
}

/// The choice of tools as the rules for an answer's form read it, of those that are `callable`. Where that is not all
/// that the model was told of, they are named: what was removed is not called, whoever asks for nothing.
pub(super) fn choice(choice: Option<&ToolChoice>, callable: &Toolbox, is_all: bool) -> Result<Value, Reject> {
    let Some(choice) = choice.filter(|choice| is_all || choice.kind != "auto") else {
        let named = |tool: &ToolDefinition| json!({"type": "function", "name": tool.name});
        let tools: Vec<Value> = callable.tools.iter().map(named).collect();
        return Ok(if is_all { Value::Null } else { json!({"type": "allowed_tools", "mode": "auto", "tools": tools}) });
    };
    match choice.kind.as_str() {
        "auto" => Ok("auto".into()),
        "none" => Ok("none".into()),
        "any" => Ok("required".into()),
        "tool" => {
            let name = choice.name.as_ref().ok_or_else(|| missing("tool_choice", "name"))?;
            Ok(json!({"type": "function", "name": name}))
        }
        kind => {
            let text = format!("tool_choice.type is {kind:?}, but must be auto, any, tool or none");
            Err(invalid("tool_choice.type", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::body::decode;

    fn read(tools: &Value) -> Result<Declared, Reject> {
        let tools: Vec<ToolDeclaration> = decode(tools).unwrap();
        declared(Some(&tools))
    }

    fn names(declared: &Declared) -> Vec<&str> {
        declared.shown.iter().map(|tool| tool.name.as_str()).collect()
    }

    #[test]
    fn functions_are_shown_hosted_tools_left_out_and_what_is_put_off_waits() {
        let schema = json!({"type": "object"});
        let tools = json!([
            {"name": "look", "input_schema": schema, "strict": true, "eager_input_streaming": true},
            {"type": "custom", "name": "say", "description": "Says.", "input_schema": schema,
             "input_examples": [{"a": 1}]},
            {"name": "later", "input_schema": schema, "defer_loading": true},
            {"type": "web_search_20250305", "name": "web_search"},
            {"type": "nobody knows"},
        ]);
        let declared = read(&tools).unwrap();
        assert_eq!((names(&declared), declared.deferred.len()), (vec!["look", "say"], 1));
        assert_eq!(declared.shown[1].description.as_deref(), Some("Says.\n\nExamples of its input:\n{\"a\":1}"));
        assert!(declared.is_strict("look") && !declared.is_strict("say"));
        let mut searched = tools.clone();
        searched[4] = json!({"type": "tool_search_tool_bm25_20251119", "name": "search"});
        assert_eq!(names(&read(&searched).unwrap()), ["look", "say", "later"]);
    }

    #[test]
    fn what_cannot_be_called_is_refused_by_its_place() {
        let schema = json!({"type": "object"});
        for (tools, param) in [
            (json!([{"input_schema": schema}]), "tools.0.name"),
            (json!([{"name": "a"}]), "tools.0.input_schema"),
            (json!([{"name": "a", "input_schema": []}]), "tools.0.input_schema"),
            (json!([{"name": "a", "input_schema": schema}, {"name": "a", "input_schema": schema}]), "tools.1.name"),
            (json!([{"type": "bash_20250124", "name": "bash"}]), "tools.0.type"),
        ] {
            assert_eq!(read(&tools).unwrap_err().param.as_deref(), Some(param), "{tools}");
        }
        let wrong: ToolChoice = decode(&json!({"type": "some"})).unwrap();
        let refused = choice(Some(&wrong), &Toolbox::default(), true).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("tool_choice.type"));
    }
}
