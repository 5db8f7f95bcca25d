//! What an engine counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Most sequences of one step; the histogram has a place for each number.
pub(super) const BATCH_MAX: usize = 64;

/// What an engine has done since it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStats {
    /// Steps run.
    pub steps: u64,
    /// `steps_by_sequences[n]`: steps with n sequences in them.
    pub steps_by_sequences: Vec<u64>,
    /// Most sequences in one step.
    pub sequences_max: usize,
    /// Tokens run forward, prompts and answers; of guessed ones those that were right.
    pub tokens_run: u64,
    /// Tokens that came from the KV cache instead.
    pub tokens_cached: u64,
    /// Tokens sampled.
    pub tokens_sampled: u64,
    /// Tokens guessed.
    pub tokens_guessed: u64,
    /// Guessed tokens that were right.
    pub tokens_guessed_right: u64,
    /// How often a sequence gave its blocks back to an older one.
    pub preemptions: u64,
}

/// The counters behind [`EngineStats`].
pub(super) struct Counters {
    steps_by_sequences: [AtomicU64; BATCH_MAX + 1],
    tokens_run: AtomicU64,
    tokens_cached: AtomicU64,
    tokens_sampled: AtomicU64,
    tokens_guessed: AtomicU64,
    tokens_guessed_right: AtomicU64,
    preemptions: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            steps_by_sequences: [const { AtomicU64::new(0) }; BATCH_MAX + 1],
            tokens_run: AtomicU64::new(0),
            tokens_cached: AtomicU64::new(0),
            tokens_sampled: AtomicU64::new(0),
            tokens_guessed: AtomicU64::new(0),
            tokens_guessed_right: AtomicU64::new(0),
            preemptions: AtomicU64::new(0),
        }
    }
}

impl Counters {
    pub(super) fn step(&self, sequences: usize, tokens: usize, preemptions: u64) {
        self.steps_by_sequences[sequences.min(BATCH_MAX)].fetch_add(1, Ordering::Relaxed);
        self.tokens_run.fetch_add(tokens as u64, Ordering::Relaxed);
        self.preemptions.store(preemptions, Ordering::Relaxed);
    }

    pub(super) fn cached(&self, tokens: usize) {
        self.tokens_cached.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Counts what was sampled in one step of a sequence: the right ones of so many guesses, and one more.
    pub(super) fn sampled(&self, tokens: usize, guessed: usize) {
        let right = tokens.saturating_sub(1) as u64;
        self.tokens_sampled.fetch_add(tokens as u64, Ordering::Relaxed);
        self.tokens_guessed.fetch_add(guessed as u64, Ordering::Relaxed);
        self.tokens_guessed_right.fetch_add(right, Ordering::Relaxed);
        self.tokens_run.fetch_add(right, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> EngineStats {
        let steps_by_sequences: Vec<u64> =
            self.steps_by_sequences.iter().map(|steps| steps.load(Ordering::Relaxed)).collect();
        EngineStats {
            steps: steps_by_sequences.iter().sum(),
            sequences_max: steps_by_sequences.iter().rposition(|steps| *steps > 0).unwrap_or(0),
            steps_by_sequences,
            tokens_run: self.tokens_run.load(Ordering::Relaxed),
            tokens_cached: self.tokens_cached.load(Ordering::Relaxed),
            tokens_sampled: self.tokens_sampled.load(Ordering::Relaxed),
            tokens_guessed: self.tokens_guessed.load(Ordering::Relaxed),
            tokens_guessed_right: self.tokens_guessed_right.load(Ordering::Relaxed),
            preemptions: self.preemptions.load(Ordering::Relaxed),
        }
    }
}
