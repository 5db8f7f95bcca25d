//! The tokens that may be drawn, and the steps that make them fewer. No step may leave none, or bring back a token that
//! is gone.

use std::cmp::Ordering;

use super::{Allowed, NoToken};

/// Mirostat's first version estimates the exponent of Zipf's law from so many of the most likely tokens.
const ZIPF_TOKENS: usize = 100;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    logit: f32,
    /// Its probability relative to that of the most likely token; known while [`Candidates::is_weighed`].
    weight: f64,
}

/// The tokens that may be drawn; never none, once there was one.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    kept: Vec<Candidate>,
    temperature: f32,
    is_weighed: bool,
}

/// The most likely token, the lowest id among equals. Fails if any logit is not finite.
pub(super) fn greedy(logits: &[f32]) -> Result<u32, NoToken> {
    let mut best = None;
    for (token, logit) in logits.iter().copied().enumerate() {
        if !logit.is_finite() {
            return Err(NoToken::NotFinite);
        }
        if best.is_none_or(|(_, highest)| logit > highest) {
            best = Some((token as u32, logit));
        }
    }
    best.map(|(token, _)| token).ok_or(NoToken::NotFinite)
}

/// Most likely first, lowest id among equals.
fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

impl Candidates {
    /// The allowed tokens with their biases.
    pub(super) fn of(logits: &[f32], bias: &[(u32, f32)], allowed: Option<Allowed<'_>>) -> Self {
        let candidate = |(token, logit): (usize, &f32)| Candidate { token: token as u32, logit: *logit, weight: 0.0 };
        let mut kept: Vec<Candidate> = logits.iter().enumerate().map(candidate).collect();
        for (token, bias) in bias {
            if let Some(candidate) = kept.get_mut(*token as usize) {
                candidate.logit += bias;
            }
        }
        if let Some(words) = allowed {
            let is_allowed =
                |token: u32| words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
            kept.retain(|candidate| is_allowed(candidate.token));
        }
        Self { kept, temperature: 1.0, is_weighed: false }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Changes every logit.
    pub(super) fn adjust(&mut self, change: impl Fn(u32, f32) -> f32) {
        for candidate in &mut self.kept {
            candidate.logit = change(candidate.token, candidate.logit);
        }
        self.is_weighed = false;
    }

    /// From here on probabilities are those at this temperature.
    pub(super) fn temper(&mut self, temperature: f32) {
        self.temperature = temperature;
        self.is_weighed = false;
    }

    /// Cuts down to the `count` most likely, in that order; 0 keeps all.
    pub(super) fn keep_first(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        if count < self.kept.len() {
            self.kept.select_nth_unstable_by(count - 1, by_likelihood);
            self.kept.truncate(count);
        }
        self.kept.sort_unstable_by(by_likelihood);
    }

    /// Cuts down to logits within `n` standard deviations of the greatest (Tang et al., 2024); the temperature does
    /// not matter.
    pub(super) fn keep_sigma(&mut self, n: f32) {
        if n <= 0.0 {
            return;
        }
        let count = self.kept.len() as f64;
        let mean = self.kept.iter().map(|candidate| f64::from(candidate.logit)).sum::<f64>() / count;
        let square = |candidate: &Candidate| (f64::from(candidate.logit) - mean).powi(2);
        let deviation = (self.kept.iter().map(square).sum::<f64>() / count).sqrt();
        let least = f64::from(self.highest()) - f64::from(n) * deviation;
        self.kept.retain(|candidate| f64::from(candidate.logit) >= least);
    }

    /// Cuts down to the tokens whose surprise is closest to the expected one, as many as reach `share` of the
    /// probability (Meister et al., 2022).
    pub(super) fn keep_typical(&mut self, share: f32) {
        if share >= 1.0 {
            return;
        }
        self.weigh();
        let total = self.total();
        let surprise = |candidate: &Candidate| -(candidate.weight / total).ln();
        // A weight of nothing adds nothing, and its surprise is no number.
        let expected: f64 = self
            .kept
            .iter()
            .filter(|candidate| candidate.weight > 0.0)
            .map(|candidate| candidate.weight / total * surprise(candidate))
            .sum();
        let distance = |candidate: &Candidate| (surprise(candidate) - expected).abs();
        let order = |a: &Candidate, b: &Candidate| distance(a).total_cmp(&distance(b)).then(a.token.cmp(&b.token));
        self.kept.sort_by(order);
        self.cut_at(f64::from(share) * total);
        // The likeliest token may be gone: weights are relative to the likeliest of those that are left.
        self.is_weighed = false;
    }

    /// Cuts down to the smallest set of most likely tokens that weighs `share` of all of it.
    pub(super) fn keep_share(&mut self, share: f32) {
        if share >= 1.0 {
            return;
        }
        self.weigh();
        let wanted = f64::from(share) * self.total();
        // Nearly always a few tokens are enough: sort no more than needed.
        let mut count = 64;
        loop {
            let mut likeliest = self.clone();
            likeliest.keep_first(count);
            let is_all = likeliest.kept.len() == self.kept.len();
            if likeliest.cut_at(wanted) || is_all {
                *self = likeliest;
                return;
            }
            count *= 16;
        }
    }

    /// Drops what is less likely than this share of the most likely token.
    pub(super) fn keep_above(&mut self, share: f32) {
        if share > 0.0 {
            self.weigh();
            // The most likely token weighs exactly 1.
            self.kept.retain(|candidate| candidate.weight >= f64::from(share).min(1.0));
        }
    }

    /// Drops all tokens at least so likely but the last of them.
    pub(super) fn drop_top_choices(&mut self, threshold: f32) {
        self.weigh();
        let least = f64::from(threshold) * self.total();
        self.kept.sort_by(by_likelihood);
        let above = self.kept.iter().take_while(|candidate| candidate.weight >= least).count();
        if above > 1 {
            self.kept.drain(..above - 1);
            self.is_weighed = false;
        }
    }

    /// Cuts down to the tokens of at most so many bits of surprise, the most likely one always among them.
    pub(super) fn keep_below_surprise(&mut self, bound: f64) {
        self.weigh();
        let total = self.total();
        self.kept.sort_by(by_likelihood);
        let few = self.kept.iter().take_while(|candidate| -(candidate.weight / total).log2() <= bound).count();
        self.kept.truncate(few.max(1));
    }

    /// Cuts down to as many tokens as have so many bits of surprise on average, if their probabilities follow Zipf's
    /// law with the exponent that the most likely ones suggest.
    pub(super) fn keep_for_surprise(&mut self, bound: f64) {
        self.weigh();
        let vocabulary = self.kept.len() as f64;
        self.kept.sort_by(by_likelihood);
        let head = &self.kept[..self.kept.len().min(ZIPF_TOKENS)];
        let (mut products, mut squares) = (0.0, 0.0);
        for (rank, pair) in head.windows(2).enumerate() {
            let step = ((rank + 2) as f64 / (rank + 1) as f64).ln();
            products += step * (pair[0].weight / pair[1].weight.max(f64::MIN_POSITIVE)).ln();
            squares += step * step;
        }
        let exponent = products / squares;
        let excess = exponent - 1.0;
        let count = (excess * bound.exp2() / (1.0 - vocabulary.powf(-excess))).powf(exponent.recip());
        // One token, or none but equal ones, give no exponent: then all of them stay.
        if count.is_finite() {
            self.kept.truncate((count as usize).max(1));
        }
    }

    /// The bits of surprise of a token among those that are left.
    pub(super) fn surprise(&mut self, token: u32) -> Option<f64> {
        self.weigh();
        let found = self.kept.iter().find(|candidate| candidate.token == token)?;
        Some(-(found.weight / self.total()).log2())
    }

    /// The most likely token.
    pub(super) fn best(&self) -> u32 {
        self.kept.iter().min_by(|a, b| by_likelihood(a, b)).map_or(0, |candidate| candidate.token)
    }

    /// The token at this share of the whole weight, from 0 to 1.
    pub(super) fn draw(&mut self, uniform: f64) -> u32 {
        self.weigh();
        let mut left = self.total() * uniform;
        for candidate in &self.kept {
            left -= candidate.weight;
            if left < 0.0 {
                return candidate.token;
            }
        }
        // Rounding used up the sum: the last one that can be drawn.
        let last = self.kept.iter().rev().find(|candidate| candidate.weight > 0.0);
        last.map_or_else(|| self.best(), |candidate| candidate.token)
    }

    fn highest(&self) -> f32 {
        self.kept.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max)
    }

    fn weigh(&mut self) {
        if self.is_weighed {
            return;
        }
        let (highest, temperature) = (self.highest(), f64::from(self.temperature));
        for candidate in &mut self.kept {
            candidate.weight = (f64::from(candidate.logit - highest) / temperature).exp();
        }
        self.is_weighed = true;
    }

    fn total(&self) -> f64 {
        self.kept.iter().map(|candidate| candidate.weight).sum()
    }

    /// Keeps the first ones that together weigh so much; false if all of them do not.
    fn cut_at(&mut self, weight: f64) -> bool {
        let mut reached = 0.0;
        let last = self.kept.iter().position(|candidate| {
            reached += candidate.weight;
            reached >= weight
        });
        self.kept.truncate(last.map_or(self.kept.len(), |last| last + 1));
        last.is_some()
    }
}
