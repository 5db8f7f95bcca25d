//! How many tokens of prompts a step takes, from how long earlier steps took.
//!
//! While somebody reads an answer that grows, a step must be short; while nobody does, it may be longer, since a long
//! one reads the weights for more tokens at once. It is never so long that a cancel or a newcomer waits much for it.

use super::super::kv::BLOCK_TOKENS;

/// A step of prompts alone takes about so long.
const ALONE_NS: u64 = 250_000_000;
/// Prompt tokens of a step before any was measured.
const UNMEASURED_TOKENS: usize = 4 * BLOCK_TOKENS;
/// Prompt tokens of a step for each answer that grows in it, however long that takes. They cost less than the answers'
/// own; with fewer, prompts would hardly get on where many answers alone take longer than the target.
const TOKENS_PER_ANSWER: usize = 2;

/// What steps took lately, in nanoseconds.
#[derive(Debug)]
pub(super) struct Pace {
    /// What a step may take while answers grow.
    gap: u64,
    /// What a step without prompts took: what a step costs at least. 0 is unknown.
    decode: u64,
    /// What a token of a prompt adds to it. 0 is unknown.
    token: u64,
}

impl Pace {
    /// `target_ns` is the most that should lie between two tokens of an answer. Steps differ, so a quarter is left.
    pub(super) fn new(target_ns: u64) -> Self {
        Self { gap: target_ns - target_ns / 4, decode: 0, token: 0 }
    }

    /// How many tokens of prompts the next step takes beside so many answers: a block at least, so that prompts always
    /// get on.
    pub(super) fn prompt_tokens(&self, answers: usize) -> usize {
        let allowed = if answers > 0 { self.gap.min(ALONE_NS) } else { ALONE_NS };
        let tokens = match allowed.saturating_sub(self.decode).checked_div(self.token) {
            Some(tokens) => usize::try_from(tokens).unwrap_or(usize::MAX),
            None => UNMEASURED_TOKENS,
        };
        (tokens / BLOCK_TOKENS * BLOCK_TOKENS).max(BLOCK_TOKENS).max(TOKENS_PER_ANSWER * answers)
    }

    /// A step with so many tokens of prompts took so long.
    pub(super) fn measured(&mut self, prompt_tokens: usize, took_ns: u64) {
        if prompt_tokens == 0 {
            self.decode = average(self.decode, took_ns);
        } else if prompt_tokens >= BLOCK_TOKENS {
            // What earlier steps without prompts took may say little about this one: half is the prompt's at least.
            let added = took_ns.saturating_sub(self.decode).max(took_ns / 2);
            self.token = average(self.token, added / prompt_tokens as u64).max(1);
        }
    }
}

/// The mean of what is known and what is new.
fn average(known: u64, new: u64) -> u64 {
    if known == 0 { new } else { u64::midpoint(known, new) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A machine on which a step takes `step_us` and `token_us` for each token of a prompt.
    struct Machine {
        step_us: u64,
        token_us: u64,
    }

    impl Machine {
        fn took(&self, prompt_tokens: usize) -> u64 {
            (self.step_us + self.token_us * prompt_tokens as u64) * 1_000
        }

        /// Runs so many steps of prompts and gives their tokens and their times.
        fn run(&self, pace: &mut Pace, steps: usize, answers: usize) -> Vec<(usize, u64)> {
            (0..steps)
                .map(|_| {
                    let tokens = pace.prompt_tokens(answers);
                    pace.measured(tokens, self.took(tokens));
                    (tokens, self.took(tokens))
                })
                .collect()
        }
    }

    const MACHINES: [Machine; 4] = [
        Machine { step_us: 4_000, token_us: 900 },
        Machine { step_us: 40_000, token_us: 2_000 },
        Machine { step_us: 15_000, token_us: 50 },
        Machine { step_us: 500, token_us: 4_000 },
    ];

    #[test]
    fn beside_answers_a_step_stays_under_the_target_and_uses_most_of_it() {
        for machine in MACHINES {
            let mut pace = Pace::new(100 * MS);
            pace.measured(0, machine.took(0));
            machine.run(&mut pace, 3, 0);
            for (tokens, took) in machine.run(&mut pace, 20, 1) {
                assert!(took < 100 * MS, "{tokens} tokens took {took} ns");
                assert!(took > 50 * MS || tokens == BLOCK_TOKENS, "{tokens} tokens took {took} ns");
            }
        }
    }

    #[test]
    fn a_prompt_alone_is_run_in_large_steps_that_end_soon() {
        for machine in MACHINES {
            let mut pace = Pace::new(100 * MS);
            let steps = machine.run(&mut pace, 20, 0);
            assert_eq!(steps[0].0, UNMEASURED_TOKENS);
            let (tokens, took) = steps[19];
            assert!((150 * MS..=260 * MS).contains(&took), "{tokens} tokens took {took} ns");
            assert!(steps[3].0 >= pace.prompt_tokens(1));
        }
    }

    #[test]
    fn a_machine_that_becomes_slower_is_followed_within_a_few_steps() {
        let mut pace = Pace::new(100 * MS);
        Machine { step_us: 4_000, token_us: 300 }.run(&mut pace, 10, 1);
        let slow = Machine { step_us: 8_000, token_us: 1_500 };
        let steps = slow.run(&mut pace, 8, 1);
        assert!(steps[5..].iter().all(|(_, took)| *took < 100 * MS), "{steps:?}");
        let fast = Machine { step_us: 4_000, token_us: 300 }.run(&mut pace, 12, 1);
        assert!(fast[11].1 > 60 * MS, "{fast:?}");
    }

    #[test]
    fn a_machine_that_cannot_keep_the_target_still_runs_prompts() {
        let mut pace = Pace::new(MS);
        pace.measured(0, 40 * MS);
        assert_eq!(pace.prompt_tokens(1), UNMEASURED_TOKENS);
        pace.measured(UNMEASURED_TOKENS, 400 * MS);
        assert_eq!(pace.prompt_tokens(1), BLOCK_TOKENS);
    }

    #[test]
    fn where_many_answers_take_longer_than_the_target_prompts_still_keep_pace_with_them() {
        let mut pace = Pace::new(100 * MS);
        // 32 answers take 150 ms, which is known of one only.
        pace.measured(0, 5 * MS);
        for _ in 0..10 {
            let tokens = pace.prompt_tokens(32);
            assert!(tokens >= 64, "{tokens}");
            pace.measured(tokens, (150 + tokens as u64) * MS);
        }
    }

    #[test]
    fn what_a_large_batch_took_does_not_make_prompts_seem_free() {
        let mut pace = Pace::new(100 * MS);
        pace.measured(0, 90 * MS);
        pace.measured(64, 60 * MS);
        assert!(pace.prompt_tokens(0) <= 512);
    }
}
