//! The fields of `/v1/chat/completions` beyond the usual: what is taken, translated, shown on demand, or refused.

use serde_json::{Value, json};

use midstream::api::Surface;
use midstream::config::{Config, ReasoningField};

use crate::support::{Server, Setup, SseEvent};

fn ask(text: &str) -> Value {
    json!({"model": "scripted", "messages": [{"role": "user", "content": text}]})
}

fn with(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn weather() -> Value {
    json!({"name": "weather", "parameters": {"type": "object"}})
}

async fn chunks(server: &Server, body: Value) -> Vec<Value> {
    let body = with(body, &json!({"stream": true}));
    server.post_stream("/v1/chat/completions", body).await.rest_json().await
}

#[tokio::test]
async fn what_is_documented_and_changes_nothing_is_taken_and_so_is_what_nobody_knows() {
    let server = Server::start().await;
    let fields = json!({
        "prediction": {"type": "content", "content": "Hello, world"},
        "modalities": ["text"],
        "audio": null,
        "metadata": {"job": "7"},
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "verbosity": "low",
        "parallel_tool_calls": true,
        "web_search_options": {},
        "moderation": {},
        "stream_options": {"include_usage": true, "include_obfuscation": false, "never_heard_of": 1},
        "nvext": {"agent_hints": {"osl": 5, "speculative_prefill": true, "strict_priority": 1, "new": {}}, "other": 1},
        "cache_salt": "mine",
        "never_heard_of": {"a": [1]},
    });
    let whole = server.post("/v1/chat/completions", with(ask("hi"), &fields)).await;
    assert_eq!(whole.body["choices"][0]["message"]["content"], "Hello, world", "{}", whole.body);
    let chunks = chunks(&server, with(ask("hi"), &fields)).await;
    assert!(chunks.last().unwrap()["usage"]["total_tokens"].as_u64().unwrap() > 0);
    assert!(chunks.iter().all(|chunk| chunk.get("obfuscation").is_none()));
}

#[tokio::test]
async fn what_is_no_text_is_refused_by_its_name() {
    let server = Server::start().await;
    let part = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    for (fields, param) in [
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"audio": {"voice": "alloy", "format": "wav"}}), "audio"),
        (part(json!({"type": "image_url", "image_url": {"url": "data:,"}})), "messages[0].content[0].type"),
        (part(json!({"type": "input_audio", "input_audio": {}})), "messages[0].content[0].type"),
        (part(json!({"type": "file", "file": {}})), "messages[0].content[0].type"),
        (json!({"functions": [weather()], "tools": []}), "functions"),
        (json!({"cache_salt": ""}), "cache_salt"),
    ] {
        let answer = server.post("/v1/chat/completions", with(ask("hi"), &fields)).await;
        assert_eq!(answer.assert_error(400, "invalid_input")["param"], param, "{}", answer.body);
    }
}

#[tokio::test]
async fn what_nobody_knows_of_tools_and_parts_is_left_out_and_noted() {
    let server = Server::start().await;
    let tool = json!({"type": "function", "function": weather()});
    let content = json!([{"type": "text", "text": "French "}, {"type": "hologram", "url": "a"}]);
    let fields = json!({
        "messages": [{"role": "user", "content": content}],
        "tools": [{"type": "web_search"}, tool, {"type": "of tomorrow", "name": 5}],
        "tool_choice": {"type": "image_generation"},
        "metadata": {"own": "label"},
    });
    let noted = json!({
        "own": "label",
        "midstream_ignored_tools": "web_search, of tomorrow, image_generation",
        "midstream_ignored_parts": "hologram",
    });
    let body = with(ask(""), &fields);
    let whole = server.post("/v1/chat/completions", body.clone()).await;
    assert_eq!((whole.status, &whole.body["metadata"]), (200, &noted), "{}", whole.body);
    assert_eq!(whole.body["choices"][0]["message"]["content"], "Bonjour");
    let chunks = chunks(&server, body.clone()).await;
    assert_eq!(chunks[0]["metadata"], noted);
    assert!(chunks[1..].iter().all(|chunk| chunk.get("metadata").is_none()));
    let prompt = server.post("/v1/chat/render", body).await.body["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.contains("French [a part of the type hologram is left out: this model reads text]"), "{prompt}");
    let plain = server.post("/v1/chat/completions", with(ask("hi"), &json!({"metadata": {"own": "label"}}))).await;
    assert_eq!(plain.body.get("metadata"), None);

    let input = json!([{"role": "user", "content": [{"type": "hologram"}, {"type": "input_text", "text": "French"}]}]);
    let choice = json!({"type": "of tomorrow"});
    let tool = with(weather(), &json!({"type": "function"}));
    let body = json!({"input": input, "tools": [tool], "tool_choice": choice});
    let answer = server.post("/v1/responses", body).await;
    let noted = json!({"midstream_ignored_tools": "of tomorrow", "midstream_ignored_parts": "hologram"});
    assert_eq!((answer.status, &answer.body["metadata"]), (200, &noted), "{}", answer.body);
}

#[tokio::test]
async fn a_request_may_ask_for_many_choices() {
    let server = Server::start().await;
    let many = server.post("/v1/chat/completions", with(ask("French"), &json!({"n": 20}))).await;
    assert_eq!(many.body["choices"].as_array().unwrap().len(), 20, "{}", many.body);
}

#[tokio::test]
async fn the_verbosity_is_a_variable_of_the_template_unless_that_is_given() {
    let server = Server::start().await;
    for (body, kwargs) in [
        (json!({"verbosity": "low"}), json!("low")),
        (json!({"verbosity": "low", "chat_template_kwargs": {"verbosity": "high"}}), json!("high")),
    ] {
        let body = with(ask("hi"), &with(body, &json!({"store": true})));
        let id = server.post("/v1/chat/completions", body).await.id().replace("chatcmpl-", "resp_");
        let id = id.parse().unwrap();
        let state = server.root.directory().of_response(id, "local").await.unwrap().state().await.unwrap();
        assert_eq!(state.response(id).unwrap().config.template_kwargs["verbosity"], kwargs);
    }
    let answer = server.post("/v1/responses", json!({"input": "hi", "text": {"verbosity": "high"}})).await;
    let id = answer.id().parse().unwrap();
    let state = server.root.directory().of_response(id, "local").await.unwrap().state().await.unwrap();
    assert_eq!(state.response(id).unwrap().config.template_kwargs["verbosity"], "high");
}

#[tokio::test]
async fn the_service_tier_that_was_asked_for_is_told_and_else_none() {
    let server = Server::start().await;
    for (asked, told) in [("flex", "flex"), ("priority", "priority"), ("auto", "default"), ("default", "default")] {
        let body = with(ask("hi"), &json!({"service_tier": asked}));
        let whole = server.post("/v1/chat/completions", body.clone()).await.body;
        assert_eq!(whole["service_tier"], told);
        let chunks = chunks(&server, body).await;
        assert!(chunks.iter().all(|chunk| chunk["service_tier"] == told));
    }
    let whole = server.post("/v1/chat/completions", ask("hi")).await.body;
    assert!(whole.get("service_tier").is_none());
}

#[tokio::test]
async fn system_and_developer_messages_may_stand_anywhere() {
    let server = Server::start().await;
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let messages =
        [say("user", "a"), say("system", "b"), say("assistant", "c"), say("developer", "d"), say("user", "hi")];
    let answer = server.post("/v1/chat/completions", json!({"messages": messages})).await;
    assert_eq!(answer.body["choices"][0]["message"]["content"], "Hello, world", "{}", answer.body);
}

#[tokio::test]
async fn functions_are_called_and_answered_the_older_way() {
    let server = Server::start().await;
    let body = with(ask("weather"), &json!({"functions": [weather()]}));
    let whole = server.post("/v1/chat/completions", body.clone()).await.body;
    let choice = &whole["choices"][0];
    let call = json!({"name": "weather", "arguments": r#"{"city": "Oslo"}"#});
    assert_eq!((&choice["message"]["function_call"], &choice["finish_reason"]), (&call, &json!("function_call")));
    assert!(choice["message"].get("tool_calls").is_none());

    let chunks = chunks(&server, body).await;
    let parts: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["function_call"])
        .filter(|part| !part.is_null())
        .collect();
    assert_eq!(parts[0]["name"], "weather");
    let arguments: String = parts.iter().map(|part| part["arguments"].as_str().unwrap()).collect();
    assert_eq!(arguments, r#"{"city": "Oslo"}"#);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "function_call");

    let messages = json!([
        {"role": "user", "content": "weather"},
        {"role": "assistant", "content": null, "function_call": call},
        {"role": "function", "name": "weather", "content": "rain"},
    ]);
    let answer = server.post("/v1/chat/completions", json!({"messages": messages, "functions": [weather()]})).await;
    assert_eq!(answer.body["choices"][0]["message"]["content"], "Take an umbrella.", "{}", answer.body);
}

#[tokio::test]
async fn the_older_way_has_room_for_one_call() {
    let server = Server::start().await;
    let body = with(ask("twice"), &json!({"functions": [weather()]}));
    let whole = server.post("/v1/chat/completions", body.clone()).await.body;
    assert_eq!(whole["choices"][0]["message"]["function_call"]["arguments"], r#"{"city": "Oslo"}"#);
    let chunks = chunks(&server, body).await;
    let parts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["function_call"]["arguments"].as_str());
    assert_eq!(parts.collect::<String>(), r#"{"city": "Oslo"}"#);
}

#[tokio::test]
async fn reasoning_is_in_the_field_that_the_operator_chose_and_read_from_both() {
    for (field, names) in [
        (ReasoningField::ReasoningContent, &["reasoning_content"][..]),
        (ReasoningField::Reasoning, &["reasoning"]),
        (ReasoningField::Both, &["reasoning_content", "reasoning"]),
    ] {
        let surface = Surface { reasoning: field, ..(&Config::default()).into() };
        let server = Server::start_with(Setup { surface, ..Setup::default() }).await;
        let whole = server.post("/v1/chat/completions", ask("think")).await.body;
        let chunks = chunks(&server, ask("think")).await;
        for name in ["reasoning_content", "reasoning"] {
            let streamed: String =
                chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect();
            let said = whole["choices"][0]["message"][name].as_str().unwrap_or_default();
            let expected = if names.contains(&name) { "hm, well" } else { "" };
            assert_eq!((said, streamed.as_str()), (expected, expected), "{name}");
        }
    }
    let server = Server::start().await;
    let rendered = |name: &'static str| {
        let call = json!({"id": "call1", "type": "function", "function": {"name": "weather", "arguments": "{}"}});
        let said = json!({"role": "assistant", "content": null, "tool_calls": [call], name: "hm"});
        let messages = [said, json!({"role": "tool", "tool_call_id": "call1", "content": "rain"})];
        server.post("/v1/chat/render", json!({"messages": messages}))
    };
    let (one, other) = (rendered("reasoning_content").await.body, rendered("reasoning").await.body);
    assert!(one["prompt"].as_str().unwrap().contains("hm"), "{one}");
    assert_eq!(one["tokens"], other["tokens"]);
}

/// The events of a type, with what they say.
fn of_type(events: &[SseEvent], kind: &str) -> Vec<Value> {
    events.iter().filter(|event| event.event.as_deref() == Some(kind)).map(SseEvent::json).collect()
}

#[tokio::test]
async fn a_chat_dispatches_whole_calls_once_and_before_it_ends_where_it_is_asked_to() {
    let server = Server::start().await;
    let tools = json!([{"type": "function", "function": weather()}]);
    let options = json!({"include_dispatch": true});
    let body = with(ask("twice"), &json!({"tools": tools, "stream": true, "stream_options": options}));
    let events = server.post_stream("/v1/chat/completions", body.clone()).await.rest().await;
    let dispatched = of_type(&events, "tool_call_dispatch");
    for (index, city) in [(0, "Oslo"), (1, "Rome")] {
        let (call, choice) = (&dispatched[index]["tool_call"], &dispatched[index]["choice_index"]);
        assert_eq!((&call["index"], choice, &call["type"]), (&json!(index), &json!(0), &json!("function")));
        assert!(call["id"].as_str().unwrap().starts_with("call"));
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert_eq!((&call["function"]["name"], arguments), (&json!("weather"), json!({"city": city})));
    }
    assert_eq!(dispatched.len(), 2);
    let last = events.iter().rposition(|event| event.event.is_some()).unwrap();
    let end = events.iter().position(|event| event.data.contains("\"finish_reason\":\"tool_calls\"")).unwrap();
    assert!(last < end);

    let unasked = with(body, &json!({"stream_options": {}}));
    let events = server.post_stream("/v1/chat/completions", unasked).await.rest().await;
    assert!(events.iter().all(|event| event.event.is_none()));
}

#[tokio::test]
async fn a_chat_dispatches_whole_reasoning_and_each_choice_its_own() {
    let surface = Surface { dispatch: true, ..(&Config::default()).into() };
    let server = Server::start_with(Setup { surface, ..Setup::default() }).await;
    let body = with(ask("think"), &json!({"stream": true, "n": 2}));
    let events = server.post_stream("/v1/chat/completions", body.clone()).await.rest().await;
    let mut dispatched = of_type(&events, "reasoning_dispatch");
    dispatched.sort_by_key(|event| event["choice_index"].as_u64());
    let expected = |index: u32| json!({"choice_index": index, "reasoning_content": "hm, well"});
    assert_eq!(dispatched, [expected(0), expected(1)]);
    let unwanted = with(body, &json!({"stream_options": {"include_dispatch": false}}));
    let events = server.post_stream("/v1/chat/completions", unwanted).await.rest().await;
    assert!(events.iter().all(|event| event.event.is_none()));
}

#[tokio::test]
async fn openais_socket_dispatches_whole_calls_once_for_the_responses_that_ask_for_it() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let tools = json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}]);
    for asks in [true, false] {
        let options = json!({"include_dispatch": asks});
        socket
            .send(json!({"type": "response.create", "stream_id": "a", "input": "weather", "tools": tools,
                "stream_options": options}))
            .await;
        let events = socket.until(|frame| frame["type"] == "response.completed").await;
        let dispatched = events.iter().enumerate().filter(|(_, event)| event["type"] == "tool_call_dispatch");
        let places: Vec<usize> = dispatched.map(|(place, _)| place).collect();
        assert_eq!(places.len(), usize::from(asks));
        for place in places {
            let item = &events[place - 1]["item"];
            assert_eq!((&item["call_id"], &events[place]["stream_id"]), (&events[place]["call_id"], &json!("a")));
        }
    }
}

#[tokio::test]
async fn a_response_dispatches_behind_what_it_repeats_and_a_resumed_one_what_it_has_not_shown() {
    let server = Server::start().await;
    let tools = json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}]);
    let body =
        json!({"input": "weather", "tools": tools, "stream": true, "stream_options": {"include_dispatch": true}});
    let mut stream = server.post_stream("/v1/responses", body).await;
    let events = stream.rest_json().await;
    let place = events.iter().position(|event| event["type"] == "tool_call_dispatch").unwrap();
    let (before, dispatched) = (&events[place - 1], &events[place]);
    assert_eq!(
        (&before["type"], &before["item"]["call_id"]),
        (&json!("response.output_item.done"), &dispatched["call_id"])
    );
    assert_eq!(dispatched["arguments"], before["item"]["arguments"]);
    assert_eq!(events.iter().filter(|event| event["type"] == "tool_call_dispatch").count(), 1);
    let numbers: Vec<u64> = events.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>(), "it has no number of its own");

    let id = events[0]["response"]["id"].as_str().unwrap();
    let done = before["sequence_number"].as_u64().unwrap();
    for (after, count) in [(done - 1, 1), (done, 0)] {
        let path = format!("/v1/responses/{id}?stream=true&starting_after={after}&include_dispatch=true");
        let events = server.get_stream(&path).await.rest_json().await;
        assert_eq!(events.iter().filter(|event| event["type"] == "tool_call_dispatch").count(), count);
        assert_eq!(events.last().unwrap()["type"], "response.completed");
    }
    let body = json!({"input": "think", "stream": true, "stream_options": {"include_dispatch": true}});
    let events = server.post_stream("/v1/responses", body).await.rest_json().await;
    let dispatched: Vec<&Value> = events.iter().filter(|event| event["type"] == "reasoning_dispatch").collect();
    assert_eq!((dispatched.len(), &dispatched[0]["text"]), (1, &json!("hm, well")));
}
