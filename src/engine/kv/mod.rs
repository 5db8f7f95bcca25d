//! The KV cache's bookkeeping: which block belongs to whom, and which prefix lies in which block.
//!
//! Pure: the bytes themselves belong to the backend, which knows a block only by its number. Nothing here runs
//! a model, reads a clock or knows about requests.

mod key;
mod pins;
mod pool;

use key::{KeyParts, block_key};

pub(crate) use key::BlockKey;
pub(crate) use pool::{BlockId, BlockPool, PoolConfig};

/// Tokens per block. Small enough that a steered answer recomputes at most fifteen tokens, large enough that
/// hashing and block tables cost nothing next to a forward pass.
pub(crate) const BLOCK_TOKENS: usize = 16;

/// Blocks that hold `tokens` tokens.
pub(crate) fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS)
}
