//! What real clients send, turn after turn (`tests/golden/clients/`): every request is answered, in the form that its
//! client reads.

use serde_json::{Value, json};

use crate::support::Server;

/// How many recordings there are: none is passed over.
const RECORDINGS: usize = 25;

/// A client's requests.
fn recorded(name: &str) -> Value {
    let path = format!("{}/tests/golden/clients/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn names(over_sockets: bool) -> Vec<String> {
    let folder = std::fs::read_dir(format!("{}/tests/golden/clients", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let names: Vec<String> =
        folder.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), RECORDINGS, "{names:?}");
    names.into_iter().filter(|name| recorded(name)["socket"] == over_sockets).collect()
}

#[tokio::test]
async fn every_request_over_http_is_answered() {
    let server = Server::start().await;
    for name in names(false) {
        let recorded = recorded(&name);
        // An answer is held to a form by a model that runs: `src/api/replay_tests.rs`.
        if recorded["form"] == true {
            continue;
        }
        let path = recorded["path"].as_str().unwrap();
        for request in recorded["requests"].as_array().unwrap() {
            if request["stream"] == true {
                streamed(&server, &name, path, request).await;
            } else {
                whole(&server, &name, path, request).await;
            }
        }
    }
}

async fn streamed(server: &Server, name: &str, path: &str, request: &Value) {
    let events = server.post_stream(path, request.clone()).await.rest_json().await;
    let last = events.last().unwrap_or_else(|| panic!("{name}: no event"));
    if path.ends_with("responses") {
        assert_eq!(last["type"], "response.completed", "{name}: {last}");
        assert!(last["response"]["usage"]["input_tokens"].as_u64() > Some(0), "{name}: {last}");
    } else if path.ends_with("messages") {
        assert_eq!(last["type"], "message_stop", "{name}: {last}");
        let usage = &events[0]["message"]["usage"];
        assert!(usage["input_tokens"].as_u64() > Some(0), "{name}: {usage}");
    } else if request["stream_options"]["include_usage"] == true {
        assert!(last["usage"]["prompt_tokens"].as_u64() > Some(0), "{name}: {last}");
    } else {
        assert_eq!(last["choices"][0]["finish_reason"], "stop", "{name}: {last}");
    }
}

async fn whole(server: &Server, name: &str, path: &str, request: &Value) {
    let answer = server.post(path, request.clone()).await;
    assert_eq!(answer.status, 200, "{name}: {}", answer.body);
    let usage = &answer.body["usage"];
    let counts = [&answer.body["input_tokens"], &usage["input_tokens"], &usage["prompt_tokens"]];
    assert!(counts.iter().any(|count| count.as_u64() > Some(0)), "{name}: {}", answer.body);
}

#[tokio::test]
async fn every_request_over_a_socket_is_answered() {
    let server = Server::start().await;
    for name in names(true) {
        let mut socket = server.responses_socket().await;
        let mut last = json!({});
        for request in recorded(&name)["requests"].as_array().unwrap() {
            let mut request = request.clone();
            if request.get("previous_response_id").is_some() {
                request["previous_response_id"] = last["response"]["id"].clone();
            }
            // The scripted model called nothing, so the result is for a call that the client brings along.
            if request["input"][0]["call_id"] == "<call>" {
                let call =
                    json!({"type": "function_call", "call_id": "<call>", "name": "exec_command", "arguments": "{}"});
                request["input"].as_array_mut().unwrap().insert(0, call);
            }
            socket.send(request).await;
            let frames = socket.until(|frame| frame["type"] == "response.completed" || frame["type"] == "error").await;
            last = frames.last().unwrap().clone();
            assert_eq!(last["type"], "response.completed", "{name}: {last}");
        }
    }
}
