//! Where each setting in force comes from.

use std::path::PathBuf;

use figment::Figment;
use serde::Serialize;

use super::variables::Variables;

/// Where a setting comes from; the later ones beat those in front of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// The settings' file.
    File,
    /// A variable `MIDSTREAM_…`.
    Environment,
    /// The command line.
    Flag,
}

/// The sources that were read, each by what it sets.
#[derive(Clone)]
pub struct Origins {
    /// The settings' file, where there is one.
    pub file: Option<PathBuf>,
    pub(super) of_file: Figment,
    pub(super) variables: Variables,
    pub(super) flags: Figment,
}

impl Origins {
    /// Where the setting of this name comes from.
    pub fn of(&self, setting: &str) -> Origin {
        match setting {
            setting if self.flags.contains(setting) => Origin::Flag,
            setting if self.variables.has(setting) => Origin::Environment,
            setting if self.of_file.contains(setting) => Origin::File,
            _ => Origin::Default,
        }
    }
}

impl Origin {
    /// How it is said.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Environment => "environment",
            Self::Flag => "flag",
        }
    }
}
