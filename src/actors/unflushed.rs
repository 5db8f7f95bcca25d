//! What a relaxed conversation has shown before its flush: watched, so that a failed flush is noticed, and waited
//! for where something must be on disk.

use std::collections::VecDeque;

use futures_util::FutureExt;

use super::reader::store_reject;
use crate::conversation::Reject;
use crate::store::Ack;

/// Batches on their way to the disk, oldest first.
#[derive(Default)]
pub(super) struct Unflushed(VecDeque<Ack>);

impl Unflushed {
    /// Takes one more, and drops those that have arrived. An error says that one did not: what clients saw is lost.
    pub(super) fn add(&mut self, ack: Ack) -> Result<(), Reject> {
        self.0.push_back(ack);
        while let Some(first) = self.0.front_mut() {
            let Some(arrived) = first.now_or_never() else { break };
            self.0.pop_front();
            arrived.map_err(|error| store_reject(&error))?;
        }
        Ok(())
    }

    /// Returns once all of them are on disk.
    pub(super) async fn flushed(&mut self) -> Result<(), Reject> {
        while let Some(ack) = self.0.pop_front() {
            ack.await.map_err(|error| store_reject(&error))?;
        }
        Ok(())
    }

    /// A later batch is on disk, and with it all of these.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
