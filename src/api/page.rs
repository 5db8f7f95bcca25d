//! Lists, page by page: how much of one a query asks for, and pages of items.

use std::collections::HashMap;

use super::errors::invalid;
use super::object;
use crate::conversation::{Item, Reject};
use crate::error::Code;
use crate::protocol::conversations::ItemList;

/// Most items of one page.
const PAGE_ITEMS_MAX: usize = 100;
/// Items of a page, unless the client says otherwise.
const PAGE_ITEMS: usize = 20;

/// All of these items on one page.
pub(crate) fn whole(items: &[Item]) -> ItemList {
    ItemList {
        object: "list",
        first_id: items.first().map(Item::wire_id),
        last_id: items.last().map(Item::wire_id),
        data: object::items(items),
        has_more: false,
    }
}

/// Whether a list is asked for with the newest first; `unless_said` where nothing is said of it.
pub(crate) fn is_newest_first(query: &HashMap<String, String>, unless_said: bool) -> Result<bool, Reject> {
    match query.get("order").map(String::as_str) {
        None => Ok(unless_said),
        Some("desc") => Ok(true),
        Some("asc") => Ok(false),
        Some(_) => Err(invalid("order", "order must be asc or desc")),
    }
}

/// Most entries of the page.
pub(crate) fn limit(query: &HashMap<String, String>) -> Result<usize, Reject> {
    let limit = query.get("limit").map_or(Ok(PAGE_ITEMS), |text| text.parse());
    let limit = limit.ok().filter(|limit| (1..=PAGE_ITEMS_MAX).contains(limit));
    limit.ok_or_else(|| invalid("limit", format!("limit must be between 1 and {PAGE_ITEMS_MAX}")))
}

/// One page of them, newest first unless asked otherwise.
pub(crate) fn page(mut items: Vec<Item>, query: &HashMap<String, String>) -> Result<ItemList, Reject> {
    if is_newest_first(query, true)? {
        items.reverse();
    }
    let limit = limit(query)?;
    if let Some(after) = query.get("after") {
        let place = items.iter().position(|item| item.wire_id() == *after);
        let no_item = || {
            Reject::new(Code::NotFound, format!("there is no item {after:?} here; give an id of this list"))
                .param("after")
        };
        let place = place.ok_or_else(no_item)?;
        items.drain(..=place);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    Ok(ItemList { has_more, ..whole(&items) })
}
