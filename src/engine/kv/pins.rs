//! Which prefixes are kept for a time: their blocks are the last that are evicted.
//!
//! A pin names blocks by their keys, whether they are computed yet or not. A block has the pin that was set last, and
//! the latest end of all; whoever pins a prefix pins all of it, so that a block is pinned for as long as anything
//! behind it. Pure: the time comes in as a value.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::BlockKey;

/// The pinned blocks, at most so many.
#[derive(Debug)]
pub(super) struct Pins {
    blocks_max: usize,
    of: HashMap<BlockKey, Pin>,
    /// The oldest pin first, and of each its end.
    order: BTreeMap<Place, BlockKey>,
    /// Counts pins.
    count: u64,
    /// No pin ends before.
    ends_from_ms: u64,
}

/// Which pin a block has, and how far behind the pin's beginning it is.
type Place = (u64, Reverse<usize>);

#[derive(Clone, Copy, Debug)]
struct Pin {
    place: Place,
    until_ms: u64,
}

impl Pins {
    pub(super) fn new(blocks_max: usize) -> Self {
        Self { blocks_max, of: HashMap::new(), order: BTreeMap::new(), count: 0, ends_from_ms: u64::MAX }
    }

    pub(super) fn holds(&self, key: &BlockKey) -> bool {
        self.of.contains_key(key)
    }

    /// Pins the blocks of a prefix. Gives those that are not pinned any more, since there are too many: the ends of
    /// the oldest pins.
    pub(super) fn pin(&mut self, prefix: &[BlockKey], until_ms: u64) -> Vec<BlockKey> {
        self.count += 1;
        self.ends_from_ms = self.ends_from_ms.min(until_ms);
        for (depth, key) in prefix.iter().enumerate() {
            let before = self.remove(key);
            let until_ms = before.map_or(until_ms, |before| before.until_ms.max(until_ms));
            let place = (self.count, Reverse(depth));
            self.order.insert(place, *key);
            self.of.insert(*key, Pin { place, until_ms });
        }
        let mut dropped = Vec::new();
        while self.of.len() > self.blocks_max
            && let Some((_, key)) = self.order.pop_first()
        {
            self.of.remove(&key);
            dropped.push(key);
        }
        dropped
    }

    /// Ends the pins whose time is over, and gives their blocks.
    pub(super) fn expire(&mut self, now_ms: u64) -> Vec<BlockKey> {
        if now_ms < self.ends_from_ms {
            return Vec::new();
        }
        let over = self.order.values().filter(|key| self.of.get(key).is_some_and(|pin| pin.until_ms <= now_ms));
        let over: Vec<BlockKey> = over.copied().collect();
        for key in &over {
            self.remove(key);
        }
        self.ends_from_ms = self.of.values().map(|pin| pin.until_ms).min().unwrap_or(u64::MAX);
        over
    }

    fn remove(&mut self, key: &BlockKey) -> Option<Pin> {
        let pin = self.of.remove(key)?;
        self.order.remove(&pin.place);
        Some(pin)
    }
}
