//! Products with F32 and F16 weights, in f32: one accumulator per output, columns in ascending order, fused
//! multiply-add. It must never reorder columns.

use super::{PanelOut, for_row_tiles};
use crate::half::Widen;
use crate::isa::for_each_isa;
use crate::pack::PANEL;

for_each_isa! {
    /// Multiplies one panel of F32 weights with all rows of `x`.
    pub(super) fn panel_f32(panel: &[u8], x: &[f32], cols: usize, out: &PanelOut<'_>) = f32_body;
}

for_each_isa! {
    /// Multiplies one panel of F16 weights with all rows of `x`.
    pub(super) fn panel_f16(panel: &[u8], x: &[f32], cols: usize, out: &PanelOut<'_>) = f16_body;
}

#[inline(always)]
fn f32_body<W: Widen>(panel: &[u8], x: &[f32], cols: usize, out: &PanelOut<'_>) {
    let columns = panel.as_chunks::<{ 4 * PANEL }>().0;
    let load = |column: &[u8; 4 * PANEL]| -> [f32; PANEL] {
        let values = column.as_chunks::<4>().0;
        std::array::from_fn(|lane| f32::from_le_bytes(values[lane]))
    };
    for_row_tiles!(x.len() / cols, |at, COUNT| tile::<COUNT, _>(columns, load, x, cols, at, out), 8 4 2 1);
}

#[inline(always)]
fn f16_body<W: Widen>(panel: &[u8], x: &[f32], cols: usize, out: &PanelOut<'_>) {
    let columns = panel.as_chunks::<{ 2 * PANEL }>().0;
    let load = |column: &[u8; 2 * PANEL]| -> [f32; PANEL] {
        let values = column.as_chunks::<2>().0;
        W::widen(&std::array::from_fn(|lane| u16::from_le_bytes(values[lane])))
    };
    for_row_tiles!(x.len() / cols, |at, COUNT| tile::<COUNT, _>(columns, load, x, cols, at, out), 8 4 2 1);
}

#[inline(always)]
fn tile<const R: usize, C>(
    columns: &[C],
    load: impl Fn(&C) -> [f32; PANEL],
    x: &[f32],
    cols: usize,
    at: usize,
    out: &PanelOut<'_>,
) {
    let rows: [&[f32]; R] = std::array::from_fn(|r| &x[(at + r) * cols..(at + r) * cols + columns.len()]);
    let mut sums = [[0.0_f32; PANEL]; R];
    for (k, column) in columns.iter().enumerate() {
        let weights = load(column);
        for (sums, row) in sums.iter_mut().zip(rows) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = weight.mul_add(row[k], *sum);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        out.put(at + r, 0, sums);
    }
}
