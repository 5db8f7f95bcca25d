//! Rotary position embedding: the angles, and turning query and key heads by them.
//! It must never know a model's scaling scheme: frequencies come in ready.

use crate::isa::for_each_isa;
use crate::ops::for_rows;
use crate::simd::Simd;
use crate::{Isa, Team};

/// Which values of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: `2 i` and `2 i + 1`.
    Norm,
    /// The two halves of what is turned: `i` and `i + n_rot / 2`.
    Neox,
}

/// How the heads of some rows are turned.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Which values form a pair.
    pub style: RopeStyle,
    /// Values in a head.
    pub head_dim: usize,
    /// The angles' cosines, `[rows][pairs]`. There may be fewer pairs than a head has.
    pub cos: &'a [f32],
    /// Their sines, likewise.
    pub sin: &'a [f32],
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

/// Turns the first values of every head of `rows` rows in place. `x` is `[rows][heads][head_dim]`.
///
/// Panics when the lengths do not fit each other.
pub fn rope(team: &Team, isa: Isa, rotation: &Rotation<'_>, x: &mut [f32], rows: usize) {
    let Rotation { style, head_dim, cos, sin } = *rotation;
    if rows == 0 || x.is_empty() {
        return;
    }
    let pairs = cos.len() / rows;
    assert!(cos.len() == pairs * rows && sin.len() == cos.len(), "the same number of angles for every row");
    assert!(pairs > 0 && 2 * pairs <= head_dim, "no more angles than pairs in a head");
    assert!(x.len().is_multiple_of(rows * head_dim), "whole heads in every row");
    for_rows(team, x, x.len() / rows, |row, x| {
        let angles = row * pairs..(row + 1) * pairs;
        turn_heads(isa, style, x, head_dim, &cos[angles.clone()], &sin[angles]);
    });
}

for_each_isa! {
    /// Turns all heads of one row by the same angles.
    fn turn_heads(style: RopeStyle, row: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) = turn_body;
}

#[inline(always)]
fn turn_body<S: Simd>(style: RopeStyle, row: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    for head in row.chunks_exact_mut(head_dim) {
        let head = &mut head[..2 * cos.len()];
        match style {
            RopeStyle::Norm => {
                for ((pair, cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    let [a, b] = *pair;
                    *pair = [a * cos - b * sin, a * sin + b * cos];
                }
            }
            RopeStyle::Neox => {
                let (first, second) = head.split_at_mut(cos.len());
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
    }
}
