//! What the KV blocks hold: keys and values as the attention kernel takes them, and the last inputs of short
//! convolutions as f32.

use midstream_kernels::{Isa, KV_BLOCK, KvFormat, KvLayer};

use super::super::super::kv::BLOCK_TOKENS;
use super::super::super::model::{Description, Mixer};

const _: () = assert!(BLOCK_TOKENS == KV_BLOCK, "planner and kernel have blocks of one size");

/// What one block holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageShape {
    format: KvFormat,
    /// Layers with attention.
    attentions: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Layers with a short convolution.
    convolutions: usize,
    /// Inputs that a convolution needs besides the current one.
    inputs: usize,
    width: usize,
}

impl PageShape {
    /// The shape for a model.
    pub(super) fn of(description: &Description, format: KvFormat) -> Self {
        let sizes = &description.sizes;
        let (kv_heads, head_dim, width) = (sizes.kv_heads, sizes.head_dim, sizes.embedding);
        let mut shape = Self { format, kv_heads, head_dim, width, ..Self::default() };
        for layer in &description.layers {
            match &layer.mixer {
                Mixer::Attention(_) => shape.attentions += 1,
                Mixer::ShortConvolution(convolution) => {
                    shape.convolutions += 1;
                    shape.inputs = shape.inputs.max(convolution.kernel.cols - 1);
                }
            }
        }
        shape
    }

    /// Inputs of one layer.
    fn input_values(self) -> usize {
        self.inputs * self.width
    }

    /// Bytes of one block.
    pub(super) fn block_bytes(self) -> usize {
        self.attentions * self.format.block_bytes(self.kv_heads, self.head_dim)
            + self.convolutions * self.input_values() * size_of::<f32>()
    }
}

/// The pages of all layers. Inputs of a layer are `[blocks][inputs][width]`: a position's input replaces the one that
/// no later position needs.
pub(super) struct Pages {
    shape: PageShape,
    blocks: usize,
    attentions: Vec<KvLayer>,
    inputs: Vec<Vec<f32>>,
}

impl Pages {
    /// Zeroed pages; the system gives them memory when they are first written.
    pub(super) fn new(shape: PageShape, blocks: usize) -> Self {
        let attention = || KvLayer::new(shape.format, blocks, shape.kv_heads, shape.head_dim);
        let attentions = std::iter::repeat_with(attention).take(shape.attentions).collect();
        let inputs = (0..shape.convolutions).map(|_| vec![0.0; blocks * shape.input_values()]).collect();
        Self { shape, blocks, attentions, inputs }
    }

    /// How many blocks there are.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Keys and values of one layer among those with attention.
    pub(super) fn heads(&self, layer: usize) -> &KvLayer {
        &self.attentions[layer]
    }

    /// Writes one position; `at` is its block and its place in the block.
    pub(super) fn write(&mut self, isa: Isa, layer: usize, at: (usize, usize), key: &[f32], value: &[f32]) {
        self.attentions[layer].write(isa, at, key, value);
    }

    /// The input of a recent position, of one layer among those with a convolution.
    pub(super) fn input(&self, layer: usize, at: (usize, usize)) -> &[f32] {
        &self.inputs[layer][self.input_range(at)]
    }

    /// Writes one position's input.
    pub(super) fn write_input(&mut self, layer: usize, at: (usize, usize), input: &[f32]) {
        let range = self.input_range(at);
        self.inputs[layer][range].copy_from_slice(input);
    }

    fn input_range(&self, (block, slot): (usize, usize)) -> std::ops::Range<usize> {
        let PageShape { inputs, width, .. } = self.shape;
        let start = (block * inputs + slot % inputs) * width;
        start..start + width
    }

    /// Bytes of one block.
    pub(super) fn block_bytes(&self) -> usize {
        self.shape.block_bytes()
    }

    /// One block: attention layer by layer, then the convolutions' inputs, little-endian.
    pub(super) fn read_block(&self, block: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.block_bytes());
        for layer in &self.attentions {
            layer.read_block(block, &mut bytes);
        }
        let values = self.shape.input_values();
        for part in &self.inputs {
            bytes.extend(part[block * values..(block + 1) * values].iter().flat_map(|number| number.to_le_bytes()));
        }
        bytes
    }

    /// Writes one block as [`Self::read_block`] gave it.
    pub(super) fn write_block(&mut self, block: usize, bytes: &[u8]) {
        debug_assert_eq!(bytes.len(), self.block_bytes(), "checked before anything is written");
        let inputs = self.attentions.iter_mut().fold(bytes, |bytes, layer| layer.write_block(block, bytes));
        let values = self.shape.input_values();
        let mut numbers = inputs.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        for part in &mut self.inputs {
            part[block * values..(block + 1) * values].iter_mut().zip(&mut numbers).for_each(|(to, from)| *to = from);
        }
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
        let shape = PageShape { attentions: layers, kv_heads: heads, head_dim: dim, ..PageShape::default() };
        let mut pages = Pages::new(shape, 3);
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

    #[test]
    fn a_block_keeps_the_last_inputs_of_convolutions_behind_keys_and_values() {
        let heads = PageShape { attentions: 1, kv_heads: 1, head_dim: 2, ..PageShape::default() };
        let shape = PageShape { convolutions: 2, inputs: 3, width: 2, ..heads };
        let mut pages = Pages::new(shape, 2);
        for layer in 0..2 {
            for slot in 0..BLOCK_TOKENS {
                pages.write_input(layer, (1, slot), &[slot as f32, layer as f32]);
            }
        }
        for slot in 13..BLOCK_TOKENS {
            assert_eq!(pages.input(1, (1, slot)), [slot as f32, 1.0]);
        }
        let bytes = pages.read_block(1);
        assert_eq!(bytes.len(), shape.block_bytes());
        let inputs: Vec<f32> =
            bytes[2 * 2 * 2 * BLOCK_TOKENS..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(inputs, [15.0, 0.0, 13.0, 0.0, 14.0, 0.0, 15.0, 1.0, 13.0, 1.0, 14.0, 1.0]);
        pages.write_block(0, &bytes);
        assert_eq!(pages.read_block(0), bytes);
    }
}
