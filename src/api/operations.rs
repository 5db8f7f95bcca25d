//! Operations: is the process alive, can it serve, and what has it done.

use axum::Json;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::errors::NativeError;
use super::{App, Phase};
use crate::conversation::Reject;
use crate::error::Code;
use crate::telemetry;

/// The version of the text format of Prometheus.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The process is alive.
pub(crate) async fn healthz() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// Somebody asks whether anybody is here: clients do before their first request.
pub(crate) async fn hello() -> Json<Value> {
    Json(json!({"server": "midstream"}))
}

/// Requests can be served.
pub(crate) async fn readyz(State(app): State<App>) -> Result<Json<Value>, NativeError> {
    if let Some(reject) = refusal(app.phase()) {
        return Err(reject.into());
    }
    for engine in app.catalog.list() {
        engine.health().map_err(|reason| {
            let text = format!("the model {} cannot be served: {reason}", engine.model().id);
            Reject::new(Code::Overloaded, text)
        })?;
    }
    Ok(Json(json!({"status": "ready"})))
}

/// What was counted and measured, for Prometheus.
pub(crate) async fn metrics(State(app): State<App>) -> Result<Response, NativeError> {
    for engine in app.catalog.list() {
        telemetry::engine(&engine.model().id, &engine.load());
    }
    let (in_flight, readers) = app.occupancy();
    telemetry::occupancy(in_flight, readers);
    let text = telemetry::render().ok_or_else(|| Reject::new(Code::Internal, "nothing is measured in this process"))?;
    Ok(([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response())
}

/// Counts a request by its route's pattern, which is empty where it has none.
pub(crate) async fn count(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    telemetry::answered(route.as_ref().map_or("", MatchedPath::as_str), response.status().as_u16());
    response
}

/// Why requests cannot be served, if they cannot.
pub(crate) fn refusal(phase: Phase) -> Option<Reject> {
    match phase {
        Phase::Ready => None,
        Phase::Recovering => Some(Reject::new(Code::Recovering, "the server is reading its journal; try again soon")),
        Phase::StorageUnavailable => Some(Reject::new(
            Code::StorageUnavailable,
            "the journal cannot be written; free disk space or repair the disk, then restart the server",
        )),
        Phase::Draining => Some(Reject::new(Code::Draining, "the server is stopping; try again soon")),
    }
}
