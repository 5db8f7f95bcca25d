//! How kernels lay weights out. Sixteen rows form a panel; inside it, values are interleaved so that one 64-byte load
//! holds four consecutive columns of all sixteen rows. Bits per weight stay those of the file.
//!
//! A quantised panel is a run of blocks; a block is a header and one or eight sub-blocks of 32 columns:
//! * header: Q4_K `scale[16] min[16]`, Q6_K `scale[16]` (f16), else nothing;
//! * sub-block: low bits, then high bits, then scales.
//!   - low bits, all but Q8_0: four runs of 64 bytes; byte `4 * lane + i` of run `g` holds column `4 * g + i` of row
//!     `lane` in its low nibble and column `4 * (g + 4) + i` in its high nibble. Q8_0: eight runs of whole bytes.
//!   - high bits, Q5_0: one run, bit `g` belongs to column `4 * g + i`. Q6_K: two runs for columns below and from 16,
//!     two bits at `2 * (g % 4)`.
//!   - scales: Q4_0, Q5_0, Q8_0 `scale[16]` f16; Q4_1 `scale[16] min[16]` f16; Q4_K `scale[16] min[16]` u8; Q6_K
//!     `scale[2][16]` i8, one per 16 columns.
//!
//! All values are unsigned, with the format's zero point added. F32 and F16 panels are `[column][16]`.
//! This file must never compute products.

use crate::Format;
use crate::dequant::q4_k_scale_min;
use crate::half::f16_to_f32;

/// Rows in a panel.
pub(crate) const PANEL: usize = 16;

/// Columns in a sub-block.
pub(crate) const SUB: usize = 32;

/// The sizes of a quantised format's packed panel blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLayout {
    pub(crate) header_bytes: usize,
    pub(crate) subs: usize,
    pub(crate) low_bytes: usize,
    pub(crate) high_bytes: usize,
    pub(crate) sub_bytes: usize,
    /// What was added to every value to make it unsigned.
    pub(crate) zero_point: i32,
}

impl PackedLayout {
    const fn new(sizes: [usize; 5], zero_point: i32) -> Self {
        let [header_bytes, subs, low_bytes, high_bytes, scale_bytes] = sizes;
        let sub_bytes = low_bytes + high_bytes + scale_bytes;
        Self { header_bytes, subs, low_bytes, high_bytes, sub_bytes, zero_point }
    }

    /// The layout of a quantised format; F32 and F16 have none.
    pub(crate) const fn of(format: Format) -> Option<Self> {
        Some(match format {
            Format::F32 | Format::F16 => return None,
            Format::Q4_0 => Self::new([0, 1, 256, 0, 32], 8),
            Format::Q4_1 => Self::new([0, 1, 256, 0, 64], 0),
            Format::Q5_0 => Self::new([0, 1, 256, 64, 32], 16),
            Format::Q8_0 => Self::new([0, 1, 512, 0, 32], 128),
            Format::Q4_K => Self::new([64, 8, 256, 0, 32], 0),
            Format::Q6_K => Self::new([32, 8, 256, 128, 32], 32),
        })
    }

    pub(crate) const fn block_bytes(&self) -> usize {
        self.header_bytes + self.subs * self.sub_bytes
    }
}

/// Bytes of one packed panel of `cols` columns.
pub(crate) fn panel_bytes(format: Format, cols: usize) -> Option<usize> {
    match PackedLayout::of(format) {
        Some(layout) => (cols / format.block_len()).checked_mul(layout.block_bytes()),
        None => cols.checked_mul(PANEL * format.block_bytes()),
    }
}

/// Writes one row of a file, `row`, into its lane of a zeroed packed panel.
pub(crate) fn pack_row(format: Format, row: &[u8], lane: usize, panel: &mut [u8]) {
    assert!(lane < PANEL, "a lane of the panel");
    let blocks = row.chunks_exact(format.block_bytes());
    let Some(layout) = PackedLayout::of(format) else {
        let width = format.block_bytes();
        for (value, column) in blocks.zip(panel.chunks_exact_mut(PANEL * width)) {
            column[lane * width..(lane + 1) * width].copy_from_slice(value);
        }
        return;
    };
    for (block, packed) in blocks.zip(panel.chunks_exact_mut(layout.block_bytes())) {
        let (header, subs) = packed.split_at_mut(layout.header_bytes);
        match format {
            Format::Q4_K => {
                put_half(header, lane, &block[0..2]);
                put_half(header, PANEL + lane, &block[2..4]);
            }
            Format::Q6_K => put_half(header, lane, &block[208..210]),
            _ => {}
        }
        for (sub, packed) in subs.chunks_exact_mut(layout.sub_bytes).enumerate() {
            let bits = file_bits(format, block, sub);
            let (low, high) = packed.split_at_mut(layout.low_bytes);
            spread(&bits.low, lane, low);
            spread(&bits.high, lane, &mut high[..layout.high_bytes]);
            let scales = &mut packed[layout.low_bytes + layout.high_bytes..];
            pack_scales(format, block, sub, lane, scales);
        }
    }
}

fn put_half(halves: &mut [u8], at: usize, bytes: &[u8]) {
    halves[2 * at..2 * at + 2].copy_from_slice(bytes);
}

fn pack_scales(format: Format, block: &[u8], sub: usize, lane: usize, scales: &mut [u8]) {
    match format {
        Format::Q4_1 => {
            put_half(scales, lane, &block[0..2]);
            put_half(scales, PANEL + lane, &block[2..4]);
        }
        Format::Q4_K => (scales[lane], scales[PANEL + lane]) = q4_k_scale_min(&block[4..16], sub),
        Format::Q6_K => {
            // Scale `i` covers columns 16 * i and on.
            scales[lane] = block[192 + 2 * sub];
            scales[PANEL + lane] = block[192 + 2 * sub + 1];
        }
        _ => put_half(scales, lane, &block[0..2]),
    }
}

/// Gives each run of 64 bytes the row's next four bytes.
fn spread(bytes: &[u8], lane: usize, runs: &mut [u8]) {
    let words = bytes.as_chunks::<4>().0;
    for (run, word) in runs.as_chunks_mut::<{ 4 * PANEL }>().0.iter_mut().zip(words) {
        run.as_chunks_mut::<4>().0[lane] = *word;
    }
}

/// One row's part of a sub-block, in the order of the packed runs.
struct SubBits {
    /// Byte `j` holds columns `j` and `j + 16` in its nibbles; for Q8_0, column `j`.
    low: [u8; SUB],
    high: [u8; 8],
}

fn file_bits(format: Format, block: &[u8], sub: usize) -> SubBits {
    let mut bits = SubBits { low: [0; SUB], high: [0; 8] };
    match format {
        Format::Q4_0 => bits.low[..16].copy_from_slice(&block[2..18]),
        Format::Q4_1 => bits.low[..16].copy_from_slice(&block[4..20]),
        Format::Q5_0 => {
            bits.low[..16].copy_from_slice(&block[6..22]);
            let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
            for column in 0..SUB {
                bits.high[column % 4] |= ((fifth >> column & 1) as u8) << (column / 4);
            }
        }
        Format::Q8_0 => {
            for (low, byte) in bits.low.iter_mut().zip(&block[2..34]) {
                *low = byte ^ 0x80;
            }
        }
        Format::Q4_K => {
            let (first, second) = block[16 + 32 * (sub / 2)..][..32].split_at(16);
            let shift = 4 * (sub % 2);
            for ((low, first), second) in bits.low.iter_mut().zip(first).zip(second) {
                *low = first >> shift & 15 | (second >> shift & 15) << 4;
            }
        }
        Format::Q6_K => {
            let (half, part) = (sub / 4, sub % 4);
            let (first, second) = block[64 * half + 32 * (part % 2)..][..32].split_at(16);
            let shift = 4 * (part / 2);
            for ((low, first), second) in bits.low.iter_mut().zip(first).zip(second) {
                *low = first >> shift & 15 | (second >> shift & 15) << 4;
            }
            for (column, byte) in block[128 + 32 * half..][..32].iter().enumerate() {
                bits.high[4 * (column / 16) + column % 4] |= (byte >> (2 * part) & 3) << (column % 16 / 4 * 2);
            }
        }
        Format::F32 | Format::F16 => {}
    }
    bits
}

/// One row's values of a packed sub-block, unsigned, in column order.
#[inline]
pub(crate) fn lane_quants(format: Format, packed: &[u8], lane: usize) -> [u8; SUB] {
    let runs = packed.as_chunks::<{ 4 * PANEL }>().0;
    let word = |run: usize| runs[run].as_chunks::<4>().0[lane];
    let mut quants = [0; SUB];
    for (group, quants) in quants.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        if format == Format::Q8_0 {
            *quants = word(group);
            continue;
        }
        let shift = 4 * (group / 4);
        *quants = word(group % 4).map(|low| low >> shift & 15);
        // Where the high bits lie, how far up, and which they are.
        let (run, shift, mask) = match format {
            Format::Q5_0 => (4, group, 1),
            Format::Q6_K => (4 + group / 4, 2 * (group % 4), 3),
            _ => continue,
        };
        for (quant, high) in quants.iter_mut().zip(word(run)) {
            *quant |= (high >> shift & mask) << 4;
        }
    }
    quants
}

/// The factors of a sub-block's sixteen rows: a value is `scales[half] * (quant - zero point) + min`, in f32.
pub(crate) struct Factors {
    /// For the first and the last 16 columns.
    pub(crate) scales: [[f32; PANEL]; 2],
    pub(crate) mins: [f32; PANEL],
}

/// Reads the factors of one sub-block. `scales` is its part behind the low and high bits.
pub(crate) fn factors(format: Format, header: &[u8], scales: &[u8]) -> Factors {
    let half = |bytes: &[u8], at: usize| f16_to_f32(u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]));
    let mut found = Factors { scales: [[0.0; PANEL]; 2], mins: [0.0; PANEL] };
    for lane in 0..PANEL {
        let (first, second, min) = match format {
            Format::Q4_1 => (half(scales, lane), half(scales, lane), half(scales, PANEL + lane)),
            Format::Q4_K => {
                let scale = half(header, lane) * f32::from(scales[lane]);
                (scale, scale, -(half(header, PANEL + lane) * f32::from(scales[PANEL + lane])))
            }
            Format::Q6_K => {
                let scale = |at: usize| half(header, lane) * f32::from(scales[at].cast_signed());
                (scale(lane), scale(PANEL + lane), 0.0)
            }
            _ => (half(scales, lane), half(scales, lane), 0.0),
        };
        found.scales[0][lane] = first;
        found.scales[1][lane] = second;
        found.mins[lane] = min;
    }
    found
}

/// The values of one row, read back from a packed panel: the bits `dequantise` gives for the file's row.
pub(crate) fn unpack_row(format: Format, panel: &[u8], lane: usize, out: &mut [f32]) {
    let Some(layout) = PackedLayout::of(format) else {
        let width = format.block_bytes();
        for (out, column) in out.iter_mut().zip(panel.chunks_exact(PANEL * width)) {
            let bytes = &column[lane * width..(lane + 1) * width];
            *out = match *bytes {
                [a, b] => f16_to_f32(u16::from_le_bytes([a, b])),
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                _ => 0.0,
            };
        }
        return;
    };
    let mut subs_out = out.chunks_exact_mut(SUB);
    for block in panel.chunks_exact(layout.block_bytes()) {
        let (header, subs) = block.split_at(layout.header_bytes);
        for (packed, out) in subs.chunks_exact(layout.sub_bytes).zip(&mut subs_out) {
            let found = factors(format, header, &packed[layout.low_bytes + layout.high_bytes..]);
            let quants = lane_quants(format, packed, lane);
            for (column, out) in out.iter_mut().enumerate() {
                let quant = i32::from(quants[column]) - layout.zero_point;
                let scaled = found.scales[column / 16][lane] * quant as f32;
                // Adding a zero minimum would turn -0 into 0.
                let has_min = matches!(format, Format::Q4_1 | Format::Q4_K);
                *out = if has_min { scaled + found.mins[lane] } else { scaled };
            }
        }
    }
}
