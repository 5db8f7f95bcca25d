//! Stopped politely: running answers get their time, and what is not done goes on later.

use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Site, shown_text};

#[tokio::test]
async fn a_short_answer_is_finished_before_the_process_ends() {
    let words: Vec<String> = (0..40).map(|index| format!("word{index} ")).collect();
    let site = Site::scripted(&json!([{"deltas": words, "delay_ms": 10}]));
    let server = site.start().await;
    let (response, conversation) = server.begin("one", json!({"input": "tell"})).await;
    let mut frames = server.follow(&format!("/v1/conversations/{conversation}/events?after=0")).await;
    let reading = tokio::spawn(async move {
        let mut seen = Vec::new();
        while let Some(frame) = frames.next().await {
            seen.push(frame);
        }
        seen
    });
    assert_eq!(server.terminate().await, Some(0));
    let seen = reading.await.unwrap();
    assert_eq!(shown_text(&seen, &response), words.concat(), "the reader saw the end before the socket closed");
}

/// Stops soon, whatever still runs.
fn impatient(script: &serde_json::Value) -> Site {
    let site = Site::scripted(script);
    let settings = site.path().join("settings.toml");
    std::fs::write(&settings, "shutdown_drain_ms = 100\n").unwrap();
    let settings = settings.display().to_string();
    site.with(&["--config", &settings])
}

#[tokio::test]
async fn stops_in_good_order_are_no_attempts_of_an_answer_that_has_no_token_yet() {
    let site = impatient(&json!([{"deltas": ["late"], "delay_ms": 600_000}]));
    let mut server = site.start().await;
    let (response, _) = server.begin("one", json!({"input": "tell"})).await;
    // More than a crashing answer is given.
    for _ in 0..5 {
        assert_eq!(server.terminate().await, Some(0));
        server = site.start().await;
    }
    let status = server.get(&format!("/v1/responses/{response}")).await["status"].clone();
    assert!(status == "queued" || status == "in_progress", "{status}");
}

#[tokio::test]
async fn an_endless_answer_goes_on_after_the_restart() {
    let words: Vec<String> = (0..3000).map(|index| format!("w{index} ")).collect();
    let site = impatient(&json!([{"deltas": words, "delay_ms": 10}]));
    let server = site.start().await;
    let (response, _) = server.begin("one", json!({"input": "tell"})).await;
    assert_eq!(server.terminate().await, Some(0));
    let server = site.start().await;
    assert_eq!(server.get(&format!("/v1/responses/{response}")).await["status"], "in_progress");
    let (status, answer) = server.post(&format!("/v1/responses/{response}/cancel"), "c", &json!({})).await;
    assert_eq!((status, &answer["status"]), (200, &json!("cancelled")));
}

#[tokio::test]
async fn a_dump_loaded_into_another_folder_serves_the_same_conversations() {
    let script = json!([{"deltas": ["one ", "two ", "three"]}]);
    let (site, other) = (Site::scripted(&script), Site::scripted(&script));
    let server = site.start().await;
    let (response, conversation) = server.begin("one", json!({"input": "tell"})).await;
    let frames = server.until_ended(&conversation, &response, 0).await;
    assert_eq!(server.terminate().await, Some(0));
    let dump = site.run(&["conversations", "dump"], b"");
    let again = other.run(&["conversations", "load"], &dump);
    assert_eq!(again, b"");
    let server = other.start().await;
    let loaded = server.until_ended(&conversation, &response, 0).await;
    assert_eq!(crate::support::journaled(&loaded), crate::support::journaled(&frames));
    // The key came along: the same request is the same response.
    assert_eq!(server.begin("one", json!({"input": "tell"})).await, (response, conversation));
}

#[tokio::test]
async fn a_request_that_is_not_stored_is_told_to_come_back_when_the_server_stops() {
    let site = impatient(&json!([{"match": "hi", "deltas": ["Hi"]}, {"deltas": ["late"], "delay_ms": 600_000}]));
    let server = std::sync::Arc::new(site.start().await);
    let asked = [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "wait"}]}), 503),
        ("/v1/responses", json!({"input": "wait", "store": false}), 503),
        (
            "/v1/messages",
            json!({"model": "scripted", "max_tokens": 9, "messages": [{"role": "user", "content": "w"}]}),
            529,
        ),
    ];
    let client = reqwest::Client::new();
    let waiting = asked.map(|(path, body, status)| {
        let request = client.post(format!("{}{path}", server.base)).json(&body);
        (path, status, tokio::spawn(request.send()))
    });
    // Whoever is answered now came behind them, or they are refused for the same reason.
    server.get("/v1/models").await;
    let server = std::sync::Arc::into_inner(server).unwrap();
    assert_eq!(server.terminate().await, Some(0));
    for (path, status, answer) in waiting {
        let answer = answer.await.unwrap().unwrap();
        assert_eq!(answer.status().as_u16(), status, "{path}");
        assert!(answer.headers().contains_key("retry-after"), "{path}");
    }
}

#[tokio::test]
async fn a_socket_on_which_a_response_runs_is_closed_for_a_restart() {
    let words: Vec<String> = (0..3000).map(|index| format!("w{index} ")).collect();
    let site = impatient(&json!([{"deltas": words, "delay_ms": 10}]));
    for store in [true, false] {
        let server = site.start().await;
        let url = format!("{}/v1/responses", server.base.replacen("http", "ws", 1));
        let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
        let create = json!({"type": "response.create", "input": "tell", "store": store}).to_string();
        socket.send(Message::text(create)).await.unwrap();
        let running = |message: &Message| message.to_text().is_ok_and(|text| text.contains("output_text.delta"));
        while !running(&socket.next().await.unwrap().unwrap()) {}
        let stopping = tokio::spawn(server.terminate());
        let code = loop {
            match socket.next().await {
                Some(Ok(Message::Close(Some(frame)))) => break u16::from(frame.code),
                Some(Ok(_)) => {}
                end => panic!("store {store}: no close frame but {end:?}"),
            }
        };
        assert_eq!((code, stopping.await.unwrap()), (1012, Some(0)), "store {store}");
    }
}
