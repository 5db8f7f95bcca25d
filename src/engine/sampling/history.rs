//! The tokens that were there already, as far as penalties look at them.

use std::collections::HashMap;

use crate::engine::settings::{Dry, Penalties};

/// A repetition that is longer than what costs nothing by more than this costs no more.
const DRY_EXCESS_MAX: usize = 64;

/// Prompt and answer so far.
#[derive(Clone, Debug)]
pub(super) struct History {
    tokens: Vec<u32>,
    prompt: usize,
    /// How often each token is among the last ones of prompt and answer.
    seen: Vec<u32>,
    /// How often it is among the last ones of the answer.
    answered: Vec<u32>,
    last_n: usize,
}

impl History {
    /// `prompt` and `answer` so far, over a vocabulary of this size, of which the penalties count the last `last_n`.
    pub(super) fn new(prompt: &[u32], answer: &[u32], vocabulary: usize, last_n: Option<u32>) -> Self {
        let mut history = Self {
            tokens: Vec::with_capacity(prompt.len() + answer.len()),
            prompt: prompt.len(),
            seen: vec![0; vocabulary],
            answered: vec![0; vocabulary],
            last_n: last_n.map_or(usize::MAX, |count| count as usize),
        };
        for token in prompt.iter().chain(answer) {
            history.push(*token);
        }
        history
    }

    /// One more token.
    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.count(self.tokens.len() - 1, |count| count + 1);
        if let Some(left) = self.tokens.len().checked_sub(self.last_n.saturating_add(1)) {
            self.count(left, |count| count - 1);
        }
    }

    fn count(&mut self, position: usize, change: impl Fn(u32) -> u32) {
        let token = self.tokens[position] as usize;
        // A token that is none of the vocabulary is refused before it comes here; it would only not be counted.
        if let Some(seen) = self.seen.get_mut(token) {
            *seen = change(*seen);
            if position >= self.prompt {
                self.answered[token] = change(self.answered[token]);
            }
        }
    }

    /// The logit of `token` with what it costs.
    pub(super) fn penalised(&self, token: u32, logit: f32, penalties: &Penalties) -> f32 {
        let token = token as usize;
        let mut logit = logit;
        if self.seen[token] > 0 {
            logit = if logit > 0.0 { logit / penalties.repetition } else { logit * penalties.repetition };
        }
        let answered = self.answered[token];
        if answered > 0 {
            logit -= answered as f32 * penalties.frequency + penalties.presence;
        }
        logit
    }

    /// What each token costs that would prolong a repetition. `breaks` are tokens that no repetition reaches across.
    pub(super) fn repetitions(&self, dry: &Dry, breaks: &[bool]) -> HashMap<u32, f32> {
        let last_n = dry.last_n.map_or(usize::MAX, |count| count as usize);
        let tokens = &self.tokens[self.tokens.len().saturating_sub(last_n)..];
        // Backwards: how far the text before each token agrees with the text before the end.
        let is_break = |token: &u32| breaks.get(*token as usize).is_some_and(|is_break| *is_break);
        let unbroken = tokens.iter().rev().take_while(|token| !is_break(token)).count();
        let unbroken = unbroken.min(dry.allowed_length as usize + DRY_EXCESS_MAX);
        let reversed: Vec<u32> = tokens.iter().rev().copied().collect();
        let mut longest: HashMap<u32, usize> = HashMap::new();
        for (start, length) in common_with_start(&reversed, unbroken).into_iter().enumerate().skip(1) {
            if length >= dry.allowed_length.max(1) as usize {
                // The token behind the earlier occurrence.
                let next = longest.entry(reversed[start - 1]).or_default();
                *next = length.max(*next);
            }
        }
        // Never infinite: a logit stays a number.
        let cost = |length: usize| {
            (dry.multiplier * dry.base.powi((length - dry.allowed_length as usize) as i32)).min(f32::MAX / 2.0)
        };
        longest.into_iter().map(|(token, length)| (token, cost(length))).collect()
    }
}

/// For each position, how many items from there on equal those at the start, `most` at most: the Z function.
fn common_with_start(items: &[u32], most: usize) -> Vec<usize> {
    let mut lengths = vec![0; items.len()];
    let (mut left, mut right) = (0, 0);
    for position in 1..items.len() {
        let mut length = if position < right { lengths[position - left].min(right - position) } else { 0 };
        while length < most && position + length < items.len() && items[length] == items[position + length] {
            length += 1;
        }
        lengths[position] = length;
        if position + length > right {
            (left, right) = (position, position + length);
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, reason = "halves and quarters are exact")]

    use super::*;

    const DRY: Dry = Dry { multiplier: 1.0, base: 2.0, allowed_length: 2, last_n: None, sequence_breakers: Vec::new() };

    #[test]
    fn repetition_looks_at_prompt_and_answer_and_the_others_at_the_answer() {
        let history = History::new(&[1, 2], &[2, 3, 3], 5, None);
        let all = Penalties { repetition: 2.0, frequency: 0.25, presence: 0.5, last_n: None };
        let logits: Vec<f32> = (0..5).map(|token| history.penalised(token, 4.0, &all)).collect();
        assert_eq!(logits, [4.0, 2.0, 2.0 - 0.75, 2.0 - 1.0, 4.0]);
        assert_eq!(history.penalised(1, -4.0, &all), -8.0, "what is negative gets more so");
    }

    #[test]
    fn only_the_last_tokens_count() {
        let penalties = Penalties { repetition: 2.0, frequency: 1.0, presence: 0.0, last_n: Some(2) };
        let mut history = History::new(&[1, 2], &[3], 5, penalties.last_n);
        assert_eq!(history.penalised(1, 4.0, &penalties), 4.0);
        assert_eq!(history.penalised(2, 4.0, &penalties), 2.0);
        history.push(3);
        assert_eq!(history.penalised(2, 4.0, &penalties), 4.0);
        assert_eq!(history.penalised(3, 4.0, &penalties), 0.0);
        let none = History::new(&[1], &[1], 5, Some(0));
        assert_eq!(none.penalised(1, 4.0, &penalties), 4.0);
    }

    #[test]
    fn what_would_prolong_a_repetition_costs_by_its_length() {
        // 1 2 3 came before, and the text ends with 1 2 again; 2 alone came before 4.
        let history = History::new(&[1, 2, 3, 2, 4], &[1, 2], 9, None);
        assert_eq!(history.repetitions(&DRY, &[]), HashMap::from([(3, 1.0)]));
        let long = History::new(&[7, 1, 2, 3], &[7, 1, 2], 9, None);
        assert_eq!(long.repetitions(&DRY, &[]), HashMap::from([(3, 2.0)]));
    }

    #[test]
    fn no_repetition_reaches_across_a_breaker_or_out_of_the_window() {
        let history = History::new(&[7, 1, 2, 3], &[7, 1, 2], 9, None);
        let mut breaks = vec![false; 9];
        breaks[1] = true;
        assert!(history.repetitions(&DRY, &breaks).is_empty());
        assert!(history.repetitions(&Dry { last_n: Some(3), ..DRY }, &[]).is_empty());
    }

    #[test]
    fn an_endless_repetition_costs_a_number() {
        let history = History::new(&[], &vec![5; 5_000], 9, None);
        let costs = history.repetitions(&Dry { base: 1.75, ..DRY }, &[]);
        assert!(costs[&5].is_finite() && costs[&5] > 1e9, "{costs:?}");
    }

    proptest::proptest! {
        #[test]
        fn the_lengths_are_those_of_the_definition(
            items in proptest::collection::vec(0_u32..3, 0..40), most in 0_usize..12,
        ) {
            for (position, length) in common_with_start(&items, most).into_iter().enumerate().skip(1) {
                let common = items[position..].iter().zip(&items).take_while(|(a, b)| a == b).count();
                proptest::prop_assert_eq!(length, common.min(most));
            }
        }
    }
}
