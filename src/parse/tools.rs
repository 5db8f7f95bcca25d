//! The tools that a request declares, as far as parsers need them.

use std::sync::Arc;

use serde_json::Value;

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredTool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; null where none was given.
    pub parameters: Value,
}

/// All tools of one request; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools(Arc<[DeclaredTool]>);

impl Tools {
    pub(super) fn new(tools: Vec<DeclaredTool>) -> Self {
        Self(tools.into())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.0.iter().any(|tool| tool.name == name)
    }

    /// The schema of a tool's arguments, if the tool is declared with one.
    pub(super) fn schema(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|tool| tool.name == name).map(|tool| &tool.parameters).filter(|schema| schema.is_object())
    }
}
