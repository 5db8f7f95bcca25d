//! One request to one upstream, and its answer as far as it comes: read, and told piece by piece.

use std::fmt::Display;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{Error, Exchange};
use super::refusal::{Trouble, broken, refused};
use super::run::{Answer, Rest, Upstream};
use super::sse::SseReader;
use super::wire::{Asked, Decode, Finish};
use crate::engine::{Counted, EngineEvent, FinishReason, Refusal};
use crate::parse::Piece;

/// How long an upstream that has ended its answer may take to tell its usage.
const USAGE_PATIENCE: Duration = Duration::from_secs(2);

/// Ends a stream of Chat Completions.
const DONE: &str = "[DONE]";

/// An answer that was told to its end.
pub(super) struct Done {
    pub(super) finish: FinishReason,
    /// What is behind it on its connection; absent where that is to be closed.
    pub(super) rest: Option<Rest>,
}

/// Asks once.
pub(super) async fn attempt(
    upstream: &Upstream,
    model: &str,
    answer: &mut Answer<'_>,
    streams: bool,
) -> Result<Done, Trouble> {
    let maker = upstream.maker(model);
    let asked = Asked {
        model,
        maker: &maker,
        request: answer.request,
        messages: answer.messages,
        answer: &answer.text,
        max_tokens: answer.tokens_left(),
        stream: streams,
    };
    let body = upstream.wire.body(&asked).map_err(Trouble::unsent)?;
    let said_before = answer.said;
    let failed = |error: Error| {
        let trouble = broke(upstream, &error);
        match (&error, trouble.end) {
            (Error::Unreachable(_), FinishReason::Failed(text)) => {
                Trouble { end: FinishReason::Refused(Refusal::Unreachable, text), ..trouble }
            }
            (_, end) => Trouble { end, ..trouble },
        }
    };
    let mut exchange = upstream.client.post(upstream.wire.path(), &body.to_string()).await.map_err(failed)?;
    if !exchange.status.is_success() {
        let text = upstream.redact(&String::from_utf8_lossy(&exchange.whole().await.unwrap_or_default()));
        let now_ms = upstream.clock.unix_ms();
        let trouble = refused(&upstream.name, exchange.status, &exchange.headers, text.as_bytes(), now_ms);
        upstream.client.keep(exchange);
        return Err(trouble);
    }
    if !streams {
        // It is not asked for streams any more.
        upstream.streams.store(false, Ordering::Relaxed);
    }
    let kind = exchange.header("content-type").unwrap_or_default().to_owned();
    let mut decoder = upstream.wire.decoder(&maker);
    answer.begin().await;
    let read = if kind.starts_with("application/json") {
        read_whole(upstream, &mut exchange, &mut decoder, answer).await
    } else if kind.starts_with("text/event-stream") {
        read_stream(upstream, &mut exchange, &mut *decoder, answer).await
    } else {
        let text = format!("the upstream {} answered {kind:?} in the place of a stream; check base_url", upstream.name);
        Err(Trouble::lasting(FinishReason::Failed(text)).logged("it answered no stream; check base_url"))
    };
    let mut pieces = Vec::new();
    if read.is_ok() && !answer.is_full {
        decoder.end(&mut pieces);
        answer.say(&mut pieces).await;
    }
    if read.is_err() || answer.is_full {
        decoder.break_off(&mut pieces);
        answer.say(&mut pieces).await;
    }
    read?;
    if answer.is_full {
        return Ok(Done { finish: FinishReason::Length, rest: None });
    }
    let finish = finished(&*decoder, answer, said_before).await;
    let client = upstream.client.clone();
    Ok(Done { finish, rest: Some(Rest { client, exchange }) })
}

/// A failure that may pass, in words from here.
fn broke(upstream: &Upstream, why: &dyn Display) -> Trouble {
    Trouble::passing(format!("the upstream {} failed: {why}", upstream.name)).logged(why.to_string())
}

/// The upstream ended its answer with a reason that is no end.
fn ended_badly(upstream: &Upstream, reason: &str) -> Trouble {
    broke(upstream, &reason).logged("it ended its answer with a reason that is none")
}

/// The end that the upstream told, with its count.
async fn finished(decoder: &dyn Decode, answer: &Answer<'_>, said_before: u32) -> FinishReason {
    if let Some(counted) = decoder.counted() {
        // What was said in front of a break was counted by nobody, and now as part of the prompt.
        let output_tokens = counted.output_tokens.saturating_add(said_before);
        let input_tokens = counted.input_tokens.saturating_sub(said_before);
        answer.tell(EngineEvent::Counted(Counted { input_tokens, output_tokens, ..counted })).await;
    }
    match decoder.finish() {
        Some(Finish::Length) => FinishReason::Length,
        Some(Finish::Filtered) => FinishReason::Filtered,
        Some(Finish::Stop(Some(stop))) => {
            answer.tell(EngineEvent::Piece(Piece::Stopped { stop: stop.clone() })).await;
            FinishReason::Stop
        }
        None | Some(Finish::Stop(None) | Finish::Broken(_)) => FinishReason::Stop,
    }
}

/// Reads an answer that comes whole. Of one that is at fault nothing is told.
async fn read_whole(
    upstream: &Upstream,
    exchange: &mut Exchange,
    decoder: &mut Box<dyn Decode>,
    answer: &mut Answer<'_>,
) -> Result<(), Trouble> {
    let text = exchange.whole().await.map_err(|error| broke(upstream, &error))?;
    let whole: Value = serde_json::from_slice(&text).map_err(|_| broke(upstream, &"its answer is no JSON"))?;
    if let Some(error) = error_in(&whole) {
        return Err(broken(&upstream.name, &redacted_json(upstream, &error)));
    }
    let (mut read, mut pieces) = (std::mem::replace(decoder, upstream.wire.decoder("")), Vec::new());
    read.read(&whole, &mut pieces);
    match read.finish() {
        Some(Finish::Broken(reason)) => return Err(ended_badly(upstream, reason)),
        Some(_) => {}
        None if pieces.is_empty() => return Err(broke(upstream, &"its answer says nothing")),
        None => return Err(broke(upstream, &"its answer has no end")),
    }
    *decoder = read;
    answer.say(&mut pieces).await;
    Ok(())
}

/// Reads events until the answer's end, and tells what they say.
async fn read_stream(
    upstream: &Upstream,
    exchange: &mut Exchange,
    decoder: &mut dyn Decode,
    answer: &mut Answer<'_>,
) -> Result<(), Trouble> {
    let mut reader = SseReader::default();
    while decoder.finish().is_none() {
        let bytes = exchange.bytes().await.map_err(|error| broke(upstream, &error))?;
        let bytes = bytes.ok_or_else(|| broke(upstream, &"its stream ended before its answer did"))?;
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

/// Reads the events that end in these bytes, tells what they say, and gives whether nothing more is wanted.
async fn read_events(
    upstream: &Upstream,
    reader: &mut SseReader,
    bytes: &[u8],
    decoder: &mut dyn Decode,
    answer: &mut Answer<'_>,
) -> Result<bool, Trouble> {
    let (mut events, mut pieces) = (Vec::new(), Vec::new());
    reader.push(bytes, &mut events).map_err(|error| broke(upstream, &error))?;
    for event in events {
        let has_ended = decoder.finish().is_some();
        if event.data.trim() == DONE {
            return if has_ended { Ok(true) } else { Err(broke(upstream, &"its stream ended before its answer did")) };
        }
        let chunk = match serde_json::from_str::<Value>(&event.data) {
            Ok(chunk) => match error_in(&chunk).filter(|_| !has_ended) {
                Some(error) => return Err(broken(&upstream.name, &redacted_json(upstream, &error))),
                None => chunk,
            },
            Err(_) if has_ended => continue,
            Err(_) => return Err(broke(upstream, &"an event is no JSON")),
        };
        decoder.read(&chunk, &mut pieces);
        if !pieces.is_empty() {
            upstream.circuit.succeeded();
        }
        answer.say(&mut pieces).await;
        if let Some(Finish::Broken(reason)) = decoder.finish() {
            return Err(ended_badly(upstream, reason));
        }
        if answer.is_full || decoder.is_over() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The error that an answer or an event of one tells, as `{error}`: it stands in itself, in its response, or is it.
fn error_in(said: &Value) -> Option<Value> {
    match said["type"].as_str() {
        _ if !said["error"].is_null() => Some(said.clone()),
        Some("error") => Some(json!({"error": said})),
        Some("response.failed") => Some(json!({"error": said["response"]["error"]})),
        _ => None,
    }
}

/// The same without the key, in front of whatever cuts its texts.
fn redacted_json(upstream: &Upstream, value: &Value) -> Value {
    serde_json::from_str(&upstream.redact(&value.to_string())).unwrap_or_default()
}
