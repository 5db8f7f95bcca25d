//! Readers: gapless views of one conversation, and the bounded fan-out that feeds them.
//!
//! The conversation's actor hands out the live tail and the state that goes with it in one step, so that there
//! is neither gap nor duplicate; what lies before is read from the journal by whoever reads, not by the actor.

use std::collections::VecDeque;
use std::sync::Arc;

use ractor::ActorRef;
use tokio::sync::mpsc;

use super::checkpoints::Checkpoints;
use super::conversation::ConversationMsg;
use super::offload::offload;
use crate::conversation::{Recorded, Reject, State};
use crate::error::Code;
use crate::ids::ConversationId;
use crate::store::Journal;

/// Events read from the journal at once.
pub(super) const PAGE_EVENTS: usize = 512;

/// A view of one conversation: what happened since a point, then what happens.
pub struct Reader {
    state: State,
    attached: State,
    backlog: VecDeque<Arc<Recorded>>,
    /// What lies between the backlog and the live tail is read from the journal when it is wanted.
    pages: Option<Pages>,
    live: mpsc::Receiver<Arc<Recorded>>,
    _presence: Presence,
}

impl Reader {
    /// The next event. `None`: the reader was too slow and is dropped, or the conversation's actor stopped;
    /// attach again behind the last event seen.
    pub async fn next(&mut self) -> Option<Arc<Recorded>> {
        if self.backlog.is_empty()
            && let Some(pages) = self.pages.as_mut().filter(|pages| pages.after < pages.upto)
        {
            // Deleted or damaged while it was read: the reader sees an end, and no gap.
            self.backlog = pages.next().await.ok().filter(|page| !page.is_empty())?;
        }
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

/// A stretch of a journal, read page by page.
struct Pages {
    journal: Arc<dyn Journal>,
    conversation: ConversationId,
    /// The last event that was read.
    after: u64,
    /// The last event of the stretch.
    upto: u64,
}

impl Pages {
    async fn next(&mut self) -> Result<VecDeque<Arc<Recorded>>, Reject> {
        let (journal, conversation, after) = (self.journal.clone(), self.conversation, self.after);
        let limit = PAGE_EVENTS.min(self.upto.saturating_sub(after) as usize);
        let page = offload(move || journal.read(conversation, after, limit)).await.map_err(|_| interrupted())?;
        let page: VecDeque<_> = page.map_err(|error| store_reject(&error))?.into_iter().map(Arc::new).collect();
        self.after += page.len() as u64;
        Ok(page)
    }

    /// Folds all up to `seq` into the state, and gives what was read beyond.
    async fn fold(&mut self, state: &mut State, seq: u64) -> Result<VecDeque<Arc<Recorded>>, Reject> {
        let mut page = VecDeque::new();
        while state.last_seq < seq {
            page = self.next().await?;
            if page.is_empty() {
                // Deleted while it was read: a reader must not see a gap.
                let text = format!("no conversation {}", self.conversation);
                return Err(Reject::new(Code::ConversationNotFound, text));
            }
            while let Some(recorded) = page.pop_front_if(|recorded| recorded.seq <= seq) {
                state.apply(&recorded);
            }
        }
        Ok(page)
    }
}

/// The live tail of a conversation, as the actor hands it out.
pub(super) struct Tail {
    /// The state in front of the tail's first event.
    pub(super) state: State,
    /// Earlier states, to read on from.
    pub(super) checkpoints: Checkpoints,
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
            pages: None,
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
        let (mut state, mut backlog, mut pages) = (State::default(), VecDeque::new(), None);
        match (self.history, self.state.id) {
            (Some(history), _) => {
                backlog = VecDeque::from(history);
                while let Some(recorded) = backlog.pop_front_if(|recorded| recorded.seq <= after) {
                    state.apply(&recorded);
                }
            }
            (None, Some(conversation)) => {
                state = self.checkpoints.before(after);
                let (from, upto) = (state.last_seq, last_seq);
                let pages = pages.insert(Pages { journal, conversation, after: from, upto });
                backlog = pages.fold(&mut state, after).await?;
            }
            (None, None) => {}
        }
        Ok(Reader { state, attached: self.state, backlog, pages, live: self.live, _presence: self.presence })
    }
}

/// Folds a whole journal, page by page, and keeps checkpoints on the way.
pub(super) async fn replay(
    journal: Arc<dyn Journal>,
    conversation: ConversationId,
    checkpoints: &mut Checkpoints,
) -> Result<State, Reject> {
    let (mut state, mut pages) = (State::default(), Pages { journal, conversation, after: 0, upto: u64::MAX });
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            return Ok(state);
        }
        for recorded in &page {
            state.apply(recorded);
        }
        checkpoints.note(&state);
    }
}

fn interrupted() -> Reject {
    Reject::new(Code::Internal, "reading the journal was interrupted; try again")
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
