//! One key, one effect, one answer.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Server, text_of};

#[tokio::test]
async fn a_repeated_request_gets_the_first_answer_again() {
    let server = Server::start().await;
    for (path, body) in [
        ("/v1/responses", json!({"input": "hi"})),
        ("/v1/responses", json!({"input": "slow", "background": true})),
        ("/v1/conversations", json!({"metadata": {"a": "b"}})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hi"}], "store": true})),
    ] {
        let key = format!("key of {path} {body}");
        let key: String = key.chars().filter(char::is_ascii_alphanumeric).collect();
        let first = server.post_keyed(path, &key, body.clone()).await;
        assert_eq!((first.status, first.header("idempotent-replayed")), (200, None), "{}", first.body);
        let again = server.post_keyed(path, &key, body).await;
        assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")), "{path}");
        assert_eq!(again.body, first.body);
    }
}

#[tokio::test]
async fn a_key_with_another_body_is_refused() {
    let server = Server::start().await;
    server.post_keyed("/v1/responses", "k", json!({"input": "hi"})).await;
    let other = server.post_keyed("/v1/responses", "k", json!({"input": "ho"})).await;
    other.assert_error(422, "idempotency_key_reused");
    let conversation = server.post_keyed("/v1/conversations", "k", json!({})).await;
    assert_eq!(conversation.status, 200, "a key belongs to its operation");
}

#[tokio::test]
async fn a_repeated_stream_is_replayed_from_its_beginning() {
    let server = Server::start().await;
    let body = json!({"input": "slow", "stream": true});
    let request = || server.request(reqwest::Method::POST, "/v1/responses").header("Idempotency-Key", "k").json(&body);
    let mut first = server.stream(request()).await;
    let created = first.until("response.created").await;
    let replayed = server.stream(request()).await.rest_json().await;
    assert_eq!(replayed[0], created);
    assert_eq!(text_of(&replayed), "one two three four");
    assert_eq!(first.rest_json().await, replayed[1..]);
}

#[tokio::test]
async fn a_foreground_request_that_still_runs_is_in_progress() {
    let server = Server::start().await;
    let body = json!({"input": "endless"});
    let first = server.request(reqwest::Method::POST, "/v1/responses").header("Idempotency-Key", "k").json(&body);
    let conversation = async {
        loop {
            let again = server.post_keyed("/v1/responses", "k", body.clone()).await;
            let error = again.assert_error(409, "idempotency_in_progress");
            assert!(again.header("retry-after").is_some());
            assert_eq!(again.header("x-should-retry"), None);
            if let Some(id) = error["response_id"].as_str() {
                break server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
            }
        }
    };
    // The first is sent first: the other begins once it waits.
    let (first, cancelled) = tokio::join!(first.send(), conversation);
    assert_eq!(cancelled.body["status"], "cancelled");
    assert_eq!(first.unwrap().status(), 200);
}

#[tokio::test]
async fn a_refused_request_leaves_its_key_free() {
    let server = Server::start().await;
    server.post_keyed("/v1/responses", "k", json!({"input": ""})).await.assert_error(400, "invalid_input");
    let good = server.post_keyed("/v1/responses", "k", json!({"input": "hi"})).await;
    assert_eq!((good.status, good.header("idempotent-replayed")), (200, None), "{}", good.body);
}

#[tokio::test]
async fn a_repeated_cancel_gets_the_same_answer() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let path = format!("/v1/responses/{id}/cancel");
    let first = server.post_keyed(&path, "k", json!({})).await;
    let again = server.post_keyed(&path, "k", json!({})).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
}

#[tokio::test]
async fn a_request_that_is_not_stored_is_one_request_as_long_as_it_lives() {
    let server = Server::start().await;
    for (path, body) in [
        ("/v1/responses", json!({"input": "endless", "store": false, "stream": true})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "endless"}], "stream": true})),
    ] {
        let begin =
            |key: &str, body: &Value| server.request(Method::POST, path).header("idempotency-key", key).json(body);
        let mut first = server.stream(begin("k", &body)).await;
        let begun = first.next().await.unwrap().json();
        let mut again = server.stream(begin("k", &body)).await;
        assert_eq!(again.next().await.unwrap().json(), begun, "{path}: it is followed from its beginning");
        let mut whole = body.clone();
        whole["stream"] = false.into();
        server.post_keyed(path, "k", whole).await.assert_error(409, "idempotency_in_progress");
        let mut other = body.clone();
        other["temperature"] = 0.5.into();
        server.post_keyed(path, "k", other).await.assert_error(422, "idempotency_key_reused");
        // The second reader keeps it alive; without any it ends, and the key is free.
        drop(first);
        again.next().await.unwrap();
        drop(again);
        server.running.idle().await;
        let id = |begun: &Value| begun.pointer("/response/id").or(begun.get("id")).unwrap().clone();
        loop {
            let anew = server.stream(begin("k", &body)).await.next().await.unwrap().json();
            // It may take a moment until the conversation is over.
            if id(&anew) != id(&begun) {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_repeated_cancel_that_does_not_wait_gets_the_first_answer_and_not_what_came_of_it() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let path = format!("/v1/responses/{id}/cancel?wait=false");
    let first = server.post_keyed(&path, "k", json!({})).await;
    assert_eq!((first.status, &first.body["status"]), (202, &json!("in_progress")), "{}", first.body);
    server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
    let again = server.post_keyed(&path, "k", json!({})).await;
    assert_eq!((again.status, &again.body), (202, &first.body));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
}

#[tokio::test]
async fn a_repeated_opening_gets_the_labels_that_were_given_then() {
    let server = Server::start().await;
    let body = json!({"metadata": {"topic": "a"}});
    let first = server.post_keyed("/v1/conversations", "k", body.clone()).await;
    server.post(&format!("/v1/conversations/{}", first.id()), json!({"metadata": {"topic": "b"}})).await;
    let again = server.post_keyed("/v1/conversations", "k", body).await;
    assert_eq!(again.body, first.body);
}

#[tokio::test]
async fn a_repeated_instruction_gets_its_receipt_when_its_response_is_deleted() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let path = format!("/v1/responses/{id}/interventions");
    let body = json!({"input": "In French"});
    let first = server.post_keyed(&path, "k", body.clone()).await;
    assert_eq!(server.delete(&format!("/v1/responses/{id}")).await.status, 200);
    let again = server.post_keyed(&path, "k", body).await;
    assert_eq!((again.status, &again.body), (202, &first.body));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    let other = server.post_keyed(&path, "another", json!({"input": "In French"})).await;
    other.assert_error(404, "response_not_found");
    let next = server.post("/v1/responses", json!({"input": "hi", "previous_response_id": id})).await;
    next.assert_error(400, "previous_response_not_found");
}

#[tokio::test]
async fn every_operation_has_one_effect_by_its_key_and_refuses_the_key_with_another_body() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let tools = json!([{"type": "function", "name": "weather"}]);
    let body = json!({"input": "weather", "conversation": conversation, "tools": tools});
    let called = server.post("/v1/responses", body).await.body;
    let call = called["output"][1]["call_id"].as_str().unwrap();
    let response = format!("/v1/responses/{}", server.running("endless").await);
    let home = format!("/v1/conversations/{conversation}");
    for (path, body, other) in [
        (
            format!("{response}/interventions"),
            json!({"input": "a", "when": "after"}),
            json!({"input": "b", "when": "after"}),
        ),
        (format!("{response}/cancel"), json!({}), json!({"cascade": true})),
        (format!("{home}/tool_calls/{call}/claim"), json!({}), json!({"lease_ms": 5})),
        (
            format!("{home}/tool_results"),
            json!({"call_id": call, "output": "rain"}),
            json!({"call_id": call, "output": "snow"}),
        ),
    ] {
        let first = server.post_keyed(&path, "k", body.clone()).await;
        assert!(first.status < 300 && first.header("idempotent-replayed").is_none(), "{path}: {}", first.body);
        let again = server.post_keyed(&path, "k", body).await;
        assert_eq!((again.status, &again.body), (first.status, &first.body), "{path}");
        assert_eq!(again.header("idempotent-replayed"), Some("true"), "{path}");
        server.post_keyed(&path, "k", other).await.assert_error(422, "idempotency_key_reused");
    }
    let events = server.get_stream(&format!("{home}/events?types=tool_result.accepted,response.completed")).await;
    let (mut events, mut results, mut ends) = (events, 0, 0);
    // The first response, and the one that goes on with the result.
    while ends < 2 {
        let event = events.next().await.unwrap().json();
        results += u32::from(event["type"] == "tool_result.accepted");
        ends += u32::from(event["type"] == "response.completed");
    }
    assert_eq!(results, 1);
}
