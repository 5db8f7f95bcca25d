//! Quantised products with AVX-512 VNNI. One register holds sixteen outputs.
//! It must give the bits of `scalar.rs`: the same integers, and the same fused operations in the same order.

use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_epi32, _mm512_and_si512, _mm512_broadcast_i32x4,
    _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps,
    _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_max_epi32, _mm512_mul_ps,
    _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_epi8,
    _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srli_epi16, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_sub_epi32,
    _mm512_sub_ps, _mm512_ternarylogic_epi32,
};

use super::{Packed, PanelOut, for_row_tiles, prefetch, row_blocks};
use crate::activation::ActivationBlock;
use crate::layout::Scales;

/// More rows than that are computed in strips.
const TILE_ROWS_MAX: usize = 8;

/// Rows of a strip: they share each unpacking of weights, and their sums stay in the first cache.
const STRIP: usize = 64;

/// Multiplies one panel with all activation rows.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) fn panel<P: Packed>(panel: &[u8], activations: &[ActivationBlock], blocks: usize, out: &PanelOut<'_>) {
    let rows = activations.len() / blocks;
    if rows > TILE_ROWS_MAX {
        return strips::<P>(panel, activations, blocks, out);
    }
    for_row_tiles!(rows, |at, COUNT| {
        let sums = tile::<P, COUNT>(panel, row_blocks(activations, at, blocks), at == 0);
        for (r, sum) in sums.into_iter().enumerate() {
            out.put(at + r, 0, &lanes(sum));
        }
    }, 8 4 3 2 1);
}

/// The sums of the panel for as few activation rows as there are registers for.
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

/// Multiplies one panel with many rows, strip by strip: a strip's weights are unpacked once into registers and stay
/// there for all its rows, so that only products, sums and their scales are left.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn strips<P: Packed>(panel: &[u8], activations: &[ActivationBlock], blocks: usize, out: &PanelOut<'_>) {
    let layout = const { P::LAYOUT };
    let mut memory = [[0.0; 16]; STRIP];
    for (strip, activations) in activations.chunks(STRIP * blocks).enumerate() {
        let sums = &mut memory[..activations.len() / blocks];
        sums.fill([0.0; 16]);
        for (index, block) in panel.chunks_exact(layout.block_bytes()).enumerate() {
            let (header, subs) = block.split_at(layout.header_bytes);
            for (sub, packed) in subs.chunks_exact(layout.sub_bytes).enumerate() {
                if strip == 0 {
                    prefetch(packed);
                }
                let weights = weights::<P>(packed);
                let factors = factors::<P>(header, &packed[layout.low_bytes + layout.high_bytes..]);
                let column = activations[index * layout.subs + sub..].iter().step_by(blocks);
                for (sums, activation) in sums.iter_mut().zip(column) {
                    // SAFETY: sixteen elements; the load needs no alignment.
                    let sum = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
                    *sums = lanes(add_block::<P>(sum, &weights, &factors, activation));
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            out.put(STRIP * strip + row, 0, sums);
        }
    }
}

/// For the first and the last 16 columns.
struct Factors {
    scales: [__m512; 2],
    mins: [__m512; 2],
}

/// The values of a sub-block: element `g` holds columns `4 * g..4 * g + 4` of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn weights<P: Packed>(packed: &[u8]) -> [__m512i; 8] {
    let layout = const { P::LAYOUT };
    let run = |g: usize| load(&packed[64 * g..64 * g + 64]);
    let mut found = [_mm512_setzero_si512(); 8];
    match layout.low_bits {
        8 => {
            for (g, found) in found.iter_mut().enumerate() {
                *found = run(g);
            }
        }
        4 => {
            let nibble = _mm512_set1_epi8(15);
            for g in 0..4 {
                found[2 * g] = _mm512_and_si512(run(g), nibble);
                found[2 * g + 1] = _mm512_and_si512(_mm512_srli_epi16::<4>(run(g)), nibble);
            }
        }
        _ => {
            let pair = _mm512_set1_epi8(3);
            for g in 0..2 {
                found[4 * g] = _mm512_and_si512(run(g), pair);
                found[4 * g + 1] = _mm512_and_si512(_mm512_srli_epi16::<2>(run(g)), pair);
                found[4 * g + 2] = _mm512_and_si512(_mm512_srli_epi16::<4>(run(g)), pair);
                found[4 * g + 3] = _mm512_and_si512(_mm512_srli_epi16::<6>(run(g)), pair);
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
        let table = four_times(&table);
        for found in &mut found {
            *found = _mm512_shuffle_epi8(table, *found);
        }
    }
    found
}

/// Adds bit `g` of `high` to group `g`, as bit 2 or 4.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn merge_bits(low: &mut [__m512i; 8], high: __m512i, place: usize) {
    let shifted = [
        _mm512_slli_epi16::<4>(high),
        _mm512_slli_epi16::<3>(high),
        _mm512_slli_epi16::<2>(high),
        _mm512_slli_epi16::<1>(high),
        high,
        _mm512_srli_epi16::<1>(high),
        _mm512_srli_epi16::<2>(high),
        _mm512_srli_epi16::<3>(high),
        _mm512_srli_epi16::<4>(high),
        _mm512_srli_epi16::<5>(high),
    ];
    merge_high(low, &shifted[4 - place..], _mm512_set1_epi8(1 << place));
}

/// Adds two bits to each group, as bits 4 and 5: those of the first four groups from `first`, then from `second`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn merge_pairs(low: &mut [__m512i; 8], first: __m512i, second: __m512i) {
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
    merge_high(low, &shifted, _mm512_set1_epi8(0x30));
}

/// `low | high & mask`, for each run.
#[inline]
#[target_feature(enable = "avx512f")]
fn merge_high(low: &mut [__m512i; 8], high: &[__m512i], mask: __m512i) {
    for (low, high) in low.iter_mut().zip(high) {
        // The table of `a | (b & c)`.
        *low = _mm512_ternarylogic_epi32::<0xf8>(*low, *high, mask);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn factors<P: Packed>(header: &[u8], bytes: &[u8]) -> Factors {
    let zero = _mm512_setzero_ps();
    let unsigned = |at: usize| _mm512_cvtepu8_epi32(load_bytes(&bytes[at..at + 16]));
    let signed = |at: usize| _mm512_cvtepi8_epi32(load_bytes(&bytes[at..at + 16]));
    let scale = |factor: __m512i| _mm512_mul_ps(load_halves(&header[..32]), _mm512_cvtepi32_ps(factor));
    let min = |factor: __m512i| {
        let min = _mm512_mul_ps(load_halves(&header[32..64]), _mm512_cvtepi32_ps(factor));
        _mm512_sub_ps(_mm512_set1_ps(-0.0), min)
    };
    let (scales, mins) = match const { P::LAYOUT }.scales {
        Scales::Half => ([load_halves(&bytes[..32]); 2], [zero; 2]),
        Scales::HalfMin => ([load_halves(&bytes[..32]); 2], [load_halves(&bytes[32..64]); 2]),
        Scales::Exponent => ([powers_of_two(unsigned(0)); 2], [zero; 2]),
        Scales::Byte => ([scale(signed(0)); 2], [zero; 2]),
        Scales::ByteHalves => ([scale(signed(0)), scale(signed(16))], [zero; 2]),
        Scales::ByteMin => ([scale(unsigned(0)); 2], [min(unsigned(16)); 2]),
        Scales::NibbleMinHalves => {
            let (first, second, nibble) = (unsigned(0), unsigned(16), _mm512_set1_epi32(15));
            (
                [scale(_mm512_and_si512(first, nibble)), scale(_mm512_and_si512(second, nibble))],
                [min(_mm512_srli_epi32::<4>(first)), min(_mm512_srli_epi32::<4>(second))],
            )
        }
    };
    Factors { scales, mins }
}

/// [`crate::half::exponent_to_f32`].
#[inline]
#[target_feature(enable = "avx512f")]
fn powers_of_two(exponents: __m512i) -> __m512 {
    let one = _mm512_set1_epi32(1);
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, one));
    let subnormal = _mm512_slli_epi32::<21>(_mm512_add_epi32(exponents, one));
    _mm512_castsi512_ps(_mm512_max_epi32(normal, subnormal))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn add_block<P: Packed>(sum: __m512, weights: &[__m512i; 8], factors: &Factors, row: &ActivationBlock) -> __m512 {
    let scale = _mm512_set1_ps(row.scale);
    let layout = const { P::LAYOUT };
    let zero_point = |half: usize| -layout.zero_point * row.half_sums[half];
    let mut sum = sum;
    if layout.scales.differ_by_half() {
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
    if layout.scales.have_min() {
        if layout.scales.differ_by_half() {
            for half in 0..2 {
                sum = _mm512_fmadd_ps(factors.mins[half], _mm512_set1_ps(row.scaled_half_sum(half)), sum);
            }
        } else {
            sum = _mm512_fmadd_ps(factors.mins[0], _mm512_set1_ps(row.scaled_sum), sum);
        }
    }
    sum
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(sums: __m512) -> [f32; 16] {
    let mut lanes = [0.0; 16];
    // SAFETY: the array has sixteen elements; the store needs no alignment.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sums) };
    lanes
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

#[inline]
#[target_feature(enable = "avx512f")]
fn four_times(bytes: &[u8; 16]) -> __m512i {
    // SAFETY: 16 bytes; the load needs no alignment.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}
