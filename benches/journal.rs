//! How fast the journal commits: appends per second and the time from append to acknowledgement, with 1, 16 and
//! 64 live conversations that each append one delta at a time and wait for it to be durable.
//!
//! `cargo bench --bench journal`; it writes into the target folder, so that is the disk it measures.
#![allow(clippy::print_stdout)] // its output is a table for people
#![allow(missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use midstream::clock::monotonic;
use midstream::conversation::{Event, Recorded};
use midstream::ids::{ConversationId, FreshIds, ItemId, ResponseId};
use midstream::store::{Batch, Durability, Error, Journal, SledJournal, Writer, WriterHandle};

const RUN_TIME: Duration = Duration::from_secs(5);
const QUEUE_BOUND: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("conversations   appends/s   p50 ms   p99 ms   max ms   log bytes/append");
    for live in [1, 16, 64] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let journal: Arc<dyn Journal> = Arc::new(SledJournal::open(folder.path())?);
        let writer = Writer::start(journal, QUEUE_BOUND)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
        let started = monotonic();
        let mut commits = runtime.block_on(run(live, &writer))?;
        let elapsed = started.elapsed();
        runtime.block_on(writer.stop());
        let bytes = std::fs::metadata(folder.path().join("journal/db"))?.len();
        commits.sort_unstable();
        let at = |part: f64| commits[((commits.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
        println!(
            "{live:>13}   {:>9.0}   {:>6.2}   {:>6.2}   {:>6.2}   {:>16}",
            commits.len() as f64 / elapsed.as_secs_f64(),
            at(0.5),
            at(0.99),
            at(1.0),
            bytes / commits.len() as u64,
        );
    }
    Ok(())
}

/// Runs the conversations side by side and returns the time of every commit.
async fn run(live: usize, writer: &WriterHandle) -> Result<Vec<Duration>, Error> {
    let mut fresh = FreshIds::random();
    let deadline = monotonic() + RUN_TIME;
    let appends = (0..live).map(|_| {
        let (conversation, writer) = (ConversationId::draw(&mut fresh), writer.clone());
        let (response_id, item_id) = (ResponseId::draw(&mut fresh), ItemId::draw(&mut fresh));
        tokio::spawn(async move {
            let mut commits = Vec::new();
            for seq in 1.. {
                let begun = monotonic();
                if begun >= deadline {
                    break;
                }
                writer.append(delta(conversation, seq, response_id, item_id)).await?;
                commits.push(begun.elapsed());
            }
            Ok::<_, Error>(commits)
        })
    });
    let mut commits = Vec::new();
    for task in appends.collect::<Vec<_>>() {
        commits.extend(task.await.map_err(|error| Error::Invalid(error.to_string()))??);
    }
    Ok(commits)
}

/// A few words, as one coalesced flush of a stream has them.
fn delta(conversation: ConversationId, seq: u64, response_id: ResponseId, item_id: ItemId) -> Batch {
    let event = Event::OutputDelta {
        response_id,
        item_id,
        text: "a few words of an answer ".into(),
        tokens: vec![1024, 2048, 4096, 8192, 16384],
        logprobs: Vec::new(),
    };
    let at_ms = 1_764_000_000_000 + seq;
    Batch {
        conversation,
        events: vec![Recorded { seq, number: Some(seq), at_ms, event }],
        records: Vec::new(),
        durability: Durability::Group,
    }
}
