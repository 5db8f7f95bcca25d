//! One answer of an upstream: asked for, read, and gone on with where the stream breaks off.
//!
//! What was shown stays shown. A request that fails before that is sent again after a while; from then on the answer
//! goes on behind what was shown. Dropping the future closes the connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;

use super::chat::{Asked, Decoder, Finish, body};
use super::http::{Client, Error, Exchange};
use super::key::ApiKey;
use super::kind::Manners;
use super::refusal::{Trouble, broken, refused};
use super::sse::SseReader;
use crate::clock::Clock;
use crate::engine::{Counted, EngineEvent, FinishReason, GenerationRequest, Refusal};
use crate::ids::FreshIds;
use crate::parse::Piece;
use crate::prompt::{Message, Role};

/// The route of Chat Completions.
const CHAT_PATH: &str = "/chat/completions";

/// The first wait between two tries; each later one is twice as long, up to the longest.
const BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(8);

/// How long an upstream that has ended its answer may take to tell its usage.
const USAGE_PATIENCE: Duration = Duration::from_secs(2);

/// An upstream as it was set up.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) manners: Manners,
    pub(super) key: Option<ApiKey>,
    /// Whether it streams; cleared once it says that it cannot.
    pub(super) streams: AtomicBool,
    pub(super) retries_max: u32,
    pub(super) retry_after_max: Duration,
    pub(super) clock: Clock,
}

/// Asks for an answer and tells its events, all but the last: that is what it returns.
pub(super) async fn answer(
    upstream: &Upstream,
    model: &str,
    request: &GenerationRequest,
    events: &mpsc::Sender<EngineEvent>,
) -> FinishReason {
    let mut answer = Answer::of(request, events);
    let mut tries = 0;
    loop {
        if answer.has_calls {
            // They wait for their results: whatever else it would have said, it says behind them.
            answer.begin().await;
            return FinishReason::Stop;
        }
        if answer.tokens_left() == Some(0) {
            answer.begin().await;
            return FinishReason::Length;
        }
        let trouble = match attempt(upstream, model, &mut answer).await {
            Ok(finish) => return finish,
            Err(trouble) => trouble,
        };
        let asked_to_wait = trouble.retry_after.unwrap_or_default();
        if !trouble.may_pass || tries >= upstream.retries_max || asked_to_wait > upstream.retry_after_max {
            return redacted(upstream, trouble.end);
        }
        let pause = trouble.retry_after.unwrap_or_else(|| backoff(tries, FreshIds::random().next_u64()));
        tries += 1;
        let why = redacted(upstream, trouble.end);
        tracing::warn!(upstream = upstream.name, tries, ?pause, ?why, shown = answer.said, "asking an upstream again");
        tokio::time::sleep(pause).await;
    }
}

/// How long to wait after so many tries: between half of a time that doubles, and all of it.
fn backoff(tries: u32, random: u64) -> Duration {
    let longest = BACKOFF.saturating_mul(1 << tries.min(16)).min(BACKOFF_MAX);
    longest.mul_f64(0.5 + 0.5 * (random as f64 / u64::MAX as f64))
}

/// What is told a client, without the key that an upstream may repeat.
fn redacted(upstream: &Upstream, end: FinishReason) -> FinishReason {
    let Some(key) = &upstream.key else { return end };
    match end {
        FinishReason::Failed(text) => FinishReason::Failed(key.redact(&text)),
        FinishReason::Refused(refusal, text) => FinishReason::Refused(refusal, key.redact(&text)),
        end => end,
    }
}

/// An answer as far as it has come.
struct Answer<'a> {
    request: &'a GenerationRequest,
    events: &'a mpsc::Sender<EngineEvent>,
    /// The messages in front of it.
    messages: &'a [Message],
    /// What it says.
    text: String,
    /// Whether it has a whole call.
    has_calls: bool,
    /// How many of its pieces were told, in this process and before.
    said: u32,
    has_begun: bool,
}

impl<'a> Answer<'a> {
    fn of(request: &'a GenerationRequest, events: &'a mpsc::Sender<EngineEvent>) -> Self {
        let all = &request.messages[..];
        let own = all.iter().rev().take_while(|message| message.role == Role::Assistant);
        let own = if request.chat.continues { own.count() } else { 0 };
        let (before, own) = all.split_at(all.len() - own);
        let has_calls = own.iter().any(|message| !message.tool_calls.is_empty());
        // Reasoning without a word behind it is not gone on with: the model thinks again.
        let (messages, text) = match own.split_last() {
            Some((last, _)) => (&all[..all.len() - 1], last.content.clone()),
            None => (before, String::new()),
        };
        let said = u32::try_from(request.resumed.len()).unwrap_or(u32::MAX);
        Self { request, events, messages, text, has_calls, said, has_begun: false }
    }

    /// None where there is no bound.
    fn tokens_left(&self) -> Option<u32> {
        let max_tokens = self.request.max_tokens;
        (max_tokens < u32::MAX).then(|| max_tokens.saturating_sub(self.said))
    }

    /// The upstream has begun.
    async fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.tell(EngineEvent::Started { cached_tokens: 0 }).await;
        }
    }

    async fn say(&mut self, pieces: &mut Vec<Piece>) {
        for piece in pieces.drain(..) {
            match &piece {
                Piece::Text(text) => self.text.push_str(text),
                Piece::ToolCallDone { complete, .. } => self.has_calls |= complete,
                _ => {}
            }
            self.said += 1;
            self.tell(EngineEvent::Piece(piece)).await;
        }
    }

    async fn tell(&self, event: EngineEvent) {
        // A reader that is gone is noticed by whoever waits for it.
        let _ = self.events.send(event).await;
    }
}

/// One request, and its answer as far as it comes.
async fn attempt(upstream: &Upstream, model: &str, answer: &mut Answer<'_>) -> Result<FinishReason, Trouble> {
    let streams = upstream.streams.load(Ordering::Relaxed);
    let asked = Asked {
        model,
        request: answer.request,
        messages: answer.messages,
        answer: &answer.text,
        max_tokens: answer.tokens_left(),
        stream: streams,
    };
    let body = body(&asked, &upstream.manners).map_err(Trouble::lasting)?;
    let said_before = answer.said;
    let failed = |error: Error| Trouble::passing(format!("the upstream {} failed: {error}", upstream.name));
    let mut exchange = upstream.client.post(CHAT_PATH, body.to_string()).await.map_err(failed)?;
    if !exchange.status.is_success() {
        let text = exchange.whole().await.unwrap_or_default();
        let trouble = refused(&upstream.name, exchange.status, &exchange.headers, &text, upstream.clock.unix_ms());
        return Err(if streams && trouble.refuses_streams { whole_from_now_on(upstream) } else { trouble });
    }
    let kind = exchange.header("content-type").unwrap_or_default().to_owned();
    let mut decoder = Decoder::default();
    let mut pieces = Vec::new();
    answer.begin().await;
    let read = if kind.starts_with("application/json") {
        read_whole(upstream, &mut exchange, &mut decoder, &mut pieces).await
    } else if kind.starts_with("text/event-stream") {
        read_stream(upstream, &mut exchange, &mut decoder, answer).await
    } else {
        let text = format!("the upstream {} answered {kind:?} in the place of a stream; check base_url", upstream.name);
        Err(Trouble::lasting(FinishReason::Failed(text)))
    };
    match read {
        Ok(()) => decoder.end(&mut pieces),
        Err(_) => decoder.break_off(&mut pieces),
    }
    answer.say(&mut pieces).await;
    read?;
    Ok(finished(upstream, &decoder, answer, said_before).await)
}

/// The end that the upstream told, with its count.
async fn finished(upstream: &Upstream, decoder: &Decoder, answer: &Answer<'_>, said_before: u32) -> FinishReason {
    if let Some(counted) = decoder.counted() {
        // What was said in front of a break was counted by nobody.
        let output_tokens = counted.output_tokens.saturating_add(said_before);
        answer.tell(EngineEvent::Counted(Counted { output_tokens, ..counted })).await;
    }
    match decoder.finish() {
        Some(Finish::Length) => FinishReason::Length,
        Some(Finish::Filtered) => {
            let text = format!("a filter of the upstream {} ended the answer", upstream.name);
            FinishReason::Refused(Refusal::Input, text)
        }
        Some(Finish::Stop(stop)) => {
            if let Some(stop) = stop.clone() {
                answer.tell(EngineEvent::Piece(Piece::Stopped { stop })).await;
            }
            FinishReason::Stop
        }
        None => FinishReason::Stop,
    }
}

/// The upstream said that it cannot stream: it is asked for whole answers from here on.
fn whole_from_now_on(upstream: &Upstream) -> Trouble {
    upstream.streams.store(false, Ordering::Relaxed);
    let text = format!("the upstream {} does not stream", upstream.name);
    Trouble { retry_after: Some(Duration::ZERO), ..Trouble::passing(text) }
}

async fn read_whole(
    upstream: &Upstream,
    exchange: &mut Exchange,
    decoder: &mut Decoder,
    pieces: &mut Vec<Piece>,
) -> Result<(), Trouble> {
    let broke = |why: &dyn std::fmt::Display| Trouble::passing(format!("the upstream {} failed: {why}", upstream.name));
    let text = exchange.whole().await.map_err(|error| broke(&error))?;
    let whole: Value = serde_json::from_slice(&text).map_err(|_| broke(&"its answer is no JSON"))?;
    if !whole["error"].is_null() {
        return Err(broken(&upstream.name, &whole));
    }
    decoder.read(&whole, pieces);
    if decoder.finish().is_none() && pieces.is_empty() {
        return Err(broke(&"its answer says nothing"));
    }
    Ok(())
}

/// Reads chunks until the answer's end, and tells what they say.
async fn read_stream(
    upstream: &Upstream,
    exchange: &mut Exchange,
    decoder: &mut Decoder,
    answer: &mut Answer<'_>,
) -> Result<(), Trouble> {
    let broke = |why: &dyn std::fmt::Display| Trouble::passing(format!("the upstream {} failed: {why}", upstream.name));
    let (mut reader, mut events, mut pieces) = (SseReader::default(), Vec::new(), Vec::new());
    loop {
        let bytes = match decoder.finish() {
            None => exchange.bytes().await.map_err(|error| broke(&error))?,
            // Whatever becomes of the rest, the answer is whole.
            Some(_) => exchange.bytes_within(USAGE_PATIENCE).await.unwrap_or_default(),
        };
        let Some(bytes) = bytes else {
            return match decoder.finish() {
                Some(_) => Ok(()),
                None => Err(broke(&"its stream ended before its answer did")),
            };
        };
        reader.push(&bytes, &mut events).map_err(|error| broke(&error))?;
        for event in events.drain(..) {
            if event.data.trim() == "[DONE]" {
                return Ok(());
            }
            let chunk: Value = serde_json::from_str(&event.data).map_err(|_| broke(&"an event is no JSON"))?;
            if !chunk["error"].is_null() {
                return Err(broken(&upstream.name, &chunk));
            }
            decoder.read(&chunk, &mut pieces);
            answer.say(&mut pieces).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_differ() {
        assert_eq!(backoff(0, 0), BACKOFF / 2);
        assert_eq!(backoff(0, u64::MAX), BACKOFF);
        assert_eq!(backoff(2, u64::MAX), BACKOFF * 4);
        assert_eq!(backoff(40, u64::MAX), BACKOFF_MAX);
        assert!((backoff(1, 1 << 62)..backoff(1, 1 << 63)).contains(&backoff(1, (1 << 62) + 1)));
    }
}
