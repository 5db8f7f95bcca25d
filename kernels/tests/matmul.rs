//! Products: against an f64 reference, and their three invariances, bit for bit.

#![allow(clippy::unwrap_used, reason = "a test may fail")]
#![allow(clippy::float_cmp, clippy::cast_lossless, reason = "these values are exact")]

mod common;

use common::{Numbers, file_bytes};
use midstream_kernels::{Format, Isa, Product, Scratch, Team, WeightMatrix, dequantise, matmul, matmul_all};

const SHAPE_ROWS: [usize; 5] = [1, 15, 16, 17, 100];

fn widths(format: Format) -> [usize; 3] {
    let block_len = format.block_len();
    if block_len == 1 { [1, 33, 192] } else { [block_len, 3 * block_len, 576usize.div_ceil(block_len) * block_len] }
}

fn product(team: &Team, weights: &WeightMatrix, x: &[f32], m: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; m * weights.rows()];
    matmul(team, weights, x, m, &mut out, &mut Scratch::default());
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The exact product and how far a kernel may be from it. An activation is off by at most half a step of 1/127 of its
/// block's greatest value; f32 sums add a little.
fn reference(format: Format, weights: &[f32], x: &[f32]) -> (f64, f64) {
    let products = || weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
    let magnitude: f64 = products().map(f64::abs).sum();
    let mut bound = magnitude * 1e-5 + 1e-9;
    if format.block_len() > 1 {
        for (weights, x) in weights.chunks(32).zip(x.chunks(32)) {
            let greatest = x.iter().fold(0.0_f32, |greatest, x| greatest.max(x.abs()));
            let step = f64::from(greatest) / 127.0;
            bound += weights.iter().map(|w| f64::from(w.abs()) * step * 0.5001).sum::<f64>();
            // A minimum and its scaled values cancel: rounding is relative to them, not to their sum.
            bound += 32.0 * 127.0 * step * 1e-4;
        }
    }
    (products().sum(), bound)
}

#[test]
fn every_isa_is_within_the_bound_of_the_exact_product() {
    let team = Team::new(2);
    for format in Format::ALL {
        for rows in SHAPE_ROWS {
            for cols in widths(format) {
                let mut numbers = Numbers::new((rows * cols) as u64);
                let bytes = file_bytes(format, rows * cols, &mut numbers);
                let mut weights = vec![0.0; rows * cols];
                dequantise(format, &bytes, &mut weights).unwrap();
                let m = 3;
                let x = numbers.units(m * cols);
                for isa in Isa::available() {
                    let matrix = WeightMatrix::new(isa, format, rows, cols, &bytes).unwrap();
                    let out = product(&team, &matrix, &x, m);
                    for (i, value) in out.iter().enumerate() {
                        let (row, x) = (i % rows, &x[i / rows * cols..][..cols]);
                        let (exact, bound) = reference(format, &weights[row * cols..][..cols], x);
                        let error = (f64::from(*value) - exact).abs();
                        assert!(error <= bound, "{matrix:?} [{i}]: {value} for {exact}, bound {bound}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_batch_size_position_or_threads() {
    let teams: Vec<Team> = (1..=3).map(Team::new).collect();
    for isa in Isa::available() {
        for format in Format::ALL {
            let (rows, cols) = (70, 512);
            let mut numbers = Numbers::new(7);
            let bytes = file_bytes(format, rows * cols, &mut numbers);
            let matrix = WeightMatrix::new(isa, format, rows, cols, &bytes).unwrap();
            let x = numbers.units(256 * cols);
            let alone: Vec<u32> = x.chunks(cols).flat_map(|row| bits(&product(&teams[0], &matrix, row, 1))).collect();
            for m in [1, 2, 3, 4, 5, 7, 8, 16, 33, 256] {
                for (team, start) in teams.iter().zip([0, 1, 256 - m]) {
                    let start = start.min(256 - m);
                    let out = product(team, &matrix, &x[start * cols..(start + m) * cols], m);
                    assert_eq!(bits(&out), alone[start * rows..(start + m) * rows], "{matrix:?} m {m}");
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_among_any_number_of_rows() {
    let (rows, cols, most) = (17, 256, 256);
    let teams = [1, 2].map(Team::new);
    for isa in Isa::available() {
        for format in Format::ALL {
            let mut numbers = Numbers::new(13);
            let bytes = file_bytes(format, rows * cols, &mut numbers);
            let matrix = WeightMatrix::new(isa, format, rows, cols, &bytes).unwrap();
            let x = numbers.units(most * cols);
            let alone: Vec<u32> = x.chunks(cols).flat_map(|row| bits(&product(&teams[0], &matrix, row, 1))).collect();
            for m in 1..=most {
                let out = product(&teams[m % 2], &matrix, &x[..m * cols], m);
                assert_eq!(bits(&out), alone[..m * rows], "{matrix:?} m {m}");
            }
        }
    }
}

#[test]
fn every_isa_gives_the_same_bits() {
    let team = Team::new(1);
    for format in Format::ALL {
        for (rows, cols) in [(33, 256), (16, 1536)] {
            let mut numbers = Numbers::new(11);
            let bytes = file_bytes(format, rows * cols, &mut numbers);
            let x = numbers.units(5 * cols);
            let results: Vec<Vec<u32>> = Isa::available()
                .into_iter()
                .map(|isa| {
                    let matrix = WeightMatrix::new(isa, format, rows, cols, &bytes).unwrap();
                    bits(&product(&team, &matrix, &x, 5))
                })
                .collect();
            for (isa, result) in Isa::available().iter().zip(&results) {
                assert!(*result == results[0], "{format:?} on {}", isa.name());
            }
        }
    }
}

#[test]
fn more_rows_than_a_strip_give_scalars_bits_on_every_isa() {
    let team = Team::new(1);
    for format in Format::ALL {
        let (rows, cols, m) = (17, 256, 70);
        let mut numbers = Numbers::new(17);
        let bytes = file_bytes(format, rows * cols, &mut numbers);
        let x = numbers.units(m * cols);
        let scalar = WeightMatrix::new(Isa::SCALAR, format, rows, cols, &bytes).unwrap();
        let expected: Vec<u32> = x.chunks(cols).flat_map(|row| bits(&product(&team, &scalar, row, 1))).collect();
        for isa in Isa::available() {
            let matrix = WeightMatrix::new(isa, format, rows, cols, &bytes).unwrap();
            assert!(bits(&product(&team, &matrix, &x, m)) == expected, "{matrix:?}");
        }
    }
}

#[test]
fn extreme_quants_do_not_saturate() {
    // All bits set and all bits clear, against activations that all quantise to 127 or -127 in runs.
    let team = Team::new(1);
    for format in Format::ALL {
        for fill in [0xff_u8, 0x00, 0x80, 0x7f, 0x77] {
            let cols = 512;
            let mut bytes = file_bytes(format, cols, &mut Numbers::new(3));
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                match format {
                    Format::F32 | Format::F16 | Format::BF16 => {}
                    Format::Q2_K => block[..80].fill(fill),
                    Format::Q3_K => block[..108].fill(fill),
                    Format::Q6_K => block[..208].fill(fill),
                    Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => block[4..].fill(fill),
                    Format::MXFP4 => block[1..].fill(fill),
                    _ => block[2..].fill(fill),
                }
            }
            for x in
                [vec![1.0; cols], vec![-1.0; cols], (0..cols).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect()]
            {
                let mut results = Isa::available()
                    .into_iter()
                    .map(|isa| bits(&product(&team, &WeightMatrix::new(isa, format, 1, cols, &bytes).unwrap(), &x, 1)));
                let first = results.next();
                assert!(results.all(|result| Some(result) == first), "{format:?} of {fill:x}");
            }
        }
    }
}

#[test]
fn no_block_makes_a_kernel_panic_or_the_instruction_sets_differ() {
    // Every byte all over, and infinite factors: whatever a broken file holds, NaNs and infinities included.
    let fills = (0..=u8::MAX).map(|byte| [byte; 2]).chain([[0x00, 0x7c], [0x00, 0xfc], [0x80, 0x7f]]);
    let fills: Vec<[u8; 2]> = fills.collect();
    let team = Team::new(1);
    // A NaN's payload is free.
    let canonical = |values: &[f32]| -> Vec<u32> {
        values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
    };
    for format in Format::ALL {
        let cols = 2 * format.block_len().max(16);
        let x = Numbers::new(13).units(cols);
        let len = cols / format.block_len() * format.block_bytes();
        for fill in &fills {
            let bytes: Vec<u8> = fill.iter().copied().cycle().take(len).collect();
            let mut values = vec![0.0; cols];
            dequantise(format, &bytes, &mut values).unwrap();
            let results: Vec<Vec<u32>> = Isa::available()
                .into_iter()
                .map(|isa| {
                    let matrix = WeightMatrix::new(isa, format, 1, cols, &bytes).unwrap();
                    let mut row = vec![0.0; cols];
                    matrix.dequantise_row(0, &mut row).unwrap();
                    assert_eq!(canonical(&row), canonical(&values), "{format:?} of {fill:x?}");
                    canonical(&product(&team, &matrix, &x, 1))
                })
                .collect();
            assert!(results.iter().all(|result| *result == results[0]), "{format:?} of {fill:x?}");
        }
    }
}

#[test]
fn several_products_of_one_call_are_those_of_single_calls() {
    let team = Team::new(2);
    let (cols, m) = (256, 6);
    let mut numbers = Numbers::new(5);
    let x = numbers.units(m * cols);
    for isa in Isa::available() {
        let matrices: Vec<WeightMatrix> =
            [(Format::Q4_1, 48), (Format::F16, 17), (Format::Q8_0, 5), (Format::Q6_K, 64)]
                .into_iter()
                .map(|(format, rows)| {
                    let bytes = file_bytes(format, rows * cols, &mut numbers);
                    WeightMatrix::new(isa, format, rows, cols, &bytes).unwrap()
                })
                .collect();
        let mut outs: Vec<Vec<f32>> = matrices.iter().map(|matrix| vec![f32::NAN; m * matrix.rows()]).collect();
        let mut products: Vec<Product<'_>> =
            matrices.iter().zip(&mut outs).map(|(weights, out)| Product { weights, out }).collect();
        matmul_all(&team, &x, m, &mut products, &mut Scratch::default());
        for (matrix, out) in matrices.iter().zip(&outs) {
            assert_eq!(bits(out), bits(&product(&team, matrix, &x, m)), "{matrix:?}");
        }
    }
}

#[test]
fn a_scratch_that_served_a_larger_product_serves_a_smaller_one() {
    let team = Team::new(1);
    let mut numbers = Numbers::new(9);
    let mut scratch = Scratch::default();
    for (rows, cols, m) in [(40, 512, 20), (16, 32, 1), (0, 0, 0), (33, 64, 2)] {
        if rows == 0 {
            matmul_all(&team, &[], 0, &mut [], &mut scratch);
            continue;
        }
        let bytes = file_bytes(Format::Q4_0, rows * cols, &mut numbers);
        let matrix = WeightMatrix::new(Isa::SCALAR, Format::Q4_0, rows, cols, &bytes).unwrap();
        let x = numbers.units(m * cols);
        let mut out = vec![f32::NAN; m * rows];
        matmul(&team, &matrix, &x, m, &mut out, &mut scratch);
        assert_eq!(bits(&out), bits(&product(&team, &matrix, &x, m)));
    }
}
