//! One WebSocket, whatever is spoken on it: its bounds, reading, writing, silence, and how it closes.
//!
//! Two halves run side by side: one reads frames and works on requests, the other writes answers and events. A
//! client that does not read stops the writing half only; a request that waits stops nobody. What a frame means is
//! not known here: that is the [`Speaker`]'s.

use std::collections::VecDeque;
use std::error::Error as _;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered, SplitSink, SplitStream};
use futures_util::{FutureExt, SinkExt, Stream, StreamExt};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::body::parsed;
use super::{App, Phase, auth, errors, idempotency};
use crate::access::Identity;
use crate::conversation::Reject;
use crate::error::Code;

/// Most requests of one socket that are worked on at once; then it is not read from.
const REQUESTS_MAX: usize = 64;
/// Answers that wait to be written.
const OUTBOX_FRAMES: usize = 64;
/// How long a client has to take the close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// What a socket may hold back before it writes, beside its largest frame.
const WRITE_BUFFER_BYTES: usize = 256 << 10;

/// What goes out.
pub(crate) enum Out {
    /// Frames that nothing else comes between.
    Frames(Vec<Value>),
    /// These frames, and from here on what the stream gives, in place of the one with this number before.
    Events(usize, Vec<Value>, BoxStream<'static, Self>),
    /// Nothing more.
    Close(u16),
}

impl Out {
    /// The stream of events was cut, and its client is to come back.
    pub(crate) fn cut() -> Self {
        Self::Close(close_code::AGAIN)
    }
}

/// Where answers are queued.
#[derive(Clone)]
pub(crate) struct Outbox(mpsc::Sender<Out>);

impl Outbox {
    pub(crate) async fn send(&self, out: Out) {
        // Fails only when the socket is closing.
        let _ = self.0.send(out).await;
    }
}

/// What the frames of a socket mean.
pub(crate) trait Speaker: Send + Sync + 'static {
    /// Decides what depends on the order in which frames are read. A number: the request took what only one may have,
    /// or a place in line for it.
    fn begin(&self, frame: &Value) -> Result<Option<u64>, Reject>;

    /// Does what the frame asks for. The frame that answers it, unless it was answered otherwise.
    fn perform(
        self: &Arc<Self>,
        frame: &Value,
        event_id: Option<&str>,
        took: Option<u64>,
    ) -> impl Future<Output = Result<Option<Value>, Reject>> + Send;

    /// A request that took something is done.
    fn give_back(&self, _succeeded: bool) {}

    /// How long the socket lives, if something else than its client ends it.
    fn life(&self) -> Option<Duration> {
        None
    }

    /// Tells more of the refusal of a frame.
    fn refused(&self, _frame: &Value, _error: &mut Value) {}

    /// Whether no response is followed: the socket may close when the server stops.
    fn is_idle(&self) -> bool;
}

/// A frame as it was read.
struct Begun {
    event_id: Option<String>,
    /// Nothing where it could not be read at all.
    frame: Value,
    /// What [`Speaker::begin`] said of it.
    took: Result<Option<u64>, Reject>,
}

impl Begun {
    fn new(speaker: &impl Speaker, frame: Result<Value, Reject>) -> Self {
        let read = frame.and_then(|frame| Ok((idempotency::event_id(&frame)?, frame)));
        match read {
            Ok((event_id, frame)) => Self { event_id, took: speaker.begin(&frame), frame },
            Err(reject) => Self { event_id: None, frame: Value::Null, took: Err(reject) },
        }
    }

    /// Works on the request. A refused one is an `error` frame; the socket stays.
    async fn answer<S: Speaker>(self, speaker: Arc<S>, outbox: Outbox) {
        let Self { event_id, frame, took } = self;
        let event_id = event_id.as_deref();
        let done = match took {
            Ok(took) => {
                let done = speaker.perform(&frame, event_id, took).await;
                if took.is_some() {
                    speaker.give_back(done.is_ok());
                }
                done
            }
            Err(reject) => Err(reject),
        };
        let answer = done.unwrap_or_else(|reject| {
            let mut error = errors::frame(reject, event_id);
            speaker.refused(&frame, &mut error);
            Some(error)
        });
        if let Some(answer) = answer {
            outbox.send(Out::Frames(vec![answer])).await;
        }
    }
}

/// The streams of events that a socket writes, by their numbers.
#[derive(Default)]
struct Followed(VecDeque<(usize, BoxStream<'static, Out>)>);

impl Followed {
    fn replace(&mut self, number: usize, stream: BoxStream<'static, Out>) {
        self.0.retain(|(other, _)| *other != number);
        self.0.push_back((number, stream));
    }
}

impl Stream for Followed {
    type Item = Out;

    /// Never ends: another stream may come. One that has had its say goes behind the others, so that one that always
    /// has something does not keep them waiting.
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Out>> {
        for _ in 0..self.0.len() {
            let Some((number, mut stream)) = self.0.pop_front() else { break };
            match stream.poll_next_unpin(context) {
                Poll::Ready(None) => {}
                Poll::Pending => self.0.push_back((number, stream)),
                Poll::Ready(some) => {
                    self.0.push_back((number, stream));
                    return Poll::Ready(some);
                }
            }
        }
        Poll::Pending
    }
}

/// Takes the upgrade; the socket lives on by itself, in this client's name.
pub(crate) fn accept<S: Speaker>(
    app: App,
    who: Identity,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    speaker: impl FnOnce(App, Identity, Outbox) -> S + Send + 'static,
) -> Result<Response, Reject> {
    let upgrade = upgrade.map_err(|rejection| {
        Reject::new(Code::InvalidInput, format!("this route is a WebSocket: {}", rejection.body_text()))
    })?;
    let seat = app.seat(&who)?;
    let bound = app.limits.ws_frame_bytes_max;
    let upgrade = upgrade.max_message_size(bound).max_frame_size(bound);
    // A client that writes and never reads must not make us hold our answers for it: the socket closes instead.
    let upgrade = upgrade.max_write_buffer_size(bound + WRITE_BUFFER_BYTES);
    Ok(upgrade.on_upgrade(async move |socket| {
        serve(socket, app, who, speaker).await;
        drop(seat);
    }))
}

async fn serve<S: Speaker>(
    socket: WebSocket,
    app: App,
    who: Identity,
    speaker: impl FnOnce(App, Identity, Outbox) -> S,
) {
    let (outbox, answers) = mpsc::channel(OUTBOX_FRAMES);
    let speaker = Arc::new(speaker(app.clone(), who.clone(), Outbox(outbox.clone())));
    let (sink, stream) = socket.split();
    tokio::select! {
        () = read(stream, &speaker, Outbox(outbox)) => {}
        () = write(sink, answers, &app, &who, &*speaker) => {}
    }
}

/// A frame that is being parsed, or why there is none.
type Parsing = BoxFuture<'static, Result<Value, Reject>>;

/// Reads frames and works on their requests, until the client is gone. One frame is parsed at a time, so that they
/// begin in their order; meanwhile what has begun goes on.
async fn read<S: Speaker>(mut stream: SplitStream<WebSocket>, speaker: &Arc<S>, outbox: Outbox) {
    let mut requests = FuturesUnordered::new();
    let mut parsing: Option<Parsing> = None;
    loop {
        tokio::select! {
            message = stream.next(), if parsing.is_none() && requests.len() < REQUESTS_MAX => {
                parsing = match message {
                    Some(Ok(Message::Text(text))) => Some(parsed(Bytes::from(text)).boxed()),
                    Some(Ok(Message::Binary(_))) => {
                        let text = "binary frames are not understood; send JSON in text frames";
                        Some(ready(Err(Reject::new(Code::InvalidInput, text))).boxed())
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => None,
                    Some(Ok(Message::Close(_))) | None => return,
                    Some(Err(error)) => {
                        outbox.send(Out::Close(why_closed(&error))).await;
                        return tokio::time::sleep(CLOSE_TIMEOUT).await;
                    }
                };
            }
            frame = whole(&mut parsing) => {
                parsing = None;
                requests.push(Begun::new(&**speaker, frame).answer(Arc::clone(speaker), outbox.clone()));
            }
            Some(()) = requests.next() => {}
        }
    }
}

/// The frame that is being parsed; never, where there is none.
async fn whole(parsing: &mut Option<Parsing>) -> Result<Value, Reject> {
    match parsing {
        Some(parsing) => parsing.await,
        None => std::future::pending().await,
    }
}

/// The code that says why a socket cannot be read on.
fn why_closed(error: &axum::Error) -> u16 {
    use tokio_tungstenite::tungstenite::Error;
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    match cause {
        Some(Error::Capacity(_)) => close_code::SIZE,
        // A text frame whose bytes are no text.
        Some(Error::Utf8(_)) => close_code::INVALID,
        _ => close_code::PROTOCOL,
    }
}

/// Writes answers and events, until there are no more.
async fn write(
    mut sink: SplitSink<WebSocket, Message>,
    mut answers: mpsc::Receiver<Out>,
    app: &App,
    who: &Identity,
    speaker: &impl Speaker,
) {
    let mut events = Followed::default();
    let closed = app.gate.closed_to(who);
    tokio::pin!(closed);
    let mut phase = app.phases.clone();
    let grown_old = old(speaker.life());
    tokio::pin!(grown_old);
    loop {
        let out = tokio::select! {
            biased;
            answer = answers.recv() => answer.unwrap_or(Out::Close(close_code::NORMAL)),
            Some(event) = events.next() => event,
            () = draining(&mut phase), if speaker.is_idle() => {
                Out::Close(close_code::RESTART)
            }
            () = &mut closed => {
                say_last(&mut sink, auth::revoked()).await;
                Out::Close(close_code::POLICY)
            }
            () = &mut grown_old, if speaker.is_idle() => {
                let text = "this socket is as old as it may become; open another one";
                say_last(&mut sink, Reject::new(Code::WebsocketConnectionLimitReached, text)).await;
                Out::cut()
            }
            () = tokio::time::sleep(app.limits.silence) => {
                if sink.send(Message::Ping(Bytes::new())).await.is_err() {
                    return;
                }
                continue;
            }
        };
        let frames = match out {
            Out::Frames(frames) => frames,
            Out::Events(number, first, stream) => {
                events.replace(number, stream);
                first
            }
            Out::Close(code) => {
                let stops = app.phase() == Phase::Draining && code == close_code::AGAIN;
                let code = if stops { close_code::RESTART } else { code };
                // The socket is over, whether the client takes the frame or not.
                let _ = sink.send(Message::Close(Some(CloseFrame { code, reason: "".into() }))).await;
                return;
            }
        };
        for frame in frames {
            if sink.send(Message::Text(frame.to_string().into())).await.is_err() {
                return;
            }
        }
    }
}

/// Says why the socket closes, which matters to nobody but a client that still reads.
async fn say_last(sink: &mut SplitSink<WebSocket, Message>, why: Reject) {
    let last = errors::frame(why, None);
    let _ = sink.send(Message::Text(last.to_string().into())).await;
}

/// Returns after this time, if there is one.
async fn old(life: Option<Duration>) {
    match life {
        Some(life) => tokio::time::sleep(life).await,
        None => std::future::pending().await,
    }
}

/// Returns when the server begins to stop.
async fn draining(phase: &mut watch::Receiver<Phase>) {
    // Without a sender the process ends anyway.
    let _ = phase.wait_for(|phase| *phase == Phase::Draining).await.map(drop);
}
