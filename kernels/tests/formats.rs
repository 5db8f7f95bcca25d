//! What each block format means, against blocks computed by hand, and hostile sizes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]
#![allow(clippy::float_cmp, clippy::cast_lossless, reason = "these values are exact")]

mod common;

use std::sync::Mutex;

use common::{Numbers, file_bytes};
use midstream_kernels::{Error, Format, Isa, Team, WeightMatrix, WeightMemory, WeightShape, dequantise};

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
fn q5_1_adds_the_minimum_to_five_bits() {
    let mut block = [HALF, TWO].concat();
    block.extend((1_u32 << 3 | 1 << 20).to_le_bytes());
    block.extend([0x21; 16]);
    let out = values(Format::Q5_1, &block);
    assert_eq!((out[2], out[3], out[19], out[20]), (2.5, 10.5, 3.0, 11.0));
}

#[test]
fn q2_k_has_a_scale_and_a_minimum_for_sixteen_pairs_of_bits() {
    let mut block = vec![0_u8; 84];
    block[3] = 0x25; // values 48..64: scale 5, minimum 2
    block[8] = 0x4f; // values 128..144: scale 15, minimum 4
    block[16 + 17] = 0b00_00_11_00; // values 17, 49, 81, 113
    block[16 + 32 + 4] = 0b01_00_00_10; // values 132, 164, 196, 228
    block[80..82].copy_from_slice(&TWO);
    block[82..84].copy_from_slice(&HALF);
    let out = values(Format::Q2_K, &block);
    assert_eq!((out[48], out[49], out[17]), (-1.0, 2.0 * 5.0 * 3.0 - 1.0, 0.0));
    assert_eq!((out[132], out[133], out[144]), (2.0 * 15.0 * 2.0 - 2.0, -2.0, 0.0));
}

#[test]
fn q3_k_subtracts_4_where_the_mask_is_clear() {
    let mut block = vec![0_u8; 110];
    block[20] = 0b0010_0100; // third bits of values 20 + 32 * 2 and 20 + 32 * 5
    block[32 + 20] = 0b00_01_00_10; // low bits of 20, 52, 84, 116
    block[64 + 20] = 0b00_00_11_00; // of 148, 180, 212, 244
    // Scale 5 (values 80..96): 0b01_1001 - 32 = -7. Scale 11 (176..192): 0b10_0011 - 32 = 3. All others -32.
    block[96 + 5] = 0x09;
    block[96 + 3] = 0x30;
    block[96 + 8 + 1] = 0b01 << 2;
    block[96 + 8 + 3] = 0b10 << 4;
    block[108..].copy_from_slice(&HALF);
    let out = values(Format::Q3_K, &block);
    assert_eq!((out[84], out[85]), (0.5 * -7.0 * 1.0, 0.5 * -7.0 * -4.0));
    assert_eq!((out[180], out[181]), (0.5 * 3.0 * 3.0, 0.5 * 3.0 * -4.0));
    assert_eq!((out[20], out[21]), (-16.0 * -2.0, -16.0 * -4.0));
}

#[test]
fn q5_k_takes_fifth_bits_by_sub_block() {
    let mut block = [ONE, HALF].concat();
    let mut scales = [0_u8; 12];
    scales[1] = 0x21;
    scales[5] = 0x12;
    scales[8] = 0x43;
    block.extend(scales);
    block.extend([0; 32]);
    block[16 + 7] = 0b0001_0010; // of values 32 + 7 and 128 + 7
    block.extend([0x52; 128]);
    let out = values(Format::Q5_K, &block);
    assert_eq!((out[39], out[38]), (33.0 * 21.0 - 9.0, 33.0 * 5.0 - 9.0));
    assert_eq!((out[135], out[134]), (3.0 * 18.0 - 2.0, 3.0 * 2.0 - 2.0));
}

#[test]
fn iq4_nl_looks_its_values_up() {
    let mut block = HALF.to_vec();
    block.extend([0x80; 16]);
    block[2] = 0x7f;
    let out = values(Format::IQ4_NL, &block);
    assert_eq!((out[0], out[1], out[16], out[17]), (56.5, -63.5, -5.0, 0.5));
}

#[test]
fn iq4_xs_has_signed_six_bit_scales() {
    let mut block = TWO.to_vec();
    block.extend((0b10_u16 << 2 | 0b01 << 14).to_le_bytes());
    block.extend([0x50, 0, 0, 0xf0]); // sub-block 1: 0b10_0101 - 32 = 5; sub-block 7: 0b01_1111 - 32 = -1
    block.extend([0x98; 128]);
    let out = values(Format::IQ4_XS, &block);
    assert_eq!((out[32], out[48]), (2.0 * 5.0, 2.0 * 5.0 * 13.0));
    assert_eq!((out[224], out[240]), (-2.0, -2.0 * 13.0));
    assert_eq!(out[0], 2.0 * -32.0);
}

#[test]
fn mxfp4_scales_by_powers_of_two_down_to_subnormal_ones() {
    for (exponent, scale) in [(128, 1.0), (131, 8.0), (1, 2.0_f32.powi(-127)), (0, 2.0_f32.powi(-128))] {
        let mut block = vec![exponent];
        block.extend([0x2f; 16]);
        block[1] = 0x87;
        let out = values(Format::MXFP4, &block);
        assert_eq!((out[0], out[1], out[16], out[17]), (12.0 * scale, -12.0 * scale, 0.0, 2.0 * scale));
    }
    assert_eq!(values(Format::MXFP4, &[[255].as_slice(), &[0x11; 16]].concat())[0], 2.0_f32.powi(127));
}

/// Blocks and the values that the field's own Python package finds in them (`tools/formats/golden.py`).
#[test]
fn every_quantised_format_means_what_the_reference_says() {
    let bytes = |hex: &str| -> Vec<u8> {
        hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    };
    let mut seen = Vec::new();
    for line in include_str!("golden/blocks.txt").lines() {
        let [name, block, expected] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let format = Format::ALL.into_iter().find(|format| format!("{format:?}") == name).unwrap();
        let found: Vec<u8> = values(format, &bytes(block)).into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(found, bytes(expected), "{name} {block}");
        seen.push(format);
    }
    assert!(Format::ALL.iter().all(|format| format.block_len() == 1 || seen.contains(format)));
}

#[test]
fn floats_are_taken_as_they_are() {
    assert_eq!(values(Format::F32, &1.5_f32.to_le_bytes()), [1.5]);
    assert_eq!(values(Format::F16, &TWO), [2.0]);
    assert_eq!(values(Format::BF16, &[0x40, 0xc0]), [-3.0]);
}

#[test]
fn gguf_numbers_and_sizes_are_those_of_the_file_format() {
    let table = [
        (0, 1, 4),
        (1, 1, 2),
        (2, 32, 18),
        (3, 32, 20),
        (6, 32, 22),
        (7, 32, 24),
        (8, 32, 34),
        (10, 256, 84),
        (11, 256, 110),
        (12, 256, 144),
        (13, 256, 176),
        (14, 256, 210),
        (20, 32, 18),
        (23, 256, 136),
        (30, 1, 2),
        (39, 32, 17),
    ];
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
fn weights_are_read_piece_by_piece_on_any_team_each_byte_once_and_lie_in_the_memory_given() {
    // More than one piece, and a last one that is not full.
    let shape = WeightShape { format: Format::Q4_1, rows: 1003, cols: 576 };
    let bytes = file_bytes(shape.format, shape.rows * shape.cols, &mut Numbers::new(3));
    let whole = WeightMatrix::new(Isa::SCALAR, shape.format, shape.rows, shape.cols, &bytes).unwrap();
    assert!(shape.memory_bytes().unwrap() >= whole.packed_bytes());
    for threads in [1, 3] {
        let seen = Mutex::new(vec![0; bytes.len()]);
        let read = |at: usize, into: &mut [u8]| {
            into.copy_from_slice(&bytes[at..at + into.len()]);
            seen.lock().unwrap()[at..at + into.len()].iter_mut().for_each(|count| *count += 1);
            Ok(())
        };
        let mut memory = WeightMemory::new(shape.memory_bytes().unwrap()).unwrap();
        let matrix = WeightMatrix::read(Isa::SCALAR, shape, &mut memory, &Team::new(threads), &read).unwrap();
        assert!(seen.lock().unwrap().iter().all(|count| *count == 1));
        let (mut found, mut expected) = (vec![0.0; shape.cols], vec![0.0; shape.cols]);
        for row in 0..shape.rows {
            matrix.dequantise_row(row, &mut found).unwrap();
            whole.dequantise_row(row, &mut expected).unwrap();
            assert_eq!(found, expected, "row {row}");
        }
    }
}

#[test]
fn weights_that_cannot_be_read_are_an_error() {
    let shape = WeightShape { format: Format::F32, rows: 5000, cols: 64 };
    let cut = |at: usize, _: &mut [u8]| if at > 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) };
    let refused = WeightMatrix::read(Isa::SCALAR, shape, &mut WeightMemory::default(), &Team::new(2), &cut);
    assert!(matches!(refused, Err(Error::Read(_))));
}

#[test]
fn packed_weights_take_little_more_memory_than_the_file() {
    for format in Format::ALL {
        let bytes = file_bytes(format, 64 * 512, &mut Numbers::new(1));
        let matrix = WeightMatrix::new(Isa::SCALAR, format, 64, 512, &bytes).unwrap();
        assert!(matrix.packed_bytes() as f64 <= 1.04 * bytes.len() as f64, "{format:?}");
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
