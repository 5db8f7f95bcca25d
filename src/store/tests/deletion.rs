//! Deletion: everything of a conversation is unreadable at once, and its bytes go in the end, whatever is cut short.

use std::path::Path;
use std::sync::Arc;

use super::super::sled_purge::PART_ROWS;
use super::super::{
    Batch, Epoch, Error, Journal, KeyRecord, KeyScope, KeyedAnswer, MemoryJournal, Operation, Record, SledJournal,
    Writer, keys,
};
use super::{Ids, batch, copy_folder, key_record, with_records};
use crate::error::Code;
use crate::ids::{ConversationId, InterventionId, ResponseId};

/// A conversation and everything that can be looked up in it.
struct Filled {
    conversation: ConversationId,
    response: ResponseId,
    intervention: InterventionId,
    keys: Vec<KeyRecord>,
    events: u64,
}

fn fill(journal: &dyn Journal, ids: &mut Ids, events: u64) -> Filled {
    let (conversation, response) = (ids.conversation(), ids.response());
    let intervention = ids.intervention();
    let own = key_record(conversation, response, "k");
    // As the key of a request that names no conversation and opens one.
    let opened = KeyRecord {
        scope: KeyScope {
            conversation: None,
            operation: Operation::Open,
            key: format!("{conversation}"),
            ..own.scope.clone()
        },
        answer: KeyedAnswer::Opened { conversation },
        ..own.clone()
    };
    let records = vec![
        Record::Response(response),
        Record::Intervention(intervention),
        Record::Active(true),
        Record::Epoch(Epoch { epoch: 1, rewound_seq: 1 }),
        Record::Key(own.clone()),
        Record::Key(opened.clone()),
    ];
    journal.append(&[with_records(batch(conversation, 1..=events), records)]).unwrap();
    Filled { conversation, response, intervention, keys: vec![own, opened], events }
}

fn assert_there(journal: &dyn Journal, filled: &Filled) {
    let id = filled.conversation;
    assert_eq!(journal.read(id, 0, usize::MAX).unwrap(), batch(id, 1..=filled.events).events);
    assert_eq!(journal.conversation_of_response(filled.response).unwrap(), Some(id));
    assert_eq!(journal.conversation_of_intervention(filled.intervention).unwrap(), Some(id));
    for key in &filled.keys {
        assert_eq!(journal.key(&key.scope).unwrap().as_ref(), Some(key));
    }
    assert!(journal.active().unwrap().contains(&id));
    assert_eq!(journal.epoch(id).unwrap().epoch, 1);
    assert!(!journal.is_deleted(id).unwrap());
}

fn assert_gone(journal: &dyn Journal, filled: &Filled) {
    let id = filled.conversation;
    assert_eq!(journal.read(id, 0, usize::MAX).unwrap(), []);
    assert_eq!((journal.last_seq(id).unwrap(), journal.last_at_ms(id).unwrap()), (0, 0));
    assert_eq!(journal.event_bytes(id, 1).unwrap(), 0);
    assert_eq!(journal.conversation_of_response(filled.response).unwrap(), None);
    assert_eq!(journal.conversation_of_intervention(filled.intervention).unwrap(), None);
    for key in &filled.keys {
        assert_eq!(journal.key(&key.scope).unwrap(), None);
    }
    assert!(!journal.active().unwrap().contains(&id));
    assert!(!journal.conversations(None, usize::MAX).unwrap().contains(&id));
    assert_eq!(journal.epoch(id).unwrap(), Epoch::default());
    journal
        .records(&mut |at, record| {
            assert!(at != id, "{record:?} is still shown");
            Ok(())
        })
        .unwrap();
}

/// Rows that are left, the store's own aside.
fn rows_left(journal: &SledJournal) -> usize {
    journal.db.iter().filter(|row| row.as_ref().unwrap().0[0] != keys::SCHEMA[0]).count()
}

fn purge_all(journal: &SledJournal) {
    while journal.purge().unwrap() {}
}

#[test]
fn a_deleted_conversation_is_unreadable_at_once_and_the_others_are_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    for journal in [&SledJournal::open(folder.path()).unwrap() as &dyn Journal, &MemoryJournal::new()] {
        let mut ids = Ids::new();
        let (gone, kept) = (fill(journal, &mut ids, 60), fill(journal, &mut ids, 60));
        // The last events of a deletion come with it and go with it.
        let last = with_records(batch(gone.conversation, [61]), vec![Record::Deleted]);
        journal.append(&[last]).unwrap();
        assert_gone(journal, &gone);
        assert!(journal.is_deleted(gone.conversation).unwrap());
        assert_there(journal, &kept);
        while journal.purge().unwrap() {
            assert_gone(journal, &gone);
            assert_there(journal, &kept);
        }
        assert_gone(journal, &gone);
        assert_there(journal, &kept);
        let late = journal.append(&[batch(gone.conversation, [1])]).unwrap_err();
        assert_eq!(late, Error::Deleted(gone.conversation), "the purge forgets what it purged");
    }
}

#[test]
fn a_late_append_to_a_deleted_conversation_is_refused_and_says_not_found() {
    let folder = tempfile::tempdir().unwrap();
    for journal in [&SledJournal::open(folder.path()).unwrap() as &dyn Journal, &MemoryJournal::new()] {
        let mut ids = Ids::new();
        let gone = fill(journal, &mut ids, 5);
        let id = gone.conversation;
        let grouped = [Batch::deletion(id), batch(id, [6])];
        assert_eq!(journal.append(&grouped).unwrap_err(), Error::Deleted(id), "in the same group");
        assert_there(journal, &gone);
        journal.append(&[Batch::deletion(id)]).unwrap();
        for late in [batch(id, [6]), batch(id, [1]), with_records(batch(id, []), vec![Record::Active(true)])] {
            let refused = journal.append(&[late]).unwrap_err();
            assert_eq!(refused.code(), Code::ConversationNotFound, "{refused}");
        }
        assert_eq!(journal.append(&[Batch::deletion(id)]).unwrap_err(), Error::Deleted(id), "a second deletion");
        assert_gone(journal, &gone);
    }
}

/// The folder as a crash leaves it before the deletion, behind it, and behind each part of the purge.
#[test]
fn an_interrupted_deletion_is_finished_by_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    let mut ids = Ids::new();
    let (gone, kept) = (fill(&journal, &mut ids, 1_300), fill(&journal, &mut ids, 40));
    let only_kept = {
        let rows = journal.db.len();
        let of_gone = journal.db.scan_prefix([[keys::JOURNAL].as_slice(), &gone.conversation.to_bytes()].concat());
        // Head, epoch, active, response, intervention, two keys; and two rows of the store's own.
        rows - of_gone.count() - 7 - 2
    };
    let copies = tempfile::tempdir().unwrap();
    let mut steps = 0;
    let mut copy = |journal: &SledJournal| {
        journal.flush().unwrap();
        steps += 1;
        copy_folder(folder.path(), &copies.path().join(steps.to_string()));
    };
    copy(&journal);
    journal.append(&[Batch::deletion(gone.conversation)]).unwrap();
    copy(&journal);
    while journal.purge().unwrap() {
        copy(&journal);
    }
    copy(&journal);
    assert!(steps > 5, "the purge was not cut into parts");
    drop(journal);
    for step in 1..=steps {
        let journal = SledJournal::open(copies.path().join(step.to_string())).unwrap();
        assert_there(&journal, &kept);
        if step == 1 {
            assert_there(&journal, &gone);
            continue;
        }
        assert_gone(&journal, &gone);
        purge_all(&journal);
        assert_eq!(rows_left(&journal), only_kept, "after step {step}");
        assert_gone(&journal, &gone);
        drop(journal);
        // What was acknowledged is still counted right.
        let journal = SledJournal::open(copies.path().join(step.to_string())).unwrap();
        assert_there(&journal, &kept);
        assert!(!journal.purge().unwrap(), "a finished purge begins again");
    }
}

#[test]
fn no_part_of_a_purge_removes_many_rows_however_many_conversations_go() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    let mut ids = Ids::new();
    // More than fit into a part of each kind of row, and one with more events than that.
    let mut gone: Vec<_> = (0..PART_ROWS + 50).map(|_| fill(&journal, &mut ids, 0)).collect();
    gone.push(fill(&journal, &mut ids, PART_ROWS as u64 + 50));
    let deletions: Vec<_> = gone.iter().map(|filled| Batch::deletion(filled.conversation)).collect();
    journal.append(&deletions).unwrap();
    let mut before = rows_left(&journal);
    while journal.purge().unwrap() {
        let left = rows_left(&journal);
        assert!(before - left <= PART_ROWS, "a part removed {} rows", before - left);
        before = left;
    }
    assert_eq!(rows_left(&journal), 0);
}

#[test]
fn damaged_conversations_can_be_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    let mut ids = Ids::new();
    let (headless, torn) = (fill(&journal, &mut ids, 9), fill(&journal, &mut ids, 9));
    let key = keys::head(headless.conversation);
    journal.db.insert(key, "torn").unwrap();
    journal.db.insert(keys::event(torn.conversation, 4, 0), "torn").unwrap();
    for filled in [&headless, &torn] {
        journal.append(&[Batch::deletion(filled.conversation)]).unwrap();
        assert_gone(&journal, filled);
    }
    purge_all(&journal);
    assert_eq!(rows_left(&journal), 0);
}

#[tokio::test]
async fn the_writer_purges_by_itself_what_was_deleted_now_and_before_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let mut ids = Ids::new();
    let deleted_before = |path: &Path, ids: &mut Ids| {
        let journal = SledJournal::open(path).unwrap();
        let gone = fill(&journal, ids, 700);
        journal.append(&[Batch::deletion(gone.conversation)]).unwrap();
    };
    deleted_before(folder.path(), &mut ids);
    let journal = Arc::new(SledJournal::open(folder.path()).unwrap());
    let now = fill(&*journal, &mut ids, 700);
    let writer = Writer::start(journal.clone(), 8).unwrap();
    writer.append(Batch::deletion(now.conversation)).await.unwrap();
    // A purge's end is not told to anybody; the test is ended from outside if it never comes.
    while rows_left(&journal) > 0 {
        tokio::task::yield_now().await;
    }
    writer.stop().await;
}
