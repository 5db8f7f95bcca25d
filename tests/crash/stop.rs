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

#[tokio::test]
async fn an_endless_answer_goes_on_after_the_restart() {
    let words: Vec<String> = (0..3000).map(|index| format!("w{index} ")).collect();
    let site = Site::scripted(&json!([{"deltas": words, "delay_ms": 10}]));
    std::fs::write(site.path().join("settings.toml"), "shutdown_drain_ms = 200\n").unwrap();
    let settings = site.path().join("settings.toml").display().to_string();
    let site = site.with(&["--config", &settings]);
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
