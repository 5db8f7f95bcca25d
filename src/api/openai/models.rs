//! `/v1/models`: to each client in its own shape. Anthropic's clients say their version in a header, Codex says its
//! own in the query; all others get OpenAI's.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use crate::api::App;
use crate::api::anthropic::models as anthropic;
use crate::api::body::PathId;
use crate::api::errors::OpenAiError;
use crate::engine::ModelInfo;
use crate::parse::ReasoningFormat;
use crate::protocol::models::{CodexCatalog, CodexEffort, CodexModel, CodexTruncation, Model, ModelList};

/// What Codex tells a model that it is, and how to work.
const CODEX_INSTRUCTIONS: &str = include_str!("codex_instructions.md");
/// Most tokens of one tool's output that Codex passes on, and the share of a small context that they may take.
const CODEX_OUTPUT_TOKENS_MAX: u32 = 10_000;
const CODEX_OUTPUT_SHARE: u32 = 8;
/// How full a context may be, in hundredths, before Codex summarises it.
const CODEX_FULL: u32 = 80;
/// All models.
pub(crate) async fn list(
    State(app): State<App>,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let models = || app.catalog.list().map(|engine| engine.model());
    if headers.contains_key("anthropic-version") {
        let all = models().flat_map(|info| names(info).map(|name| anthropic::model(name, info))).collect();
        let listed = anthropic::page(all, &query, anthropic::is_discovery(&headers));
        return listed.map_or_else(|reject| OpenAiError(reject).into_response(), |list| Json(list).into_response());
    }
    let codex = query.contains_key("client_version").then(|| codex_catalog(models()).models);
    let data = models().flat_map(|info| names(info).map(move |name| model(name, info)));
    Json(ModelList { object: "list", data: data.collect(), models: codex }).into_response()
}

/// One model; its id may have slashes.
pub(crate) async fn get(State(app): State<App>, headers: HeaderMap, PathId(id): PathId) -> Response {
    let found = app.engine(Some(&id));
    match (found, headers.contains_key("anthropic-version")) {
        (Ok(engine), true) => Json(anthropic::model(&id, engine.model())).into_response(),
        (Ok(engine), false) => Json(model(&id, engine.model())).into_response(),
        (Err(reject), _) => OpenAiError(reject).into_response(),
    }
}

/// A model by one of its names.
fn model(name: &str, info: &ModelInfo) -> Model {
    Model {
        id: name.to_owned(),
        object: "model",
        created: info.created,
        owned_by: info.owned_by.clone(),
        context_length: info.context_length,
        max_output_tokens: info.context_length,
        tool_format: info.tool_format.name(),
        reasoning_format: info.reasoning.name(),
        reasoning_efforts: info.efforts.words().map(str::to_owned).collect(),
    }
}

/// The models as Codex knows them, by each of their names: so that it neither overruns a context nor asks for what a
/// model does not do.
pub(crate) fn codex_catalog<'a>(models: impl Iterator<Item = &'a ModelInfo>) -> CodexCatalog {
    let names = models.flat_map(|info| names(info).map(move |name| (name, info)));
    CodexCatalog { models: (0..).zip(names).map(|(place, (name, info))| codex(place, name, info)).collect() }
}

/// All names of a model, its id first.
fn names(info: &ModelInfo) -> impl Iterator<Item = &String> {
    std::iter::once(&info.id).chain(&info.aliases)
}

/// What Codex says of each word for how hard to think.
fn codex_efforts(info: &ModelInfo) -> Vec<CodexEffort> {
    let effort = |word: &str| {
        let description = match info.efforts.get(word).and_then(|effort| effort.budget_tokens) {
            Some(0) => "Does not think before it acts.".to_owned(),
            Some(tokens) => format!("Thinks for {tokens} tokens at most."),
            None => "Thinks for as long as it wants to.".to_owned(),
        };
        CodexEffort { effort: word.to_owned(), description }
    };
    info.efforts.words().map(effort).collect()
}

fn codex(priority: u32, name: &str, info: &ModelInfo) -> CodexModel {
    let thinks = info.reasoning != ReasoningFormat::NONE;
    let context = info.context_length;
    CodexModel {
        slug: name.to_owned(),
        display_name: name.to_owned(),
        description: None,
        default_reasoning_level: thinks.then_some("medium"),
        supported_reasoning_levels: if thinks { codex_efforts(info) } else { Vec::new() },
        shell_type: "unified_exec",
        visibility: "list",
        supported_in_api: true,
        priority,
        base_instructions: CODEX_INSTRUCTIONS,
        supports_reasoning_summaries: thinks,
        support_verbosity: false,
        apply_patch_tool_type: "freeform",
        truncation_policy: CodexTruncation {
            mode: "tokens",
            limit: CODEX_OUTPUT_TOKENS_MAX.min(context / CODEX_OUTPUT_SHARE),
        },
        supports_parallel_tool_calls: true,
        context_window: context,
        max_context_window: context,
        auto_compact_token_limit: (u64::from(context) * u64::from(CODEX_FULL) / 100) as u32,
        experimental_supported_tools: [],
        input_modalities: ["text"],
        prefer_websockets: true,
    }
}
