//! The default model's top tokens against those of an independent implementation, at every position of five texts.
//!
//! `tests/golden/smollm2_top_tokens.json` was made with llama.cpp (through the npm package `node-llama-cpp` 3.22) on
//! the same file: per text its token ids and, behind each of them, the two most likely next tokens and the
//! difference of their logits. Both implementations round activations to eight bits, each in its own way: their
//! differences of logits lie 0.12 apart on average, each as far from exact arithmetic. So only clear differences are
//! compared.

use serde::Deserialize;

use super::tests::{generate, real_model, request};
use super::*;

/// Where the reference is surer than this, the top token must be the same.
const MARGIN: f32 = 0.6;

#[derive(Deserialize)]
struct Golden {
    text: String,
    ids: Vec<u32>,
    /// Most likely, second, difference of their logits.
    top: Vec<(u32, u32, f32)>,
}

#[test]
fn top_tokens_are_those_of_an_independent_implementation_wherever_it_is_sure() {
    let engine = real_model(&LoadOptions::default());
    let texts: Vec<Golden> =
        serde_json::from_str(include_str!("../../../tests/golden/smollm2_top_tokens.json")).unwrap();
    let (mut compared, mut wrong) = (0, Vec::new());
    for Golden { text, ids, top } in &texts {
        assert_eq!(engine.model().tokenizer.encode(text, true), *ids);
        for (position, (best, _, margin)) in top.iter().enumerate().filter(|(_, (.., margin))| *margin > MARGIN) {
            compared += 1;
            let found = generate(&engine, request(ids[..=position].into(), 1)).tokens[0];
            if found != *best {
                wrong.push((&text[..10], position, *best, found, *margin));
            }
        }
    }
    assert!(compared >= 180, "only {compared} positions were compared");
    assert!(wrong.is_empty(), "{} of {compared} positions differ: {wrong:?}", wrong.len());
}
