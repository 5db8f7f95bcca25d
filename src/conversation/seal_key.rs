//! The key that a response's items are sealed with, as it is recorded. What a seal is, is not known here.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::ResponseId;

/// A key of 32 bytes. Successors of a response inherit it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealKey {
    /// The response that it was derived for.
    pub of: ResponseId,
    /// The key, stored as hex digits.
    #[serde(serialize_with = "to_digits", deserialize_with = "of_digits")]
    pub key: [u8; 32],
}

impl fmt::Debug for SealKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SealKey(..)")
    }
}

fn to_digits<S: Serializer>(key: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    let mut digits = String::with_capacity(64);
    for byte in key {
        digits.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
    }
    serializer.serialize_str(&digits)
}

fn of_digits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
    let text = String::deserialize(deserializer)?;
    let mut key = [0; 32];
    let digits = |place: usize| u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok();
    for (place, byte) in key.iter_mut().enumerate() {
        *byte = digits(place).ok_or_else(|| serde::de::Error::custom("a key has 64 hex digits"))?;
    }
    Ok(key)
}
