//! Short floating-point numbers: f16 bits to f32 and back, one by one and by slices; bf16 and bare exponents to f32.
//! It must never round any other way than to nearest, ties to even.

use crate::isa::for_each_isa;
use crate::simd::Simd;

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

/// The value of one bf16, given as bits. Exact.
#[inline]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `2^(exponent - 128)`. Exact; the two smallest are subnormal.
#[inline]
pub(crate) fn exponent_to_f32(exponent: u8) -> f32 {
    let exponent = i32::from(exponent);
    // Greater than the first for 0 and 1 alone.
    let subnormal = (exponent + 1) << 21;
    f32::from_bits(((exponent - 1) << 23).max(subnormal).cast_unsigned())
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

for_each_isa! {
    /// Widens f16 bits into `out`. Panics when the lengths differ.
    pub fn f16_to_f32_slice(bits: &[u16], out: &mut [f32]) = widen_body;
}

for_each_isa! {
    /// Rounds values to f16 bits, as the key-value pool stores them. Panics when the lengths differ.
    pub fn f32_to_f16_slice(values: &[f32], out: &mut [u16]) = narrow_body;
}

#[inline(always)]
fn widen_body<S: Simd>(bits: &[u16], out: &mut [f32]) {
    assert_eq!(bits.len(), out.len(), "as many values out as in");
    let (from, from_rest) = bits.as_chunks::<16>();
    let (to, to_rest) = out.as_chunks_mut::<16>();
    for (from, to) in from.iter().zip(to) {
        S::store(S::widen(from), to);
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        *to = f16_to_f32(*from);
    }
}

#[inline(always)]
fn narrow_body<S: Simd>(values: &[f32], out: &mut [u16]) {
    assert_eq!(values.len(), out.len(), "as many values out as in");
    let (from, from_rest) = values.as_chunks::<16>();
    let (to, to_rest) = out.as_chunks_mut::<16>();
    for (from, to) in from.iter().zip(to) {
        *to = S::narrow(S::load(from));
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        *to = f32_to_f16(*from);
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;
    use crate::Isa;

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
    fn every_exponent_is_its_power_of_two() {
        for exponent in 0..=u8::MAX {
            let expected = 2.0_f64.powi(i32::from(exponent) - 128);
            assert_eq!(f64::from(exponent_to_f32(exponent)), expected);
        }
    }

    #[test]
    fn all_instruction_sets_convert_alike() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let values: Vec<f32> = (0..300_007_u32).map(|i| f32::from_bits(i.wrapping_mul(14_321))).collect();
        let (mut wide, mut narrow) = (vec![0.0; bits.len()], vec![0; values.len()]);
        for isa in Isa::available() {
            f16_to_f32_slice(isa, &bits, &mut wide);
            f32_to_f16_slice(isa, &values, &mut narrow);
            for (bits, wide) in bits.iter().zip(&wide) {
                assert_eq!(wide.to_bits(), f16_to_f32(*bits).to_bits(), "{bits:x} on {}", isa.name());
            }
            for (value, narrow) in values.iter().zip(&narrow) {
                assert_eq!(*narrow, f32_to_f16(*value), "{value} on {}", isa.name());
            }
        }
    }
}
