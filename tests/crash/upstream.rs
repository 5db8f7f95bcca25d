//! Killed in the middle of an upstream's answer.

use serde_json::json;

use crate::support::{Site, journaled, shown_text};

#[tokio::test]
async fn an_upstreams_answer_goes_on_behind_what_was_shown_and_says_that_it_is_another() {
    let words: Vec<String> = (0..200).map(|index| format!("word{index} ")).collect();
    let script = Site::scripted(&json!([{"deltas": words, "delay_ms": 5}]));
    let behind = script.start().await;
    let site = Site::upstream_of(&behind);
    let server = site.start().await;
    let (response, conversation) = server.begin("one", json!({"input": "tell"})).await;
    let path = format!("/v1/conversations/{conversation}/events?after=0");
    let mut frames = server.follow(&path).await;
    let mut seen = Vec::new();
    while shown_text(&seen, &response).is_empty() {
        seen.push(frames.next().await.unwrap());
    }
    server.kill();
    let shown = shown_text(&seen, &response);
    let server = site.start().await;
    let all = server.until_ended(&conversation, &response, 0).await;
    assert_eq!(journaled(&all)[..journaled(&seen).len()], journaled(&seen), "what was seen stays");
    let resumed = all.iter().find(|frame| frame["type"] == "response.resumed").unwrap();
    assert_eq!(resumed["exact"], false);
    let text = shown_text(&all, &response);
    // The script begins anew, as another answer would: behind what was journaled.
    let kept = text.strip_suffix(&words.concat()).expect("it went on to its end");
    assert!(kept.starts_with(&shown) && words.concat().starts_with(kept), "{kept:?} behind {shown:?}");
    let answer = server.get(&format!("/v1/responses/{response}")).await;
    assert_eq!((&answer["status"], answer["output"].as_array().unwrap().len()), (&json!("completed"), 1));
}
