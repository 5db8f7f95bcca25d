//! `POST /v1/responses/compact`: the transcript of a client that keeps it itself, made short. What users said stays,
//! and a sealed summary stands for all else.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{Admitted, JsonBody, decode};
use crate::api::create::{self, Done};
use crate::api::errors::{OpenAiError, failed, wrong_operation};
use crate::api::input::COMPACTION_TRIGGER;
use crate::api::object;
use crate::api::stream::finish;
use crate::conversation::{Ending, Item, ItemBody, ResponseStatus};
use crate::prompt::Role;

/// `POST /v1/responses/compact`
pub(crate) async fn compact(
    State(app): State<App>,
    Principal(principal): Principal,
    Admitted(_permit): Admitted,
    JsonBody(mut body): JsonBody,
) -> Result<Json<Value>, OpenAiError> {
    let mut input = match body["input"].take() {
        Value::Array(items) => items,
        Value::Null => Vec::new(),
        text => vec![json!({"role": "user", "content": text})],
    };
    input.push(json!({"type": COMPACTION_TRIGGER}));
    body["input"] = input.into();
    // The client keeps it.
    body["store"] = false.into();
    let request = decode(&body)?;
    let Done::Created { id, handle, reader } = create::perform(&app, &principal, &request, &body, None).await? else {
        return Err(wrong_operation().into());
    };
    let state = finish(*reader, &handle, id).await?;
    let response = state.response(id).ok_or_else(|| super::responses::not_found(id))?;
    if let ResponseStatus::Ended(Ending::Failed { error }) = &response.status {
        return Err(failed(error, id).into());
    }
    let said = |item: &&Item| matches!(item.body, ItemBody::Message { role: Role::User, .. });
    let turns = state.responses.iter().flat_map(|response| &response.input).filter(said);
    let mut output: Vec<Value> = turns.map(|item| json!(object::item(item))).collect();
    // The last of them is what the model was asked for here.
    output.pop();
    let summary = response.output.iter().filter(|output| matches!(output.item.body, ItemBody::Compaction { .. }));
    output.extend(summary.map(|it| json!(object::output(response, it))));
    let whole = object::response(&state, response);
    Ok(Json(json!({
        "id": id,
        "object": "response.compaction",
        "created_at": whole.created_at,
        "output": output,
        "usage": whole.usage,
    })))
}
