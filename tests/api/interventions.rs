//! `/v1/responses/{id}/interventions`.

use serde_json::{Value, json};

use crate::support::{Server, text_of};

fn path(id: &str) -> String {
    format!("/v1/responses/{id}/interventions")
}

#[tokio::test]
async fn an_instruction_cuts_the_answer_and_a_successor_answers_it() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let receipt = server.post_keyed(&path(&id), "k", json!({"input": "In French", "when": "now"})).await;
    assert_eq!(receipt.status, 202, "{}", receipt.body);
    let body = &receipt.body;
    assert_eq!((&body["object"], &body["response_id"]), (&json!("intervention"), &json!(id)));
    assert_eq!(
        (&body["status"], &body["outcome"], &body["error"]),
        (&json!("committed"), &json!("committed"), &Value::Null)
    );
    assert!(body["seq"].is_u64());
    assert_eq!(body["input"][0]["content"][0]["text"], "In French");
    let old = server.get(&format!("/v1/responses/{id}")).await.body;
    assert_eq!((&old["status"], &old["incomplete_details"]["reason"]), (&json!("incomplete"), &json!("steered")));
    let successor = body["successor_id"].as_str().unwrap();
    let events = server.get_stream(&format!("/v1/responses/{successor}?stream=true")).await.rest_json().await;
    assert_eq!(text_of(&events), "Bonjour");
    assert_eq!(events[0]["response"]["previous_response_id"], json!(id));
    let found = server.get(&format!("/v1/interventions/{}", receipt.id())).await;
    assert_eq!((found.status, &found.body), (200, body));
}

#[tokio::test]
async fn an_instruction_that_says_nothing_is_refused() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let parts = json!([{"type": "input_text", "text": ""}]);
    for input in
        [json!(""), json!(" "), json!([{"role": "user", "content": ""}]), json!([{"role": "user", "content": parts}])]
    {
        let refused = server.post_keyed(&path(&id), "k", json!({"input": input})).await;
        refused.assert_error(400, "invalid_input");
    }
    assert_eq!(server.get(&format!("/v1/responses/{id}")).await.body["status"], "in_progress");
    server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
}

#[tokio::test]
async fn a_repeated_instruction_is_one_instruction() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let body = json!({"input": "In French"});
    let first = server.post_keyed(&path(&id), "k", body.clone()).await;
    let again = server.post_keyed(&path(&id), "k", body).await;
    assert_eq!((again.status, &again.body), (202, &first.body));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
}

#[tokio::test]
async fn a_late_instruction_names_the_end_and_gives_the_input_back() {
    let server = Server::start().await;
    let id = server.post("/v1/responses", json!({"input": "hi"})).await.id();
    let late = server.post_keyed(&path(&id), "k", json!({"input": "In French"})).await;
    let error = late.assert_error(409, "response_already_completed");
    for shown in [error, &late.body] {
        assert_eq!((&shown["final_status"], &shown["input"]), (&json!("completed"), &json!("In French")));
        assert!(shown["final_seq"].is_u64());
        assert_eq!(shown["successor_id"], Value::Null);
    }
    assert_eq!(late.header("x-should-retry"), Some("false"));
    assert_eq!(late.header("content-type"), Some("application/problem+json"));
}

#[tokio::test]
async fn an_instruction_without_a_key_is_refused() {
    let server = Server::start().await;
    let id = server.post("/v1/responses", json!({"input": "hi"})).await.id();
    server.post(&path(&id), json!({"input": "a"})).await.assert_error(400, "idempotency_key_required");
}

#[tokio::test]
async fn what_this_version_does_not_do_is_refused_by_name() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    for (name, value) in [
        ("when", json!("whenever")),
        ("on_multiple", json!("replaces")),
        ("on_late", json!("queue")),
        ("tools", json!("wait")),
        ("reasoning", json!({})),
        ("input", json!("")),
    ] {
        let answer = server.post_keyed(&path(&id), "k", json!({"input": "a", name: value})).await;
        assert_eq!(answer.assert_error(400, "invalid_input")["param"], name);
    }
    let unknown = server.post_keyed(&path("resp_1"), "k", json!({"input": "a"})).await;
    unknown.assert_error(404, "response_not_found");
}
