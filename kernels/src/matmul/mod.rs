//! Products of activation rows with weight matrices.
//! One panel of sixteen output rows is one piece of work; each output has its own accumulator, to which blocks of 32
//! columns are added in ascending order. So a result never depends on how many rows or threads take part, and nothing
//! here may ever split a product along its columns.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
mod scalar;

use crate::activation::{ActivationBlock, BLOCK, quantise_row};
use crate::isa::Kind;
use crate::layout::{PANEL, PackedLayout};
use crate::shared::SharedSlice;
use crate::{Format, Isa, Team, WeightMatrix};

/// Memory that products reuse from call to call: the quantised activations.
#[derive(Default)]
pub struct Scratch {
    activations: Vec<ActivationBlock>,
}

impl Scratch {
    /// Bytes that products of `m` rows of `cols` activations take at most.
    pub fn bytes(m: usize, cols: usize) -> usize {
        m.saturating_mul(cols.div_ceil(BLOCK)).saturating_mul(size_of::<ActivationBlock>())
    }
}

/// One matrix to multiply with and where its result goes.
pub struct Product<'a> {
    /// The matrix.
    pub weights: &'a WeightMatrix,
    /// `m` rows of `weights.rows()` values.
    pub out: &'a mut [f32],
}

/// `out = x * weights^T`: `m` rows of `cols` values become `m` rows of `rows` values.
///
/// Panics when `x` does not hold `m * cols` values or `out` not `m * rows`.
pub fn matmul(team: &Team, weights: &WeightMatrix, x: &[f32], m: usize, out: &mut [f32], scratch: &mut Scratch) {
    matmul_all(team, x, m, &mut [Product { weights, out }], scratch);
}

/// Several products with the same activations, for example query, key and value: the activations are quantised once,
/// and the team meets once. The results are those of [`matmul`].
///
/// Panics when the matrices' column counts differ or a length does not fit them.
pub fn matmul_all(team: &Team, x: &[f32], m: usize, products: &mut [Product<'_>], scratch: &mut Scratch) {
    let Some(first) = products.first() else { return };
    let cols = first.weights.cols();
    assert_eq!(Some(x.len()), m.checked_mul(cols), "m rows of as many activations as the weights have columns");
    for product in products.iter() {
        assert_eq!(product.weights.cols(), cols, "matrices of one call have the same columns");
        assert_eq!(Some(product.out.len()), m.checked_mul(product.weights.rows()), "m rows of results");
    }
    if m == 0 {
        return;
    }
    let quantised = products.iter().find(|product| PackedLayout::of(product.weights.format()).is_some());
    if let Some(product) = quantised {
        quantise(team, product.weights.isa(), x, cols, scratch);
    }
    let blocks = cols / BLOCK;
    let activations = &scratch.activations[..if quantised.is_some() { m * blocks } else { 0 }];
    let jobs: Vec<Job<'_>> = products.iter_mut().map(Job::new).collect();
    let panels: usize = jobs.iter().map(|job| job.weights.panels()).sum();
    // Enough pieces that an uneven start evens out, few enough that taking them costs nothing.
    let piece = (panels / (16 * team.size())).max(1);
    team.run_each(panels.div_ceil(piece), |index| {
        for panel in index * piece..(index * piece + piece).min(panels) {
            run_panel(&jobs, panel, x, activations);
        }
    });
}

/// Below that many activations waking the team costs more than quantising.
const QUANTISE_ALONE_MAX: usize = 8192;

fn quantise(team: &Team, isa: Isa, x: &[f32], cols: usize, scratch: &mut Scratch) {
    let blocks = x.len() / BLOCK;
    if scratch.activations.len() < blocks {
        scratch.activations.resize(blocks, ActivationBlock::default());
    }
    let activations = &mut scratch.activations[..blocks];
    if x.len() <= QUANTISE_ALONE_MAX {
        quantise_row(isa, x, activations);
    } else {
        team.run_chunks(activations, cols / BLOCK, |row, blocks| {
            quantise_row(isa, &x[row * cols..(row + 1) * cols], blocks);
        });
    }
}

/// A product whose output several threads write.
struct Job<'a> {
    weights: &'a WeightMatrix,
    out: SharedSlice<'a, f32>,
}

impl<'a> Job<'a> {
    fn new(product: &'a mut Product<'_>) -> Self {
        Self { weights: product.weights, out: SharedSlice::new(product.out) }
    }
}

/// Computes the panel with that index, counted over all jobs.
fn run_panel(jobs: &[Job<'_>], mut index: usize, x: &[f32], activations: &[ActivationBlock]) {
    let Some(job) = jobs.iter().find(|job| {
        let here = index < job.weights.panels();
        if !here {
            index -= job.weights.panels();
        }
        here
    }) else {
        return;
    };
    let weights = job.weights;
    let out = PanelOut {
        out: &job.out,
        column: index * PANEL,
        width: PANEL.min(weights.rows() - index * PANEL),
        stride: weights.rows(),
    };
    let panel = weights.panel(index);
    match weights.format() {
        Format::F32 => float::panel_f32(weights.isa(), panel, x, weights.cols(), &out),
        Format::F16 => float::panel_f16(weights.isa(), panel, x, weights.cols(), &out),
        Format::BF16 => float::panel_bf16(weights.isa(), panel, x, weights.cols(), &out),
        Format::Q4_0 => panel_quantised::<Q4_0>(weights, panel, activations, &out),
        Format::Q4_1 => panel_quantised::<Q4_1>(weights, panel, activations, &out),
        Format::Q5_0 => panel_quantised::<Q5_0>(weights, panel, activations, &out),
        Format::Q5_1 => panel_quantised::<Q5_1>(weights, panel, activations, &out),
        Format::Q8_0 => panel_quantised::<Q8_0>(weights, panel, activations, &out),
        Format::Q2_K => panel_quantised::<Q2_K>(weights, panel, activations, &out),
        Format::Q3_K => panel_quantised::<Q3_K>(weights, panel, activations, &out),
        Format::Q4_K => panel_quantised::<Q4_K>(weights, panel, activations, &out),
        Format::Q5_K => panel_quantised::<Q5_K>(weights, panel, activations, &out),
        Format::Q6_K => panel_quantised::<Q6_K>(weights, panel, activations, &out),
        Format::IQ4_NL => panel_quantised::<IQ4_NL>(weights, panel, activations, &out),
        Format::IQ4_XS => panel_quantised::<IQ4_XS>(weights, panel, activations, &out),
        Format::MXFP4 => panel_quantised::<MXFP4>(weights, panel, activations, &out),
    }
}

fn panel_quantised<P: Packed>(
    weights: &WeightMatrix,
    panel: &[u8],
    activations: &[ActivationBlock],
    out: &PanelOut<'_>,
) {
    let blocks = weights.cols() / BLOCK;
    match weights.isa().kind() {
        Kind::Scalar => scalar::panel::<P>(panel, activations, blocks, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the processor has these features.
        Kind::Avx2 => unsafe { avx2::panel::<P>(panel, activations, blocks, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the processor has these features.
        Kind::Avx512 => unsafe { avx512::panel::<P>(panel, activations, blocks, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: an `Isa` of this kind exists only where the processor has these features.
        Kind::Neon => unsafe { neon::panel::<P>(panel, activations, blocks, out) },
    }
}

/// The columns of the output that one panel computes.
struct PanelOut<'a> {
    out: &'a SharedSlice<'a, f32>,
    column: usize,
    width: usize,
    stride: usize,
}

impl PanelOut<'_> {
    /// Writes lanes `first..first + lanes.len()` of one activation row's result; lanes beyond the matrix are dropped.
    #[inline]
    fn put(&self, row: usize, first: usize, lanes: &[f32]) {
        let width = lanes.len().min(self.width.saturating_sub(first));
        if width == 0 {
            return;
        }
        // SAFETY: `run_each` gives each panel to one thread, panels own disjoint columns, and the borrow ends here.
        let part = unsafe { self.out.part(row * self.stride + self.column + first, width) };
        part.copy_from_slice(&lanes[..width]);
    }
}

/// A quantised format as a type, so that kernels are compiled for each.
trait Packed {
    const FORMAT: Format;
    const LAYOUT: PackedLayout = match PackedLayout::of(Self::FORMAT) {
        Some(layout) => layout,
        None => unreachable!(),
    };
}

macro_rules! packed {
    ($($name:ident)*) => {
        $(
            #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "the formats' own names")]
            struct $name;
            impl Packed for $name {
                const FORMAT: Format = Format::$name;
            }
        )*
    };
}
packed! { Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 }

/// Calls `$tile::<P, R>` over all activation rows, `$max` or as many as are left at a time. A macro, because a
/// function that inherits `target_feature` cannot be passed as a value without losing its inlining.
macro_rules! for_row_tiles {
    ($rows:expr, |$at:ident, $count:ident| $call:expr, $($size:literal)*) => {
        let mut $at = 0;
        while $at < $rows {
            let left = $rows - $at;
            $(
                if left >= $size {
                    const $count: usize = $size;
                    $call;
                    $at += $size;
                    continue;
                }
            )*
        }
    };
}
pub(crate) use for_row_tiles;

/// The blocks of `R` activation rows from row `at` on.
#[inline]
fn row_blocks<const R: usize>(activations: &[ActivationBlock], at: usize, blocks: usize) -> [&[ActivationBlock]; R] {
    let mut rows = [activations; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &activations[(at + r) * blocks..(at + r + 1) * blocks];
    }
    rows
}

/// How far ahead weights are asked for when they come from memory: the processor's own prefetching stops at every page,
/// which costs small batches up to a third of their speed.
#[cfg(target_arch = "x86_64")]
const AHEAD_BYTES: usize = 8192;

/// Asks for the weights `AHEAD_BYTES` behind these.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch(packed: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in (0..packed.len()).step_by(64) {
        let ahead = packed.as_ptr().wrapping_add(AHEAD_BYTES + line);
        // SAFETY: a prefetch changes nothing the program sees and may have any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
    }
}
