//! The order of sequences: who is admitted first, and who keeps his blocks when these run out.
//!
//! A sequence's turn is fixed when it comes, as a place on a line. Newcomers stand at the line's present end; a level
//! of priority puts one further to the front, and the last sequence of the same owner one further behind that. The end
//! moves on with every admission: so nobody is overtaken for ever.

/// Admissions that a level of priority is worth; so many others pass between two sequences of one owner.
const STEP: i64 = 32;

/// A place in the order: smaller ones come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    place: i64,
    arrival: u64,
    /// The place without the priority.
    level: i64,
}

/// Gives turns out.
#[derive(Debug, Default)]
pub(super) struct Turns {
    now: i64,
    arrivals: u64,
}

impl Turns {
    /// The turn of a sequence that comes now; `before` is the last one of its owner's sequences that are still here.
    pub(super) fn next(&mut self, priority: i8, before: Option<Turn>) -> Turn {
        let level = before.map_or(self.now, |before| self.now.max(before.level + STEP));
        let place = level - STEP * i64::from(priority);
        self.arrivals += 1;
        Turn { place, arrival: self.arrivals, level }
    }

    /// Somebody was admitted: who comes from now on stands behind him, priorities apart.
    pub(super) fn admitted(&mut self, turn: Turn) {
        self.now = turn.level.max(self.now + 1);
    }
}

impl Turn {
    /// Orders the turns of one owner.
    pub(super) fn level(self) -> i64 {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_priorities_and_with_one_sequence_each_it_is_first_come_first_served() {
        let mut turns = Turns::default();
        let first = turns.next(0, None);
        let second = turns.next(0, None);
        turns.admitted(first);
        assert!(first < second && second < turns.next(0, None));
    }

    #[test]
    fn a_higher_priority_overtakes_a_full_queue_and_a_lower_one_is_overtaken() {
        let mut turns = Turns::default();
        let waiting: Vec<_> = (0..256).map(|_| turns.next(0, None)).collect();
        assert!(turns.next(10, None) < waiting[0]);
        assert!(turns.next(-1, None) > waiting[255]);
        assert!(turns.next(1, None) < waiting[0]);
    }

    #[test]
    fn who_waits_is_overtaken_by_so_many_and_no_more() {
        let mut turns = Turns::default();
        let low = turns.next(-10, None);
        let mut overtaken = 0;
        loop {
            let high = turns.next(10, None);
            if high > low {
                break;
            }
            turns.admitted(high);
            overtaken += 1;
        }
        assert_eq!(overtaken, 20 * STEP);
    }

    #[test]
    fn one_owner_with_many_lets_others_pass_and_keeps_his_own_order() {
        let mut turns = Turns::default();
        let mut own = vec![turns.next(0, None)];
        for _ in 0..100 {
            own.push(turns.next(0, own.last().copied()));
        }
        assert!(own.is_sorted());
        turns.admitted(own[0]);
        let other = turns.next(0, None);
        assert!(own[0] < other && other < own[1]);
        // What one had while nobody else was there is not held against him.
        for turn in &own[1..] {
            turns.admitted(*turn);
        }
        assert!(turns.next(0, None) < turns.next(0, own.last().copied()));
        assert!(turns.next(0, own.last().copied()).level - turns.now == STEP);
    }
}
