//! From a conversation to the body of a request. What it cannot be asked for is refused, never left out; but a seed,
//! which changes nothing that is promised.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::engine::settings::{Constraint, Penalties, Sampling, Shaping, TextRule};
use crate::engine::{Chat, FinishReason};
use crate::prompt::{Message, Role, ToolCall, ToolDefinition};
use crate::upstream::wire::{Asked, GO_ON, refused, wire_ids};

/// The fewest tokens that thinking can be given, and how many are left for the answer behind it.
const THINKING_MIN: u32 = 1024;

/// How one of these upstreams is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) struct Manners {
    /// Whether its models decide themselves how long they think.
    pub(in crate::upstream) adaptive_thinking: bool,
    /// Tokens of an answer whose client sets no bound.
    pub(in crate::upstream) output_length: u32,
}

/// The body of the request.
pub(in crate::upstream) fn body(asked: &Asked<'_>, manners: Manners) -> Result<Value, FinishReason> {
    let chat = &*asked.request.chat;
    let max_tokens = asked.max_tokens.unwrap_or(manners.output_length);
    let (system, mut messages) = messages(asked);
    let mut body = Map::new();
    body.insert("model".to_owned(), asked.model.into());
    body.insert("max_tokens".to_owned(), max_tokens.into());
    body.insert("stream".to_owned(), asked.stream.into());
    let must_call = tools(chat, &mut body)?;
    if !system.is_empty() {
        body.insert("system".to_owned(), system.into());
    }
    let (thinking, effort) = thinking(chat, max_tokens, manners);
    // Who must call does not think. Who is given tokens for it goes on thinking behind results only where all is there.
    let is_adaptive = effort.is_some();
    let may_think = !must_call && (is_adaptive || thoughts_are_whole(&messages));
    if let Some(thinking) = thinking.filter(|_| may_think) {
        body.insert("thinking".to_owned(), thinking);
    }
    let mut output = Map::new();
    output.extend(effort.filter(|_| may_think).map(|effort| ("effort".to_owned(), effort.into())));
    output.extend(form(chat.constraint.as_ref())?.map(|format| ("format".to_owned(), format)));
    if !output.is_empty() {
        body.insert("output_config".to_owned(), output.into());
    }
    sampling(&asked.request.sampling, &mut body)?;
    if !chat.stop.is_empty() {
        body.insert("stop_sequences".to_owned(), chat.stop.clone().into());
    }
    keep_prefixes(&mut body, &mut messages);
    body.insert("messages".to_owned(), messages.into());
    Ok(Value::Object(body))
}

/// What the settings change. Where they stand at what changes nothing, the upstream's own hold.
fn sampling(sampling: &Sampling, body: &mut Map<String, Value>) -> Result<(), FinishReason> {
    let Sampling { temperature, top_k, top_p, min_p, seed: _, choice: _, shaping } = sampling;
    if *min_p > 0.0 {
        return Err(refused("min_p"));
    }
    let penalties = shaping.penalties.filter(|penalties| *penalties != Penalties::NONE);
    if (Shaping { penalties, ..shaping.clone() }) != Shaping::NONE {
        return Err(refused("penalties, logit_bias or a sampler of its own"));
    }
    for (name, value) in [("temperature", *temperature), ("top_p", *top_p)] {
        if (value - 1.0).abs() > f32::EPSILON {
            // Through its shortest text: as a double it would have digits that nobody wrote.
            let value = value.to_string().parse::<f64>().unwrap_or_else(|_| value.into());
            body.insert(name.to_owned(), value.into());
        }
    }
    if *top_k > 0 {
        body.insert("top_k".to_owned(), (*top_k).into());
    }
    Ok(())
}

/// Writes the tools, and which of them may be called; gives whether one must be.
fn tools(chat: &Chat, body: &mut Map<String, Value>) -> Result<bool, FinishReason> {
    let rule = chat.constraint.as_ref().map(|constraint| (&constraint.calls, &constraint.text));
    let (calls, must) = match rule {
        Some((Some(calls), text)) => (Some(calls), *text == TextRule::Nothing),
        // Only the text is bound: nothing is called, but the tools are the head of what is cached.
        Some((None, _)) => {
            if !chat.tools.is_empty() {
                body.insert("tools".to_owned(), chat.tools.iter().map(tool).collect());
                body.insert("tool_choice".to_owned(), json!({"type": "none"}));
            }
            return Ok(false);
        }
        None => (None, false),
    };
    let is_callable =
        |tool: &&ToolDefinition| calls.is_none_or(|calls| calls.tools.iter().any(|it| it.name == tool.name));
    let tools: Vec<_> = chat.tools.iter().filter(is_callable).collect();
    if tools.is_empty() {
        return if must { Err(refused("a call without tools")) } else { Ok(false) };
    }
    let mut choice = match (must, &tools[..]) {
        (true, [only]) => json!({"type": "tool", "name": only.name}),
        (true, _) => json!({"type": "any"}),
        (false, _) => json!({"type": "auto"}),
    };
    if calls.is_some_and(|calls| !calls.several) {
        choice["disable_parallel_tool_use"] = true.into();
    }
    body.insert("tools".to_owned(), tools.into_iter().map(tool).collect());
    body.insert("tool_choice".to_owned(), choice);
    Ok(must)
}

fn tool(tool: &ToolDefinition) -> Value {
    let mut wire = Map::new();
    wire.insert("name".to_owned(), tool.name.as_str().into());
    wire.extend(tool.description.as_ref().map(|text| ("description".to_owned(), text.as_str().into())));
    let nothing = json!({"type": "object", "properties": {}});
    let schema = if tool.parameters.is_object() { tool.parameters.clone() } else { nothing };
    wire.insert("input_schema".to_owned(), schema);
    Value::Object(wire)
}

/// What the text must look like.
fn form(constraint: Option<&Constraint>) -> Result<Option<Value>, FinishReason> {
    let name = match constraint.map(|constraint| &constraint.text) {
        None | Some(TextRule::Any | TextRule::Nothing) => return Ok(None),
        Some(TextRule::JsonSchema { schema }) => return Ok(Some(json!({"type": "json_schema", "schema": schema}))),
        Some(TextRule::Regex { .. }) => "regex",
        Some(TextRule::Lark { .. }) => "grammar",
        Some(TextRule::Choice { .. }) => "choice",
    };
    Err(refused(format_args!("an answer of the form {name}")))
}

/// How it thinks, and how hard. A client that names no effort may have given tokens.
fn thinking(chat: &Chat, max_tokens: u32, manners: Manners) -> (Option<Value>, Option<&'static str>) {
    let effort = match chat.effort.as_deref() {
        None => None,
        Some("none") => return (None, None),
        Some("minimal" | "low") => Some("low"),
        Some("medium") => Some("medium"),
        Some("high") => Some("high"),
        Some("xhigh" | "max") => Some("max"),
        // A word of the model's own stands for tokens.
        Some(_) => None,
    };
    match (effort, chat.thinking_tokens) {
        (_, Some(0)) | (None, None) => (None, None),
        (Some(effort), _) if manners.adaptive_thinking => (Some(json!({"type": "adaptive"})), Some(effort)),
        (_, budget) => {
            let most = max_tokens.saturating_sub(THINKING_MIN);
            let budget = budget.unwrap_or(most).max(THINKING_MIN).min(most);
            let thinks = budget >= THINKING_MIN;
            (thinks.then(|| json!({"type": "enabled", "budget_tokens": budget})), None)
        }
    }
}

/// Whether what the model thought in front of its calls, where results stand last, is there as it signed it.
fn thoughts_are_whole(messages: &[Value]) -> bool {
    let is = |block: &Value, kinds: &[&str]| block["type"].as_str().is_some_and(|kind| kinds.contains(&kind));
    let blocks = |message: &Value| message["content"].as_array().cloned().unwrap_or_default();
    let Some((last, before)) = messages.split_last() else { return true };
    if !blocks(last).iter().any(|block| is(block, &["tool_result"])) {
        return true;
    }
    let asked = before.last().map(blocks).unwrap_or_default();
    asked.first().is_none_or(|first| is(first, &["thinking", "redacted_thinking"]))
}

/// Marks how far the prompt stays as it is: its head, the turn before the last, and all of it. What changes from turn
/// to turn stands behind a mark.
fn keep_prefixes(body: &mut Map<String, Value>, messages: &mut [Value]) {
    let head = if body.contains_key("system") { "system" } else { "tools" };
    let mark = |block: Option<&mut Value>| {
        if let Some(Value::Object(block)) = block {
            block.insert("cache_control".to_owned(), json!({"type": "ephemeral"}));
        }
    };
    mark(body.get_mut(head).and_then(Value::as_array_mut).and_then(|blocks| blocks.last_mut()));
    let is_user = |message: &&mut Value| message["role"] == "user";
    for message in messages.iter_mut().rev().filter(is_user).take(2) {
        mark(message["content"].as_array_mut().and_then(|blocks| blocks.last_mut()));
    }
}

/// The instructions in front of everything, and the messages: neighbours of one role are one.
fn messages(asked: &Asked<'_>) -> (Vec<Value>, Vec<Value>) {
    let ids = wire_ids(asked.messages);
    let is_instruction = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
    let head = asked.messages.iter().take_while(is_instruction).count();
    let (head, rest) = asked.messages.split_at(head);
    let system = head.iter().filter_map(|message| text(&message.content)).collect();
    let mut said = Said::default();
    for message in rest {
        match message.role {
            // There is no other place for instructions that come later.
            Role::System | Role::Developer | Role::User => said.add("user", text(&message.content)),
            Role::Tool => said.answer(result(message, &ids)),
            Role::Assistant => said.add("assistant", answered(message, asked.maker, &ids)),
        }
    }
    if !asked.answer.is_empty() {
        said.add("assistant", text(asked.answer));
        said.add("user", text(GO_ON));
    }
    (system, said.0)
}

#[derive(Default)]
struct Said(Vec<Value>);

impl Said {
    fn add(&mut self, role: &str, blocks: impl IntoIterator<Item = Value>) {
        let mut blocks = blocks.into_iter().peekable();
        if blocks.peek().is_none() {
            return;
        }
        match self.0.last_mut().filter(|last| last["role"] == role).and_then(|last| last["content"].as_array_mut()) {
            Some(content) => content.extend(blocks),
            None => self.0.push(json!({"role": role, "content": blocks.collect::<Vec<_>>()})),
        }
    }
}

impl Said {
    /// A call's result: results stand in front of whatever else is said behind the calls.
    fn answer(&mut self, result: Value) {
        let open = self.0.last_mut().filter(|last| last["role"] == "user");
        match open.and_then(|last| last["content"].as_array_mut()) {
            Some(content) => {
                let place = content.iter().rposition(|block| block["type"] == "tool_result");
                content.insert(place.map_or(0, |place| place + 1), result);
            }
            None => self.add("user", [result]),
        }
    }
}

/// A block of text; none of what says nothing, which is refused.
fn text(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}))
}

fn result(message: &Message, ids: &BTreeMap<&str, &str>) -> Value {
    let id = message.tool_call_id.as_deref().unwrap_or_default();
    let content: Vec<_> = text(&message.content).into_iter().collect();
    json!({"type": "tool_result", "tool_use_id": ids.get(id).copied().unwrap_or(id), "content": content})
}

/// What the assistant said. What it thought goes along only where this maker signed it.
fn answered(message: &Message, maker: &str, ids: &BTreeMap<&str, &str>) -> Vec<Value> {
    let own = message.thoughts.iter().filter(|thought| thought.maker == maker);
    let thought = own.map(|thought| {
        let mut block = thought.native.clone();
        if block["type"] == "thinking" {
            block["thinking"] = thought.text.as_str().into();
        }
        block
    });
    let call = |call: &ToolCall| {
        let input = serde_json::from_str(&call.arguments).ok().filter(Value::is_object);
        // What is none is marked as its own clients mark it.
        let input = input.unwrap_or_else(|| json!({"INVALID_JSON": call.arguments}));
        let id = ids.get(call.id.as_str()).copied().unwrap_or(&call.id);
        json!({"type": "tool_use", "id": id, "name": call.name, "input": input})
    };
    thought.chain(text(&message.content)).chain(message.tool_calls.iter().map(call)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::settings::{CallRule, Callable};
    use crate::engine::{GenerationRequest, Refusal};
    use crate::prompt::Thought;

    const MANNERS: Manners = Manners { adaptive_thinking: true, output_length: 4000 };
    const MAKER: &str = "upstream-a-m";

    fn asked(
        chat: Chat,
        sampling: Sampling,
        messages: &[Message],
        answer: &str,
        manners: Manners,
    ) -> Result<Value, FinishReason> {
        let chat = Arc::new(chat);
        let request = GenerationRequest { sampling, chat, ..GenerationRequest::greedy(Arc::default(), u32::MAX) };
        let (model, request) = ("m", &request);
        let asked = Asked { model, maker: MAKER, request, messages, answer, max_tokens: None, stream: true };
        body(&asked, manners)
    }

    fn neutral() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::GREEDY }
    }

    fn written(chat: Chat, messages: &[Message]) -> Value {
        asked(chat, neutral(), messages, "", MANNERS).unwrap()
    }

    fn user(text: &str) -> Message {
        Message::text(Role::User, text)
    }

    fn tool(name: &str) -> ToolDefinition {
        let parameters = json!({"type": "object"});
        ToolDefinition { name: name.to_owned(), description: Some("d".to_owned()), parameters }
    }

    /// A question, thoughts, two calls and their results.
    fn conversation(maker: &str) -> Vec<Message> {
        let mut called = Message::text(Role::Assistant, "Let me see.");
        called.reasoning_content = Some("hm".to_owned());
        let thought = |text: &str, native| Thought { maker: maker.to_owned(), text: text.to_owned(), native };
        called.thoughts = vec![
            thought("hm", json!({"type": "thinking", "signature": "sign"})),
            thought("", json!({"type": "redacted_thinking", "data": "xyz"})),
        ];
        let native = ToolCall { native_id: Some("toolu_1".to_owned()), ..ToolCall::new("call_a", "f", "{\"a\": 1}") };
        called.tool_calls = vec![native, ToolCall::new("call_b", "f", "{a")];
        let result =
            |id: &str, text: &str| Message { tool_call_id: Some(id.to_owned()), ..Message::text(Role::Tool, text) };
        vec![
            Message::text(Role::System, "Be kind."),
            Message::text(Role::Developer, "Be brief."),
            user("Rain?"),
            called,
            result("call_a", "wet"),
            result("call_b", ""),
            Message::text(Role::System, "Now in French."),
        ]
    }

    #[test]
    fn a_conversation_is_written_in_blocks_with_ids_and_signatures_and_with_marks_for_the_cache() {
        let ephemeral = json!({"type": "ephemeral"});
        let chat = Chat { tools: vec![tool("f")], stop: vec!["END".to_owned()], ..Chat::default() };
        let expected = json!({
            "model": "m", "max_tokens": 4000, "stream": true, "stop_sequences": ["END"],
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto"},
            "system": [
                {"type": "text", "text": "Be kind."},
                {"type": "text", "text": "Be brief.", "cache_control": ephemeral},
            ],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Rain?", "cache_control": ephemeral}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "signature": "sign", "thinking": "hm"},
                    {"type": "redacted_thinking", "data": "xyz"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
                    {"type": "tool_use", "id": "call_b", "name": "f", "input": {"INVALID_JSON": "{a"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "wet"}]},
                    {"type": "tool_result", "tool_use_id": "call_b", "content": []},
                    {"type": "text", "text": "Now in French.", "cache_control": ephemeral},
                ]},
            ],
        });
        assert_eq!(written(chat, &conversation(MAKER)), expected);
    }

    #[test]
    fn results_stand_in_front_of_what_else_is_said_behind_their_calls() {
        let mut messages = conversation(MAKER);
        messages.insert(4, user("Hurry up."));
        let body = written(Chat::default(), &messages);
        let blocks = body["messages"][2]["content"].as_array().unwrap();
        let kinds: Vec<_> = blocks.iter().map(|block| block["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["tool_result", "tool_result", "text", "text"]);
        assert_eq!((&blocks[0]["tool_use_id"], &blocks[1]["tool_use_id"]), (&json!("toolu_1"), &json!("call_b")));
    }

    #[test]
    fn an_answer_that_broke_off_is_asked_for_in_words() {
        let body = asked(Chat::default(), neutral(), &[user("Count.")], "one tw", MANNERS).unwrap();
        assert_eq!(body["messages"][1]["content"][0]["text"], "one tw");
        assert_eq!(body["messages"][2]["content"][0]["text"], GO_ON);
    }

    #[test]
    fn it_thinks_as_the_client_asks_and_as_its_models_can() {
        let thinks = |effort: Option<&str>, tokens, manners, messages: &[Message]| {
            let chat = Chat { effort: effort.map(str::to_owned), thinking_tokens: tokens, ..Chat::default() };
            let body = asked(chat, neutral(), messages, "", manners).unwrap();
            (body["thinking"].clone(), body["output_config"]["effort"].clone())
        };
        let older = Manners { adaptive_thinking: false, ..MANNERS };
        let enabled = |tokens: u32| (json!({"type": "enabled", "budget_tokens": tokens}), json!(null));
        let nothing = (json!(null), json!(null));
        let asks = [user("Hm?")];
        assert_eq!(thinks(None, None, MANNERS, &asks), nothing);
        assert_eq!(thinks(None, Some(0), MANNERS, &asks), nothing);
        assert_eq!(thinks(Some("none"), Some(0), MANNERS, &asks), nothing);
        assert_eq!(thinks(None, Some(2000), MANNERS, &asks), enabled(2000));
        assert_eq!(thinks(None, Some(100_000), MANNERS, &asks), enabled(2976), "there is room for an answer");
        assert_eq!(thinks(Some("minimal"), Some(256), MANNERS, &asks), (json!({"type": "adaptive"}), json!("low")));
        assert_eq!(thinks(Some("xhigh"), None, MANNERS, &asks).1, json!("max"));
        assert_eq!(thinks(Some("briefly"), Some(2000), MANNERS, &asks), enabled(2000), "the model's own");
        assert_eq!(thinks(Some("low"), Some(1024), older, &asks), enabled(1024));
        assert_eq!(thinks(Some("xhigh"), None, older, &asks), enabled(2976));
        // What another maker thought cannot be gone on with.
        let results = |maker| conversation(maker)[..6].to_vec();
        assert_eq!(thinks(None, Some(2000), MANNERS, &results(MAKER)), enabled(2000));
        assert_eq!(thinks(None, Some(2000), MANNERS, &results("another")), nothing);
        assert_eq!(thinks(Some("low"), None, MANNERS, &results("another")).1, json!("low"), "it decides itself");
    }

    #[test]
    fn choices_and_forms_are_passed_on_and_what_is_not_known_is_refused() {
        let calls = |names: &[&str], several| {
            let callable = |name: &&str| Callable { name: (*name).to_owned(), by_schema: true, input: None };
            Some(CallRule { tools: names.iter().map(callable).collect(), several })
        };
        let bound = |text, calls| {
            let constraint = Some(Constraint { text, calls, at: None });
            let (tools, effort) = (vec![tool("a"), tool("b")], Some("low".to_owned()));
            let chat = Chat { tools, constraint, effort, ..Chat::default() };
            asked(chat, neutral(), &[user("Hm?")], "", MANNERS)
        };
        let one = bound(TextRule::Nothing, calls(&["b"], false)).unwrap();
        assert_eq!(one["tools"].as_array().unwrap().len(), 1);
        assert_eq!(one["tool_choice"], json!({"type": "tool", "name": "b", "disable_parallel_tool_use": true}));
        assert_eq!(one.get("thinking"), None, "who must call does not think");
        assert_eq!(bound(TextRule::Nothing, calls(&["a", "b"], true)).unwrap()["tool_choice"], json!({"type": "any"}));
        let schema = json!({"type": "object", "additionalProperties": false});
        let formed = bound(TextRule::JsonSchema { schema: schema.clone() }, None).unwrap();
        let format = json!({"effort": "low", "format": {"type": "json_schema", "schema": schema}});
        assert_eq!((&formed["output_config"], &formed["tool_choice"]), (&format, &json!({"type": "none"})));
        assert_eq!(formed["tools"].as_array().unwrap().len(), 2);
        let refusal = bound(TextRule::Regex { pattern: "a".to_owned() }, None).unwrap_err();
        assert!(matches!(refusal, FinishReason::Refused(Refusal::Input, text) if text.contains("the form regex")));
        let set = Sampling { temperature: 0.7, top_p: 0.9, top_k: 4, ..neutral() };
        let body = asked(Chat::default(), set, &[user("Hm?")], "", MANNERS).unwrap();
        assert_eq!((&body["temperature"], &body["top_p"], &body["top_k"]), (&json!(0.7), &json!(0.9), &json!(4)));
        let penalties = Some(Penalties { frequency: 0.5, ..Penalties::NONE });
        let set = Sampling { shaping: Shaping { penalties, ..Shaping::NONE }, ..neutral() };
        assert!(asked(Chat::default(), set, &[user("Hm?")], "", MANNERS).is_err());
    }
}
