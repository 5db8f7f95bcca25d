//! How fast control takes effect, seen by a client of the real server: cancel until the last token and until it is
//! confirmed, steer until the successor's first token; beside them the time between two tokens, the yardstick.
//!
//! `MIDSTREAM_TEST_MODEL=FILE.gguf cargo bench --bench control`

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use midstream::clock::monotonic;
use reqwest::{Client, Response};
use serde_json::{Value, json};

/// Rounds of each measurement.
const ROUNDS: usize = 30;

/// Tokens that are read before control is tried.
const WARM_TOKENS: usize = 12;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let Ok(model) = std::env::var("MIDSTREAM_TEST_MODEL") else {
        println!("set MIDSTREAM_TEST_MODEL to a GGUF file");
        return Ok(());
    };
    let server = Server::start(&model)?;
    let (mut gaps, mut last_tokens, mut confirmed, mut successors) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let mut stream = server.begin().await?;
        gaps.push(stream.warm_up().await?);
        let (last, done) = server.cancel(&mut stream).await?;
        last_tokens.push(last);
        confirmed.push(done);
        let mut stream = server.begin().await?;
        stream.warm_up().await?;
        successors.push(server.steer(&mut stream).await?);
    }
    println!("{ROUNDS} rounds                          median ms    p90 ms    max ms");
    report("between two tokens", gaps);
    report("cancel until the last token", last_tokens);
    report("cancel until it is confirmed", confirmed);
    report("steer until the next token", successors);
    Ok(())
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
    println!("{what:<32} {:>12.1} {:>9.1} {:>9.1}", at(50), at(90), at(100));
}

struct Server {
    child: Child,
    base: String,
    client: Client,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start(model: &str) -> Outcome<Self> {
        let folder = tempfile::TempDir::new()?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_midstream"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--model", model, "--data-dir"]).arg(folder.path());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let first = BufReader::new(output).lines().next().ok_or("the server ended")??;
        let base = first.split_whitespace().last().ok_or("no address")?.to_owned();
        Ok(Self { child, base, client: Client::builder().no_proxy().build()?, _folder: folder })
    }

    /// A long answer's event stream.
    async fn begin(&self) -> Outcome<Stream> {
        let body = json!({"input": "Write a long story about the sea.", "background": true, "temperature": 0.7});
        let response: Value =
            self.client.post(format!("{}/v1/responses", self.base)).json(&body).send().await?.json().await?;
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("no id");
        let (id, conversation) = (text(&response["id"])?, text(&response["conversation"]["id"])?);
        let events = format!("{}/v1/conversations/{conversation}/events?after=0", self.base);
        Ok(Stream { response: self.client.get(events).send().await?, buffer: String::new(), id })
    }

    /// Time to the last token and to the answer.
    async fn cancel(&self, stream: &mut Stream) -> Outcome<(Duration, Duration)> {
        let begun = monotonic();
        let path = format!("{}/v1/responses/{}/cancel", self.base, stream.id);
        let answer = self.client.post(path).send();
        let reading = async {
            let mut last = Duration::ZERO;
            loop {
                let frame = stream.next().await?;
                match frame["type"].as_str() {
                    Some("response.output_text.delta") => last = begun.elapsed(),
                    Some("response.incomplete") => return Outcome::Ok(last),
                    _ => {}
                }
            }
        };
        let (answer, last) = tokio::join!(async { (answer.await, begun.elapsed()) }, reading);
        answer.0?.error_for_status()?;
        Ok((last?, answer.1))
    }

    /// Time to the successor's first token.
    async fn steer(&self, stream: &mut Stream) -> Outcome<Duration> {
        let begun = monotonic();
        let path = format!("{}/v1/responses/{}/interventions", self.base, stream.id);
        let key = format!("{begun:?}");
        let body = json!({"input": "Make it about mountains instead."});
        let answer = self.client.post(path).header("idempotency-key", key).json(&body).send();
        let reading = async {
            loop {
                let frame = stream.next().await?;
                if frame["type"] == "response.output_text.delta" && frame["response_id"] != stream.id.as_str() {
                    return Outcome::Ok((begun.elapsed(), frame["response_id"].clone()));
                }
            }
        };
        let (answer, first) = tokio::join!(answer, reading);
        answer?.error_for_status()?;
        let (first, successor) = first?;
        let path = format!("{}/v1/responses/{}/cancel", self.base, successor.as_str().ok_or("no id")?);
        self.client.post(path).send().await?.error_for_status()?;
        Ok(first)
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
    id: String,
}

impl Stream {
    async fn next(&mut self) -> Outcome<Value> {
        loop {
            if let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                if let Some(data) = block.lines().find_map(|line| line.strip_prefix("data:")) {
                    return Ok(serde_json::from_str(data)?);
                }
                continue;
            }
            let chunk = self.response.chunk().await?.ok_or("the stream ended")?;
            self.buffer.push_str(std::str::from_utf8(&chunk)?);
        }
    }

    /// Reads some tokens; gives the median time between two.
    async fn warm_up(&mut self) -> Outcome<Duration> {
        let mut times: Vec<Instant> = Vec::new();
        while times.len() < WARM_TOKENS {
            if self.next().await?["type"] == "response.output_text.delta" {
                times.push(monotonic());
            }
        }
        let mut gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        Ok(gaps[gaps.len() / 2])
    }
}
