//! Which files are taken for a model, and what is said about the others.

use midstream_kernels::Format;

use super::tiny::{Tiny, VOCABULARY, WIDTH, kinds};
use super::*;
use crate::engine::gguf::{Gguf, TensorType, Value, Writer};

fn read(file: &[u8]) -> Result<Description, ModelError> {
    Description::read(&Gguf::parse(file)?)
}

/// What is said about the tiny model after it was spoilt.
fn refusal(tiny: Tiny, spoil: impl FnOnce(Writer) -> Writer) -> String {
    read(&spoil(tiny.writer()).finish()).unwrap_err().to_string()
}

/// What is said about the tiny model with another value under `key`.
fn refusal_with(key: &'static str, value: Value) -> String {
    let bytes = Tiny { skip: Some(key), ..Tiny::default() }.writer().entry(key, value).finish();
    read(&bytes).unwrap_err().to_string()
}

#[test]
fn sizes_come_from_the_tensors_and_keys() {
    for architecture in ["llama", "qwen2", "qwen3", "smollm3"] {
        let tiny = Tiny { architecture, layers: 4, own_output: true, ..Tiny::default() };
        let description = read(&tiny.file()).unwrap();
        let expected = Sizes {
            embedding: WIDTH,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            vocabulary: VOCABULARY,
            context_length: 2048,
            rms_epsilon: 1e-5,
            attention_scale: 0.125,
            embedding_scale: None,
        };
        assert_eq!(description.sizes, expected);
        assert_eq!(description.layers.len(), 4);
        for (number, layer) in description.layers.iter().enumerate() {
            let Mixer::Attention(attention) = &layer.mixer else { panic!("{number}") };
            let Attention { query, query_norm, rope, .. } = &**attention;
            assert_eq!(query.bias.is_some(), architecture == "qwen2");
            assert_eq!(query_norm.is_some(), architecture == "qwen3");
            assert_eq!(rope.is_none(), architecture == "smollm3" && number == 3);
        }
        assert!(description.output.is_some());
        assert_eq!(description.warnings, [""; 0]);
    }
}

#[test]
fn the_readme_names_every_architecture() {
    let readme = include_str!("../../../README.md");
    let line = readme.lines().find(|line| line.starts_with("| models |")).unwrap();
    for known in architecture::ALL {
        assert!(line.split([' ', ',', '|']).any(|word| word == known.name), "{} in {line}", known.name);
    }
}

#[test]
fn where_keys_and_tensors_disagree_the_tensors_are_believed_and_it_is_said_once() {
    for (key, value, said) in [
        ("embedding_length", Value::U32(64), "64, but the tensors say 256"),
        ("feed_forward_length", Value::U32(100), "100, but the tensors say 256"),
        ("attention.key_length", Value::U32(32), "32, but the tensors say 64"),
        ("attention.value_length", Value::U32(32), "32, but the tensors say 64"),
        ("attention.head_count_kv", Value::U32(4), "4, but the tensors say 2"),
        ("vocab_size", Value::U32(7), "7, but the tensors say 288"),
    ] {
        let name: &'static str = format!("llama.{key}").leak();
        let file = Tiny { skip: Some(name), ..Tiny::default() }.writer().entry(name, value).finish();
        let description = read(&file).unwrap();
        assert_eq!(description.sizes, read(&Tiny::default().file()).unwrap().sizes, "{key}");
        let [warning] = &description.warnings[..] else { panic!("{:?}", description.warnings) };
        assert!(warning.contains(name) && warning.contains(said), "{warning}");
    }
}

#[test]
fn every_format_with_kernels_is_taken() {
    for kind in kinds() {
        assert!(read(&Tiny { kind, ..Tiny::default() }.file()).is_ok(), "{kind:?}");
    }
    assert_eq!(kinds().count(), Format::ALL.len());
}

#[test]
fn an_unknown_architecture_is_named_with_those_there_are() {
    let text = refusal(Tiny { architecture: "mamba", ..Tiny::default() }, |writer| writer);
    assert!(text.contains("mamba") && text.contains("llama, qwen2, qwen3"), "{text}");
}

#[test]
fn impossible_hyperparameters_are_refused_without_using_memory_for_them() {
    let huge = Value::U32(u32::MAX);
    for (key, value, said) in [
        ("llama.block_count", huge.clone(), "blk.2."),
        ("llama.block_count", Value::U32(0), "at least 1"),
        ("llama.block_count", Value::String("2".into()), "block_count"),
        ("llama.attention.head_count", Value::U32(0), "at least 1"),
        ("llama.attention.head_count", huge.clone(), "head_count"),
        ("llama.attention.head_count", Value::U32(1), "head_count"),
        ("llama.attention.head_count", Value::U32(3), "head_count"),
        ("llama.context_length", Value::U32(0), "at least 1"),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN), "positive"),
        ("llama.rope.freq_base", Value::F32(-1.0), "positive"),
        ("llama.rope.dimension_count", huge, "fit into a head"),
        ("llama.rope.dimension_count", Value::U32(3), "even"),
        ("llama.rope.scaling.type", Value::String("dynamic".into()), "dynamic"),
        ("llama.rope.scaling.type", Value::String("longrope".into()), "rope_factors_short"),
        ("llama.expert_gating_func", Value::U32(2), "gating function 2"),
        ("llama.expert_weights_scale", Value::F32(2.5), "scale for the experts"),
        ("llama.attn_logit_softcapping", Value::F32(30.0), "attn_logit_softcapping"),
        ("general.architecture", Value::U32(1), "general.architecture"),
    ] {
        let text = refusal_with(key, value.clone());
        assert!(text.contains(said), "{key} = {value:?}: {text}");
    }
}

#[test]
fn a_huge_context_claim_costs_nothing_when_it_is_read() {
    let tiny = Tiny { skip: Some("llama.context_length"), ..Tiny::default() };
    let bytes = tiny.writer().entry("llama.context_length", Value::U32(u32::MAX)).finish();
    assert_eq!(read(&bytes).unwrap().sizes.context_length, u32::MAX as usize);
}

#[test]
fn missing_misshapen_and_unusable_tensors_are_named() {
    for missing in ["token_embd.weight", "output_norm.weight", "blk.1.attn_v.weight", "blk.0.ffn_up.weight"] {
        let text = refusal(Tiny { skip: Some(missing), ..Tiny::default() }, |writer| writer);
        assert!(text.contains(missing), "{text}");
    }
    let text = refusal(Tiny { architecture: "qwen2", skip: Some("blk.1.attn_q.bias"), ..Tiny::default() }, |w| w);
    assert!(text.contains("blk.1.attn_q.bias"), "{text}");
    let replaced = |name: &'static str, shape: &[usize], kind: TensorType| {
        let bytes = shape.iter().product::<usize>() / kind.block_len() * kind.block_bytes();
        refusal(Tiny { skip: Some(name), ..Tiny::default() }, |writer| writer.tensor(name, shape, kind, vec![0; bytes]))
    };
    let text = replaced("blk.1.attn_k.weight", &[WIDTH, 7], TensorType::F32);
    assert!(text.contains("attn_k") && text.contains("[256, 7]") && text.contains("[256, 128]"), "{text}");
    let text = replaced("blk.0.attn_norm.weight", &[WIDTH, 2], TensorType::F32);
    assert!(text.contains("attn_norm"), "{text}");
    let text = replaced("blk.0.ffn_down.weight", &[WIDTH, WIDTH], TensorType::IQ2_S);
    assert!(text.contains("ffn_down") && text.contains("IQ2_S") && text.contains("Q8_0, Q2_K"), "{text}");
}

#[test]
fn experts_must_fit_each_other_and_the_keys() {
    let moe = Tiny { architecture: "qwen3moe", experts: 3, kind: TensorType::F32, ..Tiny::default() };
    let key = "qwen3moe.expert_used_count";
    let text = refusal(Tiny { skip: Some(key), ..moe }, |writer| writer.entry(key, Value::U32(4)));
    assert!(text.contains("expert_used_count\" is 4") && text.contains("3 experts"), "{text}");
    let name = "blk.1.ffn_up_exps.weight";
    let shape = [WIDTH, WIDTH, 2];
    let values = vec![0; 4 * WIDTH * WIDTH * 2];
    let text = refusal(Tiny { skip: Some(name), ..moe }, |writer| writer.tensor(name, &shape, TensorType::F32, values));
    assert!(text.contains(name) && text.contains("[256, 256, 2]") && text.contains("[256, 256, 3]"), "{text}");
    let key = "qwen3moe.expert_count";
    let file = Tiny { skip: Some(key), ..moe }.writer().entry(key, Value::U32(8)).finish();
    assert!(read(&file).unwrap().warnings[0].contains("expert_count"));
}

#[test]
fn a_layer_weight_without_a_place_is_refused() {
    let with = |name: &'static str| Tiny::default().writer().tensor(name, &[64], TensorType::F32, vec![0; 256]);
    let text = read(&with("blk.0.attn_q_norm.weight").finish()).unwrap_err().to_string();
    assert!(text.contains("attn_q_norm"), "{text}");
    assert!(read(&with("blk.0.attn_rot_embd").finish()).is_ok());
}
