//! `POST /v1/responses/{id}/cancel`, and what a cancel answers anywhere.

use std::collections::HashMap;

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
use crate::api::errors::{OpenAiError, invalid, wrong_operation};
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
    check(&request)?;
    let handle = app.directory.of_response(id, &principal).await?;
    let fingerprint = idempotency::fingerprint(&body, Some(&id.to_string()));
    let key = idempotency::key(&headers)?;
    let key = Key::new(&principal, Some(handle.id()), Operation::Cancel, key, fingerprint);
    let waits = request.wait.unwrap_or(true);
    let done = perform(&app, &handle, Some(id), key.as_ref(), waits).await?;
    let status = if done.is_final { StatusCode::OK } else { StatusCode::ACCEPTED };
    let response = (status, Json(done.object)).into_response();
    Ok(if done.replayed { idempotency::replayed(response) } else { response })
}

/// Refuses what this version does not do.
pub(crate) fn check(request: &Cancel) -> Result<(), Reject> {
    if request.cascade == Some(true) {
        let text = "cascade is not supported by this version; cancel the successor by its id";
        return Err(invalid("cascade", text));
    }
    Ok(())
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
    id: Option<ResponseId>,
    key: Option<&Key>,
    waits: bool,
) -> Result<Cancelled, Reject> {
    let (id, note, replayed) = match create::claim(app, key)? {
        Claimed::Fresh(claim) => {
            let (id, outcome) = handle.cancel(id, claim).await?;
            (id, note(outcome), false)
        }
        Claimed::Replay(KeyedAnswer::Cancelled { response, outcome, .. }) => {
            (response, repeated_note(handle, response, &outcome).await?, true)
        }
        Claimed::Replay(_) => return Err(wrong_operation()),
    };
    let state = if waits { handle.ended(id).await? } else { handle.state().await? };
    let response = state.response(id).ok_or_else(|| not_found(id))?;
    let mut object = serde_json::to_value(object::response(&state, response)).unwrap_or_default();
    if let Some(note) = note {
        object["cancel"] = note;
    }
    Ok(Cancelled { object, is_final: response.status.is_terminal(), replayed })
}

/// What is said about a cancel that did not end the response.
fn note(outcome: CancelOutcome) -> Option<Value> {
    match outcome {
        CancelOutcome::Requested => None,
        CancelOutcome::AlreadyCancelled => Some(json!({"outcome": "already_cancelled"})),
        CancelOutcome::TooLate { successor_id } => Some(json!({"outcome": "too_late", "successor_id": successor_id})),
    }
}

async fn repeated_note(handle: &ConversationHandle, id: ResponseId, outcome: &str) -> Result<Option<Value>, Reject> {
    match outcome {
        "already_cancelled" => Ok(note(CancelOutcome::AlreadyCancelled)),
        "too_late" => {
            let state = handle.state().await?;
            let successor_id = state.response(id).and_then(|response| response.successor);
            Ok(note(CancelOutcome::TooLate { successor_id }))
        }
        _ => Ok(None),
    }
}
