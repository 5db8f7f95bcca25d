//! The models as Anthropic lists them, page by page; and the names under which Claude Code finds them.

use std::collections::HashMap;

use axum::http::{HeaderMap, header};

use crate::api::errors::invalid;
use crate::clock::rfc3339;
use crate::conversation::Reject;
use crate::engine::ModelInfo;
use crate::protocol::models::{AnthropicModel, AnthropicModelList};

/// Models of a page, unless the client says otherwise, and the most of them.
const PAGE_MODELS: usize = 20;
const PAGE_MODELS_MAX: usize = 1000;

/// What stands in front of a model's id for Claude Code, which offers models of no other name.
const ALIAS: &str = "claude-local-";

/// The id that an alias stands for.
pub(crate) fn without_alias(id: &str) -> Option<&str> {
    id.strip_prefix(ALIAS)
}

/// Whether Claude Code looks for models.
pub(crate) fn is_discovery(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agent.starts_with("claude-code/"))
}

/// One page of the models.
pub(crate) fn page(
    mut all: Vec<AnthropicModel>,
    query: &HashMap<String, String>,
    aliased: bool,
) -> Result<AnthropicModelList, Reject> {
    if aliased {
        let is_found = |id: &str| ["claude", "anthropic"].iter().any(|name| id.contains(name));
        all.iter_mut().filter(|model| !is_found(&model.id)).for_each(|model| model.id = format!("{ALIAS}{}", model.id));
    }
    let limit = query.get("limit").map_or(Ok(PAGE_MODELS), |text| text.parse());
    let limit = limit.ok().filter(|limit| (1..=PAGE_MODELS_MAX).contains(limit));
    let limit = limit.ok_or_else(|| invalid("limit", format!("limit must be between 1 and {PAGE_MODELS_MAX}")))?;
    let place = |name: &str| {
        let Some(id) = query.get(name) else { return Ok(None) };
        let place = all.iter().position(|model| model.id == *id);
        place
            .map(Some)
            .ok_or_else(|| invalid(name, format!("{name}: there is no model {id:?} here; give an id of the list")))
    };
    let (after, before) = (place("after_id")?, place("before_id")?);
    let (data, has_more): (Vec<AnthropicModel>, bool) = match (after, before) {
        (None, Some(end)) => (all.drain(end.saturating_sub(limit)..end).collect(), end > limit),
        (after, _) => {
            let begin = after.map_or(0, |place| place + 1);
            let end = all.len().min(begin + limit);
            let has_more = end < all.len();
            (all.drain(begin..end).collect(), has_more)
        }
    };
    let id = |model: Option<&AnthropicModel>| model.map(|model| model.id.clone());
    Ok(AnthropicModelList { first_id: id(data.first()), last_id: id(data.last()), has_more, data })
}

/// A model by one of its names.
pub(crate) fn model(name: &str, info: &ModelInfo) -> AnthropicModel {
    AnthropicModel {
        kind: "model",
        id: name.to_owned(),
        display_name: name.to_owned(),
        created_at: rfc3339(info.created),
        max_input_tokens: info.context_length,
        max_tokens: info.context_length,
        lifecycle: "active",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, ScriptedEngine};

    #[test]
    fn models_are_listed_page_by_page_in_either_direction() {
        let engine = ScriptedEngine::from_json("[]").unwrap();
        let named = |id: &str| ModelInfo { id: id.to_owned(), ..engine.model().clone() };
        let all: Vec<ModelInfo> = ["a", "b", "claude-c", "d"].into_iter().map(named).collect();
        let list = |query: &[(&str, &str)], aliased| {
            let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let list = page(all.iter().map(|info| model(&info.id, info)).collect(), &query, aliased)?;
            Ok::<_, Reject>((list.data.into_iter().map(|model| model.id).collect::<Vec<_>>().join(" "), list.has_more))
        };
        let page = |query: &[(&str, &str)]| list(query, false).unwrap();
        assert_eq!(page(&[]), ("a b claude-c d".to_owned(), false));
        assert_eq!(page(&[("limit", "2")]), ("a b".to_owned(), true));
        assert_eq!(page(&[("limit", "2"), ("after_id", "b")]), ("claude-c d".to_owned(), false));
        assert_eq!(page(&[("limit", "2"), ("before_id", "d")]), ("b claude-c".to_owned(), true));
        assert_eq!(page(&[("before_id", "b")]), ("a".to_owned(), false));
        assert_eq!(page(&[("after_id", "d")]), (String::new(), false));
        assert_eq!(list(&[], true).unwrap().0, "claude-local-a claude-local-b claude-c claude-local-d");
        for (name, value) in [("limit", "0"), ("limit", "1001"), ("after_id", "z")] {
            assert_eq!(list(&[(name, value)], false).unwrap_err().param.as_deref(), Some(name));
        }
        assert_eq!((without_alias("claude-local-a"), without_alias("claude-c")), (Some("a"), None));
    }
}
