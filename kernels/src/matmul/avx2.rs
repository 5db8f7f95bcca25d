//! Quantised products with AVX2. One register holds eight outputs, so a panel is walked once for each half.
//! It must give the bits of `scalar.rs`: the same integers, and the same fused operations in the same order.
//!
//! `maddubs` adds two products into an i16 and saturates. With activations in -127..=127 the sums here cannot reach
//! that, as `groups_per_i16` sees to: 4-bit values allow eight steps in i16 (8 * 2 * 15 * 127 = 30,480), 5-bit values
//! four (31,496), 6-bit values two (32,004), and whole bytes one, as magnitudes up to 128 (32,512).

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_abs_epi8, _mm256_add_epi16, _mm256_add_epi32,
    _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_castsi256_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_max_epi32, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sign_epi8,
    _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_sub_epi32,
    _mm256_sub_ps, _mm256_xor_si256,
};

use super::{Packed, PanelOut, for_row_tiles, prefetch, row_blocks};
use crate::activation::ActivationBlock;
use crate::layout::{PackedLayout, Scales};

/// Multiplies one panel with all activation rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn panel<P: Packed>(panel: &[u8], activations: &[ActivationBlock], blocks: usize, out: &PanelOut<'_>) {
    let rows = activations.len() / blocks;
    for_row_tiles!(rows, |at, COUNT| {
        for first in [0, 8] {
            let sums = tile::<P, COUNT>(panel, first, row_blocks(activations, at, blocks), at == 0 && first == 0);
            for (r, sum) in sums.into_iter().enumerate() {
                let mut lanes = [0.0; 8];
                // SAFETY: the array has eight elements.
                unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
                out.put(at + r, first, &lanes);
            }
        }
    }, 4 3 2 1);
}

/// The sums of rows `first..first + 8` of the panel.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<P: Packed, const R: usize>(
    panel: &[u8],
    first: usize,
    mut rows: [&[ActivationBlock]; R],
    fetch: bool,
) -> [__m256; R] {
    let layout = const { P::LAYOUT };
    let blocks = panel.len() / layout.block_bytes() * layout.subs;
    // Lets the compiler drop the bounds checks below.
    for row in &mut rows {
        *row = &row[..blocks];
    }
    let mut sums = [_mm256_setzero_ps(); R];
    for (index, block) in panel.chunks_exact(layout.block_bytes()).enumerate() {
        let (header, subs) = block.split_at(layout.header_bytes);
        for (sub, packed) in subs.chunks_exact(layout.sub_bytes).enumerate() {
            if fetch {
                prefetch(packed);
            }
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
    scales: [__m256; 2],
    mins: [__m256; 2],
}

/// The values of eight rows of a sub-block: element `g` holds columns `4 * g..4 * g + 4` of each row. Wide ones are
/// signed, all others unsigned.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weights<P: Packed>(packed: &[u8], first: usize) -> [__m256i; 8] {
    let layout = const { P::LAYOUT };
    let run = |g: usize| load(&packed[64 * g + 4 * first..64 * g + 4 * first + 32]);
    let sign = _mm256_set1_epi8(if layout.is_wide() { -128 } else { 0 });
    let mut found = [_mm256_setzero_si256(); 8];
    match layout.low_bits {
        8 => {
            for (g, found) in found.iter_mut().enumerate() {
                *found = _mm256_xor_si256(run(g), sign);
            }
        }
        4 => {
            let nibble = _mm256_set1_epi8(15);
            for g in 0..4 {
                found[2 * g] = _mm256_and_si256(run(g), nibble);
                found[2 * g + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(run(g)), nibble);
            }
        }
        _ => {
            let pair = _mm256_set1_epi8(3);
            for g in 0..2 {
                found[4 * g] = _mm256_and_si256(run(g), pair);
                found[4 * g + 1] = _mm256_and_si256(_mm256_srli_epi16::<2>(run(g)), pair);
                found[4 * g + 2] = _mm256_and_si256(_mm256_srli_epi16::<4>(run(g)), pair);
                found[4 * g + 3] = _mm256_and_si256(_mm256_srli_epi16::<6>(run(g)), pair);
            }
        }
    }
    let high = layout.low_bytes / 64;
    match layout.high_bits {
        1 => merge_bits(&mut found, run(high), layout.low_bits),
        2 => merge_pairs(&mut found, run(high), run(high + 1)),
        _ => {}
    }
    if let Some(table) = layout.table {
        let table = _mm256_xor_si256(twice(&table), sign);
        for found in &mut found {
            *found = _mm256_shuffle_epi8(table, *found);
        }
    }
    found
}

/// Adds bit `g` of `high` to group `g`, as bit 2 or 4.
#[inline]
#[target_feature(enable = "avx2")]
fn merge_bits(low: &mut [__m256i; 8], high: __m256i, place: usize) {
    let shifted = [
        _mm256_slli_epi16::<4>(high),
        _mm256_slli_epi16::<3>(high),
        _mm256_slli_epi16::<2>(high),
        _mm256_slli_epi16::<1>(high),
        high,
        _mm256_srli_epi16::<1>(high),
        _mm256_srli_epi16::<2>(high),
        _mm256_srli_epi16::<3>(high),
        _mm256_srli_epi16::<4>(high),
        _mm256_srli_epi16::<5>(high),
    ];
    merge_high(low, &shifted[4 - place..], _mm256_set1_epi8(1 << place));
}

/// Adds two bits to each group, as bits 4 and 5: those of the first four groups from `first`, then from `second`.
#[inline]
#[target_feature(enable = "avx2")]
fn merge_pairs(low: &mut [__m256i; 8], first: __m256i, second: __m256i) {
    let shifted = [
        _mm256_slli_epi16::<4>(first),
        _mm256_slli_epi16::<2>(first),
        first,
        _mm256_srli_epi16::<2>(first),
        _mm256_slli_epi16::<4>(second),
        _mm256_slli_epi16::<2>(second),
        second,
        _mm256_srli_epi16::<2>(second),
    ];
    merge_high(low, &shifted, _mm256_set1_epi8(0x30));
}

/// `low | high & mask`, for each run.
#[inline]
#[target_feature(enable = "avx2")]
fn merge_high(low: &mut [__m256i; 8], high: &[__m256i], mask: __m256i) {
    for (low, high) in low.iter_mut().zip(high) {
        *low = _mm256_or_si256(*low, _mm256_and_si256(*high, mask));
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn factors<P: Packed>(header: &[u8], bytes: &[u8], first: usize) -> Factors {
    let zero = _mm256_setzero_ps();
    let halves = |bytes: &[u8], at: usize| load_halves(&bytes[at + 2 * first..at + 2 * first + 16]);
    let unsigned = |at: usize| _mm256_cvtepu8_epi32(load_bytes(&bytes[at + first..at + first + 8]));
    let signed = |at: usize| _mm256_cvtepi8_epi32(load_bytes(&bytes[at + first..at + first + 8]));
    let scale = |factor: __m256i| _mm256_mul_ps(halves(header, 0), _mm256_cvtepi32_ps(factor));
    let min = |factor: __m256i| {
        let min = _mm256_mul_ps(halves(header, 32), _mm256_cvtepi32_ps(factor));
        _mm256_sub_ps(_mm256_set1_ps(-0.0), min)
    };
    let (scales, mins) = match const { P::LAYOUT }.scales {
        Scales::Half => ([halves(bytes, 0); 2], [zero; 2]),
        Scales::HalfMin => ([halves(bytes, 0); 2], [halves(bytes, 32); 2]),
        Scales::Exponent => ([powers_of_two(unsigned(0)); 2], [zero; 2]),
        Scales::Byte => ([scale(signed(0)); 2], [zero; 2]),
        Scales::ByteHalves => ([scale(signed(0)), scale(signed(16))], [zero; 2]),
        Scales::ByteMin => ([scale(unsigned(0)); 2], [min(unsigned(16)); 2]),
        Scales::NibbleMinHalves => {
            let (first, second, nibble) = (unsigned(0), unsigned(16), _mm256_set1_epi32(15));
            (
                [scale(_mm256_and_si256(first, nibble)), scale(_mm256_and_si256(second, nibble))],
                [min(_mm256_srli_epi32::<4>(first)), min(_mm256_srli_epi32::<4>(second))],
            )
        }
    };
    Factors { scales, mins }
}

/// [`crate::half::exponent_to_f32`].
#[inline]
#[target_feature(enable = "avx2")]
fn powers_of_two(exponents: __m256i) -> __m256 {
    let one = _mm256_set1_epi32(1);
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, one));
    let subnormal = _mm256_slli_epi32::<21>(_mm256_add_epi32(exponents, one));
    _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_block<P: Packed>(sum: __m256, weights: &[__m256i; 8], factors: &Factors, row: &ActivationBlock) -> __m256 {
    let layout = const { P::LAYOUT };
    let scale = _mm256_set1_ps(row.scale);
    let mut sum = sum;
    if layout.scales.differ_by_half() {
        for half in 0..2 {
            let product = dot::<P>(weights, row, 4 * half, 4);
            let product = _mm256_add_epi32(product, zero_point::<P>(row.half_sums[half]));
            sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(product), _mm256_mul_ps(factors.scales[half], scale), sum);
        }
    } else {
        let product = dot::<P>(weights, row, 0, 8);
        let product = _mm256_add_epi32(product, zero_point::<P>(row.half_sums[0] + row.half_sums[1]));
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(product), _mm256_mul_ps(factors.scales[0], scale), sum);
    }
    if layout.scales.have_min() {
        if layout.scales.differ_by_half() {
            for half in 0..2 {
                sum = _mm256_fmadd_ps(factors.mins[half], _mm256_set1_ps(row.scaled_half_sum(half)), sum);
            }
        } else {
            sum = _mm256_fmadd_ps(factors.mins[0], _mm256_set1_ps(row.scaled_sum), sum);
        }
    }
    sum
}

/// What takes the zero point out again. Wide values are signed here and have none.
#[inline]
#[target_feature(enable = "avx2")]
fn zero_point<P: Packed>(sum: i32) -> __m256i {
    let layout = const { P::LAYOUT };
    if layout.is_wide() { _mm256_setzero_si256() } else { _mm256_set1_epi32(-layout.zero_point * sum) }
}

/// How many groups' products an i16 can sum up; see the module.
const fn groups_per_i16(layout: &PackedLayout) -> usize {
    let mut groups = 8;
    while groups as i32 * 2 * 127 * layout.greatest() > i16::MAX as i32 {
        groups /= 2;
    }
    groups
}

/// The exact integer products of groups `first..first + count`.
#[inline]
#[target_feature(enable = "avx2")]
fn dot<P: Packed>(weights: &[__m256i; 8], row: &ActivationBlock, first: usize, count: usize) -> __m256i {
    let value = |g: usize| _mm256_set1_epi32(row.quad(g));
    let run = const { groups_per_i16(&P::LAYOUT) }.min(count);
    let mut total = _mm256_setzero_si256();
    for start in (first..first + count).step_by(run) {
        let mut pairs = _mm256_setzero_si256();
        for g in start..start + run {
            let products = if const { P::LAYOUT.is_wide() } {
                _mm256_maddubs_epi16(_mm256_abs_epi8(weights[g]), _mm256_sign_epi8(value(g), weights[g]))
            } else {
                _mm256_maddubs_epi16(weights[g], value(g))
            };
            pairs = _mm256_add_epi16(pairs, products);
        }
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    total
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m256i {
    assert_eq!(bytes.len(), 32, "one register");
    // SAFETY: 32 bytes, as just checked; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load_halves(bytes: &[u8]) -> __m256 {
    assert_eq!(bytes.len(), 16, "eight f16");
    // SAFETY: 16 bytes, as just checked; the load needs no alignment.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_bytes(bytes: &[u8]) -> std::arch::x86_64::__m128i {
    assert_eq!(bytes.len(), 8, "one byte for each of eight rows");
    // SAFETY: 8 bytes, as just checked; the load needs no alignment.
    unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn twice(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: 16 bytes; the load needs no alignment.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}
