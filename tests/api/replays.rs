//! What real clients send, turn after turn (`tests/golden/clients/`): every request is answered, in the stream that
//! its client reads.

use serde_json::{Value, json};

use crate::support::Server;

/// How many recordings there are: none is passed over.
const RECORDINGS: usize = 13;

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
        let path = recorded["path"].as_str().unwrap();
        for request in recorded["requests"].as_array().unwrap() {
            let mut stream = server.post_stream(path, request.clone()).await;
            let events = stream.rest_json().await;
            let last = events.last().unwrap_or_else(|| panic!("{name}: no event"));
            if path.ends_with("responses") {
                assert_eq!(last["type"], "response.completed", "{name}: {last}");
                assert!(last["response"]["usage"]["input_tokens"].as_u64() > Some(0), "{name}: {last}");
            } else if path.ends_with("messages") {
                assert_eq!(last["type"], "message_stop", "{name}: {last}");
                let usage = &events[0]["message"]["usage"];
                assert!(usage["input_tokens"].as_u64() > Some(0), "{name}: {usage}");
            } else {
                assert!(last["usage"]["prompt_tokens"].as_u64() > Some(0), "{name}: {last}");
            }
        }
    }
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
