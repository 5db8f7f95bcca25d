//! The formats by name: what users choose, and what is stored in settings.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::families::{self, BARE_CALL, Family, Writing};
use super::reasoning::{self, Reasoning};

/// The name of the format that looks for nothing.
const NONE: &str = "none";

/// How a model writes tool calls.
#[derive(Clone, Copy)]
pub struct ToolFormat(Option<&'static Family>);

/// How a model marks its reasoning.
#[derive(Clone, Copy)]
pub struct ReasoningFormat(Option<&'static Reasoning>);

/// No format has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} is called {name}{}; there are: {known}", hint(name))]
pub struct UnknownFormat {
    kind: &'static str,
    name: String,
    known: String,
}

/// What is wrong with a name that is one elsewhere.
fn hint(name: &str) -> &'static str {
    match name.trim().to_ascii_lowercase().as_str() {
        "auto" => ", which chooses by the chat template of a model, and here is none",
        // vLLM's name for the form of MiniMax M1, which is JSON and not that of M2.
        "minimax" => "; say minimax_m2 or minimax_m3",
        _ => "",
    }
}

impl ToolFormat {
    /// Tool calls are not looked for.
    pub const NONE: Self = Self(None);

    /// Every format, `none` first.
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::NONE).chain(families::FAMILIES.iter().map(|family| Self(Some(family))))
    }

    /// Its own name.
    pub fn name(self) -> &'static str {
        self.0.map_or(NONE, |family| family.name)
    }

    /// Other names that it is known by.
    pub fn aliases(self) -> &'static [&'static str] {
        self.0.map_or(&[], |family| family.aliases)
    }

    /// How its models write calls; where nothing is looked for, as every model can.
    pub fn writing(self) -> &'static Writing {
        self.0.map_or(&BARE_CALL, |family| &family.writes)
    }

    pub(super) fn family(self) -> Option<&'static Family> {
        self.0
    }
}

impl ReasoningFormat {
    /// Reasoning is not looked for.
    pub const NONE: Self = Self(None);

    /// Every format, `none` first.
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::NONE).chain(reasoning::FORMATS.iter().map(|format| Self(Some(format))))
    }

    /// Its own name.
    pub fn name(self) -> &'static str {
        self.0.map_or(NONE, |format| format.name)
    }

    /// Other names that it is known by.
    pub fn aliases(self) -> &'static [&'static str] {
        self.0.map_or(&[], |format| format.aliases)
    }

    /// Whether an answer begins inside reasoning where the prompt does not say otherwise.
    pub fn starts_inside(self) -> bool {
        self.0.is_some_and(|format| format.starts_inside)
    }

    pub(super) fn format(self) -> Option<&'static Reasoning> {
        self.0
    }
}

impl Default for ToolFormat {
    fn default() -> Self {
        Self(families::FAMILIES.first().copied())
    }
}

impl Default for ReasoningFormat {
    fn default() -> Self {
        Self(reasoning::FORMATS.first())
    }
}

macro_rules! by_name {
    ($format:ty, $kind:literal) => {
        impl FromStr for $format {
            type Err = UnknownFormat;

            fn from_str(name: &str) -> Result<Self, UnknownFormat> {
                let wanted = name.trim().to_ascii_lowercase().replace(['-', '.'], "_");
                let is_it = |format: &Self| format.name() == wanted || format.aliases().contains(&wanted.as_str());
                Self::all().find(is_it).ok_or_else(|| UnknownFormat {
                    kind: $kind,
                    name: name.to_owned(),
                    known: Self::all().map(Self::name).collect::<Vec<_>>().join(", "),
                })
            }
        }

        impl PartialEq for $format {
            fn eq(&self, other: &Self) -> bool {
                self.name() == other.name()
            }
        }

        impl Eq for $format {}

        impl fmt::Debug for $format {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl fmt::Display for $format {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl Serialize for $format {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $format {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    };
}

by_name!(ToolFormat, "tool format");
by_name!(ReasoningFormat, "reasoning format");

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_name_and_alias_names_one_format() {
        let mut names = HashSet::new();
        for format in ToolFormat::all() {
            for name in std::iter::once(&format.name()).chain(format.aliases()) {
                assert!(names.insert(*name), "{name} twice");
                assert_eq!(name.parse(), Ok(format));
            }
        }
        names.clear();
        for format in ReasoningFormat::all() {
            for name in std::iter::once(&format.name()).chain(format.aliases()) {
                assert!(names.insert(*name), "{name} twice");
                assert_eq!(name.parse(), Ok(format));
            }
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = "qwem".parse::<ToolFormat>().unwrap_err().to_string();
        assert!(error.contains("no tool format is called qwem") && error.contains("none, hermes"), "{error}");
        let error = "auto".parse::<ToolFormat>().unwrap_err().to_string();
        assert!(error.contains("auto, which chooses by the chat template of a model"), "{error}");
        let error = "minimax".parse::<ToolFormat>().unwrap_err().to_string();
        assert!(error.contains("say minimax_m2 or minimax_m3"), "{error}");
        for (calls, thoughts) in
            [("llama4_json", "step3p5"), ("mimo", "mimo"), ("minimax_m2", "minimax_m2_append_think")]
        {
            assert!(calls.parse::<ToolFormat>().is_ok() && thoughts.parse::<ReasoningFormat>().is_ok(), "{calls}");
        }
        assert_eq!(serde_json::to_string(&ToolFormat::default()).unwrap(), "\"hermes\"");
        assert_eq!(serde_json::from_str::<ReasoningFormat>("\"basic\"").unwrap().name(), "qwen3");
        assert!(serde_json::from_str::<ReasoningFormat>("1").is_err());
    }
}
