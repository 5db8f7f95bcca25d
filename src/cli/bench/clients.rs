//! Streaming clients of a server in this process, on loopback, with a journal on disk: what a user of it sees.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, header};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::report::{median, percentile};
use crate::app::Server;
use crate::clock::monotonic;
use crate::config::Config;
use crate::engine::LocalEngine;

/// Most tokens of an answer.
const ANSWER_TOKENS: u32 = 128;
/// Most bytes of a refusal.
const REFUSAL_BYTES_MAX: usize = 1 << 16;
/// What the stories are about: prompts that are alike would share their cache.
const TOPICS: [&str; 8] =
    ["the sea", "a train", "two bridges", "winter", "a lighthouse", "bees", "a market", "the moon"];

/// What so many clients saw.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Streaming {
    /// Clients, each of which asks again as soon as it has its answer.
    pub(super) clients: usize,
    /// For how long.
    pub(super) seconds: f64,
    /// Tokens sampled for all of them.
    pub(super) tokens_per_second: f64,
    /// Answers that were read to their end.
    pub(super) answers: usize,
    /// From the request to the first text, half of the answers.
    pub(super) first_token_seconds_median: f64,
    /// The same, nine of ten.
    pub(super) first_token_seconds_p90: f64,
    /// Between two pieces of one answer, half of them.
    pub(super) gap_seconds_median: f64,
    /// The same, 99 of 100.
    pub(super) gap_seconds_p99: f64,
}

/// What one client saw.
#[derive(Default)]
struct Seen {
    answers: usize,
    first_tokens: Vec<f64>,
    gaps: Vec<f64>,
}

/// Lets so many clients stream for that time.
pub(super) fn measure(engine: &Arc<LocalEngine>, clients: usize, time: Duration) -> anyhow::Result<Streaming> {
    let folder = Folder::new()?;
    let config = Config { data_dir: folder.0.clone(), kv_files_bytes_max: 0, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    let (seen, tokens, seconds) = runtime.block_on(async {
        let server = Server::start_here(config, engine.clone()).await?;
        let address = server.address();
        let mut seen: Vec<Seen> = (0..clients).map(|_| Seen::default()).collect();
        let (begin, before) = (monotonic(), engine.stats().tokens_sampled);
        let had_text = Notify::new();
        let clients = seen.iter_mut().enumerate().map(|(number, seen)| ask_on(address, number, seen, &had_text));
        let over = async {
            tokio::time::sleep(time).await;
            // A slow machine measures longer rather than nothing.
            had_text.notified().await;
        };
        // What is under way at the end is dropped: clients that leave.
        let failed = tokio::select! {
            ended = try_join_all(clients) => ended.map(drop),
            () = over => Ok(()),
        };
        let (tokens, seconds) = (engine.stats().tokens_sampled - before, begin.elapsed().as_secs_f64());
        server.stop(std::future::ready(())).await;
        failed?;
        Ok::<_, anyhow::Error>((seen, tokens, seconds))
    })?;
    let (mut first_tokens, mut gaps, mut answers) = (Vec::new(), Vec::new(), 0);
    for mut client in seen {
        answers += client.answers;
        first_tokens.append(&mut client.first_tokens);
        gaps.append(&mut client.gaps);
    }
    Ok(Streaming {
        clients,
        seconds,
        tokens_per_second: tokens as f64 / seconds,
        answers,
        first_token_seconds_median: median(&mut first_tokens),
        first_token_seconds_p90: percentile(&mut first_tokens, 90),
        gap_seconds_median: median(&mut gaps),
        gap_seconds_p99: percentile(&mut gaps, 99),
    })
}

/// Asks again and again.
async fn ask_on(address: SocketAddr, client: usize, seen: &mut Seen, had_text: &Notify) -> anyhow::Result<()> {
    for request in 0.. {
        let topic = TOPICS[(client + request) % TOPICS.len()];
        let text = format!("{request}-{client}: write a long story about {topic}, with names and what everybody says.");
        let body = json!({
            "messages": [{"role": "user", "content": text}], "stream": true, "max_tokens": ANSWER_TOKENS,
            "temperature": 0.7, "seed": client * 1_000 + request,
        });
        ask(address, &body, seen, had_text).await?;
        seen.answers += 1;
    }
    Ok(())
}

/// One answer, from the connection to the end of its stream.
async fn ask(address: SocketAddr, body: &Value, seen: &mut Seen, had_text: &Notify) -> anyhow::Result<()> {
    let stream = TcpStream::connect(address).await.context("connecting to the own server")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder().method(Method::POST).uri("/v1/chat/completions");
    let request = request.header(header::HOST, address.to_string()).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body.to_string()))?;
    let begin = monotonic();
    let exchange = async {
        let answer = sender.send_request(request).await?;
        let (status, body) = (answer.status(), Body::new(answer.into_body()));
        if !status.is_success() {
            let text = to_bytes(body, REFUSAL_BYTES_MAX).await.unwrap_or_default();
            bail!("the server refused with {status}: {}", String::from_utf8_lossy(&text));
        }
        let (mut chunks, mut lines, mut last) = (body.into_data_stream(), Lines::default(), None);
        while let Some(chunk) = chunks.next().await {
            lines.push(&chunk.context("reading an answer")?);
            while let Some(line) = lines.next() {
                note(&line, begin, &mut last, seen)?;
            }
            if last.is_some() {
                had_text.notify_one();
            }
        }
        Ok(())
    };
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        outcome = &mut exchange => outcome,
        // The connection may be at its end before the answer was read out of it.
        _ = connection => exchange.await,
    }
}

/// Notes when a line of the stream came, if it brought text.
fn note(line: &[u8], begin: Instant, last: &mut Option<Instant>, seen: &mut Seen) -> anyhow::Result<()> {
    let Some(data) = line.strip_prefix(b"data: ").filter(|data| *data != b"[DONE]") else {
        return Ok(());
    };
    let chunk: Value = serde_json::from_slice(data).context("reading an answer")?;
    if let Some(error) = chunk.get("error") {
        bail!("an answer failed: {error}");
    }
    let delta = &chunk["choices"][0]["delta"];
    let is_text = |name: &str| delta[name].as_str().is_some_and(|text| !text.is_empty());
    if is_text("content") || is_text("reasoning_content") || delta["tool_calls"].is_array() {
        let now = monotonic();
        match last.replace(now) {
            Some(last) => seen.gaps.push((now - last).as_secs_f64()),
            None => seen.first_tokens.push((now - begin).as_secs_f64()),
        }
    }
    Ok(())
}

/// Whole lines out of pieces.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line = self.0.drain(..=end).collect::<Vec<_>>();
        Some(line.trim_ascii_end().to_vec())
    }
}

/// A folder for the journal, which goes away with this.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("midstream-bench-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed now stays in the system's folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_noted_from_whole_lines_and_a_failure_is_an_error() {
        let begin = monotonic();
        let (mut lines, mut last, mut seen) = (Lines::default(), None, Seen::default());
        let chunk = |delta: &str| format!("data: {{\"choices\": [{{\"delta\": {delta}}}]}}\r\n\n");
        let text = chunk(r#"{"role": "assistant", "content": ""}"#)
            + &chunk(r#"{"content": "a"}"#)
            + ": sign of life\n\n"
            + &chunk(r#"{"reasoning_content": "b"}"#)
            + "data: {\"choices\": [], \"usage\": {}}\n\ndata: [DONE]\n\n";
        for byte in text.bytes() {
            lines.push(&[byte]);
            while let Some(line) = lines.next() {
                note(&line, begin, &mut last, &mut seen).unwrap();
            }
        }
        assert_eq!((seen.first_tokens.len(), seen.gaps.len()), (1, 1));
        let failed = note(b"data: {\"error\": {\"message\": \"no room\"}}", begin, &mut last, &mut seen).unwrap_err();
        assert!(failed.to_string().contains("no room"), "{failed}");
    }
}
