//! Each step of the chain, and what all of them promise together.

use super::*;
use crate::engine::settings::{Dry, Mirostat, Penalties, Shaping, Xtc};

const GREEDY: Sampling =
    Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1, choice: 0, shaping: Shaping::NONE };
const WARM: Sampling =
    Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1, choice: 0, shaping: Shaping::NONE };

/// The token that is chosen behind no text.
fn sample(logits: &[f32], sampling: &Sampling, index: u64) -> Result<u32, NoToken> {
    behind(&[], &[], sampling, logits.len()).choose(logits, index, None)
}

fn behind(prompt: &[u32], answer: &[u32], sampling: &Sampling, vocabulary: usize) -> Sampler {
    let breakers = sampling.shaping.dry.as_ref().map_or(&[][..], |dry| &dry.sequence_breakers);
    let holds = |token| breakers.iter().any(|breaker| format!("<{token}>").contains(breaker.as_str()));
    Sampler::new(sampling.clone(), prompt, answer, vocabulary, (0..vocabulary).map(holds).collect())
}

fn shaped(shaping: Shaping) -> Sampling {
    Sampling { shaping, ..WARM }
}

/// How often each token is drawn.
fn counts(logits: &[f32], sampling: &Sampling, draws: u64) -> Vec<u64> {
    let mut counts = vec![0; logits.len()];
    for index in 0..draws {
        counts[sample(logits, sampling, index).unwrap() as usize] += 1;
    }
    counts
}

/// Which tokens are ever drawn.
fn drawn(logits: &[f32], sampling: &Sampling) -> Vec<usize> {
    counts(logits, sampling, 4_000).iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, _)| i).collect()
}

/// Logits of these probabilities.
fn logits_of(shares: &[f32]) -> Vec<f32> {
    shares.iter().map(|share| share.ln()).collect()
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    assert_eq!(sample(&[0.0, 3.0, 1.0, 3.0], &GREEDY, 0), Ok(1));
    assert_eq!(sample(&[0.0, 3.0], &Sampling { temperature: f32::NAN, ..WARM }, 0), Ok(1));
}

#[test]
fn logits_that_are_no_numbers_are_an_error_and_no_panic() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for sampling in [GREEDY, WARM, Sampling { top_k: 2, top_p: 0.5, min_p: 0.1, ..WARM }] {
            assert_eq!(sample(&[0.0, bad, 1.0], &sampling, 0), Err(NoToken::NotFinite));
        }
    }
    assert_eq!(sample(&[], &GREEDY, 0), Err(NoToken::NotFinite));
}

#[test]
fn the_token_depends_on_seed_choice_and_index_alone() {
    let logits: Vec<f32> = (0..50).map(|token| (token as f32 * 0.7).sin()).collect();
    let run = |sampling: &Sampling| (0..40).map(|index| sample(&logits, sampling, index)).collect::<Vec<_>>();
    let base = run(&WARM);
    assert_eq!(base, run(&WARM));
    assert_eq!(base[20], sample(&logits, &WARM, 20), "no draw depends on an earlier one");
    assert_ne!(base, run(&Sampling { seed: 2, ..WARM }));
    assert_ne!(base, run(&Sampling { choice: 1, ..WARM }));
}

#[test]
fn draws_follow_the_softmax() {
    let logits = logits_of(&[0.1, 0.2, 0.7]);
    let counts = counts(&logits, &WARM, 20_000);
    for (count, expected) in counts.iter().zip([2_000.0, 4_000.0, 14_000.0]) {
        assert!((*count as f64 - expected).abs() < 250.0, "{counts:?}");
    }
    let flat = super::tests::counts(&logits, &Sampling { temperature: 100.0, ..WARM }, 3_000);
    assert!(flat.iter().all(|count| (850..1150).contains(count)), "{flat:?}");
}

#[test]
fn filters_keep_what_they_say() {
    let logits = logits_of(&[0.05, 0.4, 0.15, 0.3, 0.1]);
    let drawn = |sampling: &Sampling| drawn(&logits, sampling);
    assert_eq!(drawn(&WARM), [0, 1, 2, 3, 4]);
    assert_eq!(drawn(&Sampling { top_k: 1, ..WARM }), [1]);
    assert_eq!(drawn(&Sampling { top_k: 3, ..WARM }), [1, 2, 3]);
    assert_eq!(drawn(&Sampling { top_k: 99, ..WARM }), [0, 1, 2, 3, 4]);
    assert_eq!(drawn(&Sampling { top_p: 0.65, ..WARM }), [1, 3]);
    assert_eq!(drawn(&Sampling { top_p: 0.75, ..WARM }), [1, 2, 3]);
    assert_eq!(drawn(&Sampling { top_p: 0.0, ..WARM }), [1]);
    assert_eq!(drawn(&Sampling { min_p: 0.3, ..WARM }), [1, 2, 3]);
    assert_eq!(drawn(&Sampling { min_p: 5.0, ..WARM }), [1]);
    assert_eq!(drawn(&Sampling { top_k: 2, top_p: 0.5, ..WARM }), [1]);
}

#[test]
fn top_p_over_a_flat_distribution_looks_beyond_the_first_tokens() {
    let logits = vec![0.0; 2_000];
    let counts = counts(&logits, &Sampling { top_p: 0.5, ..WARM }, 500);
    let highest = counts.iter().rposition(|count| *count > 0).unwrap();
    assert!((900..1_000).contains(&highest), "{highest}");
}

#[test]
fn typical_sampling_keeps_what_is_as_surprising_as_expected() {
    // Expected surprise 1.69 nats; those of the tokens: 0.69, 1.61 (four times), 2.30.
    let logits = logits_of(&[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]);
    assert_eq!(drawn(&logits, &shaped(Shaping { typical_p: Some(0.4), ..Shaping::NONE })), [0]);
    // The likeliest is less typical than the others where they are many.
    let many = logits_of(&[0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]);
    let kept = drawn(&many, &shaped(Shaping { typical_p: Some(0.75), ..Shaping::NONE }));
    assert_eq!(kept, [1, 2, 3, 4, 5, 6, 7, 8]);
    let all = drawn(&many, &shaped(Shaping { typical_p: Some(1.0), ..Shaping::NONE }));
    assert_eq!(all.len(), 9);
}

#[test]
fn what_follows_typical_sampling_looks_at_what_it_left() {
    // The likeliest token is not typical; of those that are, none is rare beside the others.
    let mut shares = vec![0.012; 50];
    shares.insert(0, 0.4);
    let sampling = Sampling { min_p: 0.05, ..shaped(Shaping { typical_p: Some(0.5), ..Shaping::NONE }) };
    let kept = drawn(&logits_of(&shares), &sampling);
    assert!(!kept.contains(&0) && kept.len() > 30, "{kept:?}");
}

#[test]
fn sigma_keeps_what_is_close_to_the_greatest_at_any_temperature() {
    let logits = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0, 10.0];
    for temperature in [0.5, 1.5] {
        let sampling = |n| Sampling { temperature, ..shaped(Shaping { top_n_sigma: Some(n), ..Shaping::NONE }) };
        assert_eq!(drawn(&logits, &sampling(1.0)), [6, 7]);
        assert_eq!(drawn(&logits, &sampling(0.1)), [7]);
    }
    assert!(drawn(&[0.0, 0.1, 0.2], &shaped(Shaping { top_n_sigma: Some(0.0), ..Shaping::NONE })).len() == 3);
}

#[test]
fn xtc_drops_all_top_choices_but_the_last_of_them_as_often_as_it_says() {
    let logits = logits_of(&[0.4, 0.3, 0.2, 0.1]);
    let xtc = |probability| shaped(Shaping { xtc: Some(Xtc { probability, threshold: 0.15 }), ..Shaping::NONE });
    assert_eq!(drawn(&logits, &xtc(1.0)), [2, 3]);
    assert_eq!(drawn(&logits, &xtc(0.0)), [0, 1, 2, 3]);
    let half = counts(&logits, &xtc(0.5), 10_000)[0];
    assert!((1_800..2_200).contains(&half), "{half}");
    let alone = Xtc { probability: 1.0, threshold: 0.35 };
    let kept = drawn(&logits, &shaped(Shaping { xtc: Some(alone), ..Shaping::NONE }));
    assert_eq!(kept, [0, 1, 2, 3], "one choice above the threshold is none to exclude");
    let greedy = Sampling { temperature: 0.0, ..xtc(1.0) };
    assert_eq!(sample(&logits, &greedy, 0), Ok(0), "greedy is greedy");
}

#[test]
fn biases_move_logits_and_ids_beyond_the_vocabulary_are_no_panic() {
    let logits = [1.0, 2.0, 3.0];
    let bias = vec![(0, 5.0), (2, -100.0), (77, 1.0)];
    let sampling = Sampling { shaping: Shaping { logit_bias: bias, ..Shaping::NONE }, ..GREEDY };
    assert_eq!(sample(&logits, &sampling, 0), Ok(0));
    assert_eq!(drawn(&logits, &Sampling { temperature: 1.0, ..sampling }), [0, 1]);
}

#[test]
fn penalties_make_what_was_there_less_likely_for_greedy_too() {
    let logits = [1.0, 2.0, 3.0];
    let with = |penalties| Sampling { shaping: Shaping { penalties: Some(penalties), ..Shaping::NONE }, ..GREEDY };
    let repetition = with(Penalties { repetition: 2.0, ..Penalties::NONE });
    assert_eq!(behind(&[2], &[], &repetition, 3).choose(&logits, 0, None), Ok(1));
    let presence = with(Penalties { presence: 1.5, ..Penalties::NONE });
    assert_eq!(behind(&[2], &[], &presence, 3).choose(&logits, 0, None), Ok(2), "the prompt does not count");
    let mut sampler = behind(&[], &[], &presence, 3);
    let chosen: Vec<u32> = (0..4).map(|index| sampler.choose(&logits, index, None).unwrap()).collect();
    assert_eq!(chosen, [2, 1, 2, 2], "a presence counts once");
    let mut sampler = behind(&[], &[], &with(Penalties { frequency: 1.5, ..Penalties::NONE }), 3);
    let chosen: Vec<u32> = (0..4).map(|index| sampler.choose(&logits, index, None).unwrap()).collect();
    assert_eq!(chosen, [2, 1, 2, 0], "a frequency counts each time");
}

#[test]
fn dry_stops_a_repetition_unless_a_breaker_stands_in_it() {
    let dry = |breakers: &[&str]| Sampling {
        shaping: Shaping {
            dry: Some(Dry {
                multiplier: 1.0,
                base: 2.0,
                allowed_length: 2,
                last_n: None,
                sequence_breakers: breakers.iter().map(|text| (*text).to_owned()).collect(),
            }),
            ..Shaping::NONE
        },
        ..GREEDY
    };
    // Behind 0 1 came 2, and the text ends with 0 1 again.
    let logits = [0.0, 0.0, 1.5, 1.0];
    assert_eq!(behind(&[0, 1, 2], &[0, 1], &dry(&[]), 4).choose(&logits, 0, None), Ok(3));
    assert_eq!(behind(&[0, 1, 2], &[0, 1], &dry(&["<1"]), 4).choose(&logits, 0, None), Ok(2));
    assert_eq!(behind(&[0, 1, 2], &[0, 1], &dry(&["<7>"]), 4).choose(&logits, 0, None), Ok(3));
}

#[test]
fn the_order_is_the_clients_and_what_it_leaves_out_is_not_done() {
    let logits = logits_of(&[0.4, 0.3, 0.2, 0.1]);
    let ordered = |order: &[Step]| Sampling {
        temperature: 0.5,
        top_p: 0.69,
        shaping: Shaping { order: Some(order.to_vec()), ..Shaping::NONE },
        ..WARM
    };
    // At temperature 0.5 the two likeliest have 0.83 of the probability, the first alone 0.53.
    assert_eq!(drawn(&logits, &ordered(&[Step::Temperature, Step::TopP])), [0, 1]);
    assert_eq!(drawn(&logits, &ordered(&[Step::TopP, Step::Temperature])), [0, 1]);
    let narrow = |order: &[Step]| Sampling { top_p: 0.5, ..ordered(order) };
    assert_eq!(drawn(&logits, &narrow(&[Step::Temperature, Step::TopP])), [0]);
    assert_eq!(drawn(&logits, &narrow(&[Step::TopP, Step::Temperature])), [0, 1]);
    assert_eq!(drawn(&logits, &narrow(&[Step::Temperature])), [0, 1, 2, 3]);
}

#[test]
fn mirostat_holds_the_surprise_and_a_recalled_answer_goes_on_as_it_would_have() {
    let logits: Vec<f32> = (0..200).map(|token| -((token + 1) as f32).ln()).collect();
    for version in [1, 2] {
        let mirostat = Mirostat { version, tau: 3.0, eta: 0.1 };
        let sampling = shaped(Shaping { mirostat: Some(mirostat), ..Shaping::NONE });
        assert!(Sampler::wants_earlier_logits(&sampling));
        let mut sampler = behind(&[], &[], &sampling, logits.len());
        let tokens: Vec<u32> = (0..2_000).map(|index| sampler.choose(&logits, index, None).unwrap()).collect();
        let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let bits = |token: &u32| -(f64::from(logits[*token as usize]).exp() / total).log2();
        let mean = tokens[500..].iter().map(bits).sum::<f64>() / 1_500.0;
        let plain = (0..2_000).map(|index| bits(&sample(&logits, &WARM, index).unwrap())).sum::<f64>() / 2_000.0;
        assert!(mean < plain - 0.5, "{version}: {mean} of {plain}");

        let mut resumed = behind(&[], &[], &sampling, logits.len());
        for (index, token) in tokens[..700].iter().enumerate() {
            resumed.recall(&logits, index as u64, None, *token).unwrap();
        }
        let rest: Vec<u32> = (700..2_000).map(|index| resumed.choose(&logits, index, None).unwrap()).collect();
        assert_eq!(rest, tokens[700..]);
    }
    let one = shaped(Shaping { mirostat: Some(Mirostat { version: 1, tau: 3.0, eta: 0.1 }), ..Shaping::NONE });
    assert_eq!(sample(&[1.0], &one, 0), Ok(0), "a vocabulary of one token is no panic");
    assert!(sample(&[1.0, 1.0, 1.0], &one, 0).is_ok());
}

#[test]
fn only_allowed_tokens_are_chosen() {
    let logits: Vec<f32> = (0..70).map(|token| token as f32).collect();
    let words = [1 << 3, 1 << 1];
    let allowed = |sampling: &Sampling, index| behind(&[], &[], sampling, 70).choose(&logits, index, Some(&words));
    assert_eq!(allowed(&GREEDY, 0), Ok(33), "tokens behind the last word are forbidden");
    let warm = Sampling { temperature: 2.0, ..WARM };
    assert!((0..500).map(|index| allowed(&warm, index).unwrap()).all(|token| token == 3 || token == 33));
    assert_eq!(behind(&[], &[], &WARM, 70).choose(&logits, 0, Some(&[])), Err(NoToken::NothingAllowed));
}

proptest::proptest! {
    #[test]
    fn whatever_shapes_the_choice_it_is_a_token_and_the_same_one_again(
        logits in proptest::collection::vec(-50.0_f32..50.0, 1..60),
        temperature in 0.0_f32..3.0,
        knobs in (0_u32..20, 0.0_f32..1.1, 0.0_f32..1.1, 0.0_f32..1.1, -1.0_f32..4.0),
        xtc in (0.0_f32..1.0, 0.0_f32..1.0),
        penalties in (0.1_f32..3.0, -2.0_f32..2.0, -2.0_f32..2.0, proptest::option::of(0_u32..9)),
        mirostat in proptest::option::of((1_u8..3, 0.0_f32..10.0, 0.0_f32..1.0)),
        text in proptest::collection::vec(0_u32..60, 0..30),
        seed: u64,
    ) {
        let text: Vec<u32> = text.into_iter().filter(|token| (*token as usize) < logits.len()).collect();
        let (top_k, top_p, min_p, typical_p, top_n_sigma) = knobs;
        let (repetition, frequency, presence, last_n) = penalties;
        let shaping = Shaping {
            order: None,
            logit_bias: vec![(3, 7.0)],
            penalties: Some(Penalties { repetition, frequency, presence, last_n }),
            dry: Some(Dry {
                multiplier: 0.8, base: 1.75, allowed_length: 2, last_n, sequence_breakers: vec!["<5>".to_owned()],
            }),
            top_n_sigma: Some(top_n_sigma),
            typical_p: Some(typical_p),
            xtc: Some(Xtc { probability: xtc.0, threshold: xtc.1 }),
            mirostat: mirostat.map(|(version, tau, eta)| Mirostat { version, tau, eta }),
        };
        let sampling = Sampling { temperature, top_k, top_p, min_p, seed, choice: 0, shaping };
        // Every second token is allowed, so that a token out of nowhere would be seen.
        let allowed: Vec<u32> = vec![0xaaaa_aaaa; 2];
        let allowed = (logits.len() > 1).then_some(&allowed[..]);
        let run = || {
            let mut sampler = behind(&text, &[], &sampling, logits.len());
            (0..20).map(|index| sampler.choose(&logits, index, allowed)).collect::<Vec<_>>()
        };
        let tokens = run();
        let is_good = |token: u32| (token as usize) < logits.len() && (allowed.is_none() || token % 2 == 1);
        proptest::prop_assert!(tokens.iter().all(|token| token.is_ok_and(is_good)), "{tokens:?}");
        proptest::prop_assert_eq!(tokens, run());
    }
}
