//! How long a message may think: Anthropic's configuration of it, and its words for effort.

use serde_json::{Map, Value};

use super::text::missing;
use crate::api::errors::invalid;
use crate::conversation::{Reject, Thinking};
use crate::engine::ModelInfo;
use crate::prompt::{Effort, with_effort};
use crate::protocol::messages::MessagesRequest;

/// The fewest tokens that thinking can be given.
const BUDGET_MIN: u32 = 1024;
/// Anthropic's words for effort, from the least to the most.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// Variables of templates that switch thinking on and off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Checks a word for effort; `at` is the field that has it.
pub(super) fn checked<'a>(word: Option<&'a str>, at: &str) -> Result<Option<&'a str>, Reject> {
    match word.filter(|word| !EFFORTS.contains(word)) {
        Some(unknown) => {
            let text = format!("{at} is {unknown:?}, but must be one of {}", EFFORTS.join(", "));
            Err(invalid(at, text))
        }
        None => Ok(word),
    }
}

/// How long the answer may think, and the template's variables. The request's own effort is part of the prompt's
/// head; `later` is one that a message said since, and stands in its place there. `behind_results`: the answer is what
/// the model makes of what its tools gave.
pub(super) fn thinking(
    request: &MessagesRequest,
    later: Option<&str>,
    behind_results: bool,
    model: &ModelInfo,
) -> Result<(Option<Thinking>, Map<String, Value>), Reject> {
    let mut kwargs = request.chat_template_kwargs.clone().unwrap_or_default();
    let word = request.output_config.as_ref().and_then(|config| config.effort.as_deref());
    let word = checked(word, "output_config.effort")?;
    let config = request.thinking.as_ref();
    // Who sets the template's own switch knows what he does.
    let is_switched = SWITCHES.iter().any(|switch| kwargs.contains_key(*switch));
    let budget_tokens = match config.map(|config| config.kind.as_str()) {
        None if is_switched => return Ok((None, kwargs)),
        None | Some("disabled") => {
            let off = Effort { budget_tokens: Some(0), ..Effort::default() };
            let thinking = Thinking { budget_tokens: Some(0), effort: None };
            return Ok((Some(thinking), with_effort(kwargs, "none", &off)));
        }
        Some("enabled") => Some(budget(request)?),
        Some("adaptive") => None,
        // What comes before the first call is not thought about, and the prompt stays the same from call to call.
        Some("between_tools") => (!behind_results).then_some(0),
        Some(kind) => {
            let text = format!("thinking.type is {kind:?}, but must be enabled, adaptive, between_tools or disabled");
            return Err(invalid("thinking.type", text));
        }
    };
    kwargs.entry("enable_thinking").or_insert(Value::Bool(true));
    let known = |word: &str| match model.efforts.get(word) {
        // What no model has a bound for needs no word of its own.
        None if word == "max" => model.efforts.get("xhigh").cloned().map(|effort| ("xhigh".to_owned(), effort)),
        known => known.cloned().map(|effort| (word.to_owned(), effort)),
    };
    if let Some((word, effort)) = word.and_then(known) {
        kwargs = with_effort(kwargs, &word, &effort);
    }
    let in_force = later.or(word).and_then(known);
    let by_effort = in_force.as_ref().and_then(|(_, effort)| effort.budget_tokens);
    let thinking = Thinking { budget_tokens: budget_tokens.or(by_effort), effort: in_force.map(|(word, _)| word) };
    Ok((Some(thinking), kwargs))
}

/// The tokens that the request gives to thinking.
fn budget(request: &MessagesRequest) -> Result<u32, Reject> {
    const AT: &str = "thinking.budget_tokens";
    let budget = request.thinking.as_ref().and_then(|config| config.budget_tokens);
    let budget = budget.ok_or_else(|| missing("thinking", "budget_tokens"))?;
    if budget < BUDGET_MIN {
        return Err(invalid(AT, format!("{AT} is {budget}, but must be at least {BUDGET_MIN}")));
    }
    match request.max_tokens.filter(|most| *most > 0 && budget >= *most) {
        Some(most) => {
            let text = format!("`max_tokens` must be greater than `{AT}`: they are {most} and {budget}");
            Err(invalid(AT, text))
        }
        None => Ok(budget),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::body::decode;
    use crate::engine::{Engine, ScriptedEngine};

    fn asked(body: &Value, later: Option<&str>) -> Result<(Option<Thinking>, Value), Reject> {
        asked_behind(false, body, later)
    }

    fn asked_behind(results: bool, body: &Value, later: Option<&str>) -> Result<(Option<Thinking>, Value), Reject> {
        let engine = ScriptedEngine::from_json("[]").unwrap();
        let (thinking, kwargs) = thinking(&decode(body).unwrap(), later, results, engine.model())?;
        Ok((thinking, kwargs.into()))
    }

    fn refused(body: &Value) -> String {
        asked(body, None).unwrap_err().param.unwrap()
    }

    #[test]
    fn thinking_is_off_unless_asked_for_and_bounded_by_its_budget_or_by_effort() {
        for off in [json!({}), json!({"thinking": {"type": "disabled"}})] {
            let (off, kwargs) = asked(&off, None).unwrap();
            assert_eq!((off.unwrap().budget_tokens, kwargs), (Some(0), json!({"enable_thinking": false})));
        }
        // Who sets the template's own switch is let think.
        let switched = json!({"chat_template_kwargs": {"enable_thinking": true}});
        assert_eq!(asked(&switched, None).unwrap(), (None, json!({"enable_thinking": true})));
        let enabled = json!({"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 4096});
        assert_eq!(asked(&enabled, None).unwrap().0.unwrap().budget_tokens, Some(2048));
        let adaptive = json!({"thinking": {"type": "adaptive", "display": "omitted"}});
        assert_eq!(asked(&adaptive, None).unwrap().0.unwrap().budget_tokens, None);
        let low = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}});
        let (thinking, kwargs) = asked(&low, None).unwrap();
        assert_eq!(thinking.unwrap().budget_tokens, Some(1024));
        assert_eq!(kwargs, json!({"enable_thinking": true, "reasoning_effort": "low"}));
    }

    #[test]
    fn between_tools_is_thought_behind_results_only_and_the_template_is_told_the_same() {
        let between = json!({"thinking": {"type": "between_tools"}, "output_config": {"effort": "low"}});
        let (first, head) = asked(&between, None).unwrap();
        let (behind, same) = asked_behind(true, &between, None).unwrap();
        assert_eq!((first.unwrap().budget_tokens, behind.unwrap().budget_tokens), (Some(0), Some(1024)));
        assert_eq!(head, same);
    }

    #[test]
    fn effort_of_a_later_message_changes_the_bound_and_not_the_head_of_the_prompt() {
        let body = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}});
        let (before, (after, kwargs)) = (asked(&body, None).unwrap(), asked(&body, Some("medium")).unwrap());
        assert_eq!((after.unwrap().budget_tokens, kwargs), (Some(4096), before.1));
        let most = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}});
        assert_eq!(asked(&most, None).unwrap().0.unwrap().effort.as_deref(), Some("xhigh"));
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_field() {
        let with = |thinking: Value| json!({"thinking": thinking, "max_tokens": 2048});
        for (body, param) in [
            (with(json!({"type": "enabled"})), "thinking.budget_tokens"),
            (with(json!({"type": "enabled", "budget_tokens": 1023})), "thinking.budget_tokens"),
            (with(json!({"type": "enabled", "budget_tokens": 2048})), "thinking.budget_tokens"),
            (with(json!({"type": "sometimes"})), "thinking.type"),
            (json!({"output_config": {"effort": "none"}}), "output_config.effort"),
        ] {
            assert_eq!(refused(&body), param, "{body}");
        }
    }
}
