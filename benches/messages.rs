//! Time to the first token over `/v1/messages`, with a prompt as long as the model takes: cold, behind the same prefix,
//! and behind the same prefix below a billing line that varies; then with earlier thinking as it was, and changed.
//!
//! `MIDSTREAM_TEST_MODEL=FILE.gguf cargo bench --bench messages`
//!
//! Fails where a billing line that varies costs more than 5 %, or a known prefix is less than 5 times as fast as none.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use midstream::clock::monotonic;
use reqwest::Client;
use serde_json::{Value, json};

/// Rounds of what is known to the cache, and of what is not: that takes a minute each on a small machine.
const ROUNDS: usize = 25;
const COLD_ROUNDS: usize = 3;
/// Tokens of the context that are left for questions and answers.
const LEFT_TOKENS: u64 = 192;
/// What the prompt is made of.
const SENTENCE: &str = "The harbour master counted the boats that came in before the tide turned. ";
/// How much more a varying line may take, and how much faster a known prefix must be.
const VARYING_MOST: f64 = 1.05;
const KNOWN_LEAST: f64 = 5.0;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let Ok(model) = std::env::var("MIDSTREAM_TEST_MODEL") else {
        println!("set MIDSTREAM_TEST_MODEL to a GGUF file");
        return Ok(());
    };
    let server = Server::start(&model)?;
    let most = server.most_tokens().await?;
    let text = server.filled(most, |text| asked("steady", text, "0")).await?;
    println!("a prompt of {} tokens of {most}", server.count(&asked("steady", &text, "0")).await?);
    println!("first token                      rounds    median ms    p90 ms    max ms");
    let (mut cold, mut same, mut varying) = (Vec::new(), Vec::new(), Vec::new());
    server.first_token(&asked("steady", &text, "0")).await?;
    for round in 0..ROUNDS {
        // One behind the other, so that whatever else the machine does meets both.
        same.push(server.first_token(&asked("steady", &text, &format!("{round}"))).await?);
        varying.push(server.first_token(&asked(&format!("{round:03x}"), &text, &format!("{round}!"))).await?);
    }
    for round in 0..COLD_ROUNDS {
        cold.push(server.first_token(&asked("steady", &format!("Day {round}. {text}"), "0")).await?);
    }
    let (cold, same, varying) =
        (report("cold", cold), report("the same prefix", same), report("varying line", varying));
    println!("varying to same {:.3}, cold to varying {:.1}", varying / same, cold / varying);

    let story = server.filled(most, |text| thought("hm, 0", text, "0")).await?;
    let (mut kept, mut changed) = (Vec::new(), Vec::new());
    server.first_token(&thought("hm, well", &story, "0")).await?;
    for round in 0..ROUNDS {
        kept.push(server.first_token(&thought("hm, well", &story, &format!("{round}"))).await?);
    }
    for round in 0..COLD_ROUNDS {
        changed.push(server.first_token(&thought(&format!("hm, {round}"), &story, "0")).await?);
    }
    let (kept, changed) = (report("earlier thinking kept", kept), report("earlier thinking changed", changed));
    println!("changed to kept {:.1}", changed / kept);
    if varying > VARYING_MOST * same || cold < KNOWN_LEAST * varying {
        return Err("a billing line that varies is not free, or a known prefix not fast".into());
    }
    Ok(())
}

/// A question behind a long system text, with Claude Code's billing line in front of it.
fn asked(billing: &str, text: &str, question: &str) -> Value {
    let billing = format!("x-anthropic-billing-header: cc_version=2.1.332.{billing}; cc_entrypoint=sdk-cli;");
    let system = [json!({"type": "text", "text": billing}), json!({"type": "text", "text": text})];
    let messages = json!([{"role": "user", "content": format!("How many boats on day {question}?")}]);
    request(&json!(system), &messages)
}

/// A question behind a long result of a tool, in front of which the model thought.
fn thought(thinking: &str, text: &str, question: &str) -> Value {
    let call = json!({"type": "tool_use", "id": "toolu1", "name": "read", "input": {"path": "log"}});
    let result = json!({"type": "tool_result", "tool_use_id": "toolu1", "content": text});
    let thinking = json!({"type": "thinking", "thinking": thinking, "signature": ""});
    let messages = json!([
        {"role": "user", "content": "Read the log."},
        {"role": "assistant", "content": [thinking, call]},
        {"role": "user", "content": [result, {"type": "text", "text": format!("How many boats on day {question}?")}]},
    ]);
    request(&json!("You keep the harbour's log."), &messages)
}

fn request(system: &Value, messages: &Value) -> Value {
    json!({"system": system, "messages": messages, "max_tokens": 4, "temperature": 0, "stream": true})
}

/// Prints how long something took; gives the median in milliseconds.
fn report(what: &str, mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
    println!("{what:<32} {:>6} {:>12.1} {:>9.1} {:>9.1}", times.len(), at(50), at(90), at(100));
    at(50)
}

struct Server {
    child: Child,
    base: String,
    client: Client,
    _folder: tempfile::TempDir,
}

impl Server {
    /// A template that shows earlier thinking, whatever the model's own does.
    fn start(model: &str) -> Outcome<Self> {
        let folder = tempfile::TempDir::new()?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_midstream"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--model", model, "--chat-template", "hermes"]);
        command.arg("--data-dir").arg(folder.path());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let first = BufReader::new(output).lines().next().ok_or("the server ended")??;
        let base = first.split_whitespace().last().ok_or("no address")?.to_owned();
        Ok(Self { child, base, client: Client::builder().no_proxy().build()?, _folder: folder })
    }

    /// Tokens that the model takes in.
    async fn most_tokens(&self) -> Outcome<u64> {
        let models = self.client.get(format!("{}/v1/models", self.base)).header("anthropic-version", "2023-06-01");
        let models: Value = models.send().await?.json().await?;
        models["data"][0]["max_input_tokens"].as_u64().ok_or_else(|| format!("no model: {models}").into())
    }

    async fn count(&self, body: &Value) -> Outcome<u64> {
        let counted = self.client.post(format!("{}/v1/messages/count_tokens", self.base)).json(body);
        let counted: Value = counted.send().await?.json().await?;
        counted["input_tokens"].as_u64().ok_or_else(|| format!("no count: {counted}").into())
    }

    /// As much text as makes a request nearly as long as the model takes.
    async fn filled(&self, most: u64, request: impl Fn(&str) -> Value) -> Outcome<String> {
        let hundred = SENTENCE.repeat(100);
        let each = self.count(&request(&hundred)).await? - self.count(&request("")).await?;
        let sentences = 100 * most.saturating_sub(LEFT_TOKENS) / each;
        Ok(SENTENCE.repeat(usize::try_from(sentences)?))
    }

    /// Time to the first token of the answer.
    async fn first_token(&self, body: &Value) -> Outcome<Duration> {
        let begun = monotonic();
        let mut response = self.client.post(format!("{}/v1/messages", self.base)).json(body).send().await?;
        let (mut said, mut first) = (String::new(), None);
        while let Some(chunk) = response.chunk().await? {
            said.push_str(std::str::from_utf8(&chunk)?);
            // A model that has nothing to say ends at once.
            if first.is_none() && (said.contains("content_block_delta") || said.contains("message_delta")) {
                first = Some(begun.elapsed());
            }
        }
        first.filter(|_| said.contains("message_stop")).ok_or_else(|| format!("no answer: {said}").into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
