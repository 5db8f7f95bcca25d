//! Damage: found where it is, and nowhere else.

use std::path::Path;

use super::super::codec;
use super::super::{Error, Journal, KeyScope, Record, SledJournal, keys, migrate};
use super::{Ids, batch, key_record, with_records};
use crate::ids::ConversationId;

/// Opens a store with two conversations of nine events.
fn store(folder: &Path) -> (SledJournal, ConversationId, ConversationId) {
    let journal = SledJournal::open(folder).unwrap();
    let mut ids = Ids::new();
    let (first, second) = (ids.conversation(), ids.conversation());
    journal.append(&[batch(first, 1..=9), batch(second, 1..=9)]).unwrap();
    (journal, first, second)
}

#[test]
fn damage_sets_one_conversation_aside_and_names_the_event() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, hurt, other) = store(folder.path());
    let key = keys::event(hurt, 5, 0);
    let good = journal.db.get(&key).unwrap().unwrap().to_vec();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let elsewhere = journal.db.get(keys::event(hurt, 4, 0)).unwrap().unwrap().to_vec();
    let sealed = |body: &[u8]| codec::seal(&key, body);
    let cases = [
        (flipped, "checksum"),
        (vec![1, 2], "too short"),
        (elsewhere, "checksum"),
        (sealed(&[1, 0, 1]), "header"),
        (sealed(&[1, 0, 1, 0, 0, 0, 2, b'{', b'}']), "JSON"),
        (sealed(&[1, 0, 1, 0, 0, 0, 3, b'{', b'}']), "part 1 is missing"),
        (sealed(&[1, 0, 1, 0, 0, 0, 1, b'{', b'}']), "2 bytes instead of 1"),
        (sealed(&[1, 9, 9, 0, 0, 0, 2, b'{', b'}']), "newer"),
        (sealed(&[7, 0, 1, 0, 0, 0, 2, b'{', b'}']), "form 7"),
    ];
    for (value, expected) in cases {
        journal.db.insert(&key, value).unwrap();
        match journal.read(hurt, 0, 100).unwrap_err() {
            Error::Damaged { conversation, seq, why } => {
                assert_eq!((conversation, seq), (hurt, 5));
                assert!(why.contains(expected), "{why:?} does not say {expected:?}");
            }
            error => panic!("{error}"),
        }
        assert_eq!(journal.read(hurt, 0, 4).unwrap().len(), 4, "what lies before can be read");
        assert_eq!(journal.read(other, 0, 100).unwrap().len(), 9);
    }
    journal.db.insert(&key, good).unwrap();
    assert_eq!(journal.read(hurt, 0, 100).unwrap().len(), 9);
}

#[test]
fn a_missing_event_is_damage_in_the_middle_and_at_the_end() {
    for missing in [1, 5, 9] {
        let folder = tempfile::tempdir().unwrap();
        let (journal, hurt, other) = store(folder.path());
        journal.db.remove(keys::event(hurt, missing, 0)).unwrap();
        match journal.read(hurt, 0, 100).unwrap_err() {
            Error::Damaged { conversation, seq, .. } => assert_eq!((conversation, seq), (hurt, missing)),
            error => panic!("{error}"),
        }
        assert_eq!(journal.read(other, 0, 100).unwrap().len(), 9);
    }
}

#[test]
fn a_damaged_head_refuses_reads_and_appends_of_its_conversation_only() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, hurt, other) = store(folder.path());
    journal.db.insert(keys::head(hurt), vec![0; 12]).unwrap();
    assert!(matches!(journal.read(hurt, 0, 1), Err(Error::Damaged { .. })));
    assert!(matches!(journal.append(&[batch(hurt, [10])]), Err(Error::Damaged { .. })));
    journal.append(&[batch(other, [10])]).unwrap();
}

#[test]
fn a_damaged_index_record_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    let mut ids = Ids::new();
    let (conversation, response) = (ids.conversation(), ids.response());
    let record = key_record(conversation, response, "k");
    let records = vec![Record::Response(response), Record::Key(record.clone())];
    journal.append(&[with_records(batch(conversation, [1]), records)]).unwrap();
    let scope: KeyScope = record.scope;
    for key in [keys::response(response), keys::idempotency(&scope)] {
        journal.db.insert(key, "nonsense").unwrap();
    }
    assert!(matches!(journal.conversation_of_response(response), Err(Error::StoreDamaged(_))));
    assert!(matches!(journal.key(&scope), Err(Error::StoreDamaged(_))));
    assert_eq!(journal.read(conversation, 0, 10).unwrap().len(), 1);
}

#[test]
fn a_store_of_a_newer_schema_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, ..) = store(folder.path());
    let found = migrate::SCHEMA + 1;
    let value = codec::seal(keys::SCHEMA, &found.to_be_bytes());
    journal.db.insert(keys::SCHEMA, value).unwrap();
    drop(journal);
    let refused = SledJournal::open(folder.path()).unwrap_err();
    assert_eq!(refused, Error::NewerSchema { found, known: migrate::SCHEMA });
    assert!(refused.to_string().contains("newer midstream"), "{refused}");
}

#[test]
fn a_half_written_snapshot_does_not_keep_the_store_from_opening() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, first, _) = store(folder.path());
    drop(journal);
    let unfinished = folder.path().join("journal/snap.7FFFFFFFFFFFFFFF.generating");
    std::fs::write(&unfinished, "torn").unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    assert_eq!(journal.read(first, 0, 100).unwrap().len(), 9);
    assert!(!unfinished.exists());
}

#[test]
fn a_damaged_snapshot_is_set_aside_and_the_log_read_instead() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, first, second) = store(folder.path());
    drop(journal);
    let snapshot = folder.path().join("journal/snap.7FFFFFFFFFFFFFFF");
    std::fs::write(&snapshot, "this is no snapshot of sled's").unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    for conversation in [first, second] {
        assert_eq!(journal.read(conversation, 0, 100).unwrap().len(), 9);
    }
    assert!(!snapshot.exists());
    assert!(folder.path().join("journal/damaged-snap.7FFFFFFFFFFFFFFF").exists());
}

#[test]
fn a_folder_that_lost_its_journal_is_not_opened_as_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    drop(store(folder.path()));
    std::fs::remove_file(folder.path().join("journal/db")).unwrap();
    assert!(matches!(SledJournal::open(folder.path()), Err(Error::StoreDamaged(_))));
    std::fs::remove_dir_all(folder.path().join("journal")).unwrap();
    assert!(matches!(SledJournal::open(folder.path()), Err(Error::StoreDamaged(_))));
    std::fs::create_dir(folder.path().join("journal")).unwrap();
    std::fs::write(folder.path().join("journal/db"), "").unwrap();
    assert!(matches!(SledJournal::open(folder.path()), Err(Error::StoreDamaged(_))));
}

#[test]
fn a_crash_in_the_first_start_does_not_keep_the_second_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("journal/blobs")).unwrap();
    std::fs::write(folder.path().join("journal/db"), "").unwrap();
    SledJournal::open(folder.path()).unwrap();
}

#[test]
fn a_second_process_is_told_who_has_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (_journal, ..) = store(folder.path());
    let refused = SledJournal::open(folder.path()).unwrap_err();
    assert_eq!(refused, Error::InUse(folder.path().to_owned()));
    assert!(refused.to_string().contains("another midstream runs on this data folder"));
}
