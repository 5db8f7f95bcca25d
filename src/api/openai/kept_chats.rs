//! `/v1/chat/completions/{id}` and the list of them: completions that were asked for with `store`. Each is the response
//! of a conversation of its own, whose labels are the completion's.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Query, State};
use serde_json::{Value, json};

use super::chat::{Shown, call, completion, completion_id};
use crate::actors::{ChatsFrom, ConversationHandle};
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{Admitted, AdmittedToWrite, JsonBody, PathId, decode};
use crate::api::errors::OpenAiError;
use crate::api::object::role_text;
use crate::api::page::{is_newest_first, limit};
use crate::conversation::{self, Ending, Input, Item, ItemBody, Reject, ResponseStatus};
use crate::error::Code;
use crate::ids::ResponseId;
use crate::prompt::Role;
use crate::protocol::chat::{Completion, CompletionList, KeptMessage, KeptMessageList, UpdateCompletion};

/// `GET /v1/chat/completions`
pub(crate) async fn list(
    State(app): State<App>,
    Principal(principal): Principal,
    Admitted(_permit): Admitted,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<CompletionList>, OpenAiError> {
    let (limit, newest_first) = (limit(&query)?, is_newest_first(&query, false)?);
    let after = query.get("after").map(|after| response_id(after)).transpose()?;
    let labels: Vec<_> = query.iter().filter_map(|(name, value)| Some((label(name)?, value))).collect();
    let wanted = |state: &conversation::State, response: &conversation::Response| {
        let has = |(name, value): &(&str, &String)| state.metadata.get(*name).is_some_and(|it| it == value.as_str());
        is_kept(response)
            && query.get("model").is_none_or(|model| *model == response.config.model)
            && labels.iter().all(has)
    };
    // One more, to know whether there are more.
    let mut found = app.directory.chats(&principal, ChatsFrom { after, newest_first }, limit + 1, wanted).await?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let data: Vec<_> = found.iter().filter_map(|(state, id)| shown(&app, state, *id)).collect();
    let id_of = |completion: &Completion| completion.id.clone();
    let (first_id, last_id) = (data.first().map(id_of), data.last().map(id_of));
    Ok(Json(CompletionList { object: "list", data, first_id, last_id, has_more }))
}

/// The label that a variable of the query asks for: `metadata[topic]`.
fn label(name: &str) -> Option<&str> {
    name.strip_prefix("metadata[")?.strip_suffix(']')
}

/// `GET /v1/chat/completions/{id}`
pub(crate) async fn get(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
) -> Result<Json<Completion>, OpenAiError> {
    let (handle, id) = find(&app, &principal, &id).await?;
    show(&app, &handle, id).await
}

/// `POST /v1/chat/completions/{id}`: replaces the labels.
pub(crate) async fn update(
    State(app): State<App>,
    Principal(principal): Principal,
    AdmittedToWrite(_permit): AdmittedToWrite,
    PathId(id): PathId,
    JsonBody(body): JsonBody,
) -> Result<Json<Completion>, OpenAiError> {
    let UpdateCompletion { metadata } = decode(&body)?;
    let (handle, id) = find(&app, &principal, &id).await?;
    handle.change(Input::Update { metadata: metadata.unwrap_or_default() }).await?;
    show(&app, &handle, id).await
}

/// `DELETE /v1/chat/completions/{id}`: its conversation goes with it, unless that went on.
pub(crate) async fn delete(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
) -> Result<Json<Value>, OpenAiError> {
    let (handle, id) = find(&app, &principal, &id).await?;
    let state = handle.state().await?;
    let went_on = state.responses.len() + state.queue.len() > 1;
    handle.change(if went_on { Input::DeleteResponse { response_id: id } } else { Input::Delete }).await?;
    Ok(Json(json!({"object": "chat.completion.deleted", "id": completion_id(id), "deleted": true})))
}

/// `GET /v1/chat/completions/{id}/messages`: what was asked.
pub(crate) async fn messages(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<KeptMessageList>, OpenAiError> {
    let (limit, newest_first) = (limit(&query)?, is_newest_first(&query, false)?);
    let (handle, id) = find(&app, &principal, &id).await?;
    let state = handle.state().await?;
    let mut data = state.response(id).map(asked).unwrap_or_default();
    if newest_first {
        data.reverse();
    }
    if let Some(after) = query.get("after") {
        let place = data.iter().position(|message| message.id == *after);
        let no_message = || Reject::new(Code::NotFound, format!("there is no message {after:?} here")).param("after");
        data.drain(..=place.ok_or_else(no_message)?);
    }
    let has_more = data.len() > limit;
    data.truncate(limit);
    let id_of = |message: &KeptMessage| message.id.clone();
    let (first_id, last_id) = (data.first().map(id_of), data.last().map(id_of));
    Ok(Json(KeptMessageList { object: "list", data, first_id, last_id, has_more }))
}

/// Whether a response is a completion that can be shown: one that failed said nothing whole.
fn is_kept(response: &conversation::Response) -> bool {
    let is_whole =
        matches!(&response.status, ResponseStatus::Ended(ending) if !matches!(ending, Ending::Failed { .. }));
    response.config.extras.chat_of.is_some() && is_whole
}

/// The completion's conversation. What is somebody else's does not exist.
async fn find(app: &App, principal: &str, id: &str) -> Result<(ConversationHandle, ResponseId), Reject> {
    let found = response_id(id)?;
    let handle = app.directory.of_response(found, principal).await.map_err(|reject| match reject.code {
        Code::ResponseNotFound => not_kept(id),
        _ => reject,
    })?;
    let state = handle.state().await?;
    state.response(found).filter(|response| is_kept(response)).ok_or_else(|| not_kept(id))?;
    Ok((handle, found))
}

async fn show(app: &App, handle: &ConversationHandle, id: ResponseId) -> Result<Json<Completion>, OpenAiError> {
    let shown = shown(app, &*handle.state().await?, id);
    Ok(Json(shown.ok_or_else(|| not_kept(&completion_id(id)))?))
}

fn shown(app: &App, state: &conversation::State, id: ResponseId) -> Option<Completion> {
    let response = state.response(id)?;
    let shown = Shown { reasoning: app.surface.reasoning, ..Shown::default() };
    let metadata = Some(state.metadata.clone());
    Some(Completion { metadata, ..completion(response, std::slice::from_ref(response), shown) })
}

/// The response of a completion: their digits are the same.
fn response_id(id: &str) -> Result<ResponseId, Reject> {
    let digits = id.strip_prefix("chatcmpl-").ok_or_else(|| not_kept(id))?;
    format!("resp_{digits}").parse().map_err(|_| not_kept(id))
}

fn not_kept(id: &str) -> Reject {
    let text = format!("no chat completion {id:?} is kept; ask for one with store, and wait for its end");
    Reject::new(Code::NotFound, text).param("completion_id")
}

/// The messages of the request, as far as items tell them apart.
fn asked(response: &conversation::Response) -> Vec<KeptMessage> {
    let mut messages: Vec<KeptMessage> = Vec::new();
    let mut thought = false;
    for item in &response.input {
        let joins = match &item.body {
            // Reasoning stands in front of what came of it, and calls behind it.
            ItemBody::Message { role: Role::Assistant, .. } => thought,
            ItemBody::FunctionCall { .. } => messages.last().is_some_and(|last| last.role == "assistant"),
            _ => false,
        };
        thought = matches!(item.body, ItemBody::Reasoning { .. });
        if !joins {
            let id = format!("{}-{}", completion_id(response.id), messages.len());
            messages.push(KeptMessage { id, role: role_of(item), ..KeptMessage::default() });
        }
        if let Some(message) = messages.last_mut() {
            add(message, item);
        }
    }
    messages
}

fn role_of(item: &Item) -> &'static str {
    match &item.body {
        ItemBody::Message { role, .. } => role_text(*role),
        ItemBody::FunctionCallOutput { .. } => "tool",
        _ => "assistant",
    }
}

fn add(message: &mut KeptMessage, item: &Item) {
    match &item.body {
        ItemBody::Reasoning { .. } => message.reasoning_content = Some(item.text()),
        ItemBody::FunctionCall { .. } => message.tool_calls.extend(call(item)),
        ItemBody::FunctionCallOutput { call_id, output, .. } => {
            (message.tool_call_id, message.content) = (Some(call_id.to_string()), Some(output.clone()));
        }
        _ => message.content = Some(item.text()),
    }
}
