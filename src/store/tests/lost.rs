//! A store that lost what was acknowledged does not start as if nothing had happened; any other does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::super::{Batch, Error, Journal, Record, SledJournal, keys};
use super::{Ids, batch, copy_folder, with_records};
use crate::ids::{ConversationId, ResponseId};

/// Enough for several of sled's segments.
const CONVERSATIONS: usize = 60;
const EVENTS: u64 = 150;

/// Conversations, and those that were deleted.
struct Written {
    kept: Vec<(ConversationId, ResponseId)>,
    deleted: Vec<(ConversationId, ResponseId)>,
}

/// One conversation after the other, each in several groups, half of them folded and every tenth deleted.
fn write(folder: &Path) -> Written {
    let journal = SledJournal::open(folder).unwrap();
    let mut ids = Ids::new();
    let mut written = Written { kept: Vec::new(), deleted: Vec::new() };
    for index in 0..CONVERSATIONS {
        let ids @ (conversation, response) = &(ids.conversation(), ids.response());
        let records = |active| vec![Record::Response(*response), Record::Active(active)];
        journal.append(&[with_records(batch(*conversation, 1..=50), records(true))]).unwrap();
        journal.append(&[batch(*conversation, 51..=100)]).unwrap();
        journal.append(&[with_records(batch(*conversation, 101..=EVENTS), records(false))]).unwrap();
        if index % 2 == 0 {
            while journal.fold(*conversation, EVENTS).unwrap() {}
        }
        if index % 10 == 5 {
            journal.append(&[Batch::deletion(*conversation)]).unwrap();
            // Some purges are left unfinished.
            while index % 20 == 5 && journal.purge().unwrap() {}
            written.deleted.push(*ids);
        } else {
            written.kept.push(*ids);
        }
    }
    written
}

/// What cannot be read must say so; nothing may be missing in silence.
fn check(journal: &SledJournal, written: &Written) {
    if let Ok(Ok(active)) = catch_unwind(AssertUnwindSafe(|| journal.active())) {
        assert!(active.is_empty(), "an ended response is running again");
    }
    for (conversation, response) in &written.kept {
        let read = catch_unwind(AssertUnwindSafe(|| journal.read(*conversation, 0, usize::MAX)));
        if let Ok(Ok(events)) = read {
            assert_eq!(events.len() as u64, EVENTS, "events are missing in silence");
        }
        let found = catch_unwind(AssertUnwindSafe(|| journal.conversation_of_response(*response)));
        if let Ok(Ok(found)) = found {
            assert_eq!(found, Some(*conversation), "a response is missing in silence");
        }
    }
    for (conversation, response) in &written.deleted {
        let read = catch_unwind(AssertUnwindSafe(|| journal.read(*conversation, 0, usize::MAX)));
        if let Ok(Ok(events)) = read {
            assert_eq!(events, [], "a deleted conversation is back in silence");
        }
        let found = catch_unwind(AssertUnwindSafe(|| journal.conversation_of_response(*response)));
        if let Ok(Ok(found)) = found {
            assert_eq!(found, None, "a deleted response is back in silence");
        }
    }
}

pub(super) fn flip(folder: &Path, per_mille: usize) {
    let path = folder.join("journal/db");
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end / 1000 * per_mille] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_flipped_bit_in_an_older_record_is_never_passed_over_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(folder.path());
    let mut refused = 0;
    for started in ["once", "twice"] {
        for per_mille in (20..1000).step_by(35) {
            let copy = tempfile::tempdir().unwrap();
            copy_folder(folder.path(), copy.path());
            flip(copy.path(), per_mille);
            match SledJournal::open(copy.path()) {
                Err(Error::Lost(_) | Error::StoreDamaged(_)) => refused += 1,
                Err(error) => panic!("started {started}, at {per_mille}: {error}"),
                Ok(journal) => check(&journal, &written),
            }
        }
        // A start leaves a snapshot, and what lies before it is not read by the next recovery: how many of the second
        // round are refused depends on when the snapshot was taken.
        check(&SledJournal::open(folder.path()).unwrap(), &written);
    }
    assert!(refused > 0, "all were opened");
}

/// A store whose log is cut in its last segment.
fn cut(folder: &Path) -> Error {
    let journal = SledJournal::open(folder).unwrap();
    let mut ids = Ids::new();
    for _ in 0..20 {
        journal.append(&[batch(ids.conversation(), 1..=10)]).unwrap();
    }
    drop(journal);
    flip(folder, 500);
    SledJournal::open(folder).unwrap_err()
}

#[test]
fn a_cut_log_is_refused_until_its_loss_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let refused = cut(folder.path());
    let count = folder.path().join("acknowledged");
    let text = refused.to_string();
    assert!(matches!(refused, Error::Lost(_)), "{text}");
    assert!(text.contains("of 20 acknowledged writes are missing"), "{text}");
    assert!(text.contains("repair --apply"), "{text}");
    assert_eq!(SledJournal::open(folder.path()).unwrap_err(), refused, "a second start forgets the loss");
    std::fs::remove_file(count).unwrap();
    let conversation = ConversationId::from_bytes([9; 16]);
    SledJournal::open(folder.path()).unwrap().append(&[batch(conversation, [1])]).unwrap();
    assert_eq!(SledJournal::open(folder.path()).unwrap().last_seq(conversation).unwrap(), 1);
}

/// A kill between the sync and the count, a torn count, none, and a store that an older version made.
#[test]
fn what_says_less_than_the_journal_is_no_loss() {
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("acknowledged");
    let conversation = Ids::new().conversation();
    let journal = SledJournal::open(folder.path()).unwrap();
    let records = vec![Record::Active(true)];
    journal.append(&[with_records(batch(conversation, [1]), records)]).unwrap();
    let behind = std::fs::read(&count).unwrap();
    journal.append(&[batch(conversation, [2])]).unwrap();
    assert_ne!(std::fs::read(&count).unwrap(), behind, "an append is not counted");
    drop(journal);
    for (next, bytes) in (3..).zip([Some(behind.as_slice()), Some(&behind[..7]), Some(&[7; 40]), Some(&[]), None]) {
        match bytes {
            Some(bytes) => std::fs::write(&count, bytes).unwrap(),
            None => std::fs::remove_file(&count).unwrap(),
        }
        let journal = SledJournal::open(folder.path()).unwrap();
        journal.append(&[batch(conversation, [next])]).unwrap();
        drop(journal);
        let journal = SledJournal::open(folder.path()).unwrap();
        assert_eq!(journal.last_seq(conversation).unwrap(), next);
    }
    let journal = SledJournal::open(folder.path()).unwrap();
    journal.db.remove(keys::TALLY).unwrap();
    journal.db.flush().unwrap();
    drop(journal);
    std::fs::remove_file(&count).unwrap();
    for next in 8..10 {
        SledJournal::open(folder.path()).unwrap().append(&[batch(conversation, [next])]).unwrap();
    }
}

#[test]
fn a_row_that_left_the_index_is_noticed_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    let mut ids = Ids::new();
    let conversation = ids.conversation();
    journal.append(&[batch(conversation, 1..=3), batch(ids.conversation(), 1..=3)]).unwrap();
    journal.db.remove(keys::head(conversation)).unwrap();
    journal.db.flush().unwrap();
    drop(journal);
    let refused = SledJournal::open(folder.path()).unwrap_err().to_string();
    assert!(refused.contains("1 rows where 2 were written"), "{refused}");
}
