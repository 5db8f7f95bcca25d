//! What each principal uses: requests and tokens of the last minute, responses that run, room that it holds.
//!
//! The limits are a key's, what is counted is its principal's: a key that takes another's place does not begin anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::gate::Identity;
use super::limits::Window;
use crate::clock::monotonic;

/// How many times the room that is free one principal may hold, where others may come: three quarters of all while it
/// is alone, three sevenths each of two. However many there are, something is left for the next.
const SHARE: usize = 3;

/// Room of which there is a bound for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// For requests that use a model.
    Work,
    /// For requests that ask what a prompt would be, and have no answer generated.
    Counting,
    /// For requests that change what is stored and use no model.
    Writing,
    /// For streams and sockets that only read.
    Reading,
}

/// Why a principal has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// It made as many requests as it may in a minute.
    Requests {
        /// The bound.
        limit: u64,
        /// When there is room again, in seconds.
        wait_s: u64,
    },
    /// It used as many tokens as it may in a minute.
    Tokens {
        /// The bound.
        limit: u64,
        /// When there is room again, in seconds.
        wait_s: u64,
    },
    /// It has as many responses at once as it may.
    Responses {
        /// The bound.
        limit: u64,
    },
    /// It holds so much room that too little would be left for others.
    Share,
}

/// How much of a quota is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The bound.
    pub limit: u64,
    /// What is left of it now.
    pub remaining: u64,
    /// When all of it is there again, in seconds.
    pub reset_s: u64,
}

/// What all principals use.
#[derive(Clone, Debug)]
pub struct Usage {
    used: Arc<Mutex<HashMap<String, Used>>>,
    begun: Instant,
}

/// What one uses.
#[derive(Debug, Default)]
struct Used {
    requests: Window,
    tokens: Window,
    /// Responses that are generated.
    running: usize,
    /// Room for work, for counting, for writing, and for reading.
    work: usize,
    counting: usize,
    writing: usize,
    reading: usize,
}

impl Default for Usage {
    fn default() -> Self {
        Self { used: Arc::default(), begun: monotonic() }
    }
}

impl Usage {
    /// Takes room of which this much is free for all; it is given back when it is dropped. All but readers
    /// are requests.
    pub fn take(&self, who: &Identity, room: Room, free: usize) -> Result<Held, Over> {
        self.take_at(who, room, free, self.now_s())
    }

    pub(super) fn take_at(&self, who: &Identity, room: Room, free: usize, now_s: u64) -> Result<Held, Over> {
        let mut used = self.used();
        let used = used.entry(who.principal.clone()).or_default();
        if room != Room::Reading {
            used.check_minute(who, now_s)?;
        }
        used.check_room(who, room, free)?;
        if room != Room::Reading {
            used.requests.add(now_s, 1);
        }
        *used.held(room) += 1;
        Ok(Held { usage: self.clone(), principal: who.principal.clone(), room, count: 1 })
    }

    /// Takes room for one more response of the same request.
    pub fn take_more(&self, who: &Identity, held: &mut Held, free: usize) -> Result<(), Over> {
        let mut used = self.used();
        let used = used.entry(who.principal.clone()).or_default();
        used.check_room(who, held.room, free)?;
        *used.held(held.room) += 1;
        held.count += 1;
        Ok(())
    }

    /// Counts a response until the meter is dropped, and with it its tokens.
    pub fn run(&self, principal: &str) -> Meter {
        self.used().entry(principal.to_owned()).or_default().running += 1;
        Meter { usage: self.clone(), principal: principal.to_owned() }
    }

    /// What is left to who has bounds, of requests and of tokens.
    pub fn standing(&self, who: &Identity) -> (Option<Standing>, Option<Standing>) {
        let now_s = self.now_s();
        let mut used = self.used();
        let Some(used) = used.get_mut(&who.principal) else { return (None, None) };
        let of = |window: &mut Window, limit: Option<u64>| {
            let limit = limit?;
            let remaining = limit.saturating_sub(window.sum(now_s));
            Some(Standing { limit, remaining, reset_s: window.reset_s(now_s) })
        };
        let requests = of(&mut used.requests, who.limits.requests_per_minute);
        (requests, of(&mut used.tokens, who.limits.tokens_per_minute))
    }

    fn now_s(&self) -> u64 {
        monotonic().duration_since(self.begun).as_secs()
    }

    fn used(&self) -> MutexGuard<'_, HashMap<String, Used>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Used {
    fn held(&mut self, room: Room) -> &mut usize {
        match room {
            Room::Work => &mut self.work,
            Room::Counting => &mut self.counting,
            Room::Writing => &mut self.writing,
            Room::Reading => &mut self.reading,
        }
    }

    fn check_minute(&mut self, who: &Identity, now_s: u64) -> Result<(), Over> {
        if let Some(limit) = who.limits.requests_per_minute {
            let wait_s = self.requests.wait_s(now_s, limit);
            if wait_s > 0 {
                return Err(Over::Requests { limit, wait_s });
            }
        }
        if let Some(limit) = who.limits.tokens_per_minute {
            let wait_s = self.tokens.wait_s(now_s, limit);
            if wait_s > 0 {
                return Err(Over::Tokens { limit, wait_s });
            }
        }
        Ok(())
    }

    fn check_room(&mut self, who: &Identity, room: Room, free: usize) -> Result<(), Over> {
        // A response may run without its request, and a request may not have its response yet.
        let responses = self.work.max(self.running) as u64;
        match who.limits.concurrent_responses.filter(|limit| room == Room::Work && responses >= *limit) {
            Some(limit) => Err(Over::Responses { limit }),
            None if who.shares && !is_fair(*self.held(room), free) => Err(Over::Share),
            None => Ok(()),
        }
    }
}

/// Whether who holds this much may have one more of what is free.
fn is_fair(own: usize, free: usize) -> bool {
    own == 0 || own < SHARE * free.saturating_sub(1)
}

/// Room that is held.
#[derive(Debug)]
pub struct Held {
    usage: Usage,
    principal: String,
    room: Room,
    count: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(used) = self.usage.used().get_mut(&self.principal) {
            let held = used.held(self.room);
            *held = held.saturating_sub(self.count);
        }
    }
}

/// A response that runs.
#[derive(Debug)]
pub struct Meter {
    usage: Usage,
    principal: String,
}

impl Meter {
    /// Counts tokens of its prompt or its answer.
    pub fn spend(&self, tokens: u64) {
        let now_s = self.usage.now_s();
        if let Some(used) = self.usage.used().get_mut(&self.principal) {
            used.tokens.add(now_s, tokens);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(used) = self.usage.used().get_mut(&self.principal) {
            used.running = used.running.saturating_sub(1);
        }
    }
}
