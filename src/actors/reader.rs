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
use crate::telemetry;

/// Events read from the journal at once.
pub(super) const PAGE_EVENTS: usize = 512;

/// A view of one conversation: what happened since a point, then what happens.
pub struct Reader {
    state: State,
    attached: State,
    oldest_seq: u64,
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
            // Deleted, damaged or trimmed while it was read: the reader sees an end, and no gap.
            self.backlog = pages.next().await.ok().filter(|page| !page.is_empty())?;
        }
        let recorded = match self.backlog.pop_front() {
            Some(recorded) => recorded,
            None => self.live.recv().await?,
        };
        self.state.apply_next(&recorded);
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

    /// The first event of the conversation that could be read when the reader was attached.
    pub fn oldest_seq(&self) -> u64 {
        self.oldest_seq
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

    /// Folds all up to `seq` into the state, and gives what was read beyond. Refused where `seq` was trimmed.
    async fn fold(&mut self, state: &mut State, seq: u64) -> Result<VecDeque<Arc<Recorded>>, Reject> {
        let mut page = VecDeque::new();
        while state.last_seq < seq {
            page = match self.next().await {
                Err(expired) if expired.code == Code::CursorExpired => {
                    *state = self.fold_kept(u64::MAX).await?;
                    if state.last_seq > seq {
                        return Err(expired);
                    }
                    continue;
                }
                page => page?,
            };
            if page.is_empty() {
                // Deleted while it was read: a reader must not see a gap.
                return Err(Reject::no_conversation(self.conversation));
            }
            while let Some(recorded) = page.pop_front_if(|recorded| recorded.seq <= seq) {
                state.apply_next(&recorded);
            }
        }
        Ok(page)
    }

    /// The state that what is kept of trimmed events up to `upto` folds to. What is read next follows it.
    async fn fold_kept(&mut self, upto: u64) -> Result<State, Reject> {
        let mut state = State::default();
        while state.last_seq < upto {
            let (journal, conversation, after) = (self.journal.clone(), self.conversation, state.last_seq);
            let page = offload(move || journal.kept(conversation, after, PAGE_EVENTS)).await;
            let page = page.map_err(|_| interrupted())?.map_err(|error| store_reject(&error))?;
            if page.is_empty() {
                break;
            }
            page.iter().take_while(|recorded| recorded.seq <= upto).for_each(|recorded| state.apply(recorded));
            if page.last().is_some_and(|last| last.seq > state.last_seq) {
                break;
            }
        }
        self.after = state.last_seq;
        Ok(state)
    }
}

/// The live tail of a conversation, as the actor hands it out.
pub(super) struct Tail {
    /// The state in front of the tail's first event.
    pub(super) state: State,
    /// The first event that can be read.
    pub(super) oldest_seq: u64,
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
            oldest_seq: self.oldest_seq,
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
            let text = format!(
                "the epoch {epoch} has not begun; take a cursor of epoch {present}, in which the conversation is"
            );
            return Err(Reject::new(Code::CursorInFuture, text).param("after").detail("last_seq", last_seq));
        }
        let after = self.state.resume_point(epoch, cursor.seq);
        if after > last_seq {
            let text = format!(
                "the cursor {after} lies beyond the last event; attach at {last_seq}, the last seq, or before it"
            );
            return Err(Reject::new(Code::CursorInFuture, text).param("after").detail("last_seq", last_seq));
        }
        if after + 1 < self.oldest_seq {
            return Err(expired(self.oldest_seq));
        }
        if after == last_seq {
            return Ok(self.follow());
        }
        let (mut state, mut backlog, mut pages) = (State::default(), VecDeque::new(), None);
        match (self.history, self.state.id) {
            (Some(history), _) => {
                backlog = VecDeque::from(history);
                while let Some(recorded) = backlog.pop_front_if(|recorded| recorded.seq <= after) {
                    state.apply_next(&recorded);
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
        let (attached, oldest_seq) = (self.state, self.oldest_seq);
        Ok(Reader { state, attached, oldest_seq, backlog, pages, live: self.live, _presence: self.presence })
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
        let page = match pages.next().await {
            // Also where events are trimmed while they are read: what is kept folds to the same.
            Err(expired) if expired.code == Code::CursorExpired => {
                state = pages.fold_kept(u64::MAX).await?;
                continue;
            }
            page => page?,
        };
        if page.is_empty() {
            return Ok(state);
        }
        for recorded in &page {
            state.apply_next(recorded);
        }
        checkpoints.note(&state);
    }
}

/// The state behind an event that can be read, or that was trimmed and is kept as it was; and the event.
pub(super) async fn kept_at(
    journal: Arc<dyn Journal>,
    conversation: ConversationId,
    seq: u64,
) -> Result<(State, Recorded), Reject> {
    let (mut pages, mut state) = (Pages { journal, conversation, after: 0, upto: u64::MAX }, State::default());
    let found = match pages.fold(&mut state, seq - 1).await {
        Err(expired) if expired.code == Code::CursorExpired => {
            state = pages.fold_kept(seq - 1).await?;
            let (journal, after) = (pages.journal, pages.after);
            let page = offload(move || journal.kept(conversation, after, 1)).await.map_err(|_| interrupted())?;
            page.map_err(|error| store_reject(&error))?.pop()
        }
        // A repair may cut among what is kept; the response then ends behind the oldest event.
        page => {
            let mut page = page?;
            if page.is_empty() {
                page = pages.next().await?;
            }
            page.pop_front().map(Arc::unwrap_or_clone)
        }
    };
    let missing = || Reject::new(Code::Internal, format!("the event {seq} is not among those that are kept"));
    let recorded = found.filter(|recorded| recorded.seq == seq).ok_or_else(missing)?;
    state.apply(&recorded);
    Ok((state, recorded))
}

/// The cursor lies in front of what can be read.
pub(super) fn expired(oldest_seq: u64) -> Reject {
    let text = format!(
        "the events behind this cursor are no longer kept; the oldest is {oldest_seq}: read on from there, and take \
         what came before it from the conversation's items"
    );
    telemetry::cursor_expired();
    Reject::new(Code::CursorExpired, text).param("after").detail("oldest_seq", oldest_seq)
}

pub(super) fn interrupted() -> Reject {
    Reject::new(Code::Internal, "reading the journal was interrupted; try again")
}

/// What a client is told when the store refuses.
pub(super) fn store_reject(error: &crate::store::Error) -> Reject {
    if let crate::store::Error::Deleted(id) = error {
        return Reject::no_conversation(id);
    }
    if let crate::store::Error::Expired { oldest_seq, .. } = error {
        return expired(*oldest_seq);
    }
    tracing::error!(%error, "the store refused");
    match error {
        crate::store::Error::Damaged { .. } => Reject::new(
            Code::ConversationDamaged,
            "the conversation's journal is damaged and set aside, others are not affected; the operator can mend it \
             with `midstream conversations repair`",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::talk;
    use crate::store::{Batch, Durability, MemoryJournal};

    /// A conversation that is read in several pages, and a border behind the first two.
    fn filled() -> (Arc<MemoryJournal>, ConversationId, Vec<Recorded>, u64) {
        let (journal, conversation) = (Arc::new(MemoryJournal::new()), ConversationId::from_bytes([1; 16]));
        let (turns, turn) = (40, 60);
        let events = talk(conversation, turns);
        let (records, durability) = (Vec::new(), Durability::Group);
        journal.append(&[Batch { conversation, events: events.clone(), records, durability }]).unwrap();
        (journal, conversation, events, 1 + turn * 30)
    }

    fn fold(events: &[Recorded]) -> State {
        let mut state = State::default();
        for recorded in events {
            state.apply(recorded);
        }
        state
    }

    #[tokio::test]
    async fn what_is_trimmed_between_two_pages_of_a_fold_is_folded_from_what_is_kept() {
        let (journal, conversation, events, border) = filled();
        let mut pages = Pages { journal: journal.clone(), conversation, after: 0, upto: u64::MAX };
        let mut state = State::default();
        pages.next().await.unwrap().iter().for_each(|recorded| state.apply(recorded));
        assert!(state.last_seq + 1 < border);
        journal.trim(conversation, border).unwrap();
        let rest = pages.fold(&mut state, border + 70).await.unwrap();
        assert_eq!(state, fold(&events[..border as usize + 70]));
        assert_eq!(rest[0].seq, border + 71);
        let mut pages = Pages { journal, conversation, after: 0, upto: u64::MAX };
        let refused = pages.fold(&mut State::default(), border - 2).await.unwrap_err();
        assert_eq!(refused.code, Code::CursorExpired);
    }

    #[tokio::test]
    async fn a_whole_replay_begins_with_what_is_kept() {
        let (journal, conversation, events, border) = filled();
        journal.trim(conversation, border).unwrap();
        let state = replay(journal.clone(), conversation, &mut Checkpoints::default()).await.unwrap();
        assert_eq!(state, fold(&events));
        let created = state.responses[3].created_seq;
        let (then, recorded) = kept_at(journal.clone(), conversation, created).await.unwrap();
        assert_eq!((then, &recorded), (fold(&events[..created as usize]), &events[created as usize - 1]));
        assert_eq!(kept_at(journal, conversation, created + 7).await.unwrap_err().code, Code::Internal);
    }

    #[tokio::test]
    async fn what_a_repair_let_end_behind_the_oldest_event_is_found_there() {
        let (journal, conversation, events, border) = filled();
        journal.trim(conversation, border).unwrap();
        for seq in [border - 1, border, border + 1, border + 590] {
            let (state, recorded) = kept_at(journal.clone(), conversation, seq).await.unwrap();
            assert_eq!((state, &recorded), (fold(&events[..seq as usize]), &events[seq as usize - 1]), "{seq}");
        }
    }

    #[tokio::test]
    async fn a_page_that_was_trimmed_is_none_and_no_gap() {
        let (journal, conversation, _, border) = filled();
        let mut pages = Pages { journal: journal.clone(), conversation, after: 0, upto: u64::MAX };
        pages.next().await.unwrap();
        journal.trim(conversation, border).unwrap();
        assert_eq!(pages.next().await.unwrap_err().code, Code::CursorExpired);
    }
}
