//! `/v1/conversations`: open, get, list items.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use crate::actors::Open;
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{JsonBody, PathId, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{OpenAiError, invalid, wrong_operation};
use crate::api::{idempotency, input, object, unserved};
use crate::conversation::{Item, Reject};
use crate::ids::FreshIds;
use crate::protocol::conversations::{Conversation, CreateConversation, ItemList};
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
                principal,
            };
            let handle = app.directory.open(open, claim).await?;
            Ok(Json(object::conversation(&*handle.state().await?)).into_response())
        }
        Claimed::Replay(KeyedAnswer::Opened { conversation }) => {
            let handle = app.directory.conversation(conversation, &principal).await?;
            let response = Json(object::conversation(&*handle.state().await?)).into_response();
            Ok(idempotency::replayed(response))
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
        let place = place.ok_or_else(|| invalid("after", format!("there is no item {after:?} here")))?;
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
