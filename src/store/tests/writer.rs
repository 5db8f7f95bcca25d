//! What the writer thread promises.

use std::sync::Arc;

use super::super::{Batch, Durability, Error, Failure, Journal, MemoryJournal, SledJournal, Writer, WriterStatus};
use super::{Ids, batch};
use crate::error::Code;

fn memory_writer(bound: usize) -> (Arc<MemoryJournal>, super::super::WriterHandle) {
    let journal = Arc::new(MemoryJournal::new());
    let writer = Writer::start(journal.clone(), bound).unwrap();
    (journal, writer)
}

fn synced(batch: Batch) -> Batch {
    Batch { durability: Durability::Sync, ..batch }
}

#[tokio::test]
async fn an_acknowledged_batch_can_be_read() {
    let (journal, writer) = memory_writer(4);
    let conversation = Ids::new().conversation();
    writer.append(batch(conversation, 1..=3)).await.unwrap();
    assert_eq!(journal.last_seq(conversation).unwrap(), 3);
}

#[tokio::test]
async fn batches_that_wait_share_one_flush() {
    let (journal, writer) = memory_writer(64);
    let mut ids = Ids::new();
    journal.pause();
    let mut appends = vec![tokio::spawn(writer.append(batch(ids.conversation(), [1])))];
    while journal.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    appends.extend((0..63).map(|_| tokio::spawn(writer.append(batch(ids.conversation(), [1])))));
    while writer.queued() < 63 {
        tokio::task::yield_now().await;
    }
    journal.resume();
    for append in appends {
        append.await.unwrap().unwrap();
    }
    assert_eq!(journal.appends(), [1, 63]);
}

#[tokio::test]
async fn a_sync_batch_has_a_flush_of_its_own_and_order_stays() {
    let (journal, writer) = memory_writer(64);
    let mut ids = Ids::new();
    let (blocker, one) = (ids.conversation(), ids.conversation());
    journal.pause();
    let first = tokio::spawn(writer.append(batch(blocker, [1])));
    while journal.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let mut appends = Vec::new();
    for seq in 1..=5 {
        let next = batch(one, [seq]);
        let next = if seq == 3 { synced(next) } else { next };
        let queued = writer.queued();
        appends.push(tokio::spawn(writer.append(next)));
        while writer.queued() == queued {
            tokio::task::yield_now().await;
        }
    }
    journal.resume();
    first.await.unwrap().unwrap();
    for append in appends {
        append.await.unwrap().unwrap();
    }
    assert_eq!(journal.appends(), [1, 2, 1, 2]);
    assert_eq!(journal.last_seq(one).unwrap(), 5);
}

#[tokio::test]
async fn a_conflict_is_refused_alone() {
    let (journal, writer) = memory_writer(64);
    let mut ids = Ids::new();
    let (good, bad) = (ids.conversation(), ids.conversation());
    let (kept, refused) = tokio::join!(writer.append(batch(good, [1])), writer.append(batch(bad, [7])));
    kept.unwrap();
    assert!(matches!(refused, Err(Error::Conflict { expected: 1, found: 7, .. })));
    writer.append(batch(good, [2])).await.unwrap();
    assert_eq!(journal.last_seq(good).unwrap(), 2);
    assert_eq!(writer.status(), WriterStatus::Running);
}

#[tokio::test]
async fn after_a_failed_write_everything_is_refused_as_storage_unavailable() {
    let (journal, writer) = memory_writer(64);
    let conversation = Ids::new().conversation();
    journal.fail(Failure::Append);
    let refused = writer.append(batch(conversation, [1])).await.unwrap_err();
    assert_eq!(refused.code(), Code::StorageUnavailable);
    let later = writer.append(batch(conversation, [1])).await.unwrap_err();
    assert_eq!(later.code(), Code::StorageUnavailable);
    assert_eq!(journal.last_seq(conversation).unwrap(), 0);
    assert_eq!(writer.status(), WriterStatus::Failed(refused));
}

#[tokio::test]
async fn a_failed_sync_is_told_as_fatal() {
    let (journal, writer) = memory_writer(64);
    let mut status = writer.watch();
    journal.fail(Failure::Sync);
    let refused = writer.append(batch(Ids::new().conversation(), [1])).await.unwrap_err();
    assert!(matches!(refused, Error::SyncFailed(_)));
    status.wait_for(|status| matches!(status, WriterStatus::Fatal(_))).await.unwrap();
}

#[tokio::test]
async fn stopping_writes_what_is_queued_and_refuses_what_comes_later() {
    let (journal, writer) = memory_writer(64);
    let conversation = Ids::new().conversation();
    journal.pause();
    let append = tokio::spawn(writer.append(batch(conversation, [1])));
    while journal.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let stop = writer.clone();
    let stop = tokio::spawn(async move { stop.stop().await });
    journal.resume();
    append.await.unwrap().unwrap();
    stop.await.unwrap();
    assert_eq!(writer.append(batch(conversation, [2])).await, Err(Error::Stopped));
    assert_eq!(writer.status(), WriterStatus::Stopped);
    assert_eq!(Arc::strong_count(&journal), 1, "the thread let go of the journal");
}

#[tokio::test]
async fn a_full_queue_waits_and_loses_nothing() {
    let (journal, writer) = memory_writer(2);
    let mut ids = Ids::new();
    journal.pause();
    let conversations: Vec<_> = (0..20).map(|_| ids.conversation()).collect();
    let appends: Vec<_> = conversations.iter().map(|id| tokio::spawn(writer.append(batch(*id, [1])))).collect();
    while writer.queued() < 2 {
        tokio::task::yield_now().await;
    }
    journal.resume();
    for append in appends {
        append.await.unwrap().unwrap();
    }
    assert_eq!(journal.conversations(None, 100).unwrap().len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_conversations_append_at_once_and_each_keeps_its_order() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(SledJournal::open(folder.path()).unwrap());
    let writer = Writer::start(journal.clone(), 64).unwrap();
    let mut ids = Ids::new();
    let conversations: Vec<_> = (0..64).map(|_| ids.conversation()).collect();
    let mut running = Vec::new();
    for conversation in conversations.clone() {
        let (writer, journal) = (writer.clone(), journal.clone());
        running.push(tokio::spawn(async move {
            for seq in 1..=20 {
                writer.append(batch(conversation, [seq])).await.unwrap();
                assert_eq!(journal.last_seq(conversation).unwrap(), seq);
            }
        }));
    }
    for task in running {
        task.await.unwrap();
    }
    for conversation in conversations {
        assert_eq!(journal.read(conversation, 0, 100).unwrap(), batch(conversation, 1..=20).events);
    }
}

fn relaxed(batch: Batch) -> Batch {
    Batch { durability: Durability::Relaxed, ..batch }
}

#[tokio::test]
async fn what_is_queued_is_written_in_order_though_nobody_waited_for_its_flush() {
    let (journal, writer) = memory_writer(64);
    let conversation = Ids::new().conversation();
    journal.pause();
    let mut acks = Vec::new();
    for seq in 1..=20 {
        acks.push(writer.enqueue(relaxed(batch(conversation, [seq]))).await.unwrap());
    }
    let terminal = tokio::spawn(writer.append(synced(batch(conversation, [21]))));
    assert_eq!(journal.last_seq(conversation).unwrap(), 0, "nothing is shown before it is durable");
    journal.resume();
    terminal.await.unwrap().unwrap();
    assert_eq!(journal.last_seq(conversation).unwrap(), 21, "what was queued before is written before");
    for ack in acks {
        ack.await.unwrap();
    }
    assert_eq!(journal.appends().last(), Some(&1), "a sync batch shares its flush");
}

#[tokio::test]
async fn a_flush_that_fails_later_is_told_by_the_ack_and_the_status() {
    for (failure, is_fatal) in [(Failure::Append, false), (Failure::Flush, false), (Failure::Sync, true)] {
        let (journal, writer) = memory_writer(64);
        let conversation = Ids::new().conversation();
        journal.fail(failure);
        let first = writer.enqueue(relaxed(batch(conversation, [1]))).await.unwrap();
        let second = writer.enqueue(relaxed(batch(conversation, [2]))).await.unwrap();
        let refused = first.await.unwrap_err();
        assert_eq!(refused.code(), Code::StorageUnavailable);
        assert!(second.await.is_err(), "what follows a lost batch must not be written");
        let expected = if is_fatal { WriterStatus::Fatal(refused) } else { WriterStatus::Failed(refused) };
        assert_eq!(writer.status(), expected);
        assert_eq!(journal.last_seq(conversation).unwrap(), 0);
    }
}

#[tokio::test]
async fn an_ack_resolves_when_the_writer_is_gone() {
    let (journal, writer) = memory_writer(64);
    let conversation = Ids::new().conversation();
    writer.enqueue(relaxed(batch(conversation, [1]))).await.unwrap().await.unwrap();
    writer.stop().await;
    assert_eq!(writer.enqueue(relaxed(batch(conversation, [2]))).await.err(), Some(Error::Stopped));
    assert_eq!(journal.last_seq(conversation).unwrap(), 1);
}
