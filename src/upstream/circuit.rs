//! Whether an upstream is worth asking while another can be: one that failed several times running rests for a while.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Open while an upstream rests, half open when it may be tried, closed while it answers.
#[derive(Debug)]
pub(super) struct Circuit {
    failures_max: u32,
    pause: Duration,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Failures in front of a first piece since the last answer that had one.
    failures: u32,
    /// When it may be tried again, where it rests.
    rests_until: Option<Instant>,
}

impl Circuit {
    /// Opens behind so many failures for so long; 0 failures never open it.
    pub(super) fn new(failures_max: u32, pause: Duration) -> Self {
        Self { failures_max, pause, seen: Mutex::default() }
    }

    /// Whether it is asked now. Behind its rest one request is let through, and the next only once that succeeded or
    /// another rest is over: nothing has to be told of a request that nobody waited for.
    pub(super) fn lets_through(&self, now: Instant) -> bool {
        let mut seen = self.seen();
        match seen.rests_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                seen.rests_until = Some(now + self.pause);
                true
            }
        }
    }

    /// It answered, if only to refuse.
    pub(super) fn succeeded(&self) {
        *self.seen() = Seen::default();
    }

    /// It failed in front of a first piece; gives whether that opened the circuit.
    pub(super) fn failed(&self, now: Instant) -> bool {
        let mut seen = self.seen();
        seen.failures = seen.failures.saturating_add(1);
        let opens = self.failures_max > 0 && seen.failures >= self.failures_max;
        if opens {
            seen.rests_until = Some(now + self.pause);
        }
        opens
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn failures_running_open_it_and_behind_its_rest_one_is_let_through() {
        let circuit = Circuit::new(2, Duration::from_secs(10));
        let begin = monotonic();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert!(!circuit.failed(at(0)));
        circuit.succeeded();
        assert!(!circuit.failed(at(0)) && circuit.lets_through(at(0)), "none running");
        assert!(circuit.failed(at(1)) && !circuit.lets_through(at(10)));
        assert!(circuit.lets_through(at(11)) && !circuit.lets_through(at(12)), "one, and no second");
        assert!(circuit.lets_through(at(21)), "nobody told what became of the first");
        assert!(circuit.failed(at(22)) && !circuit.lets_through(at(31)));
        assert!(circuit.lets_through(at(32)));
        circuit.succeeded();
        assert!(circuit.lets_through(at(32)) && circuit.lets_through(at(32)));
        let never = Circuit::new(0, Duration::from_secs(10));
        assert!(!never.failed(at(0)) && !never.failed(at(0)) && never.lets_through(at(0)));
    }
}
