//! Whether a team does better without its workers for a while, because other programs have their processors.
//! Pure: what time it is, since the team began, it is told. And it must never change a result: it says who computes,
//! not what.

use std::time::Duration;

/// A worker that keeps the caller waiting for longer, and for longer than its share of the job took, does not work all
/// that time: its processor was taken from it in the middle of its piece.
const HELD_UP_MIN: Duration = Duration::from_micros(500);
/// How long the caller then goes on alone. A processor that is shared is given away for some milliseconds at a time.
const ALONE_MIN: Duration = Duration::from_millis(20);
/// The same when it has happened again and again: two shares in a hundred may be lost on finding out that it still
/// does.
const ALONE_MAX: Duration = Duration::from_millis(640);

/// What a team has seen of other programs.
#[derive(Default)]
pub(crate) struct Crowd {
    /// The last time alone, and its end.
    alone: Option<(Duration, Duration)>,
}

impl Crowd {
    /// Whether the caller should work alone.
    pub(crate) fn is_dense(&self, now: Duration) -> bool {
        self.alone.is_some_and(|(_, end)| now < end)
    }

    /// Takes in how long the caller's own share of a job took, how many others had one, and how long it then waited for
    /// them. Alone it would have done their shares too: where that takes longer than the wait, it had better wait.
    pub(crate) fn note(&mut self, share: Duration, others: u32, waited: Duration, now: Duration) {
        if waited < HELD_UP_MIN.max(share.saturating_mul(others)) {
            return;
        }
        let length = match self.alone {
            // Soon after the last time, so it was too short.
            Some((length, end)) if now < end + length => (2 * length).min(ALONE_MAX),
            _ => ALONE_MIN,
        };
        self.alone = Some((length, now + length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Duration = Duration::from_micros(100);
    const HELD_UP: Duration = Duration::from_millis(3);

    #[test]
    fn a_worker_that_only_works_is_waited_for_and_one_that_was_held_up_is_left_out_for_a_while() {
        let begin = Duration::from_secs(1);
        let mut crowd = Crowd::default();
        crowd.note(SHARE, 1, SHARE, begin);
        crowd.note(2 * HELD_UP, 1, HELD_UP, begin);
        assert!(!crowd.is_dense(begin));
        crowd.note(SHARE, 1, HELD_UP, begin);
        assert!(crowd.is_dense(begin) && crowd.is_dense(begin + ALONE_MIN / 2));
        assert!(!crowd.is_dense(begin + ALONE_MIN));
    }

    #[test]
    fn a_large_team_is_worth_waiting_for() {
        let mut crowd = Crowd::default();
        crowd.note(SHARE, 31, HELD_UP, Duration::ZERO);
        assert!(!crowd.is_dense(Duration::ZERO), "alone takes 3.1 ms, and the wait was 3");
        crowd.note(SHARE, 7, HELD_UP, Duration::ZERO);
        assert!(crowd.is_dense(Duration::ZERO));
    }

    #[test]
    fn a_neighbour_that_stays_costs_ever_less_and_one_that_has_gone_is_forgotten() {
        let mut now = Duration::ZERO;
        let mut crowd = Crowd::default();
        let mut times = Vec::new();
        for _ in 0..8 {
            crowd.note(SHARE, 1, HELD_UP, now);
            let begin = now;
            while crowd.is_dense(now) {
                now += Duration::from_millis(1);
            }
            times.push(u64::try_from(now.saturating_sub(begin).as_millis()).unwrap());
        }
        assert_eq!(times, [20, 40, 80, 160, 320, 640, 640, 640]);
        now += ALONE_MAX;
        crowd.note(SHARE, 1, HELD_UP, now);
        assert!(crowd.is_dense(now) && !crowd.is_dense(now + ALONE_MIN));
    }
}
