//! The pool of KV blocks: who holds which, what is cached, what may be evicted.
//!
//! A block is in exactly one state: free, held (by one or more sequences) or cached (held by nobody, but its
//! content is in the prefix index). Only full blocks are in the index, and their content never changes.
//!
//! Which cached block is evicted follows from what it would cost to compute it again, how often it was used, and how
//! long ago ("greedy dual"): every eviction raises the worth of whatever is let go later, so what nobody uses goes in
//! the end, however dear it was. What is pinned goes behind everything else.

use std::collections::{BTreeMap, HashMap};

use super::pins::Pins;
use super::{BLOCK_TOKENS, BlockKey, KeyParts, block_key};

/// One block, by its number in the backend's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(pub(crate) u32);

/// What a pool is made for.
#[derive(Clone, Debug)]
pub(crate) struct PoolConfig {
    /// How many blocks there are.
    pub(crate) blocks: usize,
    /// The model's fingerprint, part of every key.
    pub(crate) model: String,
    /// How keys and values are stored, part of every key.
    pub(crate) kv_type: String,
    /// Most blocks that are pinned.
    pub(crate) pinned_blocks_max: usize,
}

/// What the index remembers of a full block, to be compared on every hit: a key alone is not trusted.
#[derive(Clone, Debug)]
struct Content {
    key: BlockKey,
    parent: Option<BlockKey>,
    salt: u64,
    tokens: Box<[u32]>,
    /// Blocks in front of it.
    depth: u64,
    /// How often it was computed or found, as far as that counts.
    uses: u64,
    /// Indexed blocks right behind it.
    children: u32,
}

/// Uses beyond these add nothing: what was used a thousand times is not worth a thousand others.
const USES_MAX: u64 = 8;
/// Attention over so many blocks costs about as much as everything else that computes a block.
const ATTENTION_BLOCKS: u64 = 128;

impl Content {
    /// What it would cost to compute the block again, as often as it was used.
    fn cost(&self) -> u64 {
        self.uses * (ATTENTION_BLOCKS + self.depth)
    }
}

/// The place of a cached block in the order of eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Pinned blocks go last.
    is_pinned: bool,
    /// A prefix is of use without its end, an end not without its prefix: ends go first.
    has_children: bool,
    worth: u64,
    /// Among equals the one that was let go first.
    released_at: u64,
}

#[derive(Clone, Debug, Default)]
struct Block {
    holders: u32,
    /// Its place in the order of eviction while it is cached.
    rank: Rank,
    content: Option<Content>,
}

/// Blocks, reference counts and the prefix index.
#[derive(Debug)]
pub(crate) struct BlockPool {
    config: PoolConfig,
    key_of: fn(&KeyParts<'_>) -> BlockKey,
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    index: HashMap<BlockKey, BlockId>,
    /// Cached blocks, the next one to evict first.
    cached: BTreeMap<Rank, BlockId>,
    /// Counts releases; the pool's own clock.
    releases: u64,
    /// The worth of the dearest block that was evicted; whatever is let go from now on is worth more.
    floor: u64,
    pins: Pins,
}

impl BlockPool {
    /// A pool in which every block is free.
    pub(crate) fn new(config: PoolConfig) -> Self {
        Self::with_keys(config, block_key)
    }

    /// A pool that names blocks with `key_of`, so that a test can make keys collide.
    fn with_keys(config: PoolConfig, key_of: fn(&KeyParts<'_>) -> BlockKey) -> Self {
        let blocks = vec![Block::default(); config.blocks];
        // Popped from the end: the lowest number is handed out first.
        let free = (0..config.blocks).rev().map(|number| BlockId(number as u32)).collect();
        let (index, cached, pins) = (HashMap::new(), BTreeMap::new(), Pins::new(config.pinned_blocks_max));
        Self { config, key_of, blocks, free, index, cached, releases: 0, floor: 0, pins }
    }

    /// All blocks, in whatever state.
    pub(crate) fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that [`Self::allocate`] can hand out: free ones and cached ones.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// Takes a block for one holder, evicting the cached block that is worth least if none is free.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => self.evict()?,
        };
        self.blocks[id.0 as usize].holders = 1;
        Some(id)
    }

    fn evict(&mut self) -> Option<BlockId> {
        let (rank, id) = self.cached.pop_first()?;
        self.floor = self.floor.max(rank.worth);
        if let Some(content) = self.blocks[id.0 as usize].content.take() {
            self.index.remove(&content.key);
            self.count_children(content.parent, -1);
        }
        Some(id)
    }

    /// Counts the indexed blocks right behind one, which says when it may be evicted.
    fn count_children(&mut self, parent: Option<BlockKey>, change: i32) {
        let Some(id) = parent.and_then(|key| self.index.get(&key).copied()) else {
            return;
        };
        let block = &mut self.blocks[id.0 as usize];
        let Some(content) = &mut block.content else {
            return;
        };
        content.children = content.children.saturating_add_signed(change);
        self.rank_again(id);
    }

    /// Gives a cached block its place once more, since it got or lost a child or a pin.
    fn rank_again(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        let Some(content) = block.content.as_ref().filter(|_| block.holders == 0) else {
            return;
        };
        self.cached.remove(&block.rank);
        block.rank.has_children = content.children > 0;
        block.rank.is_pinned = self.pins.holds(&content.key);
        self.cached.insert(block.rank, id);
    }

    /// Keeps the full blocks of these tokens in front of all others until then, whether they are computed yet or not:
    /// as many as may be pinned. Where that is too much together, the oldest pins make way.
    pub(crate) fn pin(&mut self, salt: u64, tokens: &[u32], until_ms: u64) {
        let mut prefix: Vec<BlockKey> = Vec::new();
        for tokens in tokens.chunks_exact(BLOCK_TOKENS).take(self.config.pinned_blocks_max) {
            let parent = prefix.last().copied();
            prefix.push(self.key(salt, parent, tokens));
        }
        let dropped = self.pins.pin(&prefix, until_ms);
        self.rank_all_again(prefix.iter().chain(&dropped));
    }

    /// Ends the pins whose time is over.
    pub(crate) fn expire_pins(&mut self, now_ms: u64) {
        let over = self.pins.expire(now_ms);
        self.rank_all_again(over.iter());
    }

    fn rank_all_again<'a>(&mut self, keys: impl Iterator<Item = &'a BlockKey>) {
        for key in keys {
            if let Some(id) = self.index.get(key).copied() {
                self.rank_again(id);
            }
        }
    }

    /// Finds the longest run of cached or held blocks that `tokens` begin with, and makes the caller a holder of
    /// each. The last token is never covered: it has to be run to get logits.
    pub(crate) fn adopt(&mut self, salt: u64, tokens: &[u32]) -> Vec<(BlockId, BlockKey)> {
        self.adopt_blocks(salt, &tokens[..tokens.len().saturating_sub(1)])
    }

    /// As [`Self::adopt`], but the last block may be among them: nobody wants logits.
    pub(crate) fn adopt_blocks(&mut self, salt: u64, tokens: &[u32]) -> Vec<(BlockId, BlockKey)> {
        let mut adopted = Vec::new();
        let mut parent = None;
        for block_tokens in tokens.chunks_exact(BLOCK_TOKENS) {
            let Some((id, key)) = self.find(salt, parent, block_tokens) else {
                break;
            };
            self.hold(id);
            adopted.push((id, key));
            parent = Some(key);
        }
        adopted
    }

    /// How many blocks [`Self::adopt`] would find, and how many of them nobody holds: those leave
    /// [`Self::available`] when they are adopted.
    pub(crate) fn probe(&self, salt: u64, tokens: &[u32]) -> (usize, usize) {
        let coverable = tokens.len().saturating_sub(1) / BLOCK_TOKENS;
        let (mut found, mut unheld) = (0, 0);
        let mut parent = None;
        for block_tokens in tokens.chunks_exact(BLOCK_TOKENS).take(coverable) {
            let Some((id, key)) = self.find(salt, parent, block_tokens) else {
                break;
            };
            found += 1;
            unheld += usize::from(self.blocks[id.0 as usize].holders == 0);
            parent = Some(key);
        }
        (found, unheld)
    }

    /// The indexed block that holds these tokens behind `parent`. Its content stays as it is for as long as it is
    /// found here.
    pub(crate) fn find(&self, salt: u64, parent: Option<BlockKey>, tokens: &[u32]) -> Option<(BlockId, BlockKey)> {
        let key = self.key(salt, parent, tokens);
        self.lookup(key, salt, parent, tokens).map(|id| (id, key))
    }

    fn key(&self, salt: u64, parent: Option<BlockKey>, tokens: &[u32]) -> BlockKey {
        let parts = KeyParts { model: &self.config.model, kv_type: &self.config.kv_type, salt, parent, tokens };
        (self.key_of)(&parts)
    }

    fn lookup(&self, key: BlockKey, salt: u64, parent: Option<BlockKey>, tokens: &[u32]) -> Option<BlockId> {
        let id = *self.index.get(&key)?;
        let content = self.blocks[id.0 as usize].content.as_ref()?;
        (content.salt == salt && content.parent == parent && *content.tokens == *tokens).then_some(id)
    }

    fn hold(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        if block.holders == 0 {
            self.cached.remove(&block.rank);
        }
        block.holders += 1;
        if let Some(content) = &mut block.content {
            content.uses = (content.uses + 1).min(USES_MAX);
        }
    }

    /// Enters a full block into the index, so that later sequences can adopt it. Where the index knows the same
    /// prefix already, the older block stays and this one remains its holder's alone. None when another prefix
    /// has the same key: then nothing behind this block may be entered either.
    pub(crate) fn publish(
        &mut self,
        id: BlockId,
        salt: u64,
        parent: Option<BlockKey>,
        tokens: &[u32],
    ) -> Option<BlockKey> {
        debug_assert_eq!(tokens.len(), BLOCK_TOKENS, "only full blocks are shared");
        let key = self.key(salt, parent, tokens);
        if self.index.contains_key(&key) {
            return self.lookup(key, salt, parent, tokens).map(|_| key);
        }
        let before = parent.and_then(|key| self.index.get(&key)).map(|id| &self.blocks[id.0 as usize]);
        let depth = before.and_then(|block| block.content.as_ref()).map_or(0, |content| content.depth + 1);
        let content = Content { key, parent, salt, tokens: tokens.into(), depth, uses: 1, children: 0 };
        self.blocks[id.0 as usize].content = Some(content);
        self.index.insert(key, id);
        self.count_children(parent, 1);
        Some(key)
    }

    /// Lets go of a sequence's blocks, given in the order of its tokens. The last ones are let go first.
    pub(crate) fn release(&mut self, blocks: impl DoubleEndedIterator<Item = BlockId>) {
        for id in blocks.rev() {
            let block = &mut self.blocks[id.0 as usize];
            debug_assert!(block.holders > 0, "block {id:?} released by somebody who does not hold it");
            block.holders = block.holders.saturating_sub(1);
            if block.holders > 0 {
                continue;
            }
            if let Some(content) = &block.content {
                self.releases += 1;
                let worth = self.floor + content.cost();
                let (is_pinned, has_children) = (self.pins.holds(&content.key), content.children > 0);
                block.rank = Rank { is_pinned, has_children, worth, released_at: self.releases };
                self.cached.insert(block.rank, id);
            } else {
                self.free.push(id);
            }
        }
    }

    /// How many sequences hold each block, checked against the pool's lists; for tests of whoever uses it.
    #[cfg(test)]
    pub(crate) fn audit(&self) -> Vec<u32> {
        let mut listed = vec![0_u32; self.blocks.len()];
        for id in self.free.iter().chain(self.cached.values()) {
            listed[id.0 as usize] += 1;
        }
        for (number, block) in self.blocks.iter().enumerate() {
            let expected = u32::from(block.holders == 0);
            assert_eq!(listed[number], expected, "block {number} has {} holders", block.holders);
            if let Some(content) = &block.content {
                assert_eq!(self.index.get(&content.key), Some(&BlockId(number as u32)));
            }
        }
        for (rank, id) in &self.cached {
            let block = &self.blocks[id.0 as usize];
            let is_pinned = block.content.as_ref().is_some_and(|content| self.pins.holds(&content.key));
            assert_eq!((*rank, rank.is_pinned), (block.rank, is_pinned));
        }
        assert_eq!(self.index.len(), self.blocks.iter().filter(|block| block.content.is_some()).count());
        assert!(self.free.iter().all(|id| self.blocks[id.0 as usize].content.is_none()));
        self.blocks.iter().map(|block| block.holders).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(blocks: usize) -> PoolConfig {
        PoolConfig { blocks, model: "m".into(), kv_type: "f16".into(), pinned_blocks_max: blocks / 2 }
    }

    fn numbers(count: usize) -> Vec<u32> {
        (0..count as u32).collect()
    }

    /// Fills blocks for `tokens` as a finished sequence would, and lets them go.
    fn fill(pool: &mut BlockPool, salt: u64, tokens: &[u32]) -> Vec<BlockId> {
        let mut parent = None;
        let mut held = Vec::new();
        for block_tokens in tokens.chunks_exact(BLOCK_TOKENS) {
            let id = pool.allocate().unwrap();
            parent = pool.publish(id, salt, parent, block_tokens);
            held.push(id);
        }
        pool.release(held.iter().copied());
        held
    }

    fn adopt(pool: &mut BlockPool, salt: u64, tokens: &[u32]) -> Vec<BlockId> {
        pool.adopt(salt, tokens).into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn a_follower_adopts_the_longest_full_prefix() {
        let mut pool = BlockPool::new(config(8));
        let filled = fill(&mut pool, 0, &numbers(48));
        let mut tokens = numbers(48);
        tokens[40] = 999;
        assert_eq!(pool.probe(0, &tokens), (2, 2));
        assert_eq!(adopt(&mut pool, 0, &tokens), filled[..2]);
        assert_eq!(pool.probe(0, &tokens), (2, 0));
        assert_eq!(pool.audit().iter().sum::<u32>(), 2);
    }

    #[test]
    fn a_match_never_covers_the_whole_prompt() {
        let mut pool = BlockPool::new(config(8));
        let filled = fill(&mut pool, 0, &numbers(32));
        assert_eq!(adopt(&mut pool, 0, &numbers(32)), filled[..1]);
        assert_eq!(adopt(&mut pool, 0, &numbers(33)), filled);
        assert!(adopt(&mut pool, 0, &[]).is_empty());
    }

    #[test]
    fn another_salt_sees_nothing() {
        let mut pool = BlockPool::new(config(8));
        fill(&mut pool, 1, &numbers(32));
        assert!(adopt(&mut pool, 2, &numbers(33)).is_empty());
    }

    #[test]
    fn equal_keys_with_other_tokens_are_no_match() {
        let mut pool = BlockPool::with_keys(config(8), |_| BlockKey::from_bytes([7; 32]));
        fill(&mut pool, 0, &numbers(16));
        assert_eq!(adopt(&mut pool, 0, &numbers(17)).len(), 1);
        assert!(adopt(&mut pool, 0, &[5; 17]).is_empty());
        assert!(adopt(&mut pool, 1, &numbers(17)).is_empty());
        let other = pool.allocate().unwrap();
        assert_eq!(pool.publish(other, 0, None, &[5; 16]), None);
        pool.audit();
    }

    #[test]
    fn a_long_prefix_that_many_share_outlives_many_short_ones_and_not_for_ever() {
        let mut pool = BlockPool::new(config(96));
        let shared = numbers(64 * BLOCK_TOKENS + 1);
        fill(&mut pool, 0, &shared);
        for _ in 0..2 {
            let held = adopt(&mut pool, 0, &shared);
            pool.release(held.into_iter());
        }
        let short = |number: u32| vec![100_000 + number; 4 * BLOCK_TOKENS];
        // Each is used once; together they have three times as many blocks as there are beside the prefix.
        for number in 0..24 {
            fill(&mut pool, 0, &short(number));
        }
        assert_eq!(pool.probe(0, &shared).0, 64, "the prefix is whole");
        assert_eq!(pool.probe(0, &short(0)), (0, 0), "what was used once made way");
        for number in 24..400 {
            fill(&mut pool, 0, &short(number));
        }
        assert_eq!(pool.probe(0, &shared).0, 0, "what nobody uses goes in the end");
        pool.audit();
    }

    #[test]
    fn of_two_prefixes_of_one_use_the_one_that_is_dearer_to_compute_stays_longer() {
        let mut pool = BlockPool::new(config(32));
        let (long, short) = (numbers(24 * BLOCK_TOKENS + 1), vec![7; 4 * BLOCK_TOKENS + 1]);
        fill(&mut pool, 0, &long);
        fill(&mut pool, 0, &short);
        // Four blocks are free, the next four must be evicted.
        let taken: Vec<_> = (0..8).map(|_| pool.allocate().unwrap()).collect();
        assert_eq!((pool.probe(0, &long).0, pool.probe(0, &short).0), (24, 0));
        pool.release(taken.into_iter());
        pool.audit();
    }

    #[test]
    fn a_block_is_not_evicted_before_what_is_cached_behind_it() {
        let mut pool = BlockPool::new(config(8));
        // Two continuations of one beginning; the beginning was let go last and used most.
        let mut other = numbers(64);
        other[40] = 999;
        fill(&mut pool, 0, &numbers(64));
        let held: Vec<_> = adopt(&mut pool, 0, &other);
        assert_eq!(held.len(), 2);
        pool.release(held.into_iter());
        let taken: Vec<_> = (0..6).map(|_| pool.allocate().unwrap()).collect();
        assert_eq!(pool.probe(0, &[numbers(64), vec![1]].concat()).0, 2);
        pool.release(taken.into_iter());
        pool.audit();
    }

    #[test]
    fn the_longest_unused_block_is_evicted_first_and_ends_go_before_beginnings() {
        let mut pool = BlockPool::new(config(4));
        let old = fill(&mut pool, 0, &numbers(32));
        let new = fill(&mut pool, 0, &[5; 32]);
        let taken: Vec<_> = (0..4).map(|_| pool.allocate().unwrap()).collect();
        assert_eq!(taken, [old[1], old[0], new[1], new[0]]);
        assert_eq!(pool.allocate(), None);
        assert_eq!(pool.probe(0, &numbers(33)), (0, 0));
        pool.audit();
    }

    #[test]
    fn the_same_prefix_computed_twice_is_indexed_once() {
        let mut pool = BlockPool::new(config(4));
        let (first, second) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        pool.publish(first, 0, None, &numbers(16));
        pool.publish(second, 0, None, &numbers(16));
        pool.release([second].into_iter());
        pool.release([first].into_iter());
        assert_eq!(adopt(&mut pool, 0, &numbers(17)), [first]);
        pool.audit();
    }

    #[test]
    fn a_pinned_prefix_outlives_whatever_comes_until_its_time_is_over() {
        let mut pool = BlockPool::new(config(16));
        let (pinned, plain) = (numbers(4 * BLOCK_TOKENS + 1), vec![7; 4 * BLOCK_TOKENS + 1]);
        // Before it is computed and behind it alike.
        pool.pin(0, &pinned[..2 * BLOCK_TOKENS], 1_000);
        fill(&mut pool, 0, &pinned);
        pool.pin(0, &pinned, 1_000);
        fill(&mut pool, 0, &plain);
        let press = |pool: &mut BlockPool, seed: u32| {
            for number in 0..20 {
                fill(pool, 0, &vec![100 * seed + number; 6 * BLOCK_TOKENS]);
            }
        };
        press(&mut pool, 1);
        assert_eq!((pool.probe(0, &pinned).0, pool.probe(0, &plain).0), (4, 0));
        pool.expire_pins(999);
        press(&mut pool, 2);
        assert_eq!(pool.probe(0, &pinned).0, 4);
        pool.expire_pins(1_000);
        press(&mut pool, 3);
        assert_eq!(pool.probe(0, &pinned).0, 0, "it is as all others then");
        pool.audit();
    }

    #[test]
    fn a_prefix_is_kept_for_the_longest_of_its_pins() {
        let mut pool = BlockPool::new(config(16));
        let tokens = numbers(4 * BLOCK_TOKENS + 1);
        pool.pin(0, &tokens[..2 * BLOCK_TOKENS], 3_600);
        pool.pin(0, &tokens, 300);
        fill(&mut pool, 0, &tokens);
        pool.expire_pins(300);
        for number in 0..20 {
            fill(&mut pool, 0, &[1_000 + number; 6 * BLOCK_TOKENS]);
        }
        assert_eq!(pool.probe(0, &tokens).0, 2);
        pool.audit();
    }

    #[test]
    fn over_the_bound_the_oldest_pin_goes_first_and_its_end_before_its_beginning() {
        let mut pool = BlockPool::new(config(16));
        let (old, new) = (numbers(5 * BLOCK_TOKENS + 1), vec![7; 6 * BLOCK_TOKENS + 1]);
        for tokens in [&old, &new] {
            pool.pin(0, tokens, 1_000);
            fill(&mut pool, 0, tokens);
        }
        // Eight may be pinned.
        for number in 0..20 {
            fill(&mut pool, 0, &[1_000 + number; 4 * BLOCK_TOKENS]);
        }
        assert_eq!((pool.probe(0, &old).0, pool.probe(0, &new).0), (2, 6));
        pool.pin(0, &numbers(100 * BLOCK_TOKENS), 1_000);
        pool.audit();
        assert_eq!(pool.probe(0, &new).0, 6, "nothing is evicted before its place is needed");
    }

    #[test]
    fn pins_keep_no_sequence_waiting() {
        let mut pool = BlockPool::new(config(8));
        let tokens = numbers(4 * BLOCK_TOKENS + 1);
        pool.pin(0, &tokens, 1_000);
        fill(&mut pool, 0, &tokens);
        assert_eq!(pool.available(), 8);
        let taken: Vec<_> = (0..8).map(|_| pool.allocate().unwrap()).collect();
        assert_eq!(pool.probe(0, &tokens).0, 0);
        pool.release(taken.into_iter());
        // What is computed again is pinned again.
        fill(&mut pool, 0, &tokens);
        for number in 0..20 {
            fill(&mut pool, 0, &[1_000 + number; 4 * BLOCK_TOKENS]);
        }
        assert_eq!(pool.probe(0, &tokens).0, 4);
        pool.audit();
    }
}
