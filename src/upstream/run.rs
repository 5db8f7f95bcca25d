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
use crate::engine::settings::TextRule;
use crate::engine::{Counted, EngineEvent, FinishReason, GenerationRequest};
use crate::ids::FreshIds;
use crate::parse::Piece;
use crate::prompt::Message;

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
    /// Whether it streams; cleared once it refused to, and answered whole.
    pub(super) streams: AtomicBool,
    pub(super) retries_max: u32,
    pub(super) retry_after_max: Duration,
    pub(super) clock: Clock,
}

impl Upstream {
    /// The text without the key.
    fn redact(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }
}

/// Asks for an answer and tells its events, all but the last: that is what it returns.
pub(super) async fn answer(
    upstream: &Upstream,
    model: &str,
    request: &GenerationRequest,
    events: &mpsc::Sender<EngineEvent>,
) -> FinishReason {
    let mut answer = Answer::of(request, events, upstream.streams.load(Ordering::Relaxed));
    let mut tries = 0;
    loop {
        if let Some(finish) = answer.is_over() {
            answer.begin().await;
            return finish;
        }
        let trouble = match attempt(upstream, model, &mut answer).await {
            Ok(finish) => return finish,
            Err(trouble) => trouble,
        };
        if let Some(finish) = answer.is_over() {
            return finish;
        }
        if answer.streams && trouble.refuses_streams {
            answer.streams = false;
            continue;
        }
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
    match end {
        FinishReason::Failed(text) => FinishReason::Failed(upstream.redact(&text)),
        FinishReason::Refused(refusal, text) => FinishReason::Refused(refusal, upstream.redact(&text)),
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
    /// How many of its pieces were told that say something, in this process and before.
    said: u32,
    has_begun: bool,
    /// Whether it is asked for as a stream.
    streams: bool,
}

impl<'a> Answer<'a> {
    fn of(request: &'a GenerationRequest, events: &'a mpsc::Sender<EngineEvent>, streams: bool) -> Self {
        let all = &request.messages[..];
        let before = all.len().saturating_sub(request.chat.begun);
        let own = &all[before..];
        let has_calls = own.iter().any(|message| !message.tool_calls.is_empty());
        // Reasoning without a word behind it is not gone on with: the model thinks again.
        let last = own.iter().rposition(|message| !message.content.is_empty());
        let (messages, text) = match last {
            Some(last) => (&all[..before + last], own[last].content.clone()),
            None => (&all[..before], String::new()),
        };
        let said = u32::try_from(request.resumed.len()).unwrap_or(u32::MAX);
        Self { request, events, messages, text, has_calls, said, has_begun: false, streams }
    }

    /// How it ends, if nothing is left to ask for.
    fn is_over(&self) -> Option<FinishReason> {
        let form = self.request.chat.constraint.as_ref().map(|constraint| &constraint.text);
        let has_form = form.is_some_and(|form| !matches!(form, TextRule::Any | TextRule::Nothing));
        if self.has_calls {
            // They wait for their results: whatever else it would have said, it says behind them.
            Some(FinishReason::Stop)
        } else if self.tokens_left() == Some(0) {
            Some(FinishReason::Length)
        } else if has_form && !self.text.is_empty() {
            let text = "the answer broke off inside of the form that it must have, and its upstream would begin the \
                        form anew; ask again";
            Some(FinishReason::Failed(text.to_owned()))
        } else {
            None
        }
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
            self.said += u32::from(piece.grows());
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
    let streams = answer.streams;
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
        let text = upstream.redact(&String::from_utf8_lossy(&exchange.whole().await.unwrap_or_default()));
        let now_ms = upstream.clock.unix_ms();
        return Err(refused(&upstream.name, exchange.status, &exchange.headers, text.as_bytes(), now_ms));
    }
    if !streams {
        // It is not asked for streams any more.
        upstream.streams.store(false, Ordering::Relaxed);
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
    Ok(finished(&decoder, answer, said_before).await)
}

/// The end that the upstream told, with its count.
async fn finished(decoder: &Decoder, answer: &Answer<'_>, said_before: u32) -> FinishReason {
    if let Some(counted) = decoder.counted() {
        // What was said in front of a break was counted by nobody, and now as part of the prompt.
        let output_tokens = counted.output_tokens.saturating_add(said_before);
        let input_tokens = counted.input_tokens.saturating_sub(said_before);
        answer.tell(EngineEvent::Counted(Counted { input_tokens, output_tokens, ..counted })).await;
    }
    match decoder.finish() {
        Some(Finish::Length) => FinishReason::Length,
        Some(Finish::Filtered) => FinishReason::Filtered,
        Some(Finish::Stop(stop)) => {
            if let Some(stop) = stop.clone() {
                answer.tell(EngineEvent::Piece(Piece::Stopped { stop })).await;
            }
            FinishReason::Stop
        }
        None | Some(Finish::Broken(_)) => FinishReason::Stop,
    }
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
        return Err(broken(&upstream.name, &redacted_json(upstream, &whole)));
    }
    decoder.read(&whole, pieces);
    if let Some(Finish::Broken(reason)) = decoder.finish() {
        return Err(broke(reason));
    }
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
    let mut reader = SseReader::default();
    while decoder.finish().is_none() {
        let bytes = exchange.bytes().await.map_err(|error| broke(&error))?;
        let bytes = bytes.ok_or_else(|| broke(&"its stream ended before its answer did"))?;
        if read_events(upstream, &mut reader, &bytes, decoder, answer).await? {
            return Ok(());
        }
    }
    // Whatever becomes of the rest, the answer is whole.
    let rest = async {
        while let Ok(Some(bytes)) = exchange.bytes().await {
            if !matches!(read_events(upstream, &mut reader, &bytes, decoder, answer).await, Ok(false)) {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(USAGE_PATIENCE, rest).await;
    Ok(())
}

/// Reads the events that end in these bytes, tells what they say, and gives whether the last one was among them.
async fn read_events(
    upstream: &Upstream,
    reader: &mut SseReader,
    bytes: &[u8],
    decoder: &mut Decoder,
    answer: &mut Answer<'_>,
) -> Result<bool, Trouble> {
    let broke = |why: &dyn std::fmt::Display| Trouble::passing(format!("the upstream {} failed: {why}", upstream.name));
    let (mut events, mut pieces) = (Vec::new(), Vec::new());
    reader.push(bytes, &mut events).map_err(|error| broke(&error))?;
    for event in events {
        if event.data.trim() == "[DONE]" {
            return Ok(true);
        }
        let chunk = serde_json::from_str::<Value>(&event.data);
        if decoder.finish().is_some() {
            decoder.count(&chunk.unwrap_or_default());
            continue;
        }
        let chunk = chunk.map_err(|_| broke(&"an event is no JSON"))?;
        if !chunk["error"].is_null() {
            return Err(broken(&upstream.name, &redacted_json(upstream, &chunk)));
        }
        decoder.read(&chunk, &mut pieces);
        answer.say(&mut pieces).await;
        if let Some(Finish::Broken(reason)) = decoder.finish() {
            return Err(broke(reason));
        }
    }
    Ok(false)
}

/// The same without the key, in front of whatever cuts its texts.
fn redacted_json(upstream: &Upstream, value: &Value) -> Value {
    serde_json::from_str(&upstream.redact(&value.to_string())).unwrap_or_default()
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
