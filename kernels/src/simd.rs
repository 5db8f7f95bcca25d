//! Sixteen floats at a time, the same way on every instruction set.
//! Kernels written over [`Simd`] give the same bits everywhere: an operation here must never round differently, or add
//! lanes in another order, than the plain form in [`Plain`] does.

use crate::half::{f16_to_f32, f32_to_f16};
use crate::math::{EXP_MAX, EXP_MIN, EXP_TERMS, LANES, LN_2_HIGH, LN_2_LOW, ROUNDING, max, max_lanes, sum_lanes};

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{Neon, widen_4};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Vectors of sixteen floats. The types other than [`Plain`] must only be named inside functions that enable their
/// features, which `for_each_isa!` sees to. Kernels use plain loops instead of closures around these operations: a
/// closure is compiled without the features unless it happens to be inlined first.
pub(crate) trait Simd {
    /// Sixteen floats.
    type V: Copy;
    /// How many vectors the registers hold: a `V` may take several.
    const VECTORS: usize;

    fn splat(value: f32) -> Self::V;
    fn load(values: &[f32; LANES]) -> Self::V;
    fn store(vector: Self::V, values: &mut [f32; LANES]);
    /// From f16 bits. Exact.
    fn widen(bits: &[u16; LANES]) -> Self::V;
    /// From whole numbers. Exact.
    fn widen_bytes(numbers: &[i8; LANES]) -> Self::V;
    /// To the nearest f16.
    fn narrow(vector: Self::V) -> [u16; LANES];
    fn add(a: Self::V, b: Self::V) -> Self::V;
    fn sub(a: Self::V, b: Self::V) -> Self::V;
    fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `b` where it is greater, else `a`.
    fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `b` where it is smaller, else `a`.
    fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `2^n` from `n` plus [`ROUNDING`].
    fn power_of_2(shifted: Self::V) -> Self::V;
    /// The sum of one vector, in the order of [`sum_lanes`].
    fn sum(vector: Self::V) -> f32;
    /// The greatest lane.
    fn greatest(vector: Self::V) -> f32;
}

/// [`crate::math::exp`] of sixteen values.
#[inline(always)]
pub(crate) fn exp<S: Simd>(x: S::V) -> S::V {
    let x = S::max(x, S::splat(EXP_MIN));
    let x = S::min(x, S::splat(EXP_MAX));
    let rounding = S::splat(ROUNDING);
    let shifted = S::fma(x, S::splat(std::f32::consts::LOG2_E), rounding);
    let n = S::sub(shifted, rounding);
    let r = S::fma(n, S::splat(-LN_2_HIGH), x);
    let r = S::fma(n, S::splat(-LN_2_LOW), r);
    let mut sum = S::splat(EXP_TERMS[0]);
    for term in &EXP_TERMS[1..] {
        sum = S::fma(sum, r, S::splat(*term));
    }
    S::mul(sum, S::power_of_2(shifted))
}

/// Up to sixteen values, filled up with zeros.
#[inline(always)]
pub(crate) fn load_part<S: Simd>(values: &[f32]) -> S::V {
    if let Some(values) = values.first_chunk() {
        return S::load(values);
    }
    let mut padded = [0.0; LANES];
    padded[..values.len()].copy_from_slice(values);
    S::load(&padded)
}

/// Writes the first lanes into up to sixteen values.
#[inline(always)]
pub(crate) fn store_part<S: Simd>(vector: S::V, values: &mut [f32]) {
    if let Some(values) = values.first_chunk_mut() {
        S::store(vector, values);
        return;
    }
    let mut padded = [0.0; LANES];
    S::store(vector, &mut padded);
    values.copy_from_slice(&padded[..values.len()]);
}

/// The plain form: the definition of what the others do.
pub(crate) struct Plain;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

impl Simd for Plain {
    type V = [f32; LANES];
    const VECTORS: usize = 8;

    #[inline(always)]
    fn splat(value: f32) -> Self::V {
        [value; LANES]
    }

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self::V {
        *values
    }

    #[inline(always)]
    fn store(vector: Self::V, values: &mut [f32; LANES]) {
        *values = vector;
    }

    #[inline(always)]
    fn widen(bits: &[u16; LANES]) -> Self::V {
        bits.map(f16_to_f32)
    }

    #[inline(always)]
    fn widen_bytes(numbers: &[i8; LANES]) -> Self::V {
        numbers.map(f32::from)
    }

    #[inline(always)]
    fn narrow(vector: Self::V) -> [u16; LANES] {
        vector.map(f32_to_f16)
    }

    #[inline(always)]
    fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn max(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, max)
    }

    #[inline(always)]
    fn min(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if b < a { b } else { a })
    }

    #[inline(always)]
    fn power_of_2(shifted: Self::V) -> Self::V {
        shifted.map(crate::math::power_of_2)
    }

    #[inline(always)]
    fn sum(vector: Self::V) -> f32 {
        sum_lanes(vector)
    }

    #[inline(always)]
    fn greatest(vector: Self::V) -> f32 {
        max_lanes(vector)
    }
}

#[cfg(target_arch = "aarch64")]
#[path = "simd_neon.rs"]
mod neon;
#[cfg(target_arch = "x86_64")]
#[path = "simd_x86.rs"]
mod x86;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::isa::for_each_isa;

    for_each_isa! {
        fn run_all(inputs: &[[f32; LANES]; LANES], out: &mut Vec<u32>) = all_body;
    }

    #[inline(always)]
    fn all_body<S: Simd>(inputs: &[[f32; LANES]; LANES], out: &mut Vec<u32>) {
        let vectors: [S::V; LANES] = std::array::from_fn(|i| S::load(&inputs[i]));
        let mut keep = |vector: S::V| {
            let mut values = [0.0; LANES];
            S::store(vector, &mut values);
            out.extend(values.map(f32::to_bits));
        };
        for pair in vectors.windows(3) {
            let [a, b, c] = [pair[0], pair[1], pair[2]];
            keep(S::add(a, b));
            keep(S::sub(a, b));
            keep(S::mul(a, b));
            keep(S::fma(a, b, c));
            keep(S::max(a, b));
            keep(S::min(a, b));
            keep(exp::<S>(a));
            keep(S::widen(&S::narrow(a)));
            keep(S::splat(S::sum(a)));
            keep(S::splat(S::greatest(a)));
        }
        keep(load_part::<S>(&inputs[0][..5]));
    }

    #[test]
    fn every_operation_gives_the_plain_forms_bits() {
        let mut inputs = [[0.0_f32; LANES]; LANES];
        for (i, value) in inputs.as_flattened_mut().iter_mut().enumerate() {
            *value = (i as f32 * 1.37).sin() * [1.0, 100.0, 1e-3][i % 3];
        }
        inputs[3][4] = f32::INFINITY;
        let mut expected = Vec::new();
        run_all(Isa::SCALAR, &inputs, &mut expected);
        for isa in Isa::available() {
            let mut found = Vec::new();
            run_all(isa, &inputs, &mut found);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let both_nan = f32::from_bits(*found).is_nan() && f32::from_bits(*expected).is_nan();
                assert!(found == expected || both_nan, "value {i} on {}", isa.name());
            }
        }
    }
}
