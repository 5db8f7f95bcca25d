//! Time to the first token of a conversation's next turn: in a live process, after a restart with the KV file, and
//! after a restart without it.
//!
//! `MIDSTREAM_TEST_MODEL=FILE.gguf cargo bench --bench resume`. Real binary, one client on loopback, nothing else
//! running. Every conversation has a text of its own, so that none profits from another.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark reports on standard output")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use midstream::clock::monotonic;
use reqwest::{Client, Response};
use serde_json::{Value, json};

/// Tokens of history, and how many conversations with them.
const SIZES: [(usize, usize); 3] = [(512, 5), (2_048, 5), (8_192, 2)];

/// Tokens of the first answer, of the next turn's question with the template around it, and of its answer.
const FIRST_ANSWER: usize = 16;
const NEXT_TURN: usize = 64;

/// Tokens of the template around the first question; measured by the first request.
const PROBE_WORDS: usize = 100;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Live,
    WithFile,
    WithoutFile,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let Ok(model) = std::env::var("MIDSTREAM_TEST_MODEL") else {
        println!("set MIDSTREAM_TEST_MODEL to a GGUF file");
        return Ok(());
    };
    let (context, around) = probe(&model).await?;
    println!("rounds                         history  cached  median ms    p90 ms    max ms");
    for (size, rounds) in SIZES {
        let largest = context - NEXT_TURN;
        if size > largest {
            println!("{size} tokens and a next turn do not fit into the context of {context}: {largest} instead");
        }
        let words = size.min(largest) - around - FIRST_ANSWER;
        for (way, name) in
            [(Way::Live, "live process"), (Way::WithFile, "restart, KV file"), (Way::WithoutFile, "restart, no file")]
        {
            let turns = measure(&model, way, words, rounds).await?;
            report(name, turns);
        }
    }
    Ok(())
}

/// What one next turn cost.
struct Turn {
    first_token: Duration,
    history: u64,
    cached: u64,
}

fn report(name: &str, mut turns: Vec<Turn>) {
    turns.sort_unstable_by_key(|turn| turn.first_token);
    let at = |share: usize| &turns[(turns.len() - 1) * share / 100];
    let ms = |share: usize| at(share).first_token.as_secs_f64() * 1e3;
    let Turn { history, cached, .. } = at(50);
    println!(
        "{:<2} {name:<25} {history:>9} {cached:>7} {:>10.1} {:>9.1} {:>9.1}",
        turns.len(),
        ms(50),
        ms(90),
        ms(100)
    );
}

/// The model's context, and the tokens of a first prompt that are not words of ours.
async fn probe(model: &str) -> Outcome<(usize, usize)> {
    let folder = tempfile::TempDir::new()?;
    let server = Server::start(model, folder.path(), "")?;
    let (_, history) = server.first_turn(0, PROBE_WORDS).await?;
    let too_long = json!({"input": words(0, 100_000), "max_output_tokens": 1, "background": true});
    let failed = server.respond(&too_long).await?;
    let text = server.ended(failed["id"].as_str().ok_or("no id")?).await?["error"]["message"].to_string();
    let context = text.split(|letter: char| !letter.is_ascii_digit()).filter_map(|word| word.parse().ok()).next_back();
    Ok((context.ok_or(text)?, history as usize - PROBE_WORDS - FIRST_ANSWER))
}

/// A text of this many tokens, its own for each number.
fn words(number: usize, count: usize) -> String {
    let vocabulary = [" sea", " ship", " light", " wind", " stone", " house", " hand", " night"];
    // A different order for each number from the first word on.
    (0..count)
        .map(|index| vocabulary[(number + 1 + index * index * (number + 2) + index / 7) % vocabulary.len()])
        .collect()
}

async fn measure(model: &str, way: Way, count: usize, rounds: usize) -> Outcome<Vec<Turn>> {
    let folder = tempfile::TempDir::new()?;
    let settings = if way == Way::WithoutFile { "kv_files_bytes_max = 0\n" } else { "" };
    let mut server = Server::start(model, folder.path(), settings)?;
    let mut conversations = Vec::new();
    for number in 0..rounds {
        conversations.push(server.first_turn(number, count).await?);
    }
    if way != Way::Live {
        server.terminate()?;
        server = Server::start(model, folder.path(), settings)?;
    }
    let mut turns = Vec::new();
    for (conversation, history) in conversations {
        let (first_token, cached) = server.next_turn(&conversation).await?;
        turns.push(Turn { first_token, history, cached });
    }
    Ok(turns)
}

struct Server {
    child: Child,
    base: String,
    client: Client,
}

impl Server {
    fn start(model: &str, folder: &std::path::Path, settings: &str) -> Outcome<Self> {
        let file = folder.join("settings.toml");
        std::fs::write(&file, settings)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_midstream"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--model", model, "--data-dir"]).arg(folder.join("data"));
        command.arg("--config").arg(file);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let first = BufReader::new(output).lines().next().ok_or("the server ended")??;
        let base = first.split_whitespace().last().ok_or("no address")?.to_owned();
        Ok(Self { child, base, client: Client::builder().no_proxy().build()? })
    }

    /// Stops the process in good order.
    fn terminate(mut self) -> Outcome<()> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        self.child.wait()?;
        Ok(())
    }

    async fn respond(&self, body: &Value) -> Outcome<Value> {
        Ok(self.client.post(format!("{}/v1/responses", self.base)).json(body).send().await?.json().await?)
    }

    /// A conversation and the tokens of its first turn.
    async fn first_turn(&self, number: usize, count: usize) -> Outcome<(String, u64)> {
        let input = words(number, count);
        let body = json!({"input": input, "max_output_tokens": FIRST_ANSWER, "temperature": 0, "background": true});
        let response = self.respond(&body).await?;
        let ended = self.ended(response["id"].as_str().ok_or("no id")?).await?;
        let total = ended["usage"]["total_tokens"].as_u64().ok_or("no usage")?;
        Ok((ended["conversation"]["id"].as_str().ok_or("no conversation")?.to_owned(), total))
    }

    /// Waits for a response to end.
    async fn ended(&self, id: &str) -> Outcome<Value> {
        let path = format!("{}/v1/responses/{id}", self.base);
        let mut stream = Stream::new(self.client.get(format!("{path}?stream=true&starting_after=0")).send().await?);
        while stream.next().await.is_ok() {}
        Ok(self.client.get(path).send().await?.json().await?)
    }

    /// Time to the first token of the next turn, and the tokens that were reused.
    async fn next_turn(&self, conversation: &str) -> Outcome<(Duration, u64)> {
        let body = json!({
            "input": "And what then?", "max_output_tokens": 8, "temperature": 0, "stream": true,
            "conversation": conversation,
        });
        let begun = monotonic();
        let mut stream = Stream::new(self.client.post(format!("{}/v1/responses", self.base)).json(&body).send().await?);
        let mut first = None;
        loop {
            let frame = stream.next().await?;
            match frame["type"].as_str() {
                Some("response.output_text.delta") => _ = first.get_or_insert_with(|| begun.elapsed()),
                Some("response.completed" | "response.incomplete") => {
                    let cached = &frame["response"]["usage"]["input_tokens_details"]["cached_tokens"];
                    // An answer without text began with its end token.
                    let first = first.unwrap_or_else(|| begun.elapsed());
                    return Ok((first, cached.as_u64().ok_or("no usage")?));
                }
                Some("response.failed") => return Err(frame.to_string().into()),
                _ => {}
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Stream {
    response: Response,
    buffer: String,
}

impl Stream {
    fn new(response: Response) -> Self {
        Self { response, buffer: String::new() }
    }

    async fn next(&mut self) -> Outcome<Value> {
        loop {
            if let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                if let Some(data) = block.lines().find_map(|line| line.strip_prefix("data: "))
                    && data.starts_with('{')
                {
                    return Ok(serde_json::from_str(data)?);
                }
                continue;
            }
            let chunk = self.response.chunk().await?.ok_or("the stream ended")?;
            self.buffer.push_str(std::str::from_utf8(&chunk)?);
        }
    }
}
