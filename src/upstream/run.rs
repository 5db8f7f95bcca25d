//! One answer of a model's upstreams: asked for, and gone on with where it breaks off.
//!
//! What was shown stays shown. A request that fails before that is sent to the next upstream, or again after a while;
//! from then on the answer goes on behind what was shown. Dropping the future closes the connection.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::mpsc;

use super::capabilities::lacks;
use super::circuit::Circuit;
use super::http::{Client, Exchange};
use super::key::ApiKey;
use super::read::{Done, attempt};
use super::refusal::{Fault, Log};
use super::route::{Rounds, Route};
use super::wire::Wire;
use crate::clock::{Clock, monotonic};
use crate::engine::settings::TextRule;
use crate::engine::{EngineEvent, FinishReason, GenerationRequest};
use crate::ids::FreshIds;
use crate::parse::Piece;
use crate::prompt::Message;

/// The first wait between two tries; each later one is twice as long, up to the longest.
const BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(8);

/// How long the bytes behind a whole answer are waited for, so that its connection can be used again.
const REST_PATIENCE: Duration = Duration::from_secs(2);

/// An upstream as it was set up.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) wire: Wire,
    pub(super) key: Option<ApiKey>,
    pub(super) rank: u32,
    pub(super) circuit: Circuit,
    /// Whether it streams; cleared once it refused to, and answered whole.
    pub(super) streams: AtomicBool,
    pub(super) retries_max: u32,
    pub(super) retry_after_max: Duration,
    pub(super) clock: Clock,
}

impl Upstream {
    /// The text without the key.
    pub(super) fn redact(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }

    /// Who answers when it is asked for this model.
    pub(super) fn maker(&self, model: &str) -> String {
        format!("upstream-{}-{model}", self.name)
    }
}

/// An exchange whose answer is whole, and may have bytes behind it.
pub(super) struct Rest {
    pub(super) client: Client,
    pub(super) exchange: Exchange,
}

impl Rest {
    /// Reads what is behind the answer, and keeps the connection for another.
    pub(super) async fn settle(mut self) {
        let rest = async { while matches!(self.exchange.bytes().await, Ok(Some(_))) {} };
        if tokio::time::timeout(REST_PATIENCE, rest).await.is_ok() {
            self.client.keep(self.exchange);
        }
    }
}

/// Asks for an answer and tells its events, all but the last: that is what it returns.
pub(super) async fn answer(
    route: &Route,
    request: &GenerationRequest,
    events: &mpsc::Sender<EngineEvent>,
) -> (FinishReason, Option<Rest>) {
    if let Some(refused) = lacks(&route.capabilities, &route.model, request) {
        return (refused, None);
    }
    let mut answer = Answer::of(request, events);
    let mut rounds = Rounds::of(route, &request.messages);
    let (mut tries, mut end) = (0, FinishReason::Failed("no upstream has the model".to_owned()));
    loop {
        if let Some(finish) = answer.is_over() {
            answer.begin().await;
            return (finish, None);
        }
        let Some(stop) = rounds.next(monotonic()) else {
            // Everybody was asked: again, after a while.
            let Some(pause) = rounds.again() else { return (end, None) };
            tries += 1;
            tokio::time::sleep(pause).await;
            continue;
        };
        let (upstream, said_before) = (stop.upstream.clone(), answer.said);
        let trouble = match attempt(&upstream, &route.model, &mut answer, stop.streams).await {
            Ok(Done { finish, rest }) => {
                upstream.circuit.succeeded();
                return (finish, rest);
            }
            Err(trouble) => trouble,
        };
        if let Some(finish) = answer.is_over() {
            return (finish, None);
        }
        if stop.streams && trouble.refuses_streams {
            stop.streams = false;
            continue;
        }
        let end_here = redacted(&upstream, trouble.end);
        if trouble.fault == Fault::Unsent {
            // Another may have words for it.
            stop.is_out();
            end = end_here;
            continue;
        }
        if trouble.fault == Fault::Request {
            upstream.circuit.succeeded();
            return (end_here, None);
        }
        if answer.said == said_before && upstream.circuit.failed(monotonic()) {
            tracing::warn!(upstream = upstream.name, "an upstream rests: it failed several times running");
        }
        let wait = trouble.retry_after.unwrap_or_else(|| backoff(tries, FreshIds::random().next_u64()));
        let may_wait = trouble.retry_after.is_none_or(|asked| asked <= upstream.retry_after_max);
        if trouble.may_pass && may_wait && tries < upstream.retries_max {
            stop.failed(wait);
        } else {
            stop.is_out();
        }
        let (shown, Log { status, code, what }) = (answer.said, trouble.log);
        let what = upstream.redact(&what);
        tracing::warn!(upstream = upstream.name, tries, ?wait, status, code, what, shown, "an upstream failed");
        end = end_here;
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
pub(super) struct Answer<'a> {
    pub(super) request: &'a GenerationRequest,
    events: &'a mpsc::Sender<EngineEvent>,
    /// The messages in front of it.
    pub(super) messages: &'a [Message],
    /// What it says.
    pub(super) text: String,
    /// Whether it has a whole call.
    has_calls: bool,
    /// How many of its pieces were told that say something, in this process and before.
    pub(super) said: u32,
    /// Whether it would have had more than it may: what was beyond was not told.
    pub(super) is_full: bool,
    has_begun: bool,
}

impl<'a> Answer<'a> {
    fn of(request: &'a GenerationRequest, events: &'a mpsc::Sender<EngineEvent>) -> Self {
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
        Self { request, events, messages, text, has_calls, said, is_full: false, has_begun: false }
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
    pub(super) fn tokens_left(&self) -> Option<u32> {
        let max_tokens = self.request.max_tokens;
        (max_tokens < u32::MAX).then(|| max_tokens.saturating_sub(self.said))
    }

    /// The upstream has begun.
    pub(super) async fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.tell(EngineEvent::Started { cached_tokens: 0 }).await;
        }
    }

    /// Tells pieces, as far as there is room for them: an upstream may forget where to end. A piece is a token at
    /// least.
    pub(super) async fn say(&mut self, pieces: &mut Vec<Piece>) {
        for piece in pieces.drain(..) {
            if piece.grows() && self.tokens_left() == Some(0) {
                self.is_full = true;
                return;
            }
            match &piece {
                Piece::Text(text) => self.text.push_str(text),
                Piece::ToolCallDone { complete, .. } => self.has_calls |= complete,
                _ => {}
            }
            self.said += u32::from(piece.grows());
            self.tell(EngineEvent::Piece(piece)).await;
        }
    }

    pub(super) async fn tell(&self, event: EngineEvent) {
        // A reader that is gone is noticed by whoever waits for it.
        let _ = self.events.send(event).await;
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
