//! Tools of other kinds than functions: the model sees a function in any case, and the client what it declared.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::item::{Item, ItemBody};
use super::purpose::ToolsAllowed;
use super::response_config::ResponseConfig;
use crate::engine::settings::{Callable, InputRule};
use crate::prompt::ToolDefinition;

/// The namespace whose tools are called without one.
const DEFAULT_NAMESPACE: &str = "functions";
/// The one argument of the function that stands for a tool that takes any text.
pub use crate::engine::settings::INPUT as CUSTOM_ARGUMENT;

/// What kind of tool is called, and so how the call and its result look to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// Arguments by a schema.
    #[default]
    Function,
    /// One text.
    Custom,
    /// A search for further tools, by the client.
    ToolSearch,
    /// A command that the client runs.
    LocalShell,
}

impl CallKind {
    /// Whether it is the ordinary kind.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    pub fn is_function(&self) -> bool {
        *self == Self::Function
    }

    /// Whether a stream shows how the call's arguments grow.
    pub fn is_streamed(self) -> bool {
        matches!(self, Self::Function | Self::Custom)
    }

    /// The prefixes of the ids of calls and of results.
    pub fn id_prefixes(self) -> (&'static str, &'static str) {
        match self {
            Self::Function => ("fc", "fco"),
            Self::Custom => ("ctc", "ctco"),
            Self::ToolSearch => ("tsc", "tso"),
            Self::LocalShell => ("lsh", "lsho"),
        }
    }
}

/// What a function that the model sees stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolShape {
    /// The tool's name, without its namespace.
    pub name: String,
    /// The namespace that it was declared in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its kind.
    #[serde(default, skip_serializing_if = "CallKind::is_function")]
    pub kind: CallKind,
}

/// What functions stand for, by the names that the model sees. A plain function has no entry.
pub type ToolShapes = BTreeMap<String, ToolShape>;

/// Tools, as the model sees them and as they were declared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Toolbox {
    /// As the model sees them.
    pub tools: Vec<ToolDefinition>,
    /// What those stand for that are no plain functions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shapes: ToolShapes,
    /// What calls of them are held to, by the names that the model sees.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub holds: BTreeMap<String, Hold>,
}

/// What a tool's calls are held to, wherever it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "to", rename_all = "snake_case")]
pub enum Hold {
    /// The schema of its arguments.
    Schema,
    /// The rule of the text that it takes.
    Input {
        /// The rule.
        rule: InputRule,
    },
}

impl Toolbox {
    /// Adds a tool. `definition` has its own name, which the model sees behind its namespace's.
    pub fn add(&mut self, mut definition: ToolDefinition, namespace: Option<&str>, kind: CallKind) {
        let namespace = namespace.filter(|namespace| *namespace != DEFAULT_NAMESPACE).map(str::to_owned);
        let name = std::mem::take(&mut definition.name);
        definition.name = visible_name(namespace.as_deref(), &name);
        if namespace.is_some() || !kind.is_function() {
            self.shapes.insert(definition.name.clone(), ToolShape { name, namespace, kind });
        }
        self.tools.push(definition);
    }

    /// Adds those of another box that are not here by their names.
    pub fn take(&mut self, other: &Self) {
        for tool in &other.tools {
            if self.tools.iter().any(|known| known.name == tool.name) {
                continue;
            }
            self.tools.push(tool.clone());
            let entry = |shape: &ToolShape| (tool.name.clone(), shape.clone());
            self.shapes.extend(other.shapes.get(&tool.name).map(entry));
            self.holds.extend(other.holds.get(&tool.name).map(|hold| (tool.name.clone(), hold.clone())));
        }
    }

    /// How a tool is called here: by its schema where it must be called or says so.
    pub fn callable(&self, name: &str, must: bool) -> Callable {
        let hold = self.holds.get(name);
        let input = match hold {
            Some(Hold::Input { rule }) => Some(rule.clone()),
            _ => None,
        };
        Callable { name: name.to_owned(), by_schema: must || hold.is_some(), input }
    }
}

/// All tools that items of these turns brought.
pub fn brought<'a>(items: impl Iterator<Item = &'a Item>) -> Toolbox {
    let mut all = Toolbox::default();
    for item in items {
        if let ItemBody::AdditionalTools { toolbox, .. } = &item.body {
            all.take(toolbox);
        }
    }
    all
}

/// The name that the model sees of a tool.
pub fn visible_name(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| *namespace != DEFAULT_NAMESPACE) {
        None => name.to_owned(),
        Some(namespace) if namespace.ends_with("__") => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

/// What the model's call of a function stands for.
pub(super) fn shape_of(shapes: &ToolShapes, name: String) -> ToolShape {
    let plain = ToolShape { name, namespace: None, kind: CallKind::Function };
    shapes.get(&plain.name).cloned().unwrap_or(plain)
}

impl ResponseConfig {
    /// The tools that calls are read and held by: those of the prompt's head, and those that were found.
    pub fn known_tools(&self) -> Cow<'_, [ToolDefinition]> {
        match &self.extras.found_tools[..] {
            [] => Cow::Borrowed(&self.tools),
            found => Cow::Owned([&self.tools, found].concat()),
        }
    }

    /// Adds the tools that items of the transcript brought, unless the request wants none. A tool that has the name of
    /// an earlier one is that one.
    pub fn take_tools<'a>(&mut self, items: impl Iterator<Item = &'a Item>) {
        if self.tools_allowed == ToolsAllowed::None {
            return;
        }
        let mut known: HashSet<String> = self.known_tools().iter().map(|tool| tool.name.clone()).collect();
        let mut calls = self.constraint.as_mut().and_then(|constraint| constraint.calls.as_mut());
        // Those of the request's own items are held to what they were declared with.
        let held: HashSet<String> = calls.iter().flat_map(|calls| &calls.tools).map(|tool| tool.name.clone()).collect();
        calls = calls.filter(|_| self.tools_allowed == ToolsAllowed::All);
        for item in items {
            let ItemBody::AdditionalTools { toolbox, found } = &item.body else { continue };
            for tool in &toolbox.tools {
                if !known.insert(tool.name.clone()) {
                    continue;
                }
                let is_held = held.contains(&tool.name);
                // The head of the prompt stays when something is found.
                let list = if *found { &mut self.extras.found_tools } else { &mut self.tools };
                list.push(tool.clone());
                if let Some(calls) = calls.as_mut().filter(|_| !is_held) {
                    calls.tools.push(toolbox.callable(&tool.name, false));
                }
                if let Some(shape) = toolbox.shapes.get(&tool.name) {
                    self.tool_shapes.insert(tool.name.clone(), shape.clone());
                }
            }
        }
    }
}

/// What a search found, as the model sees it: tools in their visible names. What is no list of tools stays as it is.
pub(super) fn found_tools(output: &str) -> String {
    let Ok(Value::Array(list)) = serde_json::from_str(output) else { return output.to_owned() };
    let mut visible = Vec::with_capacity(list.len());
    for tool in list {
        let space = tool["name"].as_str().filter(|_| tool["type"] == "namespace");
        match (space, tool["tools"].as_array()) {
            (Some(space), Some(inner)) => visible.extend(inner.iter().map(|tool| renamed(tool.clone(), space))),
            _ => visible.push(tool),
        }
    }
    Value::from(visible).to_string()
}

fn renamed(mut tool: Value, namespace: &str) -> Value {
    if let Some(name) = tool["name"].as_str() {
        tool["name"] = visible_name(Some(namespace), name).into();
    }
    tool
}

/// The text that a tool that takes any text is called with, as far as the arguments have it. It only grows while they
/// do: a prefix of arguments has a prefix of the text.
pub fn custom_input(arguments: &str) -> String {
    match quoted_input(arguments) {
        Head::Text(rest) => unquoted(rest),
        Head::Begins => String::new(),
        // The model wrote something else: the tool gets it as it is.
        Head::Other => arguments.to_owned(),
    }
}

/// What the last piece of the arguments, of so many bytes, added to that text.
pub fn custom_input_behind(arguments: &str, piece_bytes: usize) -> String {
    let before = custom_input(&arguments[..arguments.len().saturating_sub(piece_bytes)]);
    custom_input(arguments).split_off(before.len())
}

/// What a call's arguments begin with.
enum Head<'a> {
    /// The one argument, and this behind its opening quote.
    Text(&'a str),
    /// It may become that.
    Begins,
    /// Something else.
    Other,
}

fn quoted_input(arguments: &str) -> Head<'_> {
    let mut rest = arguments;
    for part in ["{", &format!("\"{CUSTOM_ARGUMENT}\""), ":", "\""] {
        rest = rest.trim_start();
        match rest.strip_prefix(part) {
            Some(behind) => rest = behind,
            None if part.starts_with(rest) => return Head::Begins,
            None => return Head::Other,
        }
    }
    Head::Text(rest)
}

/// The text of a JSON string behind its opening quote, up to its end or to the last whole character.
fn unquoted(quoted: &str) -> String {
    let mut text = String::with_capacity(quoted.len());
    let mut rest = quoted;
    while let Some(place) = rest.find(['"', '\\']) {
        text.push_str(&rest[..place]);
        rest = &rest[place..];
        let Some((character, length)) = escaped(rest) else { return text };
        text.push(character);
        rest = &rest[length..];
    }
    text.push_str(rest);
    text
}

/// The character of the escape that the text begins with, and the escape's bytes; none at the string's end, and where
/// the escape is not whole.
fn escaped(text: &str) -> Option<(char, usize)> {
    let kind = *text.as_bytes().get(1).filter(|_| text.starts_with('\\'))?;
    let simple = match kind {
        b'n' => '\n',
        b't' => '\t',
        b'r' => '\r',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'u' => return unicode(text),
        // A stray backslash before anything else stands for itself: its second character follows as text.
        b'"' | b'\\' | b'/' => char::from(kind),
        _ => return Some(('\\', 1)),
    };
    Some((simple, 2))
}

fn unicode(text: &str) -> Option<(char, usize)> {
    let unit = |from: usize| u32::from_str_radix(text.get(from..from + 4)?, 16).ok();
    if text.len() < 6 {
        return None;
    }
    let Some(first) = unit(2) else { return Some((char::REPLACEMENT_CHARACTER, 2)) };
    if !(0xd800..0xdc00).contains(&first) {
        return Some((char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), 6));
    }
    let behind = &text[6..];
    if !behind.starts_with("\\u") {
        // It may still come.
        let may_come = "\\u".starts_with(behind);
        return (!may_come).then_some((char::REPLACEMENT_CHARACTER, 6));
    }
    if behind.len() < 6 {
        return None;
    }
    let second = unit(8).filter(|second| (0xdc00..0xe000).contains(second));
    Some(match second {
        Some(second) => {
            let point = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            (char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
        }
        None => (char::REPLACEMENT_CHARACTER, 6),
    })
}

/// The arguments that stand for a tool's text.
pub fn custom_arguments(input: &str) -> String {
    serde_json::json!({ CUSTOM_ARGUMENT: input }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_out_of_its_arguments_as_it_went_in() {
        for text in ["", "a \"b\" \\ c\n\t\u{8}/", "\u{1F44B} ü \u{0}", "*** Begin Patch\n+{\"x\": 1}\n"] {
            assert_eq!(custom_input(&custom_arguments(text)), text);
        }
        let spaced = " { \"input\" : \"a\\u00fc\\ud83d\\udc4b\" } ";
        assert_eq!(custom_input(spaced), "a\u{fc}\u{1F44B}");
    }

    #[test]
    fn the_text_only_grows_while_its_arguments_do() {
        let cases = [
            "{\"input\": \"a\\\"\\\\ \\u00fc\\ud83d\\udc4b \\ud83dx \\q\u{1F44B}\", \"b\": 1}",
            "{\"cmd\": \"ls\"}",
            "ls -l",
        ];
        for arguments in cases {
            let mut before = String::new();
            for (end, _) in arguments.char_indices().chain([(arguments.len(), ' ')]) {
                let now = custom_input(&arguments[..end]);
                assert!(now.starts_with(&before), "{arguments:?} up to {end}: {now:?} behind {before:?}");
                before = now;
            }
        }
    }

    #[test]
    fn what_is_no_single_text_is_the_tools_as_it_is() {
        for arguments in ["{\"cmd\": \"ls\"}", "ls -l", "[1]", "{\"input\": 5}"] {
            assert_eq!(custom_input(arguments), arguments);
        }
    }

    #[test]
    fn the_model_is_told_of_found_tools_by_the_names_that_it_can_call() {
        let found = r#"[{"type":"namespace","name":"agents","tools":[{"type":"function","name":"spawn"}]},
            {"type":"function","name":"look"}]"#;
        let told: Value = serde_json::from_str(&found_tools(found)).unwrap();
        let names: Vec<&str> = told.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["agents__spawn", "look"]);
        assert_eq!(found_tools("nothing"), "nothing");
    }

    #[test]
    fn a_namespace_stands_in_front_of_a_tools_name_but_for_the_default_one() {
        let plain = |name: &str| ToolDefinition {
            name: name.to_owned(),
            description: None,
            parameters: serde_json::Value::Null,
        };
        let mut toolbox = Toolbox::default();
        toolbox.add(plain("exec"), Some("functions"), CallKind::Custom);
        toolbox.add(plain("wait"), Some("functions"), CallKind::Function);
        toolbox.add(plain("spawn"), Some("agents"), CallKind::Function);
        toolbox.add(plain("ls"), Some("mcp__files__"), CallKind::Function);
        let names: Vec<&str> = toolbox.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["exec", "wait", "agents__spawn", "mcp__files__ls"]);
        let shape = shape_of(&toolbox.shapes, "agents__spawn".to_owned());
        assert_eq!((shape.name.as_str(), shape.namespace.as_deref()), ("spawn", Some("agents")));
        assert_eq!(shape_of(&toolbox.shapes, "exec".to_owned()).kind, CallKind::Custom);
        assert_eq!(shape_of(&toolbox.shapes, "wait".to_owned()).kind, CallKind::Function);
    }
}
