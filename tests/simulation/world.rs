//! What outlives a simulated process: the disk, the clock, and what the clients remember and have seen.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use midstream::ids::{ConversationId, InterventionId, ResponseId};
use serde_json::{Value, json};

use crate::audit::History;
use crate::disk::Disk;
use crate::requests::Request;

/// When every simulation begins, in milliseconds since the Unix epoch.
const BEGINNING_MS: u64 = 1_800_000_000_000;

/// Everything but the process.
pub(crate) struct World {
    pub(crate) disk: Arc<Disk>,
    pub(crate) now_ms: Arc<AtomicU64>,
    pub(crate) clients: Mutex<Clients>,
}

/// What the clients know.
#[derive(Default)]
pub(crate) struct Clients {
    pub(crate) history: History,
    /// Conversations, with the responses that were acknowledged in them.
    pub(crate) conversations: Vec<(ConversationId, Vec<ResponseId>)>,
    /// Whose each of them is.
    pub(crate) owners: BTreeMap<ConversationId, &'static str>,
    /// Instructions that were accepted.
    pub(crate) steers: Vec<(ConversationId, InterventionId)>,
    /// Requests that may be repeated.
    pub(crate) sent: Vec<Request>,
    /// How far each stream has read: conversation and seq.
    pub(crate) streams: BTreeMap<u64, (ConversationId, u64)>,
    numbers: u64,
}

impl World {
    pub(crate) fn new() -> Arc<Self> {
        let now_ms = Arc::new(AtomicU64::new(BEGINNING_MS));
        Arc::new_cyclic(|world| Self { disk: Arc::new(Disk::new(world.clone())), now_ms, clients: Mutex::default() })
    }

    /// Adds to the history.
    pub(crate) fn note(&self, observation: Value) {
        self.clients.lock().unwrap().history.note(observation);
    }

    /// A number that nothing else in this world has.
    pub(crate) fn number(&self) -> u64 {
        let mut clients = self.clients.lock().unwrap();
        clients.numbers += 1;
        clients.numbers
    }

    /// Whose a conversation is that was opened here.
    pub(crate) fn owner(&self, conversation: ConversationId) -> &'static str {
        self.clients.lock().unwrap().owners[&conversation]
    }

    /// A reader of this principal begins behind `after`; gives its number.
    pub(crate) fn attached(&self, principal: &'static str, conversation: ConversationId, after: u64) -> u64 {
        self.attached_since(principal, conversation, after, None)
    }

    /// The same for one that began earlier, when that was the oldest event.
    pub(crate) fn attached_since(
        &self,
        principal: &'static str,
        conversation: ConversationId,
        after: u64,
        oldest_seq: Option<u64>,
    ) -> u64 {
        let stream = self.number();
        let mut clients = self.clients.lock().unwrap();
        clients.streams.insert(stream, (conversation, after));
        clients.history.note(json!({
            "kind": "attach",
            "stream": stream,
            "principal": principal,
            "conversation": conversation.to_string(),
            "after": after,
            "oldest_seq": oldest_seq,
        }));
        stream
    }

    /// A reader saw an event.
    pub(crate) fn saw(&self, stream: u64, seq: u64, text: &str) {
        let mut clients = self.clients.lock().unwrap();
        clients.streams.entry(stream).and_modify(|(_, last)| *last = seq);
        clients.history.note(json!({"kind": "event", "stream": stream, "seq": seq, "text": text}));
    }

    /// Moves the wall clock.
    pub(crate) fn set_clock(&self, change: impl Fn(u64) -> u64) {
        let now_ms = change(self.now_ms.load(Ordering::SeqCst));
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }
}
