//! `/v1/conversations/{id}/tool_results` and `…/tool_calls/{call_id}/claim`, over HTTP and on the socket.

use serde_json::{Value, json};

use crate::support::{Answer, Server, text_of};

fn tool(policy: &Value) -> Value {
    json!([{"type": "function", "name": "weather", "x_midstream": policy}])
}

/// A conversation whose last response called `weather` once or twice, and the calls' ids.
async fn called(server: &Server, input: &str, policy: &Value) -> (String, Vec<String>) {
    let conversation = server.conversation().await;
    let body = json!({"input": input, "conversation": conversation, "tools": tool(policy)});
    let response = server.post("/v1/responses", body).await;
    let outputs = response.body["output"].as_array().unwrap().iter();
    let calls = outputs.filter_map(|item| item["call_id"].as_str().map(str::to_owned)).collect();
    (conversation, calls)
}

async fn claim(server: &Server, conversation: &str, call: &str, body: Value) -> Answer {
    server.post(&format!("/v1/conversations/{conversation}/tool_calls/{call}/claim"), body).await
}

async fn answer(server: &Server, conversation: &str, body: Value) -> Answer {
    server.post(&format!("/v1/conversations/{conversation}/tool_results"), body).await
}

/// What the successor says, once it has ended.
async fn text_of_response(server: &Server, id: &str) -> String {
    text_of(&server.get_stream(&format!("/v1/responses/{id}?stream=true")).await.rest_json().await)
}

#[tokio::test]
async fn the_server_goes_on_by_itself_when_every_call_has_its_result() {
    let server = Server::start().await;
    let (conversation, calls) = called(&server, "twice", &json!({})).await;
    let first = answer(&server, &conversation, json!({"call_id": calls[1], "output": "rain"})).await;
    assert_eq!((first.status, &first.body["open_calls"]), (202, &json!([calls[0]])));
    assert_eq!(first.body["successor_id"], Value::Null);
    let output = json!([{"type": "input_text", "text": "sun"}]);
    let last = answer(&server, &conversation, json!({"call_id": calls[0], "output": output})).await;
    assert_eq!((last.status, &last.body["open_calls"]), (202, &json!([])));
    let successor = last.body["successor_id"].as_str().unwrap().to_owned();
    assert_eq!(text_of_response(&server, &successor).await, "Take an umbrella.");

    let again = answer(&server, &conversation, json!({"call_id": calls[0], "output": "sun"})).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(again.body, last.body);
    let other = answer(&server, &conversation, json!({"call_id": calls[0], "output": "snow"})).await;
    other.assert_error(422, "tool_result_conflict");
}

#[tokio::test]
async fn a_call_is_claimed_by_one_worker_and_its_attempt_is_named() {
    let server = Server::start().await;
    let (conversation, calls) = called(&server, "weather", &json!({})).await;
    let claimed = claim(&server, &conversation, &calls[0], json!({"lease_ms": 60_000})).await;
    assert_eq!(claimed.status, 200, "{}", claimed.body);
    assert_eq!((&claimed.body["attempt"], &claimed.body["name"]), (&json!(1), &json!("weather")));
    assert!(claimed.body["lease_until"].is_u64());
    let second = claim(&server, &conversation, &calls[0], json!({})).await;
    second.assert_error(409, "tool_call_claimed");
    let snapshot = server.get_stream(&format!("/v1/conversations/{conversation}/events")).await.next().await.unwrap();
    assert_eq!(snapshot.json()["open_calls"][0]["claimed_until_ms"], claimed.body["lease_until"]);
    let early = answer(&server, &conversation, json!({"call_id": calls[0], "attempt": 2, "output": "x"})).await;
    early.assert_error(404, "tool_call_not_found");
    let done = answer(&server, &conversation, json!({"call_id": calls[0], "attempt": 1, "output": "rain"})).await;
    assert_eq!(done.status, 202, "{}", done.body);
}

#[tokio::test]
async fn a_repeated_claim_with_its_key_is_the_same_claim() {
    let server = Server::start().await;
    let (conversation, calls) = called(&server, "weather", &json!({})).await;
    let path = format!("/v1/conversations/{conversation}/tool_calls/{}/claim", calls[0]);
    let first = server.post_keyed(&path, "k", json!({})).await;
    let again = server.post_keyed(&path, "k", json!({})).await;
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    server.post_keyed(&path, "k", json!({"lease_ms": 5})).await.assert_error(422, "idempotency_key_reused");
}

#[tokio::test]
async fn a_late_result_is_refused_with_what_closed_the_call_and_recorded() {
    let server = Server::start().await;
    let (conversation, calls) = called(&server, "weather", &json!({})).await;
    server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await;
    let late = answer(&server, &conversation, json!({"call_id": calls[0], "output": "rain"})).await;
    let error = late.assert_error(409, "tool_call_closed");
    assert_eq!(error["reason"], "superseded");
    let by_seq = error["by_seq"].as_u64().unwrap();
    let path = format!("/v1/conversations/{conversation}/events?after={}", by_seq - 1);
    let mut events = server.get_stream(&path).await;
    assert_eq!(events.until("tool_call.closed").await["by_seq"], by_seq);
    assert_eq!(events.until("tool_result.discarded").await["by_seq"], by_seq);
}

#[tokio::test]
async fn a_call_that_is_not_answered_in_time_is_an_error_that_the_model_sees() {
    let server = Server::start().await;
    let (conversation, calls) = called(&server, "weather", &json!({"timeout_ms": 30})).await;
    let mut events = server.get_stream(&format!("/v1/conversations/{conversation}/events")).await;
    let closed = events.until("tool_call.closed").await;
    assert_eq!((&closed["call_id"], &closed["reason"]), (&json!(calls[0]), &json!("timeout")));
    assert_eq!(closed["output"]["output"], "tool_timeout: no result within 30 ms");
    events.until("response.created").await;
    events.until("response.completed").await;
}

#[tokio::test]
async fn a_lease_that_ends_offers_an_idempotent_call_again() {
    let server = Server::start().await;
    let (conversation, calls) = called(&server, "weather", &json!({"idempotent": true})).await;
    claim(&server, &conversation, &calls[0], json!({"lease_ms": 20})).await;
    let mut events = server.get_stream(&format!("/v1/conversations/{conversation}/events")).await;
    while events.until("tool_call.requested").await["attempt"] != 2 {}
    let claimed = claim(&server, &conversation, &calls[0], json!({})).await;
    assert_eq!(claimed.body["attempt"], 2);
}

#[tokio::test]
async fn what_names_no_call_or_asks_for_too_much_is_refused() {
    let server = Server::start().await;
    let (conversation, calls) = called(&server, "weather", &json!({})).await;
    answer(&server, &conversation, json!({"call_id": "callx", "output": "a"}))
        .await
        .assert_error(404, "tool_call_not_found");
    claim(&server, &conversation, "callx", json!({})).await.assert_error(404, "tool_call_not_found");
    for body in [json!({"output": "a"}), json!({"call_id": calls[0]}), json!({"call_id": calls[0], "output": 3})] {
        answer(&server, &conversation, body).await.assert_error(400, "invalid_input");
    }
    for lease_ms in [0, 86_400_000] {
        let refused = claim(&server, &conversation, &calls[0], json!({"lease_ms": lease_ms})).await;
        assert_eq!(refused.assert_error(400, "invalid_input")["param"], "lease_ms");
    }
    let body = json!({"input": "a", "tools": [{"type": "function", "name": "f", "x_midstream": {"timeout": 3}}]});
    let refused = server.post("/v1/responses", body).await;
    assert_eq!(refused.assert_error(400, "invalid_input")["param"], "tools[0].x_midstream");
}

#[tokio::test]
async fn workers_claim_and_answer_on_the_socket_too() {
    let server = Server::start().await;
    let (conversation, calls) = called(&server, "weather", &json!({})).await;
    let mut socket = server.socket(&conversation).await;
    let claim = json!({"type": "conversation.tool_claim", "event_id": "e1", "call_id": calls[0]});
    socket.send(claim.clone()).await;
    let claimed = socket.answer_to("e1").await;
    assert_eq!((&claimed["type"], &claimed["attempt"]), (&json!("conversation.tool_claim.result"), &json!(1)));
    socket.send(claim).await;
    assert_eq!(socket.answer_to("e1").await["replayed"], true);
    let result = json!({"type": "conversation.tool_result", "event_id": "e2", "call_id": calls[0], "output": "rain"});
    socket.send(result).await;
    let done = socket.answer_to("e2").await;
    assert_eq!(done["type"], "conversation.tool_result.result");
    assert_eq!(text_of_response(&server, done["successor_id"].as_str().unwrap()).await, "Take an umbrella.");
}
