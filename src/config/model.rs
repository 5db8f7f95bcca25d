//! What is set for one model, and what of the settings for all holds for it.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{AUTO, Config, Error};
use crate::engine::settings::Price;
use crate::parse::{ReasoningFormat, ToolFormat, UnknownFormat};
use crate::prompt::Effort;

/// What can be set for one model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// See [`Config::chat_template`].
    pub chat_template: Option<String>,
    /// See [`Config::tool_format`].
    pub tool_format: Option<String>,
    /// See [`Config::reasoning`].
    pub reasoning: Option<String>,
    /// Other names that clients may ask for it by.
    pub aliases: Vec<String>,
    /// Words for how hard it is to think, and what each stands for: the model's own, or others for the usual ones.
    pub efforts: BTreeMap<String, Effort>,
    /// What its tokens cost.
    pub price: Option<Price>,
    /// What it can do, where an upstream has it.
    pub capabilities: Capabilities,
}

/// What an upstream's model can do. What is not set is not known, and the upstream says what it refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Capabilities {
    /// Whether it calls tools.
    pub tools: Option<bool>,
    /// Whether it can think before it answers.
    pub reasoning: Option<bool>,
    /// The most tokens of an answer.
    pub output_length: Option<u32>,
}

/// A format by its name; none where the template decides.
fn format_named<T: FromStr<Err = UnknownFormat>>(setting: &'static str, name: &str) -> Result<Option<T>, Error> {
    if name == AUTO {
        return Ok(None);
    }
    name.parse().map(Some).map_err(|source| Error::Format { setting, source })
}

impl Config {
    /// The chat template that is set for a model.
    pub fn chat_template_of(&self, model: &str) -> Option<&str> {
        let own = self.model.get(model).and_then(|model| model.chat_template.as_deref());
        own.or(self.chat_template.as_deref())
    }

    /// The tool format that is set for a model, unless its template decides.
    pub fn tool_format_of(&self, model: &str) -> Result<Option<ToolFormat>, Error> {
        let own = self.model.get(model).and_then(|model| model.tool_format.as_ref());
        format_named("tool_format", own.unwrap_or(&self.tool_format))
    }

    /// The reasoning format that is set for a model, unless its template decides.
    pub fn reasoning_of(&self, model: &str) -> Result<Option<ReasoningFormat>, Error> {
        let own = self.model.get(model).and_then(|model| model.reasoning.as_ref());
        format_named("reasoning", own.unwrap_or(&self.reasoning))
    }

    /// The words for how hard a model is to think that are set for it.
    pub fn efforts_of(&self, model: &str) -> BTreeMap<String, Effort> {
        self.model.get(model).map(|model| model.efforts.clone()).unwrap_or_default()
    }

    /// What a model's tokens cost, where that is set.
    pub fn price_of(&self, model: &str) -> Option<Price> {
        self.model.get(model).and_then(|model| model.price)
    }

    /// What an upstream's model can do, as far as that is set.
    pub fn capabilities_of(&self, model: &str) -> Capabilities {
        self.model.get(model).map(|model| model.capabilities.clone()).unwrap_or_default()
    }

    /// The other names that are set for a model.
    pub fn aliases_of(&self, model: &str) -> Vec<String> {
        self.model.get(model).map(|model| model.aliases.clone()).unwrap_or_default()
    }
}
