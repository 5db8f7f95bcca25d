//! How values look on disk: a checksum over key and body, then the body; events as versioned JSON in chunks.
//!
//! A journal entry is a header (form, event version, length) and its bytes, cut into chunks. The checksum
//! includes the key, so a value in a wrong place is as damaged as one with a flipped bit.

use super::fold;
use super::journal::{Epoch, KeyRecord};
use crate::conversation::{EVENT_VERSION, Recorded};
use crate::ids::ConversationId;

/// The most bytes of a journal entry in one value. A leaf of sled holds up to 20 values, and a leaf larger than a
/// quarter segment (128 KiB) is written to a file of its own, which sled does not sync. So small a chunk keeps
/// every leaf inside the log.
pub(super) const CHUNK_BYTES: usize = 6 * 1024;

/// Form, event version, length.
const HEADER_BYTES: usize = 1 + 2 + 4;

/// An entry that is one event as JSON.
const FORM_EVENT: u8 = 1;
/// An entry that is a folded run of events; it lies under the key of the last one.
const FORM_FOLDED: u8 = 2;
/// An entry that is what is kept of trimmed events: the seq of the kept event before it, then one event as JSON.
const FORM_KEPT: u8 = 3;

/// A journal entry, read whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    form: u8,
    version: u16,
    bytes: Vec<u8>,
}

/// The value for `body` under `key`.
pub(super) fn seal(key: &[u8], body: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(4 + body.len());
    value.extend_from_slice(&checksum(key, body).to_be_bytes());
    value.extend_from_slice(body);
    value
}

/// The body of a value, if it is what was written under `key`.
pub(super) fn unseal<'a>(key: &[u8], value: &'a [u8]) -> Result<&'a [u8], String> {
    let (sum, body) = value.split_first_chunk().ok_or("the value is too short")?;
    if u32::from_be_bytes(*sum) == checksum(key, body) { Ok(body) } else { Err("the checksum does not match".into()) }
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(body);
    hasher.finalize()
}

impl Entry {
    /// The entry of one event.
    pub(super) fn event(recorded: &Recorded) -> Result<Self, String> {
        Ok(Self {
            form: FORM_EVENT,
            version: EVENT_VERSION,
            bytes: serde_json::to_vec(recorded).map_err(|error| error.to_string())?,
        })
    }

    /// The entry of an event that is kept of trimmed ones. `before` is the seq of the kept event in front of it, 0 for
    /// the first: their seqs have gaps, and a row that is missing must be noticed.
    pub(super) fn kept(recorded: &Recorded, before: u64) -> Result<Self, String> {
        let mut bytes = encode_seq(before).to_vec();
        serde_json::to_writer(&mut bytes, recorded).map_err(|error| error.to_string())?;
        Ok(Self { form: FORM_KEPT, version: EVENT_VERSION, bytes })
    }

    /// The kept event, if it follows the kept event `before`.
    pub(super) fn decode_kept(&self, before: u64) -> Result<Recorded, String> {
        self.check_version()?;
        let (FORM_KEPT, Some((found, json))) = (self.form, self.bytes.split_first_chunk()) else {
            return Err(format!("form {} is none of a kept event", self.form));
        };
        match u64::from_be_bytes(*found) {
            found if found == before => decode_json(json),
            found => Err(format!("the kept event {found} in front of it is missing")),
        }
    }

    fn check_version(&self) -> Result<(), String> {
        if self.version > EVENT_VERSION {
            return Err(format!("event version {} is newer than {EVENT_VERSION}", self.version));
        }
        Ok(())
    }

    /// The bodies of the entry's chunks, in order.
    pub(super) fn chunks(&self) -> Result<Vec<Vec<u8>>, String> {
        let length = u32::try_from(self.bytes.len()).map_err(|_| "the event is larger than 4 GiB")?;
        let mut whole = Vec::with_capacity(HEADER_BYTES + self.bytes.len());
        whole.push(self.form);
        whole.extend_from_slice(&self.version.to_be_bytes());
        whole.extend_from_slice(&length.to_be_bytes());
        whole.extend_from_slice(&self.bytes);
        let chunks: Vec<_> = whole.chunks(CHUNK_BYTES).map(<[u8]>::to_vec).collect();
        if chunks.len() > usize::from(u16::MAX) {
            return Err(format!("the event has {length} bytes, more than the journal can hold"));
        }
        Ok(chunks)
    }

    /// Bytes without the header.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// How many chunks [`Entry::chunks`] returns.
    pub(super) fn chunk_count(&self) -> usize {
        (HEADER_BYTES + self.bytes.len()).div_ceil(CHUNK_BYTES)
    }

    /// Begins an entry with its first chunk.
    pub(super) fn begin(chunk: &[u8]) -> Result<PartialEntry, String> {
        let (header, bytes) = chunk.split_at_checked(HEADER_BYTES).ok_or("the header is too short")?;
        let (Some(version), Some(length)) = (header[1..].first_chunk(), header[3..].first_chunk()) else {
            return Err("the header is too short".into());
        };
        Ok(PartialEntry {
            length: u32::from_be_bytes(*length) as usize,
            entry: Self { form: header[0], version: u16::from_be_bytes(*version), bytes: bytes.to_vec() },
        })
    }

    /// The entry of a folded run.
    pub(super) fn folded(bytes: Vec<u8>) -> Self {
        Self { form: FORM_FOLDED, version: EVENT_VERSION, bytes }
    }

    /// The events in it, at least one.
    pub(super) fn decode(&self) -> Result<Vec<Recorded>, String> {
        self.check_version()?;
        match self.form {
            FORM_EVENT => decode_json(&self.bytes).map(|recorded| vec![recorded]),
            FORM_FOLDED => fold::unfold(&self.bytes),
            form => Err(format!("form {form} is not known to this version")),
        }
    }

    /// Whether the entry is exactly what this build writes for the event.
    pub(super) fn is(&self, recorded: &Recorded) -> bool {
        Self::event(recorded).is_ok_and(|entry| entry == *self)
    }
}

fn decode_json(json: &[u8]) -> Result<Recorded, String> {
    serde_json::from_slice(json).map_err(|error| format!("the JSON cannot be read: {error}"))
}

/// An entry of which chunks may be missing.
#[derive(Debug)]
pub(super) struct PartialEntry {
    length: usize,
    entry: Entry,
}

impl PartialEntry {
    /// Adds the next chunk.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.entry.bytes.extend_from_slice(chunk);
    }

    /// Whether chunks are missing.
    pub(super) fn is_partial(&self) -> bool {
        self.entry.bytes.len() < self.length
    }

    /// The entry, if its length is the one its header says.
    pub(super) fn finish(self) -> Result<Entry, String> {
        if self.entry.bytes.len() == self.length {
            Ok(self.entry)
        } else {
            Err(format!("{} bytes instead of {}", self.entry.bytes.len(), self.length))
        }
    }
}

/// The last event of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) seq: u64,
    pub(super) at_ms: u64,
}

/// The body of a head record.
pub(super) fn encode_head(head: Head) -> [u8; 16] {
    two(head.seq, head.at_ms)
}

/// What a head record says. Schema 1 had the seq only.
pub(super) fn decode_head(body: &[u8]) -> Result<Head, String> {
    if body.len() == 8 {
        return Ok(Head { seq: decode_seq(body)?, at_ms: 0 });
    }
    decode_two(body).map(|(seq, at_ms)| Head { seq, at_ms })
}

/// The body of an epoch record.
pub(super) fn encode_epoch(epoch: Epoch) -> [u8; 16] {
    two(epoch.epoch, epoch.rewound_seq)
}

/// What an epoch record says.
pub(super) fn decode_epoch(body: &[u8]) -> Result<Epoch, String> {
    decode_two(body).map(|(epoch, rewound_seq)| Epoch { epoch, rewound_seq })
}

fn two(first: u64, second: u64) -> [u8; 16] {
    (u128::from(first) << 64 | u128::from(second)).to_be_bytes()
}

fn decode_two(body: &[u8]) -> Result<(u64, u64), String> {
    let both = body.try_into().map(u128::from_be_bytes).map_err(|_| "not two numbers")?;
    Ok(((both >> 64) as u64, both as u64))
}

/// The body of a record that is a seq.
pub(super) fn encode_seq(seq: u64) -> [u8; 8] {
    seq.to_be_bytes()
}

/// The seq in such a record.
pub(super) fn decode_seq(body: &[u8]) -> Result<u64, String> {
    body.try_into().map(u64::from_be_bytes).map_err(|_| "not a sequence number".into())
}

/// The conversation in an index record.
pub(super) fn decode_conversation(body: &[u8]) -> Result<ConversationId, String> {
    body.try_into().map(ConversationId::from_bytes).map_err(|_| "not a conversation id".into())
}

/// The body of an idempotency record.
pub(super) fn encode_key(conversation: ConversationId, record: &KeyRecord) -> Result<Vec<u8>, String> {
    serde_json::to_vec(&(conversation, record)).map_err(|error| error.to_string())
}

/// The idempotency record and its conversation.
pub(super) fn decode_key(body: &[u8]) -> Result<(ConversationId, KeyRecord), String> {
    serde_json::from_slice(body).map_err(|error| format!("the JSON cannot be read: {error}"))
}
