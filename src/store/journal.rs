//! The journal's contract: what is appended, what can be looked up. Nothing here knows how it is kept.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::error::Error;
use crate::conversation::{Event, Recorded};
use crate::ids::{CallId, ConversationId, InterventionId, ItemId, ResponseId};

/// One decision: all of it becomes durable, or nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Whose journal.
    pub conversation: ConversationId,
    /// The events, contiguous; the first follows the journal's last.
    pub events: Vec<Recorded>,
    /// What else becomes true with them.
    pub records: Vec<Record>,
    /// How the flush is shared.
    pub durability: Durability,
}

/// What is kept of a conversation's trimmed events.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Whose.
    pub conversation: ConversationId,
    /// In order; their seqs grow, with gaps.
    pub events: Vec<Recorded>,
}

impl Batch {
    /// One that deletes the conversation.
    pub fn deletion(conversation: ConversationId) -> Self {
        Self { conversation, events: Vec::new(), records: vec![Record::Deleted], durability: Durability::Group }
    }

    /// What it says of the conversation's epoch: a record of its own, or the event that begins one.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        let of_events = self.events.iter().filter_map(|recorded| match recorded.event {
            Event::ConversationRewound { seq, epoch } => Some(Epoch { epoch, rewound_seq: seq }),
            _ => None,
        });
        let of_records = self.records.iter().filter_map(|record| match record {
            Record::Epoch(epoch) => Some(*epoch),
            _ => None,
        });
        of_events.chain(of_records).last()
    }

    /// Whether it deletes its conversation.
    pub(super) fn deletes(&self) -> bool {
        self.records.contains(&Record::Deleted)
    }
}

/// How a batch's flush is shared. Every way the batch is on disk before it is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// One flush for all batches that wait.
    #[default]
    Group,
    /// Its own flush.
    Sync,
    /// As [`Durability::Group`]; whoever appends shows it before it is acknowledged. For deltas only.
    Relaxed,
}

/// What can be looked up without reading a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)] // a decision has a handful, and they live until it is written
pub enum Record {
    /// The response belongs to the batch's conversation.
    Response(ResponseId),
    /// The intervention belongs to the batch's conversation.
    Intervention(InterventionId),
    /// Whether the conversation has outstanding work, so that a restart finds it without reading every journal.
    Active(bool),
    /// A request with this key has its first answer.
    Key(KeyRecord),
    /// The key is free again.
    ForgetKey(KeyScope),
    /// The journal was cut, and its next owner must say so. Who has said so needs none: the event counts as one.
    Epoch(Epoch),
    /// The conversation is gone: its events, everything that is looked up in it, and the rest of this batch.
    Deleted,
}

/// How often a conversation lost events that somebody may have seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoch {
    /// From 0; one more with every loss.
    pub epoch: u64,
    /// The last seq that the latest loss left.
    pub rewound_seq: u64,
}

/// An idempotency key and what was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Where the key is unique.
    pub scope: KeyScope,
    /// SHA-256 of the canonical request.
    pub fingerprint: [u8; 32],
    /// When it was recorded, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What was answered.
    pub answer: KeyedAnswer,
}

/// Where an idempotency key is unique.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyScope {
    /// Who asks.
    pub principal: String,
    /// In which conversation; none where the request names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationId>,
    /// What is asked for.
    pub operation: Operation,
    /// The client's key.
    pub key: String,
}

/// The operations that take a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Open a conversation.
    Open,
    /// Create a response.
    Create,
    /// Intervene in a response.
    Intervene,
    /// Cancel a response.
    Cancel,
    /// Claim a tool call.
    ClaimCall,
    /// Give a tool call's result.
    AnswerCall,
}

/// The first answer to a request with a key: enough to give it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum KeyedAnswer {
    /// A conversation was opened.
    Opened {
        /// Its id.
        conversation: ConversationId,
    },
    /// A response was created.
    Created {
        /// Where.
        conversation: ConversationId,
        /// Its id.
        response: ResponseId,
    },
    /// An intervention was accepted.
    Intervened {
        /// Where.
        conversation: ConversationId,
        /// The response it was meant for.
        response: ResponseId,
        /// Its id.
        intervention: InterventionId,
        /// The response that answers it, when that was known at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        successor: Option<ResponseId>,
        /// The seq of its acceptance.
        seq: u64,
    },
    /// A tool call was claimed.
    Claimed {
        /// Where.
        conversation: ConversationId,
        /// The response that made it.
        response: ResponseId,
        /// From 1.
        attempt: u32,
        /// When the lease ends, in milliseconds since the Unix epoch.
        lease_until_ms: u64,
    },
    /// A tool call's result was accepted.
    Answered {
        /// Where.
        conversation: ConversationId,
        /// The seq of its acceptance.
        accepted_seq: u64,
        /// Calls that still waited then.
        open_calls: Vec<CallId>,
        /// The response that goes on with the results, if all were there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        successor: Option<ResponseId>,
    },
    /// A response was cancelled, or was found ended.
    Cancelled {
        /// Where.
        conversation: ConversationId,
        /// Which response.
        response: ResponseId,
        /// What was answered.
        outcome: String,
        /// The response that was cancelled in its place.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cascaded: Option<ResponseId>,
        /// The last event of the decision; what was answered at once is the response as it stood there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<u64>,
    },
}

impl KeyRecord {
    /// Whether the record belongs to one of these conversations, by its scope or by its answer.
    pub(super) fn is_of(&self, is_one: impl Fn(ConversationId) -> bool) -> bool {
        let (KeyedAnswer::Opened { conversation }
        | KeyedAnswer::Created { conversation, .. }
        | KeyedAnswer::Intervened { conversation, .. }
        | KeyedAnswer::Claimed { conversation, .. }
        | KeyedAnswer::Answered { conversation, .. }
        | KeyedAnswer::Cancelled { conversation, .. }) = self.answer;
        is_one(conversation) || self.scope.conversation.is_some_and(is_one)
    }
}

/// Keeps journals. Reads show only what is durable.
pub trait Journal: Send + Sync + 'static {
    /// Makes the batches durable, in order; they are when it returns `Ok`. Called by the writer thread only.
    /// A conflict is refused before anything is written, and so is what follows the deletion of its conversation.
    fn append(&self, batches: &[Batch]) -> Result<(), Error>;

    /// As [`Journal::append`], for a dump's content: deltas may be folded at once.
    fn import(&self, batches: &[Batch]) -> Result<(), Error> {
        self.append(batches)
    }

    /// Whether a batch can be written where its events belong: the place may be one that cannot be read. It changes
    /// nothing, so that one conversation's damage is no failed write of all.
    fn check_place(&self, _batch: &Batch) -> Result<(), Error> {
        Ok(())
    }

    /// Removes what is left of deleted conversations, a bounded part at a time. Nothing that is read changes.
    /// Whether there is more to do. Called by the writer thread only.
    fn purge(&self) -> Result<bool, Error>;

    /// Makes the deltas up to `up_to` smaller without changing what is read, a bounded part of them at a time.
    /// Whether there is more to do. Called by the writer thread only.
    fn fold(&self, conversation: ConversationId, up_to: u64) -> Result<bool, Error>;

    /// Makes the events in front of `oldest_seq` unreadable, and keeps of them what the state needs: a bounded part of
    /// the work at a time, and only the last part is seen. It must be a border as `conversation::Survey` finds them.
    /// Whether there is more to do. Called by the writer thread only.
    fn trim(&self, conversation: ConversationId, oldest_seq: u64) -> Result<bool, Error>;

    /// As [`Journal::import`], for what a dump kept of events that were trimmed, in order: the conversation's events
    /// follow the last. Each conversation is there once at most.
    fn import_kept(&self, kept: &[Kept]) -> Result<(), Error>;

    /// The first event that can be read; 1 where none was trimmed.
    fn oldest_seq(&self, conversation: ConversationId) -> Result<u64, Error>;

    /// At most `limit` events behind `after` of what is kept of those in front of the oldest, in order. Their seqs
    /// grow, with gaps, up to the one in front of the oldest; `after` is 0 or the seq of one of them.
    fn kept(&self, conversation: ConversationId, after: u64, limit: usize) -> Result<Vec<Recorded>, Error>;

    /// At most `limit` events behind `after`, in order. [`Error::Expired`] where the next one was trimmed.
    fn read(&self, conversation: ConversationId, after: u64, limit: usize) -> Result<Vec<Recorded>, Error>;

    /// The seq of the last event; 0 when there is none.
    fn last_seq(&self, conversation: ConversationId) -> Result<u64, Error>;

    /// When the last event was decided, in milliseconds since the Unix epoch; 0 when there is none.
    fn last_at_ms(&self, conversation: ConversationId) -> Result<u64, Error>;

    /// How many bytes the events from `first` on take, before whatever the store keeps around them; of those that were
    /// trimmed, what is kept.
    fn event_bytes(&self, conversation: ConversationId, first: u64) -> Result<u64, Error>;

    /// What the last loss left. It is ahead of the events' own epoch where a reader has not been told yet.
    fn epoch(&self, conversation: ConversationId) -> Result<Epoch, Error>;

    /// Whether the conversation was deleted, as far as that matters: to whoever may still want to write to it. Once
    /// nothing is left of it, a restart forgets it.
    fn is_deleted(&self, conversation: ConversationId) -> Result<bool, Error>;

    /// Where a response lives.
    fn conversation_of_response(&self, response: ResponseId) -> Result<Option<ConversationId>, Error>;

    /// Where an intervention lives.
    fn conversation_of_intervention(&self, intervention: InterventionId) -> Result<Option<ConversationId>, Error>;

    /// Where an item lives, if it is there still: the conversation itself says.
    fn conversation_of_item(&self, item: ItemId) -> Result<Option<ConversationId>, Error>;

    /// At most `limit` of a principal's kept chats behind `after`, and where they live, if they are there still. In the
    /// order of their ids, which is that of their beginnings, or the newest first.
    fn chats(
        &self,
        principal: &str,
        after: Option<ResponseId>,
        newest_first: bool,
        limit: usize,
    ) -> Result<Vec<(ResponseId, ConversationId)>, Error>;

    /// The first answer to a request with this key.
    fn key(&self, scope: &KeyScope) -> Result<Option<KeyRecord>, Error>;

    /// The conversations whose last [`Record::Active`] said true, for the restart.
    fn active(&self) -> Result<Vec<ConversationId>, Error>;

    /// At most `limit` conversations behind `after`, by id.
    fn conversations(&self, after: Option<ConversationId>, limit: usize) -> Result<Vec<ConversationId>, Error>;

    /// Shows every record to `visit` with its conversation, until it fails. Returns how many cannot be read.
    fn records(&self, visit: &mut dyn FnMut(ConversationId, Record) -> Result<(), Error>) -> Result<usize, Error>;
}

/// Checks that these follow what is kept already of a conversation that has no events yet.
pub(super) fn check_kept(journal: &dyn Journal, kept: &[Kept]) -> Result<(), Error> {
    kept.iter().try_for_each(|kept| check_kept_of(journal, kept.conversation, &kept.events))
}

fn check_kept_of(journal: &dyn Journal, conversation: ConversationId, events: &[Recorded]) -> Result<(), Error> {
    if journal.is_deleted(conversation)? {
        return Err(Error::Deleted(conversation));
    }
    let last = journal.last_seq(conversation)?;
    if last + 1 != journal.oldest_seq(conversation)? {
        return Err(Error::Invalid(format!("{conversation} has events already; what is kept stands in front of them")));
    }
    let seqs = std::iter::once(last).chain(events.iter().map(|recorded| recorded.seq));
    if !seqs.clone().zip(seqs.skip(1)).all(|(before, behind)| before < behind) {
        return Err(Error::Invalid(format!("{conversation}: the seqs of what is kept do not grow")));
    }
    Ok(())
}

/// Checks batch after batch that it continues its journal.
pub(super) struct Sequence<'a> {
    journal: &'a dyn Journal,
    last_seqs: HashMap<ConversationId, u64>,
    deleted: HashSet<ConversationId>,
}

impl<'a> Sequence<'a> {
    pub(super) fn new(journal: &'a dyn Journal) -> Self {
        Self { journal, last_seqs: HashMap::new(), deleted: HashSet::new() }
    }

    /// Whether `batch` follows what was accepted before it; if so, the next one must follow it.
    pub(super) fn accept(&mut self, batch: &Batch) -> Result<(), Error> {
        let conversation = batch.conversation;
        if self.deleted.contains(&conversation) || self.journal.is_deleted(conversation)? {
            return Err(Error::Deleted(conversation));
        }
        if batch.events.is_empty() {
            self.note_deletion(batch);
            return Ok(());
        }
        let mut last = match self.last_seqs.get(&conversation) {
            Some(last) => *last,
            None => self.journal.last_seq(conversation)?,
        };
        for recorded in &batch.events {
            if recorded.seq != last + 1 {
                return Err(Error::Conflict { conversation, expected: last + 1, found: recorded.seq });
            }
            last = recorded.seq;
        }
        self.journal.check_place(batch)?;
        self.last_seqs.insert(conversation, last);
        self.note_deletion(batch);
        Ok(())
    }

    fn note_deletion(&mut self, batch: &Batch) {
        if batch.deletes() {
            self.deleted.insert(batch.conversation);
        }
    }
}
