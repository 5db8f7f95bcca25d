//! Killed in the middle of a real model's answer: the same tokens as without the crash.

use serde_json::{Value, json};

use crate::support::{Server, Site, journaled, shown_text};

/// Tokens of an answer: enough that it still runs when a slow machine comes to kill it.
const TOKENS: u32 = 160;

fn question(sampling: &Value) -> Value {
    let mut body = json!({"input": "Write a short story about a lighthouse keeper.", "max_output_tokens": TOKENS});
    body.as_object_mut().unwrap().extend(sampling.as_object().unwrap().clone());
    body
}

async fn undisturbed(server: &Server, sampling: &Value) -> String {
    let (response, conversation) = server.begin("undisturbed", question(sampling)).await;
    shown_text(&server.until_ended(&conversation, &response, 0).await, &response)
}

async fn killed(site: &Site, mut server: Server, sampling: &Value) -> (Server, String) {
    let (response, conversation) = server.begin("killed", question(sampling)).await;
    for frames in [4, 12] {
        let mut stream = server.follow(&format!("/v1/conversations/{conversation}/events?after=0")).await;
        for _ in 0..frames {
            stream.next().await.unwrap();
        }
        server.kill();
        server = site.start().await;
    }
    let frames = journaled(&server.until_ended(&conversation, &response, 0).await);
    let resumed = frames.iter().find(|frame| frame["type"] == "response.resumed");
    assert_eq!(resumed.unwrap()["exact"], true);
    let text = shown_text(&frames, &response);
    (server, text)
}

#[tokio::test]
async fn a_greedy_answer_is_the_same_after_a_kill() {
    let (site, sampling) = (Site::real_model(), json!({"temperature": 0}));
    let server = site.start().await;
    let expected = undisturbed(&server, &sampling).await;
    let (_server, text) = killed(&site, server, &sampling).await;
    assert_eq!(text, expected);
}

#[tokio::test]
async fn a_seeded_answer_is_the_same_after_a_kill() {
    let (site, sampling) = (Site::real_model(), json!({"temperature": 0.9, "top_p": 0.95, "seed": 42}));
    let server = site.start().await;
    let expected = undisturbed(&server, &sampling).await;
    let (_server, text) = killed(&site, server, &sampling).await;
    assert_eq!(text, expected);
}
