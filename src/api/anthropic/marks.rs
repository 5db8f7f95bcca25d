//! Marks of `cache_control`: what they keep of a prompt, for how long, and how many tokens that is.
//!
//! A mark stands behind its block, wherever that is in what its message became in the transcript. One for an hour keeps
//! what is in front of it for an hour, whatever marks stand there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::access::Identity;
use crate::api::App;
use crate::api::create;
use crate::conversation::{Content, Create, Item, ItemBody, Reject};
use crate::engine::Engine;
use crate::ids::ItemId;
use crate::prompt::PromptEnd;
use crate::protocol::messages::{CacheControl, CacheTtl};

/// What a mark keeps, unless it says otherwise, and what it may say.
const USUAL: Duration = Duration::from_mins(5);
const HOUR: Duration = Duration::from_hours(1);

/// How long a mark keeps what is in front of it.
pub(super) fn time(mark: Option<&CacheControl>) -> Option<Duration> {
    mark.map(|mark| if mark.ttl == Some(CacheTtl::Hour) { HOUR } else { USUAL })
}

/// All of an item's text.
pub(super) const ALL: usize = usize::MAX;

/// All marks of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks(Vec<Mark>);

#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The item that it stands in or behind; none where it stands in front of all.
    item: Option<ItemId>,
    /// Bytes of its text in front of the mark.
    bytes: usize,
    time: Duration,
}

/// Where a mark stands: the item among all, and bytes of its text.
type Place = (usize, usize);

/// Tokens of a prompt in front of its marks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marked {
    /// In front of the one for an hour.
    pub(super) hour: u32,
    /// In front of the last one.
    pub(super) all: u32,
}

impl Marks {
    /// What is said up to here is marked: so many bytes of an item's text, and all in front of it.
    pub(super) fn add(&mut self, item: Option<ItemId>, bytes: usize, time: Option<Duration>) {
        self.0.extend(time.map(|time| Mark { item, bytes, time }));
    }

    /// Has what is marked kept in the cache, once it is computed, and counts it.
    pub(super) async fn keep(
        &self,
        app: &App,
        who: &Identity,
        engine: &Arc<dyn Engine>,
        create: &Create,
    ) -> Result<Marked, Reject> {
        self.each(app, engine, create, |tokens, ttl| {
            app.directory.keep_kv(engine, (create::tenant(who), &create.config), tokens, ttl);
        })
        .await
    }

    /// Counts what is marked, and keeps nothing.
    pub(super) async fn count(&self, app: &App, engine: &Arc<dyn Engine>, create: &Create) -> Result<Marked, Reject> {
        self.each(app, engine, create, |_, _| {}).await
    }

    /// Hands over the tokens in front of each mark that counts, with their time; tells how many they are. Those count
    /// that are the last for an hour, and the last behind it for less.
    async fn each(
        &self,
        app: &App,
        engine: &Arc<dyn Engine>,
        create: &Create,
        take: impl Fn(Vec<u32>, Duration),
    ) -> Result<Marked, Reject> {
        let mut marked = Marked::default();
        let [hour, usual] = self.last(&create.input);
        let usual = usual.filter(|usual| hour.is_none_or(|hour| hour < *usual));
        if hour.is_none() && usual.is_none() {
            return Ok(marked);
        }
        let prompt: Arc<[u32]> = app.directory.preview(None, create.clone(), engine).await?.tokens.into();
        for (place, ttl) in [(hour, HOUR), (usual, USUAL)] {
            let Some(place) = place else { continue };
            let begins = app.directory.begins_with(up_to(place, create), Arc::clone(&prompt), engine).await?;
            marked.all = marked.all.max(u32::try_from(begins).unwrap_or(u32::MAX));
            if ttl == HOUR {
                marked.hour = marked.all;
            }
            if begins > 0 {
                take(prompt[..begins].to_vec(), ttl);
            }
        }
        Ok(marked)
    }

    /// Where the last mark for an hour stands among these items, and the last one for less. One whose item an edit left
    /// out stands nowhere.
    fn last(&self, items: &[Item]) -> [Option<Place>; 2] {
        let places: HashMap<ItemId, usize> = items.iter().enumerate().map(|(place, item)| (item.id, place)).collect();
        [HOUR, USUAL].map(|time| {
            let marks = self.0.iter().filter(|mark| mark.time == time);
            let place = |mark: &Mark| match mark.item {
                None => Some((0, 0)),
                Some(item) => places.get(&item).map(|place| (*place, mark.bytes)),
            };
            marks.filter_map(place).max()
        })
    }
}

/// The request as far as it goes in front of a mark.
fn up_to((place, bytes): Place, create: &Create) -> Create {
    let mut begins = create.clone();
    begins.input.truncate(place + 1);
    begins.config.prompt_end = PromptEnd::Nothing;
    let text = match begins.input.last_mut().map(|item| &mut item.body) {
        Some(ItemBody::Message { content, .. }) => content.first_mut().map(|Content::Text { text }| text),
        Some(ItemBody::FunctionCallOutput { output, .. }) => Some(output),
        _ => None,
    };
    // Where an edit put something shorter in the place of a text, all of that is in front of the mark.
    if let Some(text) = text.filter(|text| text.is_char_boundary(bytes)) {
        text.truncate(bytes);
    }
    begins
}
