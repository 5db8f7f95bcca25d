//! `midstream health`: whether a server answers, for what watches it and has no other program at hand.

use std::io::{self, Write};

use axum::http::Method;
use clap::Args;

use super::client::{Client, own_server};

/// How it is used.
const ABOUT: &str = "\
Examples:
  midstream health
  midstream health --ready --url https://localhost:8443

Exit code 0: it does. 1: it does not, and standard error says why.";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = ABOUT)]
pub(super) struct Arguments {
    /// The server [default: where the settings let it listen, else 127.0.0.1:8080]
    #[arg(long)]
    url: Option<String>,
    /// Ask whether it serves requests, not only whether it lives
    #[arg(long)]
    ready: bool,
}

/// Asks the server.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let url = arguments.url.clone().map_or_else(own_server, Ok)?;
    let path = if arguments.ready { "/readyz" } else { "/healthz" };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(Client::new(&url, None)?.exchange(Method::GET, path, None))?;
    let status = answer["status"].as_str().unwrap_or("it answered, but not as midstream does");
    Ok(writeln!(io::stdout(), "{status}")?)
}
