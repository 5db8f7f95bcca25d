//! The engine that runs a GGUF model in this process: one thread that plans, runs, samples and delivers, step by
//! step, over a pure planner and a backend.
//!
//! Submitting and aborting only leave a note for that thread. It waits for nothing but work: a reader that does
//! not read is left out of the next step, one that is gone is aborted. A channel that closes without `Finished`
//! means that the engine was dropped or died.

mod files;
mod kv;
mod load;
mod masks;
mod memory;
mod progress;
mod room;
mod run;
mod stats;

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod bad_models;
#[cfg(test)]
mod shaped_tests;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot};

use super::backend::Backend;
use super::contract::{
    AbortHandle, Engine, EngineError, EngineEvent, Generation, GenerationRequest, KvImage, KvRefused, Load, ModelInfo,
    SequenceId,
};
use super::scheduler::Scheduler;
use crate::clock::{self, Clock};
use kv::{KV_ORDERS_WAITING_MAX, KvOrder, KvWork};
pub(super) use load::open;
pub use load::{FileFacts, LoadError, LoadOptions, read_file_facts, read_model_info};
pub use memory::{Needs, Shortage};
pub use progress::LoadProgress;
pub use room::{Bound, Room};
use run::Runner;
use stats::Counters;
pub use stats::EngineStats;

/// Places in a sequence's channel beyond what was asked for: `Started` and `Finished` always fit.
const EXTRA_EVENTS: usize = 2;
/// A step that takes longer than this means that the engine hangs.
const STEP_DURATION_MAX: Duration = Duration::from_mins(1);

/// Runs one model.
pub struct LocalEngine {
    model: ModelInfo,
    inbox: Option<Inbox>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    next_id: AtomicU64,
    sequences_max: usize,
    promised_bytes: u64,
}

/// What the engine's thread and everybody else see of each other.
struct Shared {
    counters: Counters,
    /// As it stood behind the last step.
    load: Mutex<Load>,
    /// Told when a sequence is aborted or the engine is dropped, for a thread that waits for readers.
    wake: Notify,
    stopping: AtomicBool,
    /// Sequences submitted and not yet finished.
    live: AtomicUsize,
    started: Instant,
    /// When the running step began, in milliseconds after `started`, plus 1; 0 when none runs.
    step_began: AtomicU64,
}

/// The ways to the engine's thread.
struct Inbox {
    submissions: mpsc::Sender<Submission>,
    kv: mpsc::Sender<KvOrder>,
}

/// A sequence on its way to the engine's thread.
struct Submission {
    id: SequenceId,
    request: GenerationRequest,
    events: mpsc::Sender<EngineEvent>,
    aborted: Arc<AtomicBool>,
}

impl LocalEngine {
    /// Starts the thread that runs `backend` as `scheduler` plans. At most `sequences_max` wait or run. `clock` tells
    /// when what is kept for a time is kept no longer.
    fn start(
        model: ModelInfo,
        scheduler: Scheduler,
        backend: impl Backend,
        sequences_max: usize,
        clock: Clock,
    ) -> std::io::Result<Self> {
        // Never the limit: each submission in it is one of `sequences_max`.
        let (submissions, submitted) = mpsc::channel(sequences_max.max(1));
        let (kv, kv_orders) = mpsc::channel(KV_ORDERS_WAITING_MAX);
        let shared = Arc::new(Shared {
            counters: Counters::default(),
            load: Mutex::default(),
            wake: Notify::new(),
            stopping: AtomicBool::new(false),
            live: AtomicUsize::new(0),
            started: clock::monotonic(),
            step_began: AtomicU64::new(0),
        });
        // Only to wait for several channels at once; it drives no I/O and no timers.
        let waiting = tokio::runtime::Builder::new_current_thread().build()?;
        let kv_work = KvWork::new(model.fingerprint.clone(), kv_orders, clock);
        let runner =
            Runner::new(scheduler, backend, submitted, kv_work, Arc::clone(&shared), Arc::clone(&model.tokenizer));
        let name = "local-engine".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || runner.run(&waiting))?;
        let inbox = Some(Inbox { submissions, kv });
        let (thread, next_id) = (Some(thread), AtomicU64::new(0));
        Ok(Self { model, inbox, thread, shared, next_id, sequences_max, promised_bytes: 0 })
    }

    fn promising(mut self, promised_bytes: u64) -> Self {
        self.promised_bytes = promised_bytes;
        self
    }

    /// Memory that the engine has not taken yet when it is loaded, and will take as its KV fills.
    pub fn promised_bytes(&self) -> u64 {
        self.promised_bytes
    }

    /// Leaves an order for KV. Where there is no room or no thread, it is dropped and its receiver closes.
    fn order_kv<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> KvOrder) -> oneshot::Receiver<T> {
        let (reply, answer) = oneshot::channel();
        if let Some(inbox) = &self.inbox {
            let _ = inbox.kv.try_send(order(reply));
        }
        answer
    }

    /// What the engine has done since it started.
    pub fn stats(&self) -> EngineStats {
        self.shared.counters.read()
    }
}

impl Engine for LocalEngine {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn submit(&self, request: GenerationRequest) -> Result<Generation, EngineError> {
        let tokens = request.prompt.len() + request.resumed.len();
        // One token of the answer must fit.
        if tokens >= self.model.context_length as usize {
            return Err(EngineError::ContextLengthExceeded {
                prompt_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
                context_length: self.model.context_length,
            });
        }
        let inbox = self.inbox.as_ref().ok_or_else(|| EngineError::Unavailable("it was stopped".to_owned()))?;
        if self.shared.live.fetch_add(1, Ordering::SeqCst) >= self.sequences_max {
            self.shared.live.fetch_sub(1, Ordering::SeqCst);
            return Err(EngineError::Overloaded);
        }
        let (events, readable) = mpsc::channel(request.channel_capacity.max(1) + EXTRA_EVENTS);
        let aborted = Arc::new(AtomicBool::new(false));
        let id = SequenceId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let submission = Submission { id, request, events, aborted: Arc::clone(&aborted) };
        if let Err(refused) = inbox.submissions.try_send(submission) {
            self.shared.live.fetch_sub(1, Ordering::SeqCst);
            return Err(match refused {
                mpsc::error::TrySendError::Full(_) => EngineError::Overloaded,
                mpsc::error::TrySendError::Closed(_) => EngineError::Unavailable("its thread has ended".to_owned()),
            });
        }
        let shared = Arc::clone(&self.shared);
        let abort = AbortHandle::new(move || {
            aborted.store(true, Ordering::SeqCst);
            shared.wake.notify_one();
        });
        Ok(Generation { events: readable, abort })
    }

    fn health(&self) -> Result<(), String> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err("the engine's thread has ended; restart the server".to_owned());
        }
        self.shared.health_after(Duration::ZERO)
    }

    fn load(&self) -> Load {
        *self.shared.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cached_kv(&self, tokens: Arc<[u32]>, salt: u64) -> oneshot::Receiver<usize> {
        self.order_kv(|reply| KvOrder::Cached { tokens, salt, reply })
    }

    fn keep_kv(&self, tokens: Arc<[u32]>, salt: u64, ttl: Duration) {
        let ttl_ms = ttl.as_millis() as u64;
        if let Some(inbox) = &self.inbox {
            let _ = inbox.kv.try_send(KvOrder::Keep { tokens, salt, ttl_ms });
        }
    }

    fn save_kv(&self, tokens: Arc<[u32]>, salt: u64) -> oneshot::Receiver<KvImage> {
        self.order_kv(|reply| KvOrder::Save { tokens, salt, reply })
    }

    fn restore_kv(&self, image: KvImage) -> oneshot::Receiver<Result<usize, KvRefused>> {
        self.order_kv(|reply| KvOrder::Restore { image, reply })
    }
}

impl Shared {
    fn since_start_ms(&self) -> u64 {
        clock::monotonic().duration_since(self.started).as_millis() as u64
    }

    fn begin_step(&self) {
        self.step_began.store(self.since_start_ms() + 1, Ordering::SeqCst);
    }

    fn end_step(&self) {
        self.step_began.store(0, Ordering::SeqCst);
    }

    /// Whether the running step, if it ran for `longer` than it has, would still be within bounds.
    fn health_after(&self, longer: Duration) -> Result<(), String> {
        let began = self.step_began.load(Ordering::SeqCst);
        let running = Duration::from_millis((self.since_start_ms() + 1).saturating_sub(began)) + longer;
        if began > 0 && running > STEP_DURATION_MAX {
            return Err(format!("a step of the engine has been running for {} s", running.as_secs()));
        }
        Ok(())
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.wake.notify_one();
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for LocalEngine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LocalEngine").field("model", &self.model.id).finish_non_exhaustive()
    }
}
