//! Tool calls from outside: a worker claims one, and gives its result.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::actors::{AnsweredCall, Claimed as ClaimedCall, ConversationHandle};
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{JsonBody, PathId, PathIds, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{NativeError, invalid, wrong_operation};
use crate::api::{idempotency, input};
use crate::conversation::{CallRef, ItemBody, Reject};
use crate::ids::CallId;
use crate::protocol::conversations::{ToolClaim, ToolResult};
use crate::store::{KeyedAnswer, Operation};

/// `POST /v1/conversations/{id}/tool_calls/{call_id}/claim`
pub(crate) async fn claim(
    State(app): State<App>,
    Principal(principal): Principal,
    path: PathIds,
    headers: HeaderMap,
    JsonBody(mut body): JsonBody,
) -> Result<Response, NativeError> {
    let mut request: ToolClaim = decode(&body)?;
    request.call_id = Some(path.get("call_id").to_owned());
    let id = create::conversation_id(path.get("id"))?;
    let handle = app.directory.conversation(id, &principal).await?;
    // The same request on the socket has the call in its body.
    body["call_id"] = request.call_id.clone().into();
    let fingerprint = idempotency::fingerprint(&body, None);
    let key = idempotency::key(&headers)?;
    let key = Key::new(&principal, Some(id), Operation::ClaimCall, key, fingerprint);
    let (object, replayed) = perform_claim(&app, &handle, &request, key.as_ref()).await?;
    let response = Json(object).into_response();
    Ok(if replayed { idempotency::replayed(response) } else { response })
}

/// `POST /v1/conversations/{id}/tool_results`
pub(crate) async fn result(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, NativeError> {
    let request: ToolResult = decode(&body)?;
    let id = create::conversation_id(&id)?;
    let handle = app.directory.conversation(id, &principal).await?;
    let key = idempotency::key(&headers)?;
    let key = Key::new(&principal, Some(id), Operation::AnswerCall, key, idempotency::fingerprint(&body, None));
    let (object, replayed) = perform_result(&app, &handle, &request, key.as_ref()).await?;
    // A key gives the first answer again; the same result without one says that it is there.
    Ok(match replayed {
        Repeated::No => (StatusCode::ACCEPTED, Json(object)).into_response(),
        Repeated::ByKey => idempotency::replayed((StatusCode::ACCEPTED, Json(object)).into_response()),
        Repeated::ByResult => idempotency::replayed((StatusCode::OK, Json(object)).into_response()),
    })
}

/// Claims a call; true if the key had been used before.
pub(super) async fn perform_claim(
    app: &App,
    handle: &ConversationHandle,
    request: &ToolClaim,
    key: Option<&Key>,
) -> Result<(Value, bool), Reject> {
    let call = call_ref(request.response_id.as_deref(), request.call_id.as_deref(), request.attempt)?;
    let lease_ms = request.lease_ms.unwrap_or(app.limits.tool_lease_ms);
    let most = app.limits.tool_lease_ms_max;
    if lease_ms == 0 || lease_ms > most {
        return Err(invalid("lease_ms", format!("lease_ms must be between 1 and {most}")));
    }
    let call_id = call.call_id.clone();
    let (claimed, replayed) = match create::claim(app, key)? {
        Claimed::Fresh(claim) => (handle.claim_call(call, lease_ms, claim).await?, false),
        Claimed::Replay(KeyedAnswer::Claimed { response, attempt, lease_until_ms, .. }) => {
            (ClaimedCall { response_id: response, attempt, lease_until_ms }, true)
        }
        Claimed::Replay(_) => return Err(wrong_operation()),
    };
    let state = handle.state().await?;
    let outputs = state.response(claimed.response_id).map(|response| response.output.as_slice()).unwrap_or_default();
    let said = outputs.iter().find_map(|output| match &output.item.body {
        ItemBody::FunctionCall { call_id: id, name, arguments, .. } if *id == call_id => Some((name, arguments)),
        _ => None,
    });
    let object = json!({
        "object": "tool_call.claim",
        "response_id": claimed.response_id,
        "call_id": call_id,
        "name": said.map(|(name, _)| name),
        "arguments": said.map(|(_, arguments)| arguments),
        "attempt": claimed.attempt,
        "lease_until": claimed.lease_until_ms,
    });
    Ok((object, replayed))
}

/// How it is known that a result had been given before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    No,
    ByKey,
    ByResult,
}

/// Gives a result, and says whether it had been given before.
pub(super) async fn perform_result(
    app: &App,
    handle: &ConversationHandle,
    request: &ToolResult,
    key: Option<&Key>,
) -> Result<(Value, Repeated), Reject> {
    let call = call_ref(request.response_id.as_deref(), request.call_id.as_deref(), request.attempt)?;
    let output = input::tool_output(request.output.as_ref())?;
    let call_id = call.call_id.clone();
    let (done, replayed) = match create::claim(app, key)? {
        Claimed::Fresh(claim) => {
            let done = handle.answer_call(call, output, request.is_error.unwrap_or(false), claim).await?;
            let repeated = if done.replayed { Repeated::ByResult } else { Repeated::No };
            (done, repeated)
        }
        Claimed::Replay(KeyedAnswer::Answered { accepted_seq, open_calls, successor, .. }) => {
            (AnsweredCall { accepted_seq, open_calls, successor_id: successor, replayed: true }, Repeated::ByKey)
        }
        Claimed::Replay(_) => return Err(wrong_operation()),
    };
    let object = json!({
        "object": "tool_result",
        "call_id": call_id,
        "accepted_seq": done.accepted_seq,
        "open_calls": done.open_calls,
        "successor_id": done.successor_id,
    });
    Ok((object, replayed))
}

fn call_ref(response_id: Option<&str>, call_id: Option<&str>, attempt: Option<u32>) -> Result<CallRef, Reject> {
    let call_id = call_id.ok_or_else(|| invalid("call_id", "call_id is missing; it says which call is meant"))?;
    let response_id = response_id.map(create::response_id).transpose()?;
    Ok(CallRef { response_id, call_id: CallId(call_id.to_owned()), attempt })
}
