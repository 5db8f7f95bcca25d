//! Tools that come and go in the middle of a conversation. The head of the prompt stays as it was: what changes is
//! said where it changes.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::text::{decode_at, missing};
use super::tools::{self, Declared};
use crate::api::errors::invalid;
use crate::conversation::{CallKind, Hold, Reject, Toolbox};
use crate::prompt::ToolDefinition;
use crate::protocol::messages::{InputBlock, ToolDeclaration};

/// What has changed so far.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Tools that cannot be used now.
    removed: HashSet<String>,
    /// Tools that a message defined.
    defined: BTreeMap<String, ToolDefinition>,
    /// The names of those whose input is held to their schema.
    strict: HashSet<String>,
    /// Tools that the model was told of behind the head of the prompt, in their order.
    told: Vec<String>,
    /// How many of them are not new.
    taken: usize,
}

impl Changes {
    /// The tools that became callable since this was asked last.
    pub(super) fn found(&mut self, declared: &Declared) -> Option<Toolbox> {
        let new = self.told.iter().skip(self.taken).filter_map(|name| self.find(name, declared));
        let toolbox = self.toolbox(new, declared);
        self.taken = self.told.len();
        (!toolbox.tools.is_empty()).then_some(toolbox)
    }

    /// The tools that can be called by now: those of the head and those that came, but for those that went.
    pub(super) fn callable(&self, declared: &Declared) -> Toolbox {
        let told = self.told.iter().filter_map(|name| self.find(name, declared));
        let here = declared.shown.iter().chain(told).filter(|tool| !self.removed.contains(&tool.name));
        self.toolbox(here, declared)
    }

    /// Whether none went of those that the model was told of.
    pub(super) fn is_all(&self) -> bool {
        self.removed.is_empty()
    }

    fn toolbox<'a>(&self, tools: impl Iterator<Item = &'a ToolDefinition>, declared: &Declared) -> Toolbox {
        let mut toolbox = Toolbox::default();
        for tool in tools {
            if declared.is_strict(&tool.name) || self.strict.contains(&tool.name) {
                toolbox.holds.insert(tool.name.clone(), Hold::Schema);
            }
            toolbox.add(tool.clone(), None, CallKind::Function);
        }
        toolbox
    }

    fn find<'a>(&'a self, name: &str, declared: &'a Declared) -> Option<&'a ToolDefinition> {
        declared.find(name).or_else(|| self.defined.get(name))
    }

    /// What a search's result says of a tool that it found.
    pub(super) fn refer(&mut self, name: &str, declared: &Declared, path: &str) -> Result<String, Reject> {
        let tool = self.find(name, declared).ok_or_else(|| nobody(name, path))?;
        let text = tools::told(tool);
        self.tell(name, declared);
        Ok(text)
    }

    /// What the model is told of a tool that can be used from here on.
    pub(super) fn add(&mut self, block: &InputBlock, declared: &Declared, path: &str) -> Result<String, Reject> {
        let change = change(block, path)?;
        let at = format!("{path}.tool");
        if change["type"] == "tool_definition" {
            let definition = change.get("definition").ok_or_else(|| missing(&at, "definition"))?;
            let at = format!("{at}.definition");
            let definition: ToolDeclaration = decode_at(definition, &at)?;
            let tool = tools::definition(&definition, &at)?;
            let name = tool.name.clone();
            if definition.strict == Some(true) {
                self.strict.insert(name.clone());
            }
            self.defined.insert(name.clone(), tool);
            return self.added(&name, declared, &at);
        }
        self.added(named(change, &at)?, declared, &at)
    }

    fn added(&mut self, name: &str, declared: &Declared, at: &str) -> Result<String, Reject> {
        let again = self.removed.remove(name);
        let tool = self.find(name, declared).ok_or_else(|| nobody(name, at))?;
        let known = self.told.iter().any(|told| told == name) || declared.shown.iter().any(|shown| shown.name == name);
        let text = match (known, again) {
            (false, _) => format!("This tool can be used from here on:\n{}", tools::told(tool)),
            (true, true) => format!("The tool {name} can be used again."),
            (true, false) => String::new(),
        };
        self.tell(name, declared);
        Ok(text)
    }

    /// What the model is told of a tool that cannot be used from here on.
    pub(super) fn remove(&mut self, block: &InputBlock, declared: &Declared, path: &str) -> Result<String, Reject> {
        let at = format!("{path}.tool");
        let name = named(change(block, path)?, &at)?;
        self.find(name, declared).ok_or_else(|| nobody(name, &at))?;
        self.removed.insert(name.to_owned());
        Ok(format!("The tool {name} cannot be used from here on."))
    }

    fn tell(&mut self, name: &str, declared: &Declared) {
        let is_known = |known: &String| known == name;
        if !declared.shown.iter().map(|tool| &tool.name).chain(&self.told).any(is_known) {
            self.told.push(name.to_owned());
        }
    }
}

fn change<'a>(block: &'a InputBlock, path: &str) -> Result<&'a Value, Reject> {
    block.tool.as_ref().ok_or_else(|| missing(path, "tool"))
}

fn named<'a>(change: &'a Value, at: &str) -> Result<&'a str, Reject> {
    if change["type"] != "tool_reference" {
        let text = format!("{at}.type must be tool_reference or, to add a tool, tool_definition");
        return Err(invalid(format!("{at}.type"), text));
    }
    change["name"].as_str().ok_or_else(|| missing(at, "name"))
}

fn nobody(name: &str, at: &str) -> Reject {
    invalid(at, format!("{at}: no tool is called {name:?}; declare it in tools"))
}
