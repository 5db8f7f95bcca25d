//! What a model takes of memory, and whether this process has it. Found before any of it is taken: a process that the
//! system ends in the middle of loading says nothing.

use std::fmt;

use super::super::backend::cpu::{CpuBackend, KvPlan, StepSize};
use super::super::kv::BLOCK_TOKENS;
use super::super::model::{Description, ModelError};
use super::super::scheduler::Limits;
use super::room::Room;

/// What the process takes besides models: journal, conversations, connections.
const REST_BYTES: u64 = 64 << 20;
/// With room for fewer positions, less KV is no way out.
const KV_TOKENS_MIN: u64 = 1024;

/// Bytes that a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The weights as they are in memory.
    pub weights: u64,
    /// Keys and values, once they are full.
    pub kv: u64,
    /// What steps compute in.
    pub steps: u64,
    /// Keys and values of one position.
    pub kv_token: u64,
}

impl Needs {
    /// What a model takes that is run within these limits over so many KV blocks.
    pub(super) fn of(description: &Description, limits: &Limits, kv: KvPlan) -> Result<Self, ModelError> {
        let step = StepSize {
            rows: limits.step_tokens,
            sampled: limits.step_tokens.min(limits.sequences + limits.guessed_tokens),
            context: limits.context_length.min(kv.blocks.saturating_mul(BLOCK_TOKENS)),
        };
        let block = CpuBackend::block_bytes_of(description, kv.format) as u64;
        Ok(Self {
            weights: CpuBackend::weight_bytes_of(description)? as u64,
            kv: block.saturating_mul(kv.blocks as u64),
            steps: step.scratch_bytes(description) as u64,
            kv_token: block / BLOCK_TOKENS as u64,
        })
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.steps)
    }

    fn without_kv(&self) -> u64 {
        self.weights.saturating_add(self.steps).saturating_add(REST_BYTES)
    }

    /// Whether there is room for it, besides what is promised to other models already.
    pub fn check(self, room: Option<Room>, promised: u64) -> Result<(), Shortage> {
        let Some(room) = room else { return Ok(()) };
        let needed = self.without_kv().saturating_add(self.kv).saturating_add(promised);
        if needed <= room.bytes { Ok(()) } else { Err(Shortage { needs: self, room, promised }) }
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights, kv, steps, .. } = *self;
        write!(formatter, "weights {}, KV {}, steps {}", size(weights), size(kv), size(steps))
    }
}

/// A model and the memory that is missing for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    needs: Needs,
    room: Room,
    /// Bytes that other models of this process have and will still fill.
    promised: u64,
}

impl Shortage {
    /// Whether less KV would do.
    pub fn is_of_kv(&self) -> bool {
        self.kv_possible() >= self.needs.kv_token.saturating_mul(KV_TOKENS_MIN)
    }

    /// Bytes that would be left for KV.
    fn kv_possible(&self) -> u64 {
        self.room.bytes.saturating_sub(self.promised).saturating_sub(self.needs.without_kv())
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needs, room, promised } = self;
        let needed = needs.without_kv().saturating_add(needs.kv);
        write!(
            formatter,
            "it needs {} of memory ({needs}, the rest of the process {})",
            size(needed),
            size(REST_BYTES)
        )?;
        if *promised > 0 {
            write!(formatter, ", and other models need another {}", size(*promised))?;
        }
        let missing = needed.saturating_add(*promised).saturating_sub(room.bytes);
        write!(
            formatter,
            ", but this process may take {}, since {}: {} are missing; ",
            size(room.bytes),
            room.bound,
            size(missing)
        )?;
        if self.is_of_kv() {
            let (possible, now) = (self.kv_possible(), needs.kv);
            write!(formatter, "all but the KV fits: set kv_bytes to {possible} or less (it is {now}), or free memory")
        } else {
            formatter.write_str("take a smaller model or quantisation, or free memory")
        }
    }
}

/// Bytes as a person reads them.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{} MB", bytes.div_ceil(1_000_000)),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::super::room::Bound;
    use super::*;

    const NEEDS: Needs = Needs { weights: 300_000_000, kv: 1_000_000_000, steps: 32_891_136, kv_token: 20_000 };

    fn said(bytes: u64, promised: u64) -> String {
        let room = Room { bytes, bound: Bound::ControlGroup };
        NEEDS.check(Some(room), promised).unwrap_err().to_string()
    }

    #[test]
    fn what_fits_exactly_is_loaded_and_an_unknown_room_refuses_nothing() {
        let room = |bytes| Some(Room { bytes, bound: Bound::Machine });
        assert_eq!(NEEDS.check(None, u64::MAX), Ok(()));
        assert_eq!(NEEDS.check(room(1_400_000_000), 0), Ok(()));
        assert_eq!(NEEDS.check(room(1_500_000_000), 100_000_000), Ok(()));
        assert!(NEEDS.check(room(1_399_999_999), 0).is_err());
        assert!(NEEDS.check(room(1_500_000_000), 100_000_001).is_err());
    }

    #[test]
    fn where_only_the_kv_does_not_fit_the_setting_that_would_is_named() {
        assert_eq!(
            said(900_000_000, 0),
            "it needs 1.4 GB of memory (weights 300 MB, KV 1.0 GB, steps 33 MB, the rest of the process 68 MB), but \
             this process may take 900 MB, since its control group allows no more: 500 MB are missing; all but the KV \
             fits: set kv_bytes to 500000000 or less (it is 1000000000), or free memory"
        );
    }

    #[test]
    fn where_the_weights_do_not_fit_a_smaller_model_is_the_advice() {
        for room in [10_000_000, 399_999_999, 400_000_000 + 1023 * 20_000] {
            let said = said(room, 0);
            assert!(said.ends_with("take a smaller model or quantisation, or free memory"), "{said}");
        }
        let said = said(500_000_000, 200_000_000);
        assert!(said.contains("and other models need another 200 MB") && said.contains("1.1 GB are missing"), "{said}");
    }
}
