//! `/v1/chat/completions`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{PATIENCE, Server, Setup, SseEvent};

fn ask(text: &str) -> Value {
    json!({"model": "scripted", "messages": [{"role": "user", "content": text}]})
}

fn streamed(text: &str) -> Value {
    let mut body = ask(text);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    body
}

#[tokio::test]
async fn a_whole_answer_has_the_shape_of_openais() {
    let server = Server::start().await;
    let answer = server.post("/v1/chat/completions", ask("hi")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = &answer.body;
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "scripted");
    let choice = json!({
        "index": 0,
        "message": {"role": "assistant", "content": "Hello, world", "refusal": null},
        "logprobs": null,
        "finish_reason": "stop",
    });
    assert_eq!(body["choices"], json!([choice]));
    let usage = &body["usage"];
    let sum = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"].as_u64().unwrap(), sum);
    assert!(answer.header("x-request-id").is_some());
}

#[tokio::test]
async fn a_stream_begins_with_the_role_and_ends_with_usage_and_done() {
    let server = Server::start().await;
    let mut stream = server.post_stream("/v1/chat/completions", streamed("hi")).await;
    let events = stream.rest().await;
    assert_eq!(events.last().unwrap().data, "[DONE]");
    assert!(events.iter().all(|event| event.event.is_none()));
    let chunks: Vec<Value> = events[..events.len() - 1].iter().map(SseEvent::json).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "Hello, world");
    let (last, before) = (&chunks[chunks.len() - 1], &chunks[chunks.len() - 2]);
    assert_eq!((&before["choices"][0]["finish_reason"], &before["choices"][0]["delta"]), (&json!("stop"), &json!({})));
    assert_eq!(before["usage"], Value::Null);
    assert_eq!(last["choices"], json!([]));
    assert!(last["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk["object"] == "chat.completion.chunk"));
}

#[tokio::test]
async fn without_being_asked_a_stream_says_nothing_of_usage() {
    let server = Server::start().await;
    let mut body = ask("hi");
    body["stream"] = true.into();
    let chunks = server.post_stream("/v1/chat/completions", body).await.rest_json().await;
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none() && chunk["choices"].as_array().unwrap().len() == 1));
}

#[tokio::test]
async fn calls_are_streamed_in_parts_and_end_with_tool_calls() {
    let server = Server::start().await;
    let mut body = streamed("twice");
    body["tools"] = json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    let chunks = server.post_stream("/v1/chat/completions", body.clone()).await.rest_json().await;
    let parts: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array()).flatten().collect();
    for (index, city) in [(0, "Oslo"), (1, "Rome")] {
        let parts: Vec<_> = parts.iter().filter(|part| part["index"] == index).collect();
        assert_eq!((&parts[0]["type"], &parts[0]["function"]["name"]), (&json!("function"), &json!("weather")));
        assert!(parts[0]["id"].as_str().unwrap().starts_with("call"));
        assert!(parts[1..].iter().all(|part| part.get("id").is_none()));
        let arguments: String = parts.iter().map(|part| part["function"]["arguments"].as_str().unwrap()).collect();
        assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({"city": city}));
    }
    let reasons = chunks.iter().filter_map(|chunk| chunk["choices"][0]["finish_reason"].as_str());
    assert_eq!(reasons.collect::<Vec<_>>(), ["tool_calls"]);

    body["stream"] = false.into();
    let whole = server.post("/v1/chat/completions", body).await.body;
    assert_eq!(whole["choices"][0]["message"]["content"], Value::Null);
    assert_eq!(whole["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn a_tools_result_in_the_transcript_is_answered() {
    let server = Server::start().await;
    let call = json!({"id": "call1", "type": "function", "function": {"name": "weather", "arguments": "{}"}});
    let body = json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call1", "content": "rain"},
    ]});
    let answer = server.post("/v1/chat/completions", body).await;
    assert_eq!(answer.body["choices"][0]["message"]["content"], "Take an umbrella.", "{}", answer.body);
}

#[tokio::test]
async fn reasoning_is_given_apart_from_the_text() {
    let server = Server::start().await;
    let whole = server.post("/v1/chat/completions", ask("think")).await.body;
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm, well"), &json!("so it is")));
    let chunks = server.post_stream("/v1/chat/completions", streamed("think")).await.rest_json().await;
    let joined = |name: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect()
    };
    assert_eq!((joined("reasoning_content"), joined("content")), ("hm, well".to_owned(), "so it is".to_owned()));
}

#[tokio::test]
async fn an_answer_that_is_cut_by_length_says_so() {
    let server = Server::start().await;
    let whole = server.post("/v1/chat/completions", ask("long")).await.body;
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let mut body = ask("endless");
    body["max_completion_tokens"] = 5.into();
    let whole = server.post("/v1/chat/completions", body).await.body;
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 5);
}

#[tokio::test]
async fn a_stop_string_ends_the_answer_and_is_not_shown() {
    let server = Server::start().await;
    let mut body = ask("hi");
    body["stop"] = json!([", w"]);
    let whole = server.post("/v1/chat/completions", body).await.body;
    let choice = &whole["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!("Hello"), &json!("stop")));
}

#[tokio::test]
async fn a_failure_before_any_output_is_an_http_error() {
    let server = Server::start().await;
    server.post("/v1/chat/completions", ask("broken")).await.assert_error(500, "engine_failed");
}

#[tokio::test]
async fn a_failure_in_mid_stream_is_an_error_object_and_no_done() {
    let server = Server::start().await;
    let events = server.post_stream("/v1/chat/completions", streamed("breaks late")).await.rest().await;
    let last = events.last().unwrap().json();
    assert_eq!(last["error"]["code"], "engine_failed");
    assert!(events.iter().all(|event| event.data != "[DONE]"));
}

#[tokio::test]
async fn silence_is_broken_by_a_chunk_with_an_empty_delta() {
    let server = Server::start_with(Setup { silence: Duration::from_millis(20), ..Setup::default() }).await;
    let chunks = server.post_stream("/v1/chat/completions", streamed("slow")).await.rest_json().await;
    let is_empty = |chunk: &&Value| {
        let choice = &chunk["choices"][0];
        choice.is_object() && choice["delta"] == json!({}) && choice["finish_reason"] == Value::Null
    };
    let empty: Vec<_> = chunks.iter().filter(is_empty).collect();
    assert!(!empty.is_empty());
    for name in ["id", "model", "created"] {
        assert!(empty.iter().all(|chunk| chunk[name] == chunks[0][name]), "{name}: {empty:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_by_name() {
    let server = Server::start().await;
    let refused = |mut body: Value, name: &'static str, value: Value| {
        body[name] = value;
        body
    };
    for (name, value, param) in [
        ("n", json!(0), "n"),
        ("n", json!(129), "n"),
        ("nvext", json!({"agent_hints": {"priority": "high"}}), "nvext.agent_hints.priority"),
        ("messages", json!([]), "messages"),
        ("messages", json!([{"role": "robot", "content": "a"}]), "messages[0].role"),
        ("messages", json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0].type"),
        ("temperature", json!(3), "temperature"),
        ("temperature", json!("hot"), "temperature"),
        ("max_tokens", json!(0), "max_tokens"),
        ("stop", json!(vec!["x"; 17]), "stop"),
    ] {
        let answer = server.post("/v1/chat/completions", refused(ask("hi"), name, value)).await;
        assert_eq!(answer.assert_error(400, "invalid_input")["param"], param, "{}", answer.body);
    }
    let unknown = refused(ask("hi"), "model", json!("gpt-99"));
    server.post("/v1/chat/completions", unknown).await.assert_error(404, "model_not_found");
}

#[tokio::test]
async fn several_choices_are_given_whole_and_share_the_prompts_tokens() {
    let server = Server::start().await;
    let one = server.post("/v1/chat/completions", ask("think")).await.body;
    let mut body = ask("think");
    body["n"] = 3.into();
    let several = server.post("/v1/chat/completions", body).await.body;
    let choices = several["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!((&choice["index"], &choice["message"]), (&json!(index), &one["choices"][0]["message"]));
    }
    let count = |body: &Value, name: &str| body["usage"][name].as_u64().unwrap();
    assert_eq!(count(&several, "prompt_tokens"), count(&one, "prompt_tokens"));
    assert_eq!(count(&several, "completion_tokens"), 3 * count(&one, "completion_tokens"));
    assert_eq!(count(&several, "total_tokens"), count(&one, "total_tokens") + 2 * count(&one, "completion_tokens"));
}

#[tokio::test]
async fn several_choices_are_streamed_with_their_index_and_end_together() {
    let server = Server::start().await;
    let mut body = streamed("hi");
    body["n"] = 3.into();
    let events = server.post_stream("/v1/chat/completions", body).await.rest().await;
    let done = events.iter().filter(|event| event.data == "[DONE]").count();
    assert_eq!((done, events.last().unwrap().data.as_str()), (1, "[DONE]"));
    let chunks: Vec<Value> = events[..events.len() - 1].iter().map(SseEvent::json).collect();
    for index in 0..3 {
        let own: Vec<&Value> =
            chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index).collect();
        assert_eq!(own[0]["delta"], json!({"role": "assistant", "content": ""}));
        let text: String = own.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!((text.as_str(), &own.last().unwrap()["finish_reason"]), ("Hello, world", &json!("stop")));
    }
    let same = |name: &str| chunks.iter().all(|chunk| chunk[name] == chunks[0][name]);
    assert!(same("id") && same("created") && same("model") && same("system_fingerprint"));
    let with_usage: Vec<&Value> = chunks.iter().filter(|chunk| chunk["usage"].is_object()).collect();
    assert_eq!((with_usage.len(), &with_usage[0]["choices"]), (1, &json!([])));
}

#[tokio::test]
async fn a_client_that_leaves_takes_all_its_choices_with_it() {
    let server = Server::start().await;
    let mut body = streamed("endless");
    body["n"] = 4.into();
    let mut stream = server.post_stream("/v1/chat/completions", body).await;
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 4 {
        seen.insert(stream.next().await.unwrap().json()["choices"][0]["index"].as_u64());
    }
    assert_eq!(server.running.count(), 4);
    drop(stream);
    tokio::time::timeout(PATIENCE, server.running.idle()).await.unwrap();
}

#[tokio::test]
async fn a_choice_that_fails_ends_the_others() {
    let server = Server::start().await;
    let mut body = ask("broken");
    body["n"] = 2.into();
    server.post("/v1/chat/completions", body).await.assert_error(500, "engine_failed");
    let mut body = streamed("breaks late");
    body["n"] = 2.into();
    let events = server.post_stream("/v1/chat/completions", body).await.rest().await;
    assert_eq!(events.last().unwrap().json()["error"]["code"], "engine_failed");
    assert!(events.iter().all(|event| event.data != "[DONE]"));
}

#[tokio::test]
async fn several_choices_are_refused_where_one_must_be_kept() {
    let server = Server::start().await;
    let mut body = ask("hi");
    body["n"] = 2.into();
    let keyed = server.post_keyed("/v1/chat/completions", "key", body.clone()).await;
    assert_eq!(keyed.assert_error(400, "invalid_input")["param"], "n");
    body["store"] = true.into();
    let stored = server.post("/v1/chat/completions", body).await;
    assert_eq!(stored.assert_error(400, "invalid_input")["param"], "n");
}

#[tokio::test]
async fn models_are_listed_and_found_by_id() {
    let server = Server::start().await;
    let list = server.get("/v1/models").await.body;
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("scripted")));
    let formats = (&list["data"][0]["tool_format"], &list["data"][0]["reasoning_format"]);
    assert_eq!(formats, (&json!("hermes"), &json!("qwen3")));
    let words = ["none", "minimal", "low", "medium", "high", "xhigh", "briefly"];
    assert_eq!(list["data"][0]["reasoning_efforts"], json!(words));
    let model = server.get("/v1/models/scripted").await.body;
    assert_eq!(model, list["data"][0]);
    server.get("/v1/models/an/unknown/model").await.assert_error(404, "model_not_found");
}

#[tokio::test]
async fn a_result_without_its_call_is_a_mistake_in_the_messages() {
    let server = Server::start().await;
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "x", "content": "r"}]);
    let answer = server.post("/v1/chat/completions", json!({"messages": messages})).await;
    assert_eq!(answer.assert_error(400, "invalid_input")["param"], "messages");
}
