//! Quantised products with NEON's dot product instruction. One register holds four outputs, so a panel is walked once
//! for each quarter. It must give the bits of `scalar.rs`: the same integers, and the same fused operations in the same
//! order.
//!
//! `sdot` multiplies signed bytes. Weights of up to seven bits are that as they are; those that need all eight bits are
//! made signed, which takes their zero point out.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, uint8x16_t, uint32x4_t, vaddq_s32, vandq_u8, vandq_u32, vcreate_u8,
    vcvtq_f32_s32, vcvtq_f32_u32, vdupq_n_f32, vdupq_n_s8, vdupq_n_s32, vdupq_n_u8, vdupq_n_u32, veorq_u8, vfmaq_f32,
    vget_low_u16, vld1_u16, vld1q_u8, vmaxq_s32, vmovl_u8, vmovl_u16, vmulq_f32, vnegq_f32, vorrq_u8, vqtbl1q_u8,
    vreinterpretq_f32_s32, vreinterpretq_s8_s32, vreinterpretq_s8_u8, vreinterpretq_s32_u32, vshlq_n_s32, vshlq_u8,
    vshrq_n_s32, vshrq_n_u8, vshrq_n_u32, vst1q_f32, vsubq_s32,
};
use std::arch::asm;

use super::{Packed, PanelOut, for_row_tiles, row_blocks};
use crate::activation::ActivationBlock;
use crate::layout::Scales;
use crate::simd::widen_4;

/// Multiplies one panel with all activation rows.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn panel<P: Packed>(panel: &[u8], activations: &[ActivationBlock], blocks: usize, out: &PanelOut<'_>) {
    let rows = activations.len() / blocks;
    for_row_tiles!(rows, |at, COUNT| {
        for first in [0, 4, 8, 12] {
            let sums = tile::<P, COUNT>(panel, first, row_blocks(activations, at, blocks));
            for (r, sum) in sums.into_iter().enumerate() {
                let mut lanes = [0.0; 4];
                // SAFETY: the array has four elements.
                unsafe { vst1q_f32(lanes.as_mut_ptr(), sum) };
                out.put(at + r, first, &lanes);
            }
        }
    }, 8 4 2 1);
}

/// The sums of rows `first..first + 4` of the panel.
#[target_feature(enable = "neon,dotprod")]
fn tile<P: Packed, const R: usize>(panel: &[u8], first: usize, mut rows: [&[ActivationBlock]; R]) -> [float32x4_t; R] {
    let layout = const { P::LAYOUT };
    let blocks = panel.len() / layout.block_bytes() * layout.subs;
    // Lets the compiler drop the bounds checks below.
    for row in &mut rows {
        *row = &row[..blocks];
    }
    let mut sums = [vdupq_n_f32(0.0); R];
    for (index, block) in panel.chunks_exact(layout.block_bytes()).enumerate() {
        let (header, subs) = block.split_at(layout.header_bytes);
        for (sub, packed) in subs.chunks_exact(layout.sub_bytes).enumerate() {
            let weights = weights::<P>(packed, first);
            let factors = factors::<P>(header, &packed[layout.low_bytes + layout.high_bytes..], first);
            for r in 0..R {
                sums[r] = add_block::<P>(sums[r], &weights, &factors, &rows[r][index * layout.subs + sub]);
            }
        }
    }
    sums
}

/// For the first and the last 16 columns.
struct Factors {
    scales: [float32x4_t; 2],
    mins: [float32x4_t; 2],
}

/// The values of four rows of a sub-block: element `g` holds columns `4 * g..4 * g + 4` of each row.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn weights<P: Packed>(packed: &[u8], first: usize) -> [int8x16_t; 8] {
    let layout = const { P::LAYOUT };
    let sign = vdupq_n_u8(if layout.is_wide() { 0x80 } else { 0 });
    let mut found = [vdupq_n_u8(0); 8];
    match layout.low_bits {
        8 => {
            for (g, found) in found.iter_mut().enumerate() {
                *found = veorq_u8(run(packed, g, first), sign);
            }
        }
        4 => {
            for g in 0..4 {
                let both = run(packed, g, first);
                found[2 * g] = vandq_u8(both, vdupq_n_u8(15));
                found[2 * g + 1] = vshrq_n_u8::<4>(both);
            }
        }
        _ => {
            for g in 0..8 {
                found[g] = moved(run(packed, g / 4, first), -2 * (g as i8 % 4), 3);
            }
        }
    }
    let (high, place) = (layout.low_bytes / 64, layout.low_bits as i8);
    match layout.high_bits {
        1 => {
            let bits = run(packed, high, first);
            for g in 0..8 {
                found[g] = vorrq_u8(found[g], moved(bits, place - g as i8, 1 << place));
            }
        }
        2 => {
            for g in 0..8 {
                let pairs = run(packed, high + g / 4, first);
                found[g] = vorrq_u8(found[g], moved(pairs, place - 2 * (g as i8 % 4), 3 << place));
            }
        }
        _ => {}
    }
    if let Some(table) = layout.table {
        let table = veorq_u8(load(&table), sign);
        for found in &mut found {
            *found = vqtbl1q_u8(table, *found);
        }
    }
    let mut signed = [vdupq_n_s8(0); 8];
    for g in 0..8 {
        signed[g] = vreinterpretq_s8_u8(found[g]);
    }
    signed
}

/// Four columns of four rows.
#[inline]
#[target_feature(enable = "neon")]
fn run(packed: &[u8], run: usize, first: usize) -> uint8x16_t {
    let at = 64 * run + 4 * first;
    load(&packed[at..at + 16])
}

/// Every byte shifted to the left by `by`, or to the right where that is negative, as far as `mask` keeps it.
#[inline]
#[target_feature(enable = "neon")]
fn moved(bytes: uint8x16_t, by: i8, mask: u8) -> uint8x16_t {
    vandq_u8(vshlq_u8(bytes, vdupq_n_s8(by)), vdupq_n_u8(mask))
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn factors<P: Packed>(header: &[u8], bytes: &[u8], first: usize) -> Factors {
    let zero = vdupq_n_f32(0.0);
    match const { P::LAYOUT }.scales {
        Scales::Half => Factors { scales: [halves(bytes, 0, first); 2], mins: [zero; 2] },
        Scales::HalfMin => Factors { scales: [halves(bytes, 0, first); 2], mins: [halves(bytes, 32, first); 2] },
        Scales::Exponent => Factors { scales: [powers_of_two(unsigned(bytes, 0, first)); 2], mins: [zero; 2] },
        Scales::Byte => Factors { scales: [signed_scale(header, bytes, 0, first); 2], mins: [zero; 2] },
        Scales::ByteHalves => Factors {
            scales: [signed_scale(header, bytes, 0, first), signed_scale(header, bytes, 16, first)],
            mins: [zero; 2],
        },
        Scales::ByteMin => Factors {
            scales: [scale(header, unsigned(bytes, 0, first), first); 2],
            mins: [min(header, unsigned(bytes, 16, first), first); 2],
        },
        Scales::NibbleMinHalves => {
            let both = [unsigned(bytes, 0, first), unsigned(bytes, 16, first)];
            Factors {
                scales: [scale(header, low_nibbles(both[0]), first), scale(header, low_nibbles(both[1]), first)],
                mins: [min(header, vshrq_n_u32::<4>(both[0]), first), min(header, vshrq_n_u32::<4>(both[1]), first)],
            }
        }
    }
}

/// Four of the f16 from byte `at` on.
#[inline]
#[target_feature(enable = "neon")]
fn halves(bytes: &[u8], at: usize, first: usize) -> float32x4_t {
    let bytes = &bytes[at + 2 * first..at + 2 * first + 8];
    // SAFETY: 8 bytes; the load needs no alignment.
    widen_4(unsafe { vld1_u16(bytes.as_ptr().cast()) })
}

/// Four of the bytes from `at` on.
#[inline]
#[target_feature(enable = "neon")]
fn unsigned(bytes: &[u8], at: usize, first: usize) -> uint32x4_t {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at + first..at + first + 4]);
    vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(u32::from_le_bytes(four).into()))))
}

#[inline]
#[target_feature(enable = "neon")]
fn low_nibbles(values: uint32x4_t) -> uint32x4_t {
    vandq_u32(values, vdupq_n_u32(15))
}

/// The header's scale times signed factors.
#[inline]
#[target_feature(enable = "neon")]
fn signed_scale(header: &[u8], bytes: &[u8], at: usize, first: usize) -> float32x4_t {
    let shifted = vshlq_n_s32::<24>(vreinterpretq_s32_u32(unsigned(bytes, at, first)));
    let factor = vshrq_n_s32::<24>(shifted);
    vmulq_f32(halves(header, 0, first), vcvtq_f32_s32(factor))
}

/// The header's scale times factors.
#[inline]
#[target_feature(enable = "neon")]
fn scale(header: &[u8], factor: uint32x4_t, first: usize) -> float32x4_t {
    vmulq_f32(halves(header, 0, first), vcvtq_f32_u32(factor))
}

/// The header's minimum times factors, to be subtracted.
#[inline]
#[target_feature(enable = "neon")]
fn min(header: &[u8], factor: uint32x4_t, first: usize) -> float32x4_t {
    vnegq_f32(vmulq_f32(halves(header, 32, first), vcvtq_f32_u32(factor)))
}

/// [`crate::half::exponent_to_f32`].
#[inline]
#[target_feature(enable = "neon")]
fn powers_of_two(exponents: uint32x4_t) -> float32x4_t {
    let (exponents, one) = (vreinterpretq_s32_u32(exponents), vdupq_n_s32(1));
    let normal = vshlq_n_s32::<23>(vsubq_s32(exponents, one));
    let subnormal = vshlq_n_s32::<21>(vaddq_s32(exponents, one));
    vreinterpretq_f32_s32(vmaxq_s32(normal, subnormal))
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn add_block<P: Packed>(
    sum: float32x4_t,
    weights: &[int8x16_t; 8],
    factors: &Factors,
    row: &ActivationBlock,
) -> float32x4_t {
    let layout = const { P::LAYOUT };
    let scale = vdupq_n_f32(row.scale);
    let mut sum = sum;
    if layout.scales.differ_by_half() {
        for half in 0..2 {
            let product = dot::<P>(weights, row, 4 * half, 4, row.half_sums[half]);
            sum = vfmaq_f32(sum, vcvtq_f32_s32(product), vmulq_f32(factors.scales[half], scale));
        }
    } else {
        let product = dot::<P>(weights, row, 0, 8, row.half_sums[0] + row.half_sums[1]);
        sum = vfmaq_f32(sum, vcvtq_f32_s32(product), vmulq_f32(factors.scales[0], scale));
    }
    if layout.scales.have_min() {
        if layout.scales.differ_by_half() {
            for half in 0..2 {
                sum = vfmaq_f32(sum, factors.mins[half], vdupq_n_f32(row.scaled_half_sum(half)));
            }
        } else {
            sum = vfmaq_f32(sum, factors.mins[0], vdupq_n_f32(row.scaled_sum));
        }
    }
    sum
}

/// The exact integer products of groups `first..first + count`, whose activations add up to `activations`, without the
/// zero point. Wide values are signed here and have none.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<P: Packed>(
    weights: &[int8x16_t; 8],
    row: &ActivationBlock,
    first: usize,
    count: usize,
    activations: i32,
) -> int32x4_t {
    let layout = const { P::LAYOUT };
    let mut total = vdupq_n_s32(if layout.is_wide() { 0 } else { -layout.zero_point * activations });
    for g in first..first + count {
        total = add_dots(total, weights[g], vreinterpretq_s8_s32(vdupq_n_s32(row.quad(g))));
    }
    total
}

/// Adds the sums of four neighbouring products each.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) fn add_dots(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: one instruction, which the processor has; it reads three registers and writes one of them.
    unsafe {
        asm!("sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b", sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8]) -> uint8x16_t {
    assert_eq!(bytes.len(), 16, "one register");
    // SAFETY: 16 bytes, as just checked; the load needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}
