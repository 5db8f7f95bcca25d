//! Tools that come and go in the middle of a conversation. The head of the prompt stays as it was: what changes is
//! said where it changes.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::text::{decode_at, missing};
use super::tools::{self, Declared};
use crate::api::errors::invalid;
use crate::conversation::{CallKind, Reject, Toolbox};
use crate::prompt::ToolDefinition;
use crate::protocol::messages::InputBlock;

/// What has changed so far.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Tools that cannot be used now.
    pub(super) removed: HashSet<String>,
    /// Tools that a message defined.
    defined: BTreeMap<String, ToolDefinition>,
    /// Tools that the model was told of behind the head of the prompt.
    told: HashSet<String>,
    /// Those of them that are new.
    fresh: Vec<String>,
}

impl Changes {
    /// The tools that became callable since this was asked last.
    pub(super) fn found(&mut self, declared: &Declared) -> Option<Toolbox> {
        let mut toolbox = Toolbox::default();
        for name in std::mem::take(&mut self.fresh) {
            if let Some(tool) = self.find(&name, declared) {
                toolbox.add(tool.clone(), None, CallKind::Function);
            }
        }
        (!toolbox.tools.is_empty()).then_some(toolbox)
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
            let tool = tools::definition(&decode_at(definition, &at)?, &at)?;
            let name = tool.name.clone();
            self.defined.insert(name.clone(), tool);
            return self.added(&name, declared, &at);
        }
        self.added(named(change, &at)?, declared, &at)
    }

    fn added(&mut self, name: &str, declared: &Declared, at: &str) -> Result<String, Reject> {
        let again = self.removed.remove(name);
        let tool = self.find(name, declared).ok_or_else(|| nobody(name, at))?;
        let known = self.told.contains(name) || declared.shown.iter().any(|shown| shown.name == name);
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
        let shown = declared.shown.iter().any(|tool| tool.name == name);
        if !shown && self.told.insert(name.to_owned()) {
            self.fresh.push(name.to_owned());
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
