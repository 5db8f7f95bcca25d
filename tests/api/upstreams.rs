//! midstream as the upstream of midstream: the same over every API, and the one behind sees what becomes of its
//! answers.

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{PATIENCE, Server, Setup, text_of};

/// The server that has the script, and the one in front of it.
async fn pair() -> (Server, Server) {
    let behind = Server::start().await;
    let setup = Setup { upstream: Some(behind.address.clone()), ..Setup::default() };
    let front = Server::start_with(setup).await;
    (behind, front)
}

/// Waits until nothing is generated any more.
async fn is_idle(server: &Server) {
    timeout(PATIENCE, server.running.idle()).await.expect("it goes on generating");
}

fn weather() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}})
}

#[tokio::test]
async fn responses_reason_call_and_go_on_behind_results_with_the_upstreams_count() {
    let (behind, front) = pair().await;
    let thought = front.post("/v1/responses", json!({"input": "think"})).await.body;
    let kinds: Vec<_> = thought["output"].as_array().unwrap().iter().map(|item| item["type"].clone()).collect();
    assert_eq!(kinds, ["reasoning", "message"], "{thought}");
    assert_eq!(thought["output"][1]["content"][0]["text"], "so it is");
    let own = behind.post("/v1/responses", json!({"input": "think"})).await.body;
    assert_eq!(thought["usage"], own["usage"]);

    let tools = json!([{"type": "function", "name": "weather", "parameters": weather()}]);
    let body = json!({"input": "weather", "tools": tools, "stream": true});
    let events = front.post_stream("/v1/responses", body).await.rest_json().await;
    let last = &events.last().unwrap()["response"];
    assert_eq!((&last["status"], text_of(&events).as_str()), (&json!("completed"), "Let me see. "));
    let call = &last["output"][1];
    assert_eq!(
        (&call["type"], &call["name"], &call["status"]),
        (&json!("function_call"), &json!("weather"), &json!("completed"))
    );
    assert_eq!(call["arguments"].as_str().unwrap().parse::<Value>().unwrap(), json!({"city": "Oslo"}));
    let result = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}]);
    let body = json!({"input": result, "previous_response_id": last["id"], "tools": tools});
    let answer = front.post("/v1/responses", body).await.body;
    assert_eq!(answer["output"][0]["content"][0]["text"], "Take an umbrella.", "{answer}");
}

#[tokio::test]
async fn chats_call_tools_and_go_on_behind_their_results() {
    let (_behind, front) = pair().await;
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": weather()}}]);
    let mut messages = vec![json!({"role": "user", "content": "weather"})];
    let body = json!({"model": "scripted", "messages": messages, "tools": tools});
    let answer = front.post("/v1/chat/completions", body).await.body;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather");
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "rain"}));
    let body = json!({"model": "scripted", "messages": messages, "tools": tools, "stream": true});
    let events = front.post_stream("/v1/chat/completions", body).await.rest_json().await;
    let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "Take an umbrella.");
    // What must be called is called, and cut answers say so.
    let body = json!({"model": "scripted", "messages": [{"role": "user", "content": "long"}]});
    let answer = front.post("/v1/chat/completions", body).await.body;
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
}

#[tokio::test]
async fn messages_think_call_and_stop() {
    let (_behind, front) = pair().await;
    let tools = json!([{"name": "weather", "input_schema": weather()}]);
    let ask = |messages: Value| json!({"model": "scripted", "max_tokens": 1000, "messages": messages, "tools": tools});
    let question = json!({"role": "user", "content": "weather"});
    let answer = front.post("/v1/messages", ask(json!([question]))).await.body;
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let call = &answer["content"][1];
    assert_eq!((&call["type"], &call["input"]), (&json!("tool_use"), &json!({"city": "Oslo"})));
    let result = json!([{"type": "tool_result", "tool_use_id": call["id"], "content": "rain"}]);
    let turn = json!({"role": "assistant", "content": answer["content"]});
    let messages = json!([question, turn, {"role": "user", "content": result}]);
    let answer = front.post("/v1/messages", ask(messages)).await.body;
    assert_eq!(
        (&answer["content"][0]["text"], &answer["stop_reason"]),
        (&json!("Take an umbrella."), &json!("end_turn"))
    );
    // Nobody tells how many tokens a prompt will have: a quarter of its bytes, about.
    let count = json!({"model": "scripted", "messages": [{"role": "user", "content": "word ".repeat(400)}]});
    let counted = front.post("/v1/messages/count_tokens", count).await.body["input_tokens"].as_u64().unwrap();
    assert!((500..550).contains(&counted), "{counted}");
    assert!(answer["usage"]["output_tokens"].as_u64().is_some_and(|tokens| tokens > 10), "{answer}");
}

#[tokio::test]
async fn a_steer_cuts_the_upstreams_stream_and_is_answered() {
    let (behind, front) = pair().await;
    let id = front.running("endless").await;
    let path = format!("/v1/responses/{id}/interventions");
    let receipt = front.post_keyed(&path, "k", json!({"input": "In French", "when": "now"})).await.body;
    let successor = receipt["successor_id"].as_str().unwrap();
    let events = front.get_stream(&format!("/v1/responses/{successor}?stream=true")).await.rest_json().await;
    assert_eq!(text_of(&events), "Bonjour");
    is_idle(&behind).await;
    let cut = front.get(&format!("/v1/responses/{id}")).await.body;
    assert_eq!(cut["incomplete_details"]["reason"], "steered");
    assert!(cut["output"][0]["content"][0]["text"].as_str().is_some_and(|text| text.starts_with("0 ")), "{cut}");
}

#[tokio::test]
async fn a_cancel_and_a_client_that_goes_close_the_upstreams_stream() {
    let (behind, front) = pair().await;
    let id = front.running("endless").await;
    let cancelled = front.post(&format!("/v1/responses/{id}/cancel"), json!({})).await.body;
    assert_eq!(cancelled["status"], "cancelled");
    is_idle(&behind).await;
    let body = json!({"model": "scripted", "stream": true, "messages": [{"role": "user", "content": "endless"}]});
    let mut stream = front.post_stream("/v1/chat/completions", body).await;
    while stream.next().await.unwrap().json()["choices"][0]["delta"]["content"].as_str().is_none_or(str::is_empty) {}
    drop(stream);
    is_idle(&front).await;
    is_idle(&behind).await;
}

#[tokio::test]
async fn what_the_upstream_refuses_or_fails_at_is_told_with_our_codes() {
    let (_behind, front) = pair().await;
    let failed = front.post("/v1/responses", json!({"input": "broken"})).await;
    let message = failed.assert_error(500, "engine_failed")["message"].as_str().unwrap();
    assert!(message.contains("the upstream other failed") && message.contains("the scripted reply ends"), "{message}");
    let body = json!({"model": "scripted", "logprobs": true, "messages": [{"role": "user", "content": "hi"}]});
    let refused = front.post("/v1/chat/completions", body).await;
    assert!(refused.assert_error(400, "invalid_input")["message"].as_str().unwrap().contains("logprobs"));
}
