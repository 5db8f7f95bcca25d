//! Quotas of keys, and the room that one key leaves to others.

use midstream::access::Limits;
use reqwest::Method;
use serde_json::json;

use crate::keys::Guarded;
use crate::support::Setup;

fn seconds(text: Option<&str>) -> u64 {
    text.unwrap().trim_end_matches('s').parse().unwrap()
}

#[tokio::test]
async fn requests_of_a_minute_are_counted_and_the_client_is_told_what_is_left() {
    let guarded = Guarded::start().await;
    let key = guarded.limited("ann", Limits { requests_per_minute: Some(2), ..Limits::default() });
    let other = guarded.named("bob");
    let ask = async |key: &str| guarded.post(key, "/v1/responses", json!({"input": "hi"})).await;
    let first = ask(&key).await;
    assert_eq!(first.header("x-ratelimit-limit-requests"), Some("2"));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("1"));
    assert!((1..=60).contains(&seconds(first.header("x-ratelimit-reset-requests"))));
    assert_eq!(first.header("anthropic-ratelimit-requests-remaining"), Some("1"));
    assert!(first.header("anthropic-ratelimit-requests-reset").is_some_and(|at| at.ends_with('Z')));
    assert_eq!(first.header("x-ratelimit-limit-tokens"), None, "there is no such bound");
    assert_eq!(ask(&key).await.status, 200);

    let refused = ask(&key).await;
    let error = refused.assert_error(429, "rate_limit_exceeded");
    assert_eq!(error["type"], "rate_limit_error");
    let wait = seconds(refused.header("retry-after"));
    assert!((1..=60).contains(&wait) && error["retry_after"] == wait, "{error}");
    let body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    let refused = guarded.post(&key, "/v1/messages", body).await;
    assert_eq!((refused.status, &refused.body["error"]["type"]), (429, &json!("rate_limit_error")));
    assert!(refused.header("retry-after").is_some());
    let mut socket = guarded.socket(&key, "/v1/responses").await.unwrap();
    socket.send(json!({"type": "response.create", "input": "hi"})).await;
    assert_eq!(socket.until_type("error").await["error"]["code"], "rate_limit_exceeded");

    assert_eq!(guarded.get(&key, "/v1/models").await.status, 200, "what uses no model is not counted");
    let unbounded = ask(&other).await;
    assert_eq!((unbounded.status, unbounded.header("x-ratelimit-limit-requests")), (200, None));
}

#[tokio::test]
async fn tokens_of_prompts_and_answers_are_counted_whoever_asks_for_them() {
    let guarded = Guarded::start().await;
    let key = guarded.limited("ann", Limits { tokens_per_minute: Some(60), ..Limits::default() });
    let conversation = guarded.post(&key, "/v1/conversations", json!({})).await.id();
    let body = json!({"input": "hi", "conversation": conversation});
    let first = guarded.post(&key, "/v1/responses", body.clone()).await;
    assert_eq!(first.status, 200);
    let usage = first.body["usage"]["total_tokens"].as_u64().unwrap();
    let left = guarded.get(&key, "/v1/models").await;
    let left = left.header("x-ratelimit-remaining-tokens").unwrap().parse::<u64>().unwrap();
    assert_eq!(left, 60_u64.saturating_sub(usage), "as many as its usage says");
    let mut asked = 1;
    let refused = loop {
        let answer = guarded.post(&key, "/v1/responses", body.clone()).await;
        if answer.status != 200 {
            break answer;
        }
        asked += 1;
        assert!(asked < 60);
    };
    refused.assert_error(429, "rate_limit_exceeded");
    assert!((1..=60).contains(&seconds(refused.header("retry-after"))));
}

#[tokio::test]
async fn as_many_responses_run_at_once_as_a_key_may_have_in_the_background_too() {
    let guarded = Guarded::start().await;
    let key = guarded.limited("ann", Limits { concurrent_responses: Some(1), ..Limits::default() });
    let background = guarded.post(&key, "/v1/responses", json!({"input": "endless", "background": true})).await;
    assert_eq!(background.status, 200);
    let refused = guarded.post(&key, "/v1/responses", json!({"input": "hi"})).await;
    refused.assert_error(429, "rate_limit_exceeded");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let opened = guarded.post(&key, "/v1/conversations", json!({})).await;
    assert_eq!(opened.status, 200, "what opens a conversation is no response");
    let steer = format!("/v1/responses/{}/interventions", background.id());
    let steer = guarded.request(&key, Method::POST, &steer).header("idempotency-key", "k");
    assert_eq!(steer.json(&json!({"input": "hi"})).send().await.unwrap().status(), 202, "what steers is let in");
    let path = format!("/v1/responses/{}/cancel", background.id());
    guarded.post(&key, &path, json!({"cascade": true})).await;
    guarded.server.running.idle().await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "n": 2});
    guarded.post(&key, "/v1/chat/completions", chat).await.assert_error(429, "rate_limit_exceeded");
    assert_eq!(guarded.post(&key, "/v1/responses", json!({"input": "hi"})).await.status, 200);
}

#[tokio::test]
async fn one_key_never_takes_all_the_room() {
    let guarded = Guarded::start_with(Setup { requests_in_flight_max: 8, readers_max: 8, ..Setup::default() }).await;
    let (greedy, other) = (guarded.named("greedy"), guarded.named("other"));
    let mut streams = Vec::new();
    let refused = loop {
        let body = json!({"input": "endless", "stream": true});
        let sent = guarded.request(&greedy, Method::POST, "/v1/responses").json(&body).send().await.unwrap();
        if sent.status() != 200 {
            break sent.status().as_u16();
        }
        streams.push(sent);
    };
    assert_eq!((streams.len(), refused), (6, 429), "three quarters");
    assert_eq!(guarded.post(&other, "/v1/responses", json!({"input": "hi"})).await.status, 200);

    let conversation = guarded.post(&greedy, "/v1/conversations", json!({})).await.id();
    let mut sockets = Vec::new();
    while let Ok(socket) = guarded.socket(&greedy, &format!("/v1/conversations/{conversation}/ws")).await {
        sockets.push(socket);
    }
    assert_eq!(sockets.len(), 6);
    assert!(guarded.socket(&other, "/v1/responses").await.is_ok());
}
