//! From a conversation to the body of a request. What an upstream cannot be asked for is refused, never left out.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::engine::FinishReason;
use crate::engine::settings::{Constraint, Sampling, Shaping, TextRule};
use crate::prompt::{Message, Role, ToolCall, ToolDefinition};
use crate::upstream::affinity::cache_key;
use crate::upstream::kind::{Continuing, Manners};
use crate::upstream::wire::{Asked, GO_ON, refused, wire_ids};

/// The body of the request.
pub(in crate::upstream) fn body(asked: &Asked<'_>, manners: &Manners) -> Result<Value, FinishReason> {
    let mut body = Map::new();
    body.insert("model".to_owned(), asked.model.into());
    body.insert("messages".to_owned(), messages(asked, manners).into());
    if !asked.answer.is_empty() && manners.continuing == Continuing::Flagged {
        body.insert("add_generation_prompt".to_owned(), false.into());
        body.insert("continue_final_message".to_owned(), true.into());
    }
    if manners.caches_by_key {
        body.insert("prompt_cache_key".to_owned(), cache_key(asked.messages).into());
    }
    body.insert("stream".to_owned(), asked.stream.into());
    if asked.stream {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    if let Some(max_tokens) = asked.max_tokens {
        body.insert(manners.max_tokens.to_owned(), max_tokens.into());
    }
    sampling(&asked.request.sampling, manners, &mut body)?;
    let chat = &asked.request.chat;
    if !chat.stop.is_empty() {
        body.insert("stop".to_owned(), chat.stop.clone().into());
    }
    if let Some(effort) = chat.effort.as_deref().and_then(|word| effort(word, manners)) {
        body.insert("reasoning_effort".to_owned(), effort.into());
    }
    if manners.takes_extras && !chat.template_kwargs.is_empty() {
        body.insert("chat_template_kwargs".to_owned(), chat.template_kwargs.clone().into());
    }
    match &chat.constraint {
        Some(constraint) => form(constraint, &chat.tools, manners, &mut body)?,
        None if !chat.tools.is_empty() => {
            body.insert("tools".to_owned(), chat.tools.iter().map(|it| tool(it, false)).collect());
        }
        None => {}
    }
    Ok(Value::Object(body))
}

/// A word for how hard to think, as this kind knows it: most know three, and not to think is no effort of theirs.
fn effort<'a>(word: &'a str, manners: &Manners) -> Option<&'a str> {
    match word {
        word if manners.knows_all_efforts => Some(word),
        "none" => None,
        "minimal" => Some("low"),
        "xhigh" | "max" => Some("high"),
        word => Some(word),
    }
}

/// What the settings change. Where they stand at what changes nothing, the upstream's own hold.
fn sampling(sampling: &Sampling, manners: &Manners, body: &mut Map<String, Value>) -> Result<(), FinishReason> {
    let Sampling { temperature, top_k, top_p, min_p, seed, choice, shaping } = sampling;
    let Shaping { order, logit_bias, penalties, dry, top_n_sigma, typical_p, xtc, mirostat } = shaping;
    let unknown = [
        ("samplers", order.is_some()),
        ("logit_bias", !logit_bias.is_empty()),
        ("dry", dry.is_some()),
        ("top_n_sigma", top_n_sigma.is_some()),
        ("typical_p", typical_p.is_some()),
        ("xtc", xtc.is_some()),
        ("mirostat", mirostat.is_some()),
        ("top_k", *top_k > 0 && !manners.takes_extras),
        ("min_p", *min_p > 0.0 && !manners.takes_extras),
        ("repetition_penalty", !manners.takes_extras && penalties.is_some_and(|it| is_other(it.repetition, 1.0))),
    ];
    if let Some((name, _)) = unknown.into_iter().find(|(_, is_set)| *is_set) {
        return Err(refused(name));
    }
    let penalty = |of: fn(crate::engine::settings::Penalties) -> f32| penalties.map(of);
    let numbers = [
        ("temperature", Some(*temperature), 1.0),
        ("top_p", Some(*top_p), 1.0),
        ("min_p", Some(*min_p), 0.0),
        ("frequency_penalty", penalty(|it| it.frequency), 0.0),
        ("presence_penalty", penalty(|it| it.presence), 0.0),
        ("repetition_penalty", penalty(|it| it.repetition), 1.0),
    ];
    for (name, value, neutral) in numbers {
        if let Some(value) = value.filter(|value| is_other(*value, neutral)) {
            // Through its shortest text: as a double it would have digits that nobody wrote.
            let value = value.to_string().parse::<f64>().unwrap_or_else(|_| value.into());
            body.insert(name.to_owned(), value.into());
        }
    }
    if *top_k > 0 {
        body.insert("top_k".to_owned(), (*top_k).into());
    }
    if manners.takes_extras {
        // Each choice has its own. Some keep seeds in 32 bits with a sign.
        let seed = seed.wrapping_add(u64::from(*choice)) & 0x7fff_ffff;
        body.insert("seed".to_owned(), seed.into());
    }
    Ok(())
}

fn is_other(value: f32, neutral: f32) -> bool {
    (value - neutral).abs() > f32::EPSILON
}

/// What the answer must look like.
fn form(
    constraint: &Constraint,
    tools: &[ToolDefinition],
    manners: &Manners,
    body: &mut Map<String, Value>,
) -> Result<(), FinishReason> {
    // An empty list of tools is refused.
    if let Some(calls) = constraint.calls.as_ref().filter(|calls| !calls.tools.is_empty()) {
        let must = constraint.text == TextRule::Nothing;
        let rule = |tool: &ToolDefinition| calls.tools.iter().find(|callable| callable.name == tool.name);
        let callable = tools.iter().filter_map(|it| Some(tool(it, rule(it)?.by_schema && !must)));
        body.insert("tools".to_owned(), callable.collect());
        match (must, &calls.tools[..]) {
            (true, [only]) => {
                let choice = json!({"type": "function", "function": {"name": only.name}});
                body.insert("tool_choice".to_owned(), choice);
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
    let (name, rule) = match &constraint.text {
        TextRule::Any | TextRule::Nothing => return Ok(()),
        TextRule::JsonSchema { schema } => {
            let format = if *schema == json!({"type": "object"}) {
                json!({"type": "json_object"})
            } else {
                json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": true}})
            };
            body.insert("response_format".to_owned(), format);
            return Ok(());
        }
        TextRule::Regex { pattern } => ("regex", pattern.as_str().into()),
        TextRule::Lark { grammar } => ("grammar", grammar.as_str().into()),
        TextRule::Choice { texts } => ("choice", Value::from(texts.clone())),
    };
    if !manners.takes_forms {
        return Err(refused(format_args!("an answer of the form {name}")));
    }
    body.insert("structured_outputs".to_owned(), json!({name: rule}));
    Ok(())
}

fn tool(tool: &ToolDefinition, is_strict: bool) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), tool.name.as_str().into());
    function.extend(tool.description.as_ref().map(|text| ("description".to_owned(), text.as_str().into())));
    function.extend((!tool.parameters.is_null()).then(|| ("parameters".to_owned(), tool.parameters.clone())));
    function.extend(is_strict.then(|| ("strict".to_owned(), true.into())));
    json!({"type": "function", "function": function})
}

/// The conversation on the wire, the answer so far at its end.
fn messages(asked: &Asked<'_>, manners: &Manners) -> Vec<Value> {
    let ids = wire_ids(asked.messages);
    let mut messages: Vec<_> = asked.messages.iter().map(|it| message(it, &ids, manners)).collect();
    if !asked.answer.is_empty() {
        messages.push(json!({"role": "assistant", "content": asked.answer}));
        if manners.continuing == Continuing::Asked {
            messages.push(json!({"role": "user", "content": GO_ON}));
        }
    }
    messages
}

fn message(message: &Message, ids: &BTreeMap<&str, &str>, manners: &Manners) -> Value {
    let role = match message.role {
        Role::Developer if !manners.knows_developers => "system",
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut wire = Map::new();
    wire.insert("role".to_owned(), role.into());
    let has_calls = !message.tool_calls.is_empty();
    let says_nothing = has_calls && message.content.is_empty();
    wire.insert("content".to_owned(), if says_nothing { Value::Null } else { message.content.as_str().into() });
    if let Some(reasoning) = message.reasoning_content.as_ref().filter(|_| manners.takes_extras) {
        wire.insert("reasoning_content".to_owned(), reasoning.as_str().into());
    }
    let id = |id: &str| ids.get(id).copied().unwrap_or(id).to_owned();
    if has_calls {
        let call = |call: &ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": id(&call.id), "type": "function", "function": function})
        };
        wire.insert("tool_calls".to_owned(), message.tool_calls.iter().map(call).collect());
    }
    if let Some(call_id) = &message.tool_call_id {
        wire.insert("tool_call_id".to_owned(), id(call_id).into());
    }
    Value::Object(wire)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::UpstreamKind;
    use crate::engine::settings::{CallRule, Callable, Penalties};
    use crate::engine::{Chat, GenerationRequest, Refusal};
    use crate::upstream::kind::manners;

    fn neutral() -> Sampling {
        Sampling { temperature: 1.0, seed: 5, ..Sampling::GREEDY }
    }

    fn request(sampling: Sampling, chat: Chat) -> GenerationRequest {
        GenerationRequest { sampling, chat: Arc::new(chat), ..GenerationRequest::greedy(Arc::default(), u32::MAX) }
    }

    fn written(kind: UpstreamKind, request: &GenerationRequest, messages: &[Message], answer: &str) -> Value {
        let maker = "upstream-gpu-m";
        let asked = Asked { model: "m", maker, request, messages, answer, max_tokens: Some(9), stream: true };
        body(&asked, &manners(kind)).unwrap()
    }

    fn plain(kind: UpstreamKind, messages: &[Message], answer: &str) -> Value {
        written(kind, &request(neutral(), Chat::default()), messages, answer)
    }

    #[test]
    fn a_conversation_with_calls_is_written_with_the_upstreams_own_ids() {
        let mut calls = Message::text(Role::Assistant, "");
        calls.reasoning_content = Some("hm".to_owned());
        let call = |id: &str, native: Option<&str>| ToolCall {
            native_id: native.map(str::to_owned),
            ..ToolCall::new(id, "weather", "{\"city\": \"Oslo\"}")
        };
        calls.tool_calls = vec![call("callA", Some("call_x")), call("callB", None)];
        let result =
            |id: &str, text: &str| Message { tool_call_id: Some(id.to_owned()), ..Message::text(Role::Tool, text) };
        let messages = [
            Message::text(Role::System, "Be kind."),
            Message::text(Role::Developer, "Be brief."),
            Message::text(Role::User, "Rain?"),
            calls.clone(),
            result("callA", "wet"),
            result("callB", "dry"),
        ];
        let function = json!({"name": "weather", "arguments": "{\"city\": \"Oslo\"}"});
        let expected = json!([
            {"role": "system", "content": "Be kind."},
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "call_x", "type": "function", "function": function},
                {"id": "callB", "type": "function", "function": function},
            ]},
            {"role": "tool", "content": "wet", "tool_call_id": "call_x"},
            {"role": "tool", "content": "dry", "tool_call_id": "callB"},
        ]);
        assert_eq!(plain(UpstreamKind::Vllm, &messages, "")["messages"], expected);
        let openai = plain(UpstreamKind::Openai, &messages, "");
        assert_eq!(openai["messages"][1]["role"], "developer");
        assert_eq!(openai["messages"][3].get("reasoning_content"), None);
        // An id that was given twice names nothing.
        let again = [calls.clone(), calls];
        assert_eq!(plain(UpstreamKind::Vllm, &again, "")["messages"][0]["tool_calls"][0]["id"], "callA");
    }

    #[test]
    fn an_answer_is_gone_on_with_as_the_kind_can() {
        let messages = [Message::text(Role::User, "Count.")];
        let vllm = plain(UpstreamKind::Vllm, &messages, "one tw");
        assert_eq!(vllm["messages"][1], json!({"role": "assistant", "content": "one tw"}));
        assert_eq!((&vllm["continue_final_message"], &vllm["add_generation_prompt"]), (&json!(true), &json!(false)));
        let llama = plain(UpstreamKind::Llamacpp, &messages, "one tw");
        assert_eq!((llama["messages"].as_array().unwrap().len(), llama.get("continue_final_message")), (2, None));
        let openai = plain(UpstreamKind::Openai, &messages, "one tw");
        assert_eq!(openai["messages"][2], json!({"role": "user", "content": GO_ON}));
        assert_eq!(plain(UpstreamKind::Vllm, &messages, "").get("continue_final_message"), None);
    }

    #[test]
    fn only_what_a_client_set_is_asked_for_and_what_is_not_known_is_refused() {
        let expected = json!({
            "model": "m", "messages": [], "stream": true, "stream_options": {"include_usage": true},
            "max_completion_tokens": 9, "prompt_cache_key": cache_key(&[]),
        });
        assert_eq!(plain(UpstreamKind::Openai, &[], ""), expected);
        let penalties = Penalties { frequency: 0.5, ..Penalties::NONE };
        let shaping = Shaping { penalties: Some(penalties), ..Shaping::NONE };
        let set = Sampling { temperature: 0.7, top_k: 4, top_p: 0.9, shaping, ..neutral() };
        let body = written(UpstreamKind::Vllm, &request(set.clone(), Chat::default()), &[], "");
        let expected = json!({
            "model": "m", "messages": [], "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 9,
            "temperature": 0.7, "top_p": 0.9, "top_k": 4, "frequency_penalty": 0.5, "seed": 5,
        });
        assert_eq!(body, expected);
        let request = request(set, Chat::default());
        let (model, maker, messages, answer) = ("m", "upstream-gpu-m", &[][..], "");
        let asked = Asked { model, maker, request: &request, messages, answer, max_tokens: None, stream: false };
        let refusal = super::body(&asked, &manners(UpstreamKind::Openai)).unwrap_err();
        assert!(matches!(refusal, FinishReason::Refused(Refusal::Input, text) if text.contains("for top_k;")));
    }

    #[test]
    fn a_word_for_effort_is_one_that_the_kind_knows() {
        let written = |kind, word: &str| {
            let chat = Chat { effort: Some(word.to_owned()), ..Chat::default() };
            written(kind, &request(neutral(), chat), &[], "").get("reasoning_effort").cloned()
        };
        for (word, sent) in [("none", None), ("minimal", Some("low")), ("low", Some("low")), ("xhigh", Some("high"))] {
            assert_eq!(written(UpstreamKind::Vllm, word), sent.map(Value::from), "{word}");
            assert_eq!(written(UpstreamKind::Openai, word), Some(word.into()));
        }
        assert_eq!(written(UpstreamKind::Vllm, "briefly"), Some("briefly".into()), "a model's own");
    }

    #[test]
    fn tools_choices_and_forms_are_passed_on() {
        let tool = |name: &str| ToolDefinition {
            name: name.to_owned(),
            description: Some("d".to_owned()),
            parameters: json!({"type": "object"}),
        };
        let tools = vec![tool("a"), tool("b")];
        let wire = |name: &str| {
            json!({"type": "function", "function":
                {"name": name, "description": "d", "parameters": {"type": "object"}}})
        };
        let free = Chat { tools: tools.clone(), stop: vec!["END".to_owned()], ..Chat::default() };
        let body = written(UpstreamKind::Vllm, &request(neutral(), free.clone()), &[], "");
        assert_eq!((&body["tools"], &body["stop"]), (&json!([wire("a"), wire("b")]), &json!(["END"])));
        let calls = |names: &[&str], several| {
            let callable = |name: &&str| Callable { name: (*name).to_owned(), by_schema: true, input: None };
            CallRule { tools: names.iter().map(callable).collect(), several }
        };
        let bound = |text, calls| {
            let constraint = Some(Constraint { text, calls, at: None });
            written(UpstreamKind::Vllm, &request(neutral(), Chat { constraint, ..free.clone() }), &[], "")
        };
        let one = bound(TextRule::Nothing, Some(calls(&["b"], false)));
        assert_eq!(one["tools"], json!([wire("b")]));
        assert_eq!(one["tool_choice"], json!({"type": "function", "function": {"name": "b"}}));
        assert_eq!(one["parallel_tool_calls"], false);
        assert_eq!(bound(TextRule::Nothing, Some(calls(&["a", "b"], true)))["tool_choice"], "required");
        let strict = bound(TextRule::Any, Some(calls(&["a"], true)));
        assert_eq!((&strict["tools"][0]["function"]["strict"], strict.get("tool_choice")), (&json!(true), None));
        let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}});
        let body = bound(TextRule::JsonSchema { schema: schema.clone() }, None);
        assert_eq!(body["response_format"]["json_schema"]["schema"], schema);
        assert_eq!(body.get("tools"), None);
        let body = bound(TextRule::Regex { pattern: "a+".to_owned() }, None);
        assert_eq!(body["structured_outputs"], json!({"regex": "a+"}));
    }
}
