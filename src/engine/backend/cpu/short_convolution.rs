//! Short convolutions: each channel's weighted sum over the last few positions, gated before and behind.
//!
//! What a position needs of those before it lies in the KV blocks, beside keys and values: it is shared, copied out and
//! brought back with them. A block keeps the last inputs only, so positions must be computed in order, each once.

use midstream_kernels::{add_products_in_place, matmul, mul_in_place};

use super::super::super::kv::BLOCK_TOKENS;
use super::Mixing;
use super::weights::ShortConvolution;

impl Mixing<'_> {
    /// The convolution of one layer, from the normed stream to the branch.
    pub(super) fn convolve(&mut self, layer: &ShortConvolution) {
        let Self { team, isa, sizes, pages, buffers, rows, place, .. } = self;
        let (isa, width, count) = (*isa, sizes.embedding, rows.len());
        buffers.gates.resize(count * 3 * width, 0.0);
        matmul(team, &layer.input.weight, &buffers.normed, count, &mut buffers.gates, &mut buffers.products);
        layer.input.add_bias(team, isa, &mut buffers.gates);
        let parts = buffers.gates.chunks_exact_mut(3 * width).zip(buffers.normed.chunks_exact_mut(width));
        for (row, (gates, sum)) in rows.iter().zip(parts) {
            let (opening, rest) = gates.split_at_mut(width);
            let (closing, input) = rest.split_at_mut(width);
            mul_in_place(isa, input, opening);
            sum.fill(0.0);
            for (weights, back) in layer.earlier.iter().zip((1..=layer.earlier.len()).rev()) {
                // In front of the first position there are zeros.
                let Some(position) = row.position.checked_sub(back) else { continue };
                let block = row.blocks[position / BLOCK_TOKENS] as usize;
                add_products_in_place(isa, sum, weights, pages.input(*place, (block, position % BLOCK_TOKENS)));
            }
            add_products_in_place(isa, sum, &layer.current, input);
            mul_in_place(isa, sum, closing);
            pages.write_input(*place, row.at(), input);
        }
        matmul(team, &layer.output.weight, &buffers.normed, count, &mut buffers.branch, &mut buffers.products);
        layer.output.add_bias(team, isa, &mut buffers.branch);
    }
}
