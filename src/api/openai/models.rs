//! `/v1/models`.

use axum::Json;
use axum::extract::State;

use crate::api::App;
use crate::api::body::PathId;
use crate::api::errors::OpenAiError;
use crate::engine::ModelInfo;
use crate::protocol::models::{Model, ModelList};

/// All models.
pub(crate) async fn list(State(app): State<App>) -> Json<ModelList> {
    Json(ModelList { object: "list", data: app.catalog.list().map(|engine| model(engine.model())).collect() })
}

/// One model; its id may have slashes.
pub(crate) async fn get(State(app): State<App>, PathId(id): PathId) -> Result<Json<Model>, OpenAiError> {
    Ok(Json(model(app.engine(Some(&id))?.model())))
}

fn model(info: &ModelInfo) -> Model {
    Model {
        id: info.id.clone(),
        object: "model",
        created: info.created,
        owned_by: info.owned_by.clone(),
        context_length: info.context_length,
        tool_format: info.tool_format.name(),
        reasoning_format: info.reasoning.name(),
        reasoning_efforts: info.efforts.words().map(str::to_owned).collect(),
    }
}
