//! How much memory the largest step of a model computes in, besides weights and KV. An estimate from above: a buffer
//! that grows has at most that size, some are never that full at once.

use midstream_kernels::{AttentionScratch, Scratch};

use super::super::super::model::{Description, FeedForward, Sizes};

/// What a step has at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepSize {
    /// Tokens.
    pub(crate) rows: usize,
    /// Tokens with logits.
    pub(crate) sampled: usize,
    /// Positions that a token sees.
    pub(crate) context: usize,
}

impl StepSize {
    /// Bytes of the buffers of such a step.
    pub(crate) fn scratch_bytes(self, description: &Description) -> usize {
        let Self { rows, sampled, context } = self;
        let Sizes { embedding, heads, kv_heads, head_dim, vocabulary, .. } = description.sizes;
        let gates = if description.has_convolutions() { 3 * embedding } else { 0 };
        let inner = description.layers.iter().map(|layer| layer.feed_forward.inner_max()).max().unwrap_or(0);
        // Experts gather their rows, and what they make of them.
        let experts = description.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForward::Experts(_)));
        let gathered = if experts { 2 * embedding } else { 0 };
        let angles = description.ropes.len() * head_dim;
        let widths = [3 * embedding, 2 * heads * head_dim, 2 * kv_heads * head_dim, gates, 2 * inner, gathered, angles];
        let floats = rows.saturating_mul(widths.iter().sum()).saturating_add(sampled.saturating_mul(vocabulary));
        let cols = description.matrices().map(|matrix| matrix.cols).max().unwrap_or(0);
        let products = Scratch::bytes(rows, cols);
        let attention = AttentionScratch::bytes(rows, heads, head_dim, context);
        floats.saturating_mul(size_of::<f32>()).saturating_add(products).saturating_add(attention)
    }
}
