//! `/v1/responses`: create and get, whole and as a stream.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::actors::{ConversationHandle, Reader};
use crate::api::App;
use crate::api::admission::Permit;
use crate::api::auth::Principal;
use crate::api::body::{Admitted, JsonBody, PathId, flag};
use crate::api::create::{self, Done};
use crate::api::errors::{OpenAiError, failed, in_progress, invalid, wrong_operation};
use crate::api::frame::silent_failure;
use crate::api::page::page;
use crate::api::stream::{Follow, at_creation, finish, kept_end, sse};
use crate::api::{idempotency, input, object};
use crate::conversation::{self, Input, Reject};
use crate::error::Code;
use crate::ids::ResponseId;
use crate::protocol::conversations::ItemList;
use crate::protocol::responses::CreateResponse;
use crate::store::KeyedAnswer;

/// How the client wants the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Stream { background: bool, dispatch: bool },
    Background,
    Whole,
}

impl Delivery {
    fn of(request: &CreateResponse, app: &App) -> Self {
        let background = request.background == Some(true);
        let dispatch = request.stream_options.as_ref().and_then(|options| options.include_dispatch);
        match request.stream {
            Some(true) => Self::Stream { background, dispatch: dispatch.unwrap_or(app.surface.dispatch) },
            _ if background => Self::Background,
            _ => Self::Whole,
        }
    }
}

/// `POST /v1/responses`
pub(crate) async fn create(
    State(app): State<App>,
    Principal(principal): Principal,
    Admitted(permit): Admitted,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, OpenAiError> {
    let request: CreateResponse = input::decode_with_items(&body, "input")?;
    let delivery = Delivery::of(&request, &app);
    match create::perform(&app, &principal, &request, &body, idempotency::key(&headers)?).await? {
        Done::Created { id, handle, reader } => answer(&app, &handle, *reader, id, delivery, permit).await,
        Done::Replay(answer) => replay(&app, &principal, answer, delivery, permit).await,
    }
}

async fn answer(
    app: &App,
    handle: &ConversationHandle,
    mut reader: Reader,
    id: ResponseId,
    delivery: Delivery,
    permit: Permit,
) -> Result<Response, OpenAiError> {
    match delivery {
        Delivery::Stream { background, dispatch } => {
            let follow = Follow::new(reader, id, None, dispatch);
            let follow = if background { follow } else { follow.begin(app.limits.silence).await? };
            Ok(stream(app, follow, Some(permit)))
        }
        Delivery::Background => {
            at_creation(&mut reader, id).await?;
            shown(reader.state(), id)
        }
        Delivery::Whole => whole(&*finish(reader, handle, id).await?, id),
    }
}

/// The response as it ended.
fn whole(state: &conversation::State, id: ResponseId) -> Result<Response, OpenAiError> {
    match state.response(id).and_then(silent_failure) {
        Some(error) => Err(failed(error, id).into()),
        None => shown(state, id),
    }
}

fn stream(app: &App, follow: Follow, permit: Option<Permit>) -> Response {
    // The response itself says `response.in_progress` after silence; this is for proxies, should that be late.
    sse(follow.events(), app.limits.silence * 2, Event::default().comment("ping"), permit)
}

/// The response object of this state.
pub(crate) fn shown(state: &conversation::State, id: ResponseId) -> Result<Response, OpenAiError> {
    let response = state.response(id).ok_or_else(|| not_found(id))?;
    Ok(Json(object::response(state, response)).into_response())
}

/// The response is not there.
pub(crate) fn not_found(id: ResponseId) -> Reject {
    Reject::no_response(id)
}

/// Gives the first answer to a key again.
async fn replay(
    app: &App,
    principal: &str,
    answer: KeyedAnswer,
    delivery: Delivery,
    permit: Permit,
) -> Result<Response, OpenAiError> {
    let KeyedAnswer::Created { conversation, response } = answer else {
        return Err(wrong_operation().into());
    };
    let handle = create::created_before(app, principal, conversation, response).await?;
    if delivery == Delivery::Whole {
        let state = handle.state().await?;
        if !state.response(response).is_some_and(|response| response.status.is_terminal()) {
            return Err(in_progress(Some(response)).into());
        }
    }
    let answer = match handle.attach_response(response).await {
        Err(expired) if expired.code == Code::CursorExpired => trimmed(&handle, response, delivery, expired).await,
        reader => self::answer(app, &handle, reader?, response, delivery, permit).await,
    };
    answer.map(idempotency::replayed)
}

/// The first answer of a response whose events are no longer kept: all but a stream can be given again.
async fn trimmed(
    handle: &ConversationHandle,
    id: ResponseId,
    delivery: Delivery,
    expired: Reject,
) -> Result<Response, OpenAiError> {
    match delivery {
        Delivery::Stream { .. } => Err(expired.into()),
        Delivery::Whole => whole(&*kept_end(handle, id, expired).await?, id),
        Delivery::Background => {
            let created = handle.state().await?.response(id).map(|response| response.created_seq).ok_or(expired)?;
            shown(&handle.kept_event(created).await?.0, id)
        }
    }
}

/// `GET /v1/responses/{id}`
pub(crate) async fn get(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, OpenAiError> {
    let id = create::response_id(&id)?;
    let streams = query.get("stream").map(|text| flag(text, "stream")).transpose()?;
    let after = query.get("starting_after").map(|text| number(text)).transpose()?;
    let dispatch = query.get("include_dispatch").map(|text| flag(text, "include_dispatch")).transpose()?;
    let handle = app.directory.of_response(id, &principal).await?;
    let state = handle.state().await?;
    if streams != Some(true) {
        return shown(&state, id);
    }
    let response = state.response(id).ok_or_else(|| not_found(id))?;
    if let Some(after) = after.filter(|after| *after >= response.next_number) {
        let text = format!(
            "starting_after is {after}, but the last event is {}; give the last number seen",
            response.next_number - 1
        );
        return Err(Reject::new(Code::CursorInFuture, text).param("starting_after").into());
    }
    let seat = app.seat(&principal)?;
    let reader = handle.attach_response(id).await?;
    Ok(stream(&app, Follow::new(reader, id, after, dispatch.unwrap_or(app.surface.dispatch)), Some(seat)))
}

/// `GET /v1/responses/{id}/input_items`: what joined the transcript with the response.
pub(crate) async fn input_items(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<ItemList>, OpenAiError> {
    let id = create::response_id(&id)?;
    let state = app.directory.of_response(id, &principal).await?.state().await?;
    let response = state.response(id).ok_or_else(|| not_found(id))?;
    Ok(Json(page(response.input.clone(), &query)?))
}

/// `GET /v1/responses/{id}/prefix`: how much of what was held the prompt began with, and why not of all.
pub(crate) async fn prefix(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    Admitted(_permit): Admitted,
) -> Result<Json<Value>, OpenAiError> {
    let id = create::response_id(&id)?;
    let handle = app.directory.of_response(id, &principal).await?;
    let state = handle.state().await?;
    let response = state.response(id).ok_or_else(|| not_found(id))?;
    if !state.responses.iter().any(|turn| turn.id == id) {
        let text = format!("{id} has no prompt: its turn has not come; ask again when it runs");
        return Err(Reject::new(Code::InvalidInput, text).into());
    }
    let (engine, cached_tokens) = (app.engine(Some(&response.config.model))?, response.usage.cached_tokens);
    let (previous, report) = app.directory.explain(state.clone(), id, engine).await?;
    let mut shown = json!(report);
    shown["object"] = json!("response.prefix");
    shown["id"] = json!(id);
    shown["previous_response_id"] = json!(previous);
    shown["cached_tokens"] = json!(cached_tokens);
    Ok(Json(shown))
}

/// `DELETE /v1/responses/{id}`: the object goes, the transcript stays.
pub(crate) async fn delete(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
) -> Result<Json<Value>, OpenAiError> {
    let id = create::response_id(&id)?;
    let handle = app.directory.of_response(id, &principal).await?;
    handle.change(Input::DeleteResponse { response_id: id }).await?;
    Ok(Json(json!({"object": "response", "id": id, "deleted": true})))
}

fn number(text: &str) -> Result<u64, Reject> {
    let message = format!("starting_after: {text:?} is no sequence_number");
    text.parse().map_err(|_| invalid("starting_after", message))
}
