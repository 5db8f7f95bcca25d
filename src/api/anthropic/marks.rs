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
use crate::protocol::messages::{CacheControl, InputBlock};

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
        if mark.ttl.as_deref() == Some("1h") {
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
        let mut marked = Marked::default();
        if let Some(behind) = self.hour {
            marked.hour = keep(app, who, engine, create, (behind, HOUR)).await?;
            marked.all = marked.hour;
        }
        if let Some(behind) = self.usual {
            marked.all = keep(app, who, engine, create, (behind, USUAL)).await?;
        }
        Ok(marked)
    }
}

/// Has the prompt up to an item kept for so long; gives its tokens.
async fn keep(
    app: &App,
    who: &Identity,
    engine: &Arc<dyn Engine>,
    create: &Create,
    (behind, ttl): (ItemId, Duration),
) -> Result<u32, Reject> {
    let Some(place) = create.input.iter().position(|item| item.id == behind) else { return Ok(0) };
    let mut begins = create.clone();
    begins.input.truncate(place + 1);
    begins.config.prompt_end = PromptEnd::Nothing;
    let tokens = app.directory.preview_beginning(begins, engine).await?.tokens;
    let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    app.directory.keep_kv(engine, (create::tenant(who), &create.config), tokens, ttl);
    Ok(count)
}
