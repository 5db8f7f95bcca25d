//! Half-precision numbers: f16 bits to f32 and back, one by one and by slices.
//! It must never round any other way than to nearest, ties to even.

use crate::Isa;
use crate::isa::for_each_isa;

/// The value of one f16, given as bits. Exact.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let value = if magnitude >= 0x7c00 {
        // Infinity and NaN keep their payload; a NaN becomes quiet, as the hardware conversion makes it.
        let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
        0x7f80_0000 | (magnitude & 0x03ff) << 13 | quiet
    } else {
        // Placing the fields in an f32 and multiplying by 2^112 rebuilds the exponent, subnormals included.
        (f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23)).to_bits()
    };
    f32::from_bits(sign | value)
}

/// The f16 nearest to a value, as bits. Too large becomes infinity.
#[inline]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | (magnitude >> 13 & 0x03ff) as u16;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Subnormal: adding 0.5 leaves the wanted bits, rounded by the hardware, at the bottom of the mantissa.
        let shifted = f32::from_bits(magnitude) + 0.5;
        return sign | (shifted.to_bits() - 0.5_f32.to_bits()) as u16;
    }
    let odd = magnitude >> 13 & 1;
    let rounded = magnitude - (112 << 23) + 0x0fff + odd;
    sign | (rounded >> 13) as u16
}

/// How sixteen f16 become f32 on one instruction set.
pub(crate) trait Widen {
    /// Widens sixteen values. Exact.
    fn widen(bits: &[u16; 16]) -> [f32; 16];
    /// Narrows sixteen values.
    fn narrow(values: &[f32; 16]) -> [u16; 16];
}

pub(crate) struct WidenScalar;

impl Widen for WidenScalar {
    #[inline(always)]
    fn widen(bits: &[u16; 16]) -> [f32; 16] {
        bits.map(f16_to_f32)
    }

    #[inline(always)]
    fn narrow(values: &[f32; 16]) -> [u16; 16] {
        values.map(f32_to_f16)
    }
}

/// Must only be named inside functions that enable F16C.
#[cfg(target_arch = "x86_64")]
pub(crate) struct WidenF16c;

#[cfg(target_arch = "x86_64")]
impl Widen for WidenF16c {
    #[inline(always)]
    fn widen(bits: &[u16; 16]) -> [f32; 16] {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut out = [0.0; 16];
        for half in 0..2 {
            // SAFETY: both pointers have eight elements left; the caller enables F16C (`for_each_isa`).
            unsafe {
                let raw = _mm_loadu_si128(bits.as_ptr().add(8 * half).cast());
                _mm256_storeu_ps(out.as_mut_ptr().add(8 * half), _mm256_cvtph_ps(raw));
            }
        }
        out
    }

    #[inline(always)]
    fn narrow(values: &[f32; 16]) -> [u16; 16] {
        use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps};
        let mut out = [0; 16];
        for half in 0..2 {
            // SAFETY: both pointers have eight elements left; the caller enables F16C (`for_each_isa`).
            unsafe {
                let wide = _mm256_loadu_ps(values.as_ptr().add(8 * half));
                let raw = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm_storeu_si128(out.as_mut_ptr().add(8 * half).cast(), raw);
            }
        }
        out
    }
}

/// Must only be named inside functions that enable AVX-512 F.
#[cfg(target_arch = "x86_64")]
pub(crate) struct WidenAvx512;

#[cfg(target_arch = "x86_64")]
impl Widen for WidenAvx512 {
    #[inline(always)]
    fn widen(bits: &[u16; 16]) -> [f32; 16] {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps, _mm512_storeu_ps};
        let mut out = [0.0; 16];
        // SAFETY: both arrays have sixteen elements; the caller enables AVX-512 F (`for_each_isa`).
        unsafe {
            let raw = _mm256_loadu_si256(bits.as_ptr().cast());
            _mm512_storeu_ps(out.as_mut_ptr(), _mm512_cvtph_ps(raw));
        }
        out
    }

    #[inline(always)]
    fn narrow(values: &[f32; 16]) -> [u16; 16] {
        use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_storeu_si256, _mm512_cvtps_ph, _mm512_loadu_ps};
        let mut out = [0; 16];
        // SAFETY: both arrays have sixteen elements; the caller enables AVX-512 F (`for_each_isa`).
        unsafe {
            let wide = _mm512_loadu_ps(values.as_ptr());
            let raw = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), raw);
        }
        out
    }
}

for_each_isa! {
    /// Widens f16 bits into `out`. Panics when the lengths differ.
    pub fn f16_to_f32_slice(bits: &[u16], out: &mut [f32]) = widen_body;
}

for_each_isa! {
    /// Rounds values to f16 bits, as the key-value pool stores them. Panics when the lengths differ.
    pub fn f32_to_f16_slice(values: &[f32], out: &mut [u16]) = narrow_body;
}

#[inline(always)]
fn widen_body<W: Widen>(bits: &[u16], out: &mut [f32]) {
    assert_eq!(bits.len(), out.len(), "as many values out as in");
    let (from, from_rest) = bits.as_chunks::<16>();
    let (to, to_rest) = out.as_chunks_mut::<16>();
    for (from, to) in from.iter().zip(to) {
        *to = W::widen(from);
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        *to = f16_to_f32(*from);
    }
}

#[inline(always)]
fn narrow_body<W: Widen>(values: &[f32], out: &mut [u16]) {
    assert_eq!(values.len(), out.len(), "as many values out as in");
    let (from, from_rest) = values.as_chunks::<16>();
    let (to, to_rest) = out.as_chunks_mut::<16>();
    for (from, to) in from.iter().zip(to) {
        *to = W::narrow(from);
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        *to = f32_to_f16(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_survives_the_way_to_f32_and_back() {
        for bits in 0..=u16::MAX {
            let wide = f16_to_f32(bits);
            if wide.is_nan() {
                assert!(f16_to_f32(f32_to_f16(wide)).is_nan());
            } else {
                assert_eq!(f32_to_f16(wide), bits);
            }
        }
    }

    #[test]
    fn known_values_convert() {
        assert_eq!(f16_to_f32(0x3c00), 1.0);
        assert_eq!(f16_to_f32(0x0001), 2.0_f32.powi(-24));
        assert_eq!(f16_to_f32(0xfbff), -65504.0);
        assert_eq!(f32_to_f16(65519.9), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(1.0 + 1.0 / 2048.0), 0x3c00, "a tie goes to even");
    }

    #[test]
    fn all_instruction_sets_convert_alike() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let values: Vec<f32> = (0..300_007_u32)
            .map(|i| f32::from_bits(i.wrapping_mul(14_321)))
            .collect();
        let (mut wide, mut narrow) = (vec![0.0; bits.len()], vec![0; values.len()]);
        for isa in Isa::available() {
            f16_to_f32_slice(isa, &bits, &mut wide);
            f32_to_f16_slice(isa, &values, &mut narrow);
            for (bits, wide) in bits.iter().zip(&wide) {
                assert_eq!(
                    wide.to_bits(),
                    f16_to_f32(*bits).to_bits(),
                    "{bits:x} on {}",
                    isa.name()
                );
            }
            for (value, narrow) in values.iter().zip(&narrow) {
                assert_eq!(*narrow, f32_to_f16(*value), "{value} on {}", isa.name());
            }
        }
    }
}
