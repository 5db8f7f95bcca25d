//! The logits of small models of every architecture against those of an independent implementation.
//!
//! `tests/golden/logits/NAME.json` was made by `scripts/reference`: the models of `tiny::references`, computed by the
//! Python package `transformers` in 64-bit arithmetic. What is left of difference comes from keys and values in 16 bits
//! and sums in 32.

use std::path::Path;

use serde::Deserialize;

use super::tests::{chunk, load};
use super::*;
use crate::engine::model::tiny::references;

/// The greatest difference there may be, as a share of the greatest logit.
const DIFFERENCE_MAX: f32 = 2e-3;
/// The same where matrices are packed: the activations of their products are rounded to eight bits.
const ROUNDED_DIFFERENCE_MAX: f32 = 3e-2;
/// Where the models are written for `scripts/reference`.
const FOLDER_VARIABLE: &str = "MIDSTREAM_REFERENCE_MODELS";

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
}

#[test]
fn logits_of_every_architecture_are_those_of_an_independent_implementation() {
    let mut worst = Vec::new();
    for (name, writer) in references() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/logits/{name}.json"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let golden: Golden = serde_json::from_str(&text).unwrap();
        let mut backend = load(&writer.finish(), Isa::select().unwrap(), 2);
        let mut start = 0;
        let mut difference = 0.0_f32;
        for (position, expected) in golden.positions.iter().zip(&golden.logits) {
            let found = backend.forward(&[chunk(&golden.tokens, start, position + 1, 0, 1)]).unwrap();
            assert_eq!(found.len(), expected.len(), "{name}");
            let scale = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
            let each = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs() / scale);
            difference = each.fold(difference, f32::max);
            start = position + 1;
        }
        worst.push((name, difference));
    }
    let most = |name: &str| if name.ends_with("_mxfp4") { ROUNDED_DIFFERENCE_MAX } else { DIFFERENCE_MAX };
    assert!(worst.iter().all(|(name, difference)| *difference < most(name)), "{worst:?}");
}

#[test]
#[ignore = "writes the models that scripts/reference computes"]
fn write_the_models() {
    let folder = std::env::var(FOLDER_VARIABLE).unwrap_or_else(|_| panic!("{FOLDER_VARIABLE} must name a folder"));
    for (name, writer) in references() {
        std::fs::write(Path::new(&folder).join(format!("{name}.gguf")), writer.finish()).unwrap();
    }
}
