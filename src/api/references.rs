//! References: an `item_reference` in a request's input stands for an item of a conversation of the same principal. It
//! is copied, reasoning with its tokens; what the request follows already is not said twice.

use std::collections::HashMap;

use super::App;
use super::errors::invalid;
use crate::access::Identity;
use crate::conversation::{Item, ItemBody, ItemStatus, Made, OutputItem, Reject, Response, State};
use crate::error::Code;
use crate::ids::ItemId;
use crate::protocol::TextOr;
use crate::protocol::items::InputItem;

/// The kind of an item that names another.
pub(crate) const ITEM_REFERENCE: &str = "item_reference";

/// References in one request at most: each may wake a conversation.
const REFERENCES_MAX: usize = 1_024;

/// What the references of a request stand for, by the id that they name; nothing where the request follows it.
#[derive(Debug, Default)]
pub(crate) struct Referred(HashMap<String, Option<ItemBody>>);

impl Referred {
    /// What the reference with this id stands for.
    pub(crate) fn get(&self, id: &str) -> Option<&Option<ItemBody>> {
        self.0.get(id)
    }
}

/// Whether an item names another. Its type may be left out.
pub(crate) fn is_reference(item: &InputItem) -> bool {
    match item.kind.as_deref() {
        Some(kind) => kind == ITEM_REFERENCE,
        None => item.id.is_some() && item.role.is_none() && item.content.is_none(),
    }
}

/// Finds what a request's input refers to. `behind` is the conversation that it continues.
pub(crate) async fn of_input(
    app: &App,
    principal: &Identity,
    input: Option<&TextOr<InputItem>>,
    behind: Option<&State>,
) -> Result<Referred, Reject> {
    match input {
        Some(TextOr::List(list)) => of_list(app, principal, list, "input", behind).await,
        _ => Ok(Referred::default()),
    }
}

/// As [`of_input`], for the list of items in this field. What is referred to is bounded as a body is that would have
/// had it: so many references, each item once, and so many bytes together.
pub(crate) async fn of_list(
    app: &App,
    principal: &Identity,
    list: &[InputItem],
    field: &str,
    behind: Option<&State>,
) -> Result<Referred, Reject> {
    let (mut referred, mut bytes) = (Referred::default(), 0);
    for (position, item) in list.iter().enumerate().filter(|(_, item)| is_reference(item)) {
        let id = item.id.as_deref().ok_or_else(|| {
            let at = format!("{field}[{position}].id");
            invalid(at.clone(), format!("{at} is missing; it says which item is meant"))
        })?;
        let refused =
            |text: String| Err(invalid(format!("{field}[{position}]"), format!("{field}[{position}]: {text}")));
        if referred.0.contains_key(id) {
            return refused(format!("the item {id:?} is referred to a second time; refer to it once"));
        }
        if referred.0.len() == REFERENCES_MAX {
            return refused(format!(
                "at most {REFERENCES_MAX} items are referred to at once; send the others themselves"
            ));
        }
        let unknown = || {
            let text = format!(
                "{field}[{position}]: there is no item {id:?} here; of a response that was not stored, send the items \
                 themselves"
            );
            Reject::new(Code::NotFound, text).param(field)
        };
        let item_id = ItemId::from_wire(id).map_err(|_| unknown())?;
        let is_there = behind.is_some_and(|behind| body_of(behind, item_id).is_some());
        let body = if is_there {
            None
        } else {
            let handle = app.directory.of_item(item_id, principal).await?.ok_or_else(unknown)?;
            Some(body_of(&*handle.state().await?, item_id).ok_or_else(unknown)?)
        };
        bytes += body.as_ref().map_or(0, |body| serde_json::to_string(body).map_or(usize::MAX, |text| text.len()));
        if bytes > app.limits.body_bytes_max {
            let most = app.limits.body_bytes_max;
            return refused(format!("what is referred to has more than {most} bytes together; refer to less"));
        }
        referred.0.insert(id.to_owned(), body);
    }
    Ok(referred)
}

/// What an item of a transcript says, once it is whole; of reasoning also what it was made of.
fn body_of(state: &State, id: ItemId) -> Option<ItemBody> {
    let is_it = |item: &&Item| item.id == id;
    for response in &state.responses {
        let output = response.output.iter().find(|output| output.item.id == id && output.is_kept());
        if let Some(output) = output.filter(|output| output.item.status != ItemStatus::InProgress) {
            return Some(generated(response, output));
        }
        if let Some(item) = response.input.iter().find(is_it) {
            return Some(item.body.clone());
        }
    }
    state.staged.iter().find(is_it).map(|item| item.body.clone())
}

fn generated(response: &Response, output: &OutputItem) -> ItemBody {
    let mut body = output.item.body.clone();
    if let ItemBody::Reasoning { made: made @ None, .. } = &mut body {
        let (fingerprint, tokens) = (response.config.fingerprint.clone(), output.tokens.clone());
        *made = Some(Made { fingerprint, tokens, native: None });
    }
    body
}
