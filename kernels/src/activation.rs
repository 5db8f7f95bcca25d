//! Activations as the integer kernels take them: int8 in blocks of 32 with a scale and sums, made once per row.
//! A row's blocks must never depend on other rows.

use crate::isa::for_each_isa;
use crate::math::ROUNDING;
use crate::simd::Simd;

/// Values in one block.
pub(crate) const BLOCK: usize = 32;

/// 32 activations: `values[i] * scale` approximates the i-th.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ActivationBlock {
    /// In -127..=127, so that neither a product with a weight nor a negation overflows in the kernels.
    pub(crate) values: [i8; BLOCK],
    pub(crate) scale: f32,
    /// `scale` times the sum of all values: what a weight's minimum is multiplied with.
    pub(crate) scaled_sum: f32,
    /// The sums of the two halves: what takes a weight's zero point out again.
    pub(crate) half_sums: [i32; 2],
}

impl ActivationBlock {
    /// `scale` times the sum of one half: what a minimum of 16 columns is multiplied with.
    #[inline(always)]
    pub(crate) fn scaled_half_sum(&self, half: usize) -> f32 {
        self.scale * self.half_sums[half] as f32
    }

    /// Four neighbouring values as one register element, as the dot product instructions take them.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    pub(crate) fn quad(&self, group: usize) -> i32 {
        let [a, b, c, d] = self.values.as_chunks::<4>().0[group];
        i32::from_le_bytes([a.cast_unsigned(), b.cast_unsigned(), c.cast_unsigned(), d.cast_unsigned()])
    }
}

for_each_isa! {
    /// Quantises one row. Panics when `row` is not 32 values for every block.
    pub(crate) fn quantise_row(row: &[f32], blocks: &mut [ActivationBlock]) = quantise_body;
}

#[inline(always)]
fn quantise_body<S: Simd>(row: &[f32], blocks: &mut [ActivationBlock]) {
    let (chunks, rest) = row.as_chunks::<BLOCK>();
    assert!(rest.is_empty() && chunks.len() == blocks.len(), "a block for every 32 activations");
    for (values, block) in chunks.iter().zip(blocks) {
        quantise_block(values, block);
    }
}

#[inline(always)]
fn quantise_block(values: &[f32; BLOCK], block: &mut ActivationBlock) {
    // As integers, magnitudes order like the floats they are, and a NaN is greater than everything: it is kept.
    let mut largest = [0_u32; 16];
    for half in values.as_chunks::<16>().0 {
        for (largest, value) in largest.iter_mut().zip(half) {
            *largest = (*largest).max(value.to_bits() & 0x7fff_ffff);
        }
    }
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            largest[i] = largest[i].max(largest[i + width]);
        }
        width /= 2;
    }
    let largest = f32::from_bits(largest[0]);
    let scale = if largest.is_finite() { largest / 127.0 } else { f32::NAN };
    // Below that the reciprocal overflows; such a block is zero for all purposes.
    let inverse = if scale > 1e-37 { 1.0 / scale } else { 0.0 };
    let mut quants = [0_i32; BLOCK];
    for (quant, value) in quants.iter_mut().zip(values) {
        // Leaves the nearest integer (ties to even) in the low bits.
        let shifted = value * inverse + ROUNDING;
        *quant = (shifted.to_bits() as i32).wrapping_sub(ROUNDING.to_bits() as i32).clamp(-127, 127);
    }
    for (byte, quant) in block.values.iter_mut().zip(&quants) {
        *byte = *quant as i8;
    }
    let (first, second) = quants.split_at(BLOCK / 2);
    let sums = [first.iter().sum::<i32>(), second.iter().sum::<i32>()];
    block.scale = scale;
    block.half_sums = sums;
    block.scaled_sum = scale * (sums[0] + sums[1]) as f32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn quantised(isa: Isa, row: &[f32]) -> Vec<ActivationBlock> {
        let mut blocks = vec![ActivationBlock::default(); row.len() / BLOCK];
        quantise_row(isa, row, &mut blocks);
        blocks
    }

    #[test]
    fn values_come_back_within_half_a_step_and_the_same_on_every_isa() {
        let row: Vec<f32> = (0..320_u32).map(|i| (i as f32 * 0.7).sin() * (i as f32 - 100.0)).collect();
        let reference = quantised(Isa::SCALAR, &row);
        for isa in Isa::available() {
            for (i, block) in quantised(isa, &row).iter().enumerate() {
                assert_eq!(block.values, reference[i].values);
                assert_eq!(block.scale.to_bits(), reference[i].scale.to_bits());
                for (j, quant) in block.values.iter().enumerate() {
                    let error = (f32::from(*quant) * block.scale - row[i * BLOCK + j]).abs();
                    assert!(error <= 0.5001 * block.scale);
                }
                let sum: i32 = block.values.iter().map(|quant| i32::from(*quant)).sum();
                assert_eq!(block.half_sums[0] + block.half_sums[1], sum);
            }
        }
    }

    #[test]
    fn zeros_stay_zero_and_a_nan_or_infinity_becomes_nan() {
        for isa in Isa::available() {
            assert_eq!(quantised(isa, &[0.0; 32])[0].values, [0; 32]);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut row = [1.0; 32];
                row[5] = bad;
                assert!(quantised(isa, &row)[0].scale.is_nan());
            }
        }
    }
}
