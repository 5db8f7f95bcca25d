//! The packed layouts: how many bits of a value lie where, and what its factors are made of. Sixteen rows form a panel;
//! inside it, values are interleaved so that one 64-byte run holds four consecutive columns of all sixteen rows.
//!
//! A quantised panel is a run of blocks; a block is a header and one or eight sub-blocks of 32 columns; a sub-block is
//! its values' low bits, then their high bits, then its factors.
//!
//! Eight groups of four columns make up the 32. Where a value has `b` low bits, `8 / b` groups share a run: group `g`
//! is in run `g / (8 / b)`, from bit `b * (g % (8 / b))` of every byte on; byte `4 * lane + i` belongs to column
//! `4 * g + i` of row `lane`. High bits lie in the same way in runs of their own.
//!
//! A value is unsigned: either the bits themselves or what a table has for them, with the format's zero point added.
//! F32, F16 and BF16 panels are `[column][16]`. This file must never move a bit: `pack.rs` does.

use crate::Format;
use crate::format::{IQ4_VALUES, MXFP4_VALUES};

/// Rows in a panel.
pub(crate) const PANEL: usize = 16;

/// Columns in a sub-block.
pub(crate) const SUB: usize = 32;

/// Bytes of a run: four columns of a panel.
pub(crate) const RUN: usize = 4 * PANEL;

/// What the factors of a sub-block's rows are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// `scale[16]` f16.
    Half,
    /// `scale[16] min[16]` f16.
    HalfMin,
    /// `scale[16]` u8, for 2^(scale - 128).
    Exponent,
    /// `scale[16]` i8, times the header's `scale[16]` f16.
    Byte,
    /// `scale[2][16]` i8, one per 16 columns, times the header's `scale[16]` f16.
    ByteHalves,
    /// `scale[16] min[16]` u8, times the header's `scale[16] min[16]` f16; the minimum is subtracted.
    ByteMin,
    /// `both[2][16]` u8, one per 16 columns, scales in the low nibbles and minima in the high ones, times the header's
    /// `scale[16] min[16]` f16; the minimum is subtracted.
    NibbleMinHalves,
}

impl Scales {
    const fn header_bytes(self) -> usize {
        match self {
            Self::Half | Self::HalfMin | Self::Exponent => 0,
            Self::Byte | Self::ByteHalves => 2 * PANEL,
            Self::ByteMin | Self::NibbleMinHalves => 4 * PANEL,
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Self::Exponent | Self::Byte => PANEL,
            Self::Half | Self::ByteHalves | Self::ByteMin | Self::NibbleMinHalves => 2 * PANEL,
            Self::HalfMin => 4 * PANEL,
        }
    }

    /// Whether values have a minimum added.
    pub(crate) const fn have_min(self) -> bool {
        matches!(self, Self::HalfMin | Self::ByteMin | Self::NibbleMinHalves)
    }

    /// Whether the two halves of a sub-block have factors of their own.
    pub(crate) const fn differ_by_half(self) -> bool {
        matches!(self, Self::ByteHalves | Self::NibbleMinHalves)
    }
}

/// How a quantised format is packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLayout {
    /// 8, 4 or 2.
    pub(crate) low_bits: usize,
    /// 0, 1 or 2, on top of the low bits.
    pub(crate) high_bits: usize,
    pub(crate) scales: Scales,
    /// What was added to every value to make it unsigned.
    pub(crate) zero_point: i32,
    /// The unsigned values that 4-bit codes stand for.
    pub(crate) table: Option<[u8; 16]>,
    pub(crate) header_bytes: usize,
    pub(crate) subs: usize,
    pub(crate) low_bytes: usize,
    pub(crate) high_bytes: usize,
    pub(crate) sub_bytes: usize,
}

impl PackedLayout {
    /// The layout of a quantised format; floats have none.
    pub(crate) const fn of(format: Format) -> Option<Self> {
        let (bits, scales, zero_point) = match format {
            Format::F32 | Format::F16 | Format::BF16 => return None,
            Format::Q4_0 => ([4, 0], Scales::Half, 8),
            Format::Q4_1 => ([4, 0], Scales::HalfMin, 0),
            Format::Q5_0 => ([4, 1], Scales::Half, 16),
            Format::Q5_1 => ([4, 1], Scales::HalfMin, 0),
            Format::Q8_0 => ([8, 0], Scales::Half, 128),
            Format::Q2_K => ([2, 0], Scales::NibbleMinHalves, 0),
            Format::Q3_K => ([2, 1], Scales::ByteHalves, 4),
            Format::Q4_K => ([4, 0], Scales::ByteMin, 0),
            Format::Q5_K => ([4, 1], Scales::ByteMin, 0),
            Format::Q6_K => ([4, 2], Scales::ByteHalves, 32),
            Format::IQ4_NL => ([4, 0], Scales::Half, 128),
            Format::IQ4_XS => ([4, 0], Scales::Byte, 128),
            Format::MXFP4 => ([4, 0], Scales::Exponent, 12),
        };
        let [low_bits, high_bits] = bits;
        let table = match format {
            Format::IQ4_NL | Format::IQ4_XS => Some(unsigned(&IQ4_VALUES, zero_point)),
            Format::MXFP4 => Some(unsigned(&MXFP4_VALUES, zero_point)),
            _ => None,
        };
        let (low_bytes, high_bytes) = (low_bits * RUN, high_bits * RUN);
        Some(Self {
            low_bits,
            high_bits,
            scales,
            zero_point,
            table,
            header_bytes: scales.header_bytes(),
            subs: format.block_len() / SUB,
            low_bytes,
            high_bytes,
            sub_bytes: low_bytes + high_bytes + scales.bytes(),
        })
    }

    pub(crate) const fn block_bytes(&self) -> usize {
        self.header_bytes + self.subs * self.sub_bytes
    }

    /// Whether values need all eight bits of a byte. Kernels may take them signed then, without the zero point.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) const fn is_wide(&self) -> bool {
        self.zero_point == 128
    }

    /// The greatest unsigned value; for wide formats, the greatest magnitude of a signed one.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const fn greatest(&self) -> i32 {
        if self.is_wide() {
            return 128;
        }
        let Some(table) = self.table else {
            return (1 << (self.low_bits + self.high_bits)) - 1;
        };
        let (mut greatest, mut code) = (0, 0);
        while code < table.len() {
            if table[code] as i32 > greatest {
                greatest = table[code] as i32;
            }
            code += 1;
        }
        greatest
    }
}

const fn unsigned(values: &[i8; 16], zero_point: i32) -> [u8; 16] {
    let (mut found, mut code) = ([0; 16], 0);
    while code < found.len() {
        found[code] = (values[code] as i32 + zero_point) as u8;
        code += 1;
    }
    found
}

/// Bytes of one packed panel of `cols` columns.
pub(crate) fn panel_bytes(format: Format, cols: usize) -> Option<usize> {
    match PackedLayout::of(format) {
        Some(layout) => (cols / format.block_len()).checked_mul(layout.block_bytes()),
        None => cols.checked_mul(PANEL * format.block_bytes()),
    }
}
