//! The name of a full block: a hash over everything its values depend on.
//!
//! Each part carries its own tag and length, so that no two different lists of parts give the same bytes.

use sha2::{Digest, Sha256};

/// Names the content of one full block, and through its parent that of all blocks before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockKey([u8; 32]);

impl BlockKey {
    /// A key with these bytes, for tests that need two contents under one key.
    #[cfg(test)]
    pub(crate) const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// What the values in a block depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyParts<'a> {
    /// The model's fingerprint.
    pub(crate) model: &'a str,
    /// How keys and values are stored, e.g. `f16`.
    pub(crate) kv_type: &'a str,
    /// KV is shared between sequences of equal salt only.
    pub(crate) salt: u64,
    /// The block before this one; none for the first.
    pub(crate) parent: Option<BlockKey>,
    /// The block's tokens.
    pub(crate) tokens: &'a [u32],
}

/// SHA-256 over the tagged, length-prefixed parts.
pub(super) fn block_key(parts: &KeyParts<'_>) -> BlockKey {
    let mut hash = Sha256::new();
    part(&mut hash, b'm', parts.model.len(), parts.model.as_bytes());
    part(&mut hash, b'k', parts.kv_type.len(), parts.kv_type.as_bytes());
    part(&mut hash, b's', 8, &parts.salt.to_le_bytes());
    match parts.parent {
        Some(parent) => part(&mut hash, b'p', parent.0.len(), &parent.0),
        None => part(&mut hash, b'p', 0, &[]),
    }
    let tokens: Vec<u8> = parts.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    part(&mut hash, b't', tokens.len(), &tokens);
    BlockKey(hash.finalize().into())
}

/// Adds one part: tag, length, bytes.
fn part(hash: &mut Sha256, tag: u8, length: usize, bytes: &[u8]) {
    hash.update([tag]);
    hash.update((length as u64).to_le_bytes());
    hash.update(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(tokens: &[u32]) -> KeyParts<'_> {
        KeyParts { model: "m", kv_type: "f16", salt: 0, parent: None, tokens }
    }

    #[test]
    fn every_part_changes_the_key() {
        let base = parts(&[1, 2, 3]);
        let parent = Some(block_key(&base));
        let keys = [
            base,
            KeyParts { model: "n", ..base },
            KeyParts { kv_type: "q8", ..base },
            KeyParts { model: "mf", kv_type: "16", ..base },
            KeyParts { salt: 1, ..base },
            KeyParts { parent, ..base },
            KeyParts { tokens: &[1, 2], ..base },
            KeyParts { tokens: &[1, 3, 2], ..base },
        ]
        .map(|parts| block_key(&parts));
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert_eq!(block_key(&base), block_key(&parts(&[1, 2, 3])));
    }
}
