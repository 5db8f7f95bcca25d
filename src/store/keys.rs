//! The layout of keys in the one tree: the first byte is the kind, ids and numbers follow big endian, so that
//! keys sort as ids and seqs do. Changing it is a migration.

use std::ops::Bound;

use sha2::{Digest, Sha256};

use super::journal::KeyScope;
use crate::ids::{ConversationId, InterventionId, ItemId, ResponseId};

/// Journals: conversation, seq, chunk.
pub(super) const JOURNAL: u8 = b'j';
/// The last seq of each conversation.
pub(super) const HEAD: u8 = b'h';
/// Up to which seq each conversation is folded.
pub(super) const FOLDED: u8 = b'f';
/// What is kept of events that were trimmed: conversation, seq, chunk. Rows from the oldest event on are not seen yet.
pub(super) const KEPT: u8 = b'b';
/// The first event that can be read of each conversation of which some were trimmed.
pub(super) const OLDEST: u8 = b'o';
/// Conversations that were deleted.
pub(super) const DELETED: u8 = b'd';
/// What the last cut of a conversation left.
pub(super) const EPOCH: u8 = b'e';
/// Conversations with outstanding work.
pub(super) const ACTIVE: u8 = b'a';
/// Responses to conversations.
pub(super) const RESPONSE: u8 = b'r';
/// Interventions to conversations.
pub(super) const INTERVENTION: u8 = b'i';
/// Idempotency keys.
pub(super) const IDEMPOTENCY: u8 = b'k';
/// Items to conversations, see `lookups.rs`.
pub(super) const ITEM: u8 = b't';
/// Chats that are kept, by whose they are, to conversations; see `lookups.rs`.
pub(super) const CHAT: u8 = b'c';
/// Every kind whose rows the tally counts.
pub(super) const INDEX: [u8; 8] = [HEAD, OLDEST, DELETED, EPOCH, ACTIVE, RESPONSE, INTERVENTION, IDEMPOTENCY];
/// The schema number.
pub(super) const SCHEMA: &[u8] = b"mschema";
/// How much was written.
pub(super) const TALLY: &[u8] = b"mtally";

/// The id's bytes lie behind the kind.
const ID_END: usize = 17;

fn with_id(kind: u8, id: [u8; 16]) -> Vec<u8> {
    let mut key = Vec::with_capacity(27);
    key.push(kind);
    key.extend_from_slice(&id);
    key
}

pub(super) fn head(conversation: ConversationId) -> Vec<u8> {
    with_id(HEAD, conversation.to_bytes())
}

pub(super) fn folded(conversation: ConversationId) -> Vec<u8> {
    with_id(FOLDED, conversation.to_bytes())
}

pub(super) fn oldest(conversation: ConversationId) -> Vec<u8> {
    with_id(OLDEST, conversation.to_bytes())
}

pub(super) fn deleted(conversation: ConversationId) -> Vec<u8> {
    with_id(DELETED, conversation.to_bytes())
}

pub(super) fn epoch(conversation: ConversationId) -> Vec<u8> {
    with_id(EPOCH, conversation.to_bytes())
}

pub(super) fn active(conversation: ConversationId) -> Vec<u8> {
    with_id(ACTIVE, conversation.to_bytes())
}

pub(super) fn response(response: ResponseId) -> Vec<u8> {
    with_id(RESPONSE, response.to_bytes())
}

pub(super) fn intervention(intervention: InterventionId) -> Vec<u8> {
    with_id(INTERVENTION, intervention.to_bytes())
}

pub(super) fn item(item: ItemId) -> Vec<u8> {
    with_id(ITEM, item.to_bytes())
}

/// One chat of this principal, whose name is hashed: it may be of any length. They sort as their ids do.
pub(super) fn chat(principal: &str, response: ResponseId) -> Vec<u8> {
    let mut key = vec![CHAT];
    key.extend_from_slice(&Sha256::digest(principal.as_bytes())[..16]);
    key.extend_from_slice(&response.to_bytes());
    key
}

/// The response in the key of a chat.
pub(super) fn chat_response(key: &[u8]) -> Option<ResponseId> {
    key.get(ID_END..)?.try_into().ok().map(ResponseId::from_bytes)
}

/// The keys of a principal's chats behind `after`, or in front of it where the newest come first.
pub(super) fn chats(
    principal: &str,
    after: Option<ResponseId>,
    newest_first: bool,
) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let at = |bytes| Bound::Included(chat(principal, ResponseId::from_bytes(bytes)));
    let (first, last) = (at([0; 16]), at([0xff; 16]));
    match after.map(|after| Bound::Excluded(chat(principal, after))) {
        None => (first, last),
        Some(after) if newest_first => (first, after),
        Some(after) => (after, last),
    }
}

/// One chunk of one event.
pub(super) fn event(conversation: ConversationId, seq: u64, chunk: u16) -> Vec<u8> {
    row(JOURNAL, conversation, seq, chunk)
}

/// One chunk of what is kept of a trimmed event.
pub(super) fn kept(conversation: ConversationId, seq: u64, chunk: u16) -> Vec<u8> {
    row(KEPT, conversation, seq, chunk)
}

/// One chunk of one event of either kind.
pub(super) fn row(kind: u8, conversation: ConversationId, seq: u64, chunk: u16) -> Vec<u8> {
    let mut key = with_id(kind, conversation.to_bytes());
    key.extend_from_slice(&seq.to_be_bytes());
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

/// The seq and chunk of an event's key.
pub(super) fn event_parts(key: &[u8]) -> Option<(u64, u16)> {
    let (seq, chunk) = key.get(ID_END..)?.split_first_chunk()?;
    Some((u64::from_be_bytes(*seq), u16::from_be_bytes(chunk.try_into().ok()?)))
}

/// A scope is hashed, parts length-prefixed: the client's key may be long, and must not run into its neighbours.
pub(super) fn idempotency(scope: &KeyScope) -> Vec<u8> {
    let operation = format!("{:?}", scope.operation);
    let conversation = scope.conversation.map(|id| id.to_string()).unwrap_or_default();
    let mut hash = Sha256::new();
    for part in [&scope.principal, &conversation, &operation, &scope.key] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let mut key = vec![IDEMPOTENCY];
    key.extend_from_slice(&hash.finalize());
    key
}

/// The 16 bytes of the id behind the kind.
pub(super) fn id(key: &[u8]) -> Option<[u8; 16]> {
    key.get(1..ID_END)?.try_into().ok()
}
