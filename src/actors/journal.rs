//! Keeps the journal tidy: what is old is let go, now and then: idempotency keys that are settled, and conversations
//! as far as the settings say.
//!
//! It reads away from the async threads and writes through the one writer, like everybody. A conversation is deleted
//! by the directory, which alone knows that nobody has it.

use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use super::directory::DirectoryMsg;
use super::offload::offload;
use super::shared::Parts;
use crate::store::{Error, Expired, Retention, expired_conversations, expired_keys};

/// Time between two rounds.
const ROUND: Duration = Duration::from_hours(1);

/// Milliseconds in an hour.
const HOUR_MS: u64 = 3_600_000;

/// Conversations deleted before the directory looks at anything else.
const DELETED_AT_ONCE: usize = 64;

/// The time has come for a round.
pub(super) struct Round;

pub(super) struct JournalActor;

/// What a round needs.
pub(super) struct Keeper {
    pub(super) parts: Parts,
    pub(super) directory: ActorRef<DirectoryMsg>,
}

impl Actor for JournalActor {
    type Msg = Round;
    type State = Keeper;
    type Arguments = Keeper;

    async fn pre_start(&self, myself: ActorRef<Round>, keeper: Keeper) -> Result<Keeper, ActorProcessingErr> {
        myself.cast(Round)?;
        myself.send_interval(ROUND, || Round);
        Ok(keeper)
    }

    async fn handle(&self, _: ActorRef<Round>, Round: Round, keeper: &mut Keeper) -> Result<(), ActorProcessingErr> {
        // The next round tries again; what is damaged must not end all tidying.
        if let Err(error) = keeper.forget_keys().await {
            tracing::warn!(%error, "old idempotency keys are kept for now");
        }
        if let Err(error) = keeper.delete_conversations().await {
            tracing::warn!(%error, "old conversations are kept for now");
        }
        Ok(())
    }
}

impl Keeper {
    async fn forget_keys(&self) -> Result<(), ActorProcessingErr> {
        let kept_ms = self.parts.config.idempotency_kept_hours.saturating_mul(HOUR_MS);
        let before_ms = self.parts.clock.unix_ms().saturating_sub(kept_ms);
        let journal = self.parts.journal.clone();
        let batches = offload(move || expired_keys(&*journal, before_ms)).await??;
        for batch in batches {
            match self.parts.writer.append(batch).await {
                // Its conversation was deleted in the meantime, and the key with it.
                Ok(()) | Err(Error::Deleted(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn delete_conversations(&self) -> Result<(), ActorProcessingErr> {
        let Some(retention) = self.retention() else {
            return Ok(());
        };
        let journal = self.parts.journal.clone();
        let expired = offload(move || expired_conversations(&*journal, retention)).await??;
        let mut deleted = 0;
        for some in expired.chunks(DELETED_AT_ONCE) {
            deleted += delete(&self.directory, some.to_vec()).await?;
        }
        if deleted > 0 {
            tracing::info!(deleted, "conversations were deleted, as the settings of retention say");
        }
        Ok(())
    }

    /// What the settings ask for; none where all is kept.
    fn retention(&self) -> Option<Retention> {
        let config = &self.parts.config;
        let kept_ms = (config.retention_days > 0).then(|| config.retention_days.saturating_mul(24 * HOUR_MS));
        let bytes_max = (config.retention_bytes > 0).then_some(config.retention_bytes);
        let before_ms = kept_ms.map_or(0, |kept_ms| self.parts.clock.unix_ms().saturating_sub(kept_ms));
        (before_ms > 0 || bytes_max.is_some()).then_some(Retention { before_ms, bytes_max })
    }
}

/// Has those of the conversations deleted that sleep and have not gone on. How many were.
pub(super) async fn delete(
    directory: &ActorRef<DirectoryMsg>,
    expired: Vec<Expired>,
) -> Result<usize, ActorProcessingErr> {
    let (reply, deleted) = oneshot::channel();
    directory.cast(DirectoryMsg::Delete { expired, reply })?;
    Ok(deleted.await?)
}
