//! From a GGUF file to a running engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use midstream_kernels::{Isa, KvFormat, Team};
use sha2::{Digest, Sha256};

use super::super::backend::cpu::{CpuBackend, KvPlan};
use super::super::contract::{Medium, ModelInfo};
use super::super::gguf::{self, Gguf, Source};
use super::super::grammar::{FORMS_VERSION, Grammars};
use super::super::kv::{BLOCK_TOKENS, BlockPool, PoolConfig};
use super::super::model::{Description, ModelError, Work};
use super::super::scheduler::{Limits, Scheduler};
use super::super::settings::{Price, SamplingDefaults};
use super::super::tokenizer::{self, Tokenizer};
use super::files::{ModelFiles, model_name};
use super::memory::{Needs, Shortage};
use super::progress::{LoadProgress, Watched};
use super::room::Room;
use super::{LocalEngine, stats};
use crate::clock::{self, Clock};
use crate::parse::{ReasoningFormat, TemplateFacts, ToolFormat, detect};
use crate::prompt::{ChatTemplate, Effort, Efforts, PROBED_TOOL, TemplateError};

/// Changes whenever the same file and tokens would give other logits than before, or a KV block other bytes: KV files
/// of an earlier build must not be taken for this one's.
const NUMERICS_VERSION: u32 = 2;
/// Memory for KV where nothing was configured.
const KV_BYTES_DEFAULT: usize = 1 << 30;
/// Bytes of each weight that go into the fingerprint: enough to tell two trainings of one model apart.
const FINGERPRINT_BYTES: usize = 4096;
/// Bytes that are read for it at a time.
const HASHED_BYTES: usize = 1 << 18;

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The id clients ask for; by default the file's name without `.gguf`.
    pub id: Option<String>,
    /// Other names that clients may ask for it by.
    pub aliases: Vec<String>,
    /// The text of the chat template; by default the file's own.
    pub template: Option<String>,
    /// How tool calls look; by default as the template shows.
    pub tool_format: Option<ToolFormat>,
    /// How reasoning looks; by default as the template shows.
    pub reasoning: Option<ReasoningFormat>,
    /// See [`ModelInfo::bare_calls`].
    pub bare_calls: bool,
    /// Words of its own for how hard it is to think, beside the usual ones.
    pub efforts: BTreeMap<String, Effort>,
    /// What its tokens cost.
    pub price: Option<Price>,
    /// Threads that compute; by default as many as the process may use.
    pub threads: Option<usize>,
    /// Most tokens that prompt and answer may have together; by default, and at most, what the model was made for.
    pub context_length: Option<usize>,
    /// Memory for KV, for all sequences and the prefix cache together. Taken from the system as it fills.
    pub kv_bytes: usize,
    /// Most of it for prefixes that are to be kept for a time.
    pub kv_pinned_bytes_max: usize,
    /// How keys and values are stored.
    pub kv_format: KvFormat,
    /// Memory that other models of this process will still take, as [`LocalEngine::promised_bytes`] says.
    pub promised_bytes: u64,
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
    /// Tells when what is kept for a time is kept no longer.
    pub clock: Clock,
    /// Where it is told how much of the files has been read, if anybody asks.
    pub progress: Option<LoadProgress>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            id: None,
            aliases: Vec::new(),
            template: None,
            tool_format: None,
            reasoning: None,
            bare_calls: true,
            efforts: BTreeMap::new(),
            price: None,
            threads: None,
            context_length: None,
            kv_bytes: KV_BYTES_DEFAULT,
            kv_pinned_bytes_max: KV_BYTES_DEFAULT / 2,
            kv_format: KvFormat::default(),
            promised_bytes: 0,
            sequences_max: 256,
            step_sequences: 32,
            step_tokens: 512,
            token_gap_ms: 100,
            guessed_tokens: 7,
            clock: Clock::System,
            progress: None,
        }
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened.
    #[error("cannot read the model {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// Somebody wrote to the file while it was read, or cut it off.
    #[error("the model {path} was changed while it was read; start again once the file is whole")]
    Changed {
        /// The file.
        path: String,
    },
    /// There is not enough memory for the model.
    #[error("the model {path} does not fit into memory: {shortage}")]
    Memory {
        /// The file.
        path: String,
        /// What is missing, and what to do.
        shortage: Box<Shortage>,
    },
    /// Keys and values of this model cannot be stored as was set.
    #[error(
        "kv_type \"{format}\" takes heads of whole sixteens of values, and those of {path} have {head_dim}; use \"f16\""
    )]
    KvFormat {
        /// The file.
        path: String,
        /// What was set.
        format: KvFormat,
        /// Values of a head.
        head_dim: usize,
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

impl LoadError {
    /// A text that stays the same from version to version.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "model_unreadable",
            Self::Changed { .. } => "model_changed",
            Self::KvFormat { .. } => "kv_type_unusable",
            Self::Memory { shortage, .. } if shortage.is_of_kv() => "kv_exceeds_memory",
            Self::Memory { .. } => "model_exceeds_memory",
            Self::Model { .. } => "model_unusable",
            Self::Tokenizer { .. } => "tokenizer_unusable",
            Self::Template { .. } => "chat_template_unusable",
            Self::Isa(_) => "instruction_set_unavailable",
            Self::Start(_) => "engine_not_started",
        }
    }
}

impl LocalEngine {
    /// Loads the model in `path` and starts its thread.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, LoadError> {
        let (model, scheduler, backend) = open(path, options)?;
        let promised_bytes = backend.kv_bytes() as u64;
        let engine = Self::start(model, scheduler, backend, options.sequences_max, options.clock.clone());
        let engine = engine.map_err(LoadError::Start)?;
        Ok(engine.promising(promised_bytes))
    }
}

/// Builds everything that an engine is started with from the file at `path`.
pub(in crate::engine) fn open(
    path: &Path,
    options: &LoadOptions,
) -> Result<(ModelInfo, Scheduler, CpuBackend), LoadError> {
    let files = ModelFiles::open(path)?;
    let progress = options.progress.clone().unwrap_or_default();
    let opened = prepare(path, &Watched::new(&files, &progress), options);
    files.unless_changed(opened).inspect(|_| progress.finish())
}

/// What is read of a file before its weights.
struct Text {
    gguf: Gguf,
    description: Description,
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

fn read_text(path: &Path, files: &dyn Source, options: &LoadOptions) -> Result<Text, LoadError> {
    let name = || path.display().to_string();
    let refused = |source: ModelError| LoadError::Model { path: name(), source };
    let gguf = Gguf::read(files).map_err(|source| refused(source.into()))?;
    let description = Description::read(&gguf).map_err(refused)?;
    let tokenizer = Tokenizer::from_gguf(&gguf).map_err(|source| LoadError::Tokenizer { path: name(), source })?;
    if tokenizer.vocab_size() > description.sizes.vocabulary {
        return Err(refused(ModelError::Shape {
            name: description.embedding.name.clone(),
            found: vec![description.sizes.embedding, description.sizes.vocabulary],
            expected: vec![description.sizes.embedding, tokenizer.vocab_size()],
        }));
    }
    let (format, head_dim) = (options.kv_format, description.sizes.head_dim);
    if !format.takes(head_dim) {
        return Err(LoadError::KvFormat { path: path.display().to_string(), format, head_dim });
    }
    let template = chat_template(&gguf, &tokenizer, path, options)?;
    Ok(Text { gguf, description, tokenizer, template })
}

/// Builds everything that an engine is started with from the files; `path` names them in errors.
pub(super) fn prepare(
    path: &Path,
    files: &dyn Source,
    options: &LoadOptions,
) -> Result<(ModelInfo, Scheduler, CpuBackend), LoadError> {
    let began = clock::monotonic();
    let name = || path.display().to_string();
    let refused = |source: ModelError| LoadError::Model { path: name(), source };
    let Text { gguf, description, tokenizer, template } = read_text(path, files, options)?;
    for warning in description.warnings.iter().chain(tokenizer.warnings()) {
        tracing::warn!(model = name(), "{warning}");
    }
    let (limits, kv) = sizes(&description, options);
    let needs = Needs::of(&description, &limits, kv).map_err(refused)?;
    let enough = needs.check(Room::now(), options.promised_bytes);
    enough.map_err(|shortage| LoadError::Memory { path: name(), shortage: Box::new(shortage) })?;
    let text_ms = began.elapsed().as_millis();
    let isa = Isa::select().map_err(|error| LoadError::Isa(error.to_string()))?;
    let team = Team::new(options.threads.unwrap_or_else(Team::default_size));
    let fingerprint = fingerprint(&gguf, &description, files, options, isa);
    let fingerprint = fingerprint.map_err(|source| refused(source.into()))?;
    let pool = BlockPool::new(PoolConfig {
        blocks: kv.blocks,
        model: fingerprint.clone(),
        kv_type: kv.format.name().to_owned(),
        pinned_blocks_max: kv.blocks.min(options.kv_pinned_bytes_max / kv_block_bytes(&description, options)),
    });
    let scheduler = Scheduler::new(limits, pool);
    let context_length = scheduler.context_length();
    if context_length < limits.context_length {
        let wanted = limits.context_length;
        let text = "kv_bytes holds fewer tokens than the model's context; longer prompts are refused";
        tracing::warn!(model = name(), holds = context_length, context = wanted, "{text}");
    }
    let model = model_info(path, options, &gguf, tokenizer, template, context_length, fingerprint);
    let backend = CpuBackend::load(description, files, isa, team, kv).map_err(refused)?;
    let all_ms = began.elapsed().as_millis();
    tracing::info!(model = model.id, all_ms, text_ms, memory = %needs, "loaded");
    Ok((model, scheduler, backend))
}

/// What bounds the steps of a model, and its KV.
fn sizes(description: &Description, options: &LoadOptions) -> (Limits, KvPlan) {
    let made_for = description.sizes.context_length;
    let limits = Limits {
        sequences: options.step_sequences.clamp(1, stats::BATCH_MAX),
        step_tokens: options.step_tokens.max(BLOCK_TOKENS),
        context_length: options.context_length.unwrap_or(made_for).min(made_for),
        token_gap_ns: options.token_gap_ms.saturating_mul(1_000_000),
        // A wrong guess would leave its inputs in the place of those that a convolution still needs.
        guessed_tokens: if description.has_convolutions() { 0 } else { options.guessed_tokens },
    };
    (limits, kv_plan(description, options))
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
    /// What the model takes of memory.
    pub needs: Needs,
    /// What is doubtful about its metadata.
    pub warnings: Vec<String>,
}

/// Everything that can be said about a file without its weights.
pub fn read_file_facts(path: &Path, options: &LoadOptions) -> Result<FileFacts, LoadError> {
    let files = ModelFiles::open(path)?;
    let refused = |source: ModelError| LoadError::Model { path: path.display().to_string(), source };
    files.unless_changed(read_text(path, &files, options).and_then(|text| {
        let key = |key: &str| text.gguf.string(key).ok().flatten().unwrap_or("unknown").to_owned();
        let (limits, kv) = sizes(&text.description, options);
        Ok(FileFacts {
            architecture: key("general.architecture"),
            tokenizer: format!("{}, {}", key("tokenizer.ggml.model"), key("tokenizer.ggml.pre")),
            work: Work::read(&text.gguf).map_err(|source| refused(source.into()))?,
            needs: Needs::of(&text.description, &limits, kv).map_err(refused)?,
            warnings: text.description.warnings.clone(),
            model: model_of(path, options, text),
        })
    }))
}

/// What a file says about its model's text: tokenizer, template, formats. Its weights are not read, so nothing tells
/// which tokens it would generate: the fingerprint is empty.
pub fn read_model_info(path: &Path, options: &LoadOptions) -> Result<ModelInfo, LoadError> {
    let files = ModelFiles::open(path)?;
    files.unless_changed(read_text(path, &files, options).map(|text| model_of(path, options, text)))
}

fn model_of(path: &Path, options: &LoadOptions, text: Text) -> ModelInfo {
    let Text { gguf, description, tokenizer, template } = text;
    let (limits, _) = sizes(&description, options);
    model_info(path, options, &gguf, tokenizer, template, limits.context_length, String::new())
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
    let tokenizer = Arc::new(tokenizer);
    ModelInfo {
        aliases: options.aliases.clone(),
        id: options.id.clone().unwrap_or_else(|| model_name(path)),
        owned_by: "local".to_owned(),
        medium: Medium::Tokens,
        created: Clock::System.unix_ms() / 1000,
        context_length: u32::try_from(context_length).unwrap_or(u32::MAX),
        fingerprint,
        grammars: Some(Arc::new(Grammars::new(Arc::clone(&tokenizer)))),
        tokenizer,
        reasoning: options.reasoning.unwrap_or(reasoning),
        sampling: sampling_defaults(gguf),
        template: Arc::new(template),
        tool_format: options.tool_format.unwrap_or(tool_format),
        bare_calls: options.bare_calls,
        efforts: Arc::new(Efforts::with(&options.efforts)),
        price: options.price,
        exact_resume: true,
    }
}

/// As many KV blocks as fit into the memory for KV: whole blocks, one at least.
fn kv_plan(description: &Description, options: &LoadOptions) -> KvPlan {
    // Numbered in 32 bits; far more than any memory holds.
    let blocks = (options.kv_bytes / kv_block_bytes(description, options)).clamp(1, u32::MAX as usize);
    KvPlan { format: options.kv_format, blocks }
}

fn kv_block_bytes(description: &Description, options: &LoadOptions) -> usize {
    CpuBackend::block_bytes_of(description, options.kv_format).max(1)
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
/// instruction set, KV type, numerics, forms of answers. Of the weights, the beginning of each and the file's size
/// stand for all.
fn fingerprint(
    gguf: &Gguf,
    description: &Description,
    files: &dyn Source,
    options: &LoadOptions,
    isa: Isa,
) -> Result<String, gguf::Error> {
    let mut hash = Sha256::new();
    let mut bytes = Vec::new();
    let mut add = |hash: &mut Sha256, part: usize, at: u64, count: u64| -> Result<(), gguf::Error> {
        bytes.resize(count as usize, 0);
        let read = files.read(part, at, &mut bytes);
        read.map_err(|error| gguf::Error::Read { at, reason: error.to_string() })?;
        hash.update(&bytes);
        Ok(())
    };
    for (part, length) in files.lengths().into_iter().enumerate() {
        let tensors = gguf.tensors().iter().filter(|tensor| tensor.part == part);
        let header_end = tensors.map(|tensor| tensor.range.start as u64).min().unwrap_or(length).min(length);
        hash.update(length.to_le_bytes());
        hash.update(header_end.to_le_bytes());
        for at in (0..header_end).step_by(HASHED_BYTES) {
            add(&mut hash, part, at, (header_end - at).min(HASHED_BYTES as u64))?;
        }
    }
    for tensor in description.tensors() {
        let count = tensor.range.len().min(FINGERPRINT_BYTES) as u64;
        add(&mut hash, tensor.part, tensor.range.start as u64, count)?;
    }
    // A template of one's own makes other prompts, not other logits; but a resumed answer must find its prompt again.
    hash.update(options.template.as_deref().unwrap_or_default());
    let (hash, isa, kv) = (hash.finalize(), isa.name(), options.kv_format);
    Ok(format!("gguf-{hash:x}-{isa}-{kv}-n{NUMERICS_VERSION}-f{FORMS_VERSION}"))
}
