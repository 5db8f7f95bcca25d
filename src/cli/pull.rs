//! `midstream pull`: fetches one known model into the cache and prints where it lies, or lists the known ones.

use std::io::Write;

use clap::Args;

use crate::models::{self, DEFAULT_MODEL, Fetcher, KNOWN_MODELS};

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = about())]
pub(super) struct Arguments {
    /// The model's name; without it the known models are listed
    name: Option<String>,
}

/// Fetches the model; its path is the only line on standard output.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Some(name) = &arguments.name else {
        writeln!(std::io::stdout(), "{}", known_models())?;
        return Ok(());
    };
    let model = models::find(name).ok_or_else(|| models::Error::Unknown(name.clone()))?;
    let path = Fetcher::for_user()?.fetch(model)?;
    writeln!(std::io::stdout(), "{}", path.display())?;
    Ok(())
}

/// How it is used, and what there is.
fn about() -> String {
    format!(
        "Examples:\n  midstream pull {DEFAULT_MODEL}\n  midstream pull     # lists the known models\n\n{}",
        known_models()
    )
}

pub(super) fn known_models() -> String {
    let line = |model: &models::KnownModel| {
        format!("\n  {}  ({} MB, licence: {})", model.name, model.bytes / 1_000_000, model.licence)
    };
    format!("Known models:{}", KNOWN_MODELS.iter().map(line).collect::<String>())
}
