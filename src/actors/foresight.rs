//! What is certain of a conversation's next prompt, computed while its calls are made: whoever brings their results
//! waits for them alone.
//!
//! It is work that nothing depends on. It gives way to every answer, is dropped when the turn that it is for begins,
//! and survives its conversation: a client that keeps its conversation itself comes back as another one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::offload::offload;
use super::prompt::HeldPrompt;
use super::pump::PumpControl;
use super::shared::Parts;
use super::standing::salt;
use crate::conversation::State;
use crate::engine::{AbortHandle, BLOCK_TOKENS, Engine, EngineEvent, GenerationRequest, Medium, Standing};
use crate::ids::ResponseId;

/// Most prompts that are computed ahead at once; what comes then is not.
const AHEAD_MAX: usize = 2;

/// The prompts that are computed ahead.
#[derive(Clone, Debug)]
pub struct Foresight {
    running: Arc<Mutex<Vec<Ahead>>>,
    /// How many are being rendered or computed.
    count: watch::Sender<usize>,
    room: Arc<Semaphore>,
}

impl Default for Foresight {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(AHEAD_MAX));
        Self { running: Arc::default(), count: watch::Sender::new(0), room }
    }
}

#[derive(Debug)]
struct Ahead {
    tokens: Arc<[u32]>,
    abort: AbortHandle,
}

impl Foresight {
    /// The prompt that was foreseen is there: it computes itself what is still missing.
    pub(super) fn overtaken_by(&self, prompt: &[u32]) {
        for ahead in self.running().iter().filter(|ahead| prompt.starts_with(&ahead.tokens)) {
            ahead.abort.abort();
        }
    }

    /// Returns once nothing is computed ahead.
    pub async fn idle(&self) {
        // The sender lives in `self`: waiting cannot fail.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn running(&self) -> MutexGuard<'_, Vec<Ahead>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that is computed ahead, until it is dropped.
struct Counted(watch::Sender<usize>, #[expect(dead_code, reason = "it is held")] OwnedSemaphorePermit);

impl Counted {
    /// None where there is no room.
    fn one_more(foresight: &Foresight) -> Option<Self> {
        let permit = Arc::clone(&foresight.room).try_acquire_owned().ok()?;
        foresight.count.send_modify(|count| *count += 1);
        Some(Self(foresight.count.clone(), permit))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Begins to compute what is certain of the prompt behind this response.
pub(super) fn start(parts: &Parts, state: State, id: ResponseId, held: Arc<HeldPrompt>, control: Arc<PumpControl>) {
    if !parts.config.speculative_prefill {
        return;
    }
    let Some(counted) = Counted::one_more(&parts.foresight) else { return };
    let parts = parts.clone();
    tokio::spawn(async move {
        // Nothing comes of what cannot be rendered or is not taken by the engine.
        let _ = run(&parts, state, id, held, &control).await;
        drop(counted);
    });
}

async fn run(parts: &Parts, state: State, id: ResponseId, held: Arc<HeldPrompt>, control: &PumpControl) -> Option<()> {
    let config = &state.response(id)?.config;
    let engine = parts.catalog.get(Some(&config.model))?.clone();
    let (salt, model) = (salt(state.tenant.as_deref(), config), engine.model().clone());
    if model.medium == Medium::Messages {
        return None;
    }
    let settings = parts.config.as_ref().into();
    let mut tokens = offload(move || held.certain(&state, id, &model, settings)).await.ok()?.ok()?;
    // Only whole blocks are found again, and a token behind them, which does not matter, for them all to be.
    let whole = tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS;
    let behind: Arc<[u32]> = tokens[..whole].iter().chain(&[0]).copied().collect();
    // An engine that keeps no KV gives no answer.
    let cached = engine.cached_kv(behind, salt).await.ok()?;
    if cached >= whole || control.is_aborted() {
        return None;
    }
    tokens.truncate(whole + 1);
    compute(parts, &*engine, tokens.into(), salt, control).await
}

/// Runs the tokens, and leaves them in the engine's cache.
async fn compute(
    parts: &Parts,
    engine: &dyn Engine,
    tokens: Arc<[u32]>,
    salt: u64,
    control: &PumpControl,
) -> Option<()> {
    let request = GenerationRequest {
        cache_salt: salt,
        standing: Standing { priority: Standing::UNAWAITED, ..Standing::default() },
        ..GenerationRequest::greedy(Arc::clone(&tokens), 1)
    };
    let mut sequence = engine.submit(request).ok()?;
    control.submitted(sequence.abort.clone());
    let foresight = &parts.foresight;
    foresight.running().push(Ahead { tokens: Arc::clone(&tokens), abort: sequence.abort.clone() });
    while !matches!(sequence.events.recv().await, None | Some(EngineEvent::Finished(_))) {}
    foresight.running().retain(|ahead| !Arc::ptr_eq(&ahead.tokens, &tokens));
    Some(())
}
