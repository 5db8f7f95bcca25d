//! [`Simd`] for NEON. Thin: one instruction per operation and register, as the plain form has it.
//! It must never do anything the plain form does not.

use std::arch::aarch64::{
    float32x4_t, uint16x4_t, vadd_f32, vaddq_f32, vaddq_s32, vbslq_f32, vcgtq_f32, vcltq_f32, vcvtq_f32_s32,
    vdupq_n_f32, vdupq_n_s32, vfmaq_f32, vget_high_f32, vget_high_s8, vget_high_s16, vget_lane_f32, vget_low_f32,
    vget_low_s8, vget_low_s16, vld1_u16, vld1q_f32, vld1q_s8, vmovl_s8, vmovl_s16, vmulq_f32, vreinterpretq_f32_s32,
    vreinterpretq_s32_f32, vshlq_n_s32, vst1_u16, vst1q_f32, vsubq_f32,
};
use std::arch::asm;

use super::Simd;
use crate::math::{LANES, ROUNDING};

/// What `ROUNDING` and the exponent's bias come to, as integers.
const POWER_OFFSET: i32 = 127_i32.wrapping_sub(ROUNDING.to_bits() as i32);

/// Four registers of four.
pub(crate) struct Neon;

/// From f16 bits. Exact.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn widen_4(bits: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: one instruction of the base set, which reads one register and writes another.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {bits:v}.4h", wide = lateout(vreg) wide, bits = in(vreg) bits,
             options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// To the nearest f16, ties to even, as the processor rounds unless it is told otherwise.
#[inline]
#[target_feature(enable = "neon")]
fn narrow_4(values: float32x4_t) -> uint16x4_t {
    let bits: uint16x4_t;
    // SAFETY: as in `widen_4`.
    unsafe {
        asm!("fcvtn {bits:v}.4h, {values:v}.4s", bits = lateout(vreg) bits, values = in(vreg) values,
             options(pure, nomem, nostack, preserves_flags));
    }
    bits
}

/// `b` where it is greater, else `a`.
#[inline]
#[target_feature(enable = "neon")]
fn max_4(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(b, a), b, a)
}

impl Simd for Neon {
    type V = [float32x4_t; 4];
    const VECTORS: usize = 8;

    #[inline(always)]
    fn splat(value: f32) -> Self::V {
        // SAFETY: callers enable NEON (see the trait).
        [unsafe { vdupq_n_f32(value) }; 4]
    }

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self::V {
        let quads = values.as_chunks::<4>().0;
        // SAFETY: four elements each; callers enable NEON (see the trait).
        unsafe { [0, 1, 2, 3].map(|i| vld1q_f32(quads[i].as_ptr())) }
    }

    #[inline(always)]
    fn store(vector: Self::V, values: &mut [f32; LANES]) {
        let quads = values.as_chunks_mut::<4>().0;
        for i in 0..4 {
            // SAFETY: four elements; callers enable NEON (see the trait).
            unsafe { vst1q_f32(quads[i].as_mut_ptr(), vector[i]) };
        }
    }

    #[inline(always)]
    fn widen(bits: &[u16; LANES]) -> Self::V {
        let quads = bits.as_chunks::<4>().0;
        // SAFETY: four elements each; callers enable NEON (see the trait).
        unsafe { [0, 1, 2, 3].map(|i| widen_4(vld1_u16(quads[i].as_ptr()))) }
    }

    #[inline(always)]
    fn widen_bytes(numbers: &[i8; LANES]) -> Self::V {
        // SAFETY: sixteen elements; callers enable NEON (see the trait).
        unsafe {
            let bytes = vld1q_s8(numbers.as_ptr());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [vget_low_s16(low), vget_high_s16(low), vget_low_s16(high), vget_high_s16(high)]
                .map(|four| vcvtq_f32_s32(vmovl_s16(four)))
        }
    }

    #[inline(always)]
    fn narrow(vector: Self::V) -> [u16; LANES] {
        let mut bits = [0_u16; LANES];
        let quads = bits.as_chunks_mut::<4>().0;
        for i in 0..4 {
            // SAFETY: four elements; callers enable NEON (see the trait).
            unsafe { vst1_u16(quads[i].as_mut_ptr(), narrow_4(vector[i])) };
        }
        bits
    }

    #[inline(always)]
    fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable NEON (see the trait).
        unsafe { [0, 1, 2, 3].map(|i| vaddq_f32(a[i], b[i])) }
    }

    #[inline(always)]
    fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable NEON (see the trait).
        unsafe { [0, 1, 2, 3].map(|i| vsubq_f32(a[i], b[i])) }
    }

    #[inline(always)]
    fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable NEON (see the trait).
        unsafe { [0, 1, 2, 3].map(|i| vmulq_f32(a[i], b[i])) }
    }

    #[inline(always)]
    fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: callers enable NEON (see the trait).
        unsafe { [0, 1, 2, 3].map(|i| vfmaq_f32(c[i], a[i], b[i])) }
    }

    #[inline(always)]
    fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable NEON (see the trait).
        unsafe { [0, 1, 2, 3].map(|i| max_4(a[i], b[i])) }
    }

    #[inline(always)]
    fn min(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: callers enable NEON (see the trait).
        unsafe { [0, 1, 2, 3].map(|i| vbslq_f32(vcltq_f32(b[i], a[i]), b[i], a[i])) }
    }

    #[inline(always)]
    fn power_of_2(shifted: Self::V) -> Self::V {
        // SAFETY: callers enable NEON (see the trait).
        unsafe {
            let offset = vdupq_n_s32(POWER_OFFSET);
            let power = |i: usize| vshlq_n_s32::<23>(vaddq_s32(vreinterpretq_s32_f32(shifted[i]), offset));
            [0, 1, 2, 3].map(|i| vreinterpretq_f32_s32(power(i)))
        }
    }

    #[inline(always)]
    fn sum(vector: Self::V) -> f32 {
        let [a, b, c, d] = vector;
        // SAFETY: callers enable NEON (see the trait).
        unsafe {
            // Eight lanes apart, then four, two, one.
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    fn greatest(vector: Self::V) -> f32 {
        let [a, b, c, d] = vector;
        let mut lanes = [0.0; 4];
        // SAFETY: four elements; callers enable NEON (see the trait).
        unsafe { vst1q_f32(lanes.as_mut_ptr(), max_4(max_4(a, c), max_4(b, d))) };
        let greater = crate::math::max;
        greater(greater(lanes[0], lanes[2]), greater(lanes[1], lanes[3]))
    }
}
