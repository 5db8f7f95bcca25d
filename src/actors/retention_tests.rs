//! What the journal's keeper deletes and trims, and what it must not.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::json;

use super::journal::delete;
use super::tests::{create, parts, soon};
use super::{Cursor, DirectoryHandle, Open, start};
use crate::clock::Clock;
use crate::config::Config;
use crate::error::Code;
use crate::ids::ConversationId;
use crate::store::{Expired, Journal, MemoryJournal};

const DAY_MS: u64 = 86_400_000;

#[tokio::test]
async fn old_conversations_are_deleted_and_young_ones_kept() {
    let journal = Arc::new(MemoryJournal::new());
    let now = Arc::new(AtomicU64::new(100 * DAY_MS));
    let config = Config { retention_days: 30, ..Config::default() };
    let mut parts = parts(&journal, &json!([{"deltas": ["yes"]}]), config);
    parts.clock = Clock::Manual(now.clone());
    let root = start(parts.clone()).await.unwrap();
    let old = root.directory().open(Open::default(), None).await.unwrap().id();
    now.store(120 * DAY_MS, std::sync::atomic::Ordering::SeqCst);
    let young = root.directory().open(Open::default(), None).await.unwrap().id();
    root.stop().await;
    // The keeper's first round comes with the start.
    now.store(131 * DAY_MS, std::sync::atomic::Ordering::SeqCst);
    let root = start(parts).await.unwrap();
    soon(async {
        while !journal.is_deleted(old).unwrap() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let refused = root.directory().conversation(old, "").await.err().unwrap();
    assert_eq!(refused.code, Code::ConversationNotFound);
    assert!(root.directory().conversation(young, "").await.is_ok());
}

#[tokio::test]
async fn what_is_awake_or_has_gone_on_is_not_deleted() {
    let journal = Arc::new(MemoryJournal::new());
    let parts = parts(&journal, &json!([{"deltas": ["yes"]}]), Config::default());
    let root = start(parts.clone()).await.unwrap();
    let directory = root.directory();
    let (awake, _reader) = directory.create_in_new(Open::default(), create(&parts, &[]), None).await.unwrap();
    let expired = |conversation, last_seq| vec![Expired { conversation, last_seq }];
    let last_seq = journal.last_seq(awake.id()).unwrap();
    assert_eq!(delete(&directory.actor, expired(awake.id(), last_seq)).await.unwrap(), 0);
    assert!(!journal.is_deleted(awake.id()).unwrap());
    let asleep = directory.open(Open::default(), None).await.unwrap().id();
    root.stop().await;
    let root = start(parts).await.unwrap();
    let directory = root.directory();
    let last_seq = journal.last_seq(asleep).unwrap();
    assert_eq!(delete(&directory.actor, expired(asleep, last_seq + 1)).await.unwrap(), 0, "it has gone on");
    assert_eq!(delete(&directory.actor, expired(asleep, last_seq)).await.unwrap(), 1);
    assert!(journal.is_deleted(asleep).unwrap());
    assert_eq!(delete(&directory.actor, expired(asleep, last_seq)).await.unwrap(), 0, "it is gone");
}

/// A conversation with so many turns; each has ended.
async fn turns(parts: &super::Parts, directory: &DirectoryHandle, count: usize) -> ConversationId {
    let conversation = directory.open(Open::default(), None).await.unwrap();
    for _ in 0..count {
        let create = create(parts, &[]);
        let id = create.response_id;
        drop(conversation.create(create, None).await.unwrap());
        soon(conversation.ended(id)).await.unwrap();
    }
    conversation.id()
}

#[tokio::test]
async fn old_events_are_trimmed_at_the_start_and_the_state_stays_what_it_was() {
    let journal = Arc::new(MemoryJournal::new());
    let now = Arc::new(AtomicU64::new(100 * DAY_MS));
    let config = Config { event_retention_days: 30, ..Config::default() };
    let mut parts = parts(&journal, &json!([{"deltas": ["yes"]}]), config);
    parts.clock = Clock::Manual(now.clone());
    let root = start(parts.clone()).await.unwrap();
    let id = turns(&parts, &root.directory(), 3).await;
    let before = root.directory().conversation(id, "").await.unwrap().state().await.unwrap();
    root.stop().await;
    assert_eq!(journal.oldest_seq(id).unwrap(), 1, "nothing is old");
    now.store(131 * DAY_MS, std::sync::atomic::Ordering::SeqCst);
    let root = start(parts).await.unwrap();
    soon(async {
        while journal.oldest_seq(id).unwrap() == 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let oldest_seq = before.responses[2].created_seq;
    assert_eq!(journal.oldest_seq(id).unwrap(), oldest_seq, "all but the last turn");
    let handle = root.directory().conversation(id, "").await.unwrap();
    assert_eq!(handle.state().await.unwrap(), before);
    for seq in [0, 1, oldest_seq - 2] {
        let refused = handle.attach(Cursor { epoch: None, seq }).await.err().unwrap();
        assert_eq!((refused.code, &refused.details["oldest_seq"]), (Code::CursorExpired, &json!(oldest_seq)));
    }
    let refused = handle.attach_response(before.responses[1].id).await.err().unwrap();
    assert_eq!(refused.code, Code::CursorExpired);
    assert!(handle.attach_response(before.responses[2].id).await.is_ok());
    let mut all = handle.attach_all().await.unwrap();
    assert_eq!(all.oldest_seq(), oldest_seq);
    for seq in oldest_seq..=before.last_seq {
        assert_eq!(all.next().await.unwrap().seq, seq);
    }
    assert_eq!(all.state(), &*before);
}

#[tokio::test]
async fn a_reader_that_is_behind_when_events_are_trimmed_sees_an_end_and_no_gap_and_a_live_one_nothing() {
    let journal = Arc::new(MemoryJournal::new());
    let parts = parts(&journal, &json!([{"deltas": ["yes"]}]), Config::default());
    let root = start(parts.clone()).await.unwrap();
    // More events than a reader takes from the journal at once.
    let id = turns(&parts, &root.directory(), 80).await;
    let handle = root.directory().conversation(id, "").await.unwrap();
    let state = handle.state().await.unwrap();
    let oldest_seq = state.responses[79].created_seq;
    let mut live = handle.attach(Cursor { epoch: None, seq: state.last_seq }).await.unwrap();
    let mut behind = handle.attach_all().await.unwrap();
    assert_eq!(behind.next().await.unwrap().seq, 1);
    parts.writer.trim(id, oldest_seq).await.unwrap();
    let mut seen = 1;
    while let Some(recorded) = behind.next().await {
        seen += 1;
        assert_eq!(recorded.seq, seen);
    }
    assert!(seen > 1 && seen + 1 < oldest_seq, "{seen}");
    let refused = handle.attach(Cursor { epoch: None, seq: seen }).await.err().unwrap();
    assert_eq!(refused.code, Code::CursorExpired);
    handle.create(create(&parts, &[]), None).await.unwrap();
    assert_eq!(soon(live.next()).await.unwrap().seq, state.last_seq + 1);
}
