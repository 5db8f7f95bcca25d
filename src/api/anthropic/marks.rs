//! Marks of `cache_control`: what they keep of a prompt, for how long, and how many tokens that is.
//!
//! A mark is one of a message: it stands behind what the message became in the transcript. One for an hour keeps what
//! is in front of it for an hour, whatever marks stand there.

use std::sync::Arc;
use std::time::Duration;

use crate::access::Identity;
use crate::api::App;
use crate::api::create;
use crate::conversation::{Create, Reject};
use crate::engine::Engine;
use crate::ids::ItemId;
use crate::prompt::PromptEnd;
use crate::protocol::TextOr;
use crate::protocol::messages::{CacheControl, CacheTtl, InputBlock};

/// What a mark keeps, unless it says otherwise, and what it may say.
const USUAL: Duration = Duration::from_mins(5);
const HOUR: Duration = Duration::from_hours(1);

/// The marks that count: the last one for an hour, and one behind it that is for less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    hour: Option<ItemId>,
    usual: Option<ItemId>,
}

/// Tokens of a prompt in front of its marks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marked {
    /// In front of the one for an hour.
    pub(super) hour: u32,
    /// In front of the last one.
    pub(super) all: u32,
}

/// The last mark in a content.
pub(super) fn last(content: Option<&TextOr<InputBlock>>) -> Option<&CacheControl> {
    let Some(TextOr::List(blocks)) = content else { return None };
    blocks.iter().rev().find_map(|block| block.cache_control.as_ref())
}

impl Marks {
    /// What is said up to this item is marked.
    pub(super) fn add(&mut self, behind: ItemId, mark: &CacheControl) {
        if mark.ttl == Some(CacheTtl::Hour) {
            *self = Self { hour: Some(behind), usual: None };
        } else {
            self.usual = Some(behind);
        }
    }

    /// Has what is marked kept in the cache, once it is computed, and counts it.
    pub(super) async fn keep(
        self,
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
    pub(super) async fn count(self, app: &App, engine: &Arc<dyn Engine>, create: &Create) -> Result<Marked, Reject> {
        self.each(app, engine, create, |_, _| {}).await
    }

    /// Hands over the tokens in front of each mark that counts, with their time; tells how many they are.
    async fn each(
        self,
        app: &App,
        engine: &Arc<dyn Engine>,
        create: &Create,
        take: impl Fn(Vec<u32>, Duration),
    ) -> Result<Marked, Reject> {
        let mut marked = Marked::default();
        for (behind, ttl) in [(self.hour, HOUR), (self.usual, USUAL)] {
            let Some(behind) = behind else { continue };
            let tokens = in_front(app, engine, create, behind).await?;
            // None where an edit left out what was marked: the mark in front of it counts as before.
            marked.all = marked.all.max(u32::try_from(tokens.len()).unwrap_or(u32::MAX));
            if ttl == HOUR {
                marked.hour = marked.all;
            }
            if !tokens.is_empty() {
                take(tokens, ttl);
            }
        }
        Ok(marked)
    }
}

/// The tokens of the prompt up to an item; none where it is not there.
async fn in_front(app: &App, engine: &Arc<dyn Engine>, create: &Create, behind: ItemId) -> Result<Vec<u32>, Reject> {
    let Some(place) = create.input.iter().position(|item| item.id == behind) else { return Ok(Vec::new()) };
    let mut begins = create.clone();
    begins.input.truncate(place + 1);
    begins.config.prompt_end = PromptEnd::Nothing;
    Ok(app.directory.preview_beginning(begins, engine).await?.tokens)
}
