//! The engine's thread: drain the inbox, plan, run, sample, deliver, and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::select_all;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::super::backend::Backend;
use super::super::contract::{EngineEvent, FinishReason, Sampling, SequenceId};
use super::super::sampling::sample;
use super::super::scheduler::{Chunk, Outcome, Plan, Scheduler};
use super::kv::KvWork;
use super::{Shared, Submission};
use crate::{clock, crash};

/// Places a sequence's channel must have before it is planned: for a token, and for the end.
const EVENTS_PER_STEP: usize = 2;

/// A sequence that has not finished, apart from its tokens, which the planner has.
struct Live {
    events: mpsc::Sender<EngineEvent>,
    aborted: Arc<AtomicBool>,
    sampling: Sampling,
    stop_tokens: Arc<[u32]>,
    /// Tokens of the answer so far, resumed ones included: the number of the next one.
    answered: u32,
    max_tokens: u32,
    /// Prompt and answer so far.
    tokens: usize,
}

/// Everything the thread owns.
pub(super) struct Runner<B> {
    scheduler: Scheduler,
    backend: B,
    inbox: mpsc::Receiver<Submission>,
    kv: KvWork,
    shared: Arc<Shared>,
    live: BTreeMap<SequenceId, Live>,
}

impl<B: Backend> Runner<B> {
    pub(super) fn new(
        scheduler: Scheduler,
        backend: B,
        inbox: mpsc::Receiver<Submission>,
        kv: KvWork,
        shared: Arc<Shared>,
    ) -> Self {
        Self { scheduler, backend, inbox, kv, shared, live: BTreeMap::new() }
    }

    /// Runs until the engine is dropped. `waiting` is used when there is nothing to compute.
    pub(super) fn run(mut self, waiting: &Runtime) {
        loop {
            if self.live.is_empty() && self.kv.is_idle() && !waiting.block_on(self.wait_for_work()) {
                return;
            }
            while let Ok(submission) = self.inbox.try_recv() {
                self.admit(submission);
            }
            if self.shared.stopping.load(Ordering::SeqCst) {
                return;
            }
            let copied = self.kv.advance(&mut self.scheduler, &mut self.backend);
            if !self.step() && !copied {
                waiting.block_on(self.wait_for_readers());
            }
        }
    }

    /// Waits for a sequence or an order. False when there will be none any more.
    async fn wait_for_work(&mut self) -> bool {
        let submission = tokio::select! {
            submission = self.inbox.recv() => submission,
            () = self.kv.ordered() => return true,
        };
        let Some(submission) = submission else { return false };
        self.admit(submission);
        true
    }

    /// Takes a submission in, or ends it at once when there is nothing to generate.
    fn admit(&mut self, submission: Submission) {
        let Submission { id, request, events, aborted } = submission;
        let tokens: Vec<u32> = request.prompt.iter().chain(request.resumed.iter()).copied().collect();
        let live = Live {
            events,
            aborted,
            sampling: request.sampling,
            stop_tokens: request.stop_tokens,
            answered: request.resumed.len() as u32,
            max_tokens: request.max_tokens,
            tokens: tokens.len(),
        };
        let unknown = tokens.iter().find(|token| **token as usize >= self.backend.vocabulary());
        let over = if let Some(token) = unknown {
            Some(FinishReason::Failed(format!("the prompt holds the token {token}, which the model does not have")))
        } else if tokens.is_empty() {
            Some(FinishReason::Failed("the prompt is empty".to_owned()))
        } else {
            request.resumed.last().and_then(|last| live.end_behind(*last)).or_else(|| live.end_at_limit(usize::MAX))
        };
        let over = over.or_else(|| {
            let refused = self.scheduler.add(id, tokens, request.cache_salt, request.standing).is_err();
            refused.then(|| FinishReason::Failed("prompt and answer do not fit into the KV cache".to_owned()))
        });
        self.live.insert(id, live);
        if let Some(finish) = over {
            self.finish(id, finish);
        }
    }

    /// Plans and runs one step. False when there was nothing to run, because every reader lags.
    fn step(&mut self) -> bool {
        for (id, live) in &self.live {
            if live.aborted.load(Ordering::SeqCst) || live.events.is_closed() {
                self.scheduler.abort(*id);
            }
        }
        let live = &self.live;
        let plan = self.scheduler.plan(|id| live.get(&id).map_or(0, Live::room));
        for id in &plan.removed {
            self.finish(*id, FinishReason::Aborted);
        }
        for (id, cached) in &plan.started {
            self.shared.counters.cached(*cached);
            if let Some(live) = self.live.get(id) {
                live.deliver(EngineEvent::Started { cached_tokens: *cached as u32 });
            }
        }
        if plan.chunks.is_empty() {
            return self.live.is_empty();
        }
        // Counted first: whoever reads the end may look at once.
        let tokens = plan.chunks.iter().map(|chunk| chunk.tokens.len() - chunk.guessed().len()).sum();
        self.shared.counters.step(plan.chunks.len(), tokens, self.scheduler.preemptions());
        self.shared.begin_step();
        let began = clock::monotonic();
        self.run_plan(&plan);
        self.scheduler.measured(&plan, clock::monotonic().duration_since(began).as_nanos() as u64);
        self.shared.end_step();
        true
    }

    fn run_plan(&mut self, plan: &Plan) {
        let vocabulary = self.backend.vocabulary();
        let context_length = self.scheduler.context_length();
        let mut results = Vec::with_capacity(plan.chunks.len());
        let mut finished = Vec::new();
        if plan.chunks.iter().any(|chunk| chunk.sampled == 0) {
            crash::point("prefill_middle");
        }
        match self.backend.forward(&plan.chunks) {
            Ok(logits) => {
                let mut rows = logits.chunks_exact(vocabulary);
                for chunk in &plan.chunks {
                    let rows: Vec<&[f32]> = rows.by_ref().take(chunk.sampled).collect();
                    let (outcome, finish) = advance(&mut self.live, &self.shared, chunk, &rows, context_length);
                    results.push((chunk.sequence, outcome));
                    finished.extend(finish.map(|finish| (chunk.sequence, finish)));
                }
            }
            Err(error) => {
                for chunk in &plan.chunks {
                    results.push((chunk.sequence, Outcome::Failed));
                    finished.push((chunk.sequence, FinishReason::Failed(error.to_string())));
                }
            }
        }
        // The blocks are let go before the end is told.
        self.scheduler.complete(results);
        for (id, finish) in finished {
            self.finish(id, finish);
        }
    }

    fn finish(&mut self, id: SequenceId, finish: FinishReason) {
        if let Some(live) = self.live.remove(&id) {
            // Counted down first: whoever reads the end may submit again at once.
            self.shared.live.fetch_sub(1, Ordering::SeqCst);
            live.deliver(EngineEvent::Finished(finish));
        }
    }

    /// Waits until a reader has room or is gone, or somebody submits, orders or aborts.
    async fn wait_for_readers(&mut self) {
        let Self { live, inbox, kv, shared, .. } = self;
        // An error means that the reader is gone, which is worth a look too.
        let readers = live.values().map(|live| Box::pin(live.events.reserve_many(EVENTS_PER_STEP)));
        let submitted = tokio::select! {
            submission = inbox.recv() => submission,
            () = kv.ordered() => None,
            () = shared.wake.notified() => None,
            _ = select_all(readers) => None,
        };
        if let Some(submission) = submitted {
            self.admit(submission);
        }
    }
}

/// Samples behind one chunk and delivers the tokens: as long as what was guessed is what is sampled, and one more.
fn advance(
    live: &mut BTreeMap<SequenceId, Live>,
    shared: &Shared,
    chunk: &Chunk,
    logits: &[&[f32]],
    context_length: usize,
) -> (Outcome, Option<FinishReason>) {
    let Some(live) = live.get_mut(&chunk.sequence).filter(|_| !logits.is_empty()) else {
        return (Outcome::Prefilled, None);
    };
    let mut sampled = Vec::new();
    let mut guessed = chunk.guessed().iter();
    for logits in logits {
        let token = match sample(logits, &live.sampling, u64::from(live.answered)) {
            Ok(token) => token,
            Err(error) => return (Outcome::Failed, Some(FinishReason::Failed(error.to_string()))),
        };
        live.answered += 1;
        live.tokens += 1;
        live.deliver(EngineEvent::Token(token));
        sampled.push(token);
        if let Some(finish) = live.end_behind(token).or_else(|| live.end_at_limit(context_length)) {
            shared.counters.sampled(sampled.len(), chunk.guessed().len());
            return (Outcome::Ended(sampled), Some(finish));
        }
        if guessed.next() != Some(&token) {
            break;
        }
    }
    shared.counters.sampled(sampled.len(), chunk.guessed().len());
    (Outcome::Next(sampled), None)
}

impl Live {
    /// Tokens that the reader can take, and the end behind them.
    fn room(&self) -> usize {
        self.events.capacity().saturating_sub(EVENTS_PER_STEP - 1)
    }

    /// The channel has room, or its reader is gone: then the next step aborts the sequence.
    fn deliver(&self, event: EngineEvent) {
        let _ = self.events.try_send(event);
    }

    fn end_behind(&self, token: u32) -> Option<FinishReason> {
        self.stop_tokens.contains(&token).then_some(FinishReason::Stop)
    }

    fn end_at_limit(&self, context_length: usize) -> Option<FinishReason> {
        let full = self.answered >= self.max_tokens || self.tokens >= context_length;
        full.then_some(FinishReason::Length)
    }
}
