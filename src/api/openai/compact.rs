//! `POST /v1/responses/compact`: the transcript of a client that keeps it itself, made short. What users and
//! applications said stays, and a sealed summary stands for all else.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{Admitted, JsonBody};
use crate::api::create::{self, Done};
use crate::api::errors::{OpenAiError, failed, invalid, wrong_operation};
use crate::api::input::{self, COMPACTION_TRIGGER};
use crate::api::object;
use crate::api::stream::finish;
use crate::conversation::{Ending, Item, ItemBody, Reject, ResponseStatus};
use crate::error::Code;
use crate::prompt::Role;

/// `POST /v1/responses/compact`
pub(crate) async fn compact(
    State(app): State<App>,
    Principal(principal): Principal,
    Admitted(_permit): Admitted,
    JsonBody(mut body): JsonBody,
) -> Result<Json<Value>, OpenAiError> {
    if !body["generate"].is_null() {
        return Err(invalid("generate", "generate is not taken here: a summary is always written; leave it out").into());
    }
    let mut input = match body["input"].take() {
        Value::Array(items) => items,
        Value::Null => Vec::new(),
        text => vec![json!({"role": "user", "content": text})],
    };
    input.push(json!({"type": COMPACTION_TRIGGER}));
    body["input"] = input.into();
    // The client keeps it.
    body["store"] = false.into();
    let request = input::decode_with_items(&body, "input")?;
    let Done::Created { id, handle, reader } = create::perform(&app, &principal, &request, &body, None).await? else {
        return Err(wrong_operation().into());
    };
    let state = finish(*reader, &handle, id).await?;
    let response = state.response(id).ok_or_else(|| super::responses::not_found(id))?;
    match &response.status {
        ResponseStatus::Ended(Ending::Completed) => {}
        ResponseStatus::Ended(Ending::Failed { error }) => return Err(failed(error, id).into()),
        // What was cut stands for nothing.
        status => {
            let text = format!("the summary is not whole ({}); allow more tokens, or send less", status.as_str());
            return Err(Reject::new(Code::ResponseFailed, text).detail("response_id", id.to_string()).into());
        }
    }
    let said = |item: &&Item| matches!(item.body, ItemBody::Message { role, .. } if role != Role::Assistant);
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
