//! What a response's `durability` does to its events: which flush they share, and which of them are shown before it.

use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt;
use serde_json::json;

use super::tests::{create, parts, soon};
use super::{Open, Reader, start};
use crate::config::Config;
use crate::conversation::{Event, FlushPolicy, Policies, Recorded};
use crate::store::{Batch, Durability, ManualWriter, MemoryJournal};

/// The reader of a response that has shown its first text and says more. From here on nothing is written but by hand.
async fn begun(durability: FlushPolicy) -> (Reader, ManualWriter) {
    let journal = Arc::new(MemoryJournal::new());
    // Long enough that a process which stands still for a while has more to say behind that.
    let deltas: Vec<String> = (0..20).map(|number| format!("{number} ")).collect();
    let script = json!([{"deltas": deltas, "delay_ms": 30}]);
    let mut parts = parts(&journal, &script, Config::default());
    let (handle, mut writer) = ManualWriter::new(journal, 64);
    parts.writer = handle;
    let directory = start(parts.clone()).await.unwrap().directory();
    let mut create = create(&parts, &[]);
    create.policies = Policies { durability: Some(durability), ..Policies::default() };
    let created = directory.create_in_new(Open::default(), create, None);
    let (_, mut reader) = writing(&mut writer, created).await.unwrap();
    writing(&mut writer, until(&mut reader, is_delta)).await;
    (reader, writer)
}

/// Writes whatever comes until this has happened.
async fn writing<T>(writer: &mut ManualWriter, event: impl Future<Output = T>) -> T {
    let mut event = pin!(soon(event));
    loop {
        tokio::select! {
            biased;
            done = &mut event => return done,
            batches = writer.gather() => {
                batches.expect("the conversation lives");
                writer.commit();
            }
        }
    }
}

/// Reads up to the first event that is wanted.
async fn until(reader: &mut Reader, wanted: impl Fn(&Recorded) -> bool) {
    loop {
        let recorded = reader.next().await.expect("it goes on");
        if wanted(&recorded) {
            return;
        }
    }
}

fn is_delta(recorded: &Recorded) -> bool {
    matches!(recorded.event, Event::OutputDelta { .. })
}

fn is_end(recorded: &Recorded) -> bool {
    matches!(recorded.event, Event::ResponseEnded { .. })
}

fn has(batch: &Batch, wanted: fn(&Recorded) -> bool) -> bool {
    batch.events.iter().any(wanted)
}

#[tokio::test]
async fn relaxed_text_is_shown_before_its_flush_and_the_end_is_not() {
    let (mut reader, mut writer) = begun(FlushPolicy::Relaxed).await;
    soon(until(&mut reader, is_delta)).await;
    let waiting = loop {
        let waiting = soon(writer.gather()).await.expect("the conversation lives");
        if waiting.iter().any(|batch| has(batch, is_end)) {
            break waiting;
        }
    };
    for batch in &waiting {
        let expected = if has(batch, is_end) { Durability::Group } else { Durability::Relaxed };
        assert_eq!(batch.durability, expected, "{batch:?}");
    }
    assert!(waiting.iter().any(|batch| has(batch, is_delta)), "it was shown, and is not written yet: {waiting:?}");
    while let Some(Some(shown)) = reader.next().now_or_never() {
        assert!(!is_end(&shown), "an end is shown that a crash would take back");
    }
    writer.commit();
    soon(until(&mut reader, is_end)).await;
}

#[tokio::test]
async fn other_text_is_shown_behind_its_flush_which_it_shares_or_has_to_itself() {
    for (policy, durability) in [(FlushPolicy::Group, Durability::Group), (FlushPolicy::Sync, Durability::Sync)] {
        let (mut reader, mut writer) = begun(policy).await;
        let waiting = soon(writer.gather()).await.expect("the conversation lives");
        assert!(waiting.iter().all(|batch| batch.durability == durability), "{policy:?}: {waiting:?}");
        let first = waiting[0].events[0].seq;
        while let Some(Some(shown)) = reader.next().now_or_never() {
            assert!(shown.seq < first, "{policy:?}: {shown:?} is shown and not written");
        }
        writer.commit();
        soon(until(&mut reader, |shown| shown.seq == first)).await;
    }
}
