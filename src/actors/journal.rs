//! Keeps the journal tidy: what is old is let go, now and then: idempotency keys that are settled, conversations, and
//! events of conversations that go on, as far as the settings say.
//!
//! It reads away from the async threads and writes through the one writer, like everybody. A conversation is deleted
//! by the directory, which alone knows that nobody has it.

use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use super::directory::DirectoryMsg;
use super::offload::offload;
use super::shared::Parts;
use crate::ids::ConversationId;
use crate::store::{
    Error, EventRetention, Expired, ExpiredEvents, KeyRetention, Retention, expired_conversations, expired_events,
    expired_keys,
};

/// Time between two rounds.
const ROUND: Duration = Duration::from_hours(1);

/// Milliseconds in an hour.
const HOUR_MS: u64 = 3_600_000;

/// Conversations deleted before the directory looks at anything else.
const DELETED_AT_ONCE: usize = 64;

/// Events that one round looks at, to find those that are no longer kept; the next one goes on behind them.
const EVENTS_SURVEYED_MAX: u64 = 1 << 20;

/// The time has come for a round.
pub(super) struct Round;

pub(super) struct JournalActor;

/// What a round needs.
pub(super) struct Keeper {
    pub(super) parts: Parts,
    pub(super) directory: ActorRef<DirectoryMsg>,
    /// The conversation behind which the next round looks for events that are no longer kept.
    pub(super) trimmed_to: Option<ConversationId>,
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
        if let Err(error) = keeper.trim_events().await {
            tracing::warn!(%error, "old events are kept for now");
        }
        Ok(())
    }
}

impl Keeper {
    async fn forget_keys(&self) -> Result<(), ActorProcessingErr> {
        let config = &self.parts.config;
        let kept_ms = config.idempotency_kept_hours.saturating_mul(HOUR_MS);
        let before_ms = self.parts.clock.unix_ms().saturating_sub(kept_ms);
        let records_max = (config.idempotency_records_max > 0).then_some(config.idempotency_records_max);
        let retention = KeyRetention { before_ms, records_max };
        let journal = self.parts.journal.clone();
        let batches = offload(move || expired_keys(&*journal, retention)).await??;
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

    /// Makes events unreadable that are no longer kept. Their conversation is not asked: nothing of its state changes,
    /// and a reader that is still behind them is cut.
    async fn trim_events(&mut self) -> Result<(), ActorProcessingErr> {
        let config = &self.parts.config;
        let (before_ms, bytes_max) = self.bounds(config.event_retention_days, config.conversation_events_bytes_max);
        if before_ms == 0 && bytes_max.is_none() {
            return Ok(());
        }
        let retention = EventRetention { before_ms, bytes_max };
        let (journal, after) = (self.parts.journal.clone(), self.trimmed_to);
        let found = offload(move || expired_events(&*journal, retention, after, EVENTS_SURVEYED_MAX)).await?;
        let (expired, trimmed_to) = found?;
        self.trimmed_to = trimmed_to;
        for ExpiredEvents { conversation, oldest_seq } in expired {
            match self.parts.writer.trim(conversation, oldest_seq).await {
                Ok(()) => tracing::debug!(%conversation, oldest_seq, "old events are no longer kept"),
                // One that cannot be read is left to its repair.
                Err(error @ Error::Damaged { .. }) => tracing::warn!(%error, "its old events are kept"),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What the settings ask for; none where all is kept.
    fn retention(&self) -> Option<Retention> {
        let config = &self.parts.config;
        let (before_ms, bytes_max) = self.bounds(config.retention_days, config.retention_bytes);
        (before_ms > 0 || bytes_max.is_some()).then_some(Retention { before_ms, bytes_max })
    }

    /// The time before which nothing is kept, and the most bytes; 0 is no bound.
    fn bounds(&self, days: u64, bytes: u64) -> (u64, Option<u64>) {
        let kept_ms = (days > 0).then(|| days.saturating_mul(24 * HOUR_MS));
        let before_ms = kept_ms.map_or(0, |kept_ms| self.parts.clock.unix_ms().saturating_sub(kept_ms));
        (before_ms, (bytes > 0).then_some(bytes))
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
