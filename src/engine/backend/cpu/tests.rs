//! I17, bit for bit, on random models. What the numbers must be, `reference.rs` checks.

use midstream_kernels::Format;

use super::*;
use crate::engine::SequenceId;
use crate::engine::gguf::{Gguf, TensorType, Writer};
use crate::engine::kv::{BlockId, blocks_for};
use crate::engine::model::tiny::{Tiny, VOCABULARY, WIDTH, kinds, references};
use crate::engine::scheduler::Chunk;

const BLOCKS: usize = 64;

pub(super) fn load(file: &[u8], isa: Isa, threads: usize) -> CpuBackend {
    load_with(KvFormat::F16, file, isa, threads)
}

fn load_with(format: KvFormat, file: &[u8], isa: Isa, threads: usize) -> CpuBackend {
    let description = Description::read(&Gguf::parse(file).unwrap()).unwrap();
    CpuBackend::load(description, &[file], isa, Team::new(threads), KvPlan { format, blocks: BLOCKS }).unwrap()
}

fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| (index * 31 + seed * 17 + index * index) % 259).collect()
}

/// Tokens `start..end` of a sequence whose blocks are numbered from `first` in steps of `stride`.
pub(super) fn chunk(all: &[u32], start: usize, end: usize, first: u32, stride: u32) -> Chunk {
    let blocks = (0..blocks_for(all.len()) as u32).map(|index| BlockId((first + index * stride) % BLOCKS as u32));
    Chunk { sequence: SequenceId(0), start, tokens: all[start..end].to_vec(), blocks: blocks.collect(), sampled: 1 }
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

fn check_invariance(file: &[u8]) {
    check_invariance_with(KvFormat::F16, file);
}

fn check_invariance_with(format: KvFormat, file: &[u8]) {
    let all = tokens(5, 70);
    for isa in Isa::available() {
        let mut single = load_with(format, file, isa, 1);
        let expected = one_by_one(&mut single, &all);
        assert!(expected.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
        for sizes in [&[70_usize][..], &[1, 15, 16, 17], &[33, 2]] {
            check_chunks(&mut single, &all, sizes, &expected);
        }
        let mut team = load_with(format, file, isa, 3);
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
        check_invariance(&Tiny { kind, seed: 3, ..Tiny::default() }.file());
    }
}

#[test]
fn logits_do_not_depend_on_batch_chunks_threads_or_cache_in_any_architecture() {
    for architecture in ["llama", "qwen2", "qwen3"] {
        for (heads, kv_heads, own_output) in [(4, 4, true), (8, 1, false), (2, 1, true)] {
            check_invariance(&Tiny { architecture, heads, kv_heads, own_output, seed: 5, ..Tiny::default() }.file());
        }
    }
    for (_, writer) in references() {
        check_invariance(&writer.finish());
    }
}

#[test]
fn logits_do_not_depend_on_batch_chunks_threads_or_cache_with_int8_keys_and_values() {
    for (heads, kv_heads) in [(4, 2), (8, 1), (2, 2)] {
        check_invariance_with(KvFormat::Q8, &Tiny { heads, kv_heads, seed: 5, ..Tiny::default() }.file());
    }
}

#[test]
fn int8_keys_and_values_give_nearly_the_logits_of_f16_and_not_the_same() {
    let file = Tiny { seed: 9, own_output: true, ..Tiny::default() }.file();
    let all = tokens(4, 60);
    let logits = |format| {
        let mut backend = load_with(format, &file, Isa::select().unwrap(), 2);
        backend.forward(&[chunk(&all, 0, all.len(), 0, 1)]).unwrap().to_vec()
    };
    let (found, expected) = (logits(KvFormat::Q8), logits(KvFormat::F16));
    assert_ne!(bits(&found), bits(&expected));
    let scale = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    for (token, (found, wanted)) in found.iter().zip(&expected).enumerate() {
        assert!((found - wanted).abs() < 0.05 * scale, "token {token}: {found} instead of {wanted}");
    }
}

#[test]
fn tensors_that_lie_in_one_are_the_same_model() {
    let plain = Tiny { architecture: "qwen3moe", experts: 2, layers: 1, kind: TensorType::F32, ..Tiny::default() };
    let plain = plain.file();
    let gguf = Gguf::parse(&plain).unwrap();
    let names =
        ["attn_q", "attn_k", "attn_v", "ffn_gate_exps", "ffn_up_exps"].map(|part| format!("blk.0.{part}.weight"));
    let bytes = |name: &String| &plain[gguf.require_tensor(name).unwrap().range.clone()];
    let [query, key, value, gate, up] = names.each_ref().map(bytes);
    let half = gate.len() / 2;
    let gates_and_values = [&gate[..half], &up[..half], &gate[half..], &up[half..]].concat();
    let entries = gguf.metadata().iter();
    let mut fused = entries.fold(Writer::new(), |writer, (key, value)| writer.entry(key, value.clone()));
    for tensor in gguf.tensors().iter().filter(|tensor| !names.contains(&tensor.name)) {
        fused = fused.tensor(&tensor.name, &tensor.shape, tensor.kind, plain[tensor.range.clone()].to_vec());
    }
    let (heads, inner) = ([WIDTH, 2 * WIDTH], [WIDTH, 2 * WIDTH, 2]);
    let fused = fused.tensor("blk.0.attn_qkv.weight", &heads, TensorType::F32, [query, key, value].concat()).tensor(
        "blk.0.ffn_gate_up_exps.weight",
        &inner,
        TensorType::F32,
        gates_and_values,
    );
    let all = tokens(3, 20);
    let run = |file: &[u8]| bits(load(file, Isa::SCALAR, 1).forward(&[chunk(&all, 0, 20, 0, 1)]).unwrap());
    assert_eq!(run(&fused.finish()), run(&plain));
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
fn a_model_in_any_format_gives_the_numbers_of_the_same_weights_in_floats() {
    for kind in kinds() {
        let file = Tiny { kind, seed: 9, own_output: true, ..Tiny::default() }.file();
        let all = tokens(4, 6);
        let logits = |file: &[u8]| {
            let mut backend = load(file, Isa::select().unwrap(), 2);
            backend.forward(&[chunk(&all, 0, all.len(), 0, 1)]).unwrap().to_vec()
        };
        let (found, expected) = (logits(&file), logits(&in_floats(&file)));
        let scale = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        // Activations are rounded to eight bits, layer after layer.
        for (token, (found, wanted)) in found.iter().zip(&expected).enumerate() {
            assert!((found - wanted).abs() < 0.1 * scale, "{kind:?} token {token}: {found} instead of {wanted}");
        }
    }
}

/// The same model with its weights as 32-bit floats, which `reference.rs` checks.
fn in_floats(file: &[u8]) -> Vec<u8> {
    let gguf = Gguf::parse(file).unwrap();
    let entries = gguf.metadata().iter();
    let mut writer = entries.fold(Writer::new(), |writer, (key, value)| writer.entry(key, value.clone()));
    for tensor in gguf.tensors() {
        let format = Format::from_gguf_type(u32::try_from(tensor.kind.id()).unwrap()).unwrap();
        let mut values = vec![0.0; tensor.rows() * tensor.row_len()];
        midstream_kernels::dequantise(format, &file[tensor.range.clone()], &mut values).unwrap();
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        writer = writer.tensor(&tensor.name, &tensor.shape, TensorType::F32, bytes);
    }
    writer.finish()
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
