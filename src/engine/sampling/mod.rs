//! Chooses the next token from the logits.
//!
//! Pure: the token is a function of (logits, [`Sampling`], token index) and of nothing else, neither of the
//! batch nor of what was drawn before. So a resumed answer goes on with the very tokens it would have had.

mod philox;

use std::cmp::Ordering;

use super::contract::Sampling;

/// The model produced logits that are no numbers; the sequence cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model produced logits that are not finite")]
pub(crate) struct NotFinite;

/// Chooses the token with number `index` of the answer.
///
/// Order: temperature, then top-k, then top-p over what top-k left, then min-p. The most likely token always
/// stays. Equal logits are ordered by token id, lowest first.
pub(crate) fn sample(logits: &[f32], sampling: &Sampling, index: u64) -> Result<u32, NotFinite> {
    let best = greedy(logits)?;
    if sampling.temperature <= 0.0 || sampling.temperature.is_nan() {
        return Ok(best);
    }
    let highest = logits[best as usize];
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    if sampling.top_k > 0 {
        keep_first(
            &mut tokens,
            sampling.top_k as usize,
            by_likelihood(|token| logits[*token as usize], |token| *token),
        );
    }
    let weigh = |token: u32| {
        let logit = logits[token as usize];
        let weight = (f64::from(logit - highest) / f64::from(sampling.temperature)).exp();
        Candidate { token, logit, weight }
    };
    let mut kept: Vec<Candidate> = tokens.into_iter().map(weigh).collect();
    if sampling.top_p < 1.0 {
        keep_share(&mut kept, f64::from(sampling.top_p));
    }
    if sampling.min_p > 0.0 {
        // The most likely token weighs exactly 1.
        kept.retain(|candidate| candidate.weight >= f64::from(sampling.min_p).min(1.0));
    }
    let total: f64 = kept.iter().map(|candidate| candidate.weight).sum();
    let mut left = total * philox::uniform(sampling.seed, sampling.choice, index);
    for candidate in &kept {
        left -= candidate.weight;
        if left < 0.0 {
            return Ok(candidate.token);
        }
    }
    // Rounding used up the sum: the last one that was kept.
    Ok(kept.last().map_or(best, |candidate| candidate.token))
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    logit: f32,
    /// Its probability relative to that of the most likely token.
    weight: f64,
}

/// The most likely token, the lowest id among equals. Fails if any logit is not finite.
fn greedy(logits: &[f32]) -> Result<u32, NotFinite> {
    let mut best = None;
    for (token, logit) in logits.iter().copied().enumerate() {
        if !logit.is_finite() {
            return Err(NotFinite);
        }
        if best.is_none_or(|(_, highest)| logit > highest) {
            best = Some((token as u32, logit));
        }
    }
    best.map(|(token, _)| token).ok_or(NotFinite)
}

/// Most likely first, lowest id among equals.
fn by_likelihood<T>(logit: impl Fn(&T) -> f32, token: impl Fn(&T) -> u32) -> impl Fn(&T, &T) -> Ordering {
    move |a, b| logit(b).total_cmp(&logit(a)).then(token(a).cmp(&token(b)))
}

/// Cuts `kept` down to the first `count` in that order.
fn keep_first<T>(kept: &mut Vec<T>, count: usize, order: impl Fn(&T, &T) -> Ordering) {
    if count < kept.len() {
        kept.select_nth_unstable_by(count - 1, &order);
        kept.truncate(count);
    }
    kept.sort_unstable_by(order);
}

/// Cuts `kept` down to the smallest set of most likely tokens that weighs `share` of all of it.
fn keep_share(kept: &mut Vec<Candidate>, share: f64) {
    let total: f64 = kept.iter().map(|candidate| candidate.weight).sum();
    // Nearly always a few tokens are enough: sort no more than needed.
    let mut count = 64;
    loop {
        let mut likeliest = kept.clone();
        keep_first(&mut likeliest, count, by_likelihood(|candidate: &Candidate| candidate.logit, |c| c.token));
        let mut reached = 0.0;
        let end = likeliest.iter().position(|candidate| {
            reached += candidate.weight;
            reached >= share * total
        });
        if let Some(last) = end {
            likeliest.truncate(last + 1);
        } else if likeliest.len() < kept.len() {
            count *= 16;
            continue;
        }
        *kept = likeliest;
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1, choice: 0 };
    const WARM: Sampling = Sampling { temperature: 1.0, ..GREEDY };

    /// Which of the tokens are ever drawn, and how often.
    fn counts(logits: &[f32], sampling: &Sampling, draws: u64) -> Vec<u64> {
        let mut counts = vec![0; logits.len()];
        for index in 0..draws {
            counts[sample(logits, sampling, index).unwrap() as usize] += 1;
        }
        counts
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
                assert_eq!(sample(&[0.0, bad, 1.0], &sampling, 0), Err(NotFinite));
            }
        }
        assert_eq!(sample(&[], &GREEDY, 0), Err(NotFinite));
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
        let logits = [0.1_f32.ln(), 0.2_f32.ln(), 0.7_f32.ln()];
        let counts = counts(&logits, &WARM, 20_000);
        for (count, expected) in counts.iter().zip([2_000.0, 4_000.0, 14_000.0]) {
            assert!((*count as f64 - expected).abs() < 250.0, "{counts:?}");
        }
        let flat = super::tests::counts(&logits, &Sampling { temperature: 100.0, ..WARM }, 3_000);
        assert!(flat.iter().all(|count| (850..1150).contains(count)), "{flat:?}");
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits: Vec<f32> = [0.05_f32, 0.4, 0.15, 0.3, 0.1].iter().map(|share| share.ln()).collect();
        let drawn = |sampling: &Sampling| -> Vec<usize> {
            counts(&logits, sampling, 4_000).iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, _)| i).collect()
        };
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
}
