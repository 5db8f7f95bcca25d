//! A principal's conversations, newest first. Whose a conversation is, its first event says; only those of the page
//! that is asked for are read as a whole.

use super::directory::DirectoryHandle;
use super::offload::offload;
use super::reader::{interrupted, store_reject};
use crate::conversation::{Event, Recorded, Reject, State};
use crate::ids::ConversationId;
use crate::store::{Error, Journal};

/// Conversations or events that are read at a time.
const READ_AT_ONCE: usize = 512;

/// A conversation as a list shows it.
#[derive(Debug)]
pub struct Listed {
    /// Where it stands.
    pub state: State,
    /// When its last event was decided, in milliseconds since the Unix epoch.
    pub last_ms: u64,
}

/// Which part of a list is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Only what stands behind this one.
    pub after: Option<ConversationId>,
    /// Most conversations.
    pub limit: usize,
    /// Oldest first.
    pub ascends: bool,
}

impl DirectoryHandle {
    /// A part of this principal's conversations by the time of their creation, and whether there are more behind it.
    pub async fn list(&self, principal: &str, part: Part) -> Result<(Vec<Listed>, bool), Reject> {
        let (journal, principal) = (self.parts.journal.clone(), principal.to_owned());
        // It reads for as long as there are conversations.
        let listed = offload(move || list(&*journal, &principal, part)).await.map_err(|_| interrupted())?;
        listed.map_err(|error| store_reject(&error))?.ok_or_else(|| {
            let id = part.after.map(|id| id.to_string()).unwrap_or_default();
            Reject::no_conversation(id).param("after")
        })
    }
}

/// None where the one to stand behind is not there.
fn list(journal: &dyn Journal, principal: &str, part: Part) -> Result<Option<(Vec<Listed>, bool)>, Error> {
    let mut own = all_of(journal, principal)?;
    own.sort_unstable();
    if !part.ascends {
        own.reverse();
    }
    let from = match part.after {
        None => 0,
        Some(after) => match own.iter().position(|(_, id)| *id == after) {
            Some(place) => place + 1,
            None => return Ok(None),
        },
    };
    let behind = &own[from..];
    let (mut listed, mut seen) = (Vec::new(), 0);
    for (_, id) in behind {
        if listed.len() == part.limit {
            break;
        }
        seen += 1;
        // One that is damaged, or was deleted meanwhile, does not keep the others from being shown.
        listed.extend(whole(journal, *id).ok().filter(|listed| !listed.state.deleted));
    }
    Ok(Some((listed, seen < behind.len())))
}

/// All conversations of the principal, with when they were created.
fn all_of(journal: &dyn Journal, principal: &str) -> Result<Vec<(u64, ConversationId)>, Error> {
    let mut own = Vec::new();
    let mut after = None;
    loop {
        let page = journal.conversations(after, READ_AT_ONCE)?;
        for id in &page {
            if let Ok(Some(first)) = first(journal, *id)
                && let Event::ConversationCreated { principal: of, .. } = &first.event
                && of == principal
            {
                own.push((first.at_ms, *id));
            }
        }
        match page.last() {
            Some(last) => after = Some(*last),
            None => return Ok(own),
        }
    }
}

fn first(journal: &dyn Journal, id: ConversationId) -> Result<Option<Recorded>, Error> {
    Ok(events(journal, id, 0, 1)?.pop())
}

/// Events behind `after`, or what is kept of them.
fn events(journal: &dyn Journal, id: ConversationId, after: u64, limit: usize) -> Result<Vec<Recorded>, Error> {
    if after + 1 < journal.oldest_seq(id)? { journal.kept(id, after, limit) } else { journal.read(id, after, limit) }
}

fn whole(journal: &dyn Journal, id: ConversationId) -> Result<Listed, Error> {
    let (mut state, mut after) = (State::default(), 0);
    loop {
        let page = events(journal, id, after, READ_AT_ONCE)?;
        for recorded in &page {
            state.apply(recorded);
        }
        match page.last() {
            Some(last) => after = last.seq,
            None => return Ok(Listed { state, last_ms: journal.last_at_ms(id)? }),
        }
    }
}
