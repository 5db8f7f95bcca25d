//! Tests of the store's promises, on both journals where they share them.

mod damage;
mod deletion;
mod dumps;
mod durability;
mod folding;
mod golden;
mod inspecting;
mod journals;
mod killed;
mod kv_files;
mod lost;
mod model;
mod rebuilding;
mod repair;
mod retention;
mod trimming;
mod writer;

use std::path::Path;

pub(crate) use trimming::talk;

use super::{Batch, Durability, KeyRecord, KeyScope, KeyedAnswer, Operation, Record};
use crate::conversation::{Ending, Event, Recorded};
use crate::ids::{ConversationId, FreshIds, InterventionId, ItemId, ResponseId};

/// Ids that differ from call to call in one test, and are the same in every run.
pub(super) struct Ids(FreshIds);

impl Ids {
    pub(super) fn new() -> Self {
        Self(FreshIds::from_seed(7))
    }

    pub(super) fn conversation(&mut self) -> ConversationId {
        ConversationId::draw(&mut self.0)
    }

    pub(super) fn response(&mut self) -> ResponseId {
        ResponseId::draw(&mut self.0)
    }

    pub(super) fn item(&mut self) -> ItemId {
        ItemId::draw(&mut self.0)
    }

    pub(super) fn intervention(&mut self) -> InterventionId {
        InterventionId::draw(&mut self.0)
    }
}

/// A delta whose text is `text`.
pub(super) fn delta(seq: u64, text: &str) -> Recorded {
    Recorded {
        seq,
        number: Some(seq + 3),
        at_ms: 1_700_000_000_000 + seq,
        event: Event::OutputDelta {
            response_id: ResponseId::from_bytes([1; 16]),
            item_id: ItemId::from_bytes([2; 16]),
            text: text.to_owned(),
            tokens: vec![seq as u32, 50_000],
            logprobs: Vec::new(),
        },
    }
}

/// Every fiftieth event, a response ends; the others are deltas.
fn event(seq: u64) -> Recorded {
    let mut recorded = delta(seq, &format!("word {seq} "));
    if seq % 50 == 49 {
        recorded.event = Event::ResponseEnded {
            response_id: ResponseId::from_bytes([1; 16]),
            ending: Ending::Completed,
            tail_tokens: vec![2],
            stop_string: None,
            usage: None,
        };
    }
    recorded
}

/// A batch of events with these seqs.
pub(super) fn batch(conversation: ConversationId, seqs: impl IntoIterator<Item = u64>) -> Batch {
    Batch {
        conversation,
        events: seqs.into_iter().map(event).collect(),
        records: Vec::new(),
        durability: Durability::Group,
    }
}

pub(super) fn key_record(conversation: ConversationId, response: ResponseId, key: &str) -> KeyRecord {
    KeyRecord {
        scope: KeyScope {
            principal: "somebody".into(),
            conversation: Some(conversation),
            operation: Operation::Create,
            key: key.into(),
        },
        fingerprint: [9; 32],
        at_ms: 5,
        answer: KeyedAnswer::Created { conversation, response },
    }
}

pub(super) fn with_records(mut batch: Batch, records: Vec<Record>) -> Batch {
    batch.records = records;
    batch
}

/// Copies a folder as a crash would leave it: file by file, while others write. By name, so that the count of
/// acknowledged writes is taken before the journal: it must not be ahead.
pub(super) fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let mut entries: Vec<_> = std::fs::read_dir(from).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
