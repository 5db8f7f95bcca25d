//! KV on its way out of the engine and back, a part of it between two steps.
//!
//! Copying out holds nothing: a block's content stays while the index has it, and where it is gone the copy ends.
//! Coming in, an image is checked as a whole before the first byte is written; then it gets blocks that nobody holds
//! and no prefix uses, and a block enters the index only when it is whole. So whatever an image is, a running
//! sequence and a cached prefix never see it.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::super::backend::Backend;
use super::super::contract::{KvImage, KvRefused};
use super::super::kv::{BLOCK_TOKENS, BlockId, BlockKey, BlockPool};
use super::super::scheduler::Scheduler;
use crate::clock::Clock;

/// Orders that wait for the engine's thread: two of each request that can be in flight, and some more.
pub(super) const KV_ORDERS_WAITING_MAX: usize = 1024;
/// Orders that it works on.
const KV_ORDERS_MAX: usize = 16;
/// Bytes taken in between two steps, one block at least: about a millisecond.
const RESTORED_PER_STEP: usize = 4 << 20;
/// Bytes copied out between two steps. Nobody waits for them.
const SAVED_PER_STEP: usize = 1 << 20;

/// What is asked of the engine's thread.
pub(super) enum KvOrder {
    /// How many tokens are cached?
    Cached { tokens: Arc<[u32]>, salt: u64, reply: oneshot::Sender<usize> },
    /// Evict them after all others, for so long.
    Keep { tokens: Arc<[u32]>, salt: u64, ttl_ms: u64 },
    /// Copy blocks out.
    Save { tokens: Arc<[u32]>, salt: u64, reply: oneshot::Sender<KvImage> },
    /// Take blocks in.
    Restore { image: KvImage, reply: oneshot::Sender<Result<usize, KvRefused>> },
}

/// The orders that are being worked on.
pub(super) struct KvWork {
    fingerprint: String,
    orders: mpsc::Receiver<KvOrder>,
    /// Taken out of the channel while the thread waited.
    taken: Option<KvOrder>,
    saves: VecDeque<Save>,
    /// Before any save: somebody waits for them.
    restores: VecDeque<Restore>,
    clock: Clock,
}

impl KvWork {
    pub(super) fn new(fingerprint: String, orders: mpsc::Receiver<KvOrder>, clock: Clock) -> Self {
        Self { fingerprint, orders, taken: None, saves: VecDeque::new(), restores: VecDeque::new(), clock }
    }

    /// Whether there is nothing to do until the next order.
    pub(super) fn is_idle(&self) -> bool {
        self.taken.is_none() && self.saves.is_empty() && self.restores.is_empty()
    }

    /// Waits for an order; for ever when there will be none any more.
    pub(super) async fn ordered(&mut self) {
        match self.orders.recv().await {
            Some(order) => self.taken = Some(order),
            None => std::future::pending().await,
        }
    }

    /// Takes orders in and copies a part. False when there was nothing to do.
    pub(super) fn advance(&mut self, scheduler: &mut Scheduler, backend: &mut impl Backend) -> bool {
        let mut worked = false;
        scheduler.pool_mut().expire_pins(self.clock.unix_ms());
        while self.saves.len() + self.restores.len() < KV_ORDERS_MAX {
            let Some(order) = self.taken.take().or_else(|| self.orders.try_recv().ok()) else { break };
            self.begin(order, scheduler, backend);
            worked = true;
        }
        let blocks_in = |bytes: usize| (bytes / backend.block_bytes().max(1)).max(1);
        let (restored, saved) = (blocks_in(RESTORED_PER_STEP), blocks_in(SAVED_PER_STEP));
        if let Some(mut restore) = self.restores.pop_front() {
            match restore.advance(scheduler.pool_mut(), backend, restored) {
                Progress::Open => self.restores.push_front(restore),
                Progress::Done => restore.finish(scheduler.pool_mut()),
            }
        } else if let Some(mut save) = self.saves.pop_front() {
            match save.advance(scheduler.pool_mut(), backend, saved) {
                Progress::Open => self.saves.push_front(save),
                Progress::Done => save.finish(&self.fingerprint),
            }
        } else {
            return worked;
        }
        true
    }

    fn begin(&mut self, order: KvOrder, scheduler: &mut Scheduler, backend: &impl Backend) {
        match order {
            KvOrder::Cached { tokens, salt, reply } => {
                let (blocks, _) = scheduler.pool_mut().probe(salt, &tokens);
                let _ = reply.send(blocks * BLOCK_TOKENS);
            }
            KvOrder::Keep { tokens, salt, ttl_ms } => {
                scheduler.pool_mut().pin(salt, &tokens, self.clock.unix_ms().saturating_add(ttl_ms));
            }
            KvOrder::Save { tokens, salt, reply } => {
                self.saves.push_back(Save { tokens, salt, parent: None, blocks: Vec::new(), reply });
            }
            KvOrder::Restore { image, reply } => {
                match check(&image, &self.fingerprint, scheduler.context_length(), backend) {
                    Ok(()) => self.restores.push_back(Restore::begin(image, reply, scheduler.pool_mut())),
                    Err(refused) => drop(reply.send(Err(refused))),
                }
            }
        }
    }
}

/// Everything that must hold of an image before its first byte is written.
fn check(image: &KvImage, fingerprint: &str, context_length: usize, backend: &impl Backend) -> Result<(), KvRefused> {
    if image.fingerprint != fingerprint {
        let (found, expected) = (image.fingerprint.clone(), fingerprint.to_owned());
        return Err(KvRefused::Fingerprint { found, expected });
    }
    let refused = |why| Err(KvRefused::Shape(why));
    if image.blocks.len().checked_mul(BLOCK_TOKENS) != Some(image.tokens.len()) {
        return refused("its blocks do not hold its tokens");
    }
    if image.tokens.len() > context_length {
        return refused("it has more tokens than the context");
    }
    if image.tokens.iter().any(|token| *token as usize >= backend.vocabulary()) {
        return refused("it has a token that the model does not have");
    }
    if image.blocks.iter().any(|block| block.len() != backend.block_bytes()) {
        return refused("a block has the wrong size");
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Open,
    Done,
}

/// Blocks that are being copied out.
struct Save {
    tokens: Arc<[u32]>,
    salt: u64,
    parent: Option<BlockKey>,
    blocks: Vec<Vec<u8>>,
    reply: oneshot::Sender<KvImage>,
}

impl Save {
    fn advance(&mut self, pool: &BlockPool, backend: &impl Backend, blocks: usize) -> Progress {
        if self.reply.is_closed() {
            return Progress::Done;
        }
        let end = (self.blocks.len() + blocks).min(self.tokens.len() / BLOCK_TOKENS);
        while self.blocks.len() < end {
            let start = self.blocks.len() * BLOCK_TOKENS;
            let tokens = &self.tokens[start..start + BLOCK_TOKENS];
            let Some((id, key)) = pool.find(self.salt, self.parent, tokens) else { return Progress::Done };
            self.blocks.push(backend.read_block(id));
            self.parent = Some(key);
        }
        if end == self.tokens.len() / BLOCK_TOKENS { Progress::Done } else { Progress::Open }
    }

    fn finish(self, fingerprint: &str) {
        if self.blocks.is_empty() {
            return;
        }
        let tokens = self.tokens[..self.blocks.len() * BLOCK_TOKENS].into();
        let Self { salt, blocks, .. } = self;
        let _ = self.reply.send(KvImage { fingerprint: fingerprint.to_owned(), salt, tokens, blocks });
    }
}

/// A checked image that is being taken in.
struct Restore {
    image: KvImage,
    /// Its blocks so far: those that the cache had, then those that were written.
    held: Vec<BlockId>,
    parent: Option<BlockKey>,
    reply: oneshot::Sender<Result<usize, KvRefused>>,
}

impl Restore {
    /// Holds what the cache has of it already, so that the rest does not push it out.
    fn begin(image: KvImage, reply: oneshot::Sender<Result<usize, KvRefused>>, pool: &mut BlockPool) -> Self {
        let adopted = pool.adopt_blocks(image.salt, &image.tokens);
        let parent = adopted.last().map(|(_, key)| *key);
        Self { image, held: adopted.into_iter().map(|(id, _)| id).collect(), parent, reply }
    }

    fn advance(&mut self, pool: &mut BlockPool, backend: &mut impl Backend, blocks: usize) -> Progress {
        if self.reply.is_closed() {
            return Progress::Done;
        }
        let end = (self.held.len() + blocks).min(self.image.blocks.len());
        while self.held.len() < end {
            let number = self.held.len();
            // Without a block that can be had, what was taken in so far is of use all the same.
            let Some(id) = pool.allocate() else { return Progress::Done };
            backend.write_block(id, &self.image.blocks[number]);
            let tokens = &self.image.tokens[number * BLOCK_TOKENS..(number + 1) * BLOCK_TOKENS];
            let Some(key) = pool.publish(id, self.image.salt, self.parent, tokens) else {
                pool.release([id].into_iter());
                return Progress::Done;
            };
            self.parent = Some(key);
            self.held.push(id);
        }
        if end == self.image.blocks.len() { Progress::Done } else { Progress::Open }
    }

    fn finish(self, pool: &mut BlockPool) {
        let count = self.held.len() * BLOCK_TOKENS;
        pool.release(self.held.into_iter());
        let _ = self.reply.send(Ok(count));
    }
}

#[cfg(test)]
mod tests;
