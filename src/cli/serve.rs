//! `midstream serve`: arguments and settings into what the server is started with.
//!
//! Fetches models that are not there yet; opens no port and no journal.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::access::Gate;
use crate::api::Tls;
use crate::config::{self, Config, Flags};
use crate::crash;
use crate::log;
use crate::models::{self, DEFAULT_MODEL, Fetcher, ModelFile};

/// What is set on the command line.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Where to listen [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = config::parse_listen)]
    listen: Option<SocketAddr>,
    /// The server's certificate in PEM: with it, it speaks TLS only
    #[arg(long, value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// The certificate's key in PEM
    #[arg(long, value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
    /// Where conversations are kept [default: midstream-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// A known model or a GGUF file; may be given several times [default: smollm2-135m-instruct]
    #[arg(long = "model", value_name = "NAME|FILE.gguf")]
    models: Vec<String>,
    /// A JSON file of scripted replies, served as the model `scripted`
    #[arg(long, value_name = "FILE")]
    scripted: Option<PathBuf>,
    /// Threads of the CPU engine; 0 takes what the process may use [default: 0]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The chat template: chatml, hermes, llama3, mistral, gemma, or a file [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// How all models write tool calls [default: auto, by the chat template]
    #[arg(long, value_name = "NAME")]
    tool_format: Option<String>,
    /// How all models mark reasoning [default: auto, by the chat template]
    #[arg(long, value_name = "NAME")]
    reasoning: Option<String>,
    /// The settings' file [default: midstream.toml, where it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Arguments {
    /// The settings' file, and what beats it.
    pub(super) fn into_flags(self) -> (Option<PathBuf>, Flags) {
        let Self { listen, tls_cert_file, tls_key_file, data_dir, models, scripted, threads, .. } = self;
        let Self { chat_template, tool_format, reasoning, config, .. } = self;
        let places = Flags { listen, tls_cert_file, tls_key_file, data_dir, ..Flags::default() };
        (config, Flags { models, scripted, threads, chat_template, tool_format, reasoning, ..places })
    }
}

/// Everything the server is started with.
#[derive(Debug)]
pub struct Prepared {
    /// The settings of all sources.
    pub config: Config,
    /// The models' files, on this machine.
    pub models: Vec<ModelFile>,
    /// The certificate, where there is one.
    pub tls: Option<Tls>,
}

/// Reads the settings and sees to the models' files.
pub(super) fn prepare(arguments: Arguments) -> anyhow::Result<Prepared> {
    crash::check().map_err(anyhow::Error::msg)?;
    log::check()?;
    let (file, flags) = arguments.into_flags();
    let config = Config::load(file.as_deref(), variables(), flags)?;
    config.check_reach(Gate::open(&config.data_dir)?.is_locked())?;
    check_script(&config)?;
    let tls = open_tls(&config)?;
    let models = resolve(&config)?;
    Ok(Prepared { config, models, tls })
}

/// Refuses a script that is not there.
pub(super) fn check_script(config: &Config) -> anyhow::Result<()> {
    match config.scripted.as_ref().filter(|path| !path.is_file()) {
        Some(scripted) => anyhow::bail!("the scripted file {} does not exist", scripted.display()),
        None => Ok(()),
    }
}

/// Reads the certificate that is set.
pub(super) fn open_tls(config: &Config) -> anyhow::Result<Option<Tls>> {
    let files = config.tls_cert_file.as_ref().zip(config.tls_key_file.as_ref());
    files.map(|(cert, key)| Tls::open(cert, key)).transpose().context("TLS")
}

/// The variables of the environment.
pub(super) fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)))
}

/// The configured models' files; the default model where nothing at all was named.
fn resolve(config: &Config) -> anyhow::Result<Vec<ModelFile>> {
    let names = match config.models.as_slice() {
        [] if config.scripted.is_some() || !config.upstream.is_empty() => return Ok(Vec::new()),
        [] => vec![DEFAULT_MODEL.to_owned()],
        named => named.to_vec(),
    };
    let fetcher = Fetcher::for_user()?;
    let mut files: Vec<ModelFile> = Vec::new();
    for name in &names {
        let file = models::resolve(name, &fetcher)?;
        anyhow::ensure!(
            files.iter().all(|other| other.id != file.id),
            "two models would both be served as {}; rename one of the files",
            file.id
        );
        files.push(file);
    }
    Ok(files)
}
