//! Stopped politely: running answers get their time, and what is not done goes on later.

use serde_json::json;

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
