//! I17, bit for bit, on random models; and the numbers against a plain implementation.

use super::*;
use crate::engine::SequenceId;
use crate::engine::gguf::{Gguf, TensorType};
use crate::engine::kv::{BlockId, blocks_for};
use crate::engine::model::tiny::{Tiny, VOCABULARY, kinds};
use crate::engine::scheduler::Chunk;

const BLOCKS: usize = 64;

fn load(file: &[u8], isa: Isa, threads: usize) -> CpuBackend {
    let description = Description::read(&Gguf::parse(file).unwrap()).unwrap();
    CpuBackend::load(description, file, isa, Team::new(threads), BLOCKS).unwrap()
}

fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| (index * 31 + seed * 17 + index * index) % 259).collect()
}

/// Tokens `start..end` of a sequence whose blocks are numbered from `first` in steps of `stride`.
fn chunk(all: &[u32], start: usize, end: usize, first: u32, stride: u32) -> Chunk {
    let blocks = (0..blocks_for(all.len()) as u32).map(|index| BlockId((first + index * stride) % BLOCKS as u32));
    Chunk { sequence: SequenceId(0), start, tokens: all[start..end].to_vec(), blocks: blocks.collect(), samples: true }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The logits behind every position, computed one token at a time.
fn one_by_one(backend: &mut CpuBackend, all: &[u32]) -> Vec<Vec<u32>> {
    (0..all.len()).map(|at| bits(backend.forward(&[chunk(all, at, at + 1, 0, 1)]).unwrap())).collect()
}

/// Computes the sequence in chunks and checks the logits behind each against `expected`.
fn check_chunks(backend: &mut CpuBackend, all: &[u32], sizes: &[usize], expected: &[Vec<u32>]) {
    let mut start = 0;
    for size in sizes.iter().cycle() {
        let end = (start + size).min(all.len());
        let logits = bits(backend.forward(&[chunk(all, start, end, 40, 63)]).unwrap());
        assert_eq!(logits, expected[end - 1], "chunk {start}..{end}");
        if end == all.len() {
            return;
        }
        start = end;
    }
}

fn check_invariance(tiny: Tiny) {
    let file = tiny.file();
    let all = tokens(tiny.seed as u32, 70);
    for isa in Isa::available() {
        let mut single = load(&file, isa, 1);
        let expected = one_by_one(&mut single, &all);
        assert!(expected.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
        for sizes in [&[70_usize][..], &[1, 15, 16, 17], &[33, 2]] {
            check_chunks(&mut single, &all, sizes, &expected);
        }
        let mut team = load(&file, isa, 3);
        check_chunks(&mut team, &all, &[64, 1], &expected);
        check_mixed_step(&mut team, &all, &expected);
    }
}

/// A decoded token and a prompt chunk among other sequences, over blocks that another sequence filled.
fn check_mixed_step(backend: &mut CpuBackend, all: &[u32], expected: &[Vec<u32>]) {
    let others: Vec<Vec<u32>> = (10..14).map(|seed| tokens(seed, 40)).collect();
    backend.forward(&[chunk(all, 0, 48, 0, 1)]).unwrap();
    let mut step = vec![chunk(&others[0], 0, 40, 10, 1), chunk(all, 48, 49, 0, 1)];
    step.extend(others[1..].iter().zip([20, 30, 50]).map(|(other, first)| chunk(other, 0, 5, first, 1)));
    let vocabulary = backend.vocabulary();
    let logits = backend.forward(&step).unwrap();
    assert_eq!(logits.len(), step.len() * vocabulary);
    assert_eq!(bits(&logits[vocabulary..2 * vocabulary]), expected[48]);
    // A follower adopts the first three blocks and runs only its own tail, in a step with others.
    let mut follower = chunk(all, 48, 70, 0, 1);
    for (index, block) in follower.blocks.iter_mut().enumerate().skip(3) {
        *block = BlockId(56 + index as u32);
    }
    let step = [chunk(&others[1], 5, 9, 20, 1), follower, chunk(&others[2], 5, 6, 30, 1)];
    let logits = backend.forward(&step).unwrap();
    assert_eq!(bits(&logits[vocabulary..2 * vocabulary]), expected[69]);
}

#[test]
fn logits_do_not_depend_on_batch_chunks_threads_or_cache_in_any_format() {
    for kind in kinds() {
        check_invariance(Tiny { kind, seed: 3, ..Tiny::default() });
    }
}

#[test]
fn logits_do_not_depend_on_batch_chunks_threads_or_cache_in_any_architecture() {
    for architecture in ["llama", "qwen2"] {
        for (heads, kv_heads, own_output) in [(4, 4, true), (8, 1, false), (2, 1, true)] {
            check_invariance(Tiny { architecture, heads, kv_heads, own_output, seed: 5, ..Tiny::default() });
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_logits() {
    let file = Tiny::default().file();
    let all = tokens(2, 50);
    let run = |isa| bits(load(&file, isa, 2).forward(&[chunk(&all, 0, 50, 0, 1)]).unwrap());
    let scalar = run(Isa::SCALAR);
    for isa in Isa::available() {
        assert_eq!(run(isa), scalar, "{}", isa.name());
    }
}

#[test]
fn a_token_outside_the_vocabulary_or_a_missing_block_is_an_error() {
    let mut backend = load(&Tiny::default().file(), Isa::SCALAR, 1);
    let unknown = backend.forward(&[chunk(&[VOCABULARY as u32], 0, 1, 0, 1)]);
    assert_eq!(unknown, Err(StepError::UnknownToken(VOCABULARY as u32)));
    let mut blockless = chunk(&tokens(0, 20), 0, 20, 0, 1);
    blockless.blocks.truncate(1);
    assert_eq!(backend.forward(&[blockless]), Err(StepError::NoBlock { position: 16 }));
    assert_eq!(backend.forward(&[]), Ok(&[][..]));
}

#[test]
fn the_numbers_are_those_of_a_plain_implementation() {
    for (architecture, scaling) in [("llama", None), ("qwen2", None), ("llama", Some(4.0))] {
        let tiny = Tiny { architecture, kind: TensorType::F32, heads: 8, kv_heads: 2, seed: 9, ..Tiny::default() };
        let mut writer = tiny.writer();
        if let Some(factor) = scaling {
            writer = writer
                .entry("llama.rope.scaling.type", crate::engine::gguf::Value::String("linear".to_owned()))
                .entry("llama.rope.scaling.factor", crate::engine::gguf::Value::F32(factor));
        }
        let file = writer.finish();
        let all = tokens(4, 24);
        let mut backend = load(&file, Isa::available().pop().unwrap(), 2);
        let logits = backend.forward(&[chunk(&all, 0, all.len(), 0, 1)]).unwrap().to_vec();
        let expected = plain::logits(&file, &all);
        let scale = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        for (token, (found, wanted)) in logits.iter().zip(&expected).enumerate() {
            assert!((found - wanted).abs() < 0.01 * scale, "{architecture} token {token}: {found} instead of {wanted}");
        }
    }
}

#[test]
fn a_model_in_any_format_gives_the_numbers_of_a_plain_implementation() {
    for kind in kinds() {
        let file = Tiny { kind, seed: 9, own_output: true, ..Tiny::default() }.file();
        let all = tokens(4, 6);
        let mut backend = load(&file, Isa::available().pop().unwrap(), 2);
        let logits = backend.forward(&[chunk(&all, 0, all.len(), 0, 1)]).unwrap().to_vec();
        let expected = plain::logits(&file, &all);
        let scale = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        // Activations are rounded to eight bits, layer after layer.
        for (token, (found, wanted)) in logits.iter().zip(&expected).enumerate() {
            assert!((found - wanted).abs() < 0.1 * scale, "{kind:?} token {token}: {found} instead of {wanted}");
        }
    }
}

#[test]
fn logits_of_the_default_model_do_not_depend_on_batch_chunks_threads_or_cache() {
    let path = std::env::var_os("MIDSTREAM_TEST_MODEL").unwrap_or_else(|| {
        panic!("MIDSTREAM_TEST_MODEL must name SmolLM2-135M-Instruct.Q4_1.gguf; scripts/test fetches it and sets it")
    });
    let file = std::fs::read(path).unwrap();
    let isa = Isa::select().unwrap();
    let all = tokens(6, 70);
    let mut single = load(&file, isa, 1);
    let expected = one_by_one(&mut single, &all);
    check_chunks(&mut single, &all, &[70], &expected);
    let mut team = load(&file, isa, 2);
    check_chunks(&mut team, &all, &[33, 16, 21], &expected);
    check_mixed_step(&mut team, &all, &expected);
}

/// The decoder written down as plainly as possible, over f32 weights.
mod plain {
    use std::f64::consts::E;

    use super::*;
    use crate::engine::model::TensorRef;

    fn values(file: &[u8], tensor: &TensorRef) -> Vec<f32> {
        let mut values = vec![0.0; tensor.rows * tensor.cols];
        midstream_kernels::dequantise(tensor.format, &file[tensor.range.clone()], &mut values).unwrap();
        values
    }

    fn product(weights: &[f32], x: &[f32]) -> Vec<f32> {
        weights.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    fn norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
        let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
        x.iter().zip(weight).map(|(x, w)| x / (mean + epsilon).sqrt() * w).collect()
    }

    fn turn(x: &mut [f32], position: usize, head_dim: usize, sizes: &Sizes, neighbours: bool) {
        for head in x.chunks_mut(head_dim) {
            for pair in 0..head_dim / 2 {
                let frequency = f64::from(sizes.rope_base).powf(-2.0 * pair as f64 / head_dim as f64);
                let angle = position as f64 * frequency / f64::from(sizes.rope_divisor);
                let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
                let (i, j) = if neighbours { (2 * pair, 2 * pair + 1) } else { (pair, pair + head_dim / 2) };
                (head[i], head[j]) = (head[i] * cos - head[j] * sin, head[i] * sin + head[j] * cos);
            }
        }
    }

    /// The logits behind the last token.
    pub(super) fn logits(file: &[u8], tokens: &[u32]) -> Vec<f32> {
        let description = Description::read(&Gguf::parse(file).unwrap()).unwrap();
        let sizes = &description.sizes;
        let neighbours = description.architecture.name == "llama";
        let embedding = values(file, &description.embedding);
        let width = sizes.embedding;
        let mut stream: Vec<Vec<f32>> =
            tokens.iter().map(|token| embedding[*token as usize * width..][..width].to_vec()).collect();
        for layer in &description.layers {
            let project = |linear: &crate::engine::model::Linear, x: &[f32]| {
                let mut out = product(&values(file, &linear.weight), x);
                if let Some(bias) = &linear.bias {
                    out.iter_mut().zip(values(file, bias)).for_each(|(out, bias)| *out += bias);
                }
                out
            };
            let (mut keys, mut seen) = (Vec::new(), Vec::new());
            for (position, x) in stream.iter_mut().enumerate() {
                let h = norm(x, &values(file, &layer.attn_norm), sizes.rms_epsilon);
                let (mut q, mut k) = (project(&layer.query, &h), project(&layer.key, &h));
                turn(&mut q, position, sizes.head_dim, sizes, neighbours);
                turn(&mut k, position, sizes.head_dim, sizes, neighbours);
                keys.push(k);
                seen.push(project(&layer.value, &h));
                let attended = attend(&q, &keys, &seen, sizes);
                add(x, &project(&layer.attn_output, &attended));
                let h = norm(x, &values(file, &layer.ffn_norm), sizes.rms_epsilon);
                let gate = product(&values(file, &layer.gate), &h);
                let up = product(&values(file, &layer.up), &h);
                let silu = |g: f32| g / (1.0 + E.powf(f64::from(-g)) as f32);
                let h: Vec<f32> = gate.iter().zip(&up).map(|(gate, up)| silu(*gate) * up).collect();
                add(x, &product(&values(file, &layer.down), &h));
            }
        }
        let last = stream.last().unwrap();
        let output = description.output.as_ref().map_or(embedding, |output| values(file, output));
        product(&output, &norm(last, &values(file, &description.output_norm), sizes.rms_epsilon))
    }

    fn add(x: &mut [f32], y: &[f32]) {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    }

    fn attend(q: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>], sizes: &Sizes) -> Vec<f32> {
        let group = sizes.heads / sizes.kv_heads;
        let mut out = Vec::new();
        for (head, q) in q.chunks(sizes.head_dim).enumerate() {
            let part = head / group * sizes.head_dim..(head / group + 1) * sizes.head_dim;
            let score = |key: &Vec<f32>| {
                let dot: f32 = q.iter().zip(&key[part.clone()]).map(|(q, k)| q * k).sum();
                dot / (sizes.head_dim as f32).sqrt()
            };
            let scores: Vec<f32> = keys.iter().map(score).collect();
            let greatest = scores.iter().fold(f32::NEG_INFINITY, |greatest, score| greatest.max(*score));
            let weights: Vec<f32> = scores.iter().map(|score| (score - greatest).exp()).collect();
            let total: f32 = weights.iter().sum();
            out.extend(
                part.clone().map(|at| {
                    weights.iter().zip(values).map(|(weight, value)| weight * value[at]).sum::<f32>() / total
                }),
            );
        }
        out
    }
}
