//! `midstream completions` and `midstream man`: what shells and `man` want to know of the command line.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::Shell;

/// What else there is to know.
const ABOUT: &str = "\
  midstream completions bash > ~/.local/share/bash-completion/completions/midstream
  midstream completions zsh > ~/.zfunc/_midstream
  midstream completions fish > ~/.config/fish/completions/midstream.fish";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = ABOUT)]
pub(super) struct Arguments {
    /// The shell
    shell: Shell,
}

/// Writes what the shell reads to complete a line.
pub(super) fn completions(arguments: &Arguments, mut command: Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "midstream", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

/// Writes the manual page.
pub(super) fn page(command: Command) -> anyhow::Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(io::stdout().write_all(&page)?)
}
