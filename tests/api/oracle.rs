//! Whatever is sent can be read as the types of a client that others wrote: `async-openai`'s.

use async_openai::types::chat::{CreateChatCompletionResponse, CreateChatCompletionStreamResponse};
use async_openai::types::completions::CreateCompletionResponse;
use async_openai::types::responses::websocket::ResponsesServerEvent;
use async_openai::types::responses::{
    CompactResource, ConversationItemList, ConversationResource, DeleteConversationResponse, Response,
    ResponseItemList, ResponseStreamEvent, TokenCountsResource,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::Server;

/// Reads each of the values as this type.
#[track_caller]
fn read_all<T: DeserializeOwned>(values: &[Value]) {
    for value in values {
        read::<T>(value);
    }
}

/// Reads the value as this type.
#[track_caller]
fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {}});
    json!([
        {"type": "function", "name": "weather", "description": "d", "parameters": parameters, "strict": false},
        {"type": "namespace", "name": "agents", "description": "d", "tools": [
            {"type": "function", "name": "spawn", "parameters": parameters, "strict": false},
        ]},
        {"type": "custom", "name": "patch", "description": "d"},
        {"type": "tool_search", "execution": "client", "description": "d", "parameters": parameters},
    ])
}

/// What the scripted model writes of each kind.
fn script() -> Value {
    let call = |name: &str, arguments: Value| {
        format!("<tool_call>{}</tool_call>", json!({"name": name, "arguments": arguments}))
    };
    let numbers = |count: u32| (0..count).map(|number| format!("{number} ")).collect::<Vec<_>>();
    let tag = |tag: &str| vec![tag.to_owned()];
    let mused = [tag("<think>"), numbers(50), tag("</think>so"), numbers(50)].concat();
    let opening = tag(r#"<tool_call>{"name": "weather", "arguments": {"city": ""#);
    let typing = [opening, vec!["O".to_owned(); 20], tag(r#""}}</tool_call>"#)].concat();
    json!([
        {"match": "muse", "deltas": mused, "delay_ms": 10},
        {"match": "endless", "deltas": numbers(4000), "delay_ms": 5},
        {"match": "typhoon", "deltas": typing, "delay_ms": 10},
        {"match": "think", "deltas": ["<think>", "hm, ", "well", "</think>", "so ", "it is"]},
        {"match": "breaks late", "deltas": ["so ", "far"], "finish": "error"},
        {"match": "long", "deltas": ["cut ", "off"], "finish": "length"},
        {"match": "function", "deltas": ["Let me see. ", call("weather", json!({"city": "Oslo"}))]},
        {"match": "namespace", "deltas": [call("agents__spawn", json!({"task": "t"}))]},
        {"match": "custom", "deltas": [call("patch", json!({"input": "a\nb"}))]},
        {"match": "search", "deltas": [call("tool_search", json!({"query": "q"}))]},
        {"match": "shell", "deltas": [call("local_shell", json!({"command": ["ls"], "env": {}}))]},
        {"deltas": ["Hello", ", ", "world"]},
    ])
}

async fn server() -> Server {
    let setup = crate::support::Setup { script: Some(script()), ..Default::default() };
    Server::start_with(setup).await
}

#[tokio::test]
async fn every_event_of_every_kind_of_stream_is_one_of_openais() {
    let server = server().await;
    let shell = json!([{"type": "local_shell"}]);
    for (input, fields) in [
        ("hi", json!({"metadata": {"a": "b"}, "instructions": "Be brief.", "max_output_tokens": 100})),
        (
            "think",
            json!({"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"}}),
        ),
        ("hi", json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2, "text": {"verbosity": "low"}})),
        ("long", json!({})),
        ("breaks late", json!({})),
        ("function", json!({"tools": tools(), "tool_choice": "auto", "parallel_tool_calls": true})),
        ("namespace", json!({"tools": tools()})),
        ("custom", json!({"tools": tools()})),
        ("search", json!({"tools": tools()})),
        ("shell", json!({"tools": shell})),
        ("hi", json!({"background": true, "service_tier": "flex", "truncation": "auto", "prompt_cache_key": "k"})),
        ("hi", json!({"store": false, "user": "u", "safety_identifier": "s", "max_tool_calls": 3})),
        ("compaction", json!({"input": [{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}]})),
    ] {
        let mut body = fields;
        if body["input"].is_null() {
            body["input"] = input.into();
        }
        (body["stream"], body["model"]) = (true.into(), "scripted".into());
        let events = server.post_stream("/v1/responses", body.clone()).await.rest_json().await;
        assert!(events.len() > 3, "{input}");
        read_all::<ResponseStreamEvent>(&events);
        read_all::<ResponsesServerEvent>(&events);
        let last: Response = read(&events.last().unwrap()["response"]);
        assert_eq!(last.id, events[0]["response"]["id"].as_str().unwrap());
        if body["store"] != false {
            read::<Response>(&server.get(&format!("/v1/responses/{}", last.id)).await.body);
            let items = server.get(&format!("/v1/responses/{}/input_items", last.id)).await.body;
            read::<ResponseItemList>(&items);
        }
    }
}

#[tokio::test]
async fn a_cancelled_and_a_compacted_response_are_openais_too() {
    let server = server().await;
    let id = server.running("endless").await;
    let cancelled = server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await.body;
    read::<Response>(&cancelled);
    let mut events = server.get_stream(&format!("/v1/responses/{id}?stream=true")).await.rest_json().await;
    // The deltas are many, and of one form.
    events.dedup_by_key(|event| event["type"].clone());
    read_all::<ResponseStreamEvent>(&events);
    let mut compacted = server.post("/v1/responses/compact", json!({"model": "scripted", "input": "hi"})).await.body;
    // What users said stays in front of the summary; this type of OpenAI's list knows of no users.
    compacted["output"].as_array_mut().unwrap().retain(|item| item["role"] != "user");
    read::<CompactResource>(&compacted);
    let counted = server.post("/v1/responses/input_tokens", json!({"model": "scripted", "input": "hi"})).await.body;
    read::<TokenCountsResource>(&counted);
}

#[tokio::test]
async fn the_last_event_of_a_stream_that_is_cut_is_openais_too() {
    let server = server().await;
    let mut stream = server.post_stream("/v1/responses", json!({"input": "endless", "stream": true})).await;
    stream.until("response.output_text.delta").await;
    server.root.stop().await;
    let last = stream.rest_json().await.pop().unwrap();
    assert_eq!(last["type"], "error");
    read::<ResponseStreamEvent>(&last);
}

#[tokio::test]
async fn a_steer_that_waits_for_calls_is_openais_too() {
    let server = server().await;
    let mut socket = server.responses_socket().await;
    socket.send(json!({"type": "response.create", "input": "typhoon", "tools": tools()})).await;
    let begun = socket.until(|frame| frame["type"] == "response.function_call_arguments.delta").await;
    let id = begun[0]["response"]["id"].clone();
    socket.send(json!({"type": "response.steer", "previous_response_id": id, "input": "more"})).await;
    let frames = socket.until(|frame| frame["type"] == "response.steer.pending").await;
    read_all::<ResponsesServerEvent>(&frames);
}

#[tokio::test]
async fn every_frame_of_openais_socket_is_one_of_theirs() {
    let server = server().await;
    let mut socket = server.responses_socket().await;
    socket.send(json!({"type": "response.create", "input": "muse", "store": false})).await;
    let mut frames = socket.until(|frame| frame["type"] == "response.reasoning_text.delta").await;
    let id = frames[0]["response"]["id"].clone();
    let steer = |input: &str| json!({"type": "response.steer", "previous_response_id": id, "input": input});
    socket.send(steer("function")).await;
    frames.extend(socket.until(|frame| frame["type"] == "response.completed").await);
    socket.send(steer("too late")).await;
    frames.push(socket.next().await);
    socket.send(json!({"type": "response.create", "input": "hi", "previous_response_id": "resp_nobody"})).await;
    frames.push(socket.next().await);
    let kinds: Vec<&str> = frames.iter().filter_map(|frame| frame["type"].as_str()).collect();
    for kind in ["response.steer.accepted", "response.incomplete", "response.steer.failed", "error"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    frames.dedup_by_key(|frame| frame["type"].clone());
    read_all::<ResponsesServerEvent>(&frames);
}

#[tokio::test]
async fn conversations_and_their_items_are_openais() {
    let server = server().await;
    let made = server.post("/v1/conversations", json!({"metadata": {"a": "b"}})).await;
    read::<ConversationResource>(&made.body);
    let id = made.id();
    for input in ["hi", "think", "function"] {
        let body = json!({"model": "scripted", "input": input, "conversation": id, "tools": tools()});
        server.post("/v1/responses", body).await;
    }
    let items: ConversationItemList = read(&server.get(&format!("/v1/conversations/{id}/items?limit=100")).await.body);
    assert_eq!(items.data.len(), 8);
    read::<DeleteConversationResponse>(&server.delete(&format!("/v1/conversations/{id}")).await.body);
}

#[tokio::test]
async fn every_chunk_of_a_chat_and_of_a_completion_is_one_of_openais() {
    let server = server().await;
    let weather = json!({"name": "weather", "parameters": {"type": "object"}});
    let tools = json!([{"type": "function", "function": weather}]);
    for (text, fields) in [
        ("hi", json!({"n": 2, "logprobs": true, "top_logprobs": 2, "service_tier": "flex"})),
        ("think", json!({"stream_options": {"include_usage": true}})),
        ("function", json!({"tools": tools})),
        ("function", json!({"functions": [weather]})),
        ("long", json!({})),
    ] {
        let mut body = fields;
        (body["messages"], body["model"]) = (json!([{"role": "user", "content": text}]), "scripted".into());
        read::<CreateChatCompletionResponse>(&server.post("/v1/chat/completions", body.clone()).await.body);
        body["stream"] = true.into();
        let chunks = server.post_stream("/v1/chat/completions", body).await.rest_json().await;
        read_all::<CreateChatCompletionStreamResponse>(&chunks);
    }
    let mut body = json!({"model": "scripted", "prompt": ["hi", "long"], "logprobs": 2, "max_tokens": 50});
    read::<CreateCompletionResponse>(&server.post("/v1/completions", body.clone()).await.body);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let parts = server.post_stream("/v1/completions", body).await.rest_json().await;
    read_all::<CreateCompletionResponse>(&parts);
}
