//! Attention of query rows over a paged pool of keys and values, with a running softmax; over all positions or a
//! window of the last ones, with or without sinks. Positions are always taken in the same fixed runs, counted from
//! position 0: a row's result must never depend on the other rows, on the block table's order or on the number of
//! threads.
//!
//! A block's keys lie value by value: one register holds the same value of all its positions, so that scores need no
//! sums across lanes, and several queries share each register of keys and of values. Where many queries see the same
//! positions, or keys and values are int8, they are made f32 once for all of them.

use std::cell::RefCell;
use std::ops::Range;

use crate::isa::for_each_isa;
use crate::kv::{KV_BLOCK, KvLayer};
use crate::kv_block::{Block, Element, StoredBlock};
use crate::math::{LANES, exp, max};
use crate::matmul::for_row_tiles;
use crate::shared::SharedSlice;
use crate::simd::{Simd, exp as exp_lanes, load_part, store_part};
use crate::{Isa, Team};

/// Positions that are scored together and share one step of the running softmax: those of two blocks.
const CHUNK: usize = 2 * KV_BLOCK;

/// Positions of one piece of work. Longer rows are computed in several pieces, merged in ascending order, so that one
/// long row can use the whole team.
const SEGMENT: usize = 512;

/// Rows with the same block table that are computed together: keys and values stay in the nearest cache for all.
const TILE_ROWS_MAX: usize = 16;

/// From so many queries on it pays to make keys and values f32 before.
const WIDENED_QUERIES_MIN: usize = 8;

thread_local! {
    /// The keys, then the values of a chunk as f32.
    static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// What attention reads.
#[derive(Clone, Copy)]
pub struct AttentionArgs<'a> {
    /// Queries, `[rows][n_heads][head_dim]`.
    pub q: &'a [f32],
    /// Query heads.
    pub n_heads: usize,
    /// What scores are multiplied with.
    pub scale: f32,
    /// One layer's keys and values. Query head `h` uses key-value head `h / (n_heads / kv heads)`.
    pub kv: &'a KvLayer,
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

    /// Query heads that share a key-value head.
    fn group(&self) -> usize {
        self.n_heads / self.kv.heads
    }

    /// The sinks of the query heads that share a key-value head.
    fn sinks_of(&self, kv_head: usize) -> Option<&[f32]> {
        let group = self.group();
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

impl AttentionScratch {
    /// Bytes that attention of `rows` with so many query heads takes at most where a row sees `len` positions.
    pub fn bytes(rows: usize, heads: usize, head_dim: usize, len: usize) -> usize {
        let segments = len.div_ceil(SEGMENT).max(1);
        let states = rows.saturating_mul(heads).saturating_mul(segments).saturating_mul(size_of::<[f32; 2]>());
        let values = if segments > 1 { (states / 2).saturating_mul(head_dim) } else { 0 };
        let tiles = rows.saturating_mul(size_of::<(usize, usize)>());
        states.saturating_add(values).saturating_add(tiles)
    }
}

/// `out[row][head] = softmax(q k^T * scale) v` over the positions each row sees; `out` is laid out like `q`.
///
/// Panics when a length does not fit the shape, a block number or position lies outside the pool or table, `n_heads`
/// is no multiple of the key-value heads, or the window is empty.
pub fn attention(team: &Team, isa: Isa, args: &AttentionArgs<'_>, out: &mut [f32], scratch: &mut AttentionScratch) {
    check(args, out.len());
    let segments = args.rows.iter().map(|row| row.len.div_ceil(SEGMENT)).max().unwrap_or(0).max(1);
    let (group, kv_heads) = (args.group(), args.kv.heads);
    let heads_len = group * args.kv.head_dim;
    let pieces = args.rows.len() * kv_heads * segments;
    find_tiles(args.rows, &mut scratch.tiles);
    grow(&mut scratch.states, pieces * group);
    if segments > 1 {
        grow(&mut scratch.values, pieces * heads_len);
    }
    let AttentionScratch { tiles, values, states } = scratch;
    // With one segment the pieces lie just like the output's heads.
    let values = SharedSlice::new(if segments > 1 { values } else { &mut *out });
    let states = SharedSlice::new(states);
    team.run_each(tiles.len() * kv_heads * segments, |index| {
        let (tile, kv_head, segment) = (index / segments / kv_heads, index / segments % kv_heads, index % segments);
        let piece = Piece { args, rows: tiles[tile], kv_head, segment, segments, values: &values, states: &states };
        WIDENED.with_borrow_mut(|widened| run_piece(isa, &piece, widened));
    });
    if segments > 1 {
        let values: &[f32] = &scratch.values;
        let states: &[[f32; 2]] = &scratch.states;
        team.run_chunks(out, heads_len, |item, out| {
            let row = item / kv_heads;
            let first = args.first(row) / SEGMENT;
            let used = args.rows[row].len.div_ceil(SEGMENT).max(1) - first;
            let values = values[(item * segments + first) * heads_len..].chunks_exact(heads_len).take(used);
            let states = states[(item * segments + first) * group..].chunks_exact(group).take(used);
            merge(values.zip(states), args.sinks_of(item % kv_heads), out, args.kv.head_dim);
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
    let AttentionArgs { n_heads, kv: KvLayer { blocks, heads, head_dim, .. }, .. } = *args;
    assert!(*heads > 0 && n_heads > 0 && n_heads.is_multiple_of(*heads), "whole groups of query heads");
    assert!(n_heads / heads <= GROUP_MAX, "no more query heads in a group than there is room for");
    let row_len = n_heads * head_dim;
    assert!(args.q.len() == args.rows.len() * row_len && out_len == args.q.len(), "one query per row and head");
    assert!(args.window != Some(0), "a window shows something");
    assert!(args.sinks.is_none_or(|sinks| sinks.len() == n_heads), "a sink for every query head");
    for row in args.rows {
        let used = row.len.div_ceil(KV_BLOCK);
        assert!(used <= row.block_table.len(), "a block for every position a row sees");
        assert!(row.block_table[..used].iter().all(|block| (*block as usize) < *blocks), "blocks inside the pool");
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

for_each_isa! { fn run_piece(piece: &Piece<'_>, widened: &mut Vec<f32>) = piece_body; }

/// A row and a head, and what a chunk of positions adds to its result.
struct Query<'a> {
    values: &'a [f32],
    out: &'a mut [f32],
    state: &'a mut [f32; 2],
    /// The positions of the chunk that it sees.
    seen: Range<usize>,
    /// Scores, then weights, then nothing.
    weights: [[f32; LANES]; 2],
    /// What everything before shrinks by.
    shrink: f32,
}

impl Piece<'_> {
    fn end_of(&self, row: usize) -> usize {
        self.args.rows[row].len.min((self.segment + 1) * SEGMENT)
    }

    fn block(&self, position: usize) -> StoredBlock<'_> {
        let args = self.args;
        // The row that sees most sees this position; all rows of the piece share its table.
        let block = args.rows[self.rows.0].block_table[position / KV_BLOCK] as usize;
        args.kv.block(block, self.kv_head)
    }

    /// What the piece has of a row: its heads' values and states, and where they lie.
    fn place(&self, row: usize) -> usize {
        (row * self.args.kv.heads + self.kv_head) * self.segments + self.segment
    }

    /// The query of a row and one of its heads. The caller must not have the same one twice at a time.
    #[inline(always)]
    fn query(&self, row: usize, head: usize, start: usize) -> Query<'_> {
        let args = self.args;
        let (group, head_dim) = (args.group(), args.kv.head_dim);
        let (first, end) = (args.first(row).saturating_sub(start), self.end_of(row).saturating_sub(start).min(CHUNK));
        let at = self.place(row) * group + head;
        Query {
            values: &args.q[(row * args.n_heads + self.kv_head * group + head) * head_dim..][..head_dim],
            // SAFETY: a row, key-value head and segment belong to one piece only; in it each query is had once.
            out: unsafe { self.values.part(at * head_dim, head_dim) },
            // SAFETY: as above.
            state: unsafe { &mut self.states.part(at, 1)[0] },
            seen: if first < end { first..end } else { 0..0 },
            weights: [[f32::NEG_INFINITY; LANES]; 2],
            shrink: 1.0,
        }
    }
}

#[inline(always)]
fn piece_body<S: Simd>(piece: &Piece<'_>, widened: &mut Vec<f32>) {
    let args = piece.args;
    let (head_dim, group) = (args.kv.head_dim, args.group());
    let rows = piece.rows.0..piece.rows.1;
    let end = rows.clone().map(|row| piece.end_of(row)).max().unwrap_or(0);
    // Runs begin at the same positions with and without a window.
    let first = rows.clone().map(|row| args.first(row)).min().unwrap_or(0);
    let begin = (piece.segment * SEGMENT).max(first / CHUNK * CHUNK);
    for row in rows.clone() {
        let at = piece.place(row) * group;
        // SAFETY: a row, key-value head and segment belong to one piece only; the borrow ends here.
        unsafe { piece.values.part(at * head_dim, group * head_dim) }.fill(0.0);
        // SAFETY: as above.
        unsafe { piece.states.part(at, group) }.fill([f32::NEG_INFINITY, 0.0]);
    }
    let is_widened = rows.len() * group >= WIDENED_QUERIES_MIN;
    let block_len = 2 * head_dim * KV_BLOCK;
    grow(widened, 2 * block_len);
    for start in (begin..end).step_by(CHUNK) {
        let low = piece.block(start);
        // Nobody sees the second block where it would be behind the end.
        let high = if start + KV_BLOCK < end { piece.block(start + KV_BLOCK) } else { low };
        for ahead in [start + CHUNK, start + CHUNK + KV_BLOCK] {
            if ahead < end {
                piece.block(ahead).prefetch();
            }
        }
        match (low, high) {
            (StoredBlock::F16(low), StoredBlock::F16(high)) if !is_widened => {
                attend_all::<S, u16>(piece, &[low, high], start);
            }
            _ => {
                let (memory, rest) = widened.split_at_mut(block_len);
                let blocks = [low.widen::<S>(memory), high.widen::<S>(&mut rest[..block_len])];
                attend_all::<S, f32>(piece, &blocks, start);
            }
        }
    }
    if piece.segments == 1 {
        for row in rows {
            let at = piece.place(row) * group;
            // SAFETY: a row, key-value head and segment belong to one piece only; the borrow ends here.
            let out = unsafe { piece.values.part(at * head_dim, group * head_dim) };
            // SAFETY: as above.
            let states = unsafe { piece.states.part(at, group) };
            finish(out, states, args.sinks_of(piece.kv_head), head_dim);
        }
    }
}

/// Adds a chunk of positions to the results of all queries of a piece.
#[inline(always)]
fn attend_all<S: Simd, E: Element>(piece: &Piece<'_>, blocks: &[Block<'_, E>; 2], start: usize) {
    let group = piece.args.group();
    let queries = (piece.rows.1 - piece.rows.0) * group;
    // All heads of the first row, then those of the second.
    let (mut row, mut head) = (piece.rows.0, 0);
    if S::VECTORS >= 32 {
        for_row_tiles!(queries, |at, COUNT| {
            attend::<S, E, COUNT>(piece, &mut row, &mut head, blocks, start);
        }, 8 4 3 2 1);
    } else {
        for_row_tiles!(queries, |at, COUNT| {
            attend::<S, E, COUNT>(piece, &mut row, &mut head, blocks, start);
        }, 4 3 2 1);
    }
}

/// Adds a chunk of positions to the results of some queries, from that row and head on.
#[inline(always)]
fn attend<S: Simd, E: Element, const R: usize>(
    piece: &Piece<'_>,
    row: &mut usize,
    head: &mut usize,
    blocks: &[Block<'_, E>; 2],
    start: usize,
) {
    let group = piece.args.group();
    let queries: &mut [Query<'_>; R] = &mut std::array::from_fn(|_| {
        let query = piece.query(*row, *head, start);
        *head += 1;
        if *head == group {
            (*row, *head) = (*row + 1, 0);
        }
        query
    });
    for (half, block) in blocks.iter().enumerate() {
        if queries.iter().any(|query| query.seen.end > half * KV_BLOCK) {
            score::<S, E, R>(queries, half, block.keys, piece.args.scale);
        }
    }
    weigh::<S, R>(queries);
    let begin = queries[0].seen.start;
    if queries.iter().any(|query| query.seen.start != begin) {
        for query in queries {
            let seen = query.seen.clone();
            add_values::<S, E, 1>(std::array::from_mut(query), blocks, &seen);
        }
        return;
    }
    // What all of them see, then what only some see.
    let end = queries.iter().map(|query| query.seen.end).min().unwrap_or(0);
    add_values::<S, E, R>(queries, blocks, &(begin..end));
    for query in queries {
        if query.seen.end > end {
            query.shrink = 1.0;
            let rest = end..query.seen.end;
            add_values::<S, E, 1>(std::array::from_mut(query), blocks, &rest);
        }
    }
}

/// Scores one block's keys: a lane for each position, values of the head in ascending order.
#[inline(always)]
fn score<S: Simd, E: Element, const R: usize>(
    queries: &mut [Query<'_>; R],
    half: usize,
    keys: &[[E; KV_BLOCK]],
    scale: f32,
) {
    let mut rows = [&queries[0].values[..keys.len()]; R];
    for (row, query) in rows.iter_mut().zip(queries.iter()) {
        // Lets the compiler drop the bounds checks below.
        *row = &query.values[..keys.len()];
    }
    let mut sums = [S::splat(0.0); R];
    for (d, keys) in keys.iter().enumerate() {
        let keys = E::load::<S>(keys);
        for r in 0..R {
            sums[r] = S::fma(S::splat(rows[r][d]), keys, sums[r]);
        }
    }
    for (query, sum) in queries.iter_mut().zip(sums) {
        S::store(S::mul(sum, S::splat(scale)), &mut query.weights[half]);
    }
}

/// Turns scores into weights relative to the new maximum. A query that sees nothing of the chunk stays as it is.
#[inline(always)]
fn weigh<S: Simd, const R: usize>(queries: &mut [Query<'_>; R]) {
    // What everything before shrinks by is computed for all queries at once.
    let (mut greatest, mut shrinks) = ([0.0; R], [0.0; LANES]);
    for (r, query) in queries.iter_mut().enumerate() {
        if query.seen.is_empty() {
            continue;
        }
        hide(query, f32::NEG_INFINITY);
        let [low, high] = [S::load(&query.weights[0]), S::load(&query.weights[1])];
        greatest[r] = max(query.state[0], S::greatest(S::max(low, high)));
        shrinks[r] = query.state[0] - greatest[r];
    }
    let shrunk = exp_lanes::<S>(S::load(&shrinks));
    S::store(shrunk, &mut shrinks);
    for (r, query) in queries.iter_mut().enumerate() {
        if query.seen.is_empty() {
            continue;
        }
        query.shrink = shrinks[r];
        for weights in &mut query.weights {
            S::store(exp_lanes::<S>(S::sub(S::load(weights), S::splat(greatest[r]))), weights);
        }
        hide(query, 0.0);
        let added = S::sum(S::add(S::load(&query.weights[0]), S::load(&query.weights[1])));
        *query.state = [greatest[r], query.state[1].mul_add(query.shrink, added)];
    }
}

/// Gives what is not seen that weight.
#[inline(always)]
fn hide(query: &mut Query<'_>, weight: f32) {
    let weights = query.weights.as_flattened_mut();
    if query.seen.end < CHUNK {
        weights[query.seen.end..].fill(weight);
    }
    if query.seen.start > 0 {
        weights[..query.seen.start].fill(weight);
    }
}

/// `out = out * shrink + weights * values` for the positions that are seen, in ascending order.
#[inline(always)]
fn add_values<S: Simd, E: Element, const R: usize>(
    queries: &mut [Query<'_>; R],
    blocks: &[Block<'_, E>; 2],
    seen: &Range<usize>,
) {
    let head_dim = queries[0].out.len();
    for from in (0..head_dim / LANES * LANES).step_by(LANES) {
        add_part::<S, E, R, LANES>(queries, blocks, seen, from);
    }
    // A head that does not fill its last register goes on value by value.
    for from in head_dim / LANES * LANES..head_dim {
        add_part::<S, E, R, 1>(queries, blocks, seen, from);
    }
}

/// The same for `W` values of the head, one register or a single one.
#[inline(always)]
fn add_part<S: Simd, E: Element, const R: usize, const W: usize>(
    queries: &mut [Query<'_>; R],
    blocks: &[Block<'_, E>; 2],
    seen: &Range<usize>,
    from: usize,
) {
    let head_dim = queries[0].out.len();
    let mut sums = [S::splat(0.0); R];
    for (sum, query) in sums.iter_mut().zip(queries.iter()) {
        *sum = S::mul(load_part::<S>(&query.out[from..from + W]), S::splat(query.shrink));
    }
    for (half, block) in blocks.iter().enumerate() {
        let start = seen.start.saturating_sub(half * KV_BLOCK);
        let end = seen.end.saturating_sub(half * KV_BLOCK).min(KV_BLOCK);
        for position in start..end {
            let values = widen_part::<S, E>(&block.values[position * head_dim + from..][..W]);
            for r in 0..R {
                sums[r] = S::fma(S::splat(queries[r].weights[half][position]), values, sums[r]);
            }
        }
    }
    for (query, sum) in queries.iter_mut().zip(sums) {
        store_part::<S>(sum, &mut query.out[from..from + W]);
    }
}

/// Up to sixteen values, filled up with zeros.
#[inline(always)]
fn widen_part<S: Simd, E: Element>(elements: &[E]) -> S::V {
    if let Some(elements) = elements.first_chunk() {
        return E::load::<S>(elements);
    }
    let mut padded = [E::default(); LANES];
    padded[..elements.len()].copy_from_slice(elements);
    E::load::<S>(&padded)
}
