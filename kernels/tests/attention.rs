//! Paged attention: against an f64 reference over shuffled block tables, and its invariances, bit for bit.

mod common;

use common::Numbers;
use midstream_kernels::{
    AttentionArgs, AttentionRow, AttentionScratch, Isa, KV_BLOCK, Team, attention, f16_to_f32, f32_to_f16_slice,
};

/// Heads, key-value heads, head size.
type Shape = (usize, usize, usize);

const SHAPES: [Shape; 6] = [(9, 3, 64), (4, 4, 16), (2, 1, 80), (5, 1, 128), (2, 2, 256), (3, 1, 7)];
const LENGTHS: [usize; 11] = [0, 1, 15, 16, 17, 31, 32, 33, 300, 512, 1100];

/// A pool and, for each length, a query row with its own shuffled blocks.
struct Case {
    shape: Shape,
    k: Vec<u16>,
    v: Vec<u16>,
    q: Vec<f32>,
    tables: Vec<Vec<u32>>,
    lengths: Vec<usize>,
    window: Option<usize>,
    sinks: Option<Vec<f32>>,
}

impl Case {
    fn new(shape: Shape, lengths: &[usize]) -> Self {
        let (n_heads, n_kv_heads, head_dim) = shape;
        let mut numbers = Numbers::new(head_dim as u64);
        let counts: Vec<usize> = lengths.iter().map(|len| len.div_ceil(KV_BLOCK)).collect();
        let blocks: usize = counts.iter().sum();
        let mut order: Vec<u32> = (0..blocks as u32).collect();
        for i in (1..blocks).rev() {
            order.swap(i, numbers.below(i + 1));
        }
        let mut order = order.into_iter();
        let tables = counts.iter().map(|count| order.by_ref().take(*count).collect()).collect();
        let mut pool = || {
            let values = numbers.units(blocks * n_kv_heads * KV_BLOCK * head_dim);
            let mut bits = vec![0; values.len()];
            f32_to_f16_slice(Isa::SCALAR, &values, &mut bits);
            bits
        };
        let (k, v) = (pool(), pool());
        let q = numbers.units(lengths.len() * n_heads * head_dim).into_iter().map(|x| 3.0 * x).collect();
        Self { shape, k, v, q, tables, lengths: lengths.to_vec(), window: None, sinks: None }
    }

    /// The case as it is, with windows shorter and longer than runs and segments, and with sinks.
    fn variants(shape: Shape, lengths: &[usize]) -> impl Iterator<Item = Self> {
        let sinks = Some((0..shape.0).map(|head| head as f32 - 2.0).collect::<Vec<_>>());
        let windows = [(None, false), (None, true), (Some(1), false), (Some(33), true), (Some(600), false)];
        windows.into_iter().map(move |(window, has_sinks)| Self {
            window,
            sinks: sinks.clone().filter(|_| has_sinks),
            ..Self::new(shape, lengths)
        })
    }

    fn rows(&self) -> Vec<AttentionRow<'_>> {
        let rows = self.tables.iter().zip(&self.lengths);
        rows.map(|(block_table, len)| AttentionRow { block_table, len: *len }).collect()
    }

    fn run(&self, team: &Team, isa: Isa, rows: &[AttentionRow<'_>], q: &[f32]) -> Vec<f32> {
        let (n_heads, n_kv_heads, head_dim) = self.shape;
        let (k, v) = (&self.k[..], &self.v[..]);
        let (window, sinks) = (self.window, self.sinks.as_deref());
        let scale = 0.3;
        let args = AttentionArgs { q, n_heads, n_kv_heads, head_dim, scale, k, v, window, sinks, rows };
        let mut out = vec![f32::NAN; q.len()];
        attention(team, isa, &args, &mut out, &mut AttentionScratch::default());
        out
    }

    fn reference(&self, row: usize, head: usize) -> Vec<f64> {
        let (n_heads, n_kv_heads, head_dim) = self.shape;
        // Where a position's block begins for this head, and its place in it.
        let at = |position: usize| {
            let block = self.tables[row][position / KV_BLOCK] as usize;
            let kv_head = head / (n_heads / n_kv_heads);
            ((block * n_kv_heads + kv_head) * KV_BLOCK * head_dim, position % KV_BLOCK)
        };
        let key = |position: usize, d: usize| {
            let (start, slot) = at(position);
            f64::from(f16_to_f32(self.k[start + d * KV_BLOCK + slot]))
        };
        let value = |position: usize, d: usize| {
            let (start, slot) = at(position);
            f64::from(f16_to_f32(self.v[start + slot * head_dim + d]))
        };
        let query = &self.q[(row * n_heads + head) * head_dim..][..head_dim];
        let len = self.lengths[row];
        let first = len.saturating_sub(self.window.unwrap_or(len));
        let scores: Vec<f64> = (first..len)
            .map(|p| 0.3 * query.iter().enumerate().map(|(d, q)| f64::from(*q) * key(p, d)).sum::<f64>())
            .collect();
        let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
        let sink = self.sinks.as_ref().map_or(0.0, |sinks| (f64::from(sinks[head]) - greatest).exp());
        let total: f64 = weights.iter().sum::<f64>() + sink;
        let mut out = vec![0.0; head_dim];
        for (p, weight) in weights.iter().enumerate() {
            for (d, out) in out.iter_mut().enumerate() {
                *out += weight / total * value(first + p, d);
            }
        }
        out
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn attention_matches_the_reference_for_every_isa_shape_and_length() {
    let team = Team::new(2);
    for case in SHAPES.into_iter().flat_map(|shape| Case::variants(shape, &LENGTHS)) {
        let (shape, (n_heads, _, head_dim)) = (case.shape, case.shape);
        for isa in Isa::available() {
            let out = case.run(&team, isa, &case.rows(), &case.q);
            for (i, out) in out.chunks(head_dim).enumerate() {
                let expected = case.reference(i / n_heads, i % n_heads);
                for (out, expected) in out.iter().zip(&expected) {
                    let error = (f64::from(*out) - expected).abs();
                    assert!(error < 5e-6, "{shape:?} row {} on {}: {out} for {expected}", i / n_heads, isa.name());
                }
            }
        }
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_other_rows_threads_or_the_isa() {
    for case in SHAPES.into_iter().flat_map(|shape| Case::variants(shape, &LENGTHS)) {
        let (shape, row_len) = (case.shape, case.shape.0 * case.shape.2);
        let rows = case.rows();
        let one = Team::new(1);
        let alone: Vec<u32> = rows
            .iter()
            .enumerate()
            .flat_map(|(i, row)| bits(&case.run(&one, Isa::SCALAR, &[*row], &case.q[i * row_len..(i + 1) * row_len])))
            .collect();
        for isa in Isa::available() {
            for size in 1..=3 {
                let out = case.run(&Team::new(size), isa, &rows, &case.q);
                assert_eq!(bits(&out), alone, "{shape:?} on {} with {size} threads", isa.name());
            }
        }
    }
}

#[test]
fn rows_computed_together_have_the_bits_of_rows_computed_alone() {
    // A prompt: rows of one sequence, each seeing one position more, some tiles longer than a segment.
    let shape = (9, 3, 64);
    let row_len = 9 * 64;
    let team = Team::new(2);
    for mut case in Case::variants(shape, &[1300]) {
        case.q = Numbers::new(1).units(40 * row_len);
        for first in [1, 250, 490, 1250] {
            let rows: Vec<AttentionRow<'_>> =
                (0..40).map(|i| AttentionRow { block_table: &case.tables[0], len: first + i }).collect();
            for isa in Isa::available() {
                let together = bits(&case.run(&team, isa, &rows, &case.q));
                for (i, row) in rows.iter().enumerate() {
                    let span = i * row_len..(i + 1) * row_len;
                    let alone = bits(&case.run(&team, isa, &[*row], &case.q[span.clone()]));
                    assert_eq!(together[span], alone, "row {i} from {first} on {}", isa.name());
                }
            }
        }
    }
}

#[test]
fn a_window_that_shows_everything_changes_nothing() {
    let mut case = Case::new((4, 2, 32), &LENGTHS);
    let team = Team::new(1);
    for isa in Isa::available() {
        case.window = None;
        let all = bits(&case.run(&team, isa, &case.rows(), &case.q));
        case.window = Some(1100);
        assert_eq!(bits(&case.run(&team, isa, &case.rows(), &case.q)), all);
    }
}

#[test]
fn the_order_of_blocks_in_the_pool_changes_nothing() {
    let case = Case::new((4, 2, 32), &[200]);
    let (block_len, count) = (2 * 16 * 32, case.tables[0].len());
    let mut sorted = Case::new((4, 2, 32), &[200]);
    for (i, block) in case.tables[0].iter().enumerate() {
        let (from, to) = (*block as usize * block_len, i * block_len);
        sorted.k[to..to + block_len].copy_from_slice(&case.k[from..from + block_len]);
        sorted.v[to..to + block_len].copy_from_slice(&case.v[from..from + block_len]);
    }
    sorted.tables = vec![(0..count as u32).collect()];
    let team = Team::new(1);
    for isa in Isa::available() {
        let found = case.run(&team, isa, &case.rows(), &case.q);
        assert_eq!(bits(&found), bits(&sorted.run(&team, isa, &sorted.rows(), &case.q)));
    }
}

#[test]
fn a_block_outside_the_pool_or_a_short_table_is_refused() {
    let case = Case::new((2, 1, 16), &[20]);
    let team = Team::new(1);
    for (table, len) in [(vec![0, 2], 20), (vec![0], 17), (vec![], 1)] {
        let row = AttentionRow { block_table: &table, len };
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.run(&team, Isa::SCALAR, &[row], &case.q)));
        assert!(result.is_err(), "{table:?}");
    }
}
