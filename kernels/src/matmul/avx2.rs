//! Quantised products with AVX2. One register holds eight outputs, so a panel is walked once for each half.
//! It must give the bits of `scalar.rs`: the same integers, and the same fused operations in the same order.
//!
//! `maddubs` adds two products into an i16 and saturates. With activations in -127..=127 the sums here cannot reach
//! that: 4-bit values allow eight steps in i16 (8 * 2 * 15 * 127 = 30,480), 5-bit values four (31,496), 6-bit values
//! two (32,004), and whole bytes one, as magnitudes up to 128 (32,512).

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_abs_epi8, _mm256_add_epi16, _mm256_add_epi32,
    _mm256_and_si256, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sign_epi8,
    _mm256_slli_epi16, _mm256_srli_epi16, _mm256_storeu_ps, _mm256_sub_ps, _mm256_xor_si256,
};

use super::{Packed, PanelOut, for_row_tiles, prefetch, row_blocks};
use crate::Format;
use crate::activation::ActivationBlock;

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

struct Factors {
    scales: [__m256; 2],
    mins: __m256,
}

/// The values of eight rows of a sub-block: element `g` holds columns `4 * g..4 * g + 4` of each row. Those of Q8_0
/// are signed, all others unsigned.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weights<P: Packed>(packed: &[u8], first: usize) -> [__m256i; 8] {
    let run = |g: usize| load(&packed[64 * g + 4 * first..64 * g + 4 * first + 32]);
    let mut found = [_mm256_setzero_si256(); 8];
    if P::FORMAT == Format::Q8_0 {
        for (g, found) in found.iter_mut().enumerate() {
            *found = _mm256_xor_si256(run(g), _mm256_set1_epi8(-128));
        }
        return found;
    }
    let nibble = _mm256_set1_epi8(15);
    for g in 0..4 {
        let both = run(g);
        found[g] = _mm256_and_si256(both, nibble);
        found[g + 4] = _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble);
    }
    match P::FORMAT {
        Format::Q5_0 => {
            let high = run(4);
            let shifted = [
                _mm256_slli_epi16::<4>(high),
                _mm256_slli_epi16::<3>(high),
                _mm256_slli_epi16::<2>(high),
                _mm256_slli_epi16::<1>(high),
                high,
                _mm256_srli_epi16::<1>(high),
                _mm256_srli_epi16::<2>(high),
                _mm256_srli_epi16::<3>(high),
            ];
            merge_high(&mut found, &shifted, _mm256_set1_epi8(16));
        }
        Format::Q6_K => {
            let (first, second) = (run(4), run(5));
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
            merge_high(&mut found, &shifted, _mm256_set1_epi8(0x30));
        }
        _ => {}
    }
    found
}

/// `low | high & mask`, for each run.
#[inline]
#[target_feature(enable = "avx2")]
fn merge_high(low: &mut [__m256i; 8], high: &[__m256i; 8], mask: __m256i) {
    for (low, high) in low.iter_mut().zip(high) {
        *low = _mm256_or_si256(*low, _mm256_and_si256(*high, mask));
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn factors<P: Packed>(header: &[u8], scales: &[u8], first: usize) -> Factors {
    let halves = |bytes: &[u8], at: usize| load_halves(&bytes[at + 2 * first..at + 2 * first + 16]);
    let bytes = |at: usize| load_bytes(&scales[at + first..at + first + 8]);
    let zero = _mm256_setzero_ps();
    match P::FORMAT {
        Format::Q4_1 => {
            let scale = halves(scales, 0);
            Factors { scales: [scale, scale], mins: halves(scales, 32) }
        }
        Format::Q4_K => {
            let scale = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(0)));
            let min = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(16)));
            let scale = _mm256_mul_ps(halves(header, 0), scale);
            let min = _mm256_mul_ps(halves(header, 32), min);
            Factors { scales: [scale, scale], mins: _mm256_sub_ps(_mm256_set1_ps(-0.0), min) }
        }
        Format::Q6_K => {
            let scale = halves(header, 0);
            let first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes(0)));
            let second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes(16)));
            Factors { scales: [_mm256_mul_ps(scale, first), _mm256_mul_ps(scale, second)], mins: zero }
        }
        _ => {
            let scale = halves(scales, 0);
            Factors { scales: [scale, scale], mins: zero }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_block<P: Packed>(sum: __m256, weights: &[__m256i; 8], factors: &Factors, row: &ActivationBlock) -> __m256 {
    let scale = _mm256_set1_ps(row.scale);
    let mut sum = sum;
    if P::HAS_HALF_SCALES {
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
    if P::HAS_MIN {
        sum = _mm256_fmadd_ps(factors.mins, _mm256_set1_ps(row.scaled_sum), sum);
    }
    sum
}

/// What takes the zero point out again. Q8_0 values are signed here and have none.
#[inline]
#[target_feature(enable = "avx2")]
fn zero_point<P: Packed>(sum: i32) -> __m256i {
    if P::FORMAT == Format::Q8_0 { _mm256_setzero_si256() } else { _mm256_set1_epi32(-P::LAYOUT.zero_point * sum) }
}

/// The exact integer products of groups `first..first + count`.
#[inline]
#[target_feature(enable = "avx2")]
fn dot<P: Packed>(weights: &[__m256i; 8], row: &ActivationBlock, first: usize, count: usize) -> __m256i {
    let value = |g: usize| _mm256_set1_epi32(row.quad(g));
    // How many groups an i16 can sum up; see the module.
    let run = match P::FORMAT {
        Format::Q8_0 => 1,
        Format::Q6_K => 2,
        Format::Q5_0 => 4,
        _ => 8,
    };
    let mut total = _mm256_setzero_si256();
    for start in (first..first + count).step_by(run) {
        let mut pairs = _mm256_setzero_si256();
        for g in start..start + run {
            let products = if P::FORMAT == Format::Q8_0 {
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
