//! What can be asked on a conversation's socket, and how it is answered.

use std::sync::Arc;

use serde_json::{Value, json};

use super::tool_calls::{self, Repeated};
use super::ws::Session;
use super::{events, interventions};
use crate::actors::{Cursor, Reader};
use crate::api::body::{cursor, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::dialect::{self, Hears, Request};
use crate::api::errors::{self, invalid, wrong_operation};
use crate::api::frame::frame;
use crate::api::idempotency::{echo, fingerprint};
use crate::api::inject;
use crate::api::input::{self, Known};
use crate::api::object::snapshot;
use crate::api::openai::cancel::{self, Asked};
use crate::api::operations;
use crate::api::references;
use crate::api::types::Types;
use crate::conversation::{Event, Input, Reject};
use crate::error::Code;
use crate::ids::ResponseId;
use crate::protocol::conversations::{Cancel, Intervene, Subscribe, ToolClaim, ToolResult, Withdraw};
use crate::protocol::responses::CreateResponse;
use crate::store::{KeyedAnswer, Operation};

/// Does what the frame asks for. The frame that answers it, unless events do.
pub(super) async fn perform(
    session: &Arc<Session>,
    frame: &Value,
    event_id: Option<&str>,
    subscribes: bool,
) -> Result<Option<Value>, Reject> {
    match frame["type"].as_str() {
        Some("conversation.subscribe") => subscribe(session, frame, event_id).await,
        Some("response.create") => create(session, frame, event_id, subscribes).await,
        Some("conversation.intervene") => intervene(session, frame, event_id).await,
        Some("response.cancel") => cancel(session, frame, event_id).await,
        Some("intervention.withdraw") => withdraw(session, frame, event_id).await,
        Some("conversation.tool_claim") => claim_call(session, frame, event_id).await,
        Some("conversation.tool_result") => answer_call(session, frame, event_id).await,
        Some("response.steer") => Ok(steer(session, frame, event_id).await),
        Some("response.interrupt") => Ok(interrupt(session, frame, event_id).await),
        Some("response.inject") => Ok(inject(session, frame, event_id).await),
        kind => Err(errors::unknown_frame(kind)),
    }
}

async fn subscribe(session: &Arc<Session>, frame: &Value, event_id: Option<&str>) -> Result<Option<Value>, Reject> {
    let request: Subscribe = decode(frame)?;
    let after = match &request.after {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(cursor(text, "after")?),
        Some(number) => {
            let seq = number.as_u64().ok_or_else(|| invalid("after", "after must be the seq of an event"))?;
            Some(Cursor { epoch: None, seq })
        }
    };
    let types = Types::read(request.types)?;
    let reader = events::attach(&session.handle, after).await?;
    let mut snapshot = serde_json::to_value(snapshot(reader.attached(), reader.oldest_seq())).unwrap_or_default();
    echo(&mut snapshot, event_id, false);
    session.send_events(snapshot, reader, types).await;
    Ok(None)
}

/// Steers as OpenAI's clients do: whatever comes of it is said in their words, and never as an `error` of the frame.
async fn steer(session: &Session, frame: &Value, event_id: Option<&str>) -> Option<Value> {
    let key = key(session, Operation::Intervene, event_id, fingerprint(frame, None));
    let request = Request { frame, event_id, key: key.as_ref() };
    let intervene = dialect::read_steer(frame);
    let done = session.dialect.steer(&session.app, &session.handle, intervene, &request, || session.hears()).await;
    done.unwrap_or_else(|reject| Some(dialect::steer_refused(&request, reject)))
}

/// Interrupts as Codex does.
async fn interrupt(session: &Session, frame: &Value, event_id: Option<&str>) -> Option<Value> {
    let request = Request { frame, event_id, key: None };
    let done = match dialect::read_interrupt(frame) {
        Ok(id) => session.dialect.interrupt(&session.handle, id, &request, || session.hears()).await,
        Err(reject) => Err(reject),
    };
    done.unwrap_or_else(|reject| Some(dialect::interrupt_refused(&request, reject)))
}

/// Gives results of calls as OpenAI's clients do.
async fn inject(session: &Session, frame: &Value, event_id: Option<&str>) -> Option<Value> {
    let key = key(session, Operation::AnswerCall, event_id, fingerprint(frame, None));
    let request = Request { frame, event_id, key: key.as_ref() };
    let done = match inject::read(frame) {
        Ok(inject) => {
            let hears = || session.hears();
            session.dialect.inject(&session.app, &session.handle, inject, Ok(()), &request, hears).await
        }
        Err(reject) => Err(reject),
    };
    match done {
        Ok(done) => done.answer,
        Err(reject) => Some(inject::refused(&request, reject, session.handle.state().await.ok().as_deref())),
    }
}

async fn create(
    session: &Arc<Session>,
    frame: &Value,
    event_id: Option<&str>,
    subscribes: bool,
) -> Result<Option<Value>, Reject> {
    let request: CreateResponse = input::decode_with_items(frame, "input")?;
    if let Some(reject) = operations::refusal(session.app.phase()) {
        return Err(reject);
    }
    // Room is asked for and not kept: on its own socket a conversation runs one response at a time.
    drop(session.app.admit(&session.principal)?);
    create::check(&request, frame)?;
    check_place(session, &request)?;
    let key = key(session, Operation::Create, event_id, fingerprint(frame, None));
    let claim = match create::claim(&session.app, key.as_ref())? {
        Claimed::Fresh(claim) => claim,
        Claimed::Replay(KeyedAnswer::Created { response, .. }) => {
            return replay_create(session, response, event_id, subscribes).await;
        }
        Claimed::Replay(_) => return Err(wrong_operation()),
    };
    let model = session.app.engine(request.model.as_deref())?.model();
    let behind = session.handle.state().await?;
    let before = create::tools_before(Some(&behind));
    let seal = session.app.seal.of(&session.principal);
    let input = request.input.as_ref();
    let referred = references::of_input(&session.app, &session.principal, input, Some(&behind)).await?;
    let known = Known { seal: Some(&seal), referred: Some(&referred) };
    let mut create = create::create(model, known, &request, frame, &before)?;
    create::check_constraint(&session.app, &create, frame, &before).await?;
    if let Some(previous) = &request.previous_response_id {
        let id: ResponseId = previous.parse().map_err(|_| create::unknown_previous(previous))?;
        if session.handle.state().await?.response(id).is_none() {
            return Err(create::unknown_previous(previous));
        }
        create.previous = Some(id);
    }
    create.in_conversation = true;
    let id = create.response_id;
    session.tag(&id, event_id);
    let created = session.handle.create(create, claim).await;
    match created {
        Ok(reader) if subscribes => begin_events(session, reader).await,
        Ok(_) => {}
        Err(reject) => {
            session.untag(&id);
            return Err(reject);
        }
    }
    Ok(None)
}

/// Refuses what would take the response out of the socket's conversation.
fn check_place(session: &Session, request: &CreateResponse) -> Result<(), Reject> {
    let own = session.handle.id().to_string();
    if request.conversation.as_ref().is_some_and(|other| other.id() != own) {
        return Err(invalid("conversation", format!("this socket belongs to {own}; leave conversation out")));
    }
    if request.store == Some(false) {
        let text = "a response of a conversation is always stored: leave store out, or set it to true";
        return Err(invalid("store", text));
    }
    Ok(())
}

/// Events from where the reader stands, behind a snapshot of that place.
async fn begin_events(session: &Arc<Session>, reader: Reader) {
    let snapshot = serde_json::to_value(snapshot(reader.state(), reader.oldest_seq())).unwrap_or_default();
    session.send_events(snapshot, reader, Types::default()).await;
}

/// The first answer again, outside the order of events; then the events behind it, if none are sent yet.
async fn replay_create(
    session: &Arc<Session>,
    id: ResponseId,
    event_id: Option<&str>,
    subscribes: bool,
) -> Result<Option<Value>, Reject> {
    let mut reader = match session.handle.attach_response(id).await {
        Err(expired) if expired.code == Code::CursorExpired => {
            return replay_trimmed(session, id, event_id, subscribes, expired).await;
        }
        reader => reader?,
    };
    let before = serde_json::to_value(snapshot(reader.state(), reader.oldest_seq())).unwrap_or_default();
    while let Some(recorded) = reader.next().await {
        if matches!(&recorded.event, Event::ResponseCreated(new) if new.id == id) {
            let mut created = frame(reader.state(), &recorded);
            echo(&mut created, event_id, true);
            if subscribes {
                session.send_events(before, reader, Types::default()).await;
            }
            return Ok(Some(created));
        }
    }
    Err(crate::api::stream::interrupted())
}

/// As [`replay_create`], of a response whose events are no longer kept: the events begin with the oldest.
async fn replay_trimmed(
    session: &Arc<Session>,
    id: ResponseId,
    event_id: Option<&str>,
    subscribes: bool,
    expired: Reject,
) -> Result<Option<Value>, Reject> {
    let seq = session.handle.state().await?.response(id).map(|response| response.created_seq).ok_or(expired)?;
    let (state, recorded) = session.handle.kept_event(seq).await?;
    let mut created = frame(&state, &recorded);
    echo(&mut created, event_id, true);
    if subscribes {
        begin_events(session, session.handle.attach_all().await?).await;
    }
    Ok(Some(created))
}

async fn intervene(session: &Session, frame: &Value, event_id: Option<&str>) -> Result<Option<Value>, Reject> {
    let request: Intervene = decode(frame)?;
    let id = request.response_id.as_deref();
    let id = id.ok_or_else(|| invalid("response_id", "response_id is missing; it says which response is meant"))?;
    let id = create::response_id(id)?;
    let key = key(session, Operation::Intervene, event_id, fingerprint(frame, Some(&id.to_string())));
    let core_request = interventions::core_request(&session.app, &session.handle, &request, id).await;
    let intervention_id = core_request.as_ref().ok().map(|intervene| intervene.intervention_id);
    if let Some(intervention_id) = intervention_id {
        session.tag(&intervention_id, event_id);
    }
    let done = interventions::perform(&session.app, &session.handle, core_request, key.as_ref(), frame).await;
    let is_told_by_events = matches!(done, Ok((_, false))) && session.hears() == Hears::Now;
    if let Some(intervention_id) = intervention_id.filter(|_| !is_told_by_events) {
        session.untag(&intervention_id);
    }
    let (receipt, replayed) = done?;
    if is_told_by_events {
        return Ok(None);
    }
    let shown = interventions::shown(&session.handle, &receipt).await?;
    let mut answer = serde_json::to_value(&shown).unwrap_or_default();
    answer["type"] = format!("intervention.{}", shown.status).into();
    answer["intervention_id"] = shown.id.into();
    echo(&mut answer, event_id, replayed);
    Ok(Some(answer))
}

async fn cancel(session: &Session, frame: &Value, event_id: Option<&str>) -> Result<Option<Value>, Reject> {
    let request: Cancel = decode(frame)?;
    let id = request.response_id.as_deref().map(create::response_id).transpose()?;
    let target = id.map(|id| id.to_string());
    let key = key(session, Operation::Cancel, event_id, fingerprint(frame, target.as_deref()));
    let (cascade, waits) = (request.cascade.unwrap_or(false), request.wait.unwrap_or(true));
    let done = cancel::perform(&session.app, &session.handle, &Asked { id, cascade, waits }, key.as_ref()).await?;
    let outcome = if done.is_final { "cancelled" } else { "requested" };
    let mut response = done.object;
    let note = response.as_object_mut().and_then(|fields| fields.shift_remove("cancel"));
    let mut answer = json!({
        "type": "response.cancel.result",
        "response_id": response["id"],
        "cancel": note.unwrap_or_else(|| json!({"outcome": outcome})),
        "response": response,
    });
    echo(&mut answer, event_id, done.replayed);
    Ok(Some(answer))
}

async fn withdraw(session: &Session, frame: &Value, event_id: Option<&str>) -> Result<Option<Value>, Reject> {
    let request: Withdraw = decode(frame)?;
    let id = request.intervention_id.as_deref();
    let id = id.ok_or_else(|| invalid("intervention_id", "intervention_id is missing; it says which one is meant"))?;
    let id = interventions::intervention_id(id)?;
    session.handle.change(Input::Withdraw { intervention_id: id }).await?;
    let shown = interventions::current(&session.handle, id).await?;
    let mut answer = json!({"type": "intervention.withdraw.result", "intervention_id": id, "intervention": shown});
    echo(&mut answer, event_id, false);
    Ok(Some(answer))
}

async fn claim_call(session: &Session, frame: &Value, event_id: Option<&str>) -> Result<Option<Value>, Reject> {
    let request: ToolClaim = decode(frame)?;
    let key = key(session, Operation::ClaimCall, event_id, fingerprint(frame, None));
    let done = tool_calls::perform_claim(&session.app, &session.handle, &request, key.as_ref()).await?;
    Ok(Some(answer_as("conversation.tool_claim.result", done, event_id)))
}

async fn answer_call(session: &Session, frame: &Value, event_id: Option<&str>) -> Result<Option<Value>, Reject> {
    let request: ToolResult = decode(frame)?;
    let key = key(session, Operation::AnswerCall, event_id, fingerprint(frame, None));
    let (answer, repeated) = tool_calls::perform_result(&session.app, &session.handle, &request, key.as_ref()).await?;
    let done = (answer, repeated != Repeated::No);
    Ok(Some(answer_as("conversation.tool_result.result", done, event_id)))
}

fn answer_as(kind: &str, (mut answer, replayed): (Value, bool), event_id: Option<&str>) -> Value {
    answer["type"] = kind.into();
    echo(&mut answer, event_id, replayed);
    answer
}

fn key(session: &Session, operation: Operation, event_id: Option<&str>, fingerprint: [u8; 32]) -> Option<Key> {
    let conversation = Some(session.handle.id());
    Key::new(&session.principal, conversation, operation, event_id.map(str::to_owned), fingerprint)
}
