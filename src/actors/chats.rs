//! Chat completions that their client keeps, found by whose they are. They are read from the journal: looking at a page
//! of them wakes nobody.

use super::checkpoints::Checkpoints;
use super::directory::DirectoryHandle;
use super::offload::offload;
use super::reader::{replay, store_reject};
use crate::conversation::{Reject, Response, State};
use crate::error::Code;
use crate::ids::ResponseId;

/// Chats whose places are looked up at once.
const CHATS_AT_ONCE: usize = 64;

/// Where a page of chats begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatsFrom {
    /// The last one of the page before.
    pub after: Option<ResponseId>,
    /// Else the oldest are.
    pub newest_first: bool,
}

impl DirectoryHandle {
    /// At most `limit` of a principal's kept chats that are wanted, each with the conversation that it lives in. One
    /// that cannot be read is left out: it stands in no other's way.
    pub async fn chats(
        &self,
        principal: &str,
        from: ChatsFrom,
        limit: usize,
        wanted: impl Fn(&State, &Response) -> bool + Send,
    ) -> Result<Vec<(State, ResponseId)>, Reject> {
        let ChatsFrom { mut after, newest_first } = from;
        let mut found = Vec::new();
        loop {
            let (journal, owner) = (self.parts.journal.clone(), principal.to_owned());
            let page = offload(move || journal.chats(&owner, after, newest_first, CHATS_AT_ONCE)).await;
            let page = page.map_err(|_| Reject::new(Code::Internal, "looking for the chats failed"))?;
            let page = page.map_err(|error| store_reject(&error))?;
            let Some((last, _)) = page.last() else { return Ok(found) };
            after = Some(*last);
            for (id, conversation) in page {
                let journal = self.parts.journal.clone();
                let state = match replay(journal, conversation, &mut Checkpoints::default()).await {
                    Err(damaged) if damaged.code == Code::ConversationDamaged => continue,
                    state => state?,
                };
                let is_wanted = |response| state.principal == principal && wanted(&state, response);
                if state.response(id).is_some_and(is_wanted) {
                    found.push((state, id));
                }
                if found.len() == limit {
                    return Ok(found);
                }
            }
        }
    }
}
