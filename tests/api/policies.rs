//! What a request says about how its response lives, or its conversation for all of them: that it is taken as said.

use midstream::conversation::{FlushPolicy, OnDisconnect, OnRestart, Policy};
use serde_json::{Value, json};

use crate::support::Server;

/// The policy of a response, as it is journaled.
async fn policy(server: &Server, id: &str) -> Policy {
    let response = id.parse().unwrap();
    let home = server.root.directory().of_response(response, "local").await.unwrap();
    home.state().await.unwrap().response(response).unwrap().config.policy
}

#[tokio::test]
async fn what_a_request_leaves_out_is_as_its_conversation_says() {
    let server = Server::start().await;
    let defaults = json!({
        "durability": "relaxed", "on_disconnect": "cancel", "grace_ms": 60_000, "on_restart": "fail",
        "max_unattended_tokens": 900,
    });
    let conversation = server.post("/v1/conversations", defaults).await.id();
    let id = server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await.id();
    let inherited = Policy {
        durability: FlushPolicy::Relaxed,
        on_disconnect: OnDisconnect::Cancel,
        grace_ms: 60_000,
        on_restart: OnRestart::Fail,
        max_unattended_tokens: Some(900),
        max_conversation_tokens: None,
    };
    assert_eq!(policy(&server, &id).await, inherited);
    let own = json!({
        "input": "hi", "conversation": conversation, "durability": "sync", "on_disconnect": "pause",
        "grace_ms": 30_000, "on_restart": "resume", "max_unattended_tokens": 800,
    });
    let id = server.post("/v1/responses", own).await.id();
    let expected = Policy {
        durability: FlushPolicy::Sync,
        on_disconnect: OnDisconnect::Pause,
        grace_ms: 30_000,
        on_restart: OnRestart::Resume,
        max_unattended_tokens: Some(800),
        max_conversation_tokens: None,
    };
    assert_eq!(policy(&server, &id).await, expected);
    let refused = server.post("/v1/responses", json!({"input": "hi", "on_restart": "panic"})).await;
    assert_eq!(refused.assert_error(400, "invalid_input")["param"], "on_restart");
}

#[tokio::test]
async fn frames_say_whether_they_were_flushed_before_they_were_sent() {
    let server = Server::start().await;
    for (durability, waits) in [("group", true), ("sync", true), ("relaxed", false)] {
        let conversation = server.conversation().await;
        let body = json!({"input": "hi", "conversation": conversation, "durability": durability});
        server.post("/v1/responses", body).await;
        let mut events = server.get_stream(&format!("/v1/conversations/{conversation}/events")).await;
        events.until("conversation.snapshot").await;
        let mut deltas = 0;
        loop {
            let frame = events.next().await.unwrap().json();
            let kind = frame["type"].as_str().unwrap();
            let grows = kind.starts_with("response.output_") || kind.starts_with("response.content_part.");
            assert_eq!(frame["durable"], json!(waits || !grows), "{durability}: {frame}");
            deltas += u32::from(kind == "response.output_text.delta");
            if kind == "response.completed" {
                break;
            }
        }
        assert!(deltas > 0);
    }
}

#[tokio::test]
async fn a_stored_response_ends_when_its_reader_has_been_gone_for_its_grace() {
    let server = Server::start().await;
    let body = json!({"input": "endless", "stream": true, "on_disconnect": "cancel", "grace_ms": 20});
    let mut stream = server.post_stream("/v1/responses", body).await;
    let id = stream.until("response.created").await["response"]["id"].as_str().unwrap().to_owned();
    stream.until("response.output_text.delta").await;
    drop(stream);
    let ended = server.ended(&id).await;
    let (status, reason) = (&ended["status"], &ended["incomplete_details"]["reason"]);
    assert_eq!((status, reason), (&json!("incomplete"), &json!("disconnected")));
    assert_ne!(ended["output"][0]["content"][0]["text"], Value::Null, "what it had said stays");
}

#[tokio::test]
async fn no_more_calls_are_claimed_at_once_than_the_request_allows() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let tools = json!([{"type": "function", "name": "weather"}]);
    let body = json!({"input": "twice", "conversation": conversation, "tools": tools, "max_parallel_tool_calls": 1});
    let response = server.post("/v1/responses", body).await.body;
    let calls: Vec<&str> =
        response["output"].as_array().unwrap().iter().filter_map(|item| item["call_id"].as_str()).collect();
    let home = format!("/v1/conversations/{conversation}");
    let claim = async |call: &str| server.post(&format!("{home}/tool_calls/{call}/claim"), json!({})).await;
    assert_eq!(claim(calls[0]).await.status, 200);
    claim(calls[1]).await.assert_error(409, "tool_call_claimed");
    let result = json!({"call_id": calls[0], "output": "rain"});
    assert_eq!(server.post(&format!("{home}/tool_results"), result).await.status, 202);
    assert_eq!(claim(calls[1]).await.status, 200);
    for wrong in [json!(0), json!("two")] {
        let refused = server.post("/v1/responses", json!({"input": "hi", "max_parallel_tool_calls": wrong})).await;
        assert_eq!(refused.assert_error(400, "invalid_input")["param"], "max_parallel_tool_calls");
    }
}
