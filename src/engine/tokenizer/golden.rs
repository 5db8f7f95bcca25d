//! Texts and ids of many models' tokenizers, made with the models' own ones.
//!
//! They come with the sources of the Python package `llama-cpp-python`, which `scripts/test` fetches: vocabularies keep
//! their models' licences, so none is in this repository. `NAME.gguf.inp` holds texts with a line between them,
//! `NAME.gguf.out` a line of ids for each.

use std::path::{Path, PathBuf};

use super::Tokenizer;
use crate::engine::gguf::Gguf;

const VARIABLE: &str = "MIDSTREAM_TEST_VOCABULARIES";
const BORDER: &str = "\n__ggml_vocab_test__\n";
/// The vocabularies that there are; of `bert-bge` besides: no model that generates has its kind of tokenizer.
const NAMES: [&str; 14] = [
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

#[test]
fn texts_have_the_ids_that_the_models_own_tokenizers_give_them() {
    let Some(folder) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        println!("skipped: {VARIABLE} must name the folder of vocabularies; scripts/test fetches it and sets it");
        return;
    };
    let mut wrong = Vec::new();
    for name in NAMES {
        check(&folder, &format!("ggml-vocab-{name}.gguf"), &mut wrong);
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn check(folder: &Path, name: &str, wrong: &mut Vec<String>) {
    let tokenizer = Tokenizer::from_gguf(&Gguf::parse(&std::fs::read(folder.join(name)).unwrap()).unwrap());
    let tokenizer = tokenizer.unwrap_or_else(|error| panic!("{name}: {error}"));
    let texts = std::fs::read_to_string(folder.join(format!("{name}.inp"))).unwrap();
    let ids = std::fs::read_to_string(folder.join(format!("{name}.out"))).unwrap();
    let ids: Vec<&str> = ids.lines().collect();
    let texts: Vec<&str> = texts.split(BORDER).take(ids.len()).collect();
    assert_eq!(texts.len(), ids.len(), "{name}");
    for (text, ids) in texts.iter().zip(ids) {
        let expected: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let found = tokenizer.encode(text, false);
        if found != expected {
            wrong.push(format!("{name} {text:?}: {found:?} instead of {expected:?}"));
        }
    }
}
