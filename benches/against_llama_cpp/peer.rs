//! llama.cpp's side of the rows that need no server: its own benchmarks, with its own defaults.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::Outcome;

/// llama.cpp's tools and what they are run with.
pub(crate) struct Peer {
    tools: PathBuf,
    model: PathBuf,
}

impl Peer {
    pub(crate) fn new(tools: &Path, model: &Path) -> Outcome<Self> {
        for tool in ["llama-bench", "llama-batched-bench", "llama-server"] {
            if !tools.join(tool).is_file() {
                return Err(format!("{} has no {tool}; scripts/against-llama-cpp builds it", tools.display()).into());
            }
        }
        Ok(Self { tools: tools.to_owned(), model: model.to_owned() })
    }

    /// The path of its server.
    pub(crate) fn server(&self) -> PathBuf {
        self.tools.join("llama-server")
    }

    /// Tokens per second for each length of prompt.
    pub(crate) fn prefill(&self, threads: usize, tokens: &[usize]) -> Outcome<Vec<f64>> {
        // A short prompt first, so that the weights are in memory and the processor is awake.
        let lengths = std::iter::once(&WARM_TOKENS).chain(tokens).map(ToString::to_string).collect::<Vec<_>>();
        let found = self.bench(threads, &["-n", "0", "-p", &lengths.join(",")])?;
        let rate = |wanted: &usize| rate(&found, |row| row["n_prompt"] == *wanted);
        tokens.iter().map(rate).collect()
    }

    /// Tokens per second of one sequence behind each context.
    pub(crate) fn decode(&self, threads: usize, contexts: &[usize], decoded: usize) -> Outcome<Vec<f64>> {
        let depths: Vec<String> = contexts.iter().map(ToString::to_string).collect();
        let found = self.bench(threads, &["-p", "0", "-n", &decoded.to_string(), "-d", &depths.join(",")])?;
        let rate = |context: &usize| rate(&found, |row| row["n_gen"] == decoded && row["n_depth"] == *context);
        contexts.iter().map(rate).collect()
    }

    fn bench(&self, threads: usize, more: &[&str]) -> Outcome<Vec<Value>> {
        let mut command = Command::new(self.tools.join("llama-bench"));
        command.arg("-m").arg(&self.model).args(["-t", &threads.to_string()]);
        // Without warming up: that would run every prompt twice.
        command.args(["-r", "1", "--no-warmup", "-o", "jsonl"]).args(more);
        json_lines(command)
    }

    /// Tokens per second of so many sequences together, each behind a prompt of its own.
    pub(crate) fn together(
        &self,
        threads: usize,
        sequences: &[usize],
        context: usize,
        decoded: usize,
    ) -> Outcome<Vec<f64>> {
        let most = sequences.iter().max().copied().unwrap_or(1) * (context + decoded);
        let counts: Vec<String> = sequences.iter().map(ToString::to_string).collect();
        let mut command = Command::new(self.tools.join("llama-batched-bench"));
        command.arg("-m").arg(&self.model).args(["-t", &threads.to_string(), "-c", &most.to_string()]);
        command.args(["-npp", &context.to_string(), "-ntg", &decoded.to_string(), "-npl", &counts.join(",")]);
        command.args(["--output-format", "jsonl"]);
        let found = json_lines(command)?;
        let rate = |wanted: &usize| {
            let row = found.iter().find(|row| row["pl"] == *wanted).ok_or("llama-batched-bench left a row out")?;
            Ok(row["speed_tg"].as_f64().ok_or("llama-batched-bench wrote no speed")?)
        };
        sequences.iter().map(rate).collect()
    }
}

/// Tokens of the prompt that is not counted.
const WARM_TOKENS: usize = 64;

fn rate(rows: &[Value], is_wanted: impl Fn(&Value) -> bool) -> Outcome<f64> {
    let row = rows.iter().find(|row| is_wanted(row)).ok_or("llama-bench left a row out")?;
    Ok(row["avg_ts"].as_f64().ok_or("llama-bench wrote no speed")?)
}

/// Runs the command and reads the lines of its output that are JSON objects.
fn json_lines(mut command: Command) -> Outcome<Vec<Value>> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with('{'));
    Ok(lines.map(serde_json::from_str).collect::<Result<_, _>>()?)
}
