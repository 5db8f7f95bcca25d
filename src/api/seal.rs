//! What is given to a client to keep and to bring back, and for nobody else to read or to change: reasoning and
//! summaries, sealed. Who keeps nothing here gets its conversation back from what it brings.
//!
//! Each response has a key of its own, which follows from the server's and which its successors inherit; each item is
//! sealed once, under a nonce that is its id, so that the same item always looks the same.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{Key, KeyInit, XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::access::LOCAL;
use crate::conversation::{Made, SealKey};
use crate::ids::{ItemId, ResponseId};

/// Says how the rest is laid out: the id of the response whose key it is, the item's, and the sealed text.
const VERSION: u8 = 1;
const ID_BYTES: usize = 16;
const HEAD_BYTES: usize = 1 + 2 * ID_BYTES;
/// What keys are derived for.
const PURPOSE: &[u8] = b"midstream seal 1";
/// And for whom.
const PRINCIPAL: &[u8] = b"midstream seal of 1";

/// The server's key.
#[derive(Clone)]
pub struct Seal([u8; 32]);

impl fmt::Debug for Seal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Seal(..)")
    }
}

impl Seal {
    /// Seals with this key.
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// The seal of one principal: what it opens was sealed for the same. That of a server without keys is the server's
    /// own, so that its owner can still open what was sealed before there were keys.
    pub(crate) fn of(&self, principal: &str) -> Self {
        if principal == LOCAL {
            return self.clone();
        }
        let mut hash = Sha256::new();
        hash.update(PRINCIPAL);
        hash.update(self.0);
        hash.update(principal);
        Self(hash.finalize().into())
    }

    /// The key of one response.
    pub(crate) fn key(&self, id: ResponseId) -> SealKey {
        let mut hash = Sha256::new();
        hash.update(PURPOSE);
        hash.update(self.0);
        hash.update(id.to_bytes());
        SealKey { of: id, key: hash.finalize().into() }
    }

    /// What this server sealed; nothing of what anybody else did, or changed.
    pub(crate) fn open(&self, sealed: &str) -> Option<Kept> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (head, body) = bytes.split_at_checked(HEAD_BYTES)?;
        let id = |from: usize| <[u8; ID_BYTES]>::try_from(&head[from..from + ID_BYTES]).ok();
        if head[0] != VERSION {
            return None;
        }
        let (response, item) = (ResponseId::from_bytes(id(1)?), ItemId::from_bytes(id(1 + ID_BYTES)?));
        let kept = cipher(&self.key(response)).decrypt(&nonce(item), Payload { msg: body, aad: head }).ok()?;
        serde_json::from_slice(&kept).ok()
    }
}

/// What is kept of an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// What it says.
    pub(crate) text: String,
    /// What it was made of, so that a prompt with it is token for token what it was.
    pub(crate) made: Made,
}

/// Seals what is kept of an item. The item must not change any more.
pub(crate) fn sealed(key: &SealKey, item: ItemId, kept: &Kept) -> Option<String> {
    let mut bytes = vec![VERSION];
    bytes.extend(key.of.to_bytes());
    bytes.extend(item.to_bytes());
    let kept = serde_json::to_vec(kept).ok()?;
    let body = cipher(key).encrypt(&nonce(item), Payload { msg: &kept, aad: &bytes }).ok()?;
    bytes.extend(body);
    Some(URL_SAFE_NO_PAD.encode(bytes))
}

fn cipher(key: &SealKey) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&Key::from(key.key))
}

fn nonce(item: ItemId) -> XNonce {
    let mut nonce = [0; 24];
    nonce[..ID_BYTES].copy_from_slice(&item.to_bytes());
    XNonce::from(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::FreshIds;

    #[test]
    fn only_what_this_server_sealed_is_opened_and_only_as_it_was() {
        let fresh = &mut FreshIds::random();
        let (response, item) = (ResponseId::draw(fresh), ItemId::draw(fresh));
        let (own, other) = (Seal::new([7; 32]), Seal::new([8; 32]));
        let native = Some(serde_json::json!({"signature": "s"}));
        let made = Made { fingerprint: "f".to_owned(), tokens: vec![1, 70_000], native };
        let kept = Kept { text: "hm, \u{1F44B}\n\"well\"".to_owned(), made };
        let said = sealed(&own.key(response), item, &kept).unwrap();
        assert_eq!(own.open(&said).as_ref(), Some(&kept));
        assert_eq!(sealed(&own.key(response), item, &kept).unwrap(), said, "the same item looks the same");
        assert_eq!(other.open(&said), None);
        assert_eq!(own.of(LOCAL).open(&said).as_ref(), Some(&kept));
        let (ann, bob) = (own.of("ann"), own.of("bob"));
        let hers = sealed(&ann.key(response), item, &kept).unwrap();
        assert_eq!((ann.open(&hers), bob.open(&hers), own.open(&hers)), (Some(kept.clone()), None, None));
        assert!(!said.contains("well"));
        let bytes = URL_SAFE_NO_PAD.decode(&said).unwrap();
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            assert_eq!(own.open(&URL_SAFE_NO_PAD.encode(&changed)), None, "byte {place}");
            assert_eq!(own.open(&URL_SAFE_NO_PAD.encode(&bytes[..place])), None, "up to byte {place}");
        }
        for foreign in ["", "gAAAAABo", "no base64!", "\u{fc}"] {
            assert_eq!(own.open(foreign), None);
        }
    }
}
