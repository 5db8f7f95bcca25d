//! Attention of query rows over a paged pool of keys and values, with a running softmax.
//! Positions are always taken in the same fixed runs, counted from position 0: a row's result must never depend on the
//! other rows, on the block table's order or on the number of threads.

use crate::half::Widen;
use crate::isa::for_each_isa;
use crate::math::{LANES, exp, max, max_lanes, sum_lanes};
use crate::{Isa, Team};

/// The longest head there is room for.
pub const HEAD_DIM_MAX: usize = 256;

/// Positions that are scored together and share one step of the running softmax.
const CHUNK: usize = 2 * LANES;

/// Positions of one piece of work. Longer rows are computed in several pieces, merged in ascending order, so that one
/// long row can use the whole team.
const SEGMENT: usize = 512;

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
    /// One entry per query row.
    pub rows: &'a [AttentionRow<'a>],
}

/// What one query row sees.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRow<'a> {
    /// The pool's blocks that hold the row's positions, in order of position.
    pub block_table: &'a [u32],
    /// The row sees positions `0..len`. A row that sees nothing gets zeros.
    pub len: usize,
}

/// Memory that attention reuses from call to call.
#[derive(Default)]
pub struct AttentionScratch {
    partials: Vec<f32>,
}

/// `out[row][head] = softmax(q k^T * scale) v` over the positions each row sees; `out` is laid out like `q`.
///
/// Panics when a length does not fit the shape, a block number or position lies outside the pool or table, `n_heads`
/// is no multiple of `n_kv_heads`, or `head_dim` exceeds [`HEAD_DIM_MAX`].
pub fn attention(team: &Team, isa: Isa, args: &AttentionArgs<'_>, out: &mut [f32], scratch: &mut AttentionScratch) {
    check(args, out.len());
    let segments = args.rows.iter().map(|row| row.len.div_ceil(SEGMENT)).max().unwrap_or(0);
    let group = args.n_heads / args.n_kv_heads;
    let heads_len = group * args.head_dim;
    if segments <= 1 {
        team.run_chunks(out, heads_len, |index, out| {
            let (row, kv_head) = (index / args.n_kv_heads, index % args.n_kv_heads);
            let mut state = [0.0; 2 * HEADS_MAX];
            run_segment(isa, args, [row, kv_head, 0], out, &mut state[..2 * group]);
            finish(out, &state[..2 * group], args.head_dim);
        });
        return;
    }
    // A partial result: unnormalised values, then maximum and sum of each head.
    let partial_len = heads_len + 2 * group;
    let pieces = args.rows.len() * args.n_kv_heads * segments;
    if scratch.partials.len() < pieces * partial_len {
        scratch.partials.resize(pieces * partial_len, 0.0);
    }
    let partials = &mut scratch.partials[..pieces * partial_len];
    team.run_chunks(partials, partial_len, |index, partial| {
        let (item, segment) = (index / segments, index % segments);
        let (row, kv_head) = (item / args.n_kv_heads, item % args.n_kv_heads);
        if segment == 0 || segment * SEGMENT < args.rows[row].len {
            let (values, state) = partial.split_at_mut(heads_len);
            run_segment(isa, args, [row, kv_head, segment], values, state);
        }
    });
    let partials: &[f32] = partials;
    team.run_chunks(out, heads_len, |item, out| {
        let used = args.rows[item / args.n_kv_heads].len.div_ceil(SEGMENT).max(1);
        let mut partials = partials[item * segments * partial_len..]
            .chunks_exact(partial_len)
            .take(used);
        merge(&mut partials, out, args.head_dim);
    });
}

/// Query heads that may share one key-value head.
const HEADS_MAX: usize = 64;

fn check(args: &AttentionArgs<'_>, out_len: usize) {
    let AttentionArgs {
        n_heads,
        n_kv_heads,
        head_dim,
        block_size,
        ..
    } = *args;
    assert!(
        n_kv_heads > 0 && n_heads > 0 && n_heads.is_multiple_of(n_kv_heads),
        "whole groups of query heads"
    );
    assert!(
        n_heads / n_kv_heads <= HEADS_MAX,
        "no more query heads in a group than there is room for"
    );
    assert!(
        (1..=HEAD_DIM_MAX).contains(&head_dim) && block_size > 0,
        "a head and a block hold something"
    );
    let row_len = n_heads * head_dim;
    assert!(
        args.q.len() == args.rows.len() * row_len && out_len == args.q.len(),
        "one query per row and head"
    );
    assert_eq!(args.k.len(), args.v.len(), "as many values as keys");
    let blocks = args.k.len() / (n_kv_heads * block_size * head_dim);
    for row in args.rows {
        let used = row.len.div_ceil(block_size);
        assert!(used <= row.block_table.len(), "a block for every position a row sees");
        assert!(
            row.block_table[..used].iter().all(|block| (*block as usize) < blocks),
            "blocks inside the pool"
        );
    }
}

/// Divides by the sums of the softmax. `state` is maximum and sum of each head.
fn finish(out: &mut [f32], state: &[f32], head_dim: usize) {
    for (out, state) in out.chunks_exact_mut(head_dim).zip(state.as_chunks::<2>().0) {
        let factor = if state[1] > 0.0 { 1.0 / state[1] } else { state[1] };
        for out in out {
            *out *= factor;
        }
    }
}

/// Merges the partial results of one row and key-value head, first to last.
fn merge<'a>(partials: &mut impl Iterator<Item = &'a [f32]>, out: &mut [f32], head_dim: usize) {
    let group = out.len() / head_dim;
    let mut total = [0.0; 2 * HEADS_MAX];
    let total = &mut total[..2 * group];
    if let Some(first) = partials.next() {
        out.copy_from_slice(&first[..out.len()]);
        total.copy_from_slice(&first[out.len()..]);
    }
    for partial in partials {
        let (values, state) = partial.split_at(out.len());
        for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let greatest = max(total[2 * head], state[2 * head]);
            let (old, new) = (exp(total[2 * head] - greatest), exp(state[2 * head] - greatest));
            total[2 * head] = greatest;
            total[2 * head + 1] = total[2 * head + 1].mul_add(old, state[2 * head + 1] * new);
            for (out, value) in out.iter_mut().zip(&values[head * head_dim..]) {
                *out = out.mul_add(old, value * new);
            }
        }
    }
    finish(out, total, head_dim);
}

for_each_isa! {
    /// Computes one segment (`at` is row, key-value head, segment) without the final division.
    fn run_segment(args: &AttentionArgs<'_>, at: [usize; 3], out: &mut [f32], state: &mut [f32]) = segment_body;
}

/// One run of positions, widened: rows of `HEAD_DIM_MAX` values of which multiples of sixteen are used.
type Rows = [[f32; HEAD_DIM_MAX]; CHUNK];

#[inline(always)]
fn segment_body<W: Widen>(args: &AttentionArgs<'_>, at: [usize; 3], out: &mut [f32], state: &mut [f32]) {
    let [row, kv_head, segment] = at;
    let head_dim = args.head_dim;
    let group = args.n_heads / args.n_kv_heads;
    let queries = &args.q[(row * args.n_heads + kv_head * group) * head_dim..][..group * head_dim];
    let row = &args.rows[row];
    out.fill(0.0);
    for state in state.as_chunks_mut::<2>().0 {
        *state = [f32::NEG_INFINITY, 0.0];
    }
    let (mut keys, mut values): (Rows, Rows) = ([[0.0; HEAD_DIM_MAX]; CHUNK], [[0.0; HEAD_DIM_MAX]; CHUNK]);
    let end = row.len.min((segment + 1) * SEGMENT);
    for start in (segment * SEGMENT..end).step_by(CHUNK) {
        let count = CHUNK.min(end - start);
        for i in 0..count {
            let position = start + i;
            let block = row.block_table[position / args.block_size] as usize;
            let at = ((block * args.n_kv_heads + kv_head) * args.block_size + position % args.block_size) * head_dim;
            widen_row::<W>(&args.k[at..at + head_dim], &mut keys[i]);
            widen_row::<W>(&args.v[at..at + head_dim], &mut values[i]);
        }
        let heads = queries.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
        for ((query, out), state) in heads.zip(state.as_chunks_mut::<2>().0) {
            let mut scores = score(query, &keys, count, args.scale);
            let shrink = softmax_step(&mut scores, count, state);
            add_values(&scores, &values, count, shrink, out);
        }
    }
}

/// Widens one row and fills it up with zeros to a multiple of sixteen.
#[inline(always)]
fn widen_row<W: Widen>(bits: &[u16], out: &mut [f32; HEAD_DIM_MAX]) {
    let (chunks, rest) = bits.as_chunks::<LANES>();
    let (wide, _) = out.as_chunks_mut::<LANES>();
    for (bits, wide) in chunks.iter().zip(wide.iter_mut()) {
        *wide = W::widen(bits);
    }
    if !rest.is_empty() {
        let mut last = [0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        wide[chunks.len()] = W::widen(&last);
    }
}

#[inline(always)]
fn score(query: &[f32], keys: &Rows, count: usize, scale: f32) -> [f32; CHUNK] {
    let mut scores = [f32::NEG_INFINITY; CHUNK];
    let (chunks, rest) = query.as_chunks::<LANES>();
    for (score, key) in scores.iter_mut().zip(keys).take(count) {
        let mut lanes = [0.0_f32; LANES];
        let (key_chunks, _) = key.as_chunks::<LANES>();
        for (query, key) in chunks.iter().zip(key_chunks) {
            for lane in 0..LANES {
                lanes[lane] = query[lane].mul_add(key[lane], lanes[lane]);
            }
        }
        if let Some(key) = key_chunks.get(chunks.len()) {
            for (lane, query) in rest.iter().enumerate() {
                lanes[lane] = query.mul_add(key[lane], lanes[lane]);
            }
        }
        *score = sum_lanes(lanes) * scale;
    }
    scores
}

/// Turns scores into weights relative to the new maximum. Returns what everything before shrinks by.
#[inline(always)]
fn softmax_step(scores: &mut [f32; CHUNK], count: usize, state: &mut [f32; 2]) -> f32 {
    let (low, high) = scores.split_at(LANES);
    let mut lanes = [0.0; LANES];
    for (lane, (low, high)) in lanes.iter_mut().zip(low.iter().zip(high)) {
        *lane = max(*low, *high);
    }
    let greatest = max(state[0], max_lanes(lanes));
    let shrink = exp(state[0] - greatest);
    for score in scores.iter_mut() {
        *score = exp(*score - greatest);
    }
    scores[count..].fill(0.0);
    let mut sums = [0.0; LANES];
    for (lane, sum) in sums.iter_mut().enumerate() {
        *sum = scores[lane] + scores[lane + LANES];
    }
    *state = [greatest, state[1].mul_add(shrink, sum_lanes(sums))];
    shrink
}

/// `out = out * shrink + weights * values`, positions in ascending order.
#[inline(always)]
fn add_values(weights: &[f32; CHUNK], values: &Rows, count: usize, shrink: f32, out: &mut [f32]) {
    for (chunk, out) in out.chunks_mut(LANES).enumerate() {
        let mut lanes = [0.0; LANES];
        for (lane, out) in lanes.iter_mut().zip(out.iter()) {
            *lane = out * shrink;
        }
        for (weight, value) in weights.iter().zip(values).take(count) {
            let value = &value.as_chunks::<LANES>().0[chunk];
            for lane in 0..LANES {
                lanes[lane] = weight.mul_add(value[lane], lanes[lane]);
            }
        }
        out.copy_from_slice(&lanes[..out.len()]);
    }
}
