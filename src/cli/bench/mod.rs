//! `midstream bench`: how fast a model runs on this machine, beside what the machine can do at most.
//!
//! Prompts and decoding are measured at the engine, streaming clients through a server of this process on loopback.
//! Nothing here changes how anything runs.

mod clients;
mod engine;
mod limits;
mod plot;
mod report;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use midstream_kernels::{Isa, Team};

use crate::engine::{FileFacts, LoadOptions, LocalEngine, read_file_facts};
use crate::models::{self, DEFAULT_MODEL, Fetcher, ModelFile};
use engine::{CONTEXT, MeasuredEngine};
use report::{Machine, Model, Report};

/// Prompts that are measured where none are named, as far as the model's context holds them.
const PROMPTS: [usize; 5] = [32, 128, 512, 1_024, 2_048];
/// Numbers of sequences that are measured where none are named.
const SEQUENCES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Most sequences that an engine runs in one step.
const SEQUENCES_MAX: usize = 64;
/// More clients than this measure the machine's sockets.
const CLIENTS_MAX: usize = 256;

/// How it is used.
const EXAMPLES: &str = "\
Examples:
  midstream bench
  midstream bench prefill decode --model ./my.gguf --threads 4
  midstream bench clients --clients 32 --seconds 60 --json > bench.json";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// What to measure [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<Part>,
    /// A known model or a GGUF file
    #[arg(long, value_name = "NAME|FILE.gguf", default_value = DEFAULT_MODEL)]
    model: String,
    /// Threads that compute; 0 takes what the process may use
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Tokens of the prompts, separated by commas [default: 32,128,512,1024,2048]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    prompts: Vec<usize>,
    /// Sequences that decode together, separated by commas [default: 1,2,4,8,16,32]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    sequences: Vec<usize>,
    /// Clients that stream at once
    #[arg(long, value_name = "N", default_value_t = 16)]
    clients: usize,
    /// Seconds for which they do
    #[arg(long, value_name = "N", default_value_t = 20)]
    seconds: u64,
    /// Runs of each measurement, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Write a plot: throughput by sequences, time to the first token by prompt
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Prompts of several lengths, cold and cached
    Prefill,
    /// Sequences that decode together
    Decode,
    /// Clients that stream answers from a server
    Clients,
}

impl Arguments {
    fn measures(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }

    /// Refuses numbers that cannot be measured, before anything is loaded.
    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.rounds > 0, "--rounds must be at least 1");
        ensure!(self.seconds > 0, "--seconds must be at least 1");
        ensure!((1..=CLIENTS_MAX).contains(&self.clients), "--clients must be between 1 and {CLIENTS_MAX}");
        ensure!(self.prompts.iter().all(|tokens| *tokens > 0), "--prompts must be at least 1 token each");
        let range = 1..=SEQUENCES_MAX;
        ensure!(self.sequences.iter().all(|n| range.contains(n)), "--sequences must be between 1 and {SEQUENCES_MAX}");
        let plotted = self.measures(Part::Prefill) || self.measures(Part::Decode);
        ensure!(self.svg.is_none() || plotted, "--svg plots prefill and decode; measure one of them");
        Ok(())
    }

    fn sequences(&self) -> Vec<usize> {
        if self.sequences.is_empty() { SEQUENCES.to_vec() } else { self.sequences.clone() }
    }

    /// The prompts, of which every one leaves room for a token of the answer.
    fn prompts(&self, context: usize) -> anyhow::Result<Vec<usize>> {
        let fits = |tokens: &usize| *tokens < context;
        if self.prompts.is_empty() {
            return Ok(PROMPTS.into_iter().filter(fits).collect());
        }
        match self.prompts.iter().find(|tokens| !fits(tokens)) {
            Some(tokens) => anyhow::bail!(
                "--prompts: {tokens} tokens and an answer do not fit into the model's context of {context}; \
                 take at most {}",
                context - 1
            ),
            None => Ok(self.prompts.clone()),
        }
    }

    fn load_options(&self, id: &str, facts: &FileFacts) -> LoadOptions {
        let defaults = LoadOptions::default();
        let most = self.sequences().into_iter().max().unwrap_or(1);
        let positions = most * engine::positions(most);
        LoadOptions {
            id: Some(id.to_owned()),
            threads: (self.threads > 0).then_some(self.threads),
            kv_bytes: defaults.kv_bytes.max(positions * facts.work.kv_bytes as usize),
            step_sequences: defaults.step_sequences.max(most),
            // What text repeats is not what is measured.
            guessed_tokens: 0,
            ..defaults
        }
    }
}

/// Does what is asked.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.check()?;
    let file = models::resolve(&arguments.model, &Fetcher::for_user()?)?;
    // Before minutes of measuring, not behind them.
    let create = |path: &PathBuf| File::create(path).with_context(|| format!("creating {}", path.display()));
    let svg = arguments.svg.as_ref().map(create).transpose()?;
    let report = measure(arguments, &file, &mut |what| {
        // With standard error closed it goes on unseen.
        let _ = writeln!(io::stderr(), "measuring {what}");
    })?;
    if let Some(mut svg) = svg {
        svg.write_all(plot::svg(&report).as_bytes()).context("writing the plot")?;
    }
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        out.write_all(report::table(&report).as_bytes())?;
    }
    Ok(out.flush()?)
}

/// Measures everything that is asked for; `tell` hears what is next.
fn measure(arguments: &Arguments, file: &ModelFile, tell: &mut dyn FnMut(&str)) -> anyhow::Result<Report> {
    let facts = read_file_facts(&file.path, &LoadOptions::default())?;
    let context = facts.model.context_length as usize;
    let (prompts, sequences) = (arguments.prompts(context)?, arguments.sequences());
    let most = sequences.iter().copied().max().unwrap_or(1);
    ensure!(
        !arguments.measures(Part::Decode) || engine::positions(most) <= context,
        "the model's context of {context} tokens is too short to let {most} sequences decode behind {CONTEXT}; \
         measure prefill and clients only, or fewer --sequences"
    );
    let isa = Isa::select()?;
    let threads = if arguments.threads == 0 { Team::default_size() } else { arguments.threads };
    tell("the machine's limits");
    let limits = limits::measure(&Team::new(threads), isa)?;
    let bytes = std::fs::metadata(&file.path).with_context(|| format!("reading {}", file.path.display()))?.len();
    let mut report = Report {
        model: Model { id: file.id.clone(), file_bytes: bytes, work: facts.work },
        machine: Machine { isa: isa.name(), threads, load: limits::load_average(), limits },
        prefill: Vec::new(),
        decode: Vec::new(),
        clients: None,
    };
    tell("the model's start");
    let loaded = Arc::new(LocalEngine::load(&file.path, &arguments.load_options(&file.id, &facts))?);
    let mut measured = MeasuredEngine::new(loaded.clone(), arguments.rounds);
    for tokens in prompts.into_iter().filter(|_| arguments.measures(Part::Prefill)) {
        tell(&format!("a prompt of {tokens} tokens"));
        report.prefill.push(measured.prefill(tokens, &facts.work, &limits)?);
    }
    for sequences in sequences.into_iter().filter(|_| arguments.measures(Part::Decode)) {
        tell(&format!("{sequences} sequences together"));
        report.decode.push(measured.decode(sequences, &facts.work, &limits)?);
    }
    if arguments.measures(Part::Clients) {
        tell(&format!("{} streaming clients", arguments.clients));
        let time = Duration::from_secs(arguments.seconds);
        report.clients = Some(clients::measure(&loaded, arguments.clients, time)?);
    }
    Ok(report)
}
