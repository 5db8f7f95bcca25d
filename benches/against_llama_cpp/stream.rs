//! A client that streams a chat's answer: the same code for both servers.

use std::time::{Duration, Instant};

use midstream::clock::monotonic;
use reqwest::Response;
use serde_json::{Value, json};

use super::Outcome;
use super::server::Server;

/// An answer on its way.
pub(crate) struct Stream {
    response: Response,
    buffer: Vec<u8>,
}

/// What an answer's stream brings.
pub(crate) enum Piece {
    /// Some text.
    Text,
    /// How many tokens the whole answer had; the last piece.
    Tokens(u64),
}

/// The body of a request for `text` to be answered with so many tokens at most. Both servers sample in the same way.
pub(crate) fn request(text: &str, max_tokens: usize, seed: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": text}], "stream": true, "stream_options": {"include_usage": true},
        "max_tokens": max_tokens, "seed": seed, "temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
    })
}

impl Stream {
    pub(crate) async fn open(server: &Server, body: &Value) -> Outcome<Self> {
        let address = format!("{}/v1/chat/completions", server.base);
        let response = server.client.post(address).json(body).send().await?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(format!("refused with {status}: {}", response.text().await?).into());
        }
        Ok(Self { response, buffer: Vec::new() })
    }

    /// The next piece; none at the end.
    pub(crate) async fn next(&mut self) -> Outcome<Option<Piece>> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if let Some(piece) = read(&line)? {
                    return Ok(Some(piece));
                }
            }
            match self.response.chunk().await? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}

fn read(line: &[u8]) -> Outcome<Option<Piece>> {
    let Some(data) = line.trim_ascii_end().strip_prefix(b"data: ").filter(|data| *data != b"[DONE]") else {
        return Ok(None);
    };
    let chunk: Value = serde_json::from_slice(data)?;
    if let Some(error) = chunk.get("error") {
        return Err(format!("an answer failed: {error}").into());
    }
    if chunk["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()) {
        return Ok(Some(Piece::Text));
    }
    Ok(chunk["usage"]["completion_tokens"].as_u64().map(Piece::Tokens))
}

/// When the pieces of a whole answer came.
pub(crate) struct Answer {
    pub(crate) begun: Instant,
    pub(crate) pieces: Vec<Instant>,
    pub(crate) tokens: u64,
}

impl Answer {
    /// Asks and reads to the end.
    pub(crate) async fn read(server: &Server, body: &Value) -> Outcome<Self> {
        let begun = monotonic();
        let (stream, first) = Self::begin(server, body).await?;
        Self::go_on(begun, stream, first).await
    }

    /// Asks, and reads to the end if there is text before then; else leaves.
    pub(crate) async fn read_begun_by(server: &Server, body: &Value, then: Instant) -> Outcome<Option<Self>> {
        let begun = monotonic();
        let begin = Self::begin(server, body);
        match tokio::time::timeout_at(then.into(), begin).await {
            Ok(begun_stream) => {
                let (stream, first) = begun_stream?;
                Self::go_on(begun, stream, first).await.map(Some)
            }
            Err(_) => Ok(None),
        }
    }

    /// Reads the first piece.
    async fn begin(server: &Server, body: &Value) -> Outcome<(Stream, Option<Piece>)> {
        let mut stream = Stream::open(server, body).await?;
        let first = stream.next().await?;
        Ok((stream, first))
    }

    async fn go_on(begun: Instant, mut stream: Stream, first: Option<Piece>) -> Outcome<Self> {
        let (mut next, mut pieces, mut tokens) = (first, Vec::new(), 0);
        while let Some(piece) = next {
            match piece {
                Piece::Text => pieces.push(monotonic()),
                Piece::Tokens(count) => tokens = count,
            }
            next = stream.next().await?;
        }
        Ok(Self { begun, pieces, tokens })
    }

    /// From the request to the first text; none where the answer has no text.
    pub(crate) fn first(&self) -> Option<Duration> {
        self.pieces.first().map(|first| *first - self.begun)
    }

    /// How many of its tokens came until then, as many for each piece.
    pub(crate) fn tokens_until(&self, end: Instant) -> f64 {
        let until = self.pieces.iter().filter(|at| **at <= end).count();
        if self.pieces.is_empty() { 0.0 } else { self.tokens as f64 * until as f64 / self.pieces.len() as f64 }
    }
}

/// A text of so many words, each of them a token of most vocabularies; another one for each number.
pub(crate) fn words(number: usize, count: usize) -> String {
    const WORDS: [&str; 8] = [" sea", " ship", " light", " wind", " stone", " house", " hand", " night"];
    (0..count).map(|index| WORDS[(number + 1 + index * index * (number + 2) + index / 7) % WORDS.len()]).collect()
}
