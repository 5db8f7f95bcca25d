//! `/v1/messages`: every request brings its whole transcript, and its conversation lives as long as it does.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::future::join;

use super::answer::{self, Shown};
use super::edits;
use super::request::{self, Prepared};
use super::stream::MessageStream;
use crate::actors::{ConversationHandle, Reader};
use crate::api::App;
use crate::api::admission::Permit;
use crate::api::auth::Principal;
use crate::api::body::{Admitted, JsonBody, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{OpenAiError, failed, in_progress, invalid, wrong_operation};
use crate::api::idempotency;
use crate::api::stream::finish;
use crate::conversation::{Ending, Reject, ResponseStatus};
use crate::ids::ResponseId;
use crate::protocol::messages::MessagesRequest;
use crate::store::{KeyedAnswer, Operation};

/// `POST /v1/messages`
pub(crate) async fn create(
    State(app): State<App>,
    Principal(principal): Principal,
    Admitted(permit): Admitted,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, OpenAiError> {
    let request: MessagesRequest = decode(&body)?;
    let fingerprint = idempotency::fingerprint(&body, Some("messages"));
    let key = Key::new(&principal, None, Operation::Create, idempotency::key(&headers)?, fingerprint);
    let claim = match create::claim(&app, key.as_ref())? {
        Claimed::Fresh(claim) => claim,
        Claimed::Replay(answer) => return replay(&app, &principal, answer, &request, permit).await,
    };
    if request.max_tokens.is_none() {
        return Err(invalid("max_tokens", "max_tokens is missing; it says how many tokens the answer may have").into());
    }
    let engine = app.engine(request.model.as_deref())?;
    let strict = request::is_strict(version(&headers));
    let prepared = request::prepare(engine.model(), Some(&app.seal.of(&principal)), &request, &body, strict)?;
    let Prepared { mut create, params, mark } = prepared;
    create::check_constraint(&app, &create, &params).await.map_err(request::in_own_words)?;
    let edited = edits::apply(&app, engine, &request, &mut create).await?;
    let (id, counted) = (create.response_id, create.clone());
    let creating = app.directory.ephemeral(create::open(&principal, Vec::new()), create, claim);
    // Nobody waits for the count: the prompt is being computed meanwhile. What cannot be rendered says so there.
    let (created, marked) = join(creating, edits::count_marked(&app, engine, &counted, mark)).await;
    let (handle, reader) = created?;
    let edits = edited.map(|edited| edited.applied);
    let shown = Shown { edits, marked: marked.unwrap_or_default(), ..shown(&app, &request) };
    answer(&app, &handle, reader, id, (&request, shown), permit).await
}

/// The version that the client says it speaks.
pub(super) fn version(headers: &HeaderMap) -> Option<&str> {
    headers.get("anthropic-version")?.to_str().ok()
}

async fn answer(
    app: &App,
    handle: &ConversationHandle,
    reader: Reader,
    id: ResponseId,
    (request, shown): (&MessagesRequest, Shown),
    permit: Permit,
) -> Result<Response, OpenAiError> {
    if request.stream == Some(true) {
        let stream = MessageStream::new(reader, id, shown).begin(app.limits.silence).await?;
        return Ok(stream.answer(app.limits.silence, permit));
    }
    let state = finish(reader, handle, id).await?;
    let response = state.response(id).ok_or_else(|| Reject::no_response(id))?;
    match &response.status {
        ResponseStatus::Ended(Ending::Failed { error }) => Err(failed(error, id).into()),
        _ => Ok(Json(answer::message(response, &shown)).into_response()),
    }
}

/// What the client wants of the answer besides.
fn shown(app: &App, request: &MessagesRequest) -> Shown {
    let display = request.thinking.as_ref().and_then(|thinking| thinking.display.as_deref());
    let dispatches = request.stream_options.and_then(|options| options.include_dispatch);
    let dispatches = dispatches.unwrap_or(app.surface.dispatch);
    Shown { omits_thinking: display == Some("omitted"), dispatches, ..Shown::default() }
}

/// Gives the first answer to a key again, as long as its conversation lives.
async fn replay(
    app: &App,
    principal: &str,
    answer: KeyedAnswer,
    request: &MessagesRequest,
    permit: Permit,
) -> Result<Response, OpenAiError> {
    let KeyedAnswer::Created { conversation, response } = answer else {
        return Err(wrong_operation().into());
    };
    let handle = create::created_before(app, principal, conversation, response).await?;
    let state = handle.state().await?;
    let has_ended = state.response(response).is_some_and(|response| response.status.is_terminal());
    if request.stream != Some(true) && !has_ended {
        return Err(in_progress(Some(response)).into());
    }
    let reader = handle.attach_response(response).await?;
    self::answer(app, &handle, reader, response, (request, shown(app, request)), permit)
        .await
        .map(idempotency::replayed)
}
