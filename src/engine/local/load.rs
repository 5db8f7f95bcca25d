//! From a GGUF file to a running engine.

use std::path::Path;
use std::sync::Arc;

use midstream_kernels::{Isa, Team};
use sha2::{Digest, Sha256};

use super::super::backend::cpu::CpuBackend;
use super::super::contract::{ModelInfo, SamplingDefaults};
use super::super::gguf::Gguf;
use super::super::kv::{BLOCK_TOKENS, BlockPool, PoolConfig};
use super::super::model::{Description, ModelError, Work};
use super::super::scheduler::{Limits, Scheduler};
use super::super::tokenizer::{self, Tokenizer};
use super::files::{ModelFiles, model_name};
use super::{LocalEngine, stats};
use crate::clock::Clock;
use crate::parse::{ReasoningFormat, TemplateFacts, ToolFormat, detect};
use crate::prompt::{ChatTemplate, PROBED_TOOL, TemplateError};

/// Changes whenever the same file and tokens would give other logits than before, or a KV block other bytes: KV files
/// of an earlier build must not be taken for this one's.
const NUMERICS_VERSION: u32 = 2;
/// How keys and values are stored.
const KV_TYPE: &str = "f16";
/// Memory for KV where nothing was configured.
const KV_BYTES_DEFAULT: usize = 1 << 30;
/// Bytes of each weight that go into the fingerprint: enough to tell two trainings of one model apart.
const FINGERPRINT_BYTES: usize = 4096;

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The id clients ask for; by default the file's name without `.gguf`.
    pub id: Option<String>,
    /// The text of the chat template; by default the file's own.
    pub template: Option<String>,
    /// How tool calls look; by default as the template shows.
    pub tool_format: Option<ToolFormat>,
    /// How reasoning looks; by default as the template shows.
    pub reasoning: Option<ReasoningFormat>,
    /// See [`ModelInfo::bare_calls`].
    pub bare_calls: bool,
    /// Threads that compute; by default as many as the process may use.
    pub threads: Option<usize>,
    /// Most tokens that prompt and answer may have together; by default, and at most, what the model was made for.
    pub context_length: Option<usize>,
    /// Memory for KV, for all sequences and the prefix cache together. Taken from the system as it fills.
    pub kv_bytes: usize,
    /// Sequences that wait or run; the next one is refused as overload.
    pub sequences_max: usize,
    /// Most sequences in one step.
    pub step_sequences: usize,
    /// Most tokens in one step: a longer prompt is run in several, between which others go on.
    pub step_tokens: usize,
    /// Milliseconds that should lie at most between two tokens of an answer while prompts are run.
    pub token_gap_ms: u64,
    /// Most tokens that a step guesses from a sequence's own text; 0 turns guessing off. It changes no token.
    pub guessed_tokens: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            id: None,
            template: None,
            tool_format: None,
            reasoning: None,
            bare_calls: true,
            threads: None,
            context_length: None,
            kv_bytes: KV_BYTES_DEFAULT,
            sequences_max: 256,
            step_sequences: 32,
            step_tokens: 512,
            token_gap_ms: 100,
            guessed_tokens: 7,
        }
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened or mapped.
    #[error("cannot read the model {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// The file is broken, or not a model that can be run.
    #[error("cannot use the model {path}: {source}")]
    Model {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: ModelError,
    },
    /// The tokenizer in the file cannot be used.
    #[error("cannot use the tokenizer of {path}: {source}")]
    Tokenizer {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: tokenizer::Error,
    },
    /// The chat template in the file cannot be used.
    #[error("cannot use the chat template of {path}: {source}")]
    Template {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: TemplateError,
    },
    /// The instruction set that was asked for is not there.
    #[error("cannot choose an instruction set: {0}")]
    Isa(String),
    /// The thread could not be started.
    #[error("cannot start the engine: {0}")]
    Start(std::io::Error),
}

impl LocalEngine {
    /// Loads the model in `path` and starts its thread.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, LoadError> {
        let (model, scheduler, backend) = open(path, options)?;
        Self::start(model, scheduler, backend, options.sequences_max).map_err(LoadError::Start)
    }
}

/// Builds everything that an engine is started with from the file at `path`.
pub(in crate::engine) fn open(
    path: &Path,
    options: &LoadOptions,
) -> Result<(ModelInfo, Scheduler, CpuBackend), LoadError> {
    let files = ModelFiles::open(path)?;
    files.read_through();
    prepare(path, &files.bytes(), options)
}

/// Builds everything that an engine is started with from the files' bytes; `path` names them in errors.
pub(super) fn prepare(
    path: &Path,
    files: &[&[u8]],
    options: &LoadOptions,
) -> Result<(ModelInfo, Scheduler, CpuBackend), LoadError> {
    let name = || path.display().to_string();
    let refused = |source: ModelError| LoadError::Model { path: name(), source };
    let gguf = Gguf::parse_parts(files).map_err(|source| refused(source.into()))?;
    let description = Description::read(&gguf).map_err(refused)?;
    let tokenizer = Tokenizer::from_gguf(&gguf).map_err(|source| LoadError::Tokenizer { path: name(), source })?;
    if tokenizer.vocab_size() > description.sizes.vocabulary {
        return Err(refused(ModelError::Shape {
            name: description.embedding.name.clone(),
            found: vec![description.sizes.embedding, description.sizes.vocabulary],
            expected: vec![description.sizes.embedding, tokenizer.vocab_size()],
        }));
    }
    for warning in description.warnings.iter().chain(tokenizer.warnings()) {
        tracing::warn!(model = name(), "{warning}");
    }
    let template = chat_template(&gguf, &tokenizer, path, options)?;
    let isa = Isa::select().map_err(|error| LoadError::Isa(error.to_string()))?;
    let team = Team::new(options.threads.unwrap_or_else(Team::default_size));
    let fingerprint = fingerprint(&gguf, &description, files, options.template.as_deref(), isa);
    let blocks = kv_blocks(&description, options);
    let pool = BlockPool::new(PoolConfig { blocks, model: fingerprint.clone(), kv_type: KV_TYPE.to_owned() });
    let made_for = description.sizes.context_length;
    let limits = Limits {
        sequences: options.step_sequences.clamp(1, stats::BATCH_MAX),
        step_tokens: options.step_tokens.max(BLOCK_TOKENS),
        context_length: options.context_length.unwrap_or(made_for).min(made_for),
        // A wrong guess would leave its inputs in the place of those that a convolution still needs.
        token_gap_ns: options.token_gap_ms.saturating_mul(1_000_000),
        guessed_tokens: if description.has_convolutions() { 0 } else { options.guessed_tokens },
    };
    let scheduler = Scheduler::new(limits, pool);
    let context_length = scheduler.context_length();
    if context_length < limits.context_length {
        let wanted = limits.context_length;
        let text = "kv_bytes holds fewer tokens than the model's context; longer prompts are refused";
        tracing::warn!(model = name(), holds = context_length, context = wanted, "{text}");
    }
    let model = model_info(path, options, &gguf, tokenizer, template, context_length, fingerprint);
    let backend = CpuBackend::load(description, files, isa, team, blocks).map_err(refused)?;
    Ok((model, scheduler, backend))
}

/// What a file says about its model as a whole, besides its text.
#[derive(Clone, Debug)]
pub struct FileFacts {
    /// The name of the architecture.
    pub architecture: String,
    /// The tokenizer's kind, and how it splits text.
    pub tokenizer: String,
    /// Everything about its text.
    pub model: ModelInfo,
    /// What one token takes.
    pub work: Work,
}

/// Everything that can be said about a file without its weights.
pub fn read_file_facts(path: &Path, options: &LoadOptions) -> Result<FileFacts, LoadError> {
    let model = read_model_info(path, options)?;
    let name = || path.display().to_string();
    let files = ModelFiles::open(path)?;
    let gguf =
        Gguf::parse_parts(&files.bytes()).map_err(|source| LoadError::Model { path: name(), source: source.into() })?;
    let text = |key: &str| gguf.string(key).ok().flatten().unwrap_or("unknown").to_owned();
    let tokenizer = format!("{}, {}", text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"));
    let work = Work::read(&gguf).map_err(|source| LoadError::Model { path: name(), source: source.into() })?;
    Ok(FileFacts { architecture: text("general.architecture"), tokenizer, model, work })
}

/// What a file says about its model's text: tokenizer, template, formats. Its weights are not read, so nothing tells
/// which tokens it would generate: the fingerprint is empty.
pub fn read_model_info(path: &Path, options: &LoadOptions) -> Result<ModelInfo, LoadError> {
    let name = || path.display().to_string();
    let files = ModelFiles::open(path)?;
    let refused = |source: ModelError| LoadError::Model { path: name(), source };
    let gguf = Gguf::parse_parts(&files.bytes()).map_err(|source| refused(source.into()))?;
    let made_for = Description::read(&gguf).map_err(refused)?.sizes.context_length;
    let tokenizer = Tokenizer::from_gguf(&gguf).map_err(|source| LoadError::Tokenizer { path: name(), source })?;
    let template = chat_template(&gguf, &tokenizer, path, options)?;
    let context_length = options.context_length.unwrap_or(made_for).min(made_for);
    Ok(model_info(path, options, &gguf, tokenizer, template, context_length, String::new()))
}

fn chat_template(
    gguf: &Gguf,
    tokenizer: &Tokenizer,
    path: &Path,
    options: &LoadOptions,
) -> Result<ChatTemplate, LoadError> {
    let template = match &options.template {
        Some(source) => ChatTemplate::for_tokenizer(source, tokenizer),
        None => ChatTemplate::from_gguf(gguf, tokenizer),
    };
    template.map_err(|source| LoadError::Template { path: path.display().to_string(), source })
}

fn model_info(
    path: &Path,
    options: &LoadOptions,
    gguf: &Gguf,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    context_length: usize,
    fingerprint: String,
) -> ModelInfo {
    let (tool_format, reasoning) = formats(&template);
    ModelInfo {
        id: options.id.clone().unwrap_or_else(|| model_name(path)),
        owned_by: "local".to_owned(),
        created: Clock::System.unix_ms() / 1000,
        context_length: u32::try_from(context_length).unwrap_or(u32::MAX),
        fingerprint,
        tokenizer: Arc::new(tokenizer),
        reasoning: options.reasoning.unwrap_or(reasoning),
        sampling: sampling_defaults(gguf),
        template: Arc::new(template),
        tool_format: options.tool_format.unwrap_or(tool_format),
        bare_calls: options.bare_calls,
        exact_resume: true,
    }
}

/// How many KV blocks fit into the memory for KV: whole blocks, one at least.
fn kv_blocks(description: &Description, options: &LoadOptions) -> usize {
    let block_bytes = CpuBackend::block_bytes_of(description).max(1);
    // Numbered in 32 bits; far more than any memory holds.
    (options.kv_bytes / block_bytes).clamp(1, u32::MAX as usize)
}

/// What the file recommends, else what suits small and quantised models: a little cooler than the model's own
/// distribution, without its tail of unlikely tokens.
fn sampling_defaults(gguf: &Gguf) -> SamplingDefaults {
    // A recommendation of the wrong type or out of range is no reason to refuse the file.
    let number = |key: &str, most: f32, default: f32| {
        let value = gguf.f32(&format!("general.sampling.{key}")).ok().flatten();
        value.filter(|value| (0.0..=most).contains(value)).unwrap_or(default)
    };
    SamplingDefaults {
        temperature: number("temp", 2.0, 0.7),
        top_k: gguf.u32("general.sampling.top_k").ok().flatten().unwrap_or(0),
        top_p: number("top_p", 1.0, 0.95),
        min_p: number("min_p", 1.0, 0.05),
    }
}

/// How the model writes calls and reasoning, as far as its template shows.
fn formats(template: &ChatTemplate) -> (ToolFormat, ReasoningFormat) {
    let known = template.capabilities();
    detect(&TemplateFacts {
        source: template.source(),
        call_sample: known.tool_call_sample.as_deref().map(|sample| (sample, PROBED_TOOL)),
        tools: known.tools,
        reasoning: template.knows_reasoning(),
    })
}

/// Names everything that decides about the tokens: header (metadata, tokenizer, template, shapes), weights,
/// instruction set, KV type, numerics. Of the weights, the beginning of each and the file's size stand for all.
fn fingerprint(gguf: &Gguf, description: &Description, files: &[&[u8]], template: Option<&str>, isa: Isa) -> String {
    let mut hash = Sha256::new();
    for (part, file) in files.iter().enumerate() {
        let tensors = gguf.tensors().iter().filter(|tensor| tensor.part == part);
        let header_end = tensors.map(|tensor| tensor.range.start).min().unwrap_or(file.len()).min(file.len());
        hash.update((file.len() as u64).to_le_bytes());
        hash.update((header_end as u64).to_le_bytes());
        hash.update(&file[..header_end]);
    }
    for tensor in description.tensors() {
        let bytes = files.get(tensor.part).and_then(|file| file.get(tensor.range.clone())).unwrap_or_default();
        hash.update(&bytes[..bytes.len().min(FINGERPRINT_BYTES)]);
    }
    // A template of one's own makes other prompts, not other logits; but a resumed answer must find its prompt again.
    hash.update(template.unwrap_or_default());
    format!("gguf-{:x}-{}-{KV_TYPE}-n{NUMERICS_VERSION}", hash.finalize(), isa.name())
}
