//! Operations: is the process alive, can it serve.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::errors::NativeError;
use super::{App, Phase};
use crate::conversation::Reject;
use crate::error::Code;

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
