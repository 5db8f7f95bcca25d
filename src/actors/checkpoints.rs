//! States of a conversation on its way, so that a reader far behind the beginning need not fold everything before it.

use std::sync::Arc;

use crate::conversation::State;

/// Events between two checkpoints, at least.
const STEP_EVENTS: u64 = 1024;

/// Most checkpoints of one conversation; then every second is given up.
const CHECKPOINTS_MAX: usize = 32;

/// Earlier states, oldest first. Cheap to clone.
#[derive(Clone)]
pub(super) struct Checkpoints {
    states: Vec<Arc<State>>,
    step: u64,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { states: Vec::new(), step: STEP_EVENTS }
    }
}

impl Checkpoints {
    /// Keeps the state if the last one kept lies far enough back.
    pub(super) fn note(&mut self, state: &State) {
        let last = self.states.last().map_or(0, |last| last.last_seq);
        if state.last_seq < last + self.step {
            return;
        }
        self.states.push(Arc::new(state.clone()));
        if self.states.len() > CHECKPOINTS_MAX {
            // The newest stays: most readers come back to where they just were.
            let odd = self.states.len() % 2;
            let mut place = 0;
            self.states.retain(|_| {
                place += 1;
                place % 2 == odd
            });
            self.step *= 2;
        }
    }

    /// The latest state that lies no further than behind `after`.
    pub(super) fn before(&self, after: u64) -> State {
        let place = self.states.partition_point(|state| state.last_seq <= after);
        place.checked_sub(1).map(|place| State::clone(&self.states[place])).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64) -> State {
        State { last_seq: seq, ..State::default() }
    }

    #[test]
    fn the_state_to_read_on_from_is_never_behind_the_cursor_and_never_far_before_it() {
        let mut checkpoints = Checkpoints::default();
        assert_eq!(checkpoints.before(9).last_seq, 0);
        (0..200_000).step_by(300).for_each(|seq| checkpoints.note(&at(seq)));
        assert!(checkpoints.states.len() <= CHECKPOINTS_MAX);
        for after in (0..200_000).step_by(777) {
            let found = checkpoints.before(after).last_seq;
            assert!(found <= after && after - found <= 2 * checkpoints.step, "{after}: {found}");
        }
    }
}
