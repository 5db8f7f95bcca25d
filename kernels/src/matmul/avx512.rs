//! Quantised products with AVX-512 VNNI. One register holds sixteen outputs.
//! It must give the bits of `scalar.rs`: the same integers, and the same fused operations in the same order.

use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_epi32, _mm512_and_si512, _mm512_cvtepi8_epi32,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_slli_epi16, _mm512_srli_epi16, _mm512_storeu_ps, _mm512_sub_ps,
    _mm512_ternarylogic_epi32,
};

use super::{Packed, PanelOut, for_row_tiles, prefetch, row_blocks};
use crate::Format;
use crate::activation::ActivationBlock;

/// Multiplies one panel with all activation rows.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) fn panel<P: Packed>(panel: &[u8], activations: &[ActivationBlock], blocks: usize, out: &PanelOut<'_>) {
    let rows = activations.len() / blocks;
    for_row_tiles!(rows, |at, COUNT| {
        let sums = tile::<P, COUNT>(panel, row_blocks(activations, at, blocks), at == 0);
        for (r, sum) in sums.into_iter().enumerate() {
            let mut lanes = [0.0; 16];
            // SAFETY: the array has sixteen elements.
            unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
            out.put(at + r, 0, &lanes);
        }
    }, 8 4 3 2 1);
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn tile<P: Packed, const R: usize>(panel: &[u8], mut rows: [&[ActivationBlock]; R], fetch: bool) -> [__m512; R] {
    let layout = const { P::LAYOUT };
    let blocks = panel.len() / layout.block_bytes() * layout.subs;
    // Lets the compiler drop the bounds checks below.
    for row in &mut rows {
        *row = &row[..blocks];
    }
    let mut sums = [_mm512_setzero_ps(); R];
    for (index, block) in panel.chunks_exact(layout.block_bytes()).enumerate() {
        let (header, subs) = block.split_at(layout.header_bytes);
        for (sub, packed) in subs.chunks_exact(layout.sub_bytes).enumerate() {
            if fetch {
                prefetch(packed);
            }
            let weights = weights::<P>(packed);
            let factors = factors::<P>(header, &packed[layout.low_bytes + layout.high_bytes..]);
            for r in 0..R {
                sums[r] = add_block::<P>(sums[r], &weights, &factors, &rows[r][index * layout.subs + sub]);
            }
        }
    }
    sums
}

struct Factors {
    scales: [__m512; 2],
    mins: __m512,
}

/// The values of a sub-block: element `g` holds columns `4 * g..4 * g + 4` of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn weights<P: Packed>(packed: &[u8]) -> [__m512i; 8] {
    let run = |g: usize| load(&packed[64 * g..64 * g + 64]);
    if P::FORMAT == Format::Q8_0 {
        return [run(0), run(1), run(2), run(3), run(4), run(5), run(6), run(7)];
    }
    let nibble = _mm512_set1_epi8(15);
    let mut found = [_mm512_setzero_si512(); 8];
    for g in 0..4 {
        let both = run(g);
        found[g] = _mm512_and_si512(both, nibble);
        found[g + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), nibble);
    }
    match P::FORMAT {
        Format::Q5_0 => {
            let high = run(4);
            let bit = _mm512_set1_epi8(16);
            let shifted = [
                _mm512_slli_epi16::<4>(high),
                _mm512_slli_epi16::<3>(high),
                _mm512_slli_epi16::<2>(high),
                _mm512_slli_epi16::<1>(high),
                high,
                _mm512_srli_epi16::<1>(high),
                _mm512_srli_epi16::<2>(high),
                _mm512_srli_epi16::<3>(high),
            ];
            merge_high(&mut found, &shifted, bit);
        }
        Format::Q6_K => {
            let (first, second) = (run(4), run(5));
            let bits = _mm512_set1_epi8(0x30);
            let shifted = [
                _mm512_slli_epi16::<4>(first),
                _mm512_slli_epi16::<2>(first),
                first,
                _mm512_srli_epi16::<2>(first),
                _mm512_slli_epi16::<4>(second),
                _mm512_slli_epi16::<2>(second),
                second,
                _mm512_srli_epi16::<2>(second),
            ];
            merge_high(&mut found, &shifted, bits);
        }
        _ => {}
    }
    found
}

/// `low | high & mask`, for each run.
#[inline]
#[target_feature(enable = "avx512f")]
fn merge_high(low: &mut [__m512i; 8], high: &[__m512i; 8], mask: __m512i) {
    for (low, high) in low.iter_mut().zip(high) {
        // The table of `a | (b & c)`.
        *low = _mm512_ternarylogic_epi32::<0xf8>(*low, *high, mask);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn factors<P: Packed>(header: &[u8], scales: &[u8]) -> Factors {
    let zero = _mm512_setzero_ps();
    match P::FORMAT {
        Format::Q4_1 => {
            let scale = load_halves(&scales[..32]);
            Factors { scales: [scale, scale], mins: load_halves(&scales[32..64]) }
        }
        Format::Q4_K => {
            let scale = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_bytes(&scales[..16])));
            let min = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_bytes(&scales[16..32])));
            let scale = _mm512_mul_ps(load_halves(&header[..32]), scale);
            let min = _mm512_mul_ps(load_halves(&header[32..64]), min);
            Factors { scales: [scale, scale], mins: _mm512_sub_ps(_mm512_set1_ps(-0.0), min) }
        }
        Format::Q6_K => {
            let scale = load_halves(&header[..32]);
            let first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(&scales[..16])));
            let second = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(&scales[16..32])));
            Factors { scales: [_mm512_mul_ps(scale, first), _mm512_mul_ps(scale, second)], mins: zero }
        }
        _ => {
            let scale = load_halves(&scales[..32]);
            Factors { scales: [scale, scale], mins: zero }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn add_block<P: Packed>(sum: __m512, weights: &[__m512i; 8], factors: &Factors, row: &ActivationBlock) -> __m512 {
    let scale = _mm512_set1_ps(row.scale);
    let zero_point = |half: usize| -P::LAYOUT.zero_point * row.half_sums[half];
    let mut sum = sum;
    if P::HAS_HALF_SCALES {
        for half in 0..2 {
            let mut product = _mm512_set1_epi32(zero_point(half));
            for g in 4 * half..4 * half + 4 {
                product = _mm512_dpbusd_epi32(product, weights[g], _mm512_set1_epi32(row.quad(g)));
            }
            sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(product), _mm512_mul_ps(factors.scales[half], scale), sum);
        }
    } else {
        // Two chains: a lone row is bound by the latency of one.
        let mut first = _mm512_set1_epi32(zero_point(0) + zero_point(1));
        let mut second = _mm512_setzero_si512();
        for g in 0..4 {
            first = _mm512_dpbusd_epi32(first, weights[g], _mm512_set1_epi32(row.quad(g)));
            let value = _mm512_set1_epi32(row.quad(g + 4));
            second = _mm512_dpbusd_epi32(second, weights[g + 4], value);
        }
        let product = _mm512_cvtepi32_ps(_mm512_add_epi32(first, second));
        sum = _mm512_fmadd_ps(product, _mm512_mul_ps(factors.scales[0], scale), sum);
    }
    if P::HAS_MIN {
        sum = _mm512_fmadd_ps(factors.mins, _mm512_set1_ps(row.scaled_sum), sum);
    }
    sum
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8]) -> __m512i {
    assert_eq!(bytes.len(), 64, "one register");
    // SAFETY: 64 bytes, as just checked; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_halves(bytes: &[u8]) -> __m512 {
    assert_eq!(bytes.len(), 32, "sixteen f16");
    // SAFETY: 32 bytes, as just checked; the load needs no alignment.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_bytes(bytes: &[u8]) -> std::arch::x86_64::__m128i {
    assert_eq!(bytes.len(), 16, "one byte for each of sixteen rows");
    // SAFETY: 16 bytes, as just checked; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
