//! Requests whose bodies are compressed, as Codex sends them.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, text_of};

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn compressed(coding: &str, text: &str) -> Vec<u8> {
    match coding {
        "gzip" => gzip(text),
        "zstd" => zstd::stream::encode_all(text.as_bytes(), 3).unwrap(),
        _ => text.as_bytes().to_vec(),
    }
}

async fn send(server: &Server, path: &str, coding: &str, bytes: Vec<u8>) -> Answer {
    let request = server.request(Method::POST, path).header("content-encoding", coding).body(bytes);
    Answer::read(request.header("idempotency-key", format!("{path} {coding}")).send().await.unwrap()).await
}

async fn post(server: &Server, path: &str, coding: &str, body: &Value) -> Answer {
    send(server, path, coding, compressed(coding, &body.to_string())).await
}

/// Asks on every route that takes a body, and gives what was answered without what is new each time.
async fn answers(server: &Server, coding: &str) -> Vec<(String, u16, Value)> {
    let mut answers = Vec::new();
    let tools = json!([{"type": "function", "name": "weather"}]);
    let conversation = post(server, "/v1/conversations", coding, &json!({"metadata": {"a": "b"}})).await;
    let home = format!("/v1/conversations/{}", conversation.id());
    let message = json!({"type": "message", "role": "user", "content": "so"});
    let asked = json!({"input": "weather", "tools": tools, "conversation": conversation.id()});
    let called = post(server, "/v1/responses", coding, &asked).await;
    let call = called.body["output"][1]["call_id"].as_str().unwrap().to_owned();
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = || json!({"messages": messages});
    let running = server.running("endless").await;
    for (path, body) in [
        (home.clone(), json!({"metadata": {"a": "c"}})),
        (format!("{home}/items"), json!({"items": [message]})),
        (format!("{home}/tool_calls/{call}/claim"), json!({"lease_ms": 60_000})),
        (format!("{home}/tool_results"), json!({"call_id": call, "output": "rain"})),
        ("/v1/chat/completions".to_owned(), chat()),
        ("/v1/tokenize".to_owned(), chat()),
        ("/v1/detokenize".to_owned(), json!({"tokens": [72, 105]})),
        ("/v1/chat/render".to_owned(), chat()),
        (format!("/v1/responses/{running}/interventions"), json!({"input": "change"})),
        (format!("/v1/responses/{running}/cancel"), json!({"cascade": true})),
    ] {
        let answer = post(server, &path, coding, &body).await;
        let kind = ["object", "count", "prompt", "when"].map(|field| answer.body[field].clone());
        answers.push((path.replace(&home, "").replace(&running, "").replace(&call, ""), answer.status, json!(kind)));
    }
    answers
}

#[tokio::test]
async fn every_route_that_takes_a_body_takes_a_compressed_one() {
    let server = Server::start().await;
    let plain = answers(&server, "identity").await;
    assert!(plain.iter().all(|(_, status, _)| *status < 300), "{plain:?}");
    for coding in ["gzip", "zstd"] {
        assert_eq!(answers(&server, coding).await, plain, "{coding}");
    }
}

#[tokio::test]
async fn a_stream_is_asked_for_as_codex_does() {
    let server = Server::start().await;
    let input = json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "rain"}]}]);
    let body =
        json!({"model": "scripted", "instructions": "Be brief.", "input": input, "stream": true, "store": false});
    let request = server.request(Method::POST, "/v1/responses").header("content-encoding", "zstd");
    let request = request.header("content-type", "application/json").body(compressed("zstd", &body.to_string()));
    assert_eq!(text_of(&server.stream(request).await.rest_json().await), "Take an umbrella.");
}

#[tokio::test]
async fn a_key_is_of_what_was_asked_and_not_of_how_it_was_compressed() {
    let server = Server::start().await;
    let body = json!({"input": "rain", "background": true});
    let first = server.post_keyed("/v1/responses", "one", body.clone()).await;
    for (coding, text) in [("zstd", body.to_string()), ("gzip", format!(" {body}"))] {
        let request = server.request(Method::POST, "/v1/responses").header("content-encoding", coding);
        let request = request.header("idempotency-key", "one").body(compressed(coding, &text));
        let again = Answer::read(request.send().await.unwrap()).await;
        assert_eq!((again.id(), again.header("idempotent-replayed")), (first.id(), Some("true")));
    }
}

#[tokio::test]
async fn what_expands_beyond_the_bound_of_its_route_is_refused_and_changes_nothing() {
    let server = Server::start_with(Setup { body_bytes_max: 400_000, ..Setup::default() }).await;
    let running = server.running("endless").await;
    let steer = format!("/v1/responses/{running}/interventions");
    let path = format!("/v1/responses/{running}");
    for coding in ["identity", "gzip", "zstd"] {
        let input = |size: usize| json!({"input": "x".repeat(size)});
        let created =
            post(&server, "/v1/conversations", coding, &json!({"metadata": {}, "x": "x".repeat(390_000)})).await;
        assert_eq!(created.status, 200, "{coding}: {}", created.body);
        post(&server, "/v1/responses", coding, &input(400_000)).await.assert_error(413, "request_too_large");
        // A request that steers has less room.
        post(&server, &steer, coding, &input(300_000)).await.assert_error(413, "request_too_large");
    }
    for bytes in [gzip(&"x".repeat(4_000_000)), b"no gzip".to_vec(), gzip("{}")[..10].to_vec()] {
        let refused = send(&server, &steer, "gzip", bytes).await;
        assert!(matches!(refused.status, 400 | 413), "{}", refused.body);
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(server.get(&path).await.body["status"], "in_progress");
    server.post(&format!("{path}/cancel"), json!({})).await;
}

#[tokio::test]
async fn a_coding_that_is_not_known_is_refused_with_those_that_are() {
    let server = Server::start().await;
    for coding in ["br", "deflate", "gzip, zstd"] {
        let refused = send(&server, "/v1/responses", coding, b"x".to_vec()).await;
        refused.assert_error(415, "unsupported_encoding");
        assert_eq!(refused.header("accept-encoding"), Some("zstd, gzip"));
    }
}

#[tokio::test]
async fn a_damaged_stream_is_refused() {
    let server = Server::start().await;
    for coding in ["gzip", "zstd"] {
        let whole = compressed(coding, &json!({"input": "hi"}).to_string());
        for bytes in [whole[..whole.len() - 1].to_vec(), [&whole[..], b"x"].concat(), b"{\"input\": \"hi\"}".to_vec()] {
            let refused = send(&server, "/v1/responses", coding, bytes).await;
            let error = refused.assert_error(400, "invalid_input");
            assert!(error["message"].as_str().unwrap().contains(coding), "{error}");
        }
    }
}
