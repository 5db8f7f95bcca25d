//! By what a conversation is known to upstreams: how it begins. That is the same in each turn, whoever keeps the
//! transcript, and in every version of this program, so that what is cached of a prompt is found again.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::prompt::{Message, Role};

/// Bytes of a key for caches; as hexadecimal digits they are twice as many, of 64 that OpenAI takes.
const KEY_BYTES: usize = 16;

/// What is the same in each turn of a conversation: all up to the first that a user says.
pub(super) fn beginning(messages: &[Message]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for message in messages {
        hasher.update([message.role as u8]);
        hasher.update((message.content.len() as u64).to_le_bytes());
        hasher.update(message.content.as_bytes());
        if message.role == Role::User {
            break;
        }
    }
    hasher.finalize().into()
}

/// What the upstream of this name draws for a conversation: the highest has it.
pub(super) fn drawn(conversation: &[u8; 32], name: &str) -> u64 {
    let drawn: [u8; 32] = Sha256::new().chain_update(conversation).chain_update(name).finalize().into();
    let (first, _) = drawn.split_first_chunk().unwrap_or((&[0; 8], &[]));
    u64::from_le_bytes(*first)
}

/// The key under which a provider keeps what it cached of the conversation's prompt.
pub(super) fn cache_key(messages: &[Message]) -> String {
    beginning(messages)[..KEY_BYTES].iter().fold(String::new(), |mut key, byte| {
        let _ = write!(key, "{byte:02x}");
        key
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_known_by_its_beginning_in_every_turn_and_version() {
        let said = |role, text: &str| Message::text(role, text);
        let first = [said(Role::System, "Be kind."), said(Role::User, "Hi")];
        let later = [first[0].clone(), first[1].clone(), said(Role::Assistant, "Hello"), said(Role::User, "Bye")];
        assert_eq!(cache_key(&first), cache_key(&later));
        assert_ne!(cache_key(&first), cache_key(&first[1..]));
        assert_ne!(cache_key(&[said(Role::System, "a"), said(Role::User, "b")]), cache_key(&[said(Role::User, "ab")]));
        // Another value would send every conversation away from where its prompt is cached.
        assert_eq!(cache_key(&first), "8fb8906ce7e17b5af74f1b96cc460b34");
        assert_eq!(drawn(&beginning(&first), "gpu"), 0x9aab_c647_85ef_dda7);
    }
}
