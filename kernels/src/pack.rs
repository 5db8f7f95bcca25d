//! From a file's rows to packed panels (see `layout.rs`), and back for single rows. Bits per weight stay those of the
//! file. It must never compute products.

use crate::Format;
use crate::dequant::{iq4_xs_scale, k_scale_min, q3_k_scale};
use crate::half::{bf16_to_f32, exponent_to_f32, f16_to_f32};
use crate::layout::{PANEL, PackedLayout, RUN, SUB, Scales};

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
        // Where the block's own factors stand in the file.
        let factors: &[usize] = match format {
            Format::Q4_K | Format::Q5_K => &[0, 2],
            Format::Q2_K => &[80, 82],
            Format::Q3_K => &[108],
            Format::Q6_K => &[208],
            Format::IQ4_XS => &[0],
            _ => &[],
        };
        for (index, at) in factors.iter().enumerate() {
            put_half(header, index * PANEL + lane, &block[*at..at + 2]);
        }
        for (sub, packed) in subs.chunks_exact_mut(layout.sub_bytes).enumerate() {
            let codes = groups(&file_codes(format, block, sub));
            let (low, high) = packed.split_at_mut(layout.low_bytes);
            let (high, scales) = high.split_at_mut(layout.high_bytes);
            spread(&codes, 0, layout.low_bits, lane, low);
            if layout.high_bits > 0 {
                spread(&codes, layout.low_bits, layout.high_bits, lane, high);
            }
            pack_scales(format, block, sub, lane, scales);
        }
    }
}

fn put_half(halves: &mut [u8], at: usize, bytes: &[u8]) {
    halves[2 * at..2 * at + 2].copy_from_slice(bytes);
}

fn pack_scales(format: Format, block: &[u8], sub: usize, lane: usize, scales: &mut [u8]) {
    match format {
        Format::Q4_1 | Format::Q5_1 => {
            put_half(scales, lane, &block[0..2]);
            put_half(scales, PANEL + lane, &block[2..4]);
        }
        Format::Q2_K => (scales[lane], scales[PANEL + lane]) = (block[2 * sub], block[2 * sub + 1]),
        Format::Q3_K => {
            let scale = |at: usize| q3_k_scale(&block[96..108], at).cast_unsigned();
            (scales[lane], scales[PANEL + lane]) = (scale(2 * sub), scale(2 * sub + 1));
        }
        Format::Q4_K | Format::Q5_K => (scales[lane], scales[PANEL + lane]) = k_scale_min(&block[4..16], sub),
        // Scale `i` covers columns 16 * i and on.
        Format::Q6_K => (scales[lane], scales[PANEL + lane]) = (block[192 + 2 * sub], block[192 + 2 * sub + 1]),
        Format::IQ4_XS => scales[lane] = iq4_xs_scale(block, sub).cast_unsigned(),
        Format::MXFP4 => scales[lane] = block[0],
        _ => put_half(scales, lane, &block[0..2]),
    }
}

/// The groups of four columns as words.
fn groups(codes: &[u8; SUB]) -> [u32; SUB / 4] {
    let quads = codes.as_chunks::<4>().0;
    std::array::from_fn(|group| u32::from_le_bytes(quads[group]))
}

/// The lowest `width` bits of each byte of a word.
const fn low_bits(width: usize) -> u32 {
    0x0101_0101 * ((1 << width) - 1)
}

/// Writes `width` bits of each code, from bit `from` on, into one lane of zeroed runs.
#[inline]
fn spread(groups: &[u32; SUB / 4], from: usize, width: usize, lane: usize, runs: &mut [u8]) {
    let shared = 8 / width;
    for (run, groups) in runs.as_chunks_mut::<RUN>().0.iter_mut().zip(groups.chunks_exact(shared)) {
        let mut word = 0;
        for (place, group) in groups.iter().enumerate() {
            word |= (group >> from & low_bits(width)) << (width * place);
        }
        run.as_chunks_mut::<4>().0[lane] = word.to_le_bytes();
    }
}

/// The bits of one row's values of a sub-block, as the file has them, in column order. Those of Q8_0 are made unsigned.
#[inline]
fn file_codes(format: Format, block: &[u8], sub: usize) -> [u8; SUB] {
    match format {
        Format::Q4_0 | Format::IQ4_NL => nibbles(&block[2..18]),
        Format::Q4_1 => nibbles(&block[4..20]),
        Format::Q5_0 => with_fifth(nibbles(&block[6..22]), &block[2..6]),
        Format::Q5_1 => with_fifth(nibbles(&block[8..24]), &block[4..8]),
        Format::Q8_0 => field(&block[2..34], 0, 0xff).map(|byte| byte ^ 0x80),
        Format::Q2_K => field(&block[16 + 32 * (sub / 4)..], 2 * (sub % 4), 3),
        Format::Q3_K => joined(field(&block[32 + 32 * (sub / 4)..], 2 * (sub % 4), 3), field(&block[..32], sub, 1), 2),
        Format::Q4_K => field(&block[16 + 32 * (sub / 2)..], 4 * (sub % 2), 15),
        Format::Q5_K => joined(field(&block[48 + 32 * (sub / 2)..], 4 * (sub % 2), 15), field(&block[16..], sub, 1), 4),
        Format::Q6_K => {
            let (half, part) = (sub / 4, sub % 4);
            let low = field(&block[64 * half + 32 * (part % 2)..], 4 * (part / 2), 15);
            joined(low, field(&block[128 + 32 * half..], 2 * part, 3), 4)
        }
        Format::IQ4_XS => nibbles(&block[8 + 16 * sub..24 + 16 * sub]),
        Format::MXFP4 => nibbles(&block[1..17]),
        Format::F32 | Format::F16 | Format::BF16 => [0; SUB],
    }
}

/// Sixteen bytes' low nibbles, then their high ones.
fn nibbles(bytes: &[u8]) -> [u8; SUB] {
    let mut codes = [0; SUB];
    let (low, high) = codes.split_at_mut(SUB / 2);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
    codes
}

/// Some bits of each of the first 32 bytes.
fn field(bytes: &[u8], shift: usize, mask: u8) -> [u8; SUB] {
    let mut codes = [0; SUB];
    for (code, byte) in codes.iter_mut().zip(bytes) {
        *code = byte >> shift & mask;
    }
    codes
}

fn joined(mut low: [u8; SUB], high: [u8; SUB], shift: usize) -> [u8; SUB] {
    for (low, high) in low.iter_mut().zip(high) {
        *low |= high << shift;
    }
    low
}

/// Adds fifth bits from a mask with one bit per column, eight columns at a time.
fn with_fifth(mut codes: [u8; SUB], mask: &[u8]) -> [u8; SUB] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    for (codes, bits) in codes.as_chunks_mut::<8>().0.iter_mut().zip(mask) {
        // Bit `i` alone is left in byte `i`, then carries into the byte's highest bit.
        let alone = (EACH * u64::from(*bits)) & 0x8040_2010_0804_0201;
        let highest = (alone + 0x7f * EACH) & (0x80 * EACH);
        *codes = (u64::from_le_bytes(*codes) | (highest >> 3)).to_le_bytes();
    }
    codes
}

/// One row's values of a packed sub-block, unsigned, in column order.
#[inline]
pub(crate) fn lane_quants(layout: &PackedLayout, packed: &[u8], lane: usize) -> [u8; SUB] {
    let runs = packed.as_chunks::<RUN>().0;
    let bits = |first_run: usize, width: usize, group: usize| {
        let shared = 8 / width;
        let word = u32::from_le_bytes(runs[first_run + group / shared].as_chunks::<4>().0[lane]);
        word >> (width * (group % shared)) & low_bits(width)
    };
    let mut quants = [0; SUB];
    for (group, quants) in quants.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mut codes = bits(0, layout.low_bits, group);
        if layout.high_bits > 0 {
            codes |= bits(layout.low_bytes / RUN, layout.high_bits, group) << layout.low_bits;
        }
        *quants = codes.to_le_bytes();
        if let Some(table) = layout.table {
            *quants = quants.map(|code| table[usize::from(code)]);
        }
    }
    quants
}

/// The factors of a sub-block's sixteen rows: a value is `scales[half] * (quant - zero point) + mins[half]`, in f32.
pub(crate) struct Factors {
    /// For the first and the last 16 columns.
    pub(crate) scales: [[f32; PANEL]; 2],
    /// Likewise.
    pub(crate) mins: [[f32; PANEL]; 2],
}

/// Reads the factors of one sub-block. `bytes` is its part behind the low and high bits.
pub(crate) fn factors(scales: Scales, header: &[u8], bytes: &[u8]) -> Factors {
    let half = |bytes: &[u8], at: usize| f16_to_f32(u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]));
    let mut found = Factors { scales: [[0.0; PANEL]; 2], mins: [[0.0; PANEL]; 2] };
    for lane in 0..PANEL {
        let second = PANEL + lane;
        let signed = |at: usize| half(header, lane) * f32::from(bytes[at].cast_signed());
        let scale = |factor: u8| half(header, lane) * f32::from(factor);
        let min = |factor: u8| -(half(header, second) * f32::from(factor));
        let (scales, mins) = match scales {
            Scales::Half => ([half(bytes, lane); 2], [0.0; 2]),
            Scales::HalfMin => ([half(bytes, lane); 2], [half(bytes, second); 2]),
            Scales::Exponent => ([exponent_to_f32(bytes[lane]); 2], [0.0; 2]),
            Scales::Byte => ([signed(lane); 2], [0.0; 2]),
            Scales::ByteHalves => ([signed(lane), signed(second)], [0.0; 2]),
            Scales::ByteMin => ([scale(bytes[lane]); 2], [min(bytes[second]); 2]),
            Scales::NibbleMinHalves => {
                let both = [bytes[lane], bytes[second]];
                (both.map(|both| scale(both & 15)), both.map(|both| min(both >> 4)))
            }
        };
        for part in 0..2 {
            found.scales[part][lane] = scales[part];
            found.mins[part][lane] = mins[part];
        }
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
                [a, b] if format == Format::BF16 => bf16_to_f32(u16::from_le_bytes([a, b])),
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
            let found = factors(layout.scales, header, &packed[layout.low_bytes + layout.high_bytes..]);
            let quants = lane_quants(&layout, packed, lane);
            for (column, out) in out.iter_mut().enumerate() {
                let quant = i32::from(quants[column]) - layout.zero_point;
                let scaled = found.scales[column / 16][lane] * quant as f32;
                // Adding a zero minimum would turn -0 into 0.
                *out = if layout.scales.have_min() { scaled + found.mins[column / 16][lane] } else { scaled };
            }
        }
    }
}
