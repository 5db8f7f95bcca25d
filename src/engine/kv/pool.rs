//! The pool of KV blocks: who holds which, what is cached, what may be evicted.
//!
//! A block is in exactly one state: free, held (by one or more sequences) or cached (held by nobody, but its
//! content is in the prefix index). Only full blocks are in the index, and their content never changes.

use std::collections::{BTreeMap, HashMap};

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
}

/// What the index remembers of a full block, to be compared on every hit: a key alone is not trusted.
#[derive(Clone, Debug)]
struct Content {
    key: BlockKey,
    parent: Option<BlockKey>,
    salt: u64,
    tokens: Box<[u32]>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    holders: u32,
    /// When the block was last let go; its place in the eviction order while it is cached.
    released_at: u64,
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
    /// Cached blocks, longest unused first.
    cached: BTreeMap<u64, BlockId>,
    /// Counts releases; the pool's own clock.
    releases: u64,
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
        Self { config, key_of, blocks, free, index: HashMap::new(), cached: BTreeMap::new(), releases: 0 }
    }

    /// All blocks, in whatever state.
    pub(crate) fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that [`Self::allocate`] can hand out: free ones and cached ones.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// Takes a block for one holder, evicting the cached block that was unused for longest if none is free.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => self.evict()?,
        };
        self.blocks[id.0 as usize].holders = 1;
        Some(id)
    }

    fn evict(&mut self) -> Option<BlockId> {
        let (_, id) = self.cached.pop_first()?;
        if let Some(content) = self.blocks[id.0 as usize].content.take() {
            self.index.remove(&content.key);
        }
        Some(id)
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
            self.cached.remove(&block.released_at);
        }
        block.holders += 1;
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
        self.blocks[id.0 as usize].content = Some(Content { key, parent, salt, tokens: tokens.into() });
        self.index.insert(key, id);
        Some(key)
    }

    /// Lets go of a sequence's blocks, given in the order of its tokens. The last ones are let go first: a
    /// prefix is of use without its end, an end not without its prefix.
    pub(crate) fn release(&mut self, blocks: impl DoubleEndedIterator<Item = BlockId>) {
        for id in blocks.rev() {
            let block = &mut self.blocks[id.0 as usize];
            debug_assert!(block.holders > 0, "block {id:?} released by somebody who does not hold it");
            block.holders = block.holders.saturating_sub(1);
            if block.holders > 0 {
                continue;
            }
            if block.content.is_some() {
                self.releases += 1;
                block.released_at = self.releases;
                self.cached.insert(self.releases, id);
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
        assert_eq!(self.index.len(), self.blocks.iter().filter(|block| block.content.is_some()).count());
        assert!(self.free.iter().all(|id| self.blocks[id.0 as usize].content.is_none()));
        self.blocks.iter().map(|block| block.holders).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(blocks: usize) -> PoolConfig {
        PoolConfig { blocks, model: "m".into(), kv_type: "f16".into() }
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
}
