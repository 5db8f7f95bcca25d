//! Guesses a sequence's next tokens from its own text: what came behind the same few tokens the last time. Edited
//! code, quoted documents and tool results repeat themselves, and a guess that proves right costs less than a step
//! of its own ("prompt lookup decoding", <https://github.com/apoorvumang/prompt-lookup-decoding>).
//!
//! A guess changes no token: it is run behind the last token, and only as much of it is kept as was sampled anyway.
//! How much is guessed follows from how guesses went, so text that does not repeat costs little.

use std::collections::HashMap;

/// Tokens that must have been the same for a guess.
const GRAM: usize = 3;

/// What is known of one sequence's repetitions.
#[derive(Debug)]
pub(super) struct Lookup {
    /// Where the text behind a run of [`GRAM`] tokens begins: behind its last occurrence but the text's end.
    behind: HashMap<[u32; GRAM], usize>,
    /// Runs that end in front of this position, or at it, are entered.
    entered: usize,
    /// Tokens that the next guess may have.
    reach: usize,
    /// Guesses in a row of which nothing was right.
    misses: u32,
    /// Guesses to leave out before the next one.
    pause: usize,
}

/// The first guess is this long.
const REACH_FIRST: usize = 3;
/// After so many useless guesses in a row the pause does not become longer.
const MISSES_MAX: u32 = 6;

impl Default for Lookup {
    fn default() -> Self {
        Self { behind: HashMap::new(), entered: 0, reach: REACH_FIRST, misses: 0, pause: 0 }
    }
}

impl Lookup {
    /// Guesses at most `most` tokens behind `tokens`, which must be those of the last call or go on behind them.
    pub(super) fn guess(&mut self, tokens: &[u32], most: usize) -> Vec<u32> {
        if most == 0 {
            return Vec::new();
        }
        if self.pause > 0 {
            self.pause -= 1;
            return Vec::new();
        }
        self.enter(tokens);
        let Some(begin) = last_gram(tokens).and_then(|gram| self.behind.get(&gram)) else {
            return Vec::new();
        };
        let mut guess: Vec<u32> = Vec::new();
        for at in *begin..*begin + most.min(self.reach) {
            // Where the text repeats without a break, the guess goes on with itself.
            let token = tokens.get(at).or_else(|| guess.get(at - tokens.len()));
            guess.extend(token.copied());
        }
        guess
    }

    /// Learns how many tokens of a guess were right.
    pub(super) fn judge(&mut self, guessed: usize, right: usize) {
        if guessed == 0 {
            return;
        }
        if right == 0 {
            self.misses = (self.misses + 1).min(MISSES_MAX);
            self.pause = 1 << self.misses;
            self.reach = REACH_FIRST;
        } else {
            self.misses = 0;
            self.reach = if right == guessed { self.reach.max(2 * guessed) } else { right + 1 };
        }
    }

    /// Enters every run but the one at the end, which would only find itself.
    fn enter(&mut self, tokens: &[u32]) {
        for end in (self.entered + 1).max(GRAM)..tokens.len() {
            self.behind.extend(last_gram(&tokens[..end]).map(|gram| (gram, end)));
        }
        self.entered = tokens.len().saturating_sub(1).max(self.entered);
    }
}

fn last_gram(tokens: &[u32]) -> Option<[u32; GRAM]> {
    tokens.last_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_behind_the_same_tokens_last_time_is_guessed() {
        let mut lookup = Lookup::default();
        assert_eq!(lookup.guess(&[1, 2, 3, 4, 5, 6, 9, 1, 2, 3], 8), [4, 5, 6]);
        lookup.judge(3, 3);
        // The later of two occurrences counts.
        let text = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3];
        assert_eq!(Lookup::default().guess(&text, 8), [4, 5, 6]);
        assert_eq!(lookup.guess(&text, 8), [4, 5, 6, 7, 8, 1]);
        assert_eq!(lookup.guess(&text, 2), [4, 5]);
    }

    #[test]
    fn text_that_does_not_repeat_is_not_guessed() {
        let mut lookup = Lookup::default();
        assert!(lookup.guess(&[1, 2, 3, 4, 1, 2], 8).is_empty());
        assert!(lookup.guess(&[1, 2], 8).is_empty());
        assert!(lookup.guess(&[], 8).is_empty());
        assert!(lookup.guess(&[1, 2, 3, 1, 2, 3], 0).is_empty());
    }

    #[test]
    fn a_guess_goes_on_with_itself_where_the_text_repeats_without_a_break() {
        let mut lookup = Lookup { reach: 7, ..Lookup::default() };
        assert_eq!(lookup.guess(&[5, 6, 5, 6, 5], 7), [6, 5, 6, 5, 6, 5, 6]);
        let mut lookup = Lookup { reach: 4, ..Lookup::default() };
        assert_eq!(lookup.guess(&[7, 7, 7, 7], 7), [7, 7, 7, 7]);
    }

    #[test]
    fn useless_guesses_become_rare_and_right_ones_long() {
        let text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3];
        let mut lookup = Lookup::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let mut pause = 0;
            while lookup.guess(&text, 8).is_empty() {
                pause += 1;
            }
            pauses.push(pause);
            lookup.judge(3, 0);
        }
        assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 64, 64]);
        let mut lookup = Lookup::default();
        for (right, next) in [(3, 6), (6, 8), (2, 3), (3, 6)] {
            let guessed = lookup.guess(&text, 8).len();
            lookup.judge(guessed, right);
            assert_eq!(lookup.guess(&text, 8).len(), next);
        }
    }
}
