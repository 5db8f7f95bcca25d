//! `/v1/conversations`: open, get, label, delete; items listed, added, deleted.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::actors::{ConversationHandle, Open};
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{JsonBody, PathId, PathIds, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{OpenAiError, invalid, wrong_operation};
use crate::api::{idempotency, input, object, unserved};
use crate::conversation::{Input, Item, Reject};
use crate::error::Code;
use crate::ids::{FreshIds, ItemId};
use crate::protocol::conversations::{AddItems, Conversation, CreateConversation, ItemList, UpdateConversation};
use crate::store::{KeyedAnswer, Operation};

/// Most items of one page.
const PAGE_ITEMS_MAX: usize = 100;
/// Items of a page, unless the client says otherwise.
const PAGE_ITEMS: usize = 20;

/// `POST /v1/conversations`
pub(crate) async fn create(
    State(app): State<App>,
    Principal(principal): Principal,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, OpenAiError> {
    let request: CreateConversation = decode(&body)?;
    unserved::refuse(&body)?;
    let fingerprint = idempotency::fingerprint(&body, None);
    let key = Key::new(&principal, None, Operation::Open, idempotency::key(&headers)?, fingerprint);
    match create::claim(&app, key.as_ref())? {
        Claimed::Fresh(claim) => {
            let items = request.items.as_deref().unwrap_or_default();
            let open = Open {
                items: input::item_list(items, "items", &mut FreshIds::random())?,
                metadata: request.metadata.unwrap_or_default(),
                defaults: input::policies(&body)?,
                principal,
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
    PathId(id): PathId,
    JsonBody(body): JsonBody,
) -> Result<Json<ItemList>, OpenAiError> {
    let request: AddItems = decode(&body)?;
    if request.items.is_empty() {
        return Err(invalid("items", "items is empty; give at least one").into());
    }
    let items = input::item_list(&request.items, "items", &mut FreshIds::random())?;
    let handle = app.directory.conversation(create::conversation_id(&id)?, &principal).await?;
    handle.change(Input::AddItems { items: items.clone() }).await?;
    Ok(Json(ItemList {
        object: "list",
        first_id: items.first().map(Item::wire_id),
        last_id: items.last().map(Item::wire_id),
        data: object::items(&items),
        has_more: false,
    }))
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

/// One page of the transcript, newest first unless asked otherwise.
fn page(mut items: Vec<Item>, query: &HashMap<String, String>) -> Result<ItemList, Reject> {
    match query.get("order").map(String::as_str) {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(invalid("order", "order must be asc or desc")),
    }
    let limit = query.get("limit").map_or(Ok(PAGE_ITEMS), |text| text.parse());
    let limit = limit.ok().filter(|limit| (1..=PAGE_ITEMS_MAX).contains(limit));
    let limit = limit.ok_or_else(|| invalid("limit", format!("limit must be between 1 and {PAGE_ITEMS_MAX}")))?;
    if let Some(after) = query.get("after") {
        let place = items.iter().position(|item| item.wire_id() == *after);
        let place = place.ok_or_else(|| no_item(after).param("after"))?;
        items.drain(..=place);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    Ok(ItemList {
        object: "list",
        first_id: items.first().map(Item::wire_id),
        last_id: items.last().map(Item::wire_id),
        data: object::items(&items),
        has_more,
    })
}
