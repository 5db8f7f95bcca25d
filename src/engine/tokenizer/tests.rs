//! The tokenizer's promises. The ids of the real model were made with an independent implementation (the Python
//! package `tokenizers`, configured from the model's own vocabulary).

use std::path::PathBuf;

use proptest::prelude::*;

use super::{Error, Segment, Tokenizer};
use crate::engine::gguf::{Array, Gguf, Value, Writer};

const VARIABLE: &str = "MIDSTREAM_TEST_MODEL";

/// The tokenizer of the real test model.
fn smollm2() -> Tokenizer {
    let path = std::env::var_os(VARIABLE).map_or_else(
        || {
            panic!(
                "{VARIABLE} must name SmolLM2-135M-Instruct.Q4_1.gguf; scripts/test fetches it and sets the variable"
            )
        },
        PathBuf::from,
    );
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    Tokenizer::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap()
}

fn strings(texts: &[&str]) -> Value {
    Value::Array(Array::String(texts.iter().map(|&text| text.to_owned()).collect()))
}

fn byte_level_file(pre: &str) -> Writer {
    Writer::new()
        .entry("tokenizer.ggml.model", Value::String("gpt2".to_owned()))
        .entry("tokenizer.ggml.pre", Value::String(pre.to_owned()))
        .entry("tokenizer.ggml.tokens", strings(&["a", "b", "ab", "Ġ", "<|im_end|>", "<x>", "</s>"]))
        .entry("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1, 1, 1, 3, 4, 3])))
        .entry("tokenizer.ggml.merges", strings(&["a b"]))
}

fn load(writer: &Writer) -> Result<Tokenizer, Error> {
    Tokenizer::from_gguf(&Gguf::parse(&writer.finish()).unwrap())
}

#[test]
fn real_texts_have_the_ids_of_an_independent_implementation() {
    let tokenizer = smollm2();
    let check = |text: &str, expected: &[u32]| {
        assert_eq!(tokenizer.encode(text, true), expected, "{text:?}");
        let shown: String = text.replace("<|im_start|>", "").replace("<|im_end|>", "");
        assert_eq!(tokenizer.decode(expected), shown);
    };
    check("Hello, world!", &[19556, 28, 905, 17]);
    check(
        "I'm 12345 years old; you'RE  not.",
        &[57, 5248, 216, 33, 34, 35, 36, 37, 929, 1573, 43, 346, 23, 3256, 216, 441, 30],
    );
    check(
        "  leading and   inner spaces \t\tand tabs\n\n\nnew lines\r\n x ",
        &[216, 2899, 284, 256, 6210, 5600, 216, 197, 197, 397, 29416, 1116, 198, 2241, 3204, 2738, 1792, 216],
    );
    check(
        "def f(x):\n    return x ** 2  # square\n",
        &[1604, 275, 24, 104, 727, 472, 1003, 1792, 1903, 216, 34, 216, 907, 5222, 198],
    );
    check(
        "Grüße, naïve café — 你好，世界 🦀🇩🇪 ёжик ١٢٣",
        &[
            27302, 7170, 34878, 85, 28, 15486, 46494, 37366, 1841, 216, 18645, 250, 48392, 138, 12831, 7906, 240, 178,
            239, 230, 15107, 116, 218, 10813, 225, 119, 10813, 225, 120, 216, 156, 235, 40186, 7872, 13760, 216, 164,
            111, 164, 112, 164, 113,
        ],
    );
    check("<|im_start|>user\nhi<|im_end|>\n", &[1, 4093, 198, 6004, 2, 198]);
    check("a\u{a0}b\u{2003}c", &[81, 15442, 82, 321, 221, 83]);
    check("e\u{301} \u{200d}\u{200b}\u{feff}", &[85, 151, 219, 459, 231, 321, 229, 186, 136, 140]);
    check("3.14159e-10 ½ Ⅷ", &[35, 30, 33, 36, 33, 37, 41, 85, 29, 33, 32, 216, 16738, 216, 173, 223, 117]);
    check("'s 'S 'll ''ll", &[506, 637, 67, 637, 764, 10922, 764]);
}

#[test]
fn bytes_without_a_token_are_lost_and_nothing_merges_across_them() {
    // This model has no token for most control characters, but one for a space with the first byte of the dot.
    let tokenizer = smollm2();
    assert_eq!(tokenizer.encode(" ⸱", false), [4636, 133, 126]);
    assert_eq!(tokenizer.encode(" \u{13}⸱", false), [216, 173, 133, 126]);
    assert_eq!(tokenizer.encode("\u{13}", false), [0; 0]);
    let tokenizer = load(&byte_level_file("gpt-2")).unwrap();
    assert_eq!(tokenizer.encode("acb ab", false), [0, 1, 3, 2]);
}

#[test]
fn the_real_model_ends_at_its_own_tokens() {
    let tokenizer = smollm2();
    assert_eq!(tokenizer.end_of_generation(), [0, 2]);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos()), (Some(1), Some(2), false));
    assert_eq!(tokenizer.vocab_size(), 49152);
    assert_eq!(tokenizer.warnings(), &[] as &[String]);
}

#[test]
fn control_texts_are_text_unless_asked_for() {
    let tokenizer = smollm2();
    let ids = tokenizer.encode("<|im_end|>", false);
    assert!(ids.iter().all(|&id| !tokenizer.is_control(id)), "{ids:?}");
    assert_eq!(tokenizer.decode(&ids), "<|im_end|>");
    assert_eq!(tokenizer.encode("<|im_end|>", true), [2]);
    assert_eq!(tokenizer.special_text(2), Some("<|im_end|>"));
    assert_eq!(tokenizer.special_text(19556), None);
}

#[test]
fn a_small_vocabulary_merges_cuts_and_ends() {
    let tokenizer = load(&byte_level_file("gpt-2").entry("tokenizer.ggml.eos_token_id", Value::U32(99))).unwrap();
    assert_eq!(tokenizer.encode("ab ba<x>ab", false), [2, 3, 1, 0, 5, 2]);
    assert_eq!(tokenizer.segments("a<|im_end|>"), [Segment::Text("a"), Segment::Control(4)]);
    assert_eq!(tokenizer.end_of_generation(), [4, 6]);
    assert_eq!(tokenizer.eos(), None);
    assert_eq!(tokenizer.warnings().len(), 1);
    assert_eq!(tokenizer.token_bytes(3), b" ");
}

#[test]
fn what_is_not_known_is_refused() {
    assert_eq!(load(&byte_level_file("no-such")).unwrap_err(), Error::UnknownPreTokenizer("no-such".to_owned()));
    let model = Writer::new().entry("tokenizer.ggml.model", Value::String("rwkv".to_owned()));
    assert_eq!(load(&model).unwrap_err(), Error::UnknownModel("rwkv".to_owned()));
    let types = Writer::new()
        .entry("tokenizer.ggml.model", Value::String("gpt2".to_owned()))
        .entry("tokenizer.ggml.pre", Value::String("gpt-2".to_owned()))
        .entry("tokenizer.ggml.tokens", strings(&["a"]))
        .entry("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1])));
    assert!(matches!(load(&types), Err(Error::Length { found: 2, expected: 1, .. })));
    assert!(matches!(load(&Writer::new()), Err(Error::File(_))));
}

#[test]
fn every_named_pattern_compiles() {
    for pre in [
        "default",
        "llama-bpe",
        "qwen2",
        "qwen35",
        "smaug-bpe",
        "smollm",
        "gpt-2",
        "gpt-4o",
        "tekken",
        "falcon",
        "glm4",
        "laguna",
        "jina-v2-code",
        "kimi-k2",
        "deepseek-v3",
        "deepseek-coder",
        "deepseek-llm",
        "afmoe",
    ] {
        let tokenizer = load(&byte_level_file(pre)).unwrap_or_else(|error| panic!("{pre}: {error}"));
        assert_eq!(tokenizer.encode("ab b", false), [2, 3, 1], "{pre}");
        assert_eq!(tokenizer.warnings().is_empty(), pre != "default");
    }
}

#[test]
fn patterns_without_vectors_of_their_own_cut_as_their_models_do() {
    let pieces = |pre: &str, text: &str| -> Vec<String> {
        let mut pieces = tokenizers::PreTokenizedString::from(text);
        for pattern in super::pre_tokenizer::recipe(Some(pre)).unwrap().patterns {
            let pattern = tokenizers::pre_tokenizers::split::SplitPattern::Regex(pattern);
            let isolated = tokenizers::SplitDelimiterBehavior::Isolated;
            let split = tokenizers::pre_tokenizers::split::Split::new(pattern, isolated, false).unwrap();
            tokenizers::PreTokenizer::pre_tokenize(&split, &mut pieces).unwrap();
        }
        let splits = pieces.get_splits(tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
        splits.into_iter().map(|(piece, ..)| piece.to_owned()).collect()
    };
    assert_eq!(pieces("afmoe", "1234567 12"), ["1", "234", "567", " ", "12"]);
    assert_eq!(pieces("afmoe", "ab,cd สวัสดี"), ["ab", ",cd", " ", "สวัสดี"]);
    assert_eq!(pieces("kimi-k2", "HelloWorld 你好abc 1234"), ["Hello", "World", " ", "你好", "abc", " ", "123", "4"]);
    assert_eq!(pieces("deepseek-v3", "x=12345 かな語 $a"), ["x", "=", "123", "45", " ", "かな語", " $", "a"]);
    assert_eq!(pieces("laguna", "a\n\n  b"), ["a", "\n\n", " ", " b"]);
    assert_eq!(pieces("gemma4", "a b\n\nc"), ["a b", "\n\n", "c"]);
    assert_eq!(pieces("gpt-4o", "camelCase's x/"), ["camel", "Case's", " x", "/"]);
    assert_eq!(pieces("tekken", "camelCase's x/12"), ["camel", "Case", "'s", " x", "/", "1", "2"]);
}

#[test]
fn characters_merge_over_spaces_and_fall_back_to_bytes() {
    let tokens = ["<0xC3>", "<0xA9>", "\u{2581}", "a", "b", "a\u{2581}", "a\u{2581}b", "\n", "<0x0A>"];
    let file = Writer::new()
        .entry("tokenizer.ggml.model", Value::String("gemma4".to_owned()))
        .entry("tokenizer.ggml.tokens", strings(&tokens))
        .entry("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![6, 6, 1, 1, 1, 1, 1, 1, 6])))
        .entry("tokenizer.ggml.merges", strings(&["a \u{2581}", "a\u{2581} b"]));
    let tokenizer = load(&file).unwrap();
    assert_eq!(tokenizer.encode("a b\n é", false), [6, 7, 2, 0, 1]);
    assert_eq!(tokenizer.decode(&[6, 7, 2, 0, 1]), "a b\n é");
}

#[test]
fn sentence_piece_merges_by_score_and_falls_back_to_bytes() {
    let tokens = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "\u{2581}", "a", "b", "ab", "\u{2581}a", "\u{2581}ab"];
    let file = Writer::new()
        .entry("tokenizer.ggml.model", Value::String("llama".to_owned()))
        .entry("tokenizer.ggml.tokens", strings(&tokens))
        .entry("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1])))
        .entry(
            "tokenizer.ggml.scores",
            Value::Array(Array::F32(vec![0.0, 0.0, 0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -1.0, -2.0, -3.0])),
        )
        .entry("tokenizer.ggml.bos_token_id", Value::U32(1));
    let tokenizer = load(&file).unwrap();
    assert_eq!(tokenizer.encode("ab a", false), [10, 9]);
    assert_eq!(tokenizer.encode("é", false), [5, 3, 4]);
    assert_eq!(tokenizer.encode("<s>ab", true), [1, 10]);
    assert!(tokenizer.add_bos());
    assert_eq!(tokenizer.decode(&[10, 9]), " ab a");
}

#[test]
fn fingerprints_tell_vocabularies_apart() {
    let one = load(&byte_level_file("gpt-2")).unwrap();
    assert_eq!(one.fingerprint(), load(&byte_level_file("gpt-2")).unwrap().fingerprint());
    assert_ne!(one.fingerprint(), load(&byte_level_file("smollm")).unwrap().fingerprint());
}

#[test]
fn long_texts_are_encoded_in_time_close_to_linear() {
    let tokenizer = smollm2();
    for text in ["a".repeat(200_000), " ".repeat(200_000), "<".repeat(200_000), "x y\n".repeat(50_000)] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(&text, true)), text);
    }
}

proptest! {
    #[test]
    fn bytes_give_every_text_back(text in any::<String>()) {
        let tokenizer = Tokenizer::bytes();
        let ids = tokenizer.encode(&text, false);
        prop_assert_eq!(ids.len(), text.len());
        prop_assert_eq!(tokenizer.decode(&ids), text);
    }
}

#[test]
fn the_byte_tokenizer_has_chatml_control_tokens() {
    let tokenizer = Tokenizer::bytes();
    assert_eq!(tokenizer.encode("<|im_start|>é<|im_end|>", true), [256, 0xc3, 0xa9, 257]);
    assert_eq!(tokenizer.end_of_generation(), [257, 258]);
    assert_eq!(tokenizer.vocab_size(), 259);
}
