//! Paged attention: against an f64 reference over shuffled block tables, and its invariances, bit for bit.

mod common;

use common::Numbers;
use midstream_kernels::{
    AttentionArgs, AttentionRow, AttentionScratch, Isa, KV_BLOCK, KvFormat, KvLayer, Team, attention, f16_to_f32,
};

/// Heads, key-value heads, head size.
type Shape = (usize, usize, usize);

const SHAPES: [Shape; 6] = [(9, 3, 64), (4, 4, 16), (2, 1, 80), (5, 1, 128), (2, 2, 256), (3, 1, 7)];
const LENGTHS: [usize; 11] = [0, 1, 15, 16, 17, 31, 32, 33, 300, 512, 1100];

/// A pool and, for each length, a query row with its own shuffled blocks.
struct Case {
    shape: Shape,
    kv: KvLayer,
    q: Vec<f32>,
    tables: Vec<Vec<u32>>,
    lengths: Vec<usize>,
    window: Option<usize>,
    sinks: Option<Vec<f32>>,
}

impl Case {
    fn new(format: KvFormat, shape: Shape, lengths: &[usize]) -> Self {
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
        let mut kv = KvLayer::new(format, blocks, n_kv_heads, head_dim);
        for place in (0..blocks).flat_map(|block| (0..KV_BLOCK).map(move |slot| (block, slot))) {
            let mut heads = || numbers.units(n_kv_heads * head_dim);
            kv.write(Isa::SCALAR, place, &heads(), &heads());
        }
        let q = numbers.units(lengths.len() * n_heads * head_dim).into_iter().map(|x| 3.0 * x).collect();
        Self { shape, kv, q, tables, lengths: lengths.to_vec(), window: None, sinks: None }
    }

    /// The case in each format that takes its heads: as it is, with windows shorter and longer than runs and segments,
    /// and with sinks.
    fn variants(shape: Shape, lengths: &[usize]) -> impl Iterator<Item = Self> {
        let sinks = Some((0..shape.0).map(|head| head as f32 - 2.0).collect::<Vec<_>>());
        let windows = [(None, false), (None, true), (Some(1), false), (Some(33), true), (Some(600), false)];
        let formats = KvFormat::ALL.into_iter().filter(move |format| format.takes(shape.2));
        let variants = formats.flat_map(move |format| windows.map(|variant| (format, variant)));
        variants.map(move |(format, (window, has_sinks))| Self {
            window,
            sinks: sinks.clone().filter(|_| has_sinks),
            ..Self::new(format, shape, lengths)
        })
    }

    fn rows(&self) -> Vec<AttentionRow<'_>> {
        let rows = self.tables.iter().zip(&self.lengths);
        rows.map(|(block_table, len)| AttentionRow { block_table, len: *len }).collect()
    }

    fn run(&self, team: &Team, isa: Isa, rows: &[AttentionRow<'_>], q: &[f32]) -> Vec<f32> {
        let n_heads = self.shape.0;
        let (window, sinks) = (self.window, self.sinks.as_deref());
        let scale = 0.3;
        let args = AttentionArgs { q, n_heads, scale, kv: &self.kv, window, sinks, rows };
        let mut out = vec![f32::NAN; q.len()];
        attention(team, isa, &args, &mut out, &mut AttentionScratch::default());
        out
    }

    /// A block's keys, then its values, as its bytes have them: `[head][position][value]`.
    fn read(&self, block: usize) -> [Vec<f64>; 2] {
        let (_, heads, head_dim) = self.shape;
        let (values, groups) = (heads * KV_BLOCK * head_dim, head_dim.div_ceil(32));
        let mut bytes = Vec::new();
        self.kv.read_block(block, &mut bytes);
        let half =
            |bytes: &[u8], at: usize| f64::from(f16_to_f32(u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])));
        let (keys, rest) = bytes.split_at(bytes.len() / 2);
        let read = |part: &[u8], is_by_value: bool| -> Vec<f64> {
            (0..values)
                .map(|index| {
                    let (head, slot, d) = (index / head_dim / KV_BLOCK, index / head_dim % KV_BLOCK, index % head_dim);
                    let in_head = if is_by_value { d * KV_BLOCK + slot } else { slot * head_dim + d };
                    let at = head * KV_BLOCK * head_dim + in_head;
                    let scale = (head * groups + d / 32) * KV_BLOCK + slot;
                    match self.kv.format() {
                        KvFormat::F16 => half(part, at),
                        KvFormat::Q8 => f64::from(part[at].cast_signed()) * half(&part[values..], scale),
                    }
                })
                .collect()
        };
        [read(keys, true), read(rest, false)]
    }

    /// What a row and a head must give, from all blocks as they are read.
    fn reference(&self, blocks: &[[Vec<f64>; 2]], row: usize, head: usize) -> Vec<f64> {
        let (n_heads, n_kv_heads, head_dim) = self.shape;
        let block = |position: usize| &blocks[self.tables[row][position / KV_BLOCK] as usize];
        let at = |position: usize, d: usize| {
            let kv_head = head / (n_heads / n_kv_heads);
            (kv_head * KV_BLOCK + position % KV_BLOCK) * head_dim + d
        };
        let key = |position: usize, d: usize| block(position)[0][at(position, d)];
        let value = |position: usize, d: usize| block(position)[1][at(position, d)];
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
        let blocks: Vec<_> = (0..case.tables.iter().map(Vec::len).sum()).map(|block| case.read(block)).collect();
        for isa in Isa::available() {
            let out = case.run(&team, isa, &case.rows(), &case.q);
            for (i, out) in out.chunks(head_dim).enumerate() {
                let expected = case.reference(&blocks, i / n_heads, i % n_heads);
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
    let mut case = Case::new(KvFormat::F16, (4, 2, 32), &LENGTHS);
    let team = Team::new(1);
    for isa in Isa::available() {
        case.window = None;
        let all = bits(&case.run(&team, isa, &case.rows(), &case.q));
        case.window = Some(1100);
        assert_eq!(bits(&case.run(&team, isa, &case.rows(), &case.q)), all);
    }
}

#[test]
fn the_order_of_blocks_in_the_pool_changes_nothing_and_a_block_can_be_put_anywhere() {
    for format in KvFormat::ALL {
        let case = Case::new(format, (4, 2, 32), &[200]);
        let mut sorted = Case::new(format, (4, 2, 32), &[200]);
        for (i, block) in case.tables[0].iter().enumerate() {
            let mut bytes = Vec::new();
            case.kv.read_block(*block as usize, &mut bytes);
            assert_eq!(bytes.len(), format.block_bytes(2, 32));
            bytes.push(7);
            assert_eq!(sorted.kv.write_block(i, &bytes), [7], "what lies behind is left");
        }
        sorted.tables = vec![(0..case.tables[0].len() as u32).collect()];
        let team = Team::new(1);
        for isa in Isa::available() {
            let found = case.run(&team, isa, &case.rows(), &case.q);
            assert_eq!(bits(&found), bits(&sorted.run(&team, isa, &sorted.rows(), &case.q)));
        }
    }
}

#[test]
fn int8_keeps_what_was_written_to_half_a_step_on_every_isa_and_shows_what_is_no_number() {
    let (heads, head_dim) = (2, 80);
    let mut numbers = Numbers::new(3);
    let key: Vec<f32> = numbers.units(heads * head_dim).iter().map(|x| 40.0 * x).collect();
    let mut value = numbers.units(heads * head_dim);
    value[5] = f32::NAN;
    for isa in Isa::available() {
        let mut case = Case::new(KvFormat::Q8, (2, heads, head_dim), &[20]);
        case.kv.write(isa, (1, 3), &key, &value);
        let [keys, values] = case.read(1);
        for (index, written) in key.iter().enumerate() {
            let (head, d) = (index / head_dim, index % head_dim);
            let group = &key[head * head_dim..][d / 32 * 32..(d / 32 * 32 + 32).min(head_dim)];
            let step = group.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 127.0;
            let found = keys[(head * KV_BLOCK + 3) * head_dim + d];
            assert!((found - f64::from(*written)).abs() <= 0.6 * f64::from(step), "{found} for {written}");
        }
        assert!(values[3 * head_dim + 5].is_nan() && !values[3 * head_dim + 32].is_nan());
    }
}

#[test]
fn a_block_outside_the_pool_or_a_short_table_is_refused() {
    let case = Case::new(KvFormat::F16, (2, 1, 16), &[20]);
    let team = Team::new(1);
    for (table, len) in [(vec![0, 2], 20), (vec![0], 17), (vec![], 1)] {
        let row = AttentionRow { block_table: &table, len };
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.run(&team, Isa::SCALAR, &[row], &case.q)));
        assert!(result.is_err(), "{table:?}");
    }
}
