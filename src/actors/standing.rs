//! Whose a generation is, as the engine knows it: with whom it takes turns, and with whom it shares keys and values.

use sha2::{Digest, Sha256};

use crate::access::LOCAL;
use crate::conversation::{ResponseConfig, State};
use crate::ids::ConversationId;

/// KV is shared between sequences of equal salt only; those of the default tenant that name none have this one.
pub(super) const CACHE_SALT: u64 = 0;

/// Who takes turns with others: a principal. Where there is but one, each conversation, or all choices of one request.
/// It is a name, no more.
pub(super) fn owner(state: &State, config: &ResponseConfig) -> u64 {
    if state.principal != LOCAL {
        return digest(b"principal", &[state.principal.as_bytes()]);
    }
    let bytes = match config.choice {
        Some(choice) => choice.first.to_bytes(),
        None => state.id.map_or([0; 16], ConversationId::to_bytes),
    };
    u128::from_be_bytes(bytes) as u64
}

/// With whom a generation shares keys and values: with its tenant's that name the same cache. What a client names is
/// the hash of a text; a tenant's salt is hashed behind a byte that no text has, so that no client can ask for it.
pub(super) fn salt(tenant: Option<&str>, config: &ResponseConfig) -> u64 {
    let named = config.extras.cache_salt.unwrap_or(CACHE_SALT);
    match tenant {
        None => named,
        Some(tenant) => digest(b"\xfftenant", &[tenant.as_bytes(), &named.to_le_bytes()]).max(CACHE_SALT + 1),
    }
}

/// The beginning of a hash for this purpose, of the parts, each behind its length.
fn digest(purpose: &[u8], parts: &[&[u8]]) -> u64 {
    let mut hash = Sha256::new_with_prefix(purpose);
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_and_named_caches_have_salts_of_their_own_that_nobody_can_ask_for() {
        let of = |tenant: Option<&str>, named: Option<u64>| {
            let mut config = ResponseConfig::new("m", "f");
            config.extras.cache_salt = named;
            salt(tenant, &config)
        };
        assert_eq!((of(None, None), of(None, Some(5))), (CACHE_SALT, 5), "as it was before there were tenants");
        let all = [of(Some("red"), None), of(Some("blue"), None), of(Some("red"), Some(5)), of(Some("red"), Some(6))];
        for (place, salt) in all.iter().enumerate() {
            assert!(*salt > 6 && !all[..place].contains(salt));
        }
        assert_eq!(of(Some("red"), Some(5)), all[2]);
    }

    #[test]
    fn conversations_take_turns_where_there_is_one_principal_and_principals_where_there_are_several() {
        let of = |principal: &str, id: u8| {
            let (id, principal) = (Some(ConversationId::from_bytes([id; 16])), principal.to_owned());
            owner(&State { id, principal, ..State::default() }, &ResponseConfig::new("m", "f"))
        };
        assert_ne!(of(LOCAL, 1), of(LOCAL, 2));
        assert_eq!(of("ann", 1), of("ann", 2));
        assert_ne!(of("ann", 1), of("bob", 1));
    }
}
