//! The pump of one generation: renders the prompt, asks the engine, and carries its tokens to the conversation.
//!
//! Tokens do not go through the mailbox one by one: while the conversation is busy with the last news, the pump
//! gathers the next. It shows text at token borders only, where the parser holds nothing back, so that what was
//! shown is always a whole number of tokens.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use ractor::ActorRef;
use tokio::sync::Notify;

use super::chat::{PIECE_TOKEN, chat, refuse_untellable, unfinished_call, usage_of};
use super::conversation::ConversationMsg;
use super::courier::Courier;
use super::kv::{ConversationKv, Recorder};
use super::offload::offload;
use super::parsed::{Parsed, logprob};
use super::prompt::{HeldPrompt, Rendered, Unrendered};
use super::reading::Reading;
use super::shared::{Parts, RunningGuard};
use super::standing::{owner, salt};
use crate::conversation::{GenerationEnd, Input, Output, RecordedPrompt, ResponseConfig, State, TokenLogprob, Usage};
use crate::crash;
use crate::engine::settings::TextRule;
use crate::engine::{
    AbortHandle, Compiled, Engine, EngineError, EngineEvent, FinishReason, Generation, GenerationRequest, Medium,
    ModelInfo, Refusal, Sampling, Standing, Surroundings, TokenLogprobs,
};
use crate::error::Code;
use crate::ids::ResponseId;
use crate::parse::Piece;
use crate::telemetry::GenerationMeter;

/// Tokens that may wait in the pump for a busy conversation; then the engine's channel fills, and the sequence
/// pauses.
const GATHERED_TOKENS_MAX: usize = 256;

/// What one generation needs.
pub(super) struct Job {
    pub(super) generation: u64,
    pub(super) response_id: ResponseId,
    /// The conversation as it was when the generation was asked for.
    pub(super) state: State,
    pub(super) held: Arc<HeldPrompt>,
    pub(super) kv: Arc<ConversationKv>,
    pub(super) control: Arc<PumpControl>,
    pub(super) running: RunningGuard,
}

/// Reaches a generation wherever it is: before it is submitted, in the queue, in the batch.
pub(super) struct PumpControl {
    aborted: AtomicBool,
    abort: Notify,
    sequence: Mutex<Option<AbortHandle>>,
    /// Tokens of reasoning that it may have.
    thinking_tokens: AtomicU64,
}

impl Default for PumpControl {
    fn default() -> Self {
        Self {
            aborted: AtomicBool::default(),
            abort: Notify::default(),
            sequence: Mutex::default(),
            thinking_tokens: AtomicU64::new(u64::MAX),
        }
    }
}

impl PumpControl {
    /// Takes effect at once where the engine has the sequence: what is submitted later is planned later.
    pub(super) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        self.abort.notify_waiters();
        if let Some(sequence) = &*self.sequence.lock().unwrap_or_else(PoisonError::into_inner) {
            sequence.abort();
        }
    }

    /// Returns once the generation is aborted.
    async fn aborted(&self) {
        // Registered before the flag is read: an abort in between is not missed.
        let notified = self.abort.notified();
        if !self.is_aborted() {
            notified.await;
        }
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// Sets how long it may think; none sets no bound. It holds from the next token on.
    pub(super) fn limit_thinking(&self, budget_tokens: Option<u32>) {
        self.thinking_tokens.store(budget_tokens.map_or(u64::MAX, u64::from), Ordering::SeqCst);
    }

    fn thinking_tokens(&self) -> u64 {
        self.thinking_tokens.load(Ordering::SeqCst)
    }

    /// The engine has the sequence now. An abort that came in between is passed on.
    pub(super) fn submitted(&self, handle: AbortHandle) {
        *self.sequence.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        if self.is_aborted() {
            self.abort();
        }
    }
}

/// Starts the generation; its news go to the conversation until it has ended. A pump that panics ends the response:
/// nobody else would ever.
pub(super) fn start(job: Job, parts: Parts, to: ActorRef<ConversationMsg>) {
    let (generation, spent) = (job.generation, job.running.meter.clone());
    tokio::spawn(async move {
        let pumped = AssertUnwindSafe(run(job, parts, to.clone())).catch_unwind().await;
        if pumped.is_err() {
            let message = "the server failed while it generated; the log says where".to_owned();
            let end = GenerationEnd::Failed { code: Code::Internal, message };
            let mut courier = Courier::new(generation, to, spent);
            courier.send(Ended::with(end).input(generation)).await;
        }
    });
}

async fn run(job: Job, parts: Parts, to: ActorRef<ConversationMsg>) {
    let Job { generation, response_id, state, held, kv, control, running } = job;
    let mut courier = Courier::new(generation, to, running.meter.clone());
    let model = state.response(response_id).map(|response| response.config.model.clone());
    let mut meter = GenerationMeter::begin(&model.unwrap_or_default());
    let end = match begin(&parts, state, response_id, held, &kv, &control).await {
        Ok(Begun { pump, prompt }) => {
            courier.spend(prompt.tokens.into());
            pump.carry(&mut courier, prompt, &mut meter).await
        }
        Err(end) => Some(Ended::with(end)),
    };
    meter.ended(end.as_ref().map_or(&GenerationEnd::Aborted, |ended| &ended.end));
    if let Some(ended) = end {
        courier.send_with(ended.input(generation), Some(running)).await;
    }
}

struct Begun {
    pump: Pump,
    prompt: Prompt,
}

/// What is told of the prompt when the engine begins.
struct Prompt {
    tokens: u32,
    record: Option<RecordedPrompt>,
}

/// How a generation ended, and what was gathered last.
struct Ended {
    outputs: Vec<Output>,
    tail_tokens: Vec<u32>,
    usage: Option<Usage>,
    end: GenerationEnd,
}

impl Ended {
    /// Nothing more was gathered.
    fn with(end: GenerationEnd) -> Self {
        Self { outputs: Vec::new(), tail_tokens: Vec::new(), usage: None, end }
    }

    fn input(self, generation: u64) -> Input {
        let Self { outputs, tail_tokens, usage, end } = self;
        Input::GenerationEnded { generation, outputs, tail_tokens, usage, end }
    }
}

/// Renders the prompt away from the async threads and submits the sequence.
async fn begin(
    parts: &Parts,
    state: State,
    response_id: ResponseId,
    held: Arc<HeldPrompt>,
    kv: &Arc<ConversationKv>,
    control: &Arc<PumpControl>,
) -> Result<Begun, GenerationEnd> {
    let failed = |code, message: String| GenerationEnd::Failed { code, message };
    let Some(response) = state.response(response_id) else { return Err(GenerationEnd::Aborted) };
    let (config, resumed, home) = (response.config.clone(), response.tokens(), state.id);
    let limits = (state.tokens_max(response).unwrap_or(u32::MAX), parts.config.token_channel_capacity);
    let (owner, salt) = (owner(&state, &config), salt(state.tenant.as_deref(), &config));
    let Some(engine) = parts.catalog.get(Some(&config.model)).cloned() else {
        return Err(failed(Code::ModelNotFound, format!("the model {} is not served any more", config.model)));
    };
    let model = engine.model().clone();
    refuse_untellable(&config, &model)?;
    // Rendering and tokenising take a core: more at once would only take more memory.
    let permit = tokio::select! {
        biased;
        permit = parts.running.render_permit() => permit,
        () = control.aborted() => return Err(GenerationEnd::Aborted),
    };
    let settings = parts.config.as_ref().into();
    let own = config.clone();
    let rendering = offload(move || {
        let _permit = permit;
        let rendered = held.render(&state, response_id, &model, settings)?;
        Ok((rendered, compiled(&own, &model)?))
    });
    let rendered = tokio::select! {
        biased;
        rendered = rendering => rendered,
        // The thread goes on to its end; nobody waits for it.
        () = control.aborted() => return Err(GenerationEnd::Aborted),
    };
    let (mut rendered, constraint) = match rendered {
        Ok(rendered) => rendered.map_err(unrendered)?,
        Err(_) => return Err(failed(Code::Internal, "rendering the prompt failed".to_owned())),
    };
    if control.is_aborted() {
        return Err(GenerationEnd::Aborted);
    }
    crash::point("prompt_rendered");
    let parsed = Parsed::behind(engine.model(), &config, &rendered, &resumed);
    if parsed.pipeline.stopped() {
        // The stop string is durable, only the end was not: nothing is left to generate.
        return Err(parsed.stopped());
    }
    parts.foresight.overtaken_by(&rendered.tokens);
    let prompt = Prompt { tokens: rendered.length(), record: rendered.record.take() };
    let recorder = match home.filter(|_| config.store && engine.model().medium == Medium::Tokens) {
        Some(home) => {
            let tokens = rendered.tokens.iter().chain(&resumed).copied().collect();
            tokio::select! {
                recorder = kv.begin(&parts.kv, home, &engine, (tokens, salt)) => Some(recorder),
                () = control.aborted() => return Err(GenerationEnd::Aborted),
            }
        }
        None => None,
    };
    let unfinished = rendered.is_in_call.then(unfinished_call);
    let request = request(&config, (owner, salt), rendered, constraint, engine.model(), limits);
    let form_at = config.constraint.as_ref().and_then(|constraint| constraint.at.clone());
    let says_text = config.constraint.as_ref().is_none_or(|constraint| constraint.text != TextRule::Nothing);
    let source = Source { engine, request, form_at, says_text, tokens: resumed, control: control.clone() };
    Ok(Begun { pump: Pump::begin(source, parsed, recorder, unfinished)?, prompt })
}

/// How a generation ends that has no prompt.
fn unrendered(why: Unrendered) -> GenerationEnd {
    let (code, message) = match why {
        Unrendered::Template(message) | Unrendered::Constraint(message) => (Code::InvalidInput, message),
        Unrendered::TooLong(message) => (Code::ContextLengthExceeded, message),
    };
    GenerationEnd::Failed { code, message }
}

/// The response's constraint for this model, where it has one.
fn compiled(config: &ResponseConfig, model: &ModelInfo) -> Result<Option<Compiled>, Unrendered> {
    let constraint = config.constraint.as_ref().filter(|_| model.medium == Medium::Tokens);
    let Some(constraint) = constraint else { return Ok(None) };
    let Reading { tool_format, reasoning, .. } = Reading::of(config, model);
    let surroundings = Surroundings { tools: &config.known_tools(), tool_format, reasoning };
    let grammars = model.grammars.as_ref();
    let grammars = grammars.ok_or_else(|| Unrendered::Constraint(format!("{} takes no constraint now", model.id)))?;
    let compiled = grammars.compile(constraint, &surroundings);
    compiled.map(Some).map_err(|error| Unrendered::Constraint(blamed(constraint.at.as_deref(), &error)))
}

/// An error with the field of the request that it is about.
fn blamed(at: Option<&str>, error: &impl std::fmt::Display) -> String {
    at.map_or_else(|| error.to_string(), |at| format!("{at}: {error}"))
}

fn request(
    config: &ResponseConfig,
    (owner, cache_salt): (u64, u64),
    rendered: Rendered,
    constraint: Option<Compiled>,
    model: &ModelInfo,
    (max_tokens, channel_capacity): (u32, usize),
) -> GenerationRequest {
    GenerationRequest {
        sampling: Sampling { choice: config.choice.map_or(0, |choice| choice.index), ..config.sampling.clone() },
        logprobs: config.logprobs,
        constraint: constraint.map(|constraint| (constraint, rendered.starts_in_reasoning)),
        stop_tokens: model.tokenizer.end_of_generation().into(),
        chat: chat(config, model, rendered.begun),
        messages: rendered.messages.into(),
        cache_salt,
        standing: Standing { owner, priority: config.priority.unwrap_or(0) },
        channel_capacity,
        ..GenerationRequest::greedy(rendered.tokens.into(), max_tokens)
    }
}

/// Where a pump's tokens come from: the engine, the request, and the answer so far.
struct Source {
    engine: Arc<dyn Engine>,
    request: GenerationRequest,
    /// The field that says what the answer must look like.
    form_at: Option<String>,
    /// Whether the answer may have text: not where a tool must be called.
    says_text: bool,
    /// The answer's tokens so far.
    tokens: Vec<u32>,
    control: Arc<PumpControl>,
}

impl Source {
    /// Whether the answer may go on with these tokens, and with one more behind them.
    fn has_room_behind(&self, more: &[u32]) -> bool {
        let answer = self.tokens.len() + more.len();
        let fits_context = self.request.prompt.len() + answer < self.engine.model().context_length as usize;
        fits_context && answer < self.request.max_tokens as usize
    }

    /// Queues a sequence that goes on behind the answer so far.
    fn submit(&self) -> Result<Generation, GenerationEnd> {
        let request = GenerationRequest { resumed: self.tokens.as_slice().into(), ..self.request.clone() };
        let failed = |code, error: &EngineError| GenerationEnd::Failed { code, message: error.to_string() };
        let sequence = self.engine.submit(request).map_err(|error| match error {
            EngineError::Overloaded => failed(Code::Overloaded, &error),
            EngineError::ContextLengthExceeded { .. } => failed(Code::ContextLengthExceeded, &error),
            EngineError::Unavailable(_) => failed(Code::EngineFailed, &error),
        })?;
        self.control.submitted(sequence.abort.clone());
        crash::point("sequence_submitted");
        Ok(sequence)
    }
}

/// What was read of an answer and is not told yet.
struct Gathered {
    source: Source,
    parsed: Parsed,
    /// Absent where nothing is kept of the conversation.
    recorder: Option<Recorder>,
    /// Groups of whole tokens that can be shown.
    groups: Vec<Output>,
    /// Tokens in them.
    count: usize,
    /// Tokens of the group that is still held back.
    tokens: Vec<u32>,
    /// How likely they were, where the response asks for it.
    logprobs: Vec<TokenLogprob>,
    pieces: Vec<Piece>,
}

impl Gathered {
    /// Reads a token, and how likely it was where that is told.
    fn read(&mut self, token: u32, weighed: Option<&TokenLogprobs>) {
        if self.source.request.logprobs.is_some() {
            let logprob = logprob(&self.source.engine.model().tokenizer, token, weighed);
            self.logprobs.push(logprob);
        }
        if let Some(recorder) = &self.recorder {
            recorder.push(token);
        }
        self.source.tokens.push(token);
        self.tokens.push(token);
        self.parsed.push(self.source.engine.model(), token, &mut self.pieces);
        // A token that says nothing joins the group behind it.
        if !self.parsed.pipeline.held() && !self.pieces.is_empty() {
            self.close_group();
        }
    }

    /// Takes a piece that the engine has read itself. One that says more stands for a token, as far as anybody counts
    /// before the engine says how many there were.
    fn take_piece(&mut self, piece: Piece) {
        self.count += 1;
        let tokens = if piece.grows() { vec![PIECE_TOKEN] } else { Vec::new() };
        self.source.tokens.extend(&tokens);
        self.groups.push(Output { tokens, logprobs: Vec::new(), pieces: vec![piece] });
    }

    fn close_group(&mut self) {
        self.count += self.tokens.len();
        let (tokens, pieces) = (std::mem::take(&mut self.tokens), std::mem::take(&mut self.pieces));
        let logprobs = std::mem::take(&mut self.logprobs);
        self.groups.push(Output { tokens, logprobs, pieces });
    }

    /// Whether the model has thought enough; then the answer goes on as if it had closed its reasoning here. Where
    /// nothing could be said behind that any more, it thinks up to its bound: that is never exceeded.
    fn close_reasoning(&mut self) -> bool {
        let is_over = self.parsed.is_over(self.source.control.thinking_tokens());
        let is_over = is_over && self.source.has_room_behind(&self.parsed.closing);
        if is_over {
            for token in self.parsed.closing.clone() {
                self.read(token, None);
            }
        }
        is_over
    }
}

/// A sequence in the engine and what was gathered from it.
struct Pump {
    gathered: Gathered,
    sequence: Generation,
    /// What the engine still sends of this sequence is dropped, and why.
    dropping: Option<Dropping>,
    /// What the engine counted, where only it can, and the stop string that it said had ended the answer.
    usage: Option<Usage>,
    stop_string: Option<String>,
}

/// Why a sequence is not read to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dropping {
    /// A stop string was reached.
    Stopped,
    /// Its reasoning was closed for it: another sequence goes on behind that.
    ThoughtEnough,
}

impl Pump {
    /// Submits the sequence. A model that may not think at all begins behind its reasoning.
    fn begin(
        source: Source,
        parsed: Parsed,
        recorder: Option<Recorder>,
        unfinished: Option<Output>,
    ) -> Result<Self, GenerationEnd> {
        let groups = unfinished.into_iter().collect();
        let (tokens, logprobs, pieces) = (Vec::new(), Vec::new(), Vec::new());
        let mut gathered = Gathered { source, parsed, recorder, groups, count: 0, tokens, logprobs, pieces };
        gathered.close_reasoning();
        let sequence = gathered.source.submit()?;
        Ok(Self { gathered, sequence, dropping: None, usage: None, stop_string: None })
    }

    /// Carries tokens until the sequence has ended. `None`: the conversation takes no news any more.
    async fn carry(mut self, courier: &mut Courier, prompt: Prompt, meter: &mut GenerationMeter) -> Option<Ended> {
        let Prompt { tokens: prompt_tokens, record: mut prompt } = prompt;
        loop {
            let may_gather = self.gathered.count < GATHERED_TOKENS_MAX;
            tokio::select! {
                biased;
                () = courier.taken(), if courier.outstanding.is_some() => {}
                event = self.sequence.events.recv(), if may_gather => match event {
                    Some(EngineEvent::Started { cached_tokens }) => {
                        crash::point("prefill_started");
                        meter.started(prompt_tokens, cached_tokens);
                        let (generation, prompt) = (courier.generation, prompt.take());
                        let started = Input::GenerationStarted { generation, prompt_tokens, cached_tokens, prompt };
                        courier.send(started).await;
                    }
                    Some(EngineEvent::Token(token)) => self.take(token, None, meter),
                    Some(EngineEvent::Weighed(token, weighed)) => self.take(token, Some(&weighed), meter),
                    Some(EngineEvent::Piece(Piece::Stopped { stop })) => self.stop_string = Some(stop),
                    Some(EngineEvent::Piece(piece)) => {
                        crash::point("token_sampled");
                        meter.token();
                        self.gathered.take_piece(piece);
                    }
                    Some(EngineEvent::Counted(counted)) => {
                        let usage = usage_of(counted);
                        meter.counted(&usage);
                        self.usage = Some(usage);
                    }
                    Some(EngineEvent::Finished(reason)) => if let Err(end) = self.finished(reason) {
                        return self.end(courier, end).await;
                    },
                    None => {
                        let (code, message) = (Code::EngineFailed, "the engine stopped".to_owned());
                        return self.end(courier, GenerationEnd::Failed { code, message }).await;
                    }
                },
            }
            if courier.gone {
                self.sequence.abort.abort();
                return None;
            }
            if courier.outstanding.is_none() && !self.gathered.groups.is_empty() {
                self.gathered.count = 0;
                let (generation, outputs) = (courier.generation, std::mem::take(&mut self.gathered.groups));
                courier.send(Input::Generated { generation, outputs }).await;
            }
        }
    }

    fn take(&mut self, token: u32, weighed: Option<&TokenLogprobs>, meter: &mut GenerationMeter) {
        if self.dropping.is_some() {
            return;
        }
        meter.token();
        crash::point("token_sampled");
        self.gathered.read(token, weighed);
        if self.gathered.parsed.pipeline.stopped() {
            self.drop_rest(Dropping::Stopped);
        } else if self.gathered.close_reasoning() {
            self.drop_rest(Dropping::ThoughtEnough);
        }
    }

    fn drop_rest(&mut self, why: Dropping) {
        self.dropping = Some(why);
        self.sequence.abort.abort();
    }

    async fn end(mut self, courier: &mut Courier, end: GenerationEnd) -> Option<Ended> {
        courier.taken().await;
        crash::point("generation_ended");
        let gathered = &mut self.gathered;
        if end != GenerationEnd::Aborted {
            gathered.parsed.pipeline.finish(&mut gathered.pieces, !end.is_whole());
            if !gathered.source.says_text {
                // It was to become a call: the beginning of a marker that was cut off is no text.
                gathered.pieces.retain(|piece| !matches!(piece, Piece::Text(_)));
            }
        }
        if !gathered.pieces.is_empty() {
            gathered.close_group();
        }
        let Gathered { groups, tokens, .. } = self.gathered;
        Some(Ended { outputs: groups, tail_tokens: tokens, usage: self.usage, end })
    }

    /// The sequence has left the engine: how the generation ends with it, or goes on in another.
    fn finished(&mut self, reason: FinishReason) -> Result<(), GenerationEnd> {
        let dropping = self.dropping.take();
        if dropping == Some(Dropping::Stopped) {
            return Err(self.gathered.parsed.stopped());
        }
        if dropping == Some(Dropping::ThoughtEnough) && !self.gathered.source.control.is_aborted() {
            self.sequence = self.gathered.source.submit()?;
            return Ok(());
        }
        Err(match reason {
            FinishReason::Stop => match self.stop_string.take() {
                Some(stop) => GenerationEnd::StopString(stop),
                None => GenerationEnd::Stop,
            },
            FinishReason::Length => GenerationEnd::Length,
            FinishReason::Filtered => GenerationEnd::Filtered,
            FinishReason::Aborted => GenerationEnd::Aborted,
            FinishReason::Lost(lost) => {
                let message = blamed(self.gathered.source.form_at.as_deref(), &lost);
                GenerationEnd::Failed { code: Code::InvalidInput, message }
            }
            FinishReason::Refused(refusal, message) => {
                let code = match refusal {
                    Refusal::Input => Code::InvalidInput,
                    Refusal::ContextLength => Code::ContextLengthExceeded,
                    Refusal::Overloaded => Code::Overloaded,
                    Refusal::Unreachable => Code::UpstreamUnreachable,
                };
                GenerationEnd::Failed { code, message }
            }
            FinishReason::Failed(message) => GenerationEnd::Failed { code: Code::EngineFailed, message },
        })
    }
}
