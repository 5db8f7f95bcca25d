//! Vector operations between the products: norms, activations, sums, softmax, argmax.
//! Each exists once, in plain Rust, compiled for every instruction set. None may let one row see another.

use crate::isa::for_each_isa;
use crate::math::{LANES, exp, max, max_lanes, sigmoid, sum_lanes};
use crate::shared::SharedSlice;
use crate::simd::Simd;
use crate::{Isa, Team};

for_each_isa! {
    /// `out = x / sqrt(mean(x^2) + eps) * weight`, for one row. Panics when the lengths differ.
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_body;
}

for_each_isa! {
    /// `gate = gate * sigmoid(gate) * up`, the gated activation of llama-like models. Panics when the lengths differ.
    pub fn silu_mul(gate: &mut [f32], up: &[f32]) = silu_mul_body;
}

for_each_isa! {
    /// `gate = gelu(gate) * up` with the tanh form of gelu, the gated activation of gemma-like models. Panics when the
    /// lengths differ.
    pub fn gelu_mul(gate: &mut [f32], up: &[f32]) = gelu_mul_body;
}

for_each_isa! {
    /// `gate = gate * sigmoid(slope * gate) * (up + 1)`, with `gate` held below `limit` and `up` between `-limit` and
    /// `limit` before. Panics when the lengths differ.
    pub fn clamped_silu_mul(gate: &mut [f32], up: &[f32], slope: f32, limit: f32) = clamped_silu_mul_body;
}

for_each_isa! {
    /// `x += factor * y`, rounded once. Panics when the lengths differ.
    pub fn add_scaled_in_place(x: &mut [f32], y: &[f32], factor: f32) = add_scaled_body;
}

for_each_isa! {
    /// `x += a * b`, element by element, each rounded once. Panics when the lengths differ.
    pub fn add_products_in_place(x: &mut [f32], a: &[f32], b: &[f32]) = add_products_body;
}

for_each_isa! {
    /// `x *= y`, element by element. Panics when the lengths differ.
    pub fn mul_in_place(x: &mut [f32], y: &[f32]) = mul_body;
}

for_each_isa! {
    /// `x += y`. Panics when the lengths differ.
    pub fn add_in_place(x: &mut [f32], y: &[f32]) = add_body;
}

for_each_isa! {
    /// `x *= factor`.
    pub fn scale_in_place(x: &mut [f32], factor: f32) = scale_body;
}

for_each_isa! {
    /// Turns logits into probabilities. A slice that holds no finite number becomes NaN.
    pub fn softmax_in_place(x: &mut [f32]) = softmax_body;
}

/// [`rms_norm`] for every row of `x`, rows being as long as `weight`. `x` and `out` have the same length.
pub fn rms_norm_rows(team: &Team, isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "as many values out as in");
    let cols = weight.len();
    for_rows(team, out, cols, |row, out| {
        rms_norm(isa, &x[row * cols..(row + 1) * cols], weight, eps, out);
    });
}

/// [`rms_norm`] in place for every head of every row: rows are `row_len` long, heads as long as `weight`.
pub fn rms_norm_heads(team: &Team, isa: Isa, x: &mut [f32], row_len: usize, weight: &[f32], eps: f32) {
    assert!(row_len.is_multiple_of(weight.len()), "whole heads");
    for_rows(team, x, row_len, |_, row| norm_heads(isa, row, weight, eps));
}

for_each_isa! {
    fn norm_heads(row: &mut [f32], weight: &[f32], eps: f32) = norm_heads_body;
}

/// What a branch adds to the stream it came from, and the norms around that.
#[derive(Clone, Copy)]
pub struct Branch<'a> {
    /// Rows of what the branch computed.
    pub values: &'a [f32],
    /// A norm for these before they are added.
    pub norm: Option<&'a [f32]>,
    /// The norm with which the next branch begins, if there is one.
    pub next_norm: Option<&'a [f32]>,
    /// What is added to the mean squares.
    pub epsilon: f32,
}

/// `stream += values`, the values normed before where there is a norm for them; then `normed` gets the stream, normed
/// for the next branch. Rows have `cols` values. Without a next norm, what is in `normed` means nothing.
///
/// Panics when the lengths differ.
pub fn add_branch(team: &Team, isa: Isa, branch: &Branch<'_>, stream: &mut [f32], normed: &mut [f32], cols: usize) {
    let Branch { values, norm, next_norm, epsilon } = *branch;
    assert!(values.len() == stream.len() && normed.len() == stream.len(), "as many values everywhere");
    let stream = SharedSlice::new(stream);
    for_rows(team, normed, cols, |row, normed| {
        // SAFETY: each row is handed out once, rows do not overlap, and the borrow ends with this call.
        let stream = unsafe { stream.part(row * cols, cols) };
        let values = &values[row * cols..(row + 1) * cols];
        match norm {
            Some(weight) => {
                rms_norm(isa, values, weight, epsilon, normed);
                add_in_place(isa, stream, normed);
            }
            None => add_in_place(isa, stream, values),
        }
        if let Some(weight) = next_norm {
            rms_norm(isa, stream, weight, epsilon, normed);
        }
    });
}

/// How a gate opens for the values behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// [`silu_mul`].
    Silu,
    /// [`gelu_mul`].
    Gelu,
    /// [`clamped_silu_mul`].
    ClampedSilu {
        /// What the sigmoid's argument is multiplied with.
        slope: f32,
        /// The greatest gate and value.
        limit: f32,
    },
}

/// The activation for rows of `cols` values.
pub fn activate_rows(team: &Team, isa: Isa, activation: Activation, gate: &mut [f32], up: &[f32], cols: usize) {
    assert_eq!(gate.len(), up.len(), "as many gates as values");
    for_rows(team, gate, cols, |row, gate| {
        let up = &up[row * cols..(row + 1) * cols];
        match activation {
            Activation::Silu => silu_mul(isa, gate, up),
            Activation::Gelu => gelu_mul(isa, gate, up),
            Activation::ClampedSilu { slope, limit } => clamped_silu_mul(isa, gate, up, slope, limit),
        }
    });
}

/// Adds `bias` to every row of `x`, rows being as long as `bias`.
pub fn add_to_rows(team: &Team, isa: Isa, x: &mut [f32], bias: &[f32]) {
    for_rows(team, x, bias.len().max(1), |_, row| add_in_place(isa, row, bias));
}

/// The index of the greatest value, the first one among equals. NaN are passed over; 0 when there is nothing else.
pub fn argmax(x: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    let mut found = false;
    for (index, value) in x.iter().enumerate() {
        if *value > best.1 || (!found && !value.is_nan()) {
            best = (index, *value);
            found = true;
        }
    }
    best.0
}

/// Below that many values waking the team costs more than it saves.
const ALONE_MAX: usize = 8192;

/// Calls `job(row, values)` for every row of `cols` values, by the team where there are many values.
pub(crate) fn for_rows(team: &Team, out: &mut [f32], cols: usize, job: impl Fn(usize, &mut [f32]) + Sync) {
    assert!(out.len().is_multiple_of(cols), "whole rows");
    if out.len() <= ALONE_MAX {
        out.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| job(row, out));
    } else {
        team.run_chunks(out, cols, job);
    }
}

#[inline(always)]
fn rms_norm_body<S: Simd>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len(), "one weight and one result per value");
    let factor = inverse_root_mean_square(x, eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

#[inline(always)]
fn norm_heads_body<S: Simd>(row: &mut [f32], weight: &[f32], eps: f32) {
    for head in row.chunks_exact_mut(weight.len()) {
        let factor = inverse_root_mean_square(head, eps);
        for (x, weight) in head.iter_mut().zip(weight) {
            *x = *x * factor * weight;
        }
    }
}

#[inline(always)]
fn inverse_root_mean_square(x: &[f32], eps: f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = x.mul_add(*x, *lane);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = x.mul_add(*x, *lane);
    }
    1.0 / (sum_lanes(lanes) / x.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn silu_mul_body<S: Simd>(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "as many gates as values");
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate * sigmoid(*gate) * up;
    }
}

#[inline(always)]
fn gelu_mul_body<S: Simd>(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "as many gates as values");
    // sqrt(2 / pi), and (1 + tanh y) / 2 = sigmoid(2 y).
    let factor = 0.797_884_6_f32;
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let y = factor * x * (0.044_715 * x).mul_add(x, 1.0);
        *gate = x * sigmoid(2.0 * y) * up;
    }
}

#[inline(always)]
fn clamped_silu_mul_body<S: Simd>(gate: &mut [f32], up: &[f32], slope: f32, limit: f32) {
    assert_eq!(gate.len(), up.len(), "as many gates as values");
    for (gate, up) in gate.iter_mut().zip(up) {
        // Comparisons that keep a NaN.
        let x = if *gate > limit { limit } else { *gate };
        let up = if *up > limit { limit } else { *up };
        let up = if up < -limit { -limit } else { up };
        *gate = x * sigmoid(slope * x) * (up + 1.0);
    }
}

#[inline(always)]
fn add_scaled_body<S: Simd>(x: &mut [f32], y: &[f32], factor: f32) {
    assert_eq!(x.len(), y.len(), "as many values to add");
    for (x, y) in x.iter_mut().zip(y) {
        *x = y.mul_add(factor, *x);
    }
}

#[inline(always)]
fn add_products_body<S: Simd>(x: &mut [f32], a: &[f32], b: &[f32]) {
    assert!(x.len() == a.len() && x.len() == b.len(), "as many products as values");
    for ((x, a), b) in x.iter_mut().zip(a).zip(b) {
        *x = a.mul_add(*b, *x);
    }
}

#[inline(always)]
fn mul_body<S: Simd>(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "as many factors as values");
    for (x, y) in x.iter_mut().zip(y) {
        *x *= y;
    }
}

#[inline(always)]
fn add_body<S: Simd>(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "as many values to add");
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

#[inline(always)]
fn scale_body<S: Simd>(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

#[inline(always)]
fn softmax_body<S: Simd>(x: &mut [f32]) {
    let mut greatest = [f32::NEG_INFINITY; LANES];
    for chunk in x.chunks(LANES) {
        for (greatest, x) in greatest.iter_mut().zip(chunk) {
            *greatest = max(*greatest, *x);
        }
    }
    let greatest = max_lanes(greatest);
    let mut sums = [0.0_f32; LANES];
    for chunk in x.chunks_mut(LANES) {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            // What is masked out with minus infinity gets exactly nothing.
            *x = if *x == f32::NEG_INFINITY { 0.0 } else { exp(*x - greatest) };
            *sum += *x;
        }
    }
    let factor = 1.0 / sum_lanes(sums);
    for x in x {
        *x *= factor;
    }
}
