//! The AVX-512 intrinsics that the kernels use, in plain Rust, for machines without that instruction set.
//! `scripts/avx512-emulated` builds a copy of the kernels with them. It must never be part of the crate.

#![allow(missing_docs, non_camel_case_types, clippy::all, clippy::pedantic)]

use std::arch::x86_64::{__m128i, __m256, __m256i, _mm256_loadu_ps};

use crate::half::{f16_to_f32, f32_to_f16};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct __m512(pub(crate) [f32; 16]);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct __m512i(pub(crate) [u8; 64]);

impl __m512i {
    fn words(self) -> [i32; 16] {
        std::array::from_fn(|i| i32::from_le_bytes(self.0.as_chunks::<4>().0[i]))
    }

    fn halves(self) -> [u16; 32] {
        std::array::from_fn(|i| u16::from_le_bytes(self.0.as_chunks::<2>().0[i]))
    }

    fn of_words(words: [i32; 16]) -> Self {
        let mut bytes = [0; 64];
        for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Self(bytes)
    }

    fn of_halves(halves: [u16; 32]) -> Self {
        let mut bytes = [0; 64];
        for (bytes, half) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
            *bytes = half.to_le_bytes();
        }
        Self(bytes)
    }
}

fn bytes_16(value: __m128i) -> [u8; 16] {
    // SAFETY: both are sixteen plain bytes.
    unsafe { std::mem::transmute(value) }
}

fn floats(a: __m512, b: __m512, f: impl Fn(f32, f32) -> f32) -> __m512 {
    __m512(std::array::from_fn(|i| f(a.0[i], b.0[i])))
}

fn words(a: __m512i, b: __m512i, f: impl Fn(i32, i32) -> i32) -> __m512i {
    let (a, b) = (a.words(), b.words());
    __m512i::of_words(std::array::from_fn(|i| f(a[i], b[i])))
}

pub(crate) fn _mm512_add_epi32(a: __m512i, b: __m512i) -> __m512i {
    words(a, b, i32::wrapping_add)
}
pub(crate) fn _mm512_sub_epi32(a: __m512i, b: __m512i) -> __m512i {
    words(a, b, i32::wrapping_sub)
}
pub(crate) fn _mm512_max_epi32(a: __m512i, b: __m512i) -> __m512i {
    words(a, b, i32::max)
}
pub(crate) fn _mm512_and_si512(a: __m512i, b: __m512i) -> __m512i {
    words(a, b, |a, b| a & b)
}
pub(crate) fn _mm512_ternarylogic_epi32<const TABLE: i32>(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    let bit = |byte: u8, at: u32| i32::from(byte >> at & 1);
    __m512i(std::array::from_fn(|i| {
        (0..8).fold(0, |found, at| {
            let place = bit(a.0[i], at) << 2 | bit(b.0[i], at) << 1 | bit(c.0[i], at);
            found | ((TABLE >> place & 1) as u8) << at
        })
    }))
}
pub(crate) fn _mm512_slli_epi32<const BY: u32>(a: __m512i) -> __m512i {
    __m512i::of_words(a.words().map(|word| word << BY))
}
pub(crate) fn _mm512_srli_epi32<const BY: u32>(a: __m512i) -> __m512i {
    __m512i::of_words(a.words().map(|word| (word.cast_unsigned() >> BY).cast_signed()))
}
pub(crate) fn _mm512_slli_epi16<const BY: u32>(a: __m512i) -> __m512i {
    __m512i::of_halves(a.halves().map(|half| half << BY))
}
pub(crate) fn _mm512_srli_epi16<const BY: u32>(a: __m512i) -> __m512i {
    __m512i::of_halves(a.halves().map(|half| half >> BY))
}
pub(crate) fn _mm512_shuffle_epi8(a: __m512i, places: __m512i) -> __m512i {
    __m512i(std::array::from_fn(|i| {
        let place = places.0[i];
        if place & 0x80 != 0 { 0 } else { a.0[i / 16 * 16 + usize::from(place & 15)] }
    }))
}
pub(crate) fn _mm512_dpbusd_epi32(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
    let sums = sums.words();
    __m512i::of_words(std::array::from_fn(|lane| {
        (0..4).fold(sums[lane], |sum, i| {
            sum.wrapping_add(i32::from(a.0[4 * lane + i]) * i32::from(b.0[4 * lane + i].cast_signed()))
        })
    }))
}
pub(crate) fn _mm512_reduce_add_epi32(a: __m512i) -> i32 {
    a.words().into_iter().fold(0, i32::wrapping_add)
}
pub(crate) fn _mm512_set1_epi8(value: i8) -> __m512i {
    __m512i([value.cast_unsigned(); 64])
}
pub(crate) fn _mm512_set1_epi32(value: i32) -> __m512i {
    __m512i::of_words([value; 16])
}
pub(crate) fn _mm512_setzero_si512() -> __m512i {
    __m512i([0; 64])
}
pub(crate) fn _mm512_broadcast_i32x4(a: __m128i) -> __m512i {
    let bytes = bytes_16(a);
    __m512i(std::array::from_fn(|i| bytes[i % 16]))
}
pub(crate) fn _mm512_cvtepi8_epi32(a: __m128i) -> __m512i {
    __m512i::of_words(bytes_16(a).map(|byte| i32::from(byte.cast_signed())))
}
pub(crate) fn _mm512_cvtepu8_epi32(a: __m128i) -> __m512i {
    __m512i::of_words(bytes_16(a).map(i32::from))
}
pub(crate) fn _mm512_cvtepi32_ps(a: __m512i) -> __m512 {
    __m512(a.words().map(|word| word as f32))
}
pub(crate) fn _mm512_castps_si512(a: __m512) -> __m512i {
    __m512i::of_words(a.0.map(|value| value.to_bits().cast_signed()))
}
pub(crate) fn _mm512_castsi512_ps(a: __m512i) -> __m512 {
    __m512(a.words().map(|word| f32::from_bits(word.cast_unsigned())))
}
pub(crate) fn _mm512_loadu_si512(from: *const __m512i) -> __m512i {
    // SAFETY: the intrinsic's caller promises 64 readable bytes.
    __m512i(unsafe { from.cast::<[u8; 64]>().read_unaligned() })
}
pub(crate) fn _mm512_add_ps(a: __m512, b: __m512) -> __m512 {
    floats(a, b, |a, b| a + b)
}
pub(crate) fn _mm512_sub_ps(a: __m512, b: __m512) -> __m512 {
    floats(a, b, |a, b| a - b)
}
pub(crate) fn _mm512_mul_ps(a: __m512, b: __m512) -> __m512 {
    floats(a, b, |a, b| a * b)
}
pub(crate) fn _mm512_max_ps(a: __m512, b: __m512) -> __m512 {
    floats(a, b, |a, b| if a > b { a } else { b })
}
pub(crate) fn _mm512_min_ps(a: __m512, b: __m512) -> __m512 {
    floats(a, b, |a, b| if a < b { a } else { b })
}
pub(crate) fn _mm512_fmadd_ps(a: __m512, b: __m512, c: __m512) -> __m512 {
    __m512(std::array::from_fn(|i| a.0[i].mul_add(b.0[i], c.0[i])))
}
pub(crate) fn _mm512_set1_ps(value: f32) -> __m512 {
    __m512([value; 16])
}
pub(crate) fn _mm512_setzero_ps() -> __m512 {
    __m512([0.0; 16])
}
pub(crate) fn _mm512_loadu_ps(from: *const f32) -> __m512 {
    // SAFETY: the intrinsic's caller promises sixteen readable elements.
    __m512(unsafe { from.cast::<[f32; 16]>().read_unaligned() })
}
pub(crate) fn _mm512_storeu_ps(to: *mut f32, value: __m512) {
    // SAFETY: the intrinsic's caller promises sixteen writable elements.
    unsafe { to.cast::<[f32; 16]>().write_unaligned(value.0) }
}
pub(crate) fn _mm512_cvtph_ps(halves: __m256i) -> __m512 {
    // SAFETY: both are 32 plain bytes.
    let halves: [u16; 16] = unsafe { std::mem::transmute(halves) };
    __m512(halves.map(f16_to_f32))
}
pub(crate) fn _mm512_cvtps_ph<const ROUNDING: i32>(value: __m512) -> __m256i {
    // SAFETY: both are 32 plain bytes.
    unsafe { std::mem::transmute(value.0.map(f32_to_f16)) }
}
pub(crate) fn _mm512_castps512_ps256(value: __m512) -> __m256 {
    // SAFETY: eight readable elements; callers enable AVX.
    unsafe { _mm256_loadu_ps(value.0.as_ptr()) }
}
pub(crate) fn _mm512_extractf32x8_ps<const HALF: i32>(value: __m512) -> __m256 {
    // SAFETY: eight readable elements; callers enable AVX.
    unsafe { _mm256_loadu_ps(value.0.as_ptr().add(8 * HALF as usize)) }
}
