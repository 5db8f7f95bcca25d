//! What every actor is given: the journal, the engines, the clock, the bounds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ractor::ActorRef;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::conversation::ConversationMsg;
use super::foresight::Foresight;
use super::kv::KvKeeper;
use crate::access::{Meter, Usage};
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::Catalog;
use crate::ids::{ConversationId, InterventionId, ResponseId};
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
    /// Where responses live that no journal knows.
    pub unstored: Unstored,
    /// The prompts that are computed ahead.
    pub foresight: Foresight,
    /// KV files, for the turns after a restart.
    pub kv: KvKeeper,
}

/// Responses of conversations that are not stored, while these live: they can be steered and cancelled by id like
/// any other.
#[derive(Clone, Default)]
pub struct Unstored(Arc<Mutex<Homes>>);

#[derive(Default)]
struct Homes {
    responses: HashMap<ResponseId, Home>,
    interventions: HashMap<InterventionId, Home>,
}

/// The conversation that a response lives in.
type Home = (ConversationId, ActorRef<ConversationMsg>);

impl Unstored {
    pub(super) fn add(&self, id: ResponseId, home: Home) {
        self.homes().responses.insert(id, home);
    }

    pub(super) fn add_intervention(&self, id: InterventionId, home: Home) {
        self.homes().interventions.insert(id, home);
    }

    pub(super) fn find_intervention(&self, id: InterventionId) -> Option<Home> {
        self.homes().interventions.get(&id).cloned()
    }

    pub(super) fn remove_intervention(&self, id: InterventionId) {
        self.homes().interventions.remove(&id);
    }

    pub(super) fn find(&self, id: ResponseId) -> Option<Home> {
        self.homes().responses.get(&id).cloned()
    }

    pub(super) fn remove(&self, id: ResponseId) {
        self.homes().responses.remove(&id);
    }

    fn homes(&self) -> MutexGuard<'_, Homes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prompts that are rendered and tokenised at once.
pub(super) const RENDERS_MAX: usize = 4;

/// Counts the generations that are under way, lets the shutdown wait for none, and bounds how many prompts are
/// rendered at once.
#[derive(Clone, Debug)]
pub struct Running {
    count: watch::Sender<usize>,
    renders: Arc<Semaphore>,
    /// Set when the server stops its conversations.
    stopping: Arc<AtomicBool>,
    usage: Usage,
}

impl Default for Running {
    fn default() -> Self {
        let renders = Arc::new(Semaphore::new(RENDERS_MAX));
        Self { count: watch::Sender::new(0), renders, stopping: Arc::default(), usage: Usage::default() }
    }
}

impl Running {
    /// Counts one generation until the guard is dropped, for all and for its principal.
    pub(super) fn enter(&self, principal: &str) -> RunningGuard {
        self.count.send_modify(|count| *count += 1);
        RunningGuard { running: self.clone(), meter: Arc::new(self.usage.run(principal)) }
    }

    /// What each principal uses.
    pub(super) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Waits for the right to render a prompt.
    pub(super) async fn render_permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed; if it were, nothing would be bounded, and nothing lost.
        self.renders.clone().acquire_owned().await.ok()
    }

    /// From here on whatever ends has been ended by the server.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// How many are under way.
    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Returns once none is under way.
    pub async fn idle(&self) {
        // The sender lives in `self`: waiting cannot fail.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// One generation under way.
pub(super) struct RunningGuard {
    running: Running,
    /// Counts its tokens.
    pub(super) meter: Arc<Meter>,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.running.count.send_modify(|count| *count = count.saturating_sub(1));
    }
}
