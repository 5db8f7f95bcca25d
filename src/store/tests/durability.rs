//! What is acknowledged is on disk; what is not on disk is not shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::super::{Error, Failure, Journal, MemoryJournal, Record, SledJournal, Unflushed, Writer};
use super::{Ids, batch, copy_folder, with_records};

#[test]
fn events_survive_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let mut ids = Ids::new();
    let (conversation, response) = (ids.conversation(), ids.response());
    for round in 0..5 {
        let journal = SledJournal::open(folder.path()).unwrap();
        assert_eq!(journal.last_seq(conversation).unwrap(), round * 10);
        let records = vec![Record::Response(response), Record::Active(round % 2 == 0)];
        let next = batch(conversation, round * 10 + 1..=round * 10 + 10);
        journal.append(&[with_records(next, records)]).unwrap();
    }
    let journal = SledJournal::open(folder.path()).unwrap();
    assert_eq!(journal.read(conversation, 0, 100).unwrap(), batch(conversation, 1..=50).events);
    assert_eq!(journal.conversation_of_response(response).unwrap(), Some(conversation));
    assert_eq!(journal.active().unwrap(), [conversation]);
}

/// A copy of the folder, made while it is written, is torn somewhere. It must open and hold everything that was
/// acknowledged before the copy began, batches whole. Each round has its own short log, so that no segment is
/// used twice while it is copied.
#[test]
fn a_torn_copy_holds_everything_acknowledged_and_batches_are_whole() {
    for round in 0..6 {
        check_torn_copy(round * 37);
    }
}

const BATCH: u64 = 5;

fn check_torn_copy(copy_at: u64) {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(SledJournal::open(folder.path()).unwrap());
    let writer = Writer::start(journal, 64).unwrap();
    let mut ids = Ids::new();
    let conversations: Vec<_> = (0..8).map(|_| ids.conversation()).collect();
    let acknowledged: Vec<_> = conversations.iter().map(|_| AtomicU64::new(0)).collect();
    let told = || -> Vec<_> { acknowledged.iter().map(|last| last.load(Ordering::SeqCst)).collect() };
    let copied = AtomicBool::new(false);
    let copy = tempfile::tempdir().unwrap();
    let before = std::thread::scope(|scope| {
        for (conversation, acknowledged) in conversations.iter().zip(&acknowledged) {
            let (writer, copied) = (writer.clone(), &copied);
            scope.spawn(move || {
                let mut last = 0;
                while !copied.load(Ordering::SeqCst) {
                    writer.append_blocking(batch(*conversation, last + 1..=last + BATCH)).unwrap();
                    last += BATCH;
                    acknowledged.store(last, Ordering::SeqCst);
                }
            });
        }
        while told().iter().sum::<u64>() < copy_at {
            std::thread::yield_now();
        }
        let before = told();
        copy_folder(folder.path(), copy.path());
        copied.store(true, Ordering::SeqCst);
        before
    });
    let torn = SledJournal::open(copy.path()).unwrap();
    for (conversation, before) in conversations.iter().zip(before) {
        let events = torn.read(*conversation, 0, usize::MAX).unwrap();
        let found = events.len() as u64;
        assert!(found >= before, "{found} of {before} acknowledged events");
        assert_eq!(found % BATCH, 0, "a batch was cut");
        assert_eq!(events, batch(*conversation, 1..=found).events);
    }
}

#[test]
fn a_failed_flush_shows_nothing_and_the_crash_settles_it() {
    for (unflushed, expected) in [(Unflushed::Lost, 1), (Unflushed::Kept, 3)] {
        let journal = MemoryJournal::new();
        let conversation = Ids::new().conversation();
        journal.append(&[batch(conversation, [1])]).unwrap();
        journal.fail(Failure::Flush);
        assert!(matches!(journal.append(&[batch(conversation, 2..=3)]), Err(Error::Unavailable(_))));
        assert_eq!(journal.last_seq(conversation).unwrap(), 1);
        assert!(journal.append(&[batch(conversation, [2])]).is_err(), "a failed journal takes nothing more");
        journal.crash(unflushed);
        assert_eq!(journal.last_seq(conversation).unwrap(), expected);
        journal.append(&[batch(conversation, [expected + 1])]).unwrap();
    }
}
