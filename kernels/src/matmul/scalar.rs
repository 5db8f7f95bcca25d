//! The reference for every quantised product, in plain Rust.
//! It must never be changed alone: the other instruction sets promise its bits.

use super::{Packed, PanelOut, for_row_tiles, row_blocks};
use crate::activation::ActivationBlock;
use crate::layout::{PANEL, SUB};
use crate::pack::{Factors, factors, lane_quants};

/// Multiplies one panel with all activation rows.
pub(super) fn panel<P: Packed>(panel: &[u8], activations: &[ActivationBlock], blocks: usize, out: &PanelOut<'_>) {
    let rows = activations.len() / blocks;
    for_row_tiles!(rows, |at, COUNT| {
        let sums = tile::<P, COUNT>(panel, row_blocks(activations, at, blocks));
        for (r, sums) in sums.iter().enumerate() {
            out.put(at + r, 0, sums);
        }
    }, 8 4 2 1);
}

fn tile<P: Packed, const R: usize>(panel: &[u8], rows: [&[ActivationBlock]; R]) -> [[f32; PANEL]; R] {
    let layout = P::LAYOUT;
    let mut sums = [[0.0; PANEL]; R];
    for (index, block) in panel.chunks_exact(layout.block_bytes()).enumerate() {
        let (header, subs) = block.split_at(layout.header_bytes);
        for (sub, packed) in subs.chunks_exact(layout.sub_bytes).enumerate() {
            let quants = std::array::from_fn(|lane| lane_quants(&layout, packed, lane));
            let factors = factors(layout.scales, header, &packed[layout.low_bytes + layout.high_bytes..]);
            for (sums, row) in sums.iter_mut().zip(rows) {
                add_block::<P>(sums, &quants, &factors, &row[index * layout.subs + sub]);
            }
        }
    }
    sums
}

/// Adds one sub-block to sixteen outputs: the order every instruction set follows.
fn add_block<P: Packed>(
    sums: &mut [f32; PANEL],
    quants: &[[u8; SUB]; PANEL],
    factors: &Factors,
    activation: &ActivationBlock,
) {
    for (lane, sum) in sums.iter_mut().enumerate() {
        // Integers are exact, whatever order they are added in.
        let halves: [i32; 2] = std::array::from_fn(|half| {
            let mut products = 0;
            for i in 16 * half..16 * half + 16 {
                products += i32::from(quants[lane][i]) * i32::from(activation.values[i]);
            }
            products - P::LAYOUT.zero_point * activation.half_sums[half]
        });
        if P::LAYOUT.scales.differ_by_half() {
            for (half, product) in halves.into_iter().enumerate() {
                *sum = (product as f32).mul_add(factors.scales[half][lane] * activation.scale, *sum);
            }
        } else {
            let product = halves[0] + halves[1];
            *sum = (product as f32).mul_add(factors.scales[0][lane] * activation.scale, *sum);
        }
        if P::LAYOUT.scales.have_min() {
            if P::LAYOUT.scales.differ_by_half() {
                for half in 0..2 {
                    *sum = factors.mins[half][lane].mul_add(activation.scaled_half_sum(half), *sum);
                }
            } else {
                *sum = factors.mins[0][lane].mul_add(activation.scaled_sum, *sum);
            }
        }
    }
}
