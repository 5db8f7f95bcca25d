//! Quotas, and the arithmetic of the last minute. Pure: time comes in as seconds.

use serde::{Deserialize, Serialize};

/// How much may be used; what is absent has no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Requests that use a model, in any minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// Tokens of prompts and answers, in any minute. What was begun is never cut for it: the next request waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Responses at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_responses: Option<u64>,
}

impl Limits {
    /// Whether nothing is bounded.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

const MINUTE: u64 = 60;

/// What was counted in each of the last sixty seconds: bounds may change without changing what is known.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// By the second, modulo the minute.
    counts: [u64; MINUTE as usize],
    newest_s: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { counts: [0; MINUTE as usize], newest_s: 0 }
    }
}

impl Window {
    /// Counts what happens now.
    pub(super) fn add(&mut self, now_s: u64, count: u64) {
        self.forget(now_s);
        let slot = &mut self.counts[(now_s % MINUTE) as usize];
        *slot = slot.saturating_add(count);
    }

    /// What happened in the last minute.
    pub(super) fn sum(&mut self, now_s: u64) -> u64 {
        self.forget(now_s);
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Seconds until there is room for one more below the bound; 0 where there is.
    pub(super) fn wait_s(&mut self, now_s: u64, bound: u64) -> u64 {
        let mut left = self.sum(now_s);
        let mut wait_s = 0;
        while left >= bound && wait_s < MINUTE {
            wait_s += 1;
            // The oldest second leaves first.
            left = left.saturating_sub(self.counts[((now_s + wait_s) % MINUTE) as usize]);
        }
        wait_s
    }

    /// Seconds until nothing of it is left.
    pub(super) fn reset_s(&mut self, now_s: u64) -> u64 {
        self.wait_s(now_s, 1)
    }

    fn forget(&mut self, now_s: u64) {
        let passed = now_s.saturating_sub(self.newest_s).min(MINUTE);
        for second in 0..passed {
            self.counts[((now_s - second) % MINUTE) as usize] = 0;
        }
        self.newest_s = self.newest_s.max(now_s);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_a_minute_old_is_forgotten() {
        let mut window = Window::default();
        for (at, count) in [(100, 3), (130, 4), (159, 1)] {
            window.add(at, count);
        }
        assert_eq!(window.sum(159), 8);
        assert_eq!(window.sum(160), 5);
        assert_eq!(window.sum(190), 1);
        assert_eq!(window.sum(219), 0);
        assert_eq!(window.sum(1_000_000), 0);
    }

    #[test]
    fn one_waits_until_enough_is_forgotten() {
        let mut window = Window::default();
        assert_eq!(window.wait_s(0, 1), 0);
        window.add(10, 5);
        window.add(30, 5);
        assert_eq!(window.wait_s(30, 11), 0);
        assert_eq!(window.wait_s(30, 10), 40, "the first five leave at 70");
        assert_eq!(window.wait_s(30, 5), 60, "and the others at 90");
        assert_eq!(window.reset_s(30), 60);
        assert_eq!(window.reset_s(80), 10);
    }

    proptest! {
        #[test]
        fn whoever_waits_as_long_as_told_gets_in_and_never_sooner(
            steps in prop::collection::vec((0u64..40, 0u64..9), 1..40),
            bound in 1u64..30,
        ) {
            let (mut window, mut now) = (Window::default(), 5);
            let mut all = Vec::new();
            for (passed, count) in steps {
                now += passed;
                window.add(now, count);
                all.push((now, count));
                let counted = |at: u64| -> u64 {
                    all.iter().filter(|(when, _)| when + MINUTE > at).map(|(_, count)| count).sum()
                };
                prop_assert_eq!(window.sum(now), counted(now));
                let wait = window.wait_s(now, bound);
                prop_assert!(counted(now + wait) < bound);
                prop_assert!(wait == 0 || counted(now + wait - 1) >= bound);
            }
        }
    }
}
