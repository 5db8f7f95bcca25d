//! The command line: one file per subcommand, `serve` where none is named.
//!
//! Turns arguments into validated values and errors into one sentence and an exit code. What a subcommand does
//! lives elsewhere, except for `chat`, which is a client of the server's public API and of nothing else.

mod chat;
mod pull;
mod serve;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use serve::Prepared;

/// Serves language models to agents; conversations are durable and can be steered and cancelled in mid-answer.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Arguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve models over HTTP and WebSocket (the default)
    Serve(serve::Arguments),
    /// Fetch a model into the cache
    Pull(pull::Arguments),
    /// Talk to a running server from the terminal
    Chat(chat::Arguments),
}

/// Runs the program with the process's own arguments.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let outcome = match CommandLine::try_parse_from(arguments) {
        Ok(line) => match line.command.unwrap_or(Command::Serve(line.serve)) {
            Command::Serve(arguments) => serve::prepare(arguments).and_then(crate::app::run),
            Command::Pull(arguments) => pull::run(&arguments),
            Command::Chat(arguments) => chat::run(&arguments),
        },
        Err(refusal) => {
            // Help and version come this way too; clap knows where each belongs and with which exit code.
            let _ = refusal.print();
            return ExitCode::from(u8::try_from(refusal.exit_code()).unwrap_or(2));
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With standard error closed the exit code still tells.
            let _ = writeln!(std::io::stderr(), "midstream: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> CommandLine {
        CommandLine::try_parse_from(line.split_whitespace()).unwrap()
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }

    #[test]
    fn serve_is_the_default_and_takes_the_same_flags() {
        let flags = "--listen 127.0.0.1:0 --data-dir d --model a --model b.gguf --threads 2";
        let Some(Command::Serve(named)) = parse(&format!("midstream serve {flags}")).command else {
            panic!("serve was named")
        };
        let line = parse(&format!("midstream {flags}"));
        assert!(line.command.is_none());
        assert_eq!(format!("{:?}", line.serve), format!("{named:?}"));
    }

    #[test]
    fn flags_of_the_default_before_another_subcommand_are_refused() {
        let line = "midstream --threads 2 pull smollm2";
        assert!(CommandLine::try_parse_from(line.split_whitespace()).is_err());
    }
}
