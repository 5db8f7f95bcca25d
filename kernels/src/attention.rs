//! Attention of query rows over a paged pool of keys and values, with a running softmax; over all positions or a
//! window of the last ones, with or without sinks.
//! Positions are always taken in the same fixed runs, counted from position 0: a row's result must never depend on the
//! other rows, on the block table's order or on the number of threads.

use std::ops::Range;

use crate::isa::for_each_isa;
use crate::math::{LANES, exp, max};
use crate::shared::SharedSlice;
use crate::simd::{Simd, exp as exp_lanes, load_part, store_part};
use crate::{Isa, Team};

/// The longest head there is room for.
pub const HEAD_DIM_MAX: usize = 256;

/// Positions that are scored together and share one step of the running softmax.
const CHUNK: usize = 2 * LANES;

/// Positions of one piece of work. Longer rows are computed in several pieces, merged in ascending order, so that one
/// long row can use the whole team.
const SEGMENT: usize = 512;

/// Rows with the same block table that are computed together: each key and value is then widened once for all.
const TILE_ROWS_MAX: usize = 8;

/// What attention reads.
#[derive(Clone, Copy)]
pub struct AttentionArgs<'a> {
    /// Queries, `[rows][n_heads][head_dim]`.
    pub q: &'a [f32],
    /// Query heads.
    pub n_heads: usize,
    /// Key-value heads; query head `h` uses head `h / (n_heads / n_kv_heads)`.
    pub n_kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// What scores are multiplied with.
    pub scale: f32,
    /// One layer's keys as f16 bits, `[blocks][n_kv_heads][block_size][head_dim]`.
    pub k: &'a [u16],
    /// The same layer's values.
    pub v: &'a [u16],
    /// Positions in a block.
    pub block_size: usize,
    /// How many positions a row sees at most, the last ones; all when there is none.
    pub window: Option<usize>,
    /// One score per query head that takes part in the softmax and has no value: weight that goes nowhere.
    pub sinks: Option<&'a [f32]>,
    /// One entry per query row. Neighbouring rows that share a `block_table` slice are computed together, which is
    /// much faster and changes no result.
    pub rows: &'a [AttentionRow<'a>],
}

/// What one query row sees.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRow<'a> {
    /// The pool's blocks that hold the row's positions, in order of position.
    pub block_table: &'a [u32],
    /// The row sees positions `0..len`, the last of them where there is a window. A row that sees nothing gets zeros.
    pub len: usize,
}

impl AttentionArgs<'_> {
    /// The first position that a row sees.
    fn first(&self, row: usize) -> usize {
        self.window.map_or(0, |window| self.rows[row].len.saturating_sub(window))
    }

    /// The sinks of the query heads that share a key-value head.
    fn sinks_of(&self, kv_head: usize) -> Option<&[f32]> {
        let group = self.n_heads / self.n_kv_heads;
        self.sinks.map(|sinks| &sinks[kv_head * group..(kv_head + 1) * group])
    }
}

/// Memory that attention reuses from call to call.
#[derive(Default)]
pub struct AttentionScratch {
    tiles: Vec<(usize, usize)>,
    values: Vec<f32>,
    states: Vec<[f32; 2]>,
}

/// `out[row][head] = softmax(q k^T * scale) v` over the positions each row sees; `out` is laid out like `q`.
///
/// Panics when a length does not fit the shape, a block number or position lies outside the pool or table, `n_heads`
/// is no multiple of `n_kv_heads`, `head_dim` exceeds [`HEAD_DIM_MAX`], or the window is empty.
pub fn attention(team: &Team, isa: Isa, args: &AttentionArgs<'_>, out: &mut [f32], scratch: &mut AttentionScratch) {
    check(args, out.len());
    let segments = args.rows.iter().map(|row| row.len.div_ceil(SEGMENT)).max().unwrap_or(0).max(1);
    let group = args.n_heads / args.n_kv_heads;
    let heads_len = group * args.head_dim;
    let pieces = args.rows.len() * args.n_kv_heads * segments;
    find_tiles(args.rows, &mut scratch.tiles);
    grow(&mut scratch.states, pieces * group);
    if segments > 1 {
        grow(&mut scratch.values, pieces * heads_len);
    }
    let AttentionScratch { tiles, values, states } = scratch;
    // With one segment the pieces lie just like the output's heads.
    let values = SharedSlice::new(if segments > 1 { values } else { &mut *out });
    let states = SharedSlice::new(states);
    team.run_each(tiles.len() * args.n_kv_heads * segments, |index| {
        let (tile, kv_head, segment) =
            (index / segments / args.n_kv_heads, index / segments % args.n_kv_heads, index % segments);
        let piece = Piece { args, rows: tiles[tile], kv_head, segment, segments, values: &values, states: &states };
        match args.head_dim {
            ..=64 => run_64(isa, &piece),
            65..=128 => run_128(isa, &piece),
            _ => run_256(isa, &piece),
        }
    });
    if segments > 1 {
        let values: &[f32] = &scratch.values;
        let states: &[[f32; 2]] = &scratch.states;
        team.run_chunks(out, heads_len, |item, out| {
            let row = item / args.n_kv_heads;
            let first = args.first(row) / SEGMENT;
            let used = args.rows[row].len.div_ceil(SEGMENT).max(1) - first;
            let values = values[(item * segments + first) * heads_len..].chunks_exact(heads_len).take(used);
            let states = states[(item * segments + first) * group..].chunks_exact(group).take(used);
            merge(values.zip(states), args.sinks_of(item % args.n_kv_heads), out, args.head_dim);
        });
    }
}

fn grow<T: Copy + Default>(memory: &mut Vec<T>, len: usize) {
    if memory.len() < len {
        memory.resize(len, T::default());
    }
}

/// Query heads that may share one key-value head.
const GROUP_MAX: usize = 64;

fn check(args: &AttentionArgs<'_>, out_len: usize) {
    let AttentionArgs { n_heads, n_kv_heads, head_dim, block_size, .. } = *args;
    assert!(n_kv_heads > 0 && n_heads > 0 && n_heads.is_multiple_of(n_kv_heads), "whole groups of query heads");
    assert!(n_heads / n_kv_heads <= GROUP_MAX, "no more query heads in a group than there is room for");
    assert!((1..=HEAD_DIM_MAX).contains(&head_dim) && block_size > 0, "a head and a block hold something");
    let row_len = n_heads * head_dim;
    assert!(args.q.len() == args.rows.len() * row_len && out_len == args.q.len(), "one query per row and head");
    assert_eq!(args.k.len(), args.v.len(), "as many values as keys");
    assert!(args.window != Some(0), "a window shows something");
    assert!(args.sinks.is_none_or(|sinks| sinks.len() == n_heads), "a sink for every query head");
    let blocks = args.k.len() / (n_kv_heads * block_size * head_dim);
    for row in args.rows {
        let used = row.len.div_ceil(block_size);
        assert!(used <= row.block_table.len(), "a block for every position a row sees");
        assert!(row.block_table[..used].iter().all(|block| (*block as usize) < blocks), "blocks inside the pool");
    }
}

/// Cuts the rows into runs that share a block table.
fn find_tiles(rows: &[AttentionRow<'_>], tiles: &mut Vec<(usize, usize)>) {
    tiles.clear();
    for (index, row) in rows.iter().enumerate() {
        match tiles.last_mut() {
            Some((first, end))
                if *end - *first < TILE_ROWS_MAX && std::ptr::eq(rows[*first].block_table, row.block_table) =>
            {
                *end += 1;
            }
            _ => tiles.push((index, index + 1)),
        }
    }
}

/// Merges the partial results of one row and key-value head, first to last.
fn merge<'a>(
    mut partials: impl Iterator<Item = (&'a [f32], &'a [[f32; 2]])>,
    sinks: Option<&[f32]>,
    out: &mut [f32],
    head_dim: usize,
) {
    let mut totals = [[0.0; 2]; GROUP_MAX];
    let totals = &mut totals[..out.len() / head_dim];
    if let Some((values, states)) = partials.next() {
        out.copy_from_slice(values);
        totals.copy_from_slice(states);
    }
    for (values, states) in partials {
        let heads = out.chunks_exact_mut(head_dim).zip(values.chunks_exact(head_dim));
        for ((out, values), (total, state)) in heads.zip(totals.iter_mut().zip(states)) {
            let greatest = max(total[0], state[0]);
            let (old, new) = (exp(total[0] - greatest), exp(state[0] - greatest));
            *total = [greatest, total[1].mul_add(old, state[1] * new)];
            for (out, value) in out.iter_mut().zip(values) {
                *out = out.mul_add(old, value * new);
            }
        }
    }
    finish(out, totals, sinks, head_dim);
}

/// Divides by the sums of the softmax.
fn finish(out: &mut [f32], states: &[[f32; 2]], sinks: Option<&[f32]>, head_dim: usize) {
    for (head, (out, [greatest, sum])) in out.chunks_exact_mut(head_dim).zip(states).enumerate() {
        let factor = match sinks {
            // A row that sees nothing has sum 0 and stays 0.
            _ if *sum == 0.0 => 0.0,
            None => 1.0 / sum,
            Some(sinks) => {
                let highest = max(*greatest, sinks[head]);
                let shrink = exp(greatest - highest);
                shrink / sum.mul_add(shrink, exp(sinks[head] - highest))
            }
        };
        for out in out {
            *out *= factor;
        }
    }
}

/// One piece of work: some rows that share a block table, one key-value head, one segment of positions.
struct Piece<'a> {
    args: &'a AttentionArgs<'a>,
    /// First row and the one behind the last.
    rows: (usize, usize),
    kv_head: usize,
    segment: usize,
    segments: usize,
    /// `[row][kv head][segment][head of the group][head_dim]`, sums of weighted values.
    values: &'a SharedSlice<'a, f32>,
    /// `[row][kv head][segment][head of the group]`, greatest score and sum of weights.
    states: &'a SharedSlice<'a, [f32; 2]>,
}

for_each_isa! { fn run_64(piece: &Piece<'_>) = body_64; }
for_each_isa! { fn run_128(piece: &Piece<'_>) = body_128; }
for_each_isa! { fn run_256(piece: &Piece<'_>) = body_256; }

#[inline(always)]
fn body_64<S: Simd>(piece: &Piece<'_>) {
    piece_body::<S, 4>(piece);
}

#[inline(always)]
fn body_128<S: Simd>(piece: &Piece<'_>) {
    piece_body::<S, 8>(piece);
}

#[inline(always)]
fn body_256<S: Simd>(piece: &Piece<'_>) {
    piece_body::<S, 16>(piece);
}

/// A head's values in `D` vectors, zero behind `head_dim`, for every position of a chunk.
type Rows<const D: usize> = [[[f32; LANES]; D]; CHUNK];

#[inline(always)]
fn piece_body<S: Simd, const D: usize>(piece: &Piece<'_>) {
    let args = piece.args;
    let (head_dim, group) = (args.head_dim, args.n_heads / args.n_kv_heads);
    let rows = piece.rows.0..piece.rows.1;
    let segment_start = piece.segment * SEGMENT;
    let end_of = |row: usize| args.rows[row].len.min(segment_start + SEGMENT);
    let end = rows.clone().map(end_of).max().unwrap_or(0);
    // Runs begin at the same positions with and without a window.
    let first = rows.clone().map(|row| args.first(row)).min().unwrap_or(0);
    let begin = segment_start.max(first / CHUNK * CHUNK);
    let at = |row: usize| (row * args.n_kv_heads + piece.kv_head) * piece.segments + piece.segment;
    for row in rows.clone() {
        // SAFETY: a row, key-value head and segment belong to one piece only; the borrow ends here.
        unsafe { piece.values.part(at(row) * group * head_dim, group * head_dim) }.fill(0.0);
        // SAFETY: as above.
        unsafe { piece.states.part(at(row) * group, group) }.fill([f32::NEG_INFINITY, 0.0]);
    }
    let (mut keys, mut values): (Rows<D>, Rows<D>) = ([[[0.0; LANES]; D]; CHUNK], [[[0.0; LANES]; D]; CHUNK]);
    for start in (begin..end).step_by(CHUNK) {
        widen_chunk::<S, D>(piece, start..end.min(start + CHUNK), &mut keys, &mut values);
        for row in rows.clone().filter(|row| start < end_of(*row) && args.first(*row) < start + CHUNK) {
            let seen = &(args.first(row).saturating_sub(start)..CHUNK.min(end_of(row) - start));
            let queries = &args.q[(row * args.n_heads + piece.kv_head * group) * head_dim..][..group * head_dim];
            // SAFETY: a row, key-value head and segment belong to one piece only; the borrow ends with this round.
            let out = unsafe { piece.values.part(at(row) * group * head_dim, group * head_dim) };
            // SAFETY: as above.
            let states = unsafe { piece.states.part(at(row) * group, group) };
            let heads = queries.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
            for ((query, out), state) in heads.zip(states) {
                let mut scores = score::<S, D>(query, &keys, seen, args.scale);
                let shrink = softmax_step::<S>(&mut scores, seen, state);
                add_values::<S, D>(scores.as_flattened(), &values, seen, shrink, out);
            }
        }
    }
    if piece.segments == 1 {
        for row in rows {
            // SAFETY: a row, key-value head and segment belong to one piece only; the borrow ends here.
            let out = unsafe { piece.values.part(at(row) * group * head_dim, group * head_dim) };
            // SAFETY: as above.
            let states = unsafe { piece.states.part(at(row) * group, group) };
            finish(out, states, args.sinks_of(piece.kv_head), head_dim);
        }
    }
}

/// Reads the keys and values of some positions from the pool.
#[inline(always)]
fn widen_chunk<S: Simd, const D: usize>(
    piece: &Piece<'_>,
    positions: Range<usize>,
    keys: &mut Rows<D>,
    values: &mut Rows<D>,
) {
    let args = piece.args;
    // The row that sees most sees these positions; all rows of the piece share its table.
    let table = args.rows[piece.rows.0].block_table;
    for ((position, keys), values) in positions.zip(keys).zip(values) {
        let block = table[position / args.block_size] as usize;
        let slot = (block * args.n_kv_heads + piece.kv_head) * args.block_size + position % args.block_size;
        let at = slot * args.head_dim;
        widen_row::<S, D>(&args.k[at..at + args.head_dim], keys);
        widen_row::<S, D>(&args.v[at..at + args.head_dim], values);
    }
}

#[inline(always)]
fn widen_row<S: Simd, const D: usize>(bits: &[u16], out: &mut [[f32; LANES]; D]) {
    let (chunks, rest) = bits.as_chunks::<LANES>();
    for (bits, out) in chunks.iter().zip(out.iter_mut()) {
        S::store(S::widen(bits), out);
    }
    if !rest.is_empty() {
        let mut last = [0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        S::store(S::widen(&last), &mut out[chunks.len()]);
    }
}

/// The scores of one query against the keys it sees; the others get minus infinity.
#[inline(always)]
fn score<S: Simd, const D: usize>(query: &[f32], keys: &Rows<D>, seen: &Range<usize>, scale: f32) -> [[f32; LANES]; 2] {
    let mut padded = [S::splat(0.0); D];
    for (padded, query) in padded.iter_mut().zip(query.chunks(LANES)) {
        *padded = load_part::<S>(query);
    }
    let mut scores = [[f32::NEG_INFINITY; LANES]; 2];
    for (scores, keys) in scores.iter_mut().zip(keys.as_chunks::<LANES>().0).take(seen.end.div_ceil(LANES)) {
        let mut sums = [S::splat(0.0); LANES];
        for i in 0..LANES {
            for d in 0..D {
                sums[i] = S::fma(padded[d], S::load(&keys[i][d]), sums[i]);
            }
        }
        S::store(S::mul(S::sum_each(sums), S::splat(scale)), scores);
    }
    hide(&mut scores, seen, f32::NEG_INFINITY);
    scores
}

/// Gives what is not seen that value.
#[inline(always)]
fn hide(scores: &mut [[f32; LANES]; 2], seen: &Range<usize>, value: f32) {
    if seen.end < CHUNK {
        scores.as_flattened_mut()[seen.end..].fill(value);
    }
    if seen.start > 0 {
        scores.as_flattened_mut()[..seen.start].fill(value);
    }
}

/// Turns scores into weights relative to the new maximum. Returns what everything before shrinks by.
#[inline(always)]
fn softmax_step<S: Simd>(scores: &mut [[f32; LANES]; 2], seen: &Range<usize>, state: &mut [f32; 2]) -> f32 {
    let [low, high] = [S::load(&scores[0]), S::load(&scores[1])];
    let greatest = max(state[0], S::greatest(S::max(low, high)));
    let shrink = exp(state[0] - greatest);
    for scores in scores.iter_mut() {
        S::store(exp_lanes::<S>(S::sub(S::load(scores), S::splat(greatest))), scores);
    }
    hide(scores, seen, 0.0);
    let sum = S::sum(S::add(S::load(&scores[0]), S::load(&scores[1])));
    *state = [greatest, state[1].mul_add(shrink, sum)];
    shrink
}

/// Vectors of a head whose sums are kept in registers together.
const WIDTH: usize = 4;

/// `out = out * shrink + weights * values`, positions in ascending order.
#[inline(always)]
fn add_values<S: Simd, const D: usize>(
    weights: &[f32],
    values: &Rows<D>,
    seen: &Range<usize>,
    shrink: f32,
    out: &mut [f32],
) {
    for (part, out) in out.chunks_mut(WIDTH * LANES).enumerate() {
        let mut sums = [S::splat(0.0); WIDTH];
        for (sum, out) in sums.iter_mut().zip(out.chunks(LANES)) {
            *sum = S::mul(load_part::<S>(out), S::splat(shrink));
        }
        for (weight, value) in weights[seen.clone()].iter().zip(&values[seen.clone()]) {
            let weight = S::splat(*weight);
            let value = &value.as_chunks::<WIDTH>().0[part];
            for i in 0..WIDTH {
                sums[i] = S::fma(weight, S::load(&value[i]), sums[i]);
            }
        }
        for (sum, out) in sums.into_iter().zip(out.chunks_mut(LANES)) {
            store_part::<S>(sum, out);
        }
    }
}
