//! Interventions: an instruction for a running response, and what became of it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::actors::ConversationHandle;
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{JsonBody, PathId, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{NativeError, invalid, wrong_operation};
use crate::api::input::{self, Known};
use crate::api::{idempotency, object};
use crate::conversation::{Input, Intervene, ItemBody, Receipt, Reject};
use crate::error::Code;
use crate::ids::{FreshIds, InterventionId, ResponseId};
use crate::prompt::Efforts;
use crate::protocol::conversations as wire;
use crate::store::{KeyedAnswer, Operation};

/// `POST /v1/responses/{id}/interventions`
pub(crate) async fn create(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, NativeError> {
    let id = create::response_id(&id)?;
    let request: wire::Intervene = decode(&body)?;
    let key = idempotency::key(&headers)?.ok_or_else(|| {
        let text = "an intervention needs the header Idempotency-Key, so that a retry is not a second one";
        Reject::new(Code::IdempotencyKeyRequired, text).param("Idempotency-Key")
    })?;
    let handle = app.directory.of_response(id, &principal).await?;
    let fingerprint = idempotency::fingerprint(&body, Some(&id.to_string()));
    let key = Key::new(&principal, Some(handle.id()), Operation::Intervene, Some(key), fingerprint);
    let intervene = core_request(&app, &handle, &request, id).await;
    let (receipt, replayed) = perform(&app, &handle, intervene, key.as_ref(), &body).await?;
    let receipt = shown(&handle, &receipt).await?;
    let response = (StatusCode::ACCEPTED, Json(receipt)).into_response();
    Ok(if replayed { idempotency::replayed(response) } else { response })
}

/// `GET /v1/interventions/{id}`
pub(crate) async fn get(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
) -> Result<Json<wire::Intervention>, NativeError> {
    let id = intervention_id(&id)?;
    let handle = app.directory.of_intervention(id, &principal).await?;
    Ok(Json(current(&handle, id).await?))
}

/// The core's request, or why the fields ask for something that cannot be done.
pub(super) async fn core_request(
    app: &App,
    handle: &ConversationHandle,
    request: &wire::Intervene,
    response_id: ResponseId,
) -> Result<Intervene, Reject> {
    let thinking = match &request.reasoning {
        Some(asked) => {
            let efforts = efforts_of(app, handle, response_id).await?;
            input::thinking(Some(asked), &efforts)?
        }
        None => None,
    };
    let fresh = &mut FreshIds::random();
    let items = input::items(request.input.as_ref(), "input", Known::default(), fresh)?;
    if items.is_empty() && thinking.is_none() {
        return Err(invalid("input", "the input is empty; say what the model should do instead"));
    }
    if let Some(place) = items.iter().position(|item| !matches!(item.body, ItemBody::Message { .. })) {
        let at = format!("input[{place}].type");
        return Err(invalid(at, "an intervention takes messages only; send other items with a new response"));
    }
    if let Some(place) = items.iter().position(|item| item.text().trim().is_empty()) {
        let at = format!("input[{place}].content");
        return Err(invalid(at, "the message is empty; say what the model should do instead"));
    }
    Ok(Intervene {
        intervention_id: InterventionId::draw(fresh),
        response_id,
        items,
        when: choice(request.when.as_deref(), "when", &["now", "item", "after"])?,
        on_multiple: choice(request.on_multiple.as_deref(), "on_multiple", &["merge", "replace"])?,
        on_late: choice(request.on_late.as_deref(), "on_late", &["fail", "enqueue"])?,
        tools: choice(request.tools.as_deref(), "tools", &["cancel", "await"])?,
        thinking,
    })
}

/// The words for how hard to think that the response's model takes.
async fn efforts_of(app: &App, handle: &ConversationHandle, id: ResponseId) -> Result<Arc<Efforts>, Reject> {
    let state = handle.state().await?;
    let model = state.response_even_deleted(id).and_then(|response| app.catalog.get(Some(&response.config.model)));
    Ok(model.map(|engine| engine.model().efforts.clone()).unwrap_or_default())
}

/// One of the words that a field takes; its absence is the default.
fn choice<T: DeserializeOwned + Default>(text: Option<&str>, name: &str, words: &[&str]) -> Result<T, Reject> {
    let Some(text) = text else { return Ok(T::default()) };
    serde_json::from_value(text.into())
        .map_err(|_| invalid(name, format!("{name}: {text:?} is not known; use one of {}", words.join(", "))))
}

/// `DELETE /v1/interventions/{id}`: takes an undecided one back.
pub(crate) async fn withdraw(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
) -> Result<Json<wire::Intervention>, NativeError> {
    let id = intervention_id(&id)?;
    let handle = app.directory.of_intervention(id, &principal).await?;
    handle.change(Input::Withdraw { intervention_id: id }).await?;
    Ok(Json(current(&handle, id).await?))
}

/// The intervention as it stands.
pub(super) async fn current(handle: &ConversationHandle, id: InterventionId) -> Result<wire::Intervention, Reject> {
    let state = handle.state().await?;
    let intervention = state.interventions.get(&id).ok_or_else(|| Reject::no_intervention(id))?;
    Ok(object::intervention(&state, id, intervention))
}

/// An intervention's id; what is none is not found.
pub(super) fn intervention_id(text: &str) -> Result<InterventionId, Reject> {
    text.parse().map_err(|_| Reject::no_intervention(format_args!("{text:?}")))
}

/// Intervenes; true if the key had been used before. The key is looked up before the request is judged.
pub(crate) async fn perform(
    app: &App,
    handle: &ConversationHandle,
    intervene: Result<Intervene, Reject>,
    key: Option<&Key>,
    body: &Value,
) -> Result<(Receipt, bool), Reject> {
    match create::claim(app, key)? {
        Claimed::Fresh(claim) => {
            let receipt = handle.intervene(intervene?, claim).await;
            Ok((receipt.map_err(|reject| with_input(reject, body))?, false))
        }
        Claimed::Replay(KeyedAnswer::Intervened { response, intervention, successor, seq, .. }) => {
            let receipt =
                Receipt { intervention_id: intervention, response_id: response, successor_id: successor, seq };
            Ok((receipt, true))
        }
        Claimed::Replay(_) => Err(wrong_operation()),
    }
}

/// A lost race gives the input back as it came.
fn with_input(reject: Reject, body: &Value) -> Reject {
    match body.get("input") {
        Some(input) if reject.code.status() == 409 => reject.detail("input", input.clone()),
        _ => reject,
    }
}

/// The intervention as it stood when it was answered: the same now and in every repetition.
pub(super) async fn shown(handle: &ConversationHandle, receipt: &Receipt) -> Result<wire::Intervention, Reject> {
    let id = receipt.intervention_id;
    let state = handle.state().await?;
    let intervention = state.interventions.get(&id).ok_or_else(|| Reject::no_intervention(id))?;
    let mut shown = object::intervention(&state, id, intervention);
    if intervention.seq != receipt.seq {
        // It was decided since.
        let waits = receipt.successor_id.is_none();
        let status = if receipt.seq == intervention.accepted_seq { "accepted" } else { "pending" };
        shown.successor_id = receipt.successor_id.map(|id| id.to_string());
        (shown.seq, shown.error) = (receipt.seq, None);
        (shown.status, shown.outcome) = if waits { (status, None) } else { ("committed", shown.outcome) };
    }
    Ok(shown)
}
