//! The contract between the server and an engine: requests in, token events out.
//!
//! An engine owns its threads. It never awaits a reader: events go over a bounded channel, and a sequence whose
//! channel is full is left out of the next step, never its batch-mates.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};

use super::grammar::{Compiled, Grammars, Lost};
use super::sampling::TokenLogprobs;
use super::settings::{Constraint, Price, Sampling, SamplingDefaults};
use super::tokenizer::Tokenizer;
use crate::parse::Piece;
use crate::prompt::{ChatTemplate, Efforts, Message, ToolDefinition};

/// Names one sequence inside one engine; unique for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Whose a sequence is, and how urgent. It decides when tokens are computed, never which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Sequences of one owner stand behind each other, those of others in between.
    pub owner: u64,
    /// A higher one comes sooner; none is put off for ever.
    pub priority: i8,
}

impl Standing {
    /// The priority of what nobody waits for: it comes behind everything else.
    pub const UNAWAITED: i8 = i8::MIN;
}

/// In which form an engine takes a prompt and gives an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// Tokens: our template writes the prompt, our parsers read the answer.
    #[default]
    Tokens,
    /// Messages in, pieces out: the engine has a template and parsers of its own.
    Messages,
}

/// What an engine that takes messages is told besides them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chat {
    /// So many of the last messages are the answer so far, or a beginning of it that the client gave: the answer goes
    /// on with them. With whole calls among them it is the whole answer.
    pub begun: usize,
    /// Tools that may be called.
    pub tools: Vec<ToolDefinition>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// How hard to think, in the client's word.
    pub effort: Option<String>,
    /// Tokens of reasoning; none sets no bound, and 0 says that the model is not to think.
    pub thinking_tokens: Option<u32>,
    /// Variables for the chat template.
    pub template_kwargs: Map<String, Value>,
}

/// One sequence to generate.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    /// The rendered prompt as token ids.
    pub prompt: Arc<[u32]>,
    /// Tokens of the answer that are already durable: a resumed generation goes on behind them. They are
    /// prefilled like the prompt, and the token index of the sampler starts at their number.
    pub resumed: Arc<[u32]>,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Whether to tell how likely each token was, and of how many of the likeliest.
    pub logprobs: Option<u8>,
    /// What the answer must look like; and whether the prompt ends inside reasoning, as far as it says.
    pub constraint: Option<(Compiled, Option<bool>)>,
    /// The most tokens the whole answer may have, the resumed ones included.
    pub max_tokens: u32,
    /// Tokens that end the answer; such a token is delivered before `Finished(Stop)`.
    pub stop_tokens: Arc<[u32]>,
    /// The conversation as the prompt was rendered from it. Engines that work on text or messages (scripted,
    /// upstream) read this; the local engine ignores it.
    pub messages: Arc<[Message]>,
    /// What belongs to the messages; for engines of [`Medium::Messages`].
    pub chat: Arc<Chat>,
    /// KV is shared between sequences of equal salt only.
    pub cache_salt: u64,
    /// When its turn is.
    pub standing: Standing,
    /// Room of the event channel.
    pub channel_capacity: usize,
}

impl GenerationRequest {
    /// The most likely tokens behind a prompt, of nobody in particular: what measuring and testing asks for.
    pub fn greedy(prompt: Arc<[u32]>, max_tokens: u32) -> Self {
        Self {
            prompt,
            resumed: Arc::default(),
            sampling: Sampling::GREEDY,
            logprobs: None,
            constraint: None,
            max_tokens,
            stop_tokens: Arc::default(),
            messages: Arc::default(),
            chat: Arc::default(),
            cache_salt: 0,
            standing: Standing::default(),
            channel_capacity: 1024,
        }
    }
}

/// What an engine reports about one sequence, in order; `Finished` is the last.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// The sequence left the queue; how many prompt tokens came from the KV cache.
    Started {
        /// Prompt and resumed tokens that did not have to be run forward.
        cached_tokens: u32,
    },
    /// One sampled token.
    Token(u32),
    /// One sampled token, and how likely it was: where [`GenerationRequest::logprobs`] asks for it.
    Weighed(u32, Box<TokenLogprobs>),
    /// The next piece of an answer that the engine has read itself: [`Medium::Messages`].
    Piece(Piece),
    /// What the engine counted of such an answer, where it says: at most once, behind the last piece.
    Counted(Counted),
    /// The sequence is out of the scheduler and holds no KV block.
    Finished(FinishReason),
}

/// Tokens as an engine counted them that nobody else can count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Prompt tokens that did not have to be run forward.
    pub cached_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// Those of them that were reasoning.
    pub reasoning_tokens: u32,
}

/// What kind of refusal an engine gave once it had taken a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Something of the request cannot be done.
    Input,
    /// Prompt and answer do not fit.
    ContextLength,
    /// There is no room now.
    Overloaded,
    /// Whoever would answer cannot be reached.
    Unreachable,
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq)]
pub enum FinishReason {
    /// A stop token was sampled.
    Stop,
    /// `max_tokens` or the context's end was reached.
    Length,
    /// A filter of whoever answers ended it.
    Filtered,
    /// The sequence was aborted.
    Aborted,
    /// What the request says of the answer's form cannot be followed on.
    Lost(Lost),
    /// The engine does not answer this request; the text is fit to be shown to a client.
    Refused(Refusal, String),
    /// The engine failed; the text is fit to be shown to a client.
    Failed(String),
}

/// A running generation: its events and the handle that aborts it.
#[derive(Debug)]
pub struct Generation {
    /// The events. Dropping the receiver aborts the sequence too.
    pub events: mpsc::Receiver<EngineEvent>,
    /// Aborts the sequence.
    pub abort: AbortHandle,
}

/// Aborts one sequence; the confirmation is `Finished(Aborted)` on its channel.
#[derive(Clone)]
pub struct AbortHandle(Arc<dyn Fn() + Send + Sync>);

impl AbortHandle {
    /// Wraps what the engine does to abort. It must not block and may be called more than once.
    pub fn new(abort: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(abort))
    }

    /// Asks the engine to drop the sequence at its next step. Requests submitted later are planned after it.
    pub fn abort(&self) {
        (self.0)();
    }
}

impl std::fmt::Debug for AbortHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("AbortHandle")
    }
}

/// Resolves when an answer is aborted or its reader is gone.
pub(crate) async fn unwanted(mut aborted: watch::Receiver<bool>, events: &mpsc::Sender<EngineEvent>) {
    let asked = async {
        if aborted.wait_for(|aborted| *aborted).await.is_err() {
            // The handle is gone, so nobody can ask any more.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = asked => {}
        () = events.closed() => {}
    }
}

/// What a model is and how its text is made and read.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The id clients ask for, as listed by `/v1/models`.
    pub id: String,
    /// Other names that clients may ask for it by.
    pub aliases: Vec<String>,
    /// Who answers: `local`, `scripted`, …
    pub owned_by: String,
    /// In which form it takes prompts and gives answers.
    pub medium: Medium,
    /// Seconds since the Unix epoch when the model was loaded.
    pub created: u64,
    /// Most tokens that prompt and answer may have together.
    pub context_length: u32,
    /// Model, tokenizer, template, KV type, instruction set and numerics version in one string: two equal
    /// fingerprints generate the same tokens.
    pub fingerprint: String,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// How tokens are chosen where the client leaves it open.
    pub sampling: SamplingDefaults,
    /// The model's own chat template.
    pub template: Arc<ChatTemplate>,
    /// How tool calls look in this model's output.
    pub tool_format: crate::parse::ToolFormat,
    /// How reasoning looks in this model's output.
    pub reasoning: crate::parse::ReasoningFormat,
    /// Whether an answer that is nothing but a call of a declared tool, without markers, is a call.
    pub bare_calls: bool,
    /// The words for how hard it is to think.
    pub efforts: Arc<Efforts>,
    /// What its tokens cost, where somebody says.
    pub price: Option<Price>,
    /// Compiles what an answer must look like; absent where the engine cannot be held to anything.
    pub grammars: Option<Arc<Grammars>>,
    /// Whether equal tokens after a resume are guaranteed (own engine) or not (upstream).
    pub exact_resume: bool,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The queue in front of the scheduler is full.
    #[error("the engine's queue is full; retry later")]
    Overloaded,
    /// Prompt and answer can never fit.
    #[error("prompt is too long: {prompt_tokens} tokens > {context_length} maximum; shorten the input")]
    ContextLengthExceeded {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens that fit.
        context_length: u32,
    },
    /// The engine has stopped or failed.
    #[error("the engine is not running: {0}")]
    Unavailable(String),
}

/// Keys and values of a sequence's first tokens, on their way out of an engine or back into it.
#[derive(Clone, PartialEq, Eq)]
pub struct KvImage {
    /// [`ModelInfo::fingerprint`] of what computed them.
    pub fingerprint: String,
    /// KV is shared between sequences of equal salt only.
    pub salt: u64,
    /// The tokens; every block holds the same number of them.
    pub tokens: Arc<[u32]>,
    /// The engine's own bytes, block by block.
    pub blocks: Vec<Vec<u8>>,
}

impl std::fmt::Debug for KvImage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (tokens, blocks) = (self.tokens.len(), self.blocks.len());
        formatter.debug_struct("KvImage").field("tokens", &tokens).field("blocks", &blocks).finish_non_exhaustive()
    }
}

/// Why an image was not taken in. Nothing of it was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvRefused {
    /// Another model, file, instruction set or version computed it.
    #[error("it was computed by {found}, and this is {expected}")]
    Fingerprint {
        /// The image's.
        found: String,
        /// The engine's.
        expected: String,
    },
    /// Its parts do not belong together, or not into this engine.
    #[error("it does not fit this engine: {0}")]
    Shape(&'static str),
}

/// What an engine has to do, as it stood behind its last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences in the queue.
    pub waiting: usize,
    /// Blocks of the KV cache that sequences hold.
    pub kv_blocks_held: usize,
    /// All blocks of the KV cache.
    pub kv_blocks: usize,
    /// How often a sequence gave its blocks back to an older one, since the start.
    pub preemptions: u64,
}

impl Load {
    /// The share of the KV cache that sequences hold, from 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        if self.kv_blocks == 0 { 0.0 } else { self.kv_blocks_held as f64 / self.kv_blocks as f64 }
    }
}

/// Turns prompts into tokens. `submit` only queues: it never blocks and never computes.
pub trait Engine: Send + Sync + 'static {
    /// The model this engine serves.
    fn model(&self) -> &ModelInfo;

    /// Queues a sequence.
    fn submit(&self, request: GenerationRequest) -> Result<Generation, EngineError>;

    /// Whether requests can be served now; the text says why not.
    fn health(&self) -> Result<(), String>;

    /// What it has to do now; nothing where an engine does not count.
    fn load(&self) -> Load {
        Load::default()
    }

    /// How many of these tokens a sequence that began with them would not have to run now. Like those below it
    /// only queues; a receiver that closes without an answer means that the engine keeps no KV, or cannot now.
    fn cached_kv(&self, tokens: Arc<[u32]>, salt: u64) -> oneshot::Receiver<usize> {
        let _ = (tokens, salt);
        oneshot::channel().1
    }

    /// Has the KV of these tokens kept for so long, whether it is computed yet or not, in front of what nobody asked to
    /// keep and as far as there is room for such. It only queues; an engine that keeps no KV does nothing.
    fn keep_kv(&self, tokens: Arc<[u32]>, salt: u64, ttl: Duration) {
        let _ = (tokens, salt, ttl);
    }

    /// A copy of what the KV cache holds of these tokens, from the first on; closes without an answer when that is
    /// nothing. No sequence is held up by more than a part of it per step.
    fn save_kv(&self, tokens: Arc<[u32]>, salt: u64) -> oneshot::Receiver<KvImage> {
        let _ = (tokens, salt);
        oneshot::channel().1
    }

    /// Enters an image into the KV cache; the answer is how many of its tokens are there now. The image is checked
    /// before anything is written, and goes into blocks that no sequence and no cached prefix uses.
    fn restore_kv(&self, image: KvImage) -> oneshot::Receiver<Result<usize, KvRefused>> {
        let _ = image;
        oneshot::channel().1
    }
}
