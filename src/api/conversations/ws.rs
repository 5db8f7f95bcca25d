//! `GET /v1/conversations/{id}/ws`: one socket on one conversation. What can be asked on it is in `ws_requests`.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{WebSocketUpgrade, close_code};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use serde_json::Value;

use super::ws_requests;
use crate::access::Identity;
use crate::actors::{ConversationHandle, Reader};
use crate::api::auth::Principal;
use crate::api::body::PathId;
use crate::api::create::conversation_id;
use crate::api::dialect::{Dialect, Hears};
use crate::api::errors::NativeError;
use crate::api::frame::frame;
use crate::api::socket::{self, Out, Outbox, Speaker};
use crate::api::stream::follow;
use crate::api::types::Types;
use crate::api::{App, idempotency};
use crate::conversation::{Recorded, Reject, State as Conversation};

/// `GET /v1/conversations/{id}/ws`
pub(crate) async fn upgrade(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, NativeError> {
    let handle = app.directory.conversation(conversation_id(&id)?, &principal).await?;
    let session = |app, principal, outbox| Session {
        app,
        principal,
        handle,
        dialect: Dialect::default(),
        outbox,
        asked: AtomicBool::new(false),
        subscribed: AtomicBool::new(false),
        tags: Mutex::default(),
    };
    Ok(socket::accept(app, principal, upgrade, session)?)
}

/// What the requests of one socket share.
pub(super) struct Session {
    pub(super) app: App,
    pub(super) principal: Identity,
    pub(super) handle: ConversationHandle,
    pub(super) dialect: Dialect,
    outbox: Outbox,
    /// Events are asked for: set as soon as a request that subscribes is read.
    asked: AtomicBool,
    /// Events are sent.
    subscribed: AtomicBool,
    /// The `event_id`s that events of the stream answer, by the id of the response or intervention.
    tags: Mutex<HashMap<String, String>>,
}

impl Speaker for Session {
    /// Events are brought by one request only.
    fn begin(&self, frame: &Value) -> Result<Option<u64>, Reject> {
        let brings = matches!(frame["type"].as_str(), Some("conversation.subscribe" | "response.create"));
        Ok((brings && !self.asked.swap(true, Ordering::SeqCst)).then_some(0))
    }

    async fn perform(
        self: &Arc<Self>,
        frame: &Value,
        event_id: Option<&str>,
        took: Option<u64>,
    ) -> Result<Option<Value>, Reject> {
        ws_requests::perform(self, frame, event_id, took.is_some()).await
    }

    fn give_back(&self, succeeded: bool) {
        // Another request may have brought the events in the meantime.
        self.asked.store(succeeded || self.subscribed.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    fn is_idle(&self) -> bool {
        !self.asked.load(Ordering::SeqCst)
    }
}

impl Session {
    /// Sends events from where the reader stands, behind the snapshot of a place.
    pub(super) async fn send_events(self: &Arc<Self>, snapshot: Value, reader: Reader, types: Types) {
        self.subscribed.store(true, Ordering::SeqCst);
        self.asked.store(true, Ordering::SeqCst);
        let mut first = vec![snapshot];
        first.extend(self.dialect.catch_up(reader.attached()));
        let session = Arc::clone(self);
        let deleted = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&deleted);
        let events = follow(reader, move |state, recorded| {
            noted.store(state.deleted, Ordering::SeqCst);
            ControlFlow::Continue(session.show(state, recorded, &types))
        });
        // There is nothing to come back to behind a deletion.
        let last = stream::once(async move {
            if deleted.load(Ordering::SeqCst) { Out::Close(close_code::NORMAL) } else { Out::cut() }
        });
        let events = events.map(Out::Frames).chain(last);
        self.outbox.send(Out::Events(0, first, events.boxed())).await;
    }

    /// The frames of an event. What answers a request is sent, whichever types are wanted.
    fn show(&self, state: &Conversation, recorded: &Recorded, types: &Types) -> Vec<Value> {
        let own = self.with_tag(frame(state, recorded));
        let own = Some(own).filter(|own| own.get("event_id").is_some() || types.want(own));
        let mut frames = self.dialect.frames(state, recorded, own);
        frames.extend(types.beside(state, recorded));
        frames
    }

    /// Whether events are sent.
    pub(super) fn hears(&self) -> Hears {
        match (self.subscribed.load(Ordering::SeqCst), self.asked.load(Ordering::SeqCst)) {
            (true, _) => Hears::Now,
            (false, true) => Hears::Soon,
            (false, false) => Hears::Never,
        }
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
