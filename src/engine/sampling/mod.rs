//! Chooses the next token from the logits.
//!
//! Pure: the token is a function of (logits, [`Sampling`], the tokens so far, token index) and of nothing else,
//! neither of the batch nor of what was drawn before. So a resumed answer goes on with the very tokens it would have
//! had. Mirostat alone depends on earlier logits too: [`Sampler::wants_earlier_logits`].

mod candidates;
mod history;
mod logprobs;
mod philox;

use std::sync::Arc;

use super::settings::{Sampling, Step};
use candidates::{Candidates, greedy};
use history::History;
pub use logprobs::TokenLogprobs;
pub(crate) use logprobs::logprobs;

/// Why no token can be chosen. The sequence cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoToken {
    /// The model produced logits that are no numbers.
    #[error("the model produced logits that are not finite")]
    NotFinite,
    /// The constraint forbids every token.
    #[error("the constraint allows no token")]
    NothingAllowed,
}

/// Which tokens a constraint allows: bit t % 32 of word t / 32. Tokens behind the last word are forbidden.
pub(crate) type Allowed<'a> = &'a [u32];

/// Chooses the tokens of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    order: Vec<Step>,
    history: Option<History>,
    /// Which tokens hold a sequence breaker, by id.
    breaks: Arc<[bool]>,
    /// Mirostat's bound on the surprise of the next token, in bits.
    surprise: f64,
}

impl Sampler {
    /// A sampler behind `prompt` and the answer so far. `breaks` says of each token of the vocabulary whether it holds
    /// one of the sequence breakers; tokens that it does not reach hold none.
    pub(crate) fn new(
        sampling: Sampling,
        prompt: &[u32],
        answer: &[u32],
        vocabulary: usize,
        breaks: Arc<[bool]>,
    ) -> Self {
        let shaping = &sampling.shaping;
        let order = shaping.order.clone().unwrap_or_else(|| Step::DEFAULT_ORDER.to_vec());
        let looks_back = shaping.penalties.is_some() || shaping.dry.is_some();
        let last_n = shaping.penalties.and_then(|penalties| penalties.last_n);
        let history = looks_back.then(|| History::new(prompt, answer, vocabulary, last_n));
        let surprise = shaping.mirostat.map_or(0.0, |mirostat| 2.0 * f64::from(mirostat.tau));
        Self { sampling, order, history, breaks, surprise }
    }

    /// Whether it has to see the logits of the answer so far too, before it can go on behind them.
    pub(crate) fn wants_earlier_logits(sampling: &Sampling) -> bool {
        sampling.shaping.mirostat.is_some() && sampling.temperature > 0.0
    }

    /// Chooses the token with number `index` of the answer, among those that are allowed.
    ///
    /// The most likely token always stays, unless XTC takes it. Equal logits are ordered by token id, lowest first.
    pub(crate) fn choose(&mut self, logits: &[f32], index: u64, allowed: Option<Allowed<'_>>) -> Result<u32, NoToken> {
        self.step(logits, index, allowed, None)
    }

    /// Takes note of a token that was chosen earlier behind these logits, as [`Self::choose`] did when it chose it.
    pub(crate) fn recall(
        &mut self,
        logits: &[f32],
        index: u64,
        allowed: Option<Allowed<'_>>,
        token: u32,
    ) -> Result<(), NoToken> {
        self.step(logits, index, allowed, Some(token)).map(|_| ())
    }

    fn step(
        &mut self,
        logits: &[f32],
        index: u64,
        allowed: Option<Allowed<'_>>,
        chosen: Option<u32>,
    ) -> Result<u32, NoToken> {
        let best = greedy(logits)?;
        let is_greedy = self.sampling.temperature <= 0.0 || self.sampling.temperature.is_nan();
        let token = if is_greedy && allowed.is_none() && self.sampling.shaping.is_none() {
            best
        } else {
            let mut candidates = Candidates::of(logits, &self.sampling.shaping.logit_bias, allowed);
            if candidates.is_empty() {
                return Err(NoToken::NothingAllowed);
            }
            self.draw(&mut candidates, is_greedy, index, chosen)
        };
        let token = chosen.unwrap_or(token);
        if let Some(history) = &mut self.history {
            history.push(token);
        }
        Ok(token)
    }

    fn draw(&mut self, candidates: &mut Candidates, is_greedy: bool, index: u64, chosen: Option<u32>) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, seed, choice, ref shaping } = self.sampling;
        let [uniform, second] = philox::uniform(seed, choice, index);
        // What drops tokens has no part in mirostat; and none of it changes which token is the most likely.
        let drops = !is_greedy && shaping.mirostat.is_none();
        for step in &self.order {
            match step {
                Step::Penalties => {
                    if let (Some(penalties), Some(history)) = (&shaping.penalties, &self.history) {
                        candidates.adjust(|token, logit| history.penalised(token, logit, penalties));
                    }
                }
                Step::Dry => {
                    if let (Some(dry), Some(history)) = (&shaping.dry, &self.history) {
                        let costs = history.repetitions(dry, &self.breaks);
                        if !costs.is_empty() {
                            candidates.adjust(|token, logit| logit - costs.get(&token).unwrap_or(&0.0));
                        }
                    }
                }
                Step::Temperature => candidates.temper(if is_greedy { 1.0 } else { temperature }),
                Step::TopNSigma if drops => shaping.top_n_sigma.iter().for_each(|n| candidates.keep_sigma(*n)),
                Step::TopK if drops => candidates.keep_first(top_k as usize),
                Step::TypicalP if drops => shaping.typical_p.iter().for_each(|p| candidates.keep_typical(*p)),
                Step::TopP if drops => candidates.keep_share(top_p),
                Step::MinP if drops => candidates.keep_above(min_p),
                Step::Xtc if drops => {
                    if let Some(xtc) = shaping.xtc.filter(|xtc| second < f64::from(xtc.probability)) {
                        candidates.drop_top_choices(xtc.threshold);
                    }
                }
                Step::TopNSigma | Step::TopK | Step::TypicalP | Step::TopP | Step::MinP | Step::Xtc => {}
            }
        }
        if is_greedy {
            return candidates.best();
        }
        let Some(mirostat) = shaping.mirostat else {
            return candidates.draw(uniform);
        };
        let bound = self.surprise;
        match mirostat.version {
            1 => candidates.keep_for_surprise(bound),
            _ => candidates.keep_below_surprise(bound),
        }
        let token = chosen.unwrap_or_else(|| candidates.draw(uniform));
        // What was chosen under another bound may be gone; then it was as surprising as the bound.
        let surprise = candidates.surprise(token).unwrap_or(bound);
        self.surprise = bound - f64::from(mirostat.eta) * (surprise - f64::from(mirostat.tau));
        token
    }
}

#[cfg(test)]
mod tests;
