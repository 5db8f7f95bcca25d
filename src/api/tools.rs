//! The tools of a request: what the model sees of each kind, and the same back again. A kind that nobody here knows
//! is left out and noted, and never fails a request.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::body::decode;
use super::custom_tools;
use super::errors::invalid;
use super::input::within_a_month;
use crate::conversation::{
    CUSTOM_ARGUMENT, CallKind, Reject, ToolPolicy, ToolShape, Toolbox, ToolsAllowed, visible_name,
};
use crate::prompt::ToolDefinition;

/// The names of the functions that stand for tools without a name of their own.
pub(crate) const TOOL_SEARCH: &str = "tool_search";
pub(crate) const LOCAL_SHELL: &str = "local_shell";

/// Most kinds that are noted of one request, and most bytes of each: more says no more.
const NOTED_KINDS_MAX: usize = 32;
const NOTED_KIND_BYTES_MAX: usize = 64;

/// Kinds of something that mean nothing here, in order, each once.
#[derive(Debug, Default)]
pub(crate) struct Noted(pub(crate) Vec<String>);

impl Noted {
    pub(crate) fn note(&mut self, kind: &str) {
        let kind = &kind[..kind.floor_char_boundary(NOTED_KIND_BYTES_MAX)];
        if self.0.len() < NOTED_KINDS_MAX && self.0.iter().all(|known| known != kind) {
            self.0.push(kind.to_owned());
        }
    }
}

/// The tools of a request.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    /// Those that the model can call.
    pub(crate) toolbox: Toolbox,
    /// Kinds that are not run here.
    pub(crate) ignored: Noted,
    /// How the calls of each are watched over: the tools' `x_midstream`, by the names that the model sees.
    pub(crate) policies: BTreeMap<String, ToolPolicy>,
    /// The names that the model sees.
    names: HashSet<String>,
}

/// Reads the tools of a Responses request.
pub(crate) fn declared(tools: Option<&[Value]>) -> Result<Declared, Reject> {
    declared_at(tools, "tools")
}

/// As [`declared`], of the tools in this field.
pub(crate) fn declared_at(tools: Option<&[Value]>, field: &str) -> Result<Declared, Reject> {
    let mut declared = Declared::default();
    let tools = tools.unwrap_or_default();
    for (position, tool) in tools.iter().enumerate() {
        declared.add(tool, None, &format!("{field}[{position}]"))?;
    }
    declared.toolbox.holds = custom_tools::holds(tools, field)?;
    Ok(declared)
}

/// Which tools a choice in visible names allows.
pub(crate) fn allowed(choice: Option<&Value>) -> ToolsAllowed {
    match choice {
        Some(Value::String(word)) if word == "none" => ToolsAllowed::None,
        Some(Value::Object(choice)) if choice.get("type").is_none_or(|kind| kind != "auto") => ToolsAllowed::Named,
        _ => ToolsAllowed::All,
    }
}

/// The tools of a chat: functions, and tools that take a text. Other kinds are ignored and noted.
pub(crate) fn of_chat(tools: Option<&[Value]>, choice: Option<&Value>) -> Result<(Toolbox, Noted), Reject> {
    let (tools, mut ignored) = (tools.unwrap_or_default(), Noted::default());
    let mut toolbox = Toolbox { holds: custom_tools::holds(tools, "tools")?, ..Toolbox::default() };
    for (position, tool) in tools.iter().enumerate() {
        let path = format!("tools[{position}]");
        match tool["type"].as_str().unwrap_or_default() {
            "function" => toolbox.add(function(tool, &path)?, None, CallKind::Function),
            "custom" => toolbox.add(custom(tool, &path)?, None, CallKind::Custom),
            kind => ignored.note(kind),
        }
    }
    if choice.is_some_and(|choice| choice == "none") {
        toolbox = Toolbox::default();
    }
    note_choice(choice, &mut ignored);
    Ok((toolbox, ignored))
}

/// Notes a kind of choice that chooses nothing here.
pub(crate) fn note_choice(choice: Option<&Value>, ignored: &mut Noted) {
    const KNOWN: [&str; 6] = ["function", "custom", "allowed_tools", "auto", TOOL_SEARCH, LOCAL_SHELL];
    let kind = choice.and_then(|choice| choice["type"].as_str());
    if let Some(kind) = kind.filter(|kind| !KNOWN.contains(kind)) {
        ignored.note(kind);
    }
}

impl Declared {
    fn add(&mut self, tool: &Value, namespace: Option<&str>, path: &str) -> Result<(), Reject> {
        let (definition, kind) = match tool["type"].as_str().unwrap_or_default() {
            "function" => (function(tool, path)?, CallKind::Function),
            "custom" => (custom(tool, path)?, CallKind::Custom),
            "namespace" => return self.add_namespace(tool, path),
            "tool_search" if tool["execution"] == "client" => (tool_search(tool), CallKind::ToolSearch),
            "local_shell" => (local_shell(), CallKind::LocalShell),
            kind => {
                self.ignored.note(kind);
                return Ok(());
            }
        };
        self.toolbox.add(definition, namespace, kind);
        let name = self.toolbox.tools.last().map(|tool| tool.name.clone()).unwrap_or_default();
        if self.names.contains(&name) {
            let text = format!("{path}: another tool is called {name:?} as well; give each a name of its own");
            return Err(invalid(path, text));
        }
        self.policies.extend(policy(tool, path)?.map(|policy| (name.clone(), policy)));
        self.names.insert(name);
        Ok(())
    }

    fn add_namespace(&mut self, tool: &Value, path: &str) -> Result<(), Reject> {
        let name = named(tool, path)?;
        for (position, inner) in tool["tools"].as_array().into_iter().flatten().enumerate() {
            self.add(inner, Some(&name), &format!("{path}.tools[{position}]"))?;
        }
        Ok(())
    }
}

fn named(tool: &Value, path: &str) -> Result<String, Reject> {
    let name = text(tool, "name", path)?.filter(|name| !name.is_empty());
    name.ok_or_else(|| invalid(format!("{path}.name"), format!("{path}.name is missing")))
}

fn text(tool: &Value, name: &str, path: &str) -> Result<Option<String>, Reject> {
    match tool.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(invalid(format!("{path}.{name}"), format!("{path}.{name} must be a string"))),
    }
}

/// A function, in either API's shape.
fn function(tool: &Value, path: &str) -> Result<ToolDefinition, Reject> {
    let (function, path) = match tool.get("function") {
        Some(function) => (function, format!("{path}.function")),
        None => (tool, path.to_owned()),
    };
    Ok(ToolDefinition {
        name: named(function, &path)?,
        description: text(function, "description", &path)?,
        parameters: function.get("parameters").cloned().unwrap_or_default(),
    })
}

/// A tool that takes any text, in either API's shape: a function of one text, with what the text must look like.
fn custom(tool: &Value, path: &str) -> Result<ToolDefinition, Reject> {
    let (tool, path) = match tool.get("custom") {
        Some(custom) => (custom, format!("{path}.custom")),
        None => (tool, path.to_owned()),
    };
    let format = &tool["format"];
    let format = format.get("grammar").unwrap_or(format);
    let form = match (format["syntax"].as_str(), format["definition"].as_str()) {
        (Some(syntax), Some(definition)) => format!("Text of this {syntax} grammar:\n{definition}"),
        _ => "Any text.".to_owned(),
    };
    let mut properties = Map::new();
    properties.insert(CUSTOM_ARGUMENT.to_owned(), json!({"type": "string", "description": form}));
    Ok(ToolDefinition {
        name: named(tool, &path)?,
        description: text(tool, "description", &path)?,
        parameters: json!({"type": "object", "properties": properties, "required": [CUSTOM_ARGUMENT]}),
    })
}

fn tool_search(tool: &Value) -> ToolDefinition {
    ToolDefinition {
        name: TOOL_SEARCH.to_owned(),
        description: tool["description"].as_str().map(str::to_owned),
        parameters: tool.get("parameters").cloned().unwrap_or_default(),
    }
}

/// The command of OpenAI's shell call, in its own fields.
fn local_shell() -> ToolDefinition {
    ToolDefinition {
        name: LOCAL_SHELL.to_owned(),
        description: Some("Runs a command on the user's machine and gives its output.".to_owned()),
        parameters: json!({
            "type": "object",
            "properties": {
                "command": {"type": "array", "items": {"type": "string"}, "description": "Program and arguments."},
                "working_directory": {"type": "string"},
                "timeout_ms": {"type": "integer"},
            },
            "required": ["command"],
        }),
    }
}

/// The choice of tools in the names that the model sees. What chooses a tool that is not run here chooses nothing.
pub(crate) fn visible_choice(choice: &Value, toolbox: &Toolbox) -> Value {
    let visible = |tool: &Value| match tool["type"].as_str() {
        Some("function" | "custom") => {
            let inner = || tool.get("function").or_else(|| tool.get("custom"))?["name"].as_str();
            let name = tool["name"].as_str().or_else(inner);
            Some(json!({"type": "function", "name": resolved(name?, tool["namespace"].as_str(), toolbox)}))
        }
        Some(TOOL_SEARCH) => Some(json!({"type": "function", "name": TOOL_SEARCH})),
        Some(LOCAL_SHELL) => Some(json!({"type": "function", "name": LOCAL_SHELL})),
        _ => None,
    };
    match choice["type"].as_str() {
        Some("function" | "custom") => visible(choice).unwrap_or_else(|| choice.clone()),
        Some("allowed_tools") => {
            let allowed = choice.get("allowed_tools").unwrap_or(choice);
            let Some(tools) = allowed["tools"].as_array() else { return choice.clone() };
            let (given, tools) = (tools.len(), tools.iter().filter_map(visible).collect::<Vec<_>>());
            if tools.is_empty() && given > 0 && allowed["mode"] != "required" {
                return "none".into();
            }
            json!({"type": "allowed_tools", "mode": allowed["mode"], "tools": tools})
        }
        // Words, and what is no choice; the rest names a tool by its kind.
        None | Some("auto") => choice.clone(),
        Some(_) => visible(choice)
            .filter(|choice| toolbox.tools.iter().any(|tool| choice["name"] == tool.name))
            .unwrap_or_else(|| "auto".into()),
    }
}

/// The name that the model sees of a tool that a client names, with its namespace or without.
fn resolved(name: &str, namespace: Option<&str>, toolbox: &Toolbox) -> String {
    let visible = visible_name(namespace, name);
    if toolbox.tools.iter().any(|tool| tool.name == visible) || namespace.is_some() {
        return visible;
    }
    let mut shapes = toolbox.shapes.iter();
    shapes.find(|(_, shape)| shape.name == name).map_or(visible, |(visible, _)| visible.clone())
}

/// Tools as a client declares them.
pub(crate) fn wire(toolbox: &Toolbox) -> Vec<Value> {
    let mut list: Vec<Value> = Vec::new();
    for tool in &toolbox.tools {
        let shape = toolbox.shapes.get(&tool.name);
        let shown = wire_tool(tool, shape);
        let Some(namespace) = shape.and_then(|shape| shape.namespace.as_deref()) else {
            list.push(shown);
            continue;
        };
        let mut spaces = list.iter_mut().filter(|it| it["type"] == "namespace" && it["name"] == namespace);
        match spaces.next().and_then(|space| space["tools"].as_array_mut()) {
            Some(tools) => tools.push(shown),
            None => list.push(json!({"type": "namespace", "name": namespace, "tools": [shown]})),
        }
    }
    list
}

/// A tool as a client declared it, with what it left out.
pub(crate) fn declared_whole(mut tool: Value) -> Value {
    if tool["type"] == "custom" && tool["format"].is_null() {
        tool["format"] = json!({"type": "text"});
    }
    if let Some(inner) = tool.get_mut("tools").and_then(Value::as_array_mut) {
        for tool in inner {
            *tool = declared_whole(tool.take());
        }
    }
    tool
}

fn wire_tool(tool: &ToolDefinition, shape: Option<&ToolShape>) -> Value {
    let name = shape.map_or(&tool.name, |shape| &shape.name);
    let ToolDefinition { description, parameters, .. } = tool;
    match shape.map_or(CallKind::Function, |shape| shape.kind) {
        CallKind::Function => json!({
            "type": "function",
            "name": name,
            "description": description,
            "parameters": parameters,
            "strict": false,
        }),
        CallKind::Custom => declared_whole(json!({"type": "custom", "name": name, "description": description})),
        CallKind::ToolSearch => json!({
            "type": TOOL_SEARCH,
            "execution": "client",
            "description": description,
            "parameters": parameters,
        }),
        CallKind::LocalShell => json!({"type": LOCAL_SHELL}),
    }
}

/// How the calls of a tool are watched over, where it says so.
fn policy(tool: &Value, path: &str) -> Result<Option<ToolPolicy>, Reject> {
    let asked = tool.get("x_midstream").or_else(|| tool.get("function")?.get("x_midstream"));
    let Some(asked) = asked else { return Ok(None) };
    let at = format!("{path}.x_midstream");
    let policy: ToolPolicy =
        decode(asked).map_err(|reject| invalid(at.clone(), format!("{at}: {}", reject.message)))?;
    within_a_month(policy.timeout_ms, &format!("{at}.timeout_ms"))?;
    Ok(Some(policy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn box_of(tools: &Value) -> Declared {
        declared(tools.as_array().map(Vec::as_slice)).unwrap()
    }

    fn every_kind() -> Declared {
        box_of(&json!([
            {"type": "function", "name": "exec_command", "description": "Runs.", "parameters": {"type": "object"}},
            {"type": "namespace", "name": "agents", "description": "d", "tools": [
                {"type": "function", "name": "spawn", "parameters": {}},
                {"type": "function", "name": "wait", "parameters": {}},
            ]},
            {"type": "custom", "name": "apply_patch", "format":
                {"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}},
            {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": {"type": "object"}},
            {"type": "local_shell"},
            {"type": "web_search", "external_web_access": false},
            {"type": "nobody knows"},
            {"type": "web_search"},
        ]))
    }

    #[test]
    fn a_policy_is_of_the_tool_that_has_it_in_a_namespace_too_and_is_refused_by_its_place() {
        let watched = |timeout_ms: i64| {
            json!([{"type": "namespace", "name": "agents", "tools": [
                {"type": "function", "name": "wait", "x_midstream": {"timeout_ms": timeout_ms}},
                {"type": "function", "name": "spawn"},
            ]}])
        };
        let policies = box_of(&watched(5)).policies;
        assert_eq!(policies.keys().collect::<Vec<_>>(), ["agents__wait"]);
        assert_eq!(policies["agents__wait"].timeout_ms, Some(5));
        let refused = declared(watched(-1).as_array().map(Vec::as_slice)).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("tools[0].tools[0].x_midstream"));
    }

    #[test]
    fn the_model_sees_a_function_for_each_tool_that_can_be_called_and_the_rest_is_noted() {
        let Declared { toolbox, ignored, .. } = every_kind();
        let names: Vec<&str> = toolbox.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["exec_command", "agents__spawn", "agents__wait", "apply_patch", TOOL_SEARCH, LOCAL_SHELL]);
        assert_eq!(ignored.0, ["web_search", "nobody knows"]);
        let form = toolbox.tools[3].parameters.pointer("/properties/input/description").unwrap();
        assert!(form.as_str().unwrap().contains("start: \"a\""));
    }

    #[test]
    fn a_chat_declares_the_same_custom_tool_one_level_deeper() {
        let grammar = json!({"syntax": "lark", "definition": "start: \"a\""});
        let nested = json!({"name": "apply_patch", "format": {"type": "grammar", "grammar": grammar}});
        let chat = json!([{"type": "custom", "custom": nested}, {"type": "web_search"}]);
        let (of_chat, ignored) = of_chat(chat.as_array().map(Vec::as_slice), None).unwrap();
        assert_eq!(ignored.0, ["web_search"]);
        let Toolbox { tools, shapes, holds } = every_kind().toolbox;
        assert_eq!(of_chat.tools, [tools[3].clone()]);
        assert_eq!(of_chat.shapes["apply_patch"], shapes["apply_patch"]);
        assert_eq!(of_chat.holds, holds);
    }

    #[test]
    fn tools_are_shown_as_they_were_declared() {
        let shown = wire(&every_kind().toolbox);
        let kinds: Vec<&str> = shown.iter().map(|tool| tool["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["function", "namespace", "custom", TOOL_SEARCH, LOCAL_SHELL]);
        let inner: Vec<&str> =
            shown[1]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(inner, ["spawn", "wait"]);
    }

    #[test]
    fn a_choice_names_what_the_model_sees() {
        let toolbox = every_kind().toolbox;
        let named = |name: &str| json!({"type": "function", "name": name});
        for (choice, expected) in [
            (json!("required"), json!("required")),
            (json!({"type": "function", "name": "spawn"}), named("agents__spawn")),
            (json!({"type": "function", "namespace": "agents", "name": "wait"}), named("agents__wait")),
            (json!({"type": "custom", "name": "apply_patch"}), named("apply_patch")),
            (json!({"type": "function", "function": {"name": "exec_command"}}), named("exec_command")),
            (json!({"type": "custom", "custom": {"name": "apply_patch"}}), named("apply_patch")),
            (json!({"type": "of tomorrow", "name": "exec_command"}), json!("auto")),
            (json!({"type": "local_shell"}), named(LOCAL_SHELL)),
            (json!({"type": "web_search"}), json!("auto")),
            (
                json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}, named("spawn")]}),
                json!({"type": "allowed_tools", "mode": "auto", "tools": [named("agents__spawn")]}),
            ),
            (json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}), json!("none")),
        ] {
            assert_eq!(visible_choice(&choice, &toolbox), expected, "{choice}");
        }
    }

    #[test]
    fn two_tools_that_the_model_would_see_under_one_name_are_refused() {
        let twice = json!([
            {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]},
            {"type": "custom", "name": "a__b"},
        ]);
        let reject = declared(twice.as_array().map(Vec::as_slice)).unwrap_err();
        assert_eq!(reject.param.as_deref(), Some("tools[1]"));
    }

    #[test]
    fn of_the_kinds_that_mean_nothing_only_so_many_are_noted_and_none_at_length() {
        let mut noted = Noted::default();
        noted.note(&"\u{fc}".repeat(1000));
        (0..1000).for_each(|number| noted.note(&number.to_string()));
        assert_eq!((noted.0.len(), noted.0[0].len(), noted.0[1].as_str()), (NOTED_KINDS_MAX, 64, "0"));
    }

    #[test]
    fn a_tool_without_its_name_is_refused_at_its_place() {
        let nested = json!([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]);
        let reject = declared(nested.as_array().map(Vec::as_slice)).unwrap_err();
        assert_eq!(reject.param.as_deref(), Some("tools[0].tools[0].name"));
    }
}
