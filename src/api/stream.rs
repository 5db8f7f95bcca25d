//! Following a conversation's events, and writing them as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::admission::Permit;
use super::errors::{failed, object};
use super::frame::{dispatch, is_end_of, openai, silent_failure};
use crate::actors::{ConversationHandle, Reader};
use crate::conversation::{Event as Fact, Recorded, Reject, State};
use crate::error::Code;
use crate::ids::ResponseId;

/// An answer of server-sent events. The permit lives as long as the stream.
pub(crate) fn sse(
    events: impl Stream<Item = Event> + Send + 'static,
    silence: Duration,
    sign_of_life: Event,
    permit: Option<Permit>,
) -> Response {
    let events = events.map(move |event| {
        let _held = &permit;
        Ok::<_, Infallible>(event)
    });
    let keep_alive = KeepAlive::new().interval(silence).event(sign_of_life);
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // Proxies that buffer would turn a stream into one late answer.
    let no = HeaderValue::from_static("no");
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), no);
    response
}

/// An event whose data is JSON on one line.
pub(crate) fn data(value: &impl Serialize) -> Event {
    Event::default().data(serde_json::to_string(value).unwrap_or_default())
}

/// What `show` makes of each event, from where the reader stands until it breaks off; what it gives for one event
/// stays together. If the reader is cut, the last frame says so.
pub(crate) fn follow(
    reader: Reader,
    show: impl FnMut(&State, &Recorded) -> ControlFlow<Vec<Value>, Vec<Value>> + Send,
) -> impl Stream<Item = Vec<Value>> + Send {
    stream::unfold((Some(reader), show), |(reader, mut show)| async move {
        let mut reader = reader?;
        let Some(recorded) = reader.next().await else {
            // The last event said why there is nothing more.
            let ended = reader.state().deleted;
            return (!ended).then(|| (vec![cut(reader.state())], (None, show)));
        };
        Some(match show(reader.state(), &recorded) {
            ControlFlow::Continue(frames) => (frames, (Some(reader), show)),
            ControlFlow::Break(frames) => (frames, (None, show)),
        })
    })
}

/// The last frame of a stream that was cut.
fn cut(state: &State) -> Value {
    let mut frame = super::errors::frame(interrupted(), None);
    frame["resume_after"] = json!(state.last_seq);
    frame
}

/// The reader was dropped: it was too slow, or the server stops.
pub(crate) fn interrupted() -> Reject {
    let text = "the stream was cut, since its reader was too slow or the server stops; resume it at the last event, or \
                send the request again if it was not stored";
    Reject::new(Code::Overloaded, text)
}

/// One response's events, from a reader that stands before its first.
pub(crate) struct Follow {
    reader: Reader,
    id: ResponseId,
    /// Events up to this number are left out.
    after: Option<u64>,
    /// Whether whole calls and whole reasoning are shown beside them.
    dispatch: bool,
    waiting: VecDeque<Value>,
    ended: bool,
    /// The number behind that of the last event.
    next_number: u64,
}

impl Follow {
    /// Follows the response from the beginning, or behind an event.
    pub(crate) fn new(reader: Reader, id: ResponseId, after: Option<u64>, dispatch: bool) -> Self {
        let next_number = after.map_or(0, |after| after + 1);
        Self { reader, id, after, dispatch, waiting: VecDeque::new(), ended: false, next_number }
    }

    /// Waits until the response shows a sign of life; one that fails before it is a refusal and not a stream. A
    /// client waits for the head of its answer no longer than for any other sign of life.
    pub(crate) async fn begin(mut self, silence: Duration) -> Result<Self, Reject> {
        let _ = timeout(silence, async { while !self.ended && self.waiting.len() < 2 && self.read().await {} }).await;
        let response = self.reader.state().response(self.id);
        match response.and_then(silent_failure) {
            Some(error) if self.ended => Err(failed(error, self.id)),
            _ => Ok(self),
        }
    }

    /// Takes in what is shown of the next event that is the response's and lies behind the cursor. False: there is
    /// none any more.
    async fn read(&mut self) -> bool {
        let before = self.waiting.len();
        while !self.ended && self.waiting.len() == before {
            let Some(recorded) = self.reader.next().await else { break };
            self.ended = is_end_of(&recorded, self.id);
            let state = self.reader.state();
            let next = state.response(self.id).map_or(0, |response| response.next_number);
            // What has no number belongs to the event before it.
            let number = recorded.number.or(next.checked_sub(1));
            if recorded.event.response_id() != Some(self.id) || number <= self.after {
                continue;
            }
            if let Some(event) = openai(state, &recorded) {
                self.next_number = event.sequence_number + 1;
                self.waiting.extend(serde_json::to_value(event));
            }
            self.waiting.extend(dispatch(state, &recorded.event).filter(|_| self.dispatch));
        }
        self.waiting.len() > before
    }

    /// The events as OpenAI sends them; a stream that is cut ends with an `error` event.
    pub(crate) fn events(self) -> impl Stream<Item = Event> + Send {
        stream::unfold(Some(self), |place| async move {
            let mut follow = place?;
            if follow.waiting.is_empty() {
                follow.read().await;
            }
            match follow.waiting.pop_front() {
                Some(value) => {
                    let name = value["type"].as_str().unwrap_or_default().to_owned();
                    Some((data(&value).event(name), Some(follow)))
                }
                None if follow.ended => None,
                None => {
                    let error = object(interrupted());
                    let value = json!({
                        "type": "error",
                        "code": error.code,
                        "message": error.message,
                        "param": null,
                        "sequence_number": follow.next_number,
                    });
                    Some((data(&value).event("error"), None))
                }
            }
        })
    }
}

/// Waits for the end of a response and gives the state that shows it.
pub(crate) async fn finish(
    mut reader: Reader,
    handle: &ConversationHandle,
    id: ResponseId,
) -> Result<Arc<State>, Reject> {
    while let Some(recorded) = reader.next().await {
        if is_end_of(&recorded, id) {
            return Ok(Arc::new(reader.state().clone()));
        }
    }
    handle.ended(id).await
}

/// The state in which a response ended whose events are no longer kept; `expired` says that they are not.
pub(crate) async fn kept_end(
    handle: &ConversationHandle,
    id: ResponseId,
    expired: Reject,
) -> Result<Arc<State>, Reject> {
    let ended = handle.state().await?.response(id).and_then(|response| response.ended_seq).ok_or(expired)?;
    handle.kept_event(ended).await.map(|(state, _)| state)
}

/// The state right behind the creation of a response, from a reader that stands before it.
pub(crate) async fn at_creation(reader: &mut Reader, id: ResponseId) -> Result<(), Reject> {
    while let Some(recorded) = reader.next().await {
        if matches!(&recorded.event, Fact::ResponseCreated(new) if new.id == id) {
            return Ok(());
        }
    }
    Err(interrupted())
}
