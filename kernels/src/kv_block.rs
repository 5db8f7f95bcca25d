//! One block's keys and values of one head: as they are stored, and as f32. The same numbers either way: what is
//! widened before must never differ from what is widened in place.

use crate::kv::{GROUP, GROUPS_MAX, KV_BLOCK, KvLayer, Quants, Stored};
use crate::math::LANES;
use crate::memory::prefetch;
use crate::simd::Simd;

impl KvLayer {
    /// A head's keys and values in a block.
    pub(crate) fn block(&self, block: usize, head: usize) -> StoredBlock<'_> {
        let at = block * self.heads + head;
        let len = self.head_dim * KV_BLOCK;
        match &self.stored {
            Stored::F16 { keys, values } => {
                let (keys, values) = (&keys[at * len..][..len], &values[at * len..][..len]);
                StoredBlock::F16(Block { keys: keys.as_chunks().0, values })
            }
            Stored::Q8 { keys, values } => {
                StoredBlock::Q8 { keys: QuantBlock::of(keys, at, len), values: QuantBlock::of(values, at, len) }
            }
        }
    }
}

/// What keys and values are stored as: f16 bits, or f32 where they were widened before.
pub(crate) trait Element: Copy + Default {
    fn load<S: Simd>(elements: &[Self; LANES]) -> S::V;
}

impl Element for u16 {
    #[inline(always)]
    fn load<S: Simd>(elements: &[Self; LANES]) -> S::V {
        S::widen(elements)
    }
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(elements: &[Self; LANES]) -> S::V {
        S::load(elements)
    }
}

/// One block's keys and values for one head.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a, E> {
    /// `[head_dim][KV_BLOCK]`
    pub(crate) keys: &'a [[E; KV_BLOCK]],
    /// `[KV_BLOCK][head_dim]`
    pub(crate) values: &'a [E],
}

/// One block's keys or values for one head, as int8.
#[derive(Clone, Copy)]
pub(crate) struct QuantBlock<'a> {
    /// Laid out like a [`Block`]'s.
    quants: &'a [[i8; LANES]],
    /// `[groups][KV_BLOCK]`
    scales: &'a [[u16; KV_BLOCK]],
}

impl<'a> QuantBlock<'a> {
    /// The head at that place, of so many values in a block.
    fn of(part: &'a Quants, at: usize, len: usize) -> Self {
        let groups = (len / KV_BLOCK).div_ceil(GROUP);
        let scales = &part.scales.as_chunks().0[at * groups..(at + 1) * groups];
        Self { quants: part.quants[at * len..][..len].as_chunks().0, scales }
    }
}

/// One block's keys and values for one head, as they are stored.
#[derive(Clone, Copy)]
pub(crate) enum StoredBlock<'a> {
    F16(Block<'a, u16>),
    Q8 { keys: QuantBlock<'a>, values: QuantBlock<'a> },
}

impl StoredBlock<'_> {
    /// Asks for the block: it may lie anywhere, so the processor's own prefetching cannot.
    #[inline(always)]
    pub(crate) fn prefetch(self) {
        match self {
            Self::F16(Block { keys, values }) => {
                prefetch(keys.as_flattened());
                prefetch(values);
            }
            Self::Q8 { keys, values } => {
                for part in [keys, values] {
                    prefetch(part.quants.as_flattened());
                    prefetch(part.scales.as_flattened());
                }
            }
        }
    }

    /// The block as f32, in that memory, keys before values.
    #[inline(always)]
    pub(crate) fn widen<S: Simd>(self, memory: &mut [f32]) -> Block<'_, f32> {
        let (wide_keys, wide_values) = memory.split_at_mut(memory.len() / 2);
        let (key_rows, value_rows) = (wide_keys.as_chunks_mut().0, wide_values.as_chunks_mut().0);
        match self {
            Self::F16(Block { keys, values }) => {
                for (wide, keys) in key_rows.iter_mut().zip(keys) {
                    S::store(S::widen(keys), wide);
                }
                // As many values as keys, so whole registers, wherever a position's values end.
                for (wide, values) in value_rows.iter_mut().zip(values.as_chunks().0) {
                    S::store(S::widen(values), wide);
                }
            }
            Self::Q8 { keys, values } => {
                let groups = key_rows.chunks_mut(GROUP).zip(keys.quants.chunks(GROUP)).zip(keys.scales);
                for ((wide, quants), scales) in groups {
                    let scales = S::widen(scales);
                    for (wide, quants) in wide.iter_mut().zip(quants) {
                        S::store(S::mul(S::widen_bytes(quants), scales), wide);
                    }
                }
                let mut scales = [[0.0; KV_BLOCK]; GROUPS_MAX];
                for (wide, scales) in scales.iter_mut().zip(values.scales) {
                    S::store(S::widen(scales), wide);
                }
                // The format takes heads of whole registers only.
                let registers = value_rows.len() / KV_BLOCK;
                let positions = value_rows.chunks_exact_mut(registers).zip(values.quants.chunks_exact(registers));
                for (position, (wide, quants)) in positions.enumerate() {
                    for (index, (wide, quants)) in wide.iter_mut().zip(quants).enumerate() {
                        let scale = S::splat(scales[index * LANES / GROUP][position]);
                        S::store(S::mul(S::widen_bytes(quants), scale), wide);
                    }
                }
            }
        }
        Block { keys: wide_keys.as_chunks().0, values: wide_values }
    }
}
