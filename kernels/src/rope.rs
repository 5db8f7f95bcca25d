//! Rotary position embedding: the angles, and turning query and key heads by them.
//! It must never know a model's scaling scheme: frequencies come in ready.

use crate::isa::for_each_isa;
use crate::simd::Simd;

/// Which values of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: `2 i` and `2 i + 1`.
    Norm,
    /// The two halves of what is turned: `i` and `i + n_rot / 2`.
    Neox,
}

/// Writes cosine and sine of one position's angles, one per pair: angle `i` is `position * frequencies[i]`. Both are
/// multiplied with `magnitude`. Panics when lengths differ.
pub fn rope_angles(position: f64, frequencies: &[f64], magnitude: f64, cos: &mut [f32], sin: &mut [f32]) {
    assert!(cos.len() == frequencies.len() && sin.len() == frequencies.len(), "one value per pair");
    for ((frequency, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
        let angle = position * frequency;
        *cos = (angle.cos() * magnitude) as f32;
        *sin = (angle.sin() * magnitude) as f32;
    }
}

for_each_isa! {
    /// Turns the first values of every head in place. `x` is `[rows][heads][head_dim]`; `cos` and `sin` are
    /// `[rows][n_rot / 2]`, so that their length and `rows` say how many values of a head are turned.
    /// Panics when the lengths do not fit each other.
    pub fn rope(style: RopeStyle, x: &mut [f32], rows: usize, head_dim: usize, cos: &[f32], sin: &[f32]) = rope_body;
}

#[inline(always)]
fn rope_body<S: Simd>(style: RopeStyle, x: &mut [f32], rows: usize, head_dim: usize, cos: &[f32], sin: &[f32]) {
    if rows == 0 {
        return;
    }
    let pairs = cos.len() / rows;
    assert!(cos.len() == pairs * rows && sin.len() == cos.len(), "the same number of angles for every row");
    assert!(pairs > 0 && 2 * pairs <= head_dim, "no more angles than pairs in a head");
    assert!(x.len().is_multiple_of(rows * head_dim), "whole heads in every row");
    let row_len = x.len() / rows;
    if row_len == 0 {
        return;
    }
    for ((row, cos), sin) in x.chunks_exact_mut(row_len).zip(cos.chunks_exact(pairs)).zip(sin.chunks_exact(pairs)) {
        for head in row.chunks_exact_mut(head_dim) {
            let head = &mut head[..2 * pairs];
            match style {
                RopeStyle::Norm => {
                    for ((pair, cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                        let [a, b] = *pair;
                        *pair = [a * cos - b * sin, a * sin + b * cos];
                    }
                }
                RopeStyle::Neox => {
                    let (first, second) = head.split_at_mut(pairs);
                    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                    }
                }
            }
        }
    }
}
