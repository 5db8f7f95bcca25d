//! From a file's blocks to f32: the reference for what each format means.
//! It must never depend on how kernels lay weights out; `pack.rs` is tested against it.

use crate::format::{IQ4_VALUES, MXFP4_VALUES};
use crate::half::{bf16_to_f32, exponent_to_f32, f16_to_f32};
use crate::{Error, Format};

/// Writes the values that `bytes` hold into `out`, exactly as the format defines them.
pub fn dequantise(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    let block_len = format.block_len();
    if !out.len().is_multiple_of(block_len) {
        return Err(Error::PartialBlock { format, len: out.len(), block_len });
    }
    let expected = (out.len() / block_len).checked_mul(format.block_bytes());
    if expected != Some(bytes.len()) {
        let expected = expected.unwrap_or(usize::MAX);
        return Err(Error::ByteCount { format, values: out.len(), expected, found: bytes.len() });
    }
    let decode: fn(&[u8], &mut [f32]) = match format {
        Format::F32 => |b, out| out[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        Format::F16 => |b, out| out[0] = half_at(b, 0),
        Format::BF16 => |b, out| out[0] = bf16_to_f32(u16::from_le_bytes([b[0], b[1]])),
        Format::Q4_0 => q4_0,
        Format::Q4_1 => q4_1,
        Format::Q5_0 => q5_0,
        Format::Q5_1 => q5_1,
        Format::Q8_0 => q8_0,
        Format::Q2_K => q2_k,
        Format::Q3_K => q3_k,
        Format::Q4_K => q4_k,
        Format::Q5_K => q5_k,
        Format::Q6_K => q6_k,
        Format::IQ4_NL => |b, out| from_table(half_at(b, 0), &b[2..], &IQ4_VALUES, out),
        Format::IQ4_XS => iq4_xs,
        Format::MXFP4 => |b, out| from_table(exponent_to_f32(b[0]), &b[1..], &MXFP4_VALUES, out),
    };
    for (block, out) in bytes.chunks_exact(format.block_bytes()).zip(out.chunks_exact_mut(block_len)) {
        decode(block, out);
    }
    Ok(())
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    for (j, byte) in block[2..18].iter().enumerate() {
        out[j] = (f32::from(byte & 15) - 8.0) * scale;
        out[j + 16] = (f32::from(byte >> 4) - 8.0) * scale;
    }
}

fn q4_1(block: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    for (j, byte) in block[4..20].iter().enumerate() {
        out[j] = f32::from(byte & 15) * scale + min;
        out[j + 16] = f32::from(byte >> 4) * scale + min;
    }
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (j, byte) in block[6..22].iter().enumerate() {
        let low_fifth = (high >> j & 1) as u8 * 16;
        let high_fifth = (high >> (j + 16) & 1) as u8 * 16;
        out[j] = (f32::from(byte & 15 | low_fifth) - 16.0) * scale;
        out[j + 16] = (f32::from(byte >> 4 | high_fifth) - 16.0) * scale;
    }
}

fn q5_1(block: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (j, byte) in block[8..24].iter().enumerate() {
        let low_fifth = (high >> j & 1) as u8 * 16;
        let high_fifth = (high >> (j + 16) & 1) as u8 * 16;
        out[j] = f32::from(byte & 15 | low_fifth) * scale + min;
        out[j + 16] = f32::from(byte >> 4 | high_fifth) * scale + min;
    }
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    for (out, byte) in out.iter_mut().zip(&block[2..34]) {
        *out = f32::from(byte.cast_signed()) * scale;
    }
}

fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(block, 80), half_at(block, 82));
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        let (sub_scale, sub_min) = (scale * f32::from(block[part] & 15), min * f32::from(block[part] >> 4));
        let (bytes, shift) = (&block[16 + 32 * (part / 8) + 16 * (part % 2)..], part / 2 % 4 * 2);
        for (out, byte) in out.iter_mut().zip(bytes) {
            *out = sub_scale * f32::from(byte >> shift & 3) - sub_min;
        }
    }
}

/// The signed 6-bit scale of sixteen values from the twelve packed bytes of a Q3_K block.
pub(crate) fn q3_k_scale(packed: &[u8], part: usize) -> i8 {
    let low = packed[part % 8] >> (part / 8 * 4) & 15;
    let high = packed[8 + part % 4] >> (part / 4 * 2) & 3;
    (low | high << 4).cast_signed() - 32
}

fn q3_k(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 108);
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        let sub_scale = scale * f32::from(q3_k_scale(&block[96..108], part));
        let at = 16 * (part % 2);
        let (bytes, shift) = (&block[32 + 32 * (part / 8) + at..], part / 2 % 4 * 2);
        for ((out, byte), high) in out.iter_mut().zip(bytes).zip(&block[at..]) {
            let quant = byte >> shift & 3 | (high >> (part / 2) & 1) << 2;
            *out = sub_scale * (f32::from(quant) - 4.0);
        }
    }
}

/// The 6-bit scale and minimum of sub-block `j` from the twelve packed bytes of a Q4_K or Q5_K block.
pub(crate) fn k_scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    for (pair, bytes) in block[16..144].chunks_exact(32).enumerate() {
        let (low_scale, low_min) = k_scale_min(&block[4..16], 2 * pair);
        let (high_scale, high_min) = k_scale_min(&block[4..16], 2 * pair + 1);
        let (low_scale, low_min) = (scale * f32::from(low_scale), min * f32::from(low_min));
        let (high_scale, high_min) = (scale * f32::from(high_scale), min * f32::from(high_min));
        for (l, byte) in bytes.iter().enumerate() {
            out[64 * pair + l] = low_scale * f32::from(byte & 15) - low_min;
            out[64 * pair + 32 + l] = high_scale * f32::from(byte >> 4) - high_min;
        }
    }
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let (sub_scale, sub_min) = k_scale_min(&block[4..16], sub);
        let (sub_scale, sub_min) = (scale * f32::from(sub_scale), min * f32::from(sub_min));
        let bytes = &block[48 + 32 * (sub / 2)..];
        for ((out, byte), high) in out.iter_mut().zip(bytes).zip(&block[16..48]) {
            let quant = byte >> (4 * (sub % 2)) & 15 | (high >> sub & 1) << 4;
            *out = sub_scale * f32::from(quant) - sub_min;
        }
    }
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 208);
    for half in 0..2 {
        let (low, high) = (&block[64 * half..64 * half + 64], &block[128 + 32 * half..160 + 32 * half]);
        let scales = &block[192 + 8 * half..200 + 8 * half];
        for l in 0..32 {
            let quants = [low[l] & 15, low[l + 32] & 15, low[l] >> 4, low[l + 32] >> 4];
            for (part, low_bits) in quants.into_iter().enumerate() {
                let quant = low_bits | (high[l] >> (2 * part) & 3) << 4;
                let sub = scale * f32::from(scales[l / 16 + 2 * part].cast_signed());
                out[128 * half + 32 * part + l] = sub * (f32::from(quant) - 32.0);
            }
        }
    }
}

/// 32 values of a table, times a scale.
fn from_table(scale: f32, codes: &[u8], table: &[i8; 16], out: &mut [f32]) {
    for (j, byte) in codes[..16].iter().enumerate() {
        out[j] = f32::from(table[usize::from(byte & 15)]) * scale;
        out[j + 16] = f32::from(table[usize::from(byte >> 4)]) * scale;
    }
}

/// The signed 6-bit scale of sub-block `sub` of an IQ4_XS block.
pub(crate) fn iq4_xs_scale(block: &[u8], sub: usize) -> i8 {
    let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * sub) & 3;
    let low = block[4 + sub / 2] >> (4 * (sub % 2)) & 15;
    (low | (high as u8) << 4).cast_signed() - 32
}

fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let sub_scale = scale * f32::from(iq4_xs_scale(block, sub));
        from_table(sub_scale, &block[8 + 16 * sub..], &IQ4_VALUES, out);
    }
}
