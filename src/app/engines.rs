//! The engines of a server, as its settings say: models, the script, upstreams.

use std::sync::Arc;

use anyhow::Context;

use crate::api::StartProgress;
use crate::config::{Config, KvType};
use crate::engine::{Engine, KvFormat, LoadOptions, LoadProgress, LocalEngine, ModelInfo, ScriptedEngine};
use crate::models::ModelFile;
use crate::prompt::{ChatTemplate, builtin_template, builtin_template_names, missing_marks};
use crate::upstream::UpstreamEngine;

/// Loads what is to be served, in this order: models, the script, upstreams.
pub(super) fn load_engines(
    config: &Config,
    models: &[ModelFile],
    progress: &StartProgress,
) -> anyhow::Result<Vec<Arc<dyn Engine>>> {
    let mut engines: Vec<Arc<dyn Engine>> = Vec::new();
    let mut promised_bytes = 0;
    for model in models {
        let engine = load_model(config, model, promised_bytes, progress.of_model(&model.id))?;
        promised_bytes += engine.promised_bytes();
        engines.push(Arc::new(engine));
    }
    if let Some(path) = &config.scripted {
        let engine = ScriptedEngine::from_file(path)?.with_bare_calls(config.bare_calls);
        let efforts = config.efforts_of(&engine.model().id);
        let aliases = config.aliases_of(&engine.model().id);
        let price = config.price_of(&engine.model().id);
        engines.push(Arc::new(engine.with_efforts(&efforts).with_aliases(aliases).with_price(price)));
    }
    engines.extend(upstream_engines(config)?);
    Ok(engines)
}

/// The engines of all models of all upstreams.
pub(crate) fn upstream_engines(config: &Config) -> anyhow::Result<Vec<Arc<dyn Engine>>> {
    let engines = UpstreamEngine::open(&config.upstream, |variable| std::env::var(variable).ok())?;
    let named = |engine: UpstreamEngine| -> Arc<dyn Engine> {
        let id = engine.model().id.clone();
        let engine = engine.with_efforts(&config.efforts_of(&id)).with_aliases(config.aliases_of(&id));
        Arc::new(engine.with_price(config.price_of(&id)).with_capabilities(config.capabilities_of(&id)))
    };
    Ok(engines.into_iter().map(named).collect())
}

fn load_model(
    config: &Config,
    ModelFile { id, path }: &ModelFile,
    promised_bytes: u64,
    progress: LoadProgress,
) -> anyhow::Result<LocalEngine> {
    let options = LoadOptions { promised_bytes, progress: Some(progress), ..load_options(config, id)? };
    tracing::info!(model = id, "loading");
    let engine = LocalEngine::load(path, &options).map_err(|error| {
        let doing = format!("loading {} ({})", path.display(), error.code());
        anyhow::Error::new(error).context(doing)
    })?;
    for doubt in doubts(engine.model(), config) {
        tracing::warn!(model = id, "{doubt}");
    }
    Ok(engine)
}

/// What an operator should know about a model and its settings.
pub(crate) fn doubts(model: &ModelInfo, config: &Config) -> Vec<String> {
    let mut doubts = model.tokenizer.warnings().to_vec();
    // A model's own template is what it was trained with, whatever it looks like.
    if let Some(name) = config.chat_template_of(&model.id) {
        let missing = missing_marks(&model.template, &model.tokenizer);
        if !missing.is_empty() {
            doubts.push(format!(
                "the chat template {name} marks messages with {}, which are no tokens of this model: it was trained \
                 with others; choose the template of its family, or leave chat_template out",
                missing.join(", ")
            ));
        }
    }
    doubts
}

/// How a model is loaded.
pub(crate) fn load_options(config: &Config, id: &str) -> anyhow::Result<LoadOptions> {
    let threads = (config.threads > 0).then_some(config.threads);
    Ok(LoadOptions {
        id: Some(id.to_owned()),
        threads,
        kv_bytes: config.kv_bytes,
        kv_pinned_bytes_max: config.kv_pinned_bytes_max,
        kv_format: match config.kv_type {
            KvType::F16 => KvFormat::F16,
            KvType::Q8 => KvFormat::Q8,
        },
        token_gap_ms: config.token_gap_ms,
        guessed_tokens: config.guessed_tokens,
        sequences_max: config.engine_inbox_requests,
        tool_format: config.tool_format_of(id)?,
        reasoning: config.reasoning_of(id)?,
        bare_calls: config.bare_calls,
        efforts: config.efforts_of(id),
        price: config.price_of(id),
        aliases: config.aliases_of(id),
        template: config.chat_template_of(id).map(template_text).transpose()?,
        ..LoadOptions::default()
    })
}

/// The text of a chat template: a built-in one by its name, or a file's.
pub(crate) fn template_text(name: &str) -> anyhow::Result<String> {
    if let Some(source) = builtin_template(name) {
        return Ok(source.to_owned());
    }
    let source = std::fs::read_to_string(name).with_context(|| {
        let known: Vec<_> = builtin_template_names().collect();
        format!("reading the chat template {name}, which is a file or one of {}", known.join(", "))
    })?;
    // Else loading would blame the model's file.
    ChatTemplate::new(&source, "", "").with_context(|| format!("the chat template {name} cannot be used"))?;
    Ok(source)
}
