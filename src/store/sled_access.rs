//! Asking sled, where a part of its file cannot be read.
//!
//! sled tidies while it works: whoever splits or joins a leaf, be it to read it, moves a page of a sparse segment
//! elsewhere as well. A page that cannot be read cannot be moved, and the error of that comes out of a read or a write
//! of something else, whose own work on the leaf is done by then. sled tries to move each page once. So what failed is
//! asked again: what lies in other pages is answered, and what cannot be read fails each time, at the same place.
//!
//! **Invariant:** only a page that holds what was asked for makes the answer an error. After a failed try of a batch, a
//! crash in front of the next may leave it in part, as one in front of its flush may not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// How often in a row the same place must fail: one page lies in several segments, and may be moved out of each.
const TRIES_AT_ONE_PLACE: usize = 4;

/// Tries in all: more than there are pages that sled could want to move for one question.
const TRIES_MAX: usize = 4096;

/// sled's error for bytes that cannot be read, without their place.
const UNREADABLE: sled::Error = sled::Error::Corruption { at: None, bt: () };

/// Asks sled, and remembers whether it ever met what cannot be read.
#[derive(Debug, Default)]
pub(super) struct Access {
    met_unreadable: AtomicBool,
}

impl Access {
    /// Whether something could not be read; it cannot be changed either.
    pub(super) fn met_unreadable(&self) -> bool {
        self.met_unreadable.load(Ordering::Relaxed)
    }

    /// What sled answers. It asserts in places where it could report damage.
    pub(super) fn read<T>(&self, mut read: impl FnMut() -> sled::Result<T>) -> sled::Result<T> {
        self.ask(|| catch_unwind(AssertUnwindSafe(&mut read)).unwrap_or(Err(UNREADABLE)))
    }

    /// The next row of a scan.
    pub(super) fn next(&self, rows: &mut sled::Iter) -> sled::Result<Option<(sled::IVec, sled::IVec)>> {
        self.read(|| rows.next().transpose())
    }

    /// Applies a batch, all of it. What it says is the same however often it is said.
    pub(super) fn apply(&self, db: &sled::Db, batch: &sled::Batch) -> sled::Result<()> {
        self.ask(|| db.apply_batch(batch.clone()))
    }

    fn ask<T>(&self, mut ask: impl FnMut() -> sled::Result<T>) -> sled::Result<T> {
        let (mut last, mut tries_there) = (UNREADABLE, 0);
        for _ in 0..TRIES_MAX {
            let error = match ask() {
                Err(error @ sled::Error::Corruption { .. }) => error,
                answer => return answer,
            };
            self.met_unreadable.store(true, Ordering::Relaxed);
            tries_there = if error == last { tries_there + 1 } else { 1 };
            if tries_there == TRIES_AT_ONE_PLACE {
                return Err(error);
            }
            last = error;
        }
        Err(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_beside_the_question_is_passed_over_and_what_always_fails_is_told() {
        let access = Access::default();
        assert_eq!(access.read(|| Ok(7)), Ok(7));
        assert!(!access.met_unreadable());
        let mut failures = 3;
        let answer = access.read(|| {
            failures -= 1;
            match failures {
                2 => Err(UNREADABLE),
                1 => panic!("as sled does"),
                _ => Ok(7),
            }
        });
        assert_eq!(answer, Ok(7));
        assert!(access.met_unreadable(), "it is known all the same");
        let mut tries = 0;
        let answer = access.read(|| {
            tries += 1;
            Err::<(), _>(UNREADABLE)
        });
        assert_eq!((answer, tries), (Err(UNREADABLE), TRIES_AT_ONE_PLACE));
    }

    #[test]
    fn another_error_is_told_at_once() {
        let mut tries = 0;
        let answer = Access::default().read(|| {
            tries += 1;
            Err::<(), _>(sled::Error::Unsupported("no".into()))
        });
        assert!(answer.is_err() && tries == 1);
    }
}
