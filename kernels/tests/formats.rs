//! What each block format means, against blocks computed by hand, and hostile sizes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]
#![allow(clippy::float_cmp, clippy::cast_lossless, reason = "these values are exact")]

mod common;

use common::{Numbers, file_bytes};
use midstream_kernels::{Error, Format, Isa, WeightMatrix, dequantise};

const ONE: [u8; 2] = [0x00, 0x3c];
const TWO: [u8; 2] = [0x00, 0x40];
const HALF: [u8; 2] = [0x00, 0x38];

fn values(format: Format, block: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; format.block_len()];
    dequantise(format, block, &mut out).unwrap();
    out
}

#[test]
fn q4_0_takes_low_nibbles_first_and_subtracts_8() {
    let mut block = HALF.to_vec();
    block.extend([0x80; 16]);
    block[2] = 0x2f;
    let out = values(Format::Q4_0, &block);
    assert_eq!((out[0], out[1], out[16], out[17]), (3.5, -4.0, -3.0, 0.0));
}

#[test]
fn q4_1_adds_the_minimum() {
    let mut block = [HALF, TWO].concat();
    block.extend([0x91; 16]);
    let out = values(Format::Q4_1, &block);
    assert!(out[..16].iter().all(|value| *value == 2.5));
    assert!(out[16..].iter().all(|value| *value == 6.5));
}

#[test]
fn q5_0_takes_fifth_bits_from_the_mask() {
    let mut block = ONE.to_vec();
    block.extend((1_u32 << 3 | 1 << 20).to_le_bytes());
    block.extend([0x21; 16]);
    let out = values(Format::Q5_0, &block);
    assert_eq!((out[2], out[3], out[19], out[20]), (-15.0, 1.0, -14.0, 2.0));
}

#[test]
fn q8_0_is_signed() {
    let mut block = HALF.to_vec();
    block.extend((0..32_u8).map(|i| i.wrapping_sub(16)));
    block[2] = 0x80;
    let out = values(Format::Q8_0, &block);
    assert_eq!((out[0], out[1], out[31]), (-64.0, -7.5, 7.5));
}

#[test]
fn q4_k_unpacks_its_six_bit_scales_and_minima() {
    let mut block = [ONE, HALF].concat();
    // Pair 1 has scale 0x21 and minimum 0x12; pair 5 scale 0x3 | 0b10 << 4 and minimum 0x4 | 0b01 << 4.
    let mut scales = [0_u8; 12];
    scales[1] = 0x21 | 0b10 << 6;
    scales[5] = 0x12 | 0b01 << 6;
    scales[9] = 0x43;
    block.extend(scales);
    block.extend([0x52; 128]);
    let out = values(Format::Q4_K, &block);
    assert!(out[..32].iter().all(|value| *value == 0.0));
    assert!(out[32..64].iter().all(|value| *value == f32::from(0x21_u8) * 5.0 - 9.0));
    assert!(out[160..192].iter().all(|value| *value == 35.0 * 5.0 - 10.0));
}

#[test]
fn q6_k_joins_nibbles_and_bit_pairs() {
    let mut block = vec![0_u8; 210];
    block[5] = 0xa3; // low bits of values 5 and 69
    block[32 + 5] = 0x1c; // of 37 and 101
    block[128 + 5] = 0b01_10_00_11; // high bits of 5, 37, 69, 101
    for (i, scale) in block[192..208].iter_mut().enumerate() {
        *scale = (i as i8 - 3).cast_unsigned();
    }
    block[208..].copy_from_slice(&TWO);
    let out = values(Format::Q6_K, &block);
    assert_eq!(out[5], 2.0 * -3.0 * (3.0 + 48.0 - 32.0));
    assert_eq!(out[37], -2.0 * (12.0 - 32.0));
    assert_eq!(out[69], 2.0 * (10.0 + 32.0 - 32.0));
    assert_eq!(out[101], 2.0 * 3.0 * (1.0 + 16.0 - 32.0));
    assert_eq!(out[16], 2.0 * -2.0 * -32.0);
    assert_eq!(out[128], 2.0 * 5.0 * -32.0);
}

#[test]
fn floats_are_taken_as_they_are() {
    assert_eq!(values(Format::F32, &1.5_f32.to_le_bytes()), [1.5]);
    assert_eq!(values(Format::F16, &TWO), [2.0]);
}

#[test]
fn gguf_numbers_and_sizes_are_those_of_the_file_format() {
    let table =
        [(0, 1, 4), (1, 1, 2), (2, 32, 18), (3, 32, 20), (6, 32, 22), (8, 32, 34), (12, 256, 144), (14, 256, 210)];
    for ((number, len, bytes), format) in table.into_iter().zip(Format::ALL) {
        assert_eq!(Format::from_gguf_type(number), Some(format));
        assert_eq!((format.block_len(), format.block_bytes()), (len, bytes));
    }
    assert_eq!(Format::from_gguf_type(9), None);
}

#[test]
fn a_packed_matrix_gives_back_the_files_values_bit_for_bit() {
    for format in Format::ALL {
        for rows in [1, 15, 16, 17, 40] {
            let cols = 2 * format.block_len().max(48);
            let bytes = file_bytes(format, rows * cols, &mut Numbers::new(rows as u64));
            let mut expected = vec![0.0; rows * cols];
            dequantise(format, &bytes, &mut expected).unwrap();
            let matrix = WeightMatrix::new(Isa::SCALAR, format, rows, cols, &bytes).unwrap();
            let mut out = vec![0.0; cols];
            for (row, expected) in expected.chunks(cols).enumerate() {
                matrix.dequantise_row(row, &mut out).unwrap();
                assert!(out.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{format:?} row {row}");
            }
        }
    }
}

#[test]
fn packed_weights_take_little_more_memory_than_the_file() {
    for format in Format::ALL {
        let bytes = file_bytes(format, 64 * 512, &mut Numbers::new(1));
        let matrix = WeightMatrix::new(Isa::SCALAR, format, 64, 512, &bytes).unwrap();
        assert!(matrix.packed_bytes() as f64 <= 1.03 * bytes.len() as f64, "{format:?}");
    }
}

#[test]
fn sizes_a_file_may_lie_about_are_errors() {
    let matrix = |format, rows, cols, bytes: &[u8]| WeightMatrix::new(Isa::SCALAR, format, rows, cols, bytes);
    assert!(matches!(matrix(Format::Q8_0, 0, 32, &[]), Err(Error::Shape { .. })));
    assert!(matches!(matrix(Format::Q8_0, 1, 0, &[]), Err(Error::Shape { .. })));
    assert!(matches!(matrix(Format::Q8_0, 1, 33, &[0; 34]), Err(Error::PartialBlock { .. })));
    assert!(matches!(matrix(Format::Q4_K, 1, 32, &[0; 18]), Err(Error::PartialBlock { .. })));
    assert!(matches!(matrix(Format::Q8_0, 2, 32, &[0; 67]), Err(Error::ByteCount { expected: 68, .. })));
    assert!(matches!(matrix(Format::Q8_0, 2, 32, &[0; 69]), Err(Error::ByteCount { .. })));
    for format in Format::ALL {
        let huge = usize::MAX / 256 * 256;
        assert!(matrix(format, huge, 256, &[]).is_err());
        assert!(matrix(format, 256, huge, &[]).is_err());
        assert!(matrix(format, huge, huge, &[0; 1024]).is_err());
    }
    assert!(dequantise(Format::Q8_0, &[0; 33], &mut [0.0; 32]).is_err());
    assert!(dequantise(Format::Q8_0, &[0; 34], &mut [0.0; 31]).is_err());
    assert!(dequantise(Format::Q8_0, &[], &mut []).is_ok());
    let small = matrix(Format::F32, 1, 1, &[0; 4]).unwrap();
    assert!(matches!(small.dequantise_row(1, &mut [0.0]), Err(Error::RowOutside { row: 1, rows: 1 })));
}
