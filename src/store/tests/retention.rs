//! Which conversations are let go.

use std::path::Path;

use super::super::{
    Batch, Expired, Journal, MemoryJournal, Record, Retention, SledJournal, expired_conversations, keys,
};
use super::{Ids, batch, with_records};
use crate::ids::ConversationId;

/// Conversations whose only events were decided at 10, 20, 30 and so on; their texts are equally long.
fn fill(journal: &dyn Journal, count: usize) -> Vec<ConversationId> {
    let mut ids = Ids::new();
    let conversations: Vec<_> = (0..count).map(|_| ids.conversation()).collect();
    // The latest is written first: neither order of writing nor of ids is what counts.
    for (number, conversation) in conversations.iter().enumerate().rev() {
        let mut only = batch(*conversation, [1]);
        only.events[0].at_ms = 10 * (number as u64 + 1);
        journal.append(&[only]).unwrap();
    }
    conversations
}

fn expired(journal: &dyn Journal, before_ms: u64, bytes_max: Option<u64>) -> Vec<ConversationId> {
    let expired = expired_conversations(journal, Retention { before_ms, bytes_max }).unwrap();
    expired.into_iter().map(|expired| expired.conversation).collect()
}

fn on_both(check: impl Fn(&dyn Journal)) {
    let folder = tempfile::tempdir().unwrap();
    check(&SledJournal::open(folder.path()).unwrap());
    check(&MemoryJournal::new());
}

#[test]
fn conversations_are_let_go_by_the_age_of_their_last_event() {
    on_both(|journal| {
        let all = fill(journal, 5);
        assert_eq!(expired(journal, 0, None), []);
        assert_eq!(expired(journal, 10, None), []);
        assert_eq!(expired(journal, 31, None), all[..3]);
        let mut news = batch(all[0], [2]);
        news.events[0].at_ms = 99;
        journal.append(&[news]).unwrap();
        assert_eq!(expired(journal, 31, None), all[1..3], "it has gone on since");
        let first = expired_conversations(journal, Retention { before_ms: 100, bytes_max: None }).unwrap();
        assert_eq!(first.last(), Some(&Expired { conversation: all[0], last_seq: 2 }));
    });
}

#[test]
fn where_there_is_no_room_the_oldest_are_let_go() {
    on_both(|journal| {
        let all = fill(journal, 5);
        let each = journal.event_bytes(all[0], 1).unwrap();
        assert!(each > 0);
        // In memory the texts of the numbers count, so give each a little.
        let room = |count: u64| Some(count * each + 20);
        assert_eq!(expired(journal, 0, room(5)), []);
        assert_eq!(expired(journal, 0, room(3)), all[..2]);
        assert_eq!(expired(journal, 41, room(3)), all[..4], "both settings hold");
        assert_eq!(expired(journal, 0, Some(1)), all);
    });
}

#[test]
fn what_has_outstanding_work_is_kept_and_others_make_room_for_it() {
    on_both(|journal| {
        let all = fill(journal, 4);
        journal.append(&[with_records(batch(all[0], []), vec![Record::Active(true)])]).unwrap();
        assert_eq!(expired(journal, 100, None), all[1..]);
        let room = Some(2 * journal.event_bytes(all[0], 1).unwrap() + 20);
        assert_eq!(expired(journal, 0, room), all[1..3]);
    });
}

#[test]
fn damaged_and_deleted_conversations_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(Path::new(folder.path())).unwrap();
    let all = fill(&journal, 4);
    let head = keys::head(all[1]);
    journal.db.insert(head, "torn").unwrap();
    journal.append(&[Batch::deletion(all[2])]).unwrap();
    assert_eq!(expired(&journal, 100, Some(1)), [all[0], all[3]]);
}
