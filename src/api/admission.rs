//! Room for requests and readers, and the quotas of keys: who is let in now, who has to wait, and what each is told.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::App;
use crate::access::{Held, Identity, Over, Room, Standing};
use crate::clock::{Clock, rfc3339};
use crate::conversation::Reject;
use crate::error::Code;

/// The field of a refusal that says in how many seconds there is room again.
pub(crate) const RETRY_AFTER: &str = "retry_after";

/// What is told where there is no room for another request.
const FULL: &str = "the server works on as many requests as it may; try again soon";

/// Room that is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    room: OwnedSemaphorePermit,
    held: Held,
}

impl App {
    /// Takes room for a request that uses a model, until the end of its answer.
    pub(crate) fn admit(&self, who: &Identity) -> Result<Permit, Reject> {
        self.take(who, Room::Work, &self.admission, FULL)
    }

    /// Takes room for a request that changes what is stored: its body takes the memory that those of others do, so the
    /// bound is the same.
    pub(crate) fn admit_write(&self, who: &Identity) -> Result<Permit, Reject> {
        self.take(who, Room::Writing, &self.admission, FULL)
    }

    /// Takes room for one more response of the same request.
    pub(crate) fn admit_more(&self, who: &Identity, permit: &mut Permit) -> Result<(), Reject> {
        let free = self.admission.available_permits();
        let more =
            room(&self.admission, "the server has no room for so many choices now; try again soon, or ask for fewer");
        permit.room.merge(more?);
        self.directory.usage().take_more(who, &mut permit.held, free).map_err(over)
    }

    /// Takes room for a request that asks what a prompt would be: generations that fill the server are not in its way,
    /// nor is it in theirs.
    pub(crate) fn admit_count(&self, who: &Identity) -> Result<Permit, Reject> {
        let text = "the server looks at as many prompts as it may; try again soon";
        self.take(who, Room::Counting, &self.counting, text)
    }

    /// Takes room for a stream or a socket that only reads.
    pub(crate) fn seat(&self, who: &Identity) -> Result<Permit, Reject> {
        let text = "as many streams and sockets are open as may be; try again soon";
        self.take(who, Room::Reading, &self.seats, text)
    }

    fn take(&self, who: &Identity, kind: Room, all: &Arc<Semaphore>, full: &str) -> Result<Permit, Reject> {
        let free = all.available_permits();
        // First of all what everybody waits for: a request that finds no room uses nothing up.
        let room = room(all, full)?;
        let held = self.directory.usage().take(who, kind, free).map_err(over)?;
        Ok(Permit { room, held })
    }
}

fn room(all: &Arc<Semaphore>, full: &str) -> Result<OwnedSemaphorePermit, Reject> {
    Arc::clone(all).try_acquire_owned().map_err(|_| Reject::new(Code::Overloaded, full))
}

/// Why a key's owner has to wait.
fn over(over: Over) -> Reject {
    let (text, wait_s) = match over {
        Over::Requests { limit, wait_s } => (format!("this API key may make {limit} requests in a minute"), wait_s),
        Over::Tokens { limit, wait_s } => (format!("this API key may use {limit} tokens in a minute"), wait_s),
        Over::Responses { limit } => (format!("this API key may have {limit} responses at once"), 1),
        Over::Share => ("this API key has the share of the server that it may have while others use it".to_owned(), 1),
    };
    let reject = Reject::new(Code::RateLimitExceeded, format!("{text}; try again in {wait_s} s"));
    reject.detail(RETRY_AFTER, wait_s)
}

/// Tells the client what is left of its quotas, in the headers that OpenAI's and Anthropic's SDKs know.
pub(crate) fn tell_standing(app: &App, who: &Identity, headers: &mut HeaderMap) {
    if who.limits.is_none() {
        return;
    }
    let (requests, tokens) = app.directory.usage().standing(who);
    for (what, standing) in [("requests", requests), ("tokens", tokens)] {
        let Some(Standing { limit, remaining, reset_s }) = standing else { continue };
        let reset_at = rfc3339(Clock::System.unix_ms() / 1000 + reset_s);
        for (name, text) in [
            (format!("x-ratelimit-limit-{what}"), limit.to_string()),
            (format!("x-ratelimit-remaining-{what}"), remaining.to_string()),
            (format!("x-ratelimit-reset-{what}"), format!("{reset_s}s")),
            (format!("anthropic-ratelimit-{what}-limit"), limit.to_string()),
            (format!("anthropic-ratelimit-{what}-remaining"), remaining.to_string()),
            (format!("anthropic-ratelimit-{what}-reset"), reset_at),
        ] {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(text)) {
                headers.insert(name, value);
            }
        }
    }
}
