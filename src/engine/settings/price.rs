//! What a model's tokens cost.

use serde::{Deserialize, Serialize};

/// What so many tokens are the unit of.
const PER_TOKENS: f64 = 1e6;
/// No tokens cost so much.
const SOUND_MAX: f64 = 1e6;
/// What a unit of the currency is counted in.
const NANOS: f64 = 1e9;

/// Prices of a million tokens, in whatever currency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Of the prompt.
    pub input: f64,
    /// Of the part of the prompt that was cached; absent, it costs what the rest does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
    /// Of the answer.
    pub output: f64,
}

impl Price {
    /// Whether something can cost so much.
    pub fn is_sound(&self) -> bool {
        let all = [self.input, self.cached_input.unwrap_or(0.0), self.output];
        all.into_iter().all(|price| (0.0..SOUND_MAX).contains(&price))
    }

    /// What so many tokens cost, in billionths: of the prompt, of that from the cache, of the answer.
    pub fn nanos(&self, input_tokens: u32, cached_tokens: u32, output_tokens: u32) -> u64 {
        let cached_input = self.cached_input.unwrap_or(self.input);
        let fresh = input_tokens.saturating_sub(cached_tokens);
        let parts = [(fresh, self.input), (cached_tokens, cached_input), (output_tokens, self.output)];
        let sum: f64 = parts.into_iter().map(|(tokens, price)| f64::from(tokens) * price).sum();
        (sum * (NANOS / PER_TOKENS)).round() as u64
    }
}

/// Billionths as a number of the currency's units.
pub fn units(nanos: u64) -> f64 {
    nanos as f64 / NANOS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_cost_by_the_million_and_cached_ones_apart() {
        let price = Price { input: 3.0, cached_input: Some(0.3), output: 15.0 };
        assert_eq!(price.nanos(1000, 400, 10), 600 * 3_000 + 400 * 300 + 10 * 15_000);
        assert_eq!(Price { cached_input: None, ..price }.nanos(1000, 400, 10), 1000 * 3_000 + 10 * 15_000);
        assert_eq!(units(price.nanos(1, 0, 1)).to_string(), "0.000018");
        for (input, is_sound) in [(0.0, true), (-1.0, false), (f64::NAN, false), (1e300, false)] {
            assert_eq!(Price { input, ..price }.is_sound(), is_sound, "{input}");
        }
    }
}
