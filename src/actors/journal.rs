//! Keeps the journal tidy: idempotency keys that are old and settled are forgotten, now and then.
//!
//! It reads away from the async threads and writes through the one writer, like everybody.

use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::offload::offload;
use super::shared::Parts;
use crate::store::expired_keys;

/// Time between two rounds.
const ROUND: Duration = Duration::from_hours(1);

/// Milliseconds in an hour.
const HOUR_MS: u64 = 3_600_000;

/// The time has come for a round.
pub(super) struct Round;

pub(super) struct JournalActor;

impl Actor for JournalActor {
    type Msg = Round;
    type State = Parts;
    type Arguments = Parts;

    async fn pre_start(&self, myself: ActorRef<Round>, parts: Parts) -> Result<Parts, ActorProcessingErr> {
        myself.cast(Round)?;
        myself.send_interval(ROUND, || Round);
        Ok(parts)
    }

    async fn handle(&self, _: ActorRef<Round>, Round: Round, parts: &mut Parts) -> Result<(), ActorProcessingErr> {
        let kept_ms = parts.config.idempotency_kept_hours.saturating_mul(HOUR_MS);
        let before_ms = parts.clock.unix_ms().saturating_sub(kept_ms);
        let journal = parts.journal.clone();
        let batches = offload(move || expired_keys(&*journal, before_ms)).await??;
        for batch in batches {
            parts.writer.append(batch).await?;
        }
        Ok(())
    }
}
