//! From a request to the core's: the same for an answer and for a count of its prompt.

use serde_json::{Map, Value};

use super::marks::Marks;
use super::thinking::thinking;
use super::tools::{self, Declared};
use super::transcript::{Setting, Transcript, transcript};
use crate::api::body::decode;
use crate::api::errors::invalid;
use crate::api::seal::Seal;
use crate::api::{constraint, input, sampling, unserved};
use crate::conversation::{Create, Item, ItemBody, Purpose, Reject, ResponseConfig, ToolsAllowed};
use crate::engine::ModelInfo;
use crate::engine::settings::Constraint;
use crate::ids::{FreshIds, ResponseId};
use crate::prompt::{PromptEnd, Role, ToolDefinition};
use crate::protocol::messages::MessagesRequest;
use crate::protocol::sampling::GenerationParams;

/// The first version whose clients leave sampling to the model.
const STRICT_SINCE: &str = "2026-10-21";

/// The field of a form in the words of the rules for it, and in Anthropic's.
const FORM: (&str, &str) = ("text.format", "output_config.format");

/// A request, ready to be created.
pub(crate) struct Prepared {
    pub(crate) create: Create,
    /// What its generation follows from, in the words of the other APIs.
    pub(super) params: Value,
    /// Up to where the prompt is to be kept in the cache.
    pub(super) marks: Marks,
}

/// Whether the stricter rules of the newer version hold. A version that is not known is taken for the older one.
pub(super) fn is_strict(version: Option<&str>) -> bool {
    version.is_some_and(|version| version.starts_with("20") && version >= STRICT_SINCE)
}

/// The core's request. `body` is what `request` was read from.
pub(crate) fn prepare(
    model: &ModelInfo,
    seal: Option<&Seal>,
    request: &MessagesRequest,
    body: &Value,
    strict: bool,
) -> Result<Prepared, Reject> {
    check(request, body, strict)?;
    let fresh = &mut FreshIds::random();
    let response_id = ResponseId::draw(fresh);
    let declared = tools::declared(request.tools.as_deref())?;
    let Transcript { items, effort, changes, marks } =
        transcript(request, Setting { seal, strict, tools: &declared }, fresh)?;
    let behind_results = items.last().is_some_and(|item| item.answers().is_some());
    let (thinking, template_kwargs) = thinking(request, effort.as_deref(), behind_results, model)?;
    // What was removed stands at the head of the prompt as before, and is not called; what came is called too.
    let callable = changes.callable(&declared);
    let params = params(request, body, tools::choice(request.tool_choice.as_ref(), &callable, changes.is_all())?);
    let read = decode::<GenerationParams>(&params)?;
    let constraint = constraint::constraint(&read, &callable, model).map_err(in_own_words)?.map(blamed);
    let (tools, tools_allowed) = shown(request, declared);
    let purpose = if request.max_tokens == Some(0) { Purpose::Prefill } else { Purpose::Answer };
    let config = ResponseConfig {
        tools,
        tools_allowed,
        sampling: sampling::sampling(&read, model, fresh)?,
        max_output_tokens: request.max_tokens.filter(|most| *most > 0),
        stop: stops(request)?,
        template_kwargs,
        store: false,
        thinking,
        strip_preamble: request.strip_preamble != Some(false),
        formats: Some(input::formats(model, constraint.as_ref())),
        constraint,
        prompt_end: prompt_end(request, &items),
        priority: input::priority(body)?,
        purpose,
        seal: seal.map(|seal| seal.key(response_id)),
        extras: input::extras(body)?,
        price: model.price,
        ..ResponseConfig::new(&model.id, &model.fingerprint)
    };
    Ok(Prepared { create: Create::new(response_id, items, config), params, marks })
}

/// Refuses what is not done here, and what the version does not take.
fn check(request: &MessagesRequest, body: &Value, strict: bool) -> Result<(), Reject> {
    unserved::refuse(body)?;
    let sampled = [("temperature", &request.temperature), ("top_p", &request.top_p), ("top_k", &request.top_k)];
    if let Some((name, _)) = sampled.iter().find(|(_, value)| strict && value.as_ref().is_some_and(|it| !it.is_null()))
    {
        let text = format!("{name} is not taken since the version {STRICT_SINCE}; leave it out");
        return Err(invalid(*name, text));
    }
    if request.container.as_ref().is_some_and(|container| !container.is_null()) {
        return Err(invalid(
            "container",
            "container: nothing is run here; leave it out, and declare tools of your own",
        ));
    }
    if request.mcp_servers.as_ref().is_some_and(|servers| !servers.is_empty()) {
        let text = "mcp_servers: no server is called from here; connect to it yourself, and declare its tools";
        return Err(invalid("mcp_servers", text));
    }
    Ok(())
}

/// What the generation follows from: what the request says in the words of other APIs, and what it says in its own.
fn params(request: &MessagesRequest, body: &Value, tool_choice: Value) -> Value {
    const OWN: [&str; 6] = ["messages", "system", "tools", "tool_choice", "output_config", "metadata"];
    let own = |name: &str| OWN.contains(&name);
    let fields = body.as_object().into_iter().flatten().filter(|(name, _)| !own(name));
    let mut params: Map<String, Value> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    params.insert("tool_choice".to_owned(), tool_choice);
    let single = request.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
    params.insert("parallel_tool_calls".to_owned(), (single != Some(true)).into());
    let format = request.output_config.as_ref().and_then(|config| config.format.as_ref());
    let format = format.or(request.output_format.as_ref()).filter(|format| !format.is_null());
    if let Some(format) = format {
        let text = Map::from_iter([("format".to_owned(), format.clone())]);
        params.insert("text".to_owned(), text.into());
    }
    params.into()
}

/// The tools that the model sees at the head of the prompt, and whether it may call those that it was told of: which of
/// them, its calls' rule has named already.
fn shown(request: &MessagesRequest, declared: Declared) -> (Vec<ToolDefinition>, ToolsAllowed) {
    let none = request.tool_choice.as_ref().is_some_and(|choice| choice.kind == "none");
    if none { (Vec::new(), ToolsAllowed::None) } else { (declared.shown, ToolsAllowed::Named) }
}

fn stops(request: &MessagesRequest) -> Result<Vec<String>, Reject> {
    let list = request.stop_sequences.clone().unwrap_or_default();
    input::stops(Some(&crate::protocol::TextOr::List(list))).map_err(|reject| {
        let own =
            |text: &str| text.strip_prefix("stop").map_or(text.to_owned(), |rest| format!("stop_sequences{rest}"));
        Reject { param: reject.param.as_deref().map(own), message: own(&reject.message), ..reject }
    })
}

/// A text of the assistant at the end is the beginning of the answer.
fn prompt_end(request: &MessagesRequest, items: &[Item]) -> PromptEnd {
    let last = request.messages.iter().flatten().last();
    let says = |item: &Item| matches!(item.body, ItemBody::Message { role: Role::Assistant, .. });
    if last.is_some_and(|last| last.role == "assistant") && items.last().is_some_and(says) {
        PromptEnd::Message
    } else {
        PromptEnd::Answer
    }
}

/// A refusal of the answer's form, which names the field that the client has.
pub(super) fn in_own_words(reject: Reject) -> Reject {
    let own = |text: &str| text.replace(FORM.0, FORM.1);
    Reject { param: reject.param.as_deref().map(own), message: own(&reject.message), ..reject }
}

/// The same of what fails later.
fn blamed(constraint: Constraint) -> Constraint {
    Constraint { at: constraint.at.map(|at| at.replace(FORM.0, FORM.1)), ..constraint }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::engine::settings::TextRule;
    use crate::engine::{Engine, Grammars, ScriptedEngine};

    /// A model whose answers can be held to a form.
    fn model() -> ModelInfo {
        let engine = ScriptedEngine::from_json(r#"{"tool_format": "hermes", "replies": [{"deltas": ["a"]}]}"#).unwrap();
        let grammars = Some(Arc::new(Grammars::new(engine.model().tokenizer.clone())));
        ModelInfo { grammars, ..engine.model().clone() }
    }

    fn tool(name: &str, fields: &Value) -> Value {
        let mut tool = json!({"name": name, "input_schema": {"type": "object"}});
        tool.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        tool
    }

    fn changed(changes: &Value) -> Value {
        json!({"role": "system", "content": changes})
    }

    fn named(kind: &str, name: &str) -> Value {
        json!({"type": kind, "tool": {"type": "tool_reference", "name": name}})
    }

    /// A request in which a search found `weather` and a message brought `moon`, and then this happened.
    fn searched(behind: &[Value], choice: &Value) -> Result<ResponseConfig, Reject> {
        let put_off = json!({"defer_loading": true});
        let strict = json!({"defer_loading": true, "strict": true});
        let tools = [tool("search", &json!({})), tool("weather", &strict), tool("stars", &put_off)];
        let call = json!({"type": "tool_use", "id": "a", "name": "search", "input": {}});
        let found = json!([{"type": "tool_reference", "tool_name": "weather"}]);
        let brought = json!({"type": "tool_definition", "definition": tool("moon", &json!({"strict": true}))});
        let messages = [
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "content": [call]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": found}]}),
            changed(&json!([{"type": "tool_addition", "tool": brought}])),
        ];
        let messages = [&messages, behind].concat();
        let body = json!({"max_tokens": 8, "messages": messages, "tools": tools, "tool_choice": choice});
        let prepared = prepare(&model(), None, &decode(&body).unwrap(), &body, false)?;
        let mut config = prepared.create.config;
        config.take_tools(prepared.create.input.iter());
        let shown: Vec<&str> = config.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(shown, ["search"], "the head of the prompt stays");
        constraint::check(&model(), &config, &decode(&prepared.params)?).unwrap();
        Ok(config)
    }

    /// The tools that it may call, and which of them by their schemas; and whether it must.
    fn rule(config: &ResponseConfig) -> (Vec<(&str, bool)>, bool) {
        let constraint = config.constraint.as_ref().unwrap();
        let calls = &constraint.calls.as_ref().unwrap().tools;
        let calls = calls.iter().map(|tool| (tool.name.as_str(), tool.by_schema)).collect();
        (calls, constraint.text == TextRule::Nothing)
    }

    #[test]
    fn a_choice_knows_the_tools_that_came_and_no_tool_that_is_not_there() {
        let (any, tool) = (json!({"type": "any"}), |name: &str| json!({"type": "tool", "name": name}));
        let config = searched(&[], &any).unwrap();
        assert_eq!(rule(&config), (vec![("search", true), ("weather", true), ("moon", true)], true));
        for name in ["search", "weather", "moon"] {
            assert_eq!(rule(&searched(&[], &tool(name)).unwrap()), (vec![(name, true)], true));
        }
        for absent in ["stars", "nobody"] {
            assert_eq!(searched(&[], &tool(absent)).unwrap_err().param.as_deref(), Some("tool_choice"), "{absent}");
        }
        // Those that are strict are held to their schemas as soon as they are there.
        let config = searched(&[], &Value::Null).unwrap();
        assert_eq!(rule(&config), (vec![("search", false), ("weather", true), ("moon", true)], false));
    }

    #[test]
    fn what_was_removed_is_not_called_whatever_is_asked_for_until_it_is_back() {
        let removal = |name: &str| named("tool_removal", name);
        let gone = [changed(&json!([removal("weather"), removal("moon")]))];
        for (choice, must) in [(json!({"type": "any"}), true), (json!({"type": "auto"}), false), (Value::Null, false)] {
            assert_eq!(rule(&searched(&gone, &choice).unwrap()), (vec![("search", must)], must), "{choice}");
        }
        let weather = json!({"type": "tool", "name": "weather"});
        assert_eq!(searched(&gone, &weather).unwrap_err().param.as_deref(), Some("tool_choice"));
        let back = [&gone[..], &[changed(&json!([named("tool_addition", "weather")]))]].concat();
        assert_eq!(rule(&searched(&back, &weather).unwrap()), (vec![("weather", true)], true));
        // Where nothing is left, no call can be made, and none can be asked for.
        let all = [&gone[..], &[changed(&json!([removal("search")]))]].concat();
        assert_eq!(rule(&searched(&all, &Value::Null).unwrap()), (vec![], false));
        assert_eq!(searched(&all, &json!({"type": "any"})).unwrap_err().param.as_deref(), Some("tool_choice"));
    }

    #[test]
    fn the_newer_rules_hold_from_their_version_on() {
        for (version, strict) in
            [(None, false), (Some("2023-06-01"), false), (Some("2026-10-21"), true), (Some("2027-01-01"), true)]
        {
            assert_eq!(is_strict(version), strict, "{version:?}");
        }
        assert!(!is_strict(Some("unheard of")));
    }
}
