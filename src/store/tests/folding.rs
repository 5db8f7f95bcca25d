//! Folding loses nothing.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::{Error, Journal, SledJournal, Writer, dump, fold, keys};
use super::{Ids, batch};
use crate::conversation::{Event, Recorded};
use crate::ids::{ConversationId, ItemId, ResponseId};

fn run() -> impl Strategy<Value = Vec<Recorded>> {
    let event = (
        proptest::option::of(prop_oneof![0..5_u64, any::<u64>()]),
        prop_oneof![1_700_000_000_000..1_700_000_001_000_u64, any::<u64>()],
        ".{0,8}",
        proptest::collection::vec(any::<u32>(), 0..4),
    );
    (1..1_000_u64, proptest::collection::vec(event, 1..40)).prop_map(|(first, events)| {
        let recorded = |(seq, (number, at_ms, text, tokens))| Recorded {
            seq,
            number,
            at_ms,
            event: Event::OutputDelta {
                response_id: ResponseId::from_bytes([5; 16]),
                item_id: ItemId::from_bytes([6; 16]),
                text,
                tokens,
                logprobs: Vec::new(),
            },
        };
        (first..).zip(events).map(recorded).collect()
    })
}

proptest! {
    #[test]
    fn every_run_comes_back_byte_for_byte(run in run()) {
        let unfolded = fold::unfold(&fold::fold(&run).unwrap()).unwrap();
        prop_assert_eq!(serde_json::to_string(&unfolded).unwrap(), serde_json::to_string(&run).unwrap());
    }

    #[test]
    fn bytes_that_are_no_run_are_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = fold::unfold(&bytes);
    }

    #[test]
    fn a_cut_run_is_an_error(run in run(), cut in 0..1_000_usize) {
        let bytes = fold::fold(&run).unwrap();
        prop_assert!(fold::unfold(&bytes[..cut % bytes.len()]).is_err());
    }
}

#[test]
fn what_is_no_run_is_not_folded() {
    let events = batch(Ids::new().conversation(), 1..=60).events;
    assert!(fold::fold(&events[..10]).is_some());
    assert!(fold::fold(&events).is_none(), "an event that is no delta");
    assert!(fold::fold(&[events[0].clone(), events[2].clone()]).is_none(), "a gap");
    assert!(fold::fold(&[]).is_none());
}

/// Rows of the journal on disk.
fn rows(journal: &SledJournal) -> usize {
    journal.db.scan_prefix([keys::JOURNAL]).count()
}

fn filled(folder: &Path) -> (SledJournal, ConversationId) {
    let journal = SledJournal::open(folder).unwrap();
    let conversation = Ids::new().conversation();
    journal.append(&[batch(conversation, 1..=1000)]).unwrap();
    (journal, conversation)
}

fn fold_all(journal: &SledJournal, conversation: ConversationId, up_to: u64) {
    while journal.fold(conversation, up_to).unwrap() {}
}

#[test]
fn folded_events_are_read_as_if_they_were_not_from_any_cursor() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, conversation) = filled(folder.path());
    let events = batch(conversation, 1..=1000).events;
    let mut before = Vec::new();
    dump(&journal, &mut before).unwrap();
    fold_all(&journal, conversation, 999);
    assert!(rows(&journal) < 60, "{} rows", rows(&journal));
    let check = |journal: &SledJournal| {
        for after in (0..1000).step_by(7).chain([998, 999, 1000]) {
            assert_eq!(journal.read(conversation, after as u64, 90).unwrap(), events[after..1000.min(after + 90)]);
        }
        let mut now = Vec::new();
        dump(journal, &mut now).unwrap();
        assert!(now == before, "the dump differs after folding");
    };
    check(&journal);
    drop(journal);
    let journal = SledJournal::open(folder.path()).unwrap();
    check(&journal);
    journal.append(&[batch(conversation, [1001])]).unwrap();
    assert_eq!(journal.last_seq(conversation).unwrap(), 1001);
}

#[test]
fn folding_again_and_bit_by_bit_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, conversation) = filled(folder.path());
    for up_to in [0, 3, 3, 48, 49, 500, 2_000, 2_000] {
        fold_all(&journal, conversation, up_to);
        assert_eq!(journal.read(conversation, 0, 2_000).unwrap(), batch(conversation, 1..=1000).events);
    }
    fold_all(&journal, Ids::new().conversation(), 10);
}

#[test]
fn damage_in_a_folded_record_is_damage_of_its_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, conversation) = filled(folder.path());
    fold_all(&journal, conversation, 999);
    journal.db.insert(keys::event(conversation, 48, 0), "torn").unwrap();
    let refused = journal.read(conversation, 0, 100).unwrap_err();
    assert!(matches!(refused, Error::Damaged { seq: 1, .. }), "{refused}");
    assert_eq!(journal.read(conversation, 48, 10).unwrap().len(), 10);
}

#[test]
fn a_damaged_conversation_is_not_folded() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, conversation) = filled(folder.path());
    journal.db.insert(keys::event(conversation, 5, 0), "torn").unwrap();
    assert!(matches!(journal.fold(conversation, 999), Err(Error::Damaged { seq: 5, .. })));
    assert_eq!(rows(&journal), 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_every_event_while_the_writer_folds() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(SledJournal::open(folder.path()).unwrap());
    let writer = Writer::start(journal.clone(), 16).unwrap();
    let conversation = Ids::new().conversation();
    let reader = {
        let journal = journal.clone();
        std::thread::spawn(move || {
            let mut seen = 0;
            while seen < 3_000 {
                let events = journal.read(conversation, 0, usize::MAX).unwrap();
                assert!(events.len() >= seen, "events vanished");
                seen = events.len();
                assert!(events.iter().zip(1..).all(|(recorded, seq)| recorded.seq == seq));
            }
        })
    };
    for first in (1..=3_000).step_by(10) {
        writer.append(batch(conversation, first..first + 10)).await.unwrap();
    }
    reader.join().unwrap();
    writer.stop().await;
    assert!(rows(&journal) < 1_500, "the writer folded nothing: {} rows", rows(&journal));
    assert_eq!(journal.read(conversation, 0, 5_000).unwrap(), batch(conversation, 1..=3_000).events);
}
