//! Answers of a form, and answers whose choice is shaped, on a tiny random model.

use std::sync::Arc;

use super::tests::{GREEDY, WARM, engine, generate, prompt, read, request};
use super::{LoadOptions, LocalEngine};
use crate::engine::settings::{Constraint, Dry, Mirostat, Penalties, Shaping, TextRule, Xtc};
use crate::engine::{Engine, FinishReason, GenerationRequest, Sampling, Surroundings};

/// Held to a small JSON object.
fn constrained(engine: &LocalEngine, sampling: Sampling) -> GenerationRequest {
    let model = engine.model();
    let schema = serde_json::json!({
        "type": "object",
        "properties": {
            "the_answer_is_right": {"type": "boolean"}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["the_answer_is_right", "count"],
        "additionalProperties": false,
    });
    let constraint = Constraint { text: TextRule::JsonSchema { schema }, calls: None, at: None };
    let surroundings = Surroundings { tools: &[], tool_format: model.tool_format, reasoning: model.reasoning };
    let compiled = model.grammars.as_ref().unwrap().compile(&constraint, &surroundings).unwrap();
    let stop_tokens = model.tokenizer.end_of_generation().into();
    GenerationRequest { sampling, stop_tokens, constraint: Some((compiled, None)), ..request(prompt(1, 50), 200) }
}

#[test]
fn a_constrained_answer_is_what_was_asked_for_and_what_is_certain_takes_no_step_of_its_own() {
    for options in [LoadOptions::default(), LoadOptions { guessed_tokens: 0, ..LoadOptions::default() }] {
        let engine = engine(&options);
        for sampling in [GREEDY, WARM] {
            let before = engine.stats();
            let answer = generate(&engine, constrained(&engine, sampling));
            assert_eq!(answer.finish, Some(FinishReason::Stop));
            let said = engine.model().tokenizer.decode(&answer.tokens);
            let value: serde_json::Value = serde_json::from_str(&said).unwrap();
            assert!(value["the_answer_is_right"].is_boolean() && value["count"].is_number(), "{said}");
            let after = engine.stats();
            let (steps, tokens) = (after.steps - before.steps, after.tokens_sampled - before.tokens_sampled);
            // A letter is a token here: two keys and a word are certain, a digit or two and the end are not.
            assert!(tokens >= 40 && steps <= 10, "{steps} steps for {tokens} tokens");
        }
    }
}

#[test]
fn a_constrained_answer_resumed_at_any_token_ends_with_the_same_tokens() {
    let engine = engine(&LoadOptions::default());
    for sampling in [GREEDY, WARM] {
        let whole = constrained(&engine, sampling);
        let expected = generate(&engine, whole.clone()).tokens;
        for cut in 0..expected.len() {
            let resumed: Arc<[u32]> = expected[..cut].into();
            let resume = GenerationRequest { resumed, cache_salt: 7 + cut as u64, ..whole.clone() };
            assert_eq!(generate(&engine, resume).tokens, expected[cut..], "cut at {cut}");
        }
    }
}

#[test]
fn a_constrained_answer_changes_nothing_for_the_others_in_its_batch() {
    let options = LoadOptions { guessed_tokens: 0, ..LoadOptions::default() };
    let alone = generate(&engine(&options), request(prompt(2, 20), 60));
    let engine = engine(&options);
    let held = generate(&engine, constrained(&engine, WARM));
    let [mate, other] = [request(prompt(2, 20), 60), constrained(&engine, WARM)]
        .map(|request| engine.submit(GenerationRequest { cache_salt: 5, ..request }).unwrap());
    assert_eq!(read(mate).tokens, alone.tokens);
    assert_eq!(read(other).tokens, held.tokens);
}

/// What is chosen depends on earlier logits, and they on what was masked.
#[test]
fn a_constrained_answer_under_mirostat_resumed_at_any_token_ends_with_the_same_tokens() {
    let engine = engine(&LoadOptions::default());
    for version in [1, 2] {
        let shaping = Shaping { mirostat: Some(Mirostat { version, tau: 4.0, eta: 0.2 }), ..Shaping::NONE };
        let whole = constrained(&engine, Sampling { shaping, temperature: 1.5, ..WARM });
        let expected = generate(&engine, whole.clone()).tokens;
        for cut in (0..expected.len()).step_by(7) {
            let resumed: Arc<[u32]> = expected[..cut].into();
            let resume = GenerationRequest { resumed, cache_salt: 7 + cut as u64, ..whole.clone() };
            assert_eq!(generate(&engine, resume).tokens, expected[cut..], "cut at {cut}");
        }
    }
}

#[test]
fn a_shaped_answer_resumed_at_any_token_ends_with_the_same_tokens() {
    let engine = engine(&LoadOptions::default());
    let penalties = Penalties { repetition: 1.3, frequency: 0.4, presence: 0.2, last_n: Some(20) };
    let dry =
        Dry { multiplier: 0.8, base: 1.75, allowed_length: 2, last_n: None, sequence_breakers: vec!["a".to_owned()] };
    let mirostat = |version| Shaping { mirostat: Some(Mirostat { version, tau: 4.0, eta: 0.2 }), ..Shaping::NONE };
    let repeats = Shaping { penalties: Some(penalties), dry: Some(dry), ..Shaping::NONE };
    let plain = generate(&engine, GenerationRequest { sampling: WARM, ..request(prompt(1, 50), 40) }).tokens;
    let all: Vec<(u32, f32)> =
        (0..engine.model().tokenizer.vocab_size() as u32).map(|id| (id, (id % 7) as f32)).collect();
    let biased = Shaping { logit_bias: all[..40].to_vec(), ..Shaping::NONE };
    let xtc = Shaping { xtc: Some(Xtc { probability: 0.5, threshold: 0.01 }), ..Shaping::NONE };
    let typical = Shaping { typical_p: Some(0.4), ..Shaping::NONE };
    let sigma = Shaping { top_n_sigma: Some(0.8), ..Shaping::NONE };
    let together = Shaping { logit_bias: all[..9].to_vec(), xtc: xtc.xtc, typical_p: Some(0.9), ..repeats.clone() };
    for shaping in [repeats, mirostat(1), mirostat(2), biased, xtc, typical, sigma, together] {
        let sampling = Sampling { shaping, temperature: 1.5, ..WARM };
        let whole = GenerationRequest { sampling, ..request(prompt(1, 50), 40) };
        let expected = generate(&engine, whole.clone()).tokens;
        assert_eq!(expected.len(), 40);
        assert_ne!(expected, plain);
        for cut in [0, 1, 15, 16, 39] {
            let resumed: Arc<[u32]> = expected[..cut].into();
            let resume = GenerationRequest { resumed, cache_salt: 7 + cut as u64, ..whole.clone() };
            let answer = generate(&engine, resume);
            assert_eq!(answer.tokens, expected[cut..], "cut at {cut}");
            assert_eq!(answer.finish, Some(FinishReason::Length));
        }
    }
}
