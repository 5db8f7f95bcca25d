//! Backends: whatever runs the tokens of a step through the model.

pub(crate) mod cpu;

use super::kv::BlockId;
use super::scheduler::Chunk;

/// Runs steps. Owns the weights and the bytes of the KV blocks.
pub(crate) trait Backend: Send + 'static {
    /// Runs all tokens of all chunks, writes their keys and values into the chunks' blocks, and returns the logits
    /// behind the last tokens of each chunk, as many as it samples, one row of the vocabulary's size after the other.
    ///
    /// A sequence's results have the same bits whatever else is in the step, and however its tokens were cut into
    /// chunks.
    fn forward(&mut self, chunks: &[Chunk]) -> Result<&[f32], StepError>;

    /// Logits of one row.
    fn vocabulary(&self) -> usize;

    /// Bytes of one KV block, keys and values of all layers.
    fn block_bytes(&self) -> usize;

    /// A copy of a block's keys and values.
    fn read_block(&self, block: BlockId) -> Vec<u8>;

    /// Puts back what [`Self::read_block`] gave: as many bytes as [`Self::block_bytes`].
    fn write_block(&mut self, block: BlockId, bytes: &[u8]);
}

/// A step could not be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StepError {
    /// A token that the model does not have.
    #[error("the token {0} is not in the model's vocabulary")]
    UnknownToken(u32),
    /// The planner and the backend do not agree about the blocks.
    #[error("position {position} of a sequence has no KV block")]
    NoBlock {
        /// The position.
        position: usize,
    },
}
