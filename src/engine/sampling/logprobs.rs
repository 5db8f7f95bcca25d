//! How likely a token was: of the model's own distribution, in front of everything that shapes the choice.

/// How likely a sampled token was, and which ones were the likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The natural logarithm of the token's probability.
    pub logprob: f32,
    /// The likeliest tokens with theirs, the likeliest first; the lowest id among equals.
    pub top: Vec<(u32, f32)>,
}

/// Of `token` behind these logits, with so many of the likeliest.
pub(crate) fn logprobs(logits: &[f32], token: u32, top: usize) -> TokenLogprobs {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
    let norm = f64::from(highest) + sum.ln();
    // Never infinite: JSON has no such number.
    let logprob = |token: u32| ((f64::from(logits[token as usize]) - norm) as f32).max(f32::MIN);
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by_likelihood = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let top = top.min(order.len());
    if top < order.len() && top > 0 {
        order.select_nth_unstable_by(top - 1, by_likelihood);
    }
    order.truncate(top);
    order.sort_unstable_by(by_likelihood);
    TokenLogprobs { logprob: logprob(token), top: order.into_iter().map(|token| (token, logprob(token))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_logarithms_of_the_softmax_and_the_likeliest_come_first() {
        let logits: Vec<f32> = [0.1_f32, 0.4, 0.2, 0.3].iter().map(|share| share.ln() + 7.0).collect();
        let found = logprobs(&logits, 2, 3);
        assert!((found.logprob - 0.2_f32.ln()).abs() < 1e-6);
        let top: Vec<u32> = found.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(top, [1, 3, 2]);
        assert!(found.top.iter().all(|(token, logprob)| (logprob - (logits[*token as usize] - 7.0)).abs() < 1e-6));
        assert!(logprobs(&logits, 0, 0).top.is_empty());
        assert_eq!(logprobs(&logits, 0, 9).top.len(), 4);
        let equal = logprobs(&[1.0, 1.0, 1.0], 2, 2);
        assert_eq!(equal.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn great_logits_do_not_overflow() {
        assert!(logprobs(&[3e38, 3e38, -3e38], 0, 1).logprob.is_finite());
        assert!(logprobs(&[3e38, 3e38, -3e38], 2, 3).top.iter().all(|(_, logprob)| logprob.is_finite()));
        assert!(logprobs(&[3e38, -3e38], 1, 1).logprob.is_finite());
        assert!(logprobs(&[800.0, 0.0], 1, 1).logprob <= -799.0);
    }
}
