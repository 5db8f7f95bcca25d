//! `/v1/conversations`: list, open, get, label, delete; items listed, added, deleted.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::access::Identity;
use crate::actors::{ConversationHandle, Open, Part};
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{AdmittedToWrite, JsonBody, PathId, PathIds, Seated, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{OpenAiError, invalid, wrong_operation};
use crate::api::input::{self, Known};
use crate::api::page::{is_newest_first, limit, page, whole};
use crate::api::{idempotency, object, references, unserved};
use crate::conversation::{self, Input, Item, Reject};
use crate::error::Code;
use crate::ids::{FreshIds, ItemId};
use crate::protocol::conversations::{
    AddItems, Conversation, ConversationList, CreateConversation, ItemList, UpdateConversation,
};
use crate::protocol::items::InputItem;
use crate::store::{KeyedAnswer, Operation};

/// `POST /v1/conversations`
pub(crate) async fn create(
    State(app): State<App>,
    Principal(principal): Principal,
    AdmittedToWrite(_permit): AdmittedToWrite,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, OpenAiError> {
    let request: CreateConversation = input::decode_with_items(&body, "items")?;
    unserved::refuse(&body)?;
    let fingerprint = idempotency::fingerprint(&body, None);
    let key = Key::new(&principal, None, Operation::Open, idempotency::key(&headers)?, fingerprint);
    match create::claim(&app, key.as_ref())? {
        Claimed::Fresh(claim) => {
            let items = request.items.as_deref().unwrap_or_default();
            let items = read(&app, &principal, items, None).await?;
            let open = Open {
                metadata: request.metadata.unwrap_or_default(),
                defaults: input::policies(&body)?,
                ..create::open(&principal, items)
            };
            let handle = app.directory.open(open, claim).await?;
            Ok(Json(object::conversation(&*handle.state().await?)).into_response())
        }
        Claimed::Replay(KeyedAnswer::Opened { conversation }) => {
            let handle = app.directory.conversation(conversation, &principal).await?;
            // As it was when it was opened, whatever became of its labels.
            let opened = match handle.state_at(1).await? {
                Some(opened) => object::conversation(&opened),
                None => object::conversation(&*handle.state().await?),
            };
            Ok(idempotency::replayed(Json(opened).into_response()))
        }
        Claimed::Replay(_) => Err(wrong_operation().into()),
    }
}

/// `GET /v1/conversations`: the client's own, newest first.
pub(crate) async fn list(
    State(app): State<App>,
    Principal(principal): Principal,
    Seated(_seat): Seated,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<ConversationList>, OpenAiError> {
    let after = query.get("after").map(|id| create::conversation_id(id).map_err(|reject| reject.param("after")));
    let part = Part { after: after.transpose()?, limit: limit(&query)?, ascends: !is_newest_first(&query, true)? };
    let (listed, has_more) = app.directory.list(&principal, part).await?;
    Ok(Json(object::conversations(&listed, has_more)))
}

/// `GET /v1/conversations/{id}`
pub(crate) async fn get(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
) -> Result<Json<Conversation>, OpenAiError> {
    let handle = app.directory.conversation(create::conversation_id(&id)?, &principal).await?;
    Ok(Json(object::conversation(&*handle.state().await?)))
}

/// `GET /v1/conversations/{id}/items`
pub(crate) async fn items(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<ItemList>, OpenAiError> {
    let handle = app.directory.conversation(create::conversation_id(&id)?, &principal).await?;
    let items = object::transcript(&*handle.state().await?);
    Ok(Json(page(items, &query)?))
}

/// `POST /v1/conversations/{id}`: replaces the labels.
pub(crate) async fn update(
    State(app): State<App>,
    Principal(principal): Principal,
    AdmittedToWrite(_permit): AdmittedToWrite,
    PathId(id): PathId,
    JsonBody(body): JsonBody,
) -> Result<Json<Conversation>, OpenAiError> {
    let UpdateConversation { metadata } = decode(&body)?;
    let handle = app.directory.conversation(create::conversation_id(&id)?, &principal).await?;
    handle.change(Input::Update { metadata }).await?;
    Ok(Json(object::conversation(&*handle.state().await?)))
}

/// `DELETE /v1/conversations/{id}`
pub(crate) async fn delete(
    State(app): State<App>,
    Principal(principal): Principal,
    PathId(id): PathId,
) -> Result<Json<Value>, OpenAiError> {
    let handle = app.directory.conversation(create::conversation_id(&id)?, &principal).await?;
    handle.change(Input::Delete).await?;
    Ok(Json(json!({"object": "conversation.deleted", "id": handle.id(), "deleted": true})))
}

/// `POST /v1/conversations/{id}/items`
pub(crate) async fn add_items(
    State(app): State<App>,
    Principal(principal): Principal,
    AdmittedToWrite(_permit): AdmittedToWrite,
    PathId(id): PathId,
    JsonBody(body): JsonBody,
) -> Result<Json<ItemList>, OpenAiError> {
    let request: AddItems = input::decode_with_items(&body, "items")?;
    if request.items.is_empty() {
        return Err(invalid("items", "items is empty; give at least one").into());
    }
    let handle = app.directory.conversation(create::conversation_id(&id)?, &principal).await?;
    let items = read(&app, &principal, &request.items, Some(&*handle.state().await?)).await?;
    handle.change(Input::AddItems { items: items.clone() }).await?;
    Ok(Json(whole(&items)))
}

/// `GET /v1/conversations/{id}/items/{item_id}`
pub(crate) async fn item(
    State(app): State<App>,
    Principal(principal): Principal,
    path: PathIds,
) -> Result<Response, OpenAiError> {
    let (handle, item_id) = (conversation_of(&app, &path, &principal).await?, path.get("item_id"));
    let items = object::transcript(&*handle.state().await?);
    let found = items.iter().find(|item| item.wire_id() == item_id).ok_or_else(|| no_item(item_id))?;
    Ok(Json(object::item(found)).into_response())
}

/// `DELETE /v1/conversations/{id}/items/{item_id}`
pub(crate) async fn delete_item(
    State(app): State<App>,
    Principal(principal): Principal,
    path: PathIds,
) -> Result<Json<Conversation>, OpenAiError> {
    let (handle, item_id) = (conversation_of(&app, &path, &principal).await?, path.get("item_id"));
    let item_id = ItemId::from_wire(item_id).map_err(|_| no_item(item_id))?;
    handle.change(Input::DeleteItem { item_id }).await?;
    Ok(Json(object::conversation(&*handle.state().await?)))
}

/// Reads items that are to join this conversation, or a new one.
async fn read(
    app: &App,
    principal: &Identity,
    items: &[InputItem],
    behind: Option<&conversation::State>,
) -> Result<Vec<Item>, Reject> {
    let seal = app.seal.of(principal);
    let referred = references::of_list(app, principal, items, "items", behind).await?;
    let known = Known { seal: Some(&seal), referred: Some(&referred) };
    input::item_list(items, "items", known, &mut FreshIds::random())
}

async fn conversation_of(app: &App, path: &PathIds, principal: &str) -> Result<ConversationHandle, Reject> {
    app.directory.conversation(create::conversation_id(path.get("id"))?, principal).await
}

fn no_item(id: &str) -> Reject {
    Reject::new(
        Code::NotFound,
        format!("there is no item {id:?} in this conversation; check the id, unless the item was deleted"),
    )
    .param("item_id")
}
