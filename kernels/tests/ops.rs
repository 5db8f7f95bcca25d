//! Vector operations: against f64, and the same bits on every instruction set.

mod common;

use common::Numbers;
use midstream_kernels::{
    Activation, Branch, Isa, RopeStyle, Rotation, Team, activate_rows, add_branch, add_in_place, add_products_in_place,
    add_scaled_in_place, add_to_rows, argmax, clamped_silu_mul, gelu_mul, mul_in_place, rms_norm, rms_norm_heads,
    rms_norm_rows, rope, rope_angles, scale_in_place, silu_mul, softmax_in_place,
};

const LENGTHS: [usize; 8] = [1, 7, 8, 15, 16, 17, 576, 1001];

/// Runs `operation` on every instruction set, checks that all give the same bits, and returns the result.
fn on_every_isa(input: &[f32], operation: impl Fn(Isa, &mut [f32])) -> Vec<f32> {
    let run = |isa| {
        let mut values = input.to_vec();
        operation(isa, &mut values);
        values
    };
    let expected = run(Isa::SCALAR);
    for isa in Isa::available() {
        let same = run(isa).iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{} differs from scalar for {} values", isa.name(), input.len());
    }
    expected
}

fn assert_close(found: &[f32], expected: impl IntoIterator<Item = f64>, relative: f64, absolute: f64) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= relative * expected.abs() + absolute, "[{i}]: {found} for {expected}");
    }
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    for len in LENGTHS {
        let mut numbers = Numbers::new(len as u64);
        let (x, weight) = (numbers.units(len), numbers.units(len));
        let found = on_every_isa(&x, |isa, out| rms_norm(isa, &x, &weight, 1e-5, out));
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / len as f64;
        let expected = x.iter().zip(&weight).map(|(x, w)| f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*w));
        assert_close(&found, expected, 1e-6, 1e-9);
    }
}

#[test]
fn silu_and_gelu_gate_the_other_half() {
    for len in LENGTHS {
        let mut numbers = Numbers::new(len as u64);
        let gate: Vec<f32> = numbers.units(len).into_iter().map(|x| 20.0 * x).collect();
        let up: Vec<f32> = numbers.units(len).into_iter().map(|x| 10.0 * x).collect();
        let pairs = || gate.iter().zip(&up).map(|(gate, up)| (f64::from(*gate), f64::from(*up)));
        let silu = on_every_isa(&gate, |isa, gate| silu_mul(isa, gate, &up));
        assert_close(&silu, pairs().map(|(x, up)| x / (1.0 + (-x).exp()) * up), 1e-6, 1e-12);
        let gelu = on_every_isa(&gate, |isa, gate| gelu_mul(isa, gate, &up));
        let expected = pairs().map(|(x, up)| {
            let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + y.tanh()) * up
        });
        assert_close(&gelu, expected, 1e-5, 1e-5);
        let clamped = on_every_isa(&gate, |isa, gate| clamped_silu_mul(isa, gate, &up, 1.7, 7.0));
        let expected = pairs().map(|(x, up)| {
            let x = x.min(7.0);
            x / (1.0 + (-f64::from(1.7_f32) * x).exp()) * (up.clamp(-7.0, 7.0) + 1.0)
        });
        assert_close(&clamped, expected, 1e-5, 1e-9);
    }
}

#[test]
fn sums_and_scales_are_exact() {
    for len in LENGTHS {
        let mut numbers = Numbers::new(len as u64);
        let (x, y) = (numbers.units(len), numbers.units(len));
        let sum = on_every_isa(&x, |isa, x| add_in_place(isa, x, &y));
        assert!(sum.iter().zip(x.iter().zip(&y)).all(|(sum, (x, y))| sum.to_bits() == (x + y).to_bits()));
        let added = on_every_isa(&x, |isa, x| add_scaled_in_place(isa, x, &y, 1.7));
        assert!(added.iter().zip(x.iter().zip(&y)).all(|(sum, (x, y))| sum.to_bits() == y.mul_add(1.7, *x).to_bits()));
        let products = on_every_isa(&x, |isa, x| add_products_in_place(isa, x, &y, &y));
        let expected = x.iter().zip(&y).map(|(x, y)| y.mul_add(*y, *x).to_bits());
        assert!(products.iter().map(|product| product.to_bits()).eq(expected));
        let product = on_every_isa(&x, |isa, x| mul_in_place(isa, x, &y));
        assert!(product.iter().zip(x.iter().zip(&y)).all(|(product, (x, y))| product.to_bits() == (x * y).to_bits()));
        let scaled = on_every_isa(&x, |isa, x| scale_in_place(isa, x, 1.7));
        assert!(scaled.iter().zip(&x).all(|(scaled, x)| scaled.to_bits() == (x * 1.7).to_bits()));
        let doubled = on_every_isa(&[&x[..], &x[..]].concat(), |isa, rows| add_to_rows(&Team::new(1), isa, rows, &y));
        assert!(doubled[..len] == sum && doubled[len..] == sum);
    }
}

#[test]
fn softmax_sums_to_one_and_gives_nothing_to_what_is_masked() {
    for len in LENGTHS {
        let mut x: Vec<f32> = Numbers::new(len as u64).units(len).into_iter().map(|x| 30.0 * x).collect();
        if len > 2 {
            x[len / 2] = f32::NEG_INFINITY;
        }
        let found = on_every_isa(&x, softmax_in_place);
        let total: f64 = x.iter().map(|x| f64::from(*x).exp()).sum();
        assert_close(&found, x.iter().map(|x| f64::from(*x).exp() / total), 1e-5, 1e-12);
        assert!(len <= 2 || found[len / 2].to_bits() == 0);
    }
}

#[test]
fn rope_turns_each_pair_by_its_angle_and_leaves_the_rest() {
    for (style, head_dim, n_rot) in [
        (RopeStyle::Norm, 64, 64),
        (RopeStyle::Neox, 64, 64),
        (RopeStyle::Norm, 80, 32),
        (RopeStyle::Neox, 80, 32),
        (RopeStyle::Neox, 6, 6),
    ] {
        let (rows, heads, pairs) = (3, 2, n_rot / 2);
        let x = Numbers::new(n_rot as u64).units(rows * heads * head_dim);
        let (mut cos, mut sin) = (vec![0.0; rows * pairs], vec![0.0; rows * pairs]);
        let frequencies: Vec<f64> = (0..pairs).map(|i| 10_000_f64.powf(-2.0 * i as f64 / n_rot as f64)).collect();
        for (row, (cos, sin)) in cos.chunks_mut(pairs).zip(sin.chunks_mut(pairs)).enumerate() {
            rope_angles(100.0 * row as f64, &frequencies, 1.0, cos, sin);
        }
        let rotation = Rotation { style, head_dim, cos: &cos, sin: &sin };
        let found = on_every_isa(&x, |isa, x| rope(&Team::new(1), isa, &rotation, x, rows));
        let expected = (0..x.len()).map(|at| {
            let (start, i, row) = (at / head_dim * head_dim, at % head_dim, at / head_dim / heads);
            if i >= n_rot {
                return f64::from(x[at]);
            }
            let (pair, second) = match style {
                RopeStyle::Norm => (i / 2, i % 2 == 1),
                RopeStyle::Neox => (i % pairs, i >= pairs),
            };
            let [a, b] = match style {
                RopeStyle::Norm => [2 * pair, 2 * pair + 1],
                RopeStyle::Neox => [pair, pair + pairs],
            }
            .map(|i| f64::from(x[start + i]));
            let angle = 100.0 * row as f64 * 10_000_f64.powf(-2.0 * pair as f64 / n_rot as f64);
            if second { a * angle.sin() + b * angle.cos() } else { a * angle.cos() - b * angle.sin() }
        });
        assert_close(&found, expected, 1e-6, 3e-7);
    }
}

#[test]
fn angles_are_positions_times_frequencies_and_grow_by_the_magnitude() {
    let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
    rope_angles(6.0, &[0.5, 0.025], 2.0, &mut cos, &mut sin);
    assert_close(&cos, [3_f64, 0.15].map(|angle| 2.0 * angle.cos()), 1e-6, 0.0);
    assert_close(&sin, [3_f64, 0.15].map(|angle| 2.0 * angle.sin()), 1e-6, 0.0);
}

#[test]
fn rows_by_a_team_have_the_bits_of_single_rows() {
    let (rows, cols) = (70, 200);
    let mut numbers = Numbers::new(1);
    let (x, weight) = (numbers.units(rows * cols), numbers.units(cols));
    for isa in Isa::available() {
        for size in 1..=3 {
            let team = Team::new(size);
            let (mut all, mut one) = (vec![0.0; x.len()], vec![0.0; cols]);
            rms_norm_rows(&team, isa, &x, &weight, 1e-6, &mut all);
            for (x, all) in x.chunks(cols).zip(all.chunks(cols)) {
                rms_norm(isa, x, &weight, 1e-6, &mut one);
                assert!(one == all);
            }
            let mut heads = x.clone();
            rms_norm_heads(&team, isa, &mut heads, cols, &weight[..cols / 4], 1e-6);
            for (x, head) in x.chunks(cols / 4).zip(heads.chunks(cols / 4)) {
                rms_norm(isa, x, &weight[..cols / 4], 1e-6, &mut one[..cols / 4]);
                assert!(one[..cols / 4] == *head);
            }
            for activation in [Activation::Silu, Activation::Gelu, Activation::ClampedSilu { slope: 1.7, limit: 0.5 }] {
                let mut gates = x.clone();
                activate_rows(&team, isa, activation, &mut gates, &all, cols);
                for (i, gates) in gates.chunks(cols).enumerate() {
                    let span = i * cols..(i + 1) * cols;
                    one.copy_from_slice(&x[span.clone()]);
                    match activation {
                        Activation::Silu => silu_mul(isa, &mut one, &all[span]),
                        Activation::Gelu => gelu_mul(isa, &mut one, &all[span]),
                        Activation::ClampedSilu { slope, limit } => {
                            clamped_silu_mul(isa, &mut one, &all[span], slope, limit);
                        }
                    }
                    assert!(one == gates);
                }
            }
        }
    }
}

#[test]
fn a_branch_by_a_team_has_the_bits_of_its_single_steps() {
    let (rows, cols) = (70, 200);
    let mut numbers = Numbers::new(2);
    let [stream, values] = [(); 2].map(|()| numbers.units(rows * cols));
    let [first, second] = [(); 2].map(|()| numbers.units(cols));
    for isa in Isa::available() {
        for (size, norm, next_norm) in
            [(1, None, None), (2, Some(&first), None), (2, None, Some(&second)), (3, Some(&first), Some(&second))]
        {
            let (norm, next_norm) = (norm.map(Vec::as_slice), next_norm.map(Vec::as_slice));
            let branch = Branch { values: &values, norm, next_norm, epsilon: 1e-6 };
            let (mut sums, mut normed) = (stream.clone(), vec![0.0; stream.len()]);
            add_branch(&Team::new(size), isa, &branch, &mut sums, &mut normed, cols);
            for row in 0..rows {
                let span = row * cols..(row + 1) * cols;
                let mut added = values[span.clone()].to_vec();
                if let Some(weight) = norm {
                    rms_norm(isa, &values[span.clone()], weight, 1e-6, &mut added);
                }
                let mut sum = stream[span.clone()].to_vec();
                add_in_place(isa, &mut sum, &added);
                assert!(sums[span.clone()] == sum);
                if let Some(weight) = next_norm {
                    rms_norm(isa, &sum, weight, 1e-6, &mut added);
                    assert!(normed[span] == added);
                }
            }
        }
    }
}

#[test]
fn rows_turned_by_a_team_have_the_bits_of_single_rows() {
    let (rows, heads, head_dim, pairs) = (70, 3, 64, 32);
    let mut numbers = Numbers::new(4);
    let x = numbers.units(rows * heads * head_dim);
    let [cos, sin] = [(); 2].map(|()| numbers.units(rows * pairs));
    for isa in Isa::available() {
        for style in [RopeStyle::Norm, RopeStyle::Neox] {
            let mut all = x.clone();
            rope(&Team::new(3), isa, &Rotation { style, head_dim, cos: &cos, sin: &sin }, &mut all, rows);
            let row_len = heads * head_dim;
            for row in 0..rows {
                let (cos, sin) = (&cos[row * pairs..(row + 1) * pairs], &sin[row * pairs..(row + 1) * pairs]);
                let mut one = x[row * row_len..(row + 1) * row_len].to_vec();
                rope(&Team::new(1), isa, &Rotation { style, head_dim, cos, sin }, &mut one, 1);
                assert!(all[row * row_len..(row + 1) * row_len] == one);
            }
        }
    }
}

#[test]
fn argmax_takes_the_first_of_equals_and_passes_over_nan() {
    assert_eq!(argmax(&[]), 0);
    assert_eq!(argmax(&[1.0, 3.0, 3.0, -1.0]), 1);
    assert_eq!(argmax(&[f32::NAN, -5.0, f32::NAN, -4.0]), 3);
    assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 1);
    assert_eq!(argmax(&[f32::NAN, f32::NAN]), 0);
}
