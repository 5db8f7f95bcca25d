//! `GET /v1/conversations/{id}/events`: a snapshot, then every event behind the cursor, then the live ones.

use std::collections::HashMap;
use std::ops::ControlFlow;

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::{StreamExt, future, stream};
use serde_json::Value;

use crate::actors::{ConversationHandle, Cursor, Reader};
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{PathId, Seated, cursor};
use crate::api::create::conversation_id;
use crate::api::errors::NativeError;
use crate::api::frame::frame;
use crate::api::object::snapshot;
use crate::api::stream::{data, follow as follow_events, sse};
use crate::api::types::Types;
use crate::conversation::Reject;
use crate::error::Code;

/// `GET /v1/conversations/{id}/events?after=N&types=A,B`
pub(crate) async fn follow(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    Seated(seat): Seated,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Result<Response, NativeError> {
    let last_event_id = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    // A browser that reconnects repeats the first address; the header knows better.
    let after = match (last_event_id, query.get("after")) {
        (Some(text), _) => Some(cursor(text, "Last-Event-ID")?),
        (None, Some(text)) => Some(cursor(text, "after")?),
        (None, None) => None,
    };
    let handle = app.directory.conversation(conversation_id(&id)?, &principal).await?;
    let types = Types::of_query(query.get("types"))?;
    let reader = attach(&handle, after).await?;
    let first = snapshot(reader.attached(), reader.oldest_seq());
    let first = data(&first).event(first.kind);
    let mut epoch = reader.state().epoch();
    let shown = follow_events(reader, move |state, recorded| {
        let own = Some(frame(state, recorded)).filter(|frame| types.want(frame));
        ControlFlow::Continue(own.into_iter().chain(types.beside(state, recorded)).collect())
    });
    let events = shown.flat_map(stream::iter).map(move |frame| {
        if frame["type"] == "conversation.rewound" {
            epoch = frame["epoch"].as_u64().unwrap_or(epoch);
        }
        event(&frame, epoch)
    });
    let events = stream::once(future::ready(first)).chain(events);
    let ping = Event::default().comment("ping");
    Ok(sse(events, app.limits.silence, ping, Some(seat)))
}

/// A reader behind the cursor, or of all that can be read. Where the events behind the cursor are no longer kept, the
/// refusal says where the conversation stands.
pub(super) async fn attach(handle: &ConversationHandle, after: Option<Cursor>) -> Result<Reader, Reject> {
    let Some(after) = after else { return handle.attach_all().await };
    match handle.attach(after).await {
        Err(expired) if expired.code == Code::CursorExpired => {
            let oldest_seq = expired.details.get("oldest_seq").and_then(Value::as_u64).unwrap_or(1);
            let snapshot = snapshot(&*handle.state().await?, oldest_seq);
            Err(expired.detail("snapshot", serde_json::to_value(snapshot).unwrap_or_default()))
        }
        attached => attached,
    }
}

/// The id is a cursor: it says which events the client has seen, and in which epoch.
fn event(frame: &Value, epoch: u64) -> Event {
    let event = data(frame).event(frame["type"].as_str().unwrap_or("message"));
    match frame["seq"].as_u64() {
        Some(seq) => event.id(format!("{epoch}-{seq}")),
        None => event,
    }
}
