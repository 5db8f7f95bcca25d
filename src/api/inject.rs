//! OpenAI's `response.inject`: results of a response's calls, committed together or not at all.
//!
//! It says with `response.inject.created` that they are in, and with `response.inject.failed` that they came too late;
//! the response that goes on with them is told of by its own events. A frame that means nothing is an `error`.

use serde_json::{Value, json};

use super::App;
use super::body::decode;
use super::create::{self, Claimed, response_id};
use super::dialect::Request;
use super::errors::{self, invalid, wrong_operation};
use super::idempotency::echo;
use super::input;
use crate::actors::ConversationHandle;
use crate::conversation::{Item, ItemBody, Reject};
use crate::error::Code;
use crate::ids::{FreshIds, ResponseId};
use crate::protocol::responses as wire;
use crate::store::KeyedAnswer;

/// What a `response.inject` frame asks for.
pub(crate) struct Inject {
    pub(crate) response_id: ResponseId,
    results: Vec<Item>,
}

pub(crate) fn read(frame: &Value) -> Result<Inject, Reject> {
    let request: wire::Inject = decode(frame)?;
    let id = request.response_id.as_deref();
    let id = id.ok_or_else(|| invalid("response_id", "response_id is missing; it says which response waits"))?;
    let list = request.input.unwrap_or_default();
    if list.is_empty() {
        return Err(invalid("input", "the input is empty; give the results of the response's calls"));
    }
    let mut results = Vec::with_capacity(list.len());
    for (place, item) in list.iter().enumerate() {
        let read = input::item_list(std::slice::from_ref(item), "input", &mut FreshIds::random())?;
        if !matches!(read.first().map(|item| &item.body), Some(ItemBody::FunctionCallOutput { .. })) {
            let text = "only results of calls can be injected: items of the type function_call_output";
            return Err(invalid(format!("input[{place}].type"), text));
        }
        results.extend(read);
    }
    Ok(Inject { response_id: response_id(id)?, results })
}

/// Gives the results. The frame that answers it, and the seq of the last one's acceptance.
pub(crate) async fn perform(
    app: &App,
    handle: &ConversationHandle,
    inject: Inject,
    request: &Request<'_>,
) -> Result<(Value, u64), Reject> {
    let id = inject.response_id;
    let (accepted_seq, replayed) = match create::claim(app, request.key)? {
        Claimed::Fresh(claim) => {
            let done = handle.answer_calls(id, inject.results, claim).await?;
            (done.accepted_seq, done.replayed)
        }
        Claimed::Replay(KeyedAnswer::Answered { accepted_seq, .. }) => (accepted_seq, true),
        Claimed::Replay(_) => return Err(wrong_operation()),
    };
    // It has no number of its own: the one of the last event before it.
    let state = handle.state().await?;
    let number = state.response(id).map_or(0, |response| response.next_number.saturating_sub(1));
    let mut created = json!({"type": "response.inject.created", "response_id": id, "sequence_number": number});
    echo(&mut created, request.event_id, replayed);
    Ok((created, accepted_seq))
}

/// The answer to results that are not taken. OpenAI has two codes for results that come too late, with which they
/// are given back; any other fault is the frame's.
pub(crate) fn refused(request: &Request<'_>, reject: Reject) -> Value {
    let code = match reject.code {
        Code::ResponseNotFound | Code::ConversationNotFound => "response_not_found",
        Code::ToolCallClosed | Code::ToolResultConflict => "response_already_completed",
        _ => return errors::frame(reject, request.event_id),
    };
    let mut failed = json!({
        "type": "response.inject.failed",
        "response_id": request.frame["response_id"],
        "input": request.frame["input"],
        "error": {"code": code, "message": reject.message},
        "sequence_number": 0,
    });
    echo(&mut failed, request.event_id, false);
    failed
}
