//! One layer's keys and values, in blocks of a fixed number of positions: how they are stored, and their bytes outside
//! of memory. A position's bits must never depend on other positions.

use std::fmt;

use crate::Isa;
use crate::activation::{ActivationBlock, BLOCK, quantise_row};
use crate::half::{f32_to_f16, f32_to_f16_slice};
use crate::math::LANES;

/// The longest head there is room for.
pub const HEAD_DIM_MAX: usize = 256;

/// Positions in a block of the pool.
pub const KV_BLOCK: usize = LANES;

/// Neighbouring values of a position that share a scale.
pub(crate) const GROUP: usize = BLOCK;

/// Most groups of a head.
pub(crate) const GROUPS_MAX: usize = HEAD_DIM_MAX / GROUP;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// Two bytes a value.
    #[default]
    F16,
    /// One byte a value, and an f16 scale for 32 of them: the precision of the block format Q8_0.
    Q8,
}

impl KvFormat {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::F16, Self::Q8];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8 => "q8",
        }
    }

    /// Whether heads of so many values can be stored.
    pub fn takes(self, head_dim: usize) -> bool {
        match self {
            Self::F16 => true,
            Self::Q8 => head_dim.is_multiple_of(LANES),
        }
    }

    /// Bytes of one block's keys and values.
    pub fn block_bytes(self, heads: usize, head_dim: usize) -> usize {
        let position = match self {
            Self::F16 => size_of::<u16>() * head_dim,
            Self::Q8 => head_dim + size_of::<u16>() * head_dim.div_ceil(GROUP),
        };
        2 * heads * KV_BLOCK * position
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Keys and values of one layer.
pub struct KvLayer {
    pub(crate) blocks: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) stored: Stored,
}

/// Keys lie value by value, values position by position.
pub(crate) enum Stored {
    /// Bits, keys `[blocks][heads][head_dim][KV_BLOCK]`, values `[blocks][heads][KV_BLOCK][head_dim]`.
    F16 { keys: Vec<u16>, values: Vec<u16> },
    /// The same.
    Q8 { keys: Quants, values: Quants },
}

/// Keys or values as int8.
pub(crate) struct Quants {
    pub(crate) quants: Vec<i8>,
    /// What they are multiplied with, f16 bits, `[blocks][heads][groups][KV_BLOCK]`.
    pub(crate) scales: Vec<u16>,
}

impl KvLayer {
    /// So many zeroed blocks; the system gives them memory when they are first written.
    ///
    /// Panics when a head holds nothing, more than [`HEAD_DIM_MAX`], or what the format does not take.
    pub fn new(format: KvFormat, blocks: usize, heads: usize, head_dim: usize) -> Self {
        assert!((1..=HEAD_DIM_MAX).contains(&head_dim), "a head holds something, and no more than there is room for");
        assert!(format.takes(head_dim), "a head of a size that the format takes");
        let len = blocks * heads * KV_BLOCK * head_dim;
        let scales = blocks * heads * KV_BLOCK * head_dim.div_ceil(GROUP);
        let quants = || Quants { quants: vec![0; len], scales: vec![0; scales] };
        let stored = match format {
            KvFormat::F16 => Stored::F16 { keys: vec![0; len], values: vec![0; len] },
            KvFormat::Q8 => Stored::Q8 { keys: quants(), values: quants() },
        };
        Self { blocks, heads, head_dim, stored }
    }

    /// Writes a position's key and value, `[heads][head_dim]` each, into its place in a block.
    pub fn write(&mut self, isa: Isa, (block, slot): (usize, usize), key: &[f32], value: &[f32]) {
        let (heads, head_dim) = (self.heads, self.head_dim);
        assert!(key.len() == heads * head_dim && value.len() == key.len(), "a key and a value for each head");
        for (head, (key, value)) in key.chunks_exact(head_dim).zip(value.chunks_exact(head_dim)).enumerate() {
            let (at, len) = (block * heads + head, KV_BLOCK * head_dim);
            match &mut self.stored {
                Stored::F16 { keys, values } => {
                    let bits = &mut [0; HEAD_DIM_MAX][..head_dim];
                    f32_to_f16_slice(isa, key, bits);
                    put_column(&mut keys[at * len..][..len], slot, bits);
                    f32_to_f16_slice(isa, value, &mut values[at * len + slot * head_dim..][..head_dim]);
                }
                Stored::Q8 { keys, values } => {
                    let quants = &mut [0; HEAD_DIM_MAX][..head_dim];
                    keys.quantise(isa, (at, slot), key, quants);
                    put_column(&mut keys.quants[at * len..][..len], slot, quants);
                    values.quantise(isa, (at, slot), value, quants);
                    values.quants[at * len + slot * head_dim..][..head_dim].copy_from_slice(quants);
                }
            }
        }
    }

    /// Appends a block's bytes, little-endian: keys, then values, each as they lie; of int8, scales behind them.
    pub fn read_block(&self, block: usize, bytes: &mut Vec<u8>) {
        match &self.stored {
            Stored::F16 { keys, values } => {
                for part in [keys, values] {
                    bytes.extend(self.of_block(part, block).iter().flat_map(|bits| bits.to_le_bytes()));
                }
            }
            Stored::Q8 { keys, values } => {
                for part in [keys, values] {
                    bytes.extend(self.of_block(&part.quants, block).iter().map(|quant| quant.cast_unsigned()));
                    bytes.extend(self.of_block(&part.scales, block).iter().flat_map(|bits| bits.to_le_bytes()));
                }
            }
        }
    }

    /// Writes a block as [`Self::read_block`] gave it, and returns what lies behind it.
    ///
    /// Panics when there are fewer bytes.
    pub fn write_block<'a>(&mut self, block: usize, bytes: &'a [u8]) -> &'a [u8] {
        let (mut bytes, rest) = bytes.split_at(self.format().block_bytes(self.heads, self.head_dim));
        let place = |len: usize| block * (len / self.blocks)..(block + 1) * (len / self.blocks);
        match &mut self.stored {
            Stored::F16 { keys, values } => {
                for part in [keys, values] {
                    let place = place(part.len());
                    put_bits(&mut part[place], &mut bytes);
                }
            }
            Stored::Q8 { keys, values } => {
                for Quants { quants, scales } in [keys, values] {
                    let place = (place(quants.len()), place(scales.len()));
                    put_quants(&mut quants[place.0], &mut bytes);
                    put_bits(&mut scales[place.1], &mut bytes);
                }
            }
        }
        rest
    }

    /// How keys and values are stored.
    pub fn format(&self) -> KvFormat {
        match self.stored {
            Stored::F16 { .. } => KvFormat::F16,
            Stored::Q8 { .. } => KvFormat::Q8,
        }
    }

    /// What a block has of keys, values or scales.
    fn of_block<'a, T>(&self, part: &'a [T], block: usize) -> &'a [T] {
        let len = part.len() / self.blocks;
        &part[block * len..(block + 1) * len]
    }
}

impl Quants {
    /// Quantises one position of a head of a block, and keeps the scales.
    fn quantise(&mut self, isa: Isa, (head, slot): (usize, usize), from: &[f32], quants: &mut [i8]) {
        let groups = from.len().div_ceil(GROUP);
        let mut padded = [0.0; HEAD_DIM_MAX];
        padded[..from.len()].copy_from_slice(from);
        let blocks = &mut [ActivationBlock::default(); GROUPS_MAX][..groups];
        quantise_row(isa, &padded[..groups * GROUP], blocks);
        for (group, (block, quants)) in blocks.iter().zip(quants.chunks_mut(GROUP)).enumerate() {
            quants.copy_from_slice(&block.values[..quants.len()]);
            self.scales[(head * groups + group) * KV_BLOCK + slot] = f32_to_f16(block.scale);
        }
    }
}

/// Writes one position of `[head_dim][KV_BLOCK]`.
fn put_column<T: Copy>(keys: &mut [T], slot: usize, column: &[T]) {
    for (row, value) in keys.as_chunks_mut::<KV_BLOCK>().0.iter_mut().zip(column) {
        row[slot] = *value;
    }
}

fn put_bits(part: &mut [u16], bytes: &mut &[u8]) {
    let (own, rest) = bytes.split_at(size_of_val(part));
    *bytes = rest;
    for (bits, bytes) in part.iter_mut().zip(own.as_chunks().0) {
        *bits = u16::from_le_bytes(*bytes);
    }
}

fn put_quants(part: &mut [i8], bytes: &mut &[u8]) {
    let (own, rest) = bytes.split_at(part.len());
    *bytes = rest;
    for (quant, byte) in part.iter_mut().zip(own) {
        *quant = byte.cast_signed();
    }
}
