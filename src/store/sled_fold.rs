//! Folding on disk: rows of single events are replaced by one row of the run, in one atomic batch.
//!
//! The run lies under the key of its last event, so that a scan from any cursor inside it finds it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::codec::{self, Entry};
use super::error::Error;
use super::sled_journal::SledJournal;
use super::{fold, journal::Journal, keys};
use crate::conversation::Recorded;
use crate::crash;
use crate::ids::ConversationId;

/// Events looked at in one part: few enough that an append which comes meanwhile hardly waits.
const PART_EVENTS: usize = 256;

/// Bytes of one part's entries, should the deltas be large.
const PART_BYTES: usize = 256 * 1024;

/// The events as entries, runs of deltas folded, each with the seq it lies under.
pub(super) fn entries(events: &[Recorded]) -> Result<Vec<(u64, Entry)>, String> {
    let mut entries = Vec::new();
    let mut rest = events;
    while let [first, ..] = rest {
        let pairs = rest.windows(2).take(PART_EVENTS - 1);
        let (run, behind) = rest.split_at(1 + pairs.take_while(|pair| fold::is_run(&pair[0], &pair[1])).count());
        match fold::fold(run).filter(|_| run.len() > 1) {
            Some(bytes) => entries.push((first.seq + run.len() as u64 - 1, Entry::folded(bytes))),
            None => {
                for recorded in run {
                    entries.push((recorded.seq, Entry::event(recorded)?));
                }
            }
        }
        rest = behind;
    }
    Ok(entries)
}

impl SledJournal {
    /// Folds the next part up to `up_to`. Whether there is more.
    pub(super) fn fold_part(&self, conversation: ConversationId, up_to: u64) -> Result<bool, Error> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        let last = self.last_seq(conversation)?.min(up_to);
        // What was trimmed is removed, and folded otherwise.
        let done = self.folded_to(conversation)?.max(self.oldest_seq(conversation)? - 1);
        let mut part = Part::default();
        let mut next = done + 1;
        let mut rows = self.rows(conversation, next, last);
        while next <= last && !part.is_full() {
            let Some((entry, events)) = rows.next_events(next)? else {
                break;
            };
            next = events.last().map_or(next, |recorded| recorded.seq) + 1;
            part.add(&entry, events);
        }
        part.end_run();
        if next == done + 1 {
            return Ok(false);
        }
        let key = keys::folded(conversation);
        let mut batch = sled::Batch::default();
        batch.insert(key.as_slice(), codec::seal(&key, &codec::encode_seq(next - 1)));
        for run in &part.runs {
            run.write(conversation, &mut batch).map_err(|why| Error::damaged(conversation, run.last_seq, why))?;
        }
        let _alone = self.folding.write().unwrap_or_else(PoisonError::into_inner);
        crash::point("fold_before");
        self.access.apply(&self.db, &batch).inspect_err(|_| self.failed.store(true, Ordering::SeqCst))?;
        Ok(next <= last)
    }

    fn folded_to(&self, conversation: ConversationId) -> Result<u64, Error> {
        let key = keys::folded(conversation);
        let Some(value) = self.get(&key).map_err(|error| Error::of_conversation(conversation, 0, error))? else {
            return Ok(0);
        };
        codec::unseal(&key, &value)
            .and_then(codec::decode_seq)
            .map_err(|why| Error::damaged(conversation, 0, format!("its folding record: {why}")))
    }
}

/// The runs among the events of one part.
#[derive(Default)]
struct Part {
    open: Vec<Recorded>,
    /// Chunks of each open entry.
    chunks: Vec<usize>,
    runs: Vec<Run>,
    events: usize,
    bytes: usize,
}

impl Part {
    fn is_full(&self) -> bool {
        self.events >= PART_EVENTS || self.bytes >= PART_BYTES
    }

    fn add(&mut self, entry: &Entry, events: Vec<Recorded>) {
        self.events += events.len();
        self.bytes += entry.len();
        for recorded in events {
            if self.open.last().is_some_and(|last| !fold::is_run(last, &recorded)) {
                self.end_run();
            }
            // What another version wrote is left as it is, and so is what is folded already.
            if entry.is(&recorded) {
                self.open.push(recorded);
                self.chunks.push(entry.chunk_count());
            } else {
                self.end_run();
            }
        }
    }

    fn end_run(&mut self) {
        let events = std::mem::take(&mut self.open);
        let chunks = std::mem::take(&mut self.chunks);
        if let [first, .., last] = events.as_slice()
            && let Some(bytes) = fold::fold(&events)
        {
            self.runs.push(Run { first_seq: first.seq, last_seq: last.seq, chunks, folded: Entry::folded(bytes) });
        }
    }
}

/// A run and the rows it replaces.
struct Run {
    first_seq: u64,
    last_seq: u64,
    chunks: Vec<usize>,
    folded: Entry,
}

impl Run {
    fn write(&self, conversation: ConversationId, batch: &mut sled::Batch) -> Result<(), String> {
        for (seq, chunks) in (self.first_seq..).zip(&self.chunks) {
            for (chunk, _) in (0..).zip(0..*chunks) {
                batch.remove(keys::event(conversation, seq, chunk));
            }
        }
        // The last event's own row is replaced: what is said later in a batch counts.
        for (chunk, body) in (0..).zip(self.folded.chunks()?) {
            let key = keys::event(conversation, self.last_seq, chunk);
            batch.insert(key.as_slice(), codec::seal(&key, &body));
        }
        Ok(())
    }
}
