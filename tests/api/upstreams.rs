//! midstream as the upstream of midstream: the same over every API, and the one behind sees what becomes of its
//! answers.

use midstream::config::UpstreamKind;
use midstream::engine::settings::Price;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::support::{PATIENCE, Server, Setup, behind, text_of};

/// The server that has the script, and the one in front of it.
async fn pair() -> (Server, Server) {
    pair_of(UpstreamKind::Midstream).await
}

/// The same, where the one in front takes the other for an upstream of this kind.
async fn pair_of(kind: UpstreamKind) -> (Server, Server) {
    let script = Server::start().await;
    let setup = Setup { upstream: vec![behind(&script.address, kind)], ..Setup::default() };
    let front = Server::start_with(setup).await;
    (script, front)
}

/// Waits until nothing is generated any more.
async fn is_idle(server: &Server) {
    timeout(PATIENCE, server.running.idle()).await.expect("it goes on generating");
}

pub(crate) fn weather() -> Value {
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

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_is_a_bad_gateway_over_every_api() {
    let nowhere = behind("127.0.0.1:1", UpstreamKind::Midstream);
    let front = Server::start_with(Setup { upstream: vec![nowhere], ..Setup::default() }).await;
    let refused = front.post("/v1/responses", json!({"input": "hi"})).await;
    let message = refused.assert_error(502, "upstream_unreachable")["message"].as_str().unwrap();
    assert!(message.contains("the upstream other") && message.contains("cannot be reached"), "{message}");
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"model": "scripted", "messages": messages});
    front.post("/v1/chat/completions", chat).await.assert_error(502, "upstream_unreachable");
    let body = json!({"model": "scripted", "max_tokens": 4, "messages": messages});
    let refused = front.post("/v1/messages", body).await;
    assert_eq!((refused.status, &refused.body["error"]["type"]), (502, &json!("api_error")), "{}", refused.body);
}

#[tokio::test]
async fn over_anthropics_messages_it_thinks_calls_and_goes_on_behind_results() {
    let (_behind, front) = pair_of(UpstreamKind::Anthropic).await;
    let thinks = json!({"input": "think", "reasoning": {"effort": "low"}});
    let thought = front.post("/v1/responses", thinks).await.body;
    assert_eq!(thought["status"], "completed", "{thought}");
    let said: Vec<_> = thought["output"].as_array().unwrap().iter().map(|item| item["type"].clone()).collect();
    assert_eq!(said.last(), Some(&json!("message")), "{thought}");
    assert!(thought["usage"]["output_tokens"].as_u64().is_some_and(|tokens| tokens > 5), "{thought}");

    let tools = json!([{"type": "function", "name": "weather", "parameters": weather()}]);
    let body = json!({"input": "weather", "tools": tools, "stream": true});
    let events = front.post_stream("/v1/responses", body).await.rest_json().await;
    let last = &events.last().unwrap()["response"];
    assert_eq!((&last["status"], text_of(&events).as_str()), (&json!("completed"), "Let me see. "));
    let call = &last["output"][1];
    assert_eq!((&call["type"], &call["status"]), (&json!("function_call"), &json!("completed")), "{last}");
    assert_eq!(call["arguments"].as_str().unwrap().parse::<Value>().unwrap(), json!({"city": "Oslo"}));
    let result = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}]);
    let body = json!({"input": result, "previous_response_id": last["id"], "tools": tools});
    let answer = front.post("/v1/responses", body).await.body;
    assert_eq!(answer["output"][0]["content"][0]["text"], "Take an umbrella.", "{answer}");

    let question = json!({"role": "user", "content": "long"});
    let body = json!({"model": "scripted", "max_tokens": 4, "messages": [question]});
    assert_eq!(front.post("/v1/messages", body).await.body["stop_reason"], "max_tokens");
    let failed = front.post("/v1/responses", json!({"input": "broken"})).await;
    failed.assert_error(500, "engine_failed");
}

/// Answers each request with the next of these bodies, and gives what was asked.
pub(crate) async fn plays(bodies: Vec<Value>) -> (String, tokio::task::JoinHandle<Vec<Value>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let playing = tokio::spawn(async move {
        let mut asked = Vec::new();
        for body in bodies {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            let end = b"\r\n\r\n";
            while !bytes.ends_with(end) {
                bytes.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(bytes).unwrap();
            let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
            let mut request = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut request).await.unwrap();
            asked.push(serde_json::from_slice(&request).unwrap());
            let body = body.to_string();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:";
            stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
        }
        asked
    });
    (address, playing)
}

fn message(content: &Value, reason: &str) -> Value {
    let usage = json!({"input_tokens": 9, "output_tokens": 4});
    json!({"type": "message", "role": "assistant", "content": content, "stop_reason": reason, "usage": usage})
}

/// A front whose upstream plays a thought with a call, and then a text; gives what the upstream is asked last.
async fn replays_thoughts(turns: impl AsyncFn(&Server)) -> Value {
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "c2lnbg=="});
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}});
    let bodies = vec![
        message(&json!([thinking, call]), "tool_use"),
        message(&json!([{"type": "text", "text": "Rain."}]), "end_turn"),
    ];
    let (address, playing) = plays(bodies).await;
    let setup = Setup { upstream: vec![behind(&address, UpstreamKind::Anthropic)], ..Setup::default() };
    let front = Server::start_with(setup).await;
    turns(&front).await;
    playing.await.unwrap().pop().unwrap()
}

#[tokio::test]
async fn what_an_upstream_signed_goes_back_to_it_from_the_journal_and_from_the_client() {
    let expected = json!([
        {"type": "thinking", "thinking": "hm", "signature": "c2lnbg=="},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
    ]);
    let tools = json!([{"type": "function", "name": "weather", "parameters": weather()}]);
    let effort = json!({"effort": "high"});
    let stored = async |front: &Server| {
        let body = json!({"input": "weather", "tools": tools, "reasoning": effort});
        let answer = front.post("/v1/responses", body).await.body;
        let call = &answer["output"][1];
        let result = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}]);
        let body = json!({"input": result, "previous_response_id": answer["id"], "tools": tools, "reasoning": effort});
        let answer = front.post("/v1/responses", body).await.body;
        assert_eq!(answer["output"][0]["content"][0]["text"], "Rain.", "{answer}");
    };
    let asked = replays_thoughts(stored).await;
    assert_eq!(asked["messages"][1]["content"], expected, "{asked}");
    assert_eq!((&asked["thinking"]["type"], &asked["output_config"]["effort"]), (&json!("adaptive"), &json!("high")));
    let brought = async |front: &Server| {
        let tools = json!([{"name": "weather", "input_schema": weather()}]);
        let thinking = json!({"type": "enabled", "budget_tokens": 2048});
        let ask = |messages: Value| {
            let fields = json!({"model": "scripted", "max_tokens": 9000, "messages": messages});
            let more = json!({"tools": tools, "thinking": thinking});
            let fields = fields.as_object().into_iter().chain(more.as_object()).flatten();
            fields.map(|(name, value)| (name.clone(), value.clone())).collect::<Value>()
        };
        let question = json!({"role": "user", "content": "weather"});
        let answer = front.post("/v1/messages", ask(json!([question]))).await.body;
        let (thought, call) = (&answer["content"][0], &answer["content"][1]);
        assert_eq!(thought["thinking"], "hm", "{answer}");
        assert_ne!(thought["signature"], "c2lnbg==", "it is sealed here");
        let result = json!([{"type": "tool_result", "tool_use_id": call["id"], "content": "rain"}]);
        let turn = json!({"role": "assistant", "content": answer["content"]});
        let messages = json!([question, turn, {"role": "user", "content": result}]);
        let answer = front.post("/v1/messages", ask(messages)).await.body;
        assert_eq!(answer["content"][0]["text"], "Rain.", "{answer}");
    };
    let asked = replays_thoughts(brought).await;
    assert_eq!(asked["thinking"], json!({"type": "enabled", "budget_tokens": 2048}));
    assert_eq!(asked["messages"][1]["content"][0], expected[0], "{asked}");
}

#[tokio::test]
async fn an_answer_that_a_filter_ended_says_so_over_every_api() {
    let choice = json!({"message": {"role": "assistant", "content": "So"}, "finish_reason": "content_filter"});
    let body = json!({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}});
    let (address, playing) = plays(vec![body.clone(), body.clone(), body]).await;
    let setup = Setup { upstream: vec![behind(&address, UpstreamKind::Compatible)], ..Setup::default() };
    let front = Server::start_with(setup).await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = front.post("/v1/chat/completions", json!({"model": "scripted", "messages": messages})).await.body;
    assert_eq!(chat["choices"][0]["finish_reason"], "content_filter", "{chat}");
    let message = json!({"model": "scripted", "max_tokens": 9, "messages": messages});
    assert_eq!(front.post("/v1/messages", message).await.body["stop_reason"], "refusal");
    let response = front.post("/v1/responses", json!({"input": "hi"})).await.body;
    assert_eq!(response["incomplete_details"]["reason"], "content_filter", "{response}");
    playing.await.unwrap();
}

#[tokio::test]
async fn what_an_answer_cost_is_in_its_usage_over_every_api() {
    let price = Price { input: 1000.0, cached_input: None, output: 1_000_000.0 };
    let front = Server::start_with(Setup { price: Some(price), ..Setup::default() }).await;
    let costs = |usage: &Value, input: &str, output: &str| {
        let tokens = |name: &str| usage[name].as_f64().unwrap();
        let expected = tokens(input) / 1000.0 + tokens(output);
        assert!((usage["cost"].as_f64().unwrap() - expected).abs() < 1e-6, "{usage}");
    };
    let response = front.post("/v1/responses", json!({"input": "think"})).await.body;
    costs(&response["usage"], "input_tokens", "output_tokens");
    let messages = json!([{"role": "user", "content": "think"}]);
    let body = json!({"model": "scripted", "messages": messages, "stream": true,
        "stream_options": {"include_usage": true}});
    let events = front.post_stream("/v1/chat/completions", body).await.rest_json().await;
    let last = events.iter().rfind(|event| !event["usage"].is_null()).unwrap();
    costs(&last["usage"], "prompt_tokens", "completion_tokens");
    let body = json!({"model": "scripted", "messages": messages, "n": 2});
    let both = front.post("/v1/chat/completions", body).await.body;
    assert!(both["usage"]["cost"].as_f64().unwrap() > 2.0, "{both}");
    let body = json!({"model": "scripted", "max_tokens": 1000, "messages": messages});
    let message = front.post("/v1/messages", body).await.body;
    costs(&message["usage"], "input_tokens", "output_tokens");
    let free = Server::start().await.post("/v1/responses", json!({"input": "think"})).await.body;
    assert_eq!(free["usage"].get("cost"), None);
}
