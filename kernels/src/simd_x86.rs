//! [`Simd`] for AVX2 and AVX-512. Thin: one intrinsic per operation, shuffles for the sums.
//! It must never do anything the plain form does not.

use std::arch::x86_64::{
    __m128, __m256, __m512, _MM_FROUND_TO_NEAREST_INT, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadu_si128,
    _mm_max_ps, _mm_max_ss, _mm_movehl_ps, _mm_shuffle_ps, _mm_srli_si128, _mm_storeu_si128, _mm256_add_epi32,
    _mm256_add_ps, _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cvtepi8_epi32,
    _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_slli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_ps, _mm512_add_epi32, _mm512_add_ps,
    _mm512_castps_si512, _mm512_castps512_ps256, _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps,
    _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_extractf32x8_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_max_ps,
    _mm512_min_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
    _mm512_sub_ps,
};

use super::Simd;
use crate::math::{LANES, ROUNDING};

/// What `ROUNDING` and the exponent's bias come to, as integers.
const POWER_OFFSET: i32 = 127_i32.wrapping_sub(ROUNDING.to_bits() as i32);

/// Two registers of eight.
pub(crate) struct Avx2;

/// One register.
pub(crate) struct Avx512;

/// The sum of four lanes: `i + 2`, then `i + 1`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_4(x: __m128) -> f32 {
    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
}

/// The sum of eight lanes: `i + 4` first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_8(x: __m256) -> f32 {
    sum_4(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn greatest_8(x: __m256) -> f32 {
    // The plain form's `max(a, b)` takes `a` unless `b` is greater: the instruction with its operands swapped.
    let x = _mm_max_ps(_mm256_extractf128_ps::<1>(x), _mm256_castps256_ps128(x));
    let x = _mm_max_ps(_mm_movehl_ps(x, x), x);
    _mm_cvtss_f32(_mm_max_ss(_mm_shuffle_ps::<1>(x, x), x))
}

impl Simd for Avx2 {
    type V = (__m256, __m256);
    const VECTORS: usize = 8;

    #[inline(always)]
    fn splat(value: f32) -> Self::V {
        // SAFETY: callers enable AVX2, FMA and F16C (see the trait).
        let half = unsafe { _mm256_set1_ps(value) };
        (half, half)
    }

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self::V {
        // SAFETY: sixteen elements; callers enable AVX2 (see the trait).
        unsafe { (_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))) }
    }

    #[inline(always)]
    fn store(vector: Self::V, values: &mut [f32; LANES]) {
        // SAFETY: sixteen elements; callers enable AVX2 (see the trait).
        unsafe {
            _mm256_storeu_ps(values.as_mut_ptr(), vector.0);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), vector.1);
        }
    }

    #[inline(always)]
    fn widen(bits: &[u16; LANES]) -> Self::V {
        // SAFETY: sixteen elements; callers enable AVX2 and F16C (see the trait).
        unsafe {
            let (low, high) = (_mm_loadu_si128(bits.as_ptr().cast()), _mm_loadu_si128(bits.as_ptr().add(8).cast()));
            (_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }

    #[inline(always)]
    fn widen_bytes(numbers: &[i8; LANES]) -> Self::V {
        // SAFETY: sixteen elements; callers enable AVX2 (see the trait).
        unsafe {
            let bytes = _mm_loadu_si128(numbers.as_ptr().cast());
            let (low, high) = (_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes)));
            (_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    fn narrow(vector: Self::V) -> [u16; LANES] {
        let mut bits = [0_u16; LANES];
        // SAFETY: sixteen elements; callers enable AVX2 and F16C (see the trait).
        unsafe {
            let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(vector.0);
            let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(vector.1);
            _mm_storeu_si128(bits.as_mut_ptr().cast(), low);
            _mm_storeu_si128(bits.as_mut_ptr().add(8).cast(), high);
        }
        bits
    }

    #[inline(always)]
    fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable AVX2, FMA and F16C (see the trait).
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable AVX2, FMA and F16C (see the trait).
        unsafe { (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable AVX2, FMA and F16C (see the trait).
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: callers enable AVX2, FMA and F16C (see the trait).
        unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }

    #[inline(always)]
    fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable AVX2, FMA and F16C (see the trait).
        unsafe { (_mm256_max_ps(b.0, a.0), _mm256_max_ps(b.1, a.1)) }
    }

    #[inline(always)]
    fn min(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable AVX2, FMA and F16C (see the trait).
        unsafe { (_mm256_min_ps(b.0, a.0), _mm256_min_ps(b.1, a.1)) }
    }

    #[inline(always)]
    fn power_of_2(shifted: Self::V) -> Self::V {
        // SAFETY: callers enable AVX2, FMA and F16C (see the trait).
        unsafe {
            let offset = _mm256_set1_epi32(POWER_OFFSET);
            let low = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_castps_si256(shifted.0), offset));
            let high = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_castps_si256(shifted.1), offset));
            (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        }
    }

    #[inline(always)]
    fn sum(vector: Self::V) -> f32 {
        // SAFETY: callers enable AVX2, FMA and F16C (see the trait).
        unsafe { sum_8(_mm256_add_ps(vector.0, vector.1)) }
    }

    #[inline(always)]
    fn greatest(vector: Self::V) -> f32 {
        // SAFETY: callers enable AVX2, FMA and F16C (see the trait).
        unsafe { greatest_8(_mm256_max_ps(vector.1, vector.0)) }
    }
}

impl Simd for Avx512 {
    type V = __m512;
    const VECTORS: usize = 32;

    #[inline(always)]
    fn splat(value: f32) -> Self::V {
        // SAFETY: callers enable AVX-512 F and what `Avx2` needs (see the trait).
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self::V {
        // SAFETY: sixteen elements; callers enable AVX-512 F (see the trait).
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn store(vector: Self::V, values: &mut [f32; LANES]) {
        // SAFETY: sixteen elements; callers enable AVX-512 F (see the trait).
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn widen(bits: &[u16; LANES]) -> Self::V {
        // SAFETY: sixteen elements; callers enable AVX-512 F (see the trait).
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bits.as_ptr().cast())) }
    }

    #[inline(always)]
    fn widen_bytes(numbers: &[i8; LANES]) -> Self::V {
        // SAFETY: sixteen elements; callers enable AVX-512 F (see the trait).
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(numbers.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn narrow(vector: Self::V) -> [u16; LANES] {
        let mut bits = [0_u16; LANES];
        // SAFETY: sixteen elements; callers enable AVX-512 F (see the trait).
        unsafe {
            let raw = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(vector);
            _mm256_storeu_si256(bits.as_mut_ptr().cast(), raw);
        }
        bits
    }

    #[inline(always)]
    fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable AVX-512 F (see the trait).
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable AVX-512 F (see the trait).
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable AVX-512 F (see the trait).
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: callers enable AVX-512 F (see the trait).
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable AVX-512 F (see the trait).
        unsafe { _mm512_max_ps(b, a) }
    }

    #[inline(always)]
    fn min(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable AVX-512 F (see the trait).
        unsafe { _mm512_min_ps(b, a) }
    }

    #[inline(always)]
    fn power_of_2(shifted: Self::V) -> Self::V {
        // SAFETY: callers enable AVX-512 F (see the trait).
        unsafe {
            let bits = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(POWER_OFFSET));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(bits))
        }
    }

    #[inline(always)]
    fn sum(vector: Self::V) -> f32 {
        // SAFETY: callers enable AVX-512 F and DQ and what `Avx2` needs (see the trait).
        unsafe { sum_8(_mm256_add_ps(_mm512_castps512_ps256(vector), _mm512_extractf32x8_ps::<1>(vector))) }
    }

    #[inline(always)]
    fn greatest(vector: Self::V) -> f32 {
        // SAFETY: callers enable AVX-512 F and DQ and what `Avx2` needs (see the trait).
        unsafe { greatest_8(_mm256_max_ps(_mm512_extractf32x8_ps::<1>(vector), _mm512_castps512_ps256(vector))) }
    }
}
