//! The bytes of the KV blocks: keys and values as f16, layer by layer, as the attention kernel takes them.

use midstream_kernels::{Isa, KV_BLOCK, f32_to_f16, f32_to_f16_slice};

use super::super::super::kv::BLOCK_TOKENS;

const _: () = assert!(BLOCK_TOKENS == KV_BLOCK, "planner and kernel have blocks of one size");

/// Keys and values of all layers; a layer's keys are `[blocks][kv_heads][head_dim][BLOCK_TOKENS]`, its values
/// `[blocks][kv_heads][BLOCK_TOKENS][head_dim]`.
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
            let start = (block * self.kv_heads + head) * BLOCK_TOKENS * self.head_dim;
            let keys = self.keys[layer][start + slot..].iter_mut().step_by(BLOCK_TOKENS);
            for (bits, key) in keys.zip(&key[from.clone()]) {
                *bits = f32_to_f16(*key);
            }
            let start = start + slot * self.head_dim;
            f32_to_f16_slice(isa, &value[from], &mut self.values[layer][start..start + self.head_dim]);
        }
    }

    /// Bytes of one block.
    pub(super) fn block_bytes(&self) -> usize {
        2 * self.keys.len() * self.block_values() * size_of::<u16>()
    }

    /// One block, layer by layer, keys before values, little-endian.
    pub(super) fn read_block(&self, block: usize) -> Vec<u8> {
        let values = self.block_values();
        let mut bytes = vec![0; self.block_bytes()];
        let parts = self.keys.iter().zip(&self.values).flat_map(|(keys, values)| [keys, values]);
        for (part, out) in parts.zip(bytes.chunks_exact_mut(values * size_of::<u16>())) {
            let numbers = &part[block * values..(block + 1) * values];
            for (number, out) in numbers.iter().zip(out.chunks_exact_mut(size_of::<u16>())) {
                out.copy_from_slice(&number.to_le_bytes());
            }
        }
        bytes
    }

    /// Writes one block as [`Self::read_block`] gave it.
    pub(super) fn write_block(&mut self, block: usize, bytes: &[u8]) {
        debug_assert_eq!(bytes.len(), self.block_bytes(), "checked before anything is written");
        let values = self.block_values();
        let parts = self.keys.iter_mut().zip(&mut self.values).flat_map(|(keys, values)| [keys, values]);
        for (part, bytes) in parts.zip(bytes.chunks_exact(values * size_of::<u16>())) {
            let numbers = &mut part[block * values..(block + 1) * values];
            for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(size_of::<u16>())) {
                *number = u16::from_le_bytes([bytes[0], bytes[1]]);
            }
        }
    }

    /// Keys, or values, of one block in one layer.
    fn block_values(&self) -> usize {
        self.kv_heads * BLOCK_TOKENS * self.head_dim
    }
}

#[cfg(test)]
mod tests {
    use midstream_kernels::f32_to_f16;

    use super::*;

    /// KV files hold these bytes. Whoever changes their order raises `NUMERICS_VERSION`.
    #[test]
    fn a_block_is_read_layer_by_layer_keys_before_values_head_by_head_and_put_back_the_same() {
        let (layers, heads, dim) = (2, 2, 4);
        let mut pages = Pages::new(layers, 3, heads, dim);
        // Whole numbers that f16 holds exactly, in the order in which they are to be read: keys value by value, values
        // position by position.
        let number = |layer: usize, part: usize, head: usize, slot: usize, value: usize| {
            let place = if part == 0 { value * BLOCK_TOKENS + slot } else { slot * dim + value };
            (((layer * 2 + part) * heads + head) * BLOCK_TOKENS * dim + place) as f32
        };
        for layer in 0..layers {
            for slot in 0..BLOCK_TOKENS {
                let part = |part| -> Vec<f32> {
                    let place = |index: usize| number(layer, part, index / dim, slot, index % dim);
                    (0..heads * dim).map(place).collect()
                };
                pages.write(Isa::SCALAR, layer, (1, slot), &part(0), &part(1));
            }
        }
        let bytes = pages.read_block(1);
        let ascending = (0..bytes.len() / 2).flat_map(|number| f32_to_f16(number as f32).to_le_bytes());
        assert!(bytes.iter().copied().eq(ascending));
        assert!(pages.read_block(0).iter().chain(&pages.read_block(2)).all(|byte| *byte == 0));
        pages.write_block(2, &bytes);
        assert_eq!(pages.read_block(2), bytes);
        assert_eq!(pages.read_block(1), bytes);
        assert!(pages.read_block(0).iter().all(|byte| *byte == 0));
    }
}
