//! This engine and server against llama.cpp's own tools, on the same file, with the same threads, in one run.
//!
//! `scripts/against-llama-cpp` builds the tools, fetches the models and runs this. Both sides take turns, round by
//! round, and the medians are compared: a machine's speed drifts over minutes. Each row has a floor, which the ratio
//! is held against; a floor that is not met fails nothing, it is said.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]
#![allow(missing_docs)]

mod floors;
mod own;
mod peer;
mod rows;
mod server;
mod stream;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

use floors::Floor;
use rows::Sides;

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Compares midstream with llama.cpp.
#[derive(Parser)]
struct Arguments {
    /// The GGUF file
    #[arg(long, value_name = "FILE.gguf")]
    model: PathBuf,
    /// The folder with llama-bench, llama-batched-bench and llama-server
    #[arg(long, value_name = "DIR")]
    tools: PathBuf,
    /// Threads of both sides; 0 takes what the process may use
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Most rounds of a row
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Seconds for which clients stream
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Write JSON as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What cargo adds
    #[arg(long, hide = true)]
    bench: bool,
    /// Rows to measure [default: all]
    rows: Vec<Group>,
}

/// Rows that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    /// Prompts of 512 and 2,048 tokens
    Prefill,
    /// One sequence behind 128 and 2,048 tokens
    Decode,
    /// 8 and 32 sequences
    Together,
    /// 16 streaming clients
    Clients,
    /// A stream while a long prompt arrives
    Gap,
    /// Memory with 8 sequences of 1,024
    Memory,
    /// A client that leaves while its prompt is read
    Leave,
    /// One sequence beside a busy process
    Competitor,
    /// From the start of the server until it serves
    Ready,
}

/// What both sides gave for one row.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// What midstream gave, round by round.
    pub(crate) own: Vec<f64>,
    /// What it is compared with: llama.cpp, or what the name says.
    pub(crate) peer: Vec<f64>,
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    if !arguments.model.is_file() {
        return Err(format!("there is no file {}", arguments.model.display()).into());
    }
    let threads = match arguments.threads {
        0 => std::thread::available_parallelism()?.get(),
        threads => threads,
    };
    // Only what goes through sockets runs on it: engines are waited for on this thread.
    let runtime = tokio::runtime::Runtime::new()?;
    let sides = Sides::new(&arguments.model, &arguments.tools, threads, arguments.rounds.max(1), arguments.seconds)?;
    let file = arguments.model.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    println!("{file}, threads: {threads}, {}; load {} before", machine(), load());
    println!("{:<50} {:>10} {:>10} {:>8}  floor", "", "midstream", "peer", "ratio");
    let mut found = Vec::new();
    for group in Group::value_variants() {
        if !arguments.rows.is_empty() && !arguments.rows.contains(group) {
            continue;
        }
        for row in sides.measure(*group, &runtime)? {
            found.push(report(&row, floors::of(&file, row.name)));
        }
    }
    println!("load {} behind", load());
    if let Some(path) = &arguments.json {
        let whole = json!({"model": file, "threads": threads, "machine": machine(), "rows": found});
        std::fs::write(path, serde_json::to_string_pretty(&whole)?)?;
    }
    Ok(())
}

/// Prints a row and gives its JSON form.
fn report(row: &Row, floor: Option<Floor>) -> Value {
    let (own, peer) = (median(&row.own), median(&row.peer));
    let ratio = own / peer;
    let name = format!("{}, {}", row.name, row.unit);
    let verdict = floor.map_or_else(String::new, |floor| {
        let met = if floor.is_met(own, ratio) { "met" } else { "NOT MET" };
        format!("{floor}: {met}")
    });
    println!("{name:<50} {own:>10.3} {peer:>10.3} {ratio:>8.3}  {verdict}");
    json!({
        "name": row.name, "unit": row.unit, "midstream": own, "peer": peer, "ratio": ratio,
        "midstream_rounds": row.own, "peer_rounds": row.peer, "floor": floor.map(|floor| floor.to_string()),
        "met": floor.map(|floor| floor.is_met(own, ratio)),
    })
}

/// The middle value; of two middle ones the mean.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let isa = midstream_kernels::Isa::select().map_or("unknown", midstream_kernels::Isa::name);
    format!("{}, {isa}", name.map_or("a processor", |(_, name)| name))
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}
