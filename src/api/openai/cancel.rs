//! `POST /v1/responses/{id}/cancel`, and what a cancel answers anywhere.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::responses::not_found;
use crate::actors::ConversationHandle;
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{JsonBody, PathId, decode, flag};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{OpenAiError, wrong_operation};
use crate::api::{idempotency, object};
use crate::conversation::{CancelOutcome, Reject};
use crate::ids::ResponseId;
use crate::protocol::conversations::Cancel;
use crate::store::{KeyedAnswer, Operation};

/// `POST /v1/responses/{id}/cancel`
pub(crate) async fn cancel(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, OpenAiError> {
    let id = create::response_id(&id)?;
    let mut request: Cancel = decode(&body)?;
    if let Some(text) = query.get("wait") {
        request.wait = Some(flag(text, "wait")?);
    }
    let handle = app.directory.of_response(id, &principal).await?;
    let fingerprint = idempotency::fingerprint(&body, Some(&id.to_string()));
    let key = idempotency::key(&headers)?;
    let key = Key::new(&principal, Some(handle.id()), Operation::Cancel, key, fingerprint);
    let waits = request.wait.unwrap_or(true);
    let asked = Asked { id: Some(id), cascade: request.cascade.unwrap_or(false), waits };
    let done = perform(&app, &handle, &asked, key.as_ref()).await?;
    let status = if done.is_final { StatusCode::OK } else { StatusCode::ACCEPTED };
    let response = (status, Json(done.object)).into_response();
    Ok(if done.replayed { idempotency::replayed(response) } else { response })
}

/// What is to be cancelled, and how it is answered.
pub(crate) struct Asked {
    /// Which response; none means the active one.
    pub(crate) id: Option<ResponseId>,
    /// Whether the response that took its place is cancelled instead.
    pub(crate) cascade: bool,
    /// Whether the answer waits for the end.
    pub(crate) waits: bool,
}

/// What came of a cancel.
pub(crate) struct Cancelled {
    /// The response object, with `cancel` in it where the cancel was not what ended it.
    pub(crate) object: Value,
    /// Whether the response has ended.
    pub(crate) is_final: bool,
    /// Whether the key had been used before.
    pub(crate) replayed: bool,
}

/// Cancels, and waits for the end if asked to.
pub(crate) async fn perform(
    app: &App,
    handle: &ConversationHandle,
    asked: &Asked,
    key: Option<&Key>,
) -> Result<Cancelled, Reject> {
    let mut decided_at = None;
    let (id, note, cascaded, replayed) = match create::claim(app, key)? {
        Claimed::Fresh(claim) => {
            let done = handle.cancel(asked.id, asked.cascade, claim).await?;
            // What is answered at once is what a repetition is answered.
            if let Claimed::Replay(KeyedAnswer::Cancelled { seq, .. }) = create::claim(app, key)? {
                decided_at = seq;
            }
            (done.response_id, note(&done.outcome, done.cascaded), done.cascaded, false)
        }
        Claimed::Replay(KeyedAnswer::Cancelled { response, outcome, cascaded, seq, .. }) => {
            decided_at = seq;
            (response, repeated_note(handle, response, &outcome, cascaded).await?, cascaded, true)
        }
        Claimed::Replay(_) => return Err(wrong_operation()),
    };
    if let Some(successor) = cascaded.filter(|_| asked.waits) {
        handle.ended(successor).await?;
    }
    let then = match decided_at.filter(|_| !asked.waits) {
        Some(seq) => handle.state_at(seq).await?.map(Arc::new),
        None => None,
    };
    let state = match then {
        Some(then) => then,
        None if asked.waits => handle.ended(id).await?,
        None => handle.state().await?,
    };
    let response = state.response(id).ok_or_else(|| not_found(id))?;
    let mut object = serde_json::to_value(object::response(&state, response)).unwrap_or_default();
    if let Some(note) = note {
        object["cancel"] = note;
    }
    Ok(Cancelled { object, is_final: response.status.is_terminal(), replayed })
}

/// What is said about a cancel that did not end the response.
fn note(outcome: &CancelOutcome, cascaded: Option<ResponseId>) -> Option<Value> {
    match outcome {
        CancelOutcome::Requested => None,
        CancelOutcome::AlreadyCancelled => Some(json!({"outcome": "already_cancelled"})),
        CancelOutcome::TooLate { successor_id, closed_calls } => Some(json!({
            "outcome": "too_late",
            "successor_id": successor_id,
            "closed_calls": closed_calls,
            "cascaded_id": cascaded,
        })),
    }
}

async fn repeated_note(
    handle: &ConversationHandle,
    id: ResponseId,
    outcome: &str,
    cascaded: Option<ResponseId>,
) -> Result<Option<Value>, Reject> {
    match outcome {
        "already_cancelled" => Ok(note(&CancelOutcome::AlreadyCancelled, None)),
        "too_late" => {
            let state = handle.state().await?;
            let successor_id = state.response(id).and_then(|response| response.successor);
            let closed = state.calls.iter().filter(|call| call.response_id == id);
            let closed = closed.filter(|call| call.closed.as_deref() == Some("cancelled"));
            let closed_calls = closed.map(|call| call.call_id.clone()).collect();
            Ok(note(&CancelOutcome::TooLate { successor_id, closed_calls }, cascaded))
        }
        _ => Ok(None),
    }
}
