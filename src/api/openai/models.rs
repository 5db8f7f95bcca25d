//! `/v1/models`: to each client in its own shape. Anthropic's clients say their version in a header, Codex says its
//! own in the query; all others get OpenAI's.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use crate::api::App;
use crate::api::body::PathId;
use crate::api::errors::OpenAiError;
use crate::engine::ModelInfo;
use crate::parse::ReasoningFormat;
use crate::protocol::models::{
    AnthropicModel, AnthropicModelList, CodexCatalog, CodexEffort, CodexModel, CodexTruncation, Model, ModelList,
};

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
        return Json(anthropic_list(models())).into_response();
    }
    let codex = query.contains_key("client_version").then(|| codex_catalog(models()).models);
    let data = models().flat_map(|info| names(info).map(move |name| model(name, info)));
    Json(ModelList { object: "list", data: data.collect(), models: codex }).into_response()
}

/// One model; its id may have slashes.
pub(crate) async fn get(State(app): State<App>, headers: HeaderMap, PathId(id): PathId) -> Response {
    let found = app.engine(Some(&id));
    match (found, headers.contains_key("anthropic-version")) {
        (Ok(engine), true) => Json(anthropic(&id, engine.model())).into_response(),
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

fn anthropic_list<'a>(models: impl Iterator<Item = &'a ModelInfo>) -> AnthropicModelList {
    let data: Vec<AnthropicModel> =
        models.flat_map(|info| names(info).map(move |name| anthropic(name, info))).collect();
    let id = |model: Option<&AnthropicModel>| model.map(|model| model.id.clone());
    AnthropicModelList { first_id: id(data.first()), last_id: id(data.last()), has_more: false, data }
}

fn anthropic(name: &str, info: &ModelInfo) -> AnthropicModel {
    AnthropicModel {
        kind: "model",
        id: name.to_owned(),
        display_name: name.to_owned(),
        created_at: rfc3339(info.created),
        max_input_tokens: info.context_length,
        max_tokens: info.context_length,
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

/// A time in seconds since the Unix epoch as RFC 3339: the proleptic Gregorian calendar, counted in 400-year cycles
/// from the first of March of the year 0, so that leap days are the last of their years.
fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year_of_cycle = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month_from_march + 2) / 5 + 1, (month_from_march + 2) % 12 + 1);
    let year = cycle * 400 + year_of_cycle + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_a_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
