//! `midstream completions` and `midstream man`: what shells and `man` want to know of the command line.

use std::io::{self, Write};

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

/// How completions are used.
const COMPLETIONS: &str = "\
Examples:
  midstream completions bash > ~/.local/share/bash-completion/completions/midstream
  midstream completions zsh > ~/.zfunc/_midstream
  midstream completions fish > ~/.config/fish/completions/midstream.fish";

/// How manual pages are used.
const PAGES: &str = "\
Examples:
  midstream man | man -l -
  midstream man conversations repair | man -l -
  midstream man --all /usr/local/share/man/man1     # midstream.1, midstream-serve.1, …";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = COMPLETIONS)]
pub(super) struct Arguments {
    /// The shell
    shell: Shell,
}

/// Which page.
#[derive(Args, Debug)]
#[command(after_help = PAGES)]
pub(super) struct Page {
    /// The command, as words; none is midstream itself
    #[arg(value_name = "COMMAND", conflicts_with = "all")]
    command: Vec<String>,
    /// Write the pages of all commands as files of this folder
    #[arg(long, value_name = "DIR")]
    all: Option<std::path::PathBuf>,
}

/// Writes what the shell reads to complete a line.
pub(super) fn completions(arguments: &Arguments, mut command: Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "midstream", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

/// Writes manual pages.
pub(super) fn page(page: &Page, mut command: Command) -> anyhow::Result<()> {
    // Names of commands within commands are only put together when it is built.
    command.build();
    if let Some(folder) = &page.all {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        for (name, text) in pages(&command)? {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        return Ok(());
    }
    Ok(io::stdout().write_all(&rendered(found(&command, &page.command)?)?)?)
}

/// The command of these words.
fn found<'a>(command: &'a Command, words: &[String]) -> anyhow::Result<&'a Command> {
    words.iter().try_fold(command, |command, word| {
        command.find_subcommand(word).with_context(|| {
            let known: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
            let name = command.get_bin_name().unwrap_or("midstream");
            format!("{name} has no command {word:?}; it has {}", known.join(", "))
        })
    })
}

fn rendered(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

/// Every command's page, under the name of its file.
fn pages(command: &Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut pages = vec![(format!("{name}.1"), rendered(command)?)];
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        pages.extend(self::pages(sub)?);
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::CommandLine;
    use super::*;

    fn built() -> Command {
        let mut command = CommandLine::command();
        command.build();
        command
    }

    #[test]
    fn every_command_has_a_page_under_the_name_that_man_looks_for() {
        let pages = pages(&built()).unwrap();
        let page = |name: &str| {
            let found = pages.iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("{name}"));
            String::from_utf8(found.1.clone()).unwrap()
        };
        assert!(page("midstream.1").contains("conversations"));
        // In roff a hyphen has a backslash in front of it.
        let repair = page("midstream-conversations-repair.1").replace('\\', "");
        assert!(repair.contains(".TH midstream-conversations-repair 1") && repair.contains("apply"), "{repair}");
        assert!(pages.iter().all(|(name, _)| !name.contains("help")), "what `help` repeats has no page of its own");
    }

    #[test]
    fn a_command_that_is_not_there_is_answered_with_those_that_are() {
        let (command, words) = (built(), |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(found(&command, &words("keys create")).unwrap().get_name(), "create");
        let said = found(&command, &words("keys make")).unwrap_err().to_string();
        assert!(said.contains("midstream keys has no command \"make\"; it has create, list, revoke"), "{said}");
    }
}
