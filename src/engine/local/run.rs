//! The engine's thread: drain the inbox, plan, run, sample, deliver, and again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use futures_util::future::select_all;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::super::backend::Backend;
use super::super::contract::{EngineEvent, FinishReason, GenerationRequest, SequenceId};
use super::super::grammar::{Guide, Lost, TokenSet};
use super::super::sampling::{Sampler, logprobs};
use super::super::scheduler::{Chunk, Outcome, Plan, Scheduler};
use super::super::tokenizer::Tokenizer;
use super::kv::KvWork;
use super::masks::{Mask, Masks, masks_beside};
use super::{Shared, Submission};
use crate::{clock, crash};

/// Places a sequence's channel must have before it is planned: for a token, and for the end.
const EVENTS_PER_STEP: usize = 2;

/// Lists of sequence breakers whose tokens are remembered.
const BREAKERS_MAX: usize = 16;

/// A sequence that has not finished, apart from its tokens, which the planner has.
pub(super) struct Live {
    events: mpsc::Sender<EngineEvent>,
    aborted: Arc<AtomicBool>,
    sampler: Sampler,
    /// Whether to tell how likely each token was, and of how many of the likeliest.
    logprobs: Option<u8>,
    /// Follows what constrains it.
    pub(super) guide: Option<Guide>,
    /// Tokens of the answer that were chosen in an earlier run, and whose logits the sampler has yet to see.
    recalled: VecDeque<u32>,
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
    tokenizer: Arc<Tokenizer>,
    /// Which tokens hold a sequence breaker, for the lists that were asked for last.
    breaks: HashMap<Vec<String>, Arc<[bool]>>,
}

impl<B: Backend> Runner<B> {
    pub(super) fn new(
        scheduler: Scheduler,
        backend: B,
        inbox: mpsc::Receiver<Submission>,
        kv: KvWork,
        shared: Arc<Shared>,
        tokenizer: Arc<Tokenizer>,
    ) -> Self {
        let (live, breaks) = (BTreeMap::new(), HashMap::new());
        Self { scheduler, backend, inbox, kv, shared, live, tokenizer, breaks }
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
        let live = self.live(&request, events, aborted);
        let unknown = tokens.iter().find(|token| **token as usize >= self.backend.vocabulary());
        let live = match live {
            Ok(live) => live,
            Err((events, reason)) => {
                self.shared.live.fetch_sub(1, Ordering::SeqCst);
                // The channel has room for its end.
                let _ = events.try_send(EngineEvent::Finished(FinishReason::Lost(reason)));
                return;
            }
        };
        let over = if let Some(token) = unknown {
            Some(FinishReason::Failed(format!("the prompt holds the token {token}, which the model does not have")))
        } else if tokens.is_empty() {
            Some(FinishReason::Failed("the prompt is empty".to_owned()))
        } else {
            // A prompt without an answer is run all the same: that is what is asked for.
            let last = request.resumed.last();
            last.and_then(|last| live.end_behind(*last).or_else(|| live.end_at_limit(usize::MAX)))
        };
        // What is recalled is run again, one token behind the other.
        let tokens = if live.recalled.is_empty() { tokens } else { request.prompt.to_vec() };
        let over = over.or_else(|| {
            let refused = self.scheduler.add(id, tokens, request.cache_salt, request.standing).is_err();
            refused.then(|| FinishReason::Failed("prompt and answer do not fit into the KV cache".to_owned()))
        });
        self.live.insert(id, live);
        if let Some(finish) = over {
            self.finish(id, finish);
        }
    }

    /// A sequence behind what is known of its answer.
    fn live(
        &mut self,
        request: &GenerationRequest,
        events: mpsc::Sender<EngineEvent>,
        aborted: Arc<AtomicBool>,
    ) -> Result<Live, (mpsc::Sender<EngineEvent>, Lost)> {
        let is_recalled = Sampler::wants_earlier_logits(&request.sampling);
        let (recalled, answer) =
            if is_recalled { (&request.resumed[..], &[][..]) } else { (&[][..], &request.resumed[..]) };
        let mut guide = request.constraint.as_ref().map(|(compiled, inside)| compiled.guide(*inside));
        for token in answer {
            if let Some(Err(lost)) = guide.as_mut().map(|guide| guide.accept(*token)) {
                return Err((events, lost));
            }
        }
        let vocabulary = self.backend.vocabulary();
        let breaks = self.breaks(request);
        let sampler = Sampler::new(request.sampling.clone(), &request.prompt, answer, vocabulary, breaks);
        Ok(Live {
            events,
            aborted,
            sampler,
            logprobs: request.logprobs,
            guide,
            recalled: recalled.iter().copied().collect(),
            stop_tokens: Arc::clone(&request.stop_tokens),
            answered: answer.len() as u32,
            max_tokens: request.max_tokens,
            tokens: request.prompt.len() + answer.len(),
        })
    }

    /// Which tokens hold one of the request's sequence breakers.
    fn breaks(&mut self, request: &GenerationRequest) -> Arc<[bool]> {
        let dry = request.sampling.shaping.dry.as_ref();
        let Some(breakers) = dry.map(|dry| &dry.sequence_breakers).filter(|breakers| !breakers.is_empty()) else {
            return Arc::default();
        };
        if let Some(known) = self.breaks.get(breakers) {
            return Arc::clone(known);
        }
        let holds = |token| {
            let text = String::from_utf8_lossy(self.tokenizer.token_bytes(token));
            breakers.iter().any(|breaker| text.contains(breaker.as_str()))
        };
        let breaks: Arc<[bool]> = (0..self.tokenizer.vocab_size() as u32).map(holds).collect();
        if self.breaks.len() == BREAKERS_MAX {
            self.breaks.clear();
        }
        self.breaks.insert(breakers.clone(), Arc::clone(&breaks));
        breaks
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
        self.note_load();
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

    fn note_load(&self) {
        *self.shared.load.lock().unwrap_or_else(PoisonError::into_inner) = self.scheduler.load();
    }

    fn run_plan(&mut self, plan: &Plan) {
        let vocabulary = self.backend.vocabulary();
        let context_length = self.scheduler.context_length();
        let mut results = Vec::with_capacity(plan.chunks.len());
        let mut finished = Vec::new();
        if plan.chunks.iter().any(|chunk| chunk.sampled == 0) {
            crash::point("prefill_middle");
        }
        let backend = &mut self.backend;
        let (logits, mut masks) = masks_beside(&mut self.live, &plan.chunks, || backend.forward(&plan.chunks));
        match logits {
            Ok(logits) => {
                let mut rows = logits.chunks_exact(vocabulary);
                for chunk in &plan.chunks {
                    let rows: Vec<&[f32]> = rows.by_ref().take(chunk.sampled).collect();
                    let masks = masks.remove(&chunk.sequence).unwrap_or_default();
                    let Some(live) = self.live.get_mut(&chunk.sequence).filter(|_| !rows.is_empty()) else {
                        results.push((chunk.sequence, Outcome::Prefilled));
                        continue;
                    };
                    let (outcome, finish) = live.advance(&self.shared, chunk, &rows, masks, context_length);
                    if matches!(outcome, Outcome::Next(_)) {
                        self.scheduler.foresee(chunk.sequence, live.certain());
                    }
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
        self.note_load();
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

impl Live {
    /// Samples behind one chunk and delivers the tokens: as long as what was guessed is what is sampled, and one more.
    fn advance(
        &mut self,
        shared: &Shared,
        chunk: &Chunk,
        logits: &[&[f32]],
        masks: Masks,
        context_length: usize,
    ) -> (Outcome, Option<FinishReason>) {
        let mut sampled = Vec::new();
        let mut guessed = chunk.guessed().iter();
        let mut masks = masks.into_iter();
        for logits in logits {
            let token = match self.choose(logits, masks.next()) {
                Ok(token) => token,
                Err(reason) => return (Outcome::Failed, Some(reason)),
            };
            sampled.push(token);
            if let Some(finish) = self.end_behind(token).or_else(|| self.end_at_limit(context_length)) {
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

    /// The token behind these logits, delivered; one that is recalled was delivered long ago.
    fn choose(&mut self, logits: &[f32], mask: Option<Mask>) -> Result<u32, FinishReason> {
        if self.guide.is_some() && mask.is_none() {
            return Err(FinishReason::Failed("what the answer must look like was lost".to_owned()));
        }
        let mask = mask.transpose().map_err(FinishReason::Lost)?.flatten();
        let allowed = mask.as_ref().map(TokenSet::as_slice);
        let index = u64::from(self.answered);
        let token = match self.recalled.pop_front() {
            Some(token) => self.sampler.recall(logits, index, allowed, token).map(|()| token),
            None => self.sampler.choose(logits, index, allowed).inspect(|token| {
                self.deliver(match self.logprobs {
                    Some(top) => EngineEvent::Weighed(*token, Box::new(logprobs(logits, *token, usize::from(top)))),
                    None => EngineEvent::Token(*token),
                });
            }),
        };
        let token = token.map_err(|error| FinishReason::Failed(error.to_string()))?;
        self.answered += 1;
        self.tokens += 1;
        if let Some(guide) = &mut self.guide
            && !self.stop_tokens.contains(&token)
        {
            guide.accept(token).map_err(FinishReason::Lost)?;
        }
        Ok(token)
    }

    /// The tokens that will be sampled next, as far as they are certain.
    fn certain(&mut self) -> Vec<u32> {
        if !self.recalled.is_empty() {
            return self.recalled.iter().copied().collect();
        }
        self.guide.as_mut().map(Guide::forced).unwrap_or_default()
    }

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
