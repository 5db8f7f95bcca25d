//! From a conversation to the body of a request. Nothing is kept there: the transcript goes along each time. What it
//! cannot be asked for is refused, never left out; but a seed, which changes nothing that is promised.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::engine::settings::{Constraint, Penalties, Sampling, Shaping, TextRule};
use crate::engine::{Chat, FinishReason};
use crate::prompt::{Message, Role, Thought, ToolCall, ToolDefinition};
use crate::upstream::affinity::cache_key;
use crate::upstream::wire::{Asked, GO_ON, refused, wire_ids};

/// The body of the request.
pub(in crate::upstream) fn body(asked: &Asked<'_>) -> Result<Value, FinishReason> {
    let chat = &*asked.request.chat;
    let mut body = Map::new();
    body.insert("model".to_owned(), asked.model.into());
    body.insert("input".to_owned(), input(asked).into());
    body.insert("store".to_owned(), false.into());
    body.insert("stream".to_owned(), asked.stream.into());
    body.insert("prompt_cache_key".to_owned(), cache_key(asked.messages).into());
    if let Some(max_tokens) = asked.max_tokens {
        body.insert("max_output_tokens".to_owned(), max_tokens.into());
    }
    sampling(&asked.request.sampling, &mut body)?;
    if !chat.stop.is_empty() {
        return Err(refused("stop"));
    }
    if let Some(effort) = chat.effort.as_deref() {
        // Models that do not think refuse both.
        body.insert("reasoning".to_owned(), json!({"effort": effort, "summary": "auto"}));
        body.insert("include".to_owned(), json!(["reasoning.encrypted_content"]));
    }
    tools(chat, &mut body);
    if let Some(format) = form(chat.constraint.as_ref())? {
        body.insert("text".to_owned(), json!({"format": format}));
    }
    Ok(Value::Object(body))
}

/// What the settings change. Where they stand at what changes nothing, the upstream's own hold.
fn sampling(sampling: &Sampling, body: &mut Map<String, Value>) -> Result<(), FinishReason> {
    let Sampling { temperature, top_k, top_p, min_p, seed: _, choice: _, shaping } = sampling;
    let penalties = shaping.penalties.filter(|penalties| *penalties != Penalties::NONE);
    let is_shaped = (Shaping { penalties, ..shaping.clone() }) != Shaping::NONE;
    let unknown =
        [("top_k", *top_k > 0), ("min_p", *min_p > 0.0), ("penalties, logit_bias or a sampler of its own", is_shaped)];
    if let Some((name, _)) = unknown.into_iter().find(|(_, is_set)| *is_set) {
        return Err(refused(name));
    }
    for (name, value) in [("temperature", *temperature), ("top_p", *top_p)] {
        if (value - 1.0).abs() > f32::EPSILON {
            // Through its shortest text: as a double it would have digits that nobody wrote.
            let value = value.to_string().parse::<f64>().unwrap_or_else(|_| value.into());
            body.insert(name.to_owned(), value.into());
        }
    }
    Ok(())
}

/// Writes the tools, and which of them may or must be called.
fn tools(chat: &Chat, body: &mut Map<String, Value>) {
    if chat.tools.is_empty() {
        return;
    }
    let Some(calls) = chat.constraint.as_ref().and_then(|constraint| constraint.calls.as_ref()) else {
        body.insert("tools".to_owned(), chat.tools.iter().map(|it| tool(it, false)).collect());
        // Where only the text is bound nothing is called, but the tools are the head of what is cached.
        if chat.constraint.is_some() {
            body.insert("tool_choice".to_owned(), "none".into());
        }
        return;
    };
    if calls.tools.is_empty() {
        // None may be called, and an empty list of tools is refused.
        return;
    }
    let must = chat.constraint.as_ref().is_some_and(|constraint| constraint.text == TextRule::Nothing);
    let rule = |tool: &ToolDefinition| calls.tools.iter().find(|callable| callable.name == tool.name);
    let callable = chat.tools.iter().filter_map(|it| Some(tool(it, rule(it)?.by_schema && !must)));
    body.insert("tools".to_owned(), callable.collect());
    match (must, &calls.tools[..]) {
        (true, [only]) => {
            body.insert("tool_choice".to_owned(), json!({"type": "function", "name": only.name}));
        }
        (true, _) => {
            body.insert("tool_choice".to_owned(), "required".into());
        }
        (false, _) => {}
    }
    if !calls.several {
        body.insert("parallel_tool_calls".to_owned(), false.into());
    }
}

fn tool(tool: &ToolDefinition, is_strict: bool) -> Value {
    let mut wire = Map::new();
    wire.insert("type".to_owned(), "function".into());
    wire.insert("name".to_owned(), tool.name.as_str().into());
    wire.extend(tool.description.as_ref().map(|text| ("description".to_owned(), text.as_str().into())));
    let nothing = json!({"type": "object", "properties": {}});
    let schema = if tool.parameters.is_object() { tool.parameters.clone() } else { nothing };
    wire.insert("parameters".to_owned(), schema);
    // Left out, it is taken for strict.
    wire.insert("strict".to_owned(), is_strict.into());
    Value::Object(wire)
}

/// What the text must look like.
fn form(constraint: Option<&Constraint>) -> Result<Option<Value>, FinishReason> {
    let name = match constraint.map(|constraint| &constraint.text) {
        None | Some(TextRule::Any | TextRule::Nothing) => return Ok(None),
        Some(TextRule::JsonSchema { schema }) if *schema == json!({"type": "object"}) => {
            return Ok(Some(json!({"type": "json_object"})));
        }
        Some(TextRule::JsonSchema { schema }) => {
            return Ok(Some(json!({"type": "json_schema", "name": "answer", "schema": schema, "strict": true})));
        }
        Some(TextRule::Regex { .. }) => "regex",
        Some(TextRule::Lark { .. }) => "grammar",
        Some(TextRule::Choice { .. }) => "choice",
    };
    Err(refused(format_args!("an answer of the form {name}")))
}

/// The conversation as items, the answer so far at its end.
fn input(asked: &Asked<'_>) -> Vec<Value> {
    let ids = wire_ids(asked.messages);
    let mut items = Vec::new();
    for message in asked.messages {
        add(message, asked.maker, &ids, &mut items);
    }
    if !asked.answer.is_empty() {
        items.push(said("assistant", "output_text", asked.answer));
        items.push(said("user", "input_text", GO_ON));
    }
    items
}

fn add(message: &Message, maker: &str, ids: &BTreeMap<&str, &str>, items: &mut Vec<Value>) {
    let id = |id: &str| ids.get(id).copied().unwrap_or(id).to_owned();
    let (role, part) = match message.role {
        Role::System => ("system", "input_text"),
        Role::Developer => ("developer", "input_text"),
        Role::User => ("user", "input_text"),
        Role::Assistant => ("assistant", "output_text"),
        Role::Tool => {
            let call_id = message.tool_call_id.as_deref().map(id).unwrap_or_default();
            items.push(json!({"type": "function_call_output", "call_id": call_id, "output": message.content}));
            return;
        }
    };
    items.extend(message.thoughts.iter().filter(|thought| thought.maker == maker).map(thought));
    if !message.content.is_empty() {
        items.push(said(role, part, &message.content));
    }
    let call = |call: &ToolCall| {
        let (name, arguments) = (&call.name, &call.arguments);
        json!({"type": "function_call", "call_id": id(&call.id), "name": name, "arguments": arguments})
    };
    items.extend(message.tool_calls.iter().map(call));
}

fn said(role: &str, part: &str, text: &str) -> Value {
    json!({"type": "message", "role": role, "content": [{"type": part, "text": text}]})
}

/// What the model thought, as its provider sealed it.
fn thought(thought: &Thought) -> Value {
    let summary =
        if thought.text.is_empty() { json!([]) } else { json!([{"type": "summary_text", "text": thought.text}]) };
    let mut item = json!({"type": "reasoning", "summary": summary});
    if let (Some(item), Some(native)) = (item.as_object_mut(), thought.native.as_object()) {
        item.extend(native.clone());
    }
    item
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::settings::{CallRule, Callable};
    use crate::engine::{GenerationRequest, Refusal};

    const MAKER: &str = "upstream-a-m";

    fn written(chat: Chat, messages: &[Message], answer: &str) -> Result<Value, FinishReason> {
        let sampling = Sampling { temperature: 1.0, seed: 5, ..Sampling::GREEDY };
        let request =
            GenerationRequest { sampling, chat: Arc::new(chat), ..GenerationRequest::greedy(Arc::default(), u32::MAX) };
        let asked =
            Asked { model: "m", maker: MAKER, request: &request, messages, answer, max_tokens: Some(9), stream: true };
        body(&asked)
    }

    fn told(name: &str) -> ToolDefinition {
        ToolDefinition { name: name.to_owned(), description: None, parameters: json!({"type": "object"}) }
    }

    #[test]
    fn a_conversation_is_items_and_what_was_thought_goes_back_to_whoever_thought_it() {
        let thought = |maker: &str, text: &str| Thought {
            maker: maker.to_owned(),
            text: text.to_owned(),
            native: json!({"encrypted_content": "c2VhbGVk"}),
        };
        let mut calls = Message::text(Role::Assistant, "Let me see.");
        calls.thoughts = vec![thought(MAKER, "rain?"), thought("upstream-b-m", "no"), thought(MAKER, "")];
        calls.tool_calls =
            vec![ToolCall { native_id: Some("call_x".to_owned()), ..ToolCall::new("callA", "weather", "{}") }];
        let result = Message { tool_call_id: Some("callA".to_owned()), ..Message::text(Role::Tool, "wet") };
        let messages = [Message::text(Role::Developer, "Be brief."), Message::text(Role::User, "Rain?"), calls, result];
        let body = written(Chat::default(), &messages, "It is").unwrap();
        let text = |role: &str, part: &str, text: &str| {
            let part = json!({"type": part, "text": text});
            json!({"type": "message", "role": role, "content": [part]})
        };
        let reasoning =
            |summary: Value| json!({"type": "reasoning", "summary": summary, "encrypted_content": "c2VhbGVk"});
        let expected = json!([
            text("developer", "input_text", "Be brief."),
            text("user", "input_text", "Rain?"),
            reasoning(json!([{"type": "summary_text", "text": "rain?"}])),
            reasoning(json!([])),
            text("assistant", "output_text", "Let me see."),
            {"type": "function_call", "call_id": "call_x", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_x", "output": "wet"},
            text("assistant", "output_text", "It is"),
            text("user", "input_text", GO_ON),
        ]);
        assert_eq!(body["input"], expected);
        assert_eq!(
            (&body["store"], &body["stream"], &body["max_output_tokens"]),
            (&json!(false), &json!(true), &json!(9))
        );
        assert_eq!(body.get("reasoning"), None, "a model that does not think would refuse it");
        // What is cached of its prompt is found by the same key in every turn, and another's by another.
        let key = |messages: &[Message]| written(Chat::default(), messages, "").unwrap()["prompt_cache_key"].clone();
        assert_eq!(key(&messages), key(&messages[..2]));
        assert_ne!(key(&messages), key(&[Message::text(Role::User, "Snow?")]));
    }

    #[test]
    fn effort_asks_for_what_was_thought_and_for_its_seal() {
        let body = written(Chat { effort: Some("xhigh".to_owned()), ..Chat::default() }, &[], "").unwrap();
        assert_eq!(body["reasoning"], json!({"effort": "xhigh", "summary": "auto"}));
        assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));
    }

    #[test]
    fn tools_choices_and_forms_are_passed_on_and_what_it_has_no_words_for_is_refused() {
        let free = Chat { tools: vec![told("a"), told("b")], ..Chat::default() };
        let wire = |name: &str, strict: bool| {
            let parameters = json!({"type": "object"});
            json!({"type": "function", "name": name, "parameters": parameters, "strict": strict})
        };
        assert_eq!(written(free.clone(), &[], "").unwrap()["tools"], json!([wire("a", false), wire("b", false)]));
        let bound = |text, names: &[&str], several| {
            let callable = |name: &&str| Callable { name: (*name).to_owned(), by_schema: true, input: None };
            let tools: Vec<_> = names.iter().map(callable).collect();
            let calls = (!tools.is_empty()).then_some(CallRule { tools, several });
            written(Chat { constraint: Some(Constraint { text, calls, at: None }), ..free.clone() }, &[], "")
        };
        let one = bound(TextRule::Nothing, &["b"], false).unwrap();
        assert_eq!((&one["tools"], &one["parallel_tool_calls"]), (&json!([wire("b", false)]), &json!(false)));
        assert_eq!(one["tool_choice"], json!({"type": "function", "name": "b"}));
        assert_eq!(bound(TextRule::Nothing, &["a", "b"], true).unwrap()["tool_choice"], "required");
        assert_eq!(bound(TextRule::Any, &["a"], true).unwrap()["tools"], json!([wire("a", true)]));
        let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}});
        let body = bound(TextRule::JsonSchema { schema: schema.clone() }, &[], true).unwrap();
        assert_eq!((&body["text"]["format"]["schema"], &body["tool_choice"]), (&schema, &json!("none")));
        let body = bound(TextRule::JsonSchema { schema: json!({"type": "object"}) }, &[], true).unwrap();
        assert_eq!(body["text"]["format"], json!({"type": "json_object"}));
        let stops = written(Chat { stop: vec!["END".to_owned()], ..Chat::default() }, &[], "");
        let forms = bound(TextRule::Regex { pattern: "a+".to_owned() }, &[], true);
        for (refused, word) in [(stops, "for stop;"), (forms, "form regex")] {
            let refusal = refused.unwrap_err();
            assert!(
                matches!(&refusal, FinishReason::Refused(Refusal::Input, text) if text.contains(word)),
                "{refusal:?}"
            );
        }
    }
}
