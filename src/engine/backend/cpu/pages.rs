//! The bytes of the KV blocks: keys and values as f16, layer by layer.

use midstream_kernels::{Isa, f32_to_f16_slice};

use super::super::super::kv::BLOCK_TOKENS;

/// Keys and values of all layers; each layer is `[blocks][kv_heads][BLOCK_TOKENS][head_dim]`.
pub(super) struct Pages {
    keys: Vec<Vec<u16>>,
    values: Vec<Vec<u16>>,
    blocks: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Pages {
    /// Zeroed pages; the system gives them memory when they are first written.
    pub(super) fn new(layers: usize, blocks: usize, kv_heads: usize, head_dim: usize) -> Self {
        let layer = || vec![0; blocks * kv_heads * BLOCK_TOKENS * head_dim];
        Self {
            keys: (0..layers).map(|_| layer()).collect(),
            values: (0..layers).map(|_| layer()).collect(),
            blocks,
            kv_heads,
            head_dim,
        }
    }

    /// How many blocks there are.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// One layer's keys and values.
    pub(super) fn layer(&self, layer: usize) -> (&[u16], &[u16]) {
        (&self.keys[layer], &self.values[layer])
    }

    /// Writes one position; `at` is its block and its place in the block.
    pub(super) fn write(&mut self, isa: Isa, layer: usize, at: (usize, usize), key: &[f32], value: &[f32]) {
        let (block, slot) = at;
        for head in 0..self.kv_heads {
            let from = head * self.head_dim..(head + 1) * self.head_dim;
            let start = ((block * self.kv_heads + head) * BLOCK_TOKENS + slot) * self.head_dim;
            let to = start..start + self.head_dim;
            f32_to_f16_slice(isa, &key[from.clone()], &mut self.keys[layer][to.clone()]);
            f32_to_f16_slice(isa, &value[from], &mut self.values[layer][to]);
        }
    }
}
