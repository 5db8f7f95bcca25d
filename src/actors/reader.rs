//! Readers: gapless views of one conversation, and the bounded fan-out that feeds them.
//!
//! The conversation's actor hands out the live tail and the state that goes with it in one step, so that there
//! is neither gap nor duplicate; what lies before is read from the journal by whoever reads, not by the actor.

use std::collections::VecDeque;
use std::sync::Arc;

use ractor::ActorRef;
use tokio::sync::mpsc;

use super::conversation::ConversationMsg;
use super::offload::offload;
use crate::conversation::{Recorded, Reject, State};
use crate::error::Code;
use crate::ids::ConversationId;
use crate::store::Journal;

/// Events read from the journal at once.
const PAGE_EVENTS: usize = 512;

/// A view of one conversation: what happened since a point, then what happens.
pub struct Reader {
    state: State,
    attached: State,
    backlog: VecDeque<Arc<Recorded>>,
    live: mpsc::Receiver<Arc<Recorded>>,
    _presence: Presence,
}

impl Reader {
    /// The next event. `None`: the reader was too slow and is dropped, or the conversation's actor stopped;
    /// attach again behind the last event seen.
    pub async fn next(&mut self) -> Option<Arc<Recorded>> {
        let recorded = match self.backlog.pop_front() {
            Some(recorded) => recorded,
            None => self.live.recv().await?,
        };
        self.state.apply(&recorded);
        Some(recorded)
    }

    /// The state up to and including the event returned last.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The conversation as it stood when the reader was attached: what it then sees beyond this is live.
    pub fn attached(&self) -> &State {
        &self.attached
    }
}

/// Where a reader stands: the last event it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The epoch in which it saw it; none means the present one.
    pub epoch: Option<u64>,
    /// The event.
    pub seq: u64,
}

/// The live tail of a conversation, as the actor hands it out.
pub(super) struct Tail {
    /// The state in front of the tail's first event.
    pub(super) state: State,
    /// Everything before it, for conversations that are not journaled.
    pub(super) history: Option<Vec<Arc<Recorded>>>,
    pub(super) live: mpsc::Receiver<Arc<Recorded>>,
    pub(super) presence: Presence,
}

impl Tail {
    /// A reader that begins with the tail.
    pub(super) fn follow(self) -> Reader {
        Reader {
            attached: self.state.clone(),
            state: self.state,
            backlog: VecDeque::new(),
            live: self.live,
            _presence: self.presence,
        }
    }

    /// A reader that begins behind `cursor`.
    pub(super) async fn replay(self, journal: Arc<dyn Journal>, cursor: Cursor) -> Result<Reader, Reject> {
        let (last_seq, present) = (self.state.last_seq, self.state.epoch());
        let epoch = cursor.epoch.unwrap_or(present);
        if epoch > present {
            let text = format!("the epoch {epoch} has not begun; the conversation is in epoch {present}");
            return Err(Reject::new(Code::CursorInFuture, text).param("after").detail("last_seq", last_seq));
        }
        let after = self.state.resume_point(epoch, cursor.seq);
        if after > last_seq {
            let text = format!("the cursor {after} lies beyond the last event; the last seq is {last_seq}");
            return Err(Reject::new(Code::CursorInFuture, text).param("after").detail("last_seq", last_seq));
        }
        if after == last_seq {
            return Ok(self.follow());
        }
        let history = match (self.history, self.state.id) {
            (Some(history), _) => history,
            (None, Some(id)) => {
                let history = read_history(journal, id, last_seq).await?;
                if (history.len() as u64) < last_seq {
                    // Deleted while it was read: a reader must not see a gap.
                    return Err(Reject::new(Code::ConversationNotFound, format!("no conversation {id}")));
                }
                history
            }
            (None, None) => Vec::new(),
        };
        let mut state = State::default();
        let mut backlog = VecDeque::from(history);
        while let Some(recorded) = backlog.pop_front_if(|recorded| recorded.seq <= after) {
            state.apply(&recorded);
        }
        Ok(Reader { state, attached: self.state, backlog, live: self.live, _presence: self.presence })
    }
}

/// Reads a journal from its beginning, away from the async threads.
pub(super) async fn read_history(
    journal: Arc<dyn Journal>,
    id: ConversationId,
    upto: u64,
) -> Result<Vec<Arc<Recorded>>, Reject> {
    let read = move || {
        let mut history = Vec::new();
        while (history.len() as u64) < upto {
            let page = journal.read(id, history.len() as u64, PAGE_EVENTS)?;
            if page.is_empty() {
                break;
            }
            history.extend(page.into_iter().map(Arc::new));
        }
        history.truncate(upto as usize);
        Ok(history)
    };
    match offload(read).await {
        Ok(Ok(history)) => Ok(history),
        Ok(Err(error)) => Err(store_reject(&error)),
        Err(_) => Err(Reject::new(Code::Internal, "reading the journal was interrupted; try again")),
    }
}

/// What a client is told when the store refuses.
pub(super) fn store_reject(error: &crate::store::Error) -> Reject {
    if let crate::store::Error::Deleted(id) = error {
        return Reject::new(Code::ConversationNotFound, format!("no conversation {id}"));
    }
    tracing::error!(%error, "the store refused");
    match error {
        crate::store::Error::Damaged { .. } => Reject::new(
            Code::ConversationDamaged,
            "the conversation's journal is damaged and set aside; other conversations are not affected",
        ),
        _ => Reject::new(Code::StorageUnavailable, "the journal cannot be used; nothing was changed, retry later"),
    }
}

/// Tells the actor when a reader is gone.
pub(super) struct Presence(ActorRef<ConversationMsg>);

impl Drop for Presence {
    fn drop(&mut self) {
        // Fails only when the actor is gone, and then nobody needs to know.
        let _ = self.0.cast(ConversationMsg::ReaderGone);
    }
}

/// All readers of one conversation.
#[derive(Default)]
pub(super) struct Fanout {
    readers: Vec<mpsc::Sender<Arc<Recorded>>>,
}

impl Fanout {
    /// Adds a reader whose queue holds at most `bound` events.
    pub(super) fn join(
        &mut self,
        myself: &ActorRef<ConversationMsg>,
        bound: usize,
    ) -> (mpsc::Receiver<Arc<Recorded>>, Presence) {
        let (sender, receiver) = mpsc::channel(bound);
        self.readers.push(sender);
        (receiver, Presence(myself.clone()))
    }

    /// Gives an event to every reader; one whose queue is full is dropped, and resumes from the journal.
    pub(super) fn publish(&mut self, recorded: &Arc<Recorded>) {
        self.readers.retain(|reader| reader.try_send(recorded.clone()).is_ok());
    }

    /// How many readers are there.
    pub(super) fn count(&mut self) -> usize {
        self.readers.retain(|reader| !reader.is_closed());
        self.readers.len()
    }
}
