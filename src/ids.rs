//! Identifiers, and the one place that draws them.
//!
//! An id is a prefix and 32 hex digits of a version-7 UUID; order is never read from an id, only from `seq`.
//! The core is pure: it gets a [`FreshIds`], which yields any number of ids from one random draw.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// The text is no id of this kind. Answer it as "not found": an id that was not issued does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id that this server issued")]
pub struct NotAnId;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u128);

        impl $name {
            /// The id's 16 bytes, as store keys use them.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// The id with these bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }

            /// Draws the next id.
            pub fn draw(fresh: &mut FreshIds) -> Self {
                Self(fresh.next_uuid())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($prefix, "{:032x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;

            fn from_str(text: &str) -> Result<Self, NotAnId> {
                parse_hex(text, $prefix).map(Self).ok_or(NotAnId)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// A conversation.
    ConversationId, "conv_"
);
id!(
    /// A response: one turn of the model.
    ResponseId, "resp_"
);
id!(
    /// An intervention into a running response.
    InterventionId, "steer_"
);
id!(
    /// An item of the transcript. The wire adds a prefix by the item's kind; see [`ItemId::wire`].
    ItemId, "item_"
);

impl ItemId {
    /// The id as OpenAI's clients expect it: `msg_…`, `rs_…`, `fc_…` with the same digits.
    pub fn wire(self, prefix: &str) -> String {
        format!("{prefix}_{:032x}", self.0)
    }

    /// Reads an id with any prefix.
    pub fn from_wire(text: &str) -> Result<Self, NotAnId> {
        let (prefix, _) = text.split_once('_').ok_or(NotAnId)?;
        parse_hex(text, &text[..=prefix.len()]).map(Self).ok_or(NotAnId)
    }
}

/// The id of a tool call: `call` and 24 letters or digits; some clients strip `_` and `-`. Ids that a client
/// brings along in its own transcript are kept as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub String);

impl CallId {
    /// Draws the next call id.
    pub fn draw(fresh: &mut FreshIds) -> Self {
        const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut rest = fresh.next_uuid();
        let mut text = String::with_capacity(28);
        text.push_str("call");
        for _ in 0..24 {
            text.push(char::from(ALPHABET[(rest % 36) as usize]));
            rest /= 36;
        }
        Self(text)
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// 32 lower-case hex digits behind `prefix`.
fn parse_hex(text: &str, prefix: &str) -> Option<u128> {
    let digits = text.strip_prefix(prefix)?;
    let well_formed = digits.len() == 32 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    well_formed.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

/// Yields ids for one decision: all of them follow from one draw, so the same draw gives the same ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreshIds {
    base: u128,
    drawn: u64,
}

thread_local! {
    /// What a simulation that runs on this thread draws from; nowhere else is it set.
    static SIMULATED: Cell<Option<u64>> = const { Cell::new(None) };
}

impl FreshIds {
    /// A new random draw; inside a simulation the next one of its seed.
    #[allow(clippy::disallowed_methods)] // this is the one place
    pub fn random() -> Self {
        match SIMULATED.get() {
            None => Self::from_seed(Uuid::now_v7().as_u128()),
            Some(state) => {
                SIMULATED.set(Some(state.wrapping_add(1)));
                Self::from_seed(u128::from(mix(state)) << 64 | u128::from(state))
            }
        }
    }

    /// From here on every draw on this thread follows from `seed`: a simulation can be repeated.
    pub fn simulate(seed: u64) {
        SIMULATED.set(Some(mix(seed)));
    }

    /// The ids that follow from `seed`, for tests and simulations.
    pub fn from_seed(seed: u128) -> Self {
        Self { base: seed, drawn: 0 }
    }

    /// 64 random bits, for example a sampling seed.
    pub fn next_u64(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.base as u64 ^ mix((self.base >> 64) as u64 ^ mix(self.drawn)))
    }

    /// A version-7 UUID that keeps the time of the draw.
    fn next_uuid(&mut self) -> u128 {
        const TIME: u128 = 0xffff_ffff_ffff << 80;
        let random = u128::from(self.next_u64()) << 64 | u128::from(self.next_u64());
        let version_and_variant = 0x7 << 76 | 0b10 << 62;
        let free = !(TIME | 0xf << 76 | 0b11 << 62);
        self.base & TIME | version_and_variant | random & free
    }
}

/// The finaliser of SplitMix64: every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text_form() {
        let id = ResponseId::draw(&mut FreshIds::random());
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().len(), "resp_".len() + 32);
    }

    #[test]
    fn what_was_not_issued_is_no_id() {
        for text in
            ["", "resp_", "resp_zz", "conv_00000000000000000000000000000000", "resp_+0000000000000000000000000000000"]
        {
            assert_eq!(text.parse::<ResponseId>(), Err(NotAnId), "{text}");
        }
    }

    #[test]
    fn one_draw_yields_distinct_ids_and_the_same_ones_again() {
        let mut first = FreshIds::random();
        let mut second = first.clone();
        let ids: Vec<_> = (0..100).map(|_| ItemId::draw(&mut first)).collect();
        let again: Vec<_> = (0..100).map(|_| ItemId::draw(&mut second)).collect();
        assert_eq!(ids, again);
        assert_eq!(ids.iter().collect::<std::collections::HashSet<_>>().len(), 100);
    }

    #[test]
    fn a_call_id_is_letters_and_digits() {
        let id = CallId::draw(&mut FreshIds::random());
        assert_eq!(id.0.len(), 28);
        assert!(id.0.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    }
}
