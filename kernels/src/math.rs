//! Small pieces of arithmetic that every instruction set does in the same order: sixteen-lane sums, exp.
//! Nothing here may contain a branch that depends on values: these functions are inlined into vector loops.

/// Lanes of a partial sum.
pub(crate) const LANES: usize = 16;

/// Adds up sixteen partial sums, always in the same order.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The greatest of sixteen values; NaN are passed over.
#[inline(always)]
pub(crate) fn max_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = max(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// The greater of two values, `a` when `b` is NaN.
#[inline(always)]
pub(crate) fn max(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The greatest relative error of [`exp`] between its bounds, in units of the last place.
#[cfg(test)]
const EXP_ULP_MAX: f64 = 1.5;

pub(crate) const EXP_MIN: f32 = -87.0;
pub(crate) const EXP_MAX: f32 = 88.0;

/// `e^x`, with `x` held between -87 and 88. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = if x < EXP_MIN { EXP_MIN } else { x };
    let x = if x > EXP_MAX { EXP_MAX } else { x };
    // x = n ln 2 + r with a whole n: adding 1.5 * 2^23 leaves n in the low bits.
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUNDING);
    let n = shifted - ROUNDING;
    let r = n.mul_add(-LN_2_HIGH, x);
    let r = n.mul_add(-LN_2_LOW, r);
    let mut sum = EXP_TERMS[0];
    for term in &EXP_TERMS[1..] {
        sum = sum.mul_add(r, *term);
    }
    sum * power_of_2(shifted)
}

/// `2^n` from `n` plus [`ROUNDING`].
#[inline(always)]
pub(crate) fn power_of_2(shifted: f32) -> f32 {
    f32::from_bits(shifted.to_bits().wrapping_sub(ROUNDING.to_bits()).wrapping_add(127) << 23)
}

/// The Taylor polynomial's factors, highest power first: at |r| <= 0.35 the first term left out is below 6e-9.
pub(crate) const EXP_TERMS: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
/// Adding 1.5 * 2^23 rounds to a whole number, ties to even, and leaves it in the low bits.
pub(crate) const ROUNDING: f32 = 12_582_912.0;
/// The leading bits of ln 2, so few that `n` times them is exact, and the rest.
pub(crate) const LN_2_HIGH: f32 = 0.693_145_75;
pub(crate) const LN_2_LOW: f32 = 1.428_606_8e-6;

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_its_stated_error_between_its_bounds() {
        let mut worst = 0.0_f64;
        for i in 0..3_500_000 {
            let x = EXP_MIN + i as f32 * 5e-5;
            let exact = f64::from(x).exp();
            let unit = exact.log2().floor().exp2() * f64::from(f32::EPSILON);
            worst = worst.max((f64::from(exp(x)) - exact).abs() / unit);
        }
        assert!(worst <= EXP_ULP_MAX, "{worst}");
    }

    #[test]
    fn exp_saturates_outside_its_bounds_and_keeps_nan() {
        assert_eq!(exp(f32::NEG_INFINITY), exp(EXP_MIN));
        assert_eq!(exp(f32::INFINITY), exp(EXP_MAX));
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn lanes_are_summed_and_compared() {
        let lanes: [f32; LANES] = std::array::from_fn(|i| i as f32);
        assert_eq!(sum_lanes(lanes), 120.0);
        assert_eq!(max_lanes(lanes), 15.0);
    }
}
