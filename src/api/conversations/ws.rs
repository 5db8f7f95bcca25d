//! `GET /v1/conversations/{id}/ws`: one socket on one conversation.
//!
//! Two halves run side by side: one reads frames and works on requests, the other writes answers and events. A
//! client that does not read stops the writing half only; a request that waits stops nobody.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use futures_util::stream::{BoxStream, FuturesUnordered, SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt, stream};
use serde_json::Value;
use tokio::sync::mpsc;

use super::ws_requests::{self, Begun};
use crate::actors::{ConversationHandle, Reader};
use crate::api::auth::Principal;
use crate::api::body::{PathId, Seated};
use crate::api::create::conversation_id;
use crate::api::errors::NativeError;
use crate::api::stream::frames;
use crate::api::{App, Phase, idempotency};
use crate::conversation::Reject;
use crate::error::Code;

/// Most requests of one socket that are worked on at once; then it is not read from.
const REQUESTS_MAX: usize = 64;
/// Answers that wait to be written.
const OUTBOX_FRAMES: usize = 64;
/// How long a client has to take the close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// `GET /v1/conversations/{id}/ws`
pub(crate) async fn upgrade(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    Seated(seat): Seated,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, NativeError> {
    let handle = app.directory.conversation(conversation_id(&id)?, &principal).await?;
    let upgrade = upgrade.map_err(|rejection| {
        Reject::new(Code::InvalidInput, format!("this route is a WebSocket: {}", rejection.body_text()))
    })?;
    let bound = app.limits.ws_frame_bytes_max;
    let upgrade = upgrade.max_message_size(bound).max_frame_size(bound);
    // A client that writes and never reads must not make us hold our answers for it: the socket closes instead.
    let upgrade = upgrade.max_write_buffer_size(bound + WRITE_BUFFER_BYTES);
    Ok(upgrade.on_upgrade(async move |socket| {
        serve(socket, app, principal, handle).await;
        drop(seat);
    }))
}

/// What a socket may hold back before it writes, beside its largest frame.
const WRITE_BUFFER_BYTES: usize = 256 << 10;

/// What goes out.
pub(super) enum Out {
    /// An answer.
    Frame(Value),
    /// From here on the reader's events, behind this snapshot.
    Subscribe { snapshot: Value, reader: Box<Reader> },
    /// Nothing more.
    Close(u16),
}

/// What the requests of one socket share.
pub(super) struct Session {
    pub(super) app: App,
    pub(super) principal: String,
    pub(super) handle: ConversationHandle,
    outbox: mpsc::Sender<Out>,
    /// Events are sent, or will be: set as soon as a request that subscribes is read.
    subscribed: AtomicBool,
    /// The `event_id`s that events of the stream answer, by the id of the response or intervention.
    tags: Mutex<HashMap<String, String>>,
}

impl Session {
    /// Queues an answer.
    pub(super) async fn send(&self, out: Out) {
        // Fails only when the socket is closing.
        let _ = self.outbox.send(out).await;
    }

    /// Whether events are sent.
    pub(super) fn is_subscribed(&self) -> bool {
        self.subscribed.load(Ordering::SeqCst)
    }

    /// Takes the subscription for a request; true if there was none.
    pub(super) fn take_subscription(&self) -> bool {
        !self.subscribed.swap(true, Ordering::SeqCst)
    }

    /// The request that took the subscription failed.
    pub(super) fn release_subscription(&self) {
        self.subscribed.store(false, Ordering::SeqCst);
    }

    /// The events that name `id` answer this request.
    pub(super) fn tag(&self, id: &impl ToString, event_id: Option<&str>) {
        if let Some(event_id) = event_id {
            self.tags().insert(id.to_string(), event_id.to_owned());
        }
    }

    /// No event will answer it.
    pub(super) fn untag(&self, id: &impl ToString) {
        self.tags().remove(&id.to_string());
    }

    /// Adds the `event_id` to an event that answers a request.
    fn with_tag(&self, mut frame: Value) -> Value {
        let mut tags = self.tags();
        let (id, is_last) = match frame["type"].as_str() {
            _ if tags.is_empty() => return frame,
            Some("response.created") => (frame["response_id"].as_str(), true),
            Some("intervention.accepted" | "intervention.pending") => (frame["intervention_id"].as_str(), false),
            Some(
                "intervention.committed" | "intervention.failed" | "intervention.superseded" | "intervention.withdrawn",
            ) => (frame["intervention_id"].as_str(), true),
            _ => return frame,
        };
        let Some(id) = id.map(str::to_owned) else { return frame };
        let event_id = if is_last { tags.remove(&id) } else { tags.get(&id).cloned() };
        idempotency::echo(&mut frame, event_id.as_deref(), false);
        frame
    }

    fn tags(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(socket: WebSocket, app: App, principal: String, handle: ConversationHandle) {
    let (outbox, answers) = mpsc::channel(OUTBOX_FRAMES);
    let session = Arc::new(Session {
        app,
        principal,
        handle,
        outbox,
        subscribed: AtomicBool::new(false),
        tags: Mutex::default(),
    });
    let (sink, stream) = socket.split();
    tokio::select! {
        () = read(stream, &session) => {}
        () = write(sink, answers, &session) => {}
    }
}

/// Reads frames and works on their requests, until the client is gone.
async fn read(mut stream: SplitStream<WebSocket>, session: &Arc<Session>) {
    let mut requests = FuturesUnordered::new();
    loop {
        tokio::select! {
            message = stream.next(), if requests.len() < REQUESTS_MAX => match message {
                Some(Ok(Message::Text(text))) => {
                    let begun = Begun::read(session, text.as_bytes());
                    requests.push(ws_requests::answer(Arc::clone(session), begun));
                }
                Some(Ok(Message::Binary(_))) => {
                    requests.push(ws_requests::answer(Arc::clone(session), Begun::binary()));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_))) | None => return,
                // Too large, or no WebSocket any more: either way the stream cannot be read on.
                Some(Err(_)) => {
                    session.send(Out::Close(close_code::SIZE)).await;
                    return tokio::time::sleep(CLOSE_TIMEOUT).await;
                }
            },
            Some(()) = requests.next() => {}
        }
    }
}

/// Writes answers and events, until there are no more.
async fn write(mut sink: SplitSink<WebSocket, Message>, mut answers: mpsc::Receiver<Out>, session: &Session) {
    let mut events: BoxStream<'static, Value> = stream::pending().boxed();
    let mut phase = session.app.phase.clone();
    let silence = session.app.limits.silence;
    loop {
        let message = tokio::select! {
            biased;
            answer = answers.recv() => match answer {
                Some(Out::Frame(frame)) => text(&frame),
                Some(Out::Subscribe { snapshot, reader }) => {
                    events = frames(*reader).boxed();
                    text(&snapshot)
                }
                Some(Out::Close(code)) => close(code),
                None => close(close_code::NORMAL),
            },
            frame = events.next() => match frame {
                Some(frame) => text(&session.with_tag(frame)),
                None => close(close_code::AGAIN),
            },
            _ = phase.wait_for(|phase| *phase == Phase::Draining), if !session.is_subscribed() => {
                close(close_code::RESTART)
            }
            () = tokio::time::sleep(silence) => Message::Ping(axum::body::Bytes::new()),
        };
        let is_last = matches!(message, Message::Close(_));
        if sink.send(message).await.is_err() || is_last {
            return;
        }
    }
}

fn text(frame: &Value) -> Message {
    Message::Text(frame.to_string().into())
}

fn close(code: u16) -> Message {
    Message::Close(Some(CloseFrame { code, reason: "".into() }))
}
