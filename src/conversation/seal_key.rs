//! The key that a response's items are sealed with, as it is recorded. What a seal is, is not known here.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The key of one response: 32 bytes, stored as hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealKey(pub [u8; 32]);

impl fmt::Debug for SealKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SealKey(..)")
    }
}

impl Serialize for SealKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut digits = String::with_capacity(64);
        for byte in self.0 {
            digits.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
        }
        serializer.serialize_str(&digits)
    }
}

impl<'de> Deserialize<'de> for SealKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut key = [0; 32];
        let digits = |place: usize| u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok();
        for (place, byte) in key.iter_mut().enumerate() {
            *byte = digits(place).ok_or_else(|| serde::de::Error::custom("a key has 64 hex digits"))?;
        }
        Ok(Self(key))
    }
}
