//! The edge: reads the wire, checks it, hands it to the actors, and encodes what comes back.
//!
//! [`router`] has every route; [`serve`] runs it on a listener until it is told to stop. Handlers hold no state
//! of their own: what they know of a conversation they read from its [`State`](crate::conversation::State).
//!
//! **Invariant:** nothing is decided here. A request either becomes an input of the core, or is refused before it
//! could change anything.

mod admission;
mod anthropic;
mod auth;
mod body;
mod coding;
mod connections;
mod constraint;
mod conversations;
mod create;
mod custom_tools;
mod dialect;
mod entrance;
mod errors;
mod frame;
mod hints;
mod idempotency;
mod inject;
mod input;
mod object;
mod openai;
mod openapi;
mod operations;
mod page;
mod pages;
mod patience;
mod references;
mod sampling;
mod seal;
mod socket;
mod stream;
mod tls;
mod tools;
mod types;
mod unserved;

#[cfg(test)]
mod frame_tests;
#[cfg(test)]
mod messages_tests;
#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod reuse_tests;
#[cfg(test)]
mod running_tests;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, head, post};
use axum::{Extension, Router};
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use crate::access::Gate;
use crate::actors::{DirectoryHandle, Keys};
use crate::config::{Config, ReasoningField};
use crate::conversation::{Create, Reject};
use crate::engine::{Catalog, Engine, ModelInfo};
use crate::error::Code;
use crate::ids::{FreshIds, ItemId};
pub use connections::{Doors, serve};
pub use entrance::{Entrance, StartProgress};
use errors::OpenAiError;
use pages::Pages;
pub use seal::Seal;
pub use tls::Tls;

/// Names this process to whatever stands in front of several: Codex repeats what it finds here with all later requests
/// of its turn, and those are cheapest where the turn's prefix is.
const TURN_STATE: HeaderName = HeaderName::from_static("x-codex-turn-state");

/// How long a request waits for the journal to be read before it is told to come back.
const RECOVERY_WAIT: Duration = Duration::from_secs(10);

/// The bounds of the edge; `config` names and sets them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of a body, as it is sent and expanded.
    pub body_bytes_max: usize,
    /// How long each part of a body may take to come.
    pub body_timeout: Duration,
    /// Most bytes of a WebSocket message.
    pub ws_frame_bytes_max: usize,
    /// Whether responses are created over sockets too.
    pub responses_ws: bool,
    /// How old such a socket may become.
    pub responses_ws_life: Option<Duration>,
    /// Most bytes of a body that steers, cancels or answers what runs: such a request is never turned away for load.
    pub control_body_bytes_max: usize,
    /// Most requests that generate at once.
    pub requests_in_flight_max: usize,
    /// Most streams and sockets that only read.
    pub readers_max: usize,
    /// How long a stream may say nothing.
    pub silence: Duration,
    /// How long a claimed call is its worker's, in milliseconds, unless the worker says.
    pub tool_lease_ms: u64,
    /// The longest that a worker may say.
    pub tool_lease_ms_max: u64,
}

/// How the APIs look to clients; `config` names and sets it.
#[derive(Clone, Copy, Debug)]
pub struct Surface {
    /// The field of a chat's answer that has the reasoning.
    pub reasoning: ReasoningField,
    /// Whether streams have whole calls and whole reasoning as events of their own, unless a request says.
    pub dispatch: bool,
}

impl From<&Config> for Surface {
    fn from(config: &Config) -> Self {
        Self { reasoning: config.reasoning_field, dispatch: config.streaming_dispatch }
    }
}

/// Whether requests can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The journal is being replayed.
    Recovering,
    /// Requests are served.
    Ready,
    /// The process is stopping.
    Draining,
    /// The journal cannot be written: nothing can be acknowledged until a restart.
    StorageUnavailable,
}

/// What the handlers work with.
#[derive(Clone)]
pub struct App {
    /// Finds and opens conversations.
    pub directory: DirectoryHandle,
    /// The models.
    pub catalog: Arc<Catalog>,
    /// Idempotency keys.
    pub keys: Keys,
    /// Seals what clients keep.
    pub seal: Seal,
    /// The bounds.
    pub limits: Limits,
    /// How the APIs look.
    pub surface: Surface,
    /// How far the process is.
    phases: watch::Receiver<Phase>,
    /// Lets clients in.
    gate: Gate,
    /// Which pages in browsers may use the server.
    pages: Pages,
    /// What this process is called, see [`TURN_STATE`].
    name: HeaderValue,
    /// Room for requests that generate.
    admission: Arc<Semaphore>,
    /// Room for requests that ask what a prompt would be: as much, so that neither kind takes any of the other's.
    counting: Arc<Semaphore>,
    /// Room for streams and sockets that only read.
    seats: Arc<Semaphore>,
}

impl App {
    /// Puts the parts together. Nobody is asked for a key, and pages of other sites may do nothing.
    pub fn new(
        directory: DirectoryHandle,
        catalog: Arc<Catalog>,
        keys: Keys,
        seal: Seal,
        (limits, surface): (Limits, Surface),
        phases: watch::Receiver<Phase>,
    ) -> Self {
        Self {
            directory,
            catalog,
            keys,
            seal,
            limits,
            surface,
            phases,
            gate: Gate::default(),
            pages: Pages::default(),
            name: HeaderValue::from_str(&ItemId::draw(&mut FreshIds::random()).wire("srv"))
                .unwrap_or(HeaderValue::from_static("srv")),
            admission: Arc::new(Semaphore::new(limits.requests_in_flight_max)),
            counting: Arc::new(Semaphore::new(limits.requests_in_flight_max)),
            seats: Arc::new(Semaphore::new(limits.readers_max)),
        }
    }

    /// Lets in whom this gate does, and pages of these origins.
    #[must_use]
    pub fn guarded(self, gate: Gate, allowed_origins: &[String]) -> Self {
        Self { gate, pages: Pages::new(allowed_origins), ..self }
    }

    /// Whether requests can be served now. The journal's writer is asked itself: once one client was refused because
    /// nothing can be written, no route may say otherwise. What was acknowledged is there again after a restart.
    pub fn phase(&self) -> Phase {
        let phase = *self.phases.borrow();
        if phase == Phase::Ready && !self.directory.is_writable() { Phase::StorageUnavailable } else { phase }
    }

    /// The engine of this model; without a name, the default.
    fn engine(&self, model: Option<&str>) -> Result<&Arc<dyn Engine>, Reject> {
        let by_alias = || self.catalog.get(Some(anthropic::models::without_alias(model?)?));
        self.catalog.get(model).or_else(by_alias).ok_or_else(|| {
            let known: Vec<_> = self.catalog.list().map(|engine| engine.model().id.as_str()).collect();
            let asked = model.unwrap_or("the default model");
            let text = format!("no model {asked} is served here; served are: {}", known.join(", "));
            Reject::new(Code::ModelNotFound, text).param("model")
        })
    }

    /// How many requests generate, and how many streams and sockets only read.
    fn occupancy(&self) -> (usize, usize) {
        let in_flight = self.limits.requests_in_flight_max - self.admission.available_permits();
        (in_flight, self.limits.readers_max - self.seats.available_permits())
    }

    /// Returns once no stream and no socket is open that took a seat.
    pub async fn deserted(&self) {
        let all = u32::try_from(self.limits.readers_max).unwrap_or(u32::MAX);
        // The semaphore is never closed; if it were, nobody would be waited for.
        let _ = self.seats.acquire_many(all).await;
    }
}

pub(crate) use openai::models::codex_catalog;

/// The request that the body of a chat completion or of a response stands for, to be rendered only.
pub(crate) fn request_to_render(model: &ModelInfo, body: &Value) -> Result<Create, Reject> {
    create::to_render(model, None, body)
}

/// Every route.
pub fn router(app: App) -> Router {
    use conversations::{http, interventions};
    use openai::kept_chats;
    let control = Router::new()
        .route("/v1/responses/{id}/cancel", post(openai::cancel::cancel))
        .route("/v1/responses/{id}/interventions", post(interventions::create))
        .route("/v1/conversations/{id}/tool_results", post(conversations::tool_calls::result))
        .route("/v1/conversations/{id}/tool_calls/{call_id}/claim", post(conversations::tool_calls::claim))
        .layer(Extension(body::BodyBytesMax(app.limits.control_body_bytes_max)));
    let served = Router::new()
        .merge(control)
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*id}", get(openai::models::get))
        .route("/v1/chat/completions", post(openai::chat::create).get(kept_chats::list))
        .route("/v1/chat/completions/{id}", get(kept_chats::get).post(kept_chats::update).delete(kept_chats::delete))
        .route("/v1/chat/completions/{id}/messages", get(kept_chats::messages))
        .route("/v1/completions", post(openai::completions::create))
        .route(
            "/v1/responses",
            post(openai::responses::create)
                .get(openai::responses_socket::upgrade)
                .layer(from_fn_with_state(app.clone(), with_turn_state)),
        )
        .route("/v1/responses/{id}", get(openai::responses::get).delete(openai::responses::delete))
        .route("/v1/responses/compact", post(openai::compact::compact))
        .route("/v1/responses/input_tokens", post(openai::tokenize::input_tokens))
        .route("/v1/responses/{id}/input_items", get(openai::responses::input_items))
        .route("/v1/responses/{id}/prefix", get(openai::responses::prefix))
        .route("/v1/messages", post(anthropic::messages::create))
        .route("/v1/messages/count_tokens", post(anthropic::count::count_tokens))
        .route("/v1/tokenize", post(openai::tokenize::tokenize))
        .route("/v1/detokenize", post(openai::tokenize::detokenize))
        .route("/v1/chat/render", post(openai::tokenize::render_chat))
        .route("/v1/interventions/{id}", get(interventions::get).delete(interventions::withdraw))
        .route("/v1/conversations", post(http::create).get(http::list))
        .route("/v1/conversations/{id}", get(http::get).post(http::update).delete(http::delete))
        .route("/v1/conversations/{id}/items", get(http::items).post(http::add_items))
        .route("/v1/conversations/{id}/items/{item_id}", get(http::item).delete(http::delete_item))
        .route("/v1/conversations/{id}/events", get(conversations::events::follow))
        .route("/v1/conversations/{id}/ws", get(conversations::ws::upgrade))
        .route_layer(from_fn_with_state(app.clone(), refuse_unless_ready));
    Router::new()
        .merge(served)
        .route("/", head(operations::hello).get(not_found))
        .route("/api/hello", get(operations::hello))
        .route("/healthz", get(operations::healthz))
        .route("/readyz", get(operations::readyz))
        .route("/metrics", get(operations::metrics))
        .route("/openapi.json", get(openapi::get))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), auth::authenticate))
        .layer(from_fn_with_state(app.clone(), pages::check))
        // Outside of both: who is turned away is counted too.
        .layer(from_fn(operations::count))
        .layer(from_fn(errors::in_the_form_of_the_route))
        .layer(from_fn(with_request_id))
        .with_state(app)
}

async fn refuse_unless_ready(State(app): State<App>, request: Request, next: Next) -> Response {
    // Reading the journal takes moments: a client that comes back right after a restart waits rather than retries.
    let mut phases = app.phases.clone();
    let recovered = phases.wait_for(|phase| *phase != Phase::Recovering);
    // Whether the time ran out or not, the phase now decides.
    let _ = tokio::time::timeout(RECOVERY_WAIT, recovered).await.map(drop);
    match operations::refusal(app.phase()) {
        None => next.run(request).await,
        Some(reject) => OpenAiError(reject).into_response(),
    }
}

/// A turn that began elsewhere keeps the name of where it began.
async fn with_turn_state(State(app): State<App>, request: Request, next: Next) -> Response {
    let begun = request.headers().get(TURN_STATE).cloned();
    let mut response = next.run(request).await;
    response.headers_mut().insert(TURN_STATE, begun.unwrap_or(app.name));
    response
}

/// Clients show this id when something goes wrong.
async fn with_request_id(mut request: Request, next: Next) -> Response {
    let id = ItemId::draw(&mut FreshIds::random()).wire("req");
    request.extensions_mut().insert(errors::RequestId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), id.clone());
        // Anthropic's name for it.
        response.headers_mut().insert(HeaderName::from_static("request-id"), id);
    }
    response
}

async fn not_found(request: Request) -> OpenAiError {
    let text = format!("there is no route {} {}; GET /openapi.json lists all", request.method(), request.uri().path());
    OpenAiError(Reject::new(Code::NotFound, text))
}

async fn method_not_allowed(request: Request) -> OpenAiError {
    let text =
        format!("{} does not take {}; GET /openapi.json says what it takes", request.uri().path(), request.method());
    OpenAiError(Reject::new(Code::MethodNotAllowed, text))
}
