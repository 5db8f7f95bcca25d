//! Quantised products with AVX2. One register holds eight outputs, so a panel is walked once for each half.
//! It must give the bits of `scalar.rs`: the same integers, and the same fused operations in the same order.
//!
//! `maddubs` adds two products into an i16 and saturates. With activations in -127..=127 the sums here cannot reach
//! that, as `groups_per_i16` sees to: 4-bit values allow eight steps in i16 (8 * 2 * 15 * 127 = 30,480), 5-bit values
//! four (31,496), 6-bit values two (32,004), and whole bytes one, as magnitudes up to 128 (32,512).

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_abs_epi8, _mm256_add_epi16, _mm256_add_epi32,
    _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_castsi256_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_max_epi32, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sign_epi8,
    _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_sub_epi32,
    _mm256_sub_ps, _mm256_xor_si256,
};

use super::{Packed, PanelOut, for_row_tiles, prefetch, row_blocks};
use crate::activation::ActivationBlock;
use crate::layout::{PackedLayout, Scales};

/// More rows than that are computed in strips.
const TILE_ROWS_MAX: usize = 4;

/// Rows of a strip: they share each unpacking of weights, and their sums stay in the first cache.
const STRIP: usize = 32;

/// Multiplies one panel with all activation rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn panel<P: Packed>(panel: &[u8], activations: &[ActivationBlock], blocks: usize, out: &PanelOut<'_>) {
    let rows = activations.len() / blocks;
    if rows > TILE_ROWS_MAX {
        return strips::<P>(panel, activations, blocks, out);
    }
    for_row_tiles!(rows, |at, COUNT| {
        for first in [0, 8] {
            let sums = tile::<P, COUNT>(panel, first, row_blocks(activations, at, blocks), first == 0);
            for (r, sum) in sums.into_iter().enumerate() {
                out.put(at + r, first, &lanes(sum));
            }
        }
    }, 4 3 2 1);
}

/// The sums of rows `first..first + 8` of the panel, for as few activation rows as there are registers for.
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
            let sub_block = SubBlock::new::<P>(header, packed, first);
            let mut tile = [&rows[0][index * layout.subs + sub]; R];
            for r in 0..R {
                tile[r] = &rows[r][index * layout.subs + sub];
            }
            add_blocks::<P, R>(&mut sums, &sub_block, tile);
        }
    }
    sums
}

/// Multiplies one panel with many rows, strip by strip.
#[target_feature(enable = "avx2,fma,f16c")]
fn strips<P: Packed>(panel: &[u8], activations: &[ActivationBlock], blocks: usize, out: &PanelOut<'_>) {
    let layout = const { P::LAYOUT };
    let mut memory = [[0.0; 8]; STRIP];
    for (strip, activations) in activations.chunks(STRIP * blocks).enumerate() {
        let sums = &mut memory[..activations.len() / blocks];
        for first in [0, 8] {
            sums.fill([0.0; 8]);
            for (index, block) in panel.chunks_exact(layout.block_bytes()).enumerate() {
                let (header, subs) = block.split_at(layout.header_bytes);
                for (sub, packed) in subs.chunks_exact(layout.sub_bytes).enumerate() {
                    if strip == 0 && first == 0 {
                        prefetch(packed);
                    }
                    let sub_block = SubBlock::new::<P>(header, packed, first);
                    add_strip::<P>(sums, &sub_block, &activations[index * layout.subs + sub..], blocks);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                out.put(STRIP * strip + row, first, sums);
            }
        }
    }
}

/// Adds one sub-block to the sums of a strip. The rows' activations are `blocks` apart.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_strip<P: Packed>(sums: &mut [[f32; 8]], sub_block: &SubBlock, activations: &[ActivationBlock], blocks: usize) {
    for_row_tiles!(sums.len(), |at, COUNT| {
        let mut tile = [&activations[at * blocks]; COUNT];
        let mut totals = [_mm256_setzero_ps(); COUNT];
        for r in 0..COUNT {
            tile[r] = &activations[(at + r) * blocks];
            // SAFETY: eight elements; the load needs no alignment.
            totals[r] = unsafe { _mm256_loadu_ps(sums[at + r].as_ptr()) };
        }
        add_blocks::<P, COUNT>(&mut totals, sub_block, tile);
        for r in 0..COUNT {
            sums[at + r] = lanes(totals[r]);
        }
    }, 4 2 1);
}

/// Eight rows of a sub-block.
struct SubBlock {
    weights: [__m256i; 8],
    factors: Factors,
}

impl SubBlock {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new<P: Packed>(header: &[u8], packed: &[u8], first: usize) -> Self {
        let layout = const { P::LAYOUT };
        let factors = factors::<P>(header, &packed[layout.low_bytes + layout.high_bytes..], first);
        Self { weights: weights::<P>(packed, first), factors }
    }
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

/// Adds a sub-block to the sums of some activation rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_blocks<P: Packed, const R: usize>(sums: &mut [__m256; R], sub_block: &SubBlock, rows: [&ActivationBlock; R]) {
    let layout = const { P::LAYOUT };
    let SubBlock { weights, factors } = sub_block;
    let parts = if layout.scales.differ_by_half() { 2 } else { 1 };
    for part in 0..parts {
        let products = dot::<P, R>(weights, rows, 8 / parts * part, 8 / parts);
        for r in 0..R {
            let row = rows[r];
            let sum = if parts == 2 { row.half_sums[part] } else { row.half_sums[0] + row.half_sums[1] };
            let product = _mm256_cvtepi32_ps(_mm256_add_epi32(products[r], zero_point::<P>(sum)));
            let scale = _mm256_mul_ps(factors.scales[part], _mm256_set1_ps(row.scale));
            sums[r] = _mm256_fmadd_ps(product, scale, sums[r]);
        }
    }
    if layout.scales.have_min() {
        for part in 0..parts {
            for r in 0..R {
                let sum = if parts == 2 { rows[r].scaled_half_sum(part) } else { rows[r].scaled_sum };
                sums[r] = _mm256_fmadd_ps(factors.mins[part], _mm256_set1_ps(sum), sums[r]);
            }
        }
    }
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

/// The exact integer products of groups `first..first + count` with some rows, which share each load of weights.
#[inline]
#[target_feature(enable = "avx2")]
fn dot<P: Packed, const R: usize>(
    weights: &[__m256i; 8],
    rows: [&ActivationBlock; R],
    first: usize,
    count: usize,
) -> [__m256i; R] {
    let run = const { groups_per_i16(&P::LAYOUT) }.min(count);
    let mut totals = [_mm256_setzero_si256(); R];
    for start in (first..first + count).step_by(run) {
        let mut pairs = [_mm256_setzero_si256(); R];
        for g in start..start + run {
            let magnitudes = if const { P::LAYOUT.is_wide() } { _mm256_abs_epi8(weights[g]) } else { weights[g] };
            for r in 0..R {
                let value = _mm256_set1_epi32(rows[r].quad(g));
                let value = if const { P::LAYOUT.is_wide() } { _mm256_sign_epi8(value, weights[g]) } else { value };
                pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(magnitudes, value));
            }
        }
        for r in 0..R {
            totals[r] = _mm256_add_epi32(totals[r], _mm256_madd_epi16(pairs[r], _mm256_set1_epi16(1)));
        }
    }
    totals
}

#[inline]
#[target_feature(enable = "avx2")]
fn lanes(sums: __m256) -> [f32; 8] {
    let mut lanes = [0.0; 8];
    // SAFETY: the array has eight elements; the store needs no alignment.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sums) };
    lanes
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
