//! What every actor is given: the journal, the engines, the clock, the bounds.

use std::sync::Arc;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::Config;
use crate::engine::Catalog;
use crate::store::{Journal, WriterHandle};

/// The parts that the actors are built from.
#[derive(Clone)]
pub struct Parts {
    /// Reads of the journal.
    pub journal: Arc<dyn Journal>,
    /// The one way to write it.
    pub writer: WriterHandle,
    /// The models that can be asked for.
    pub catalog: Arc<Catalog>,
    /// Time.
    pub clock: Clock,
    /// Bounds and delays.
    pub config: Arc<Config>,
    /// Counts the generations that are under way.
    pub running: Running,
}

/// Counts the generations that are under way, and lets the shutdown wait for none.
#[derive(Clone, Debug)]
pub struct Running(watch::Sender<usize>);

impl Default for Running {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Running {
    /// Counts one generation until the guard is dropped.
    pub(super) fn enter(&self) -> RunningGuard {
        self.0.send_modify(|count| *count += 1);
        RunningGuard(self.clone())
    }

    /// How many are under way.
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Returns once none is under way.
    pub async fn idle(&self) {
        // The sender lives in `self`: waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// One generation under way.
pub(super) struct RunningGuard(Running);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
