//! Products with F32, F16 and BF16 weights, in f32: one accumulator per output, columns in ascending order, fused
//! multiply-add. It must never reorder columns.

use super::{PanelOut, for_row_tiles};
use crate::half::bf16_to_f32;
use crate::isa::for_each_isa;
use crate::layout::PANEL;
use crate::simd::Simd;

for_each_isa! {
    /// Multiplies one panel of F32 weights with all rows of `x`.
    pub(super) fn panel_f32(panel: &[u8], x: &[f32], cols: usize, out: &PanelOut<'_>) = f32_body;
}

for_each_isa! {
    /// Multiplies one panel of F16 weights with all rows of `x`.
    pub(super) fn panel_f16(panel: &[u8], x: &[f32], cols: usize, out: &PanelOut<'_>) = f16_body;
}

for_each_isa! {
    /// Multiplies one panel of BF16 weights with all rows of `x`.
    pub(super) fn panel_bf16(panel: &[u8], x: &[f32], cols: usize, out: &PanelOut<'_>) = bf16_body;
}

#[inline(always)]
fn f32_body<S: Simd>(panel: &[u8], x: &[f32], cols: usize, out: &PanelOut<'_>) {
    let columns = panel.as_chunks::<{ 4 * PANEL }>().0;
    let load = |column: &[u8; 4 * PANEL]| {
        let values = column.as_chunks::<4>().0;
        S::load(&std::array::from_fn(|lane| f32::from_le_bytes(values[lane])))
    };
    for_row_tiles!(x.len() / cols, |at, COUNT| tile::<S, COUNT, _>(columns, load, &x[at * cols..], out, at), 8 4 2 1);
}

#[inline(always)]
fn f16_body<S: Simd>(panel: &[u8], x: &[f32], cols: usize, out: &PanelOut<'_>) {
    let columns = panel.as_chunks::<{ 2 * PANEL }>().0;
    let load = |column: &[u8; 2 * PANEL]| {
        let values = column.as_chunks::<2>().0;
        S::widen(&std::array::from_fn(|lane| u16::from_le_bytes(values[lane])))
    };
    for_row_tiles!(x.len() / cols, |at, COUNT| tile::<S, COUNT, _>(columns, load, &x[at * cols..], out, at), 8 4 2 1);
}

#[inline(always)]
fn bf16_body<S: Simd>(panel: &[u8], x: &[f32], cols: usize, out: &PanelOut<'_>) {
    let columns = panel.as_chunks::<{ 2 * PANEL }>().0;
    let load = |column: &[u8; 2 * PANEL]| {
        let values = column.as_chunks::<2>().0;
        S::load(&std::array::from_fn(|lane| bf16_to_f32(u16::from_le_bytes(values[lane]))))
    };
    for_row_tiles!(x.len() / cols, |at, COUNT| tile::<S, COUNT, _>(columns, load, &x[at * cols..], out, at), 8 4 2 1);
}

/// Multiplies the first `R` rows of `x`, which are rows `at` and on of the output.
#[inline(always)]
fn tile<S: Simd, const R: usize, C>(
    columns: &[C],
    load: impl Fn(&C) -> S::V,
    x: &[f32],
    out: &PanelOut<'_>,
    at: usize,
) {
    let cols = columns.len();
    let rows: [&[f32]; R] = std::array::from_fn(|r| &x[r * cols..(r + 1) * cols]);
    let mut sums = [S::splat(0.0); R];
    for (k, column) in columns.iter().enumerate() {
        let weights = load(column);
        for r in 0..R {
            sums[r] = S::fma(weights, S::splat(rows[r][k]), sums[r]);
        }
    }
    for (r, sum) in sums.into_iter().enumerate() {
        let mut lanes = [0.0; PANEL];
        S::store(sum, &mut lanes);
        out.put(at + r, 0, &lanes);
    }
}
