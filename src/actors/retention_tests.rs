//! What the journal's keeper deletes, and what it must not.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::json;

use super::journal::delete;
use super::tests::{create, parts, soon};
use super::{Open, start};
use crate::clock::Clock;
use crate::config::Config;
use crate::error::Code;
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
