//! The command line: one file per subcommand, `serve` where none is named.
//!
//! Turns arguments into validated values and errors into one sentence and an exit code. What a subcommand does
//! lives elsewhere, except for `chat`, which is a client of the server's public API and of nothing else.

mod bench;
mod chat;
mod client;
mod codex_catalog;
mod config;
mod conversations;
mod doctor;
mod findings;
mod health;
mod keys;
mod machine;
mod manual;
mod parse;
mod pull;
mod render;
mod serve;
mod tokenize;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

pub use serve::Prepared;

/// Where else settings come from.
const SETTINGS: &str = "\
A variable MIDSTREAM_NAME sets what --name sets; MIDSTREAM_CACHE_DIR, _ISA and _LOG: models, instruction set, log.
The file midstream.toml (or --config) sets these and more; midstream.example.toml shows every setting.";

/// How it is served, and where else settings come from.
const SERVE: &str = "\
Examples:
  midstream serve                                    # a small model, on 127.0.0.1:8080
  midstream serve --model ./my.gguf --threads 4 --data-dir /var/lib/midstream
  midstream serve --listen 0.0.0.0:8443 --tls-cert-file cert.pem --tls-key-file key.pem

A variable MIDSTREAM_NAME sets what --name sets; MIDSTREAM_CACHE_DIR, _ISA and _LOG: models, instruction set, log.
The file midstream.toml (or --config) sets these and more; midstream.example.toml shows every setting.";

/// What is done with the catalogue.
const CATALOG: &str = "\
Examples:
  midstream codex-catalog --model ./my.gguf > ~/.codex/midstream.json

It takes the flags of `midstream serve`. The file is named in ~/.codex/config.toml, with its whole path:
  model_catalog_json = \"/home/me/.codex/midstream.json\"";

/// Serves language models to agents; conversations are durable and can be steered and cancelled in mid-answer.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, after_help = SETTINGS)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Arguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve models over HTTP and WebSocket (the default)
    #[command(after_help = SERVE)]
    Serve(serve::Arguments),
    /// Fetch a model into the cache
    Pull(pull::Arguments),
    /// Talk to a running server from the terminal
    Chat(chat::Arguments),
    /// Write the prompt of a request, or say why a prompt does not begin with another
    Render(render::Arguments),
    /// Read a model's output from standard input and print reasoning, text and calls as JSON lines
    Parse(parse::Arguments),
    /// Look at the machine, the conversations and the models, and say what is wrong and what to do
    Doctor(doctor::Doctor),
    /// Say whether a server lives, or is ready
    Health(health::Arguments),
    /// Write what Codex must know of the models: the file for its setting `model_catalog_json`
    #[command(after_help = CATALOG)]
    CodexCatalog(serve::Arguments),
    /// Measure how fast a model runs here, beside what the machine can do at most
    Bench(bench::Arguments),
    /// Count the tokens of a text
    Tokenize(tokenize::Arguments),
    /// List, show, delete, dump, load, compact or repair conversations while no server runs
    Conversations(conversations::Arguments),
    /// Create, list and revoke API keys, also while a server runs
    Keys(keys::Arguments),
    /// Check the settings, or show those in force and where each comes from
    Config(config::Arguments),
    /// Write what a shell reads to complete a line that begins with midstream
    Completions(manual::Arguments),
    /// Write the manual page of midstream, or of one of its commands
    Man(manual::Page),
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
            Command::Render(arguments) => render::run(&arguments),
            Command::Parse(arguments) => parse::run(&arguments),
            Command::Doctor(arguments) => doctor::run(arguments),
            Command::Health(arguments) => health::run(&arguments),
            Command::CodexCatalog(arguments) => codex_catalog::run(arguments),
            Command::Bench(arguments) => bench::run(&arguments),
            Command::Tokenize(arguments) => tokenize::run(&arguments),
            Command::Conversations(arguments) => conversations::run(arguments),
            Command::Keys(arguments) => keys::run(arguments),
            Command::Config(arguments) => config::run(arguments),
            Command::Completions(arguments) => manual::completions(&arguments, CommandLine::command()),
            Command::Man(page) => manual::page(&page, CommandLine::command()),
        },
        Err(refusal) => {
            // Help and version come this way too; clap knows where each belongs and with which exit code.
            let _ = refusal.print();
            return ExitCode::from(u8::try_from(refusal.exit_code()).unwrap_or(2));
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads what is written has seen enough: `midstream conversations dump | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // With standard error closed the exit code still tells.
            let _ = writeln!(std::io::stderr(), "midstream: {}", sentence(&error));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let closed = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.chain().filter_map(|cause| cause.downcast_ref()).any(closed)
        || error.downcast_ref() == Some(&crate::store::Error::ReaderGone)
}

/// The error with its causes; a cause that an outer text already holds is not said again.
fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> CommandLine {
        CommandLine::try_parse_from(line.split_whitespace()).unwrap()
    }

    #[test]
    fn the_definition_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn serve_is_the_default_and_takes_the_same_flags() {
        let flags = "--listen 127.0.0.1:0 --data-dir d --model a --model b.gguf --threads 2 --chat-template hermes";
        let Some(Command::Serve(named)) = parse(&format!("midstream serve {flags}")).command else {
            panic!("serve was named")
        };
        let line = parse(&format!("midstream {flags}"));
        assert!(line.command.is_none());
        assert_eq!(format!("{:?}", line.serve), format!("{named:?}"));
    }

    #[test]
    fn an_error_says_each_cause_once() {
        let cause = std::io::Error::other("not a GGUF file");
        let error = anyhow::Error::new(cause).context("cannot use m.gguf: not a GGUF file").context("loading m.gguf");
        assert_eq!(sentence(&error), "loading m.gguf: cannot use m.gguf: not a GGUF file");
        assert_eq!(sentence(&anyhow::anyhow!("inner").context("outer")), "outer: inner");
    }

    #[test]
    fn a_refused_address_is_answered_with_what_to_write_and_no_threads_mean_automatic() {
        let refused = |line: &str| CommandLine::try_parse_from(line.split_whitespace()).unwrap_err().to_string();
        assert!(refused("midstream --listen 8081").contains("write ADDRESS:PORT, such as 127.0.0.1:8081"));
        parse("midstream --listen localhost:8091 --threads 0");
    }

    #[test]
    fn the_help_of_every_command_has_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let groups = command.get_subcommands().filter(|sub| sub.get_name() != "help");
            for sub in groups {
                let path = format!("{path} {}", sub.get_name());
                let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                // Those of a group may stand with the group.
                let above = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains(&format!("  {path}")) || above.contains(&format!("  {path}")), "{path}: {help}");
                check(sub, &path);
            }
        }
        check(&CommandLine::command(), "midstream");
    }

    #[test]
    fn help_names_the_other_sources_of_settings() {
        for line in ["midstream --help", "midstream serve --help"] {
            let help = CommandLine::try_parse_from(line.split_whitespace()).unwrap_err().to_string();
            assert!(help.contains("MIDSTREAM_NAME") && help.contains("midstream.toml"), "{help}");
        }
    }

    #[test]
    fn pull_needs_no_name_to_list_what_there_is() {
        assert!(matches!(parse("midstream pull").command, Some(Command::Pull(_))));
        assert!(pull::known_models().contains("\n  smollm2-135m-instruct  (98 MB, licence: Apache-2.0)"));
    }

    #[test]
    fn flags_of_the_default_before_another_subcommand_are_refused() {
        let line = "midstream --threads 2 pull smollm2";
        assert!(CommandLine::try_parse_from(line.split_whitespace()).is_err());
    }
}
