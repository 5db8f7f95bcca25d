//! OpenAI's `response.inject`: results of calls, on both sockets.

use serde_json::{Value, json};

use crate::support::{Server, Socket, text_of};

fn is_end(frame: &Value) -> bool {
    matches!(frame["type"].as_str(), Some("response.completed" | "response.incomplete" | "response.failed"))
}

fn output(call: &Value, text: &str) -> Value {
    json!({"type": "function_call_output", "call_id": call, "output": text})
}

fn inject(response: &Value, results: &Value) -> Value {
    json!({"type": "response.inject", "response_id": response, "input": results})
}

fn calls_of(frames: &[Value]) -> Vec<Value> {
    let items = frames.iter().filter(|frame| frame["type"] == "response.output_item.done");
    items.filter(|done| done["item"]["type"] == "function_call").map(|done| done["item"]["call_id"].clone()).collect()
}

/// A response that ends with calls: its id and theirs.
async fn ends_with_calls(socket: &mut Socket, input: &str) -> (Value, Vec<Value>) {
    let tools = json!([{"type": "function", "name": "weather"}]);
    socket.send(json!({"type": "response.create", "input": input, "tools": tools})).await;
    let frames = socket.until(is_end).await;
    let created = frames.iter().find(|frame| frame["type"] == "response.created").unwrap();
    (created["response"]["id"].clone(), calls_of(&frames))
}

async fn outputs_in(server: &Server, response: &Value) -> Vec<String> {
    let response = server.get(&format!("/v1/responses/{}", response.as_str().unwrap())).await.body;
    let conversation = response["conversation"]["id"].as_str().unwrap().to_owned();
    let items = server.get(&format!("/v1/conversations/{conversation}/items?order=asc&limit=100")).await.body;
    let items = items["data"].as_array().unwrap().iter();
    let results = items.filter(|item| item["type"] == "function_call_output");
    results.map(|item| item["output"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_injected_result_goes_into_a_response_that_the_same_socket_shows() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let (id, calls) = ends_with_calls(&mut socket, "weather").await;
    let mut frame = inject(&id, &json!([output(&calls[0], "rain")]));
    frame["event_id"] = "e1".into();
    socket.send(frame.clone()).await;
    let frames = socket.until(is_end).await;
    let created = frames.iter().find(|frame| frame["type"] == "response.inject.created").unwrap();
    assert_eq!((&created["response_id"], &created["event_id"]), (&id, &json!("e1")));
    assert!(created["sequence_number"].is_u64() && created.get("seq").is_none(), "{created}");
    let place = |kind: &str| frames.iter().position(|frame| frame["type"] == kind).unwrap();
    assert!(place("response.inject.created") < place("response.created"), "it is told first");
    assert_eq!(frames[place("response.created")]["response"]["previous_response_id"], id);
    assert_eq!(text_of(&frames), "Take an umbrella.");

    socket.send(frame.clone()).await;
    let again = socket.until(|frame| frame["type"] == "response.inject.created").await;
    assert_eq!(again.last().unwrap()["replayed"], true);
    assert_eq!(outputs_in(&server, &id).await, ["rain"], "it is taken once");
    // A repetition is answered, whatever the socket does meanwhile, and binds it to nothing.
    let other = server.post("/v1/responses", json!({"input": "endless", "background": true})).await.id();
    socket.send(json!({"type": "response.steer", "previous_response_id": other, "input": "endless"})).await;
    socket.until(|frame| frame["type"] == "response.steer.accepted").await;
    socket.send(frame).await;
    let again = socket.until(|frame| frame["type"] == "response.inject.created").await;
    assert_eq!(again.last().unwrap()["replayed"], true);
    let mut fresh = inject(&id, &json!([output(&calls[0], "rain")]));
    fresh["event_id"] = "e2".into();
    socket.send(fresh).await;
    let refused = socket.until(|frame| frame["type"] == "error").await;
    assert_eq!(refused.last().unwrap()["error"]["code"], "response_not_active", "another conversation is followed");
}

#[tokio::test]
async fn results_for_a_response_that_was_interrupted_are_taken_and_bind_the_socket_to_nothing() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let tools = json!([{"type": "function", "name": "weather"}]);
    socket.send(json!({"type": "response.create", "input": "stroll", "tools": tools})).await;
    let frames = socket.until(|frame| frame["type"] == "response.output_item.done").await;
    let id = frames[0]["response"]["id"].clone();
    socket.send(json!({"type": "response.interrupt", "response_id": id, "mode": "discard_partial_items"})).await;
    socket.until(is_end).await;
    socket.send(inject(&id, &json!([output(&calls_of(&frames)[0], "rain")]))).await;
    socket.until(|frame| frame["type"] == "response.inject.created").await;
    let other = server.post("/v1/responses", json!({"input": "endless", "background": true})).await.id();
    socket.send(json!({"type": "response.steer", "previous_response_id": other, "input": "In French"})).await;
    assert_eq!(text_of(&socket.until(is_end).await), "Bonjour", "it follows another conversation");
}

#[tokio::test]
async fn results_that_come_while_the_response_speaks_are_gone_on_with_behind_its_end() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let tools = json!([{"type": "function", "name": "weather"}]);
    socket.send(json!({"type": "response.create", "input": "stroll", "tools": tools})).await;
    let frames = socket.until(|frame| frame["type"] == "response.output_item.done").await;
    let id = frames[0]["response"]["id"].clone();
    socket.send(inject(&id, &json!([output(&calls_of(&frames)[0], "rain")]))).await;
    let mut rest = socket.until(is_end).await;
    assert_eq!(rest.last().unwrap()["response"]["id"], id);
    rest.extend(socket.until(is_end).await);
    let place = |kind: &str| rest.iter().position(|frame| frame["type"] == kind).unwrap();
    assert!(place("response.inject.created") < place("response.completed"), "it is told while the response speaks");
    assert!(place("response.completed") < place("response.created"));
    assert_eq!(text_of(&rest[place("response.created")..]), "Take an umbrella.");
    // Nothing is left to hear of, so the socket is free for another conversation.
    let (other, _) = ends_with_calls(&mut socket, "hi").await;
    assert_ne!(other, id);
}

#[tokio::test]
async fn results_are_taken_all_or_none_and_given_back() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    let (id, calls) = ends_with_calls(&mut socket, "twice").await;
    let unknown = json!([output(&calls[0], "sun"), output(&json!("callaaaaaaaaaaaaaaaaaaaaaaaa"), "sun")]);
    socket.send(inject(&id, &unknown)).await;
    let error = socket.until_type("error").await;
    assert_eq!(error["error"]["code"], "tool_call_not_found", "{error}");
    let doubled = json!([output(&calls[0], "sun"), output(&calls[0], "sun")]);
    socket.send(inject(&id, &doubled)).await;
    assert_eq!(socket.until_type("error").await["error"]["code"], "invalid_input");
    socket.send(inject(&id, &json!([output(&calls[1], "rain"), output(&calls[0], "fog")]))).await;
    let frames = socket.until(is_end).await;
    assert_eq!(frames.iter().filter(|frame| frame["type"] == "tool_result.accepted").count(), 2);
    assert_eq!(outputs_in(&server, &id).await, ["fog", "rain"], "in the order of the calls");

    let late = json!([output(&calls[0], "other")]);
    socket.send(inject(&id, &late)).await;
    let failed = socket.until_type("response.inject.failed").await;
    assert_eq!((&failed["response_id"], &failed["input"]), (&id, &late));
    assert_eq!(failed["error"]["code"], "response_already_completed");
    socket.send(inject(&json!("resp_00000000000000000000000000000000"), &late)).await;
    assert_eq!(socket.until_type("response.inject.failed").await["error"]["code"], "response_not_found");
}

#[tokio::test]
async fn what_is_not_stored_takes_results_steers_and_interrupts_on_its_own_socket_only() {
    let server = Server::start().await;
    let mut own = server.responses_socket().await;
    let tools = json!([{"type": "function", "name": "weather"}]);
    own.send(json!({"type": "response.create", "input": "weather", "tools": tools, "store": false})).await;
    let frames = own.until(is_end).await;
    let id = frames[0]["response"]["id"].clone();
    let results = json!([output(&calls_of(&frames)[0], "rain")]);
    let conversation = server.conversation().await;
    for mut other in [server.responses_socket().await, server.socket(&conversation).await] {
        for (frame, kind) in [
            (inject(&id, &results), "response.inject.failed"),
            (json!({"type": "response.steer", "previous_response_id": id, "input": "a"}), "response.steer.failed"),
            (
                json!({"type": "response.interrupt", "response_id": id, "mode": "discard_partial_items"}),
                "response.interrupt.failed",
            ),
        ] {
            other.send(frame).await;
            let failed = other.next().await;
            assert_eq!((&failed["type"], &failed["error"]["code"]), (&json!(kind), &json!("response_not_found")));
        }
    }
    own.send(inject(&id, &results)).await;
    assert_eq!(text_of(&own.until(is_end).await), "Take an umbrella.");
}

#[tokio::test]
async fn a_socket_whose_injected_results_nobody_goes_on_with_is_free_again() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let (id, calls) = ends_with_calls(&mut socket, "twice").await;
    socket.send(inject(&id, &json!([output(&calls[0], "rain")]))).await;
    socket.until_type("response.inject.created").await;
    // The other call is closed with the response, so nothing follows.
    let cancelled = server.post(&format!("/v1/responses/{}/cancel", id.as_str().unwrap()), json!({})).await;
    assert_eq!(cancelled.body["cancel"]["closed_calls"], json!([calls[1]]));
    // It has no item open, whose end the steer would wait for.
    let other = server.post("/v1/responses", json!({"input": "silent", "background": true})).await.id();
    socket.send(json!({"type": "response.steer", "previous_response_id": other, "input": "In French"})).await;
    let frames = socket.until(is_end).await;
    assert_eq!(text_of(&frames), "Bonjour", "it follows another conversation");
}

#[tokio::test]
async fn found_tools_are_no_result_that_can_be_injected() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let (id, calls) = ends_with_calls(&mut socket, "twice").await;
    let found = json!({"type": "tool_search_output", "call_id": calls[0], "tools": []});
    socket.send(inject(&id, &json!([found]))).await;
    let refused = socket.until(|frame| frame["type"] == "error").await;
    assert_eq!(refused.last().unwrap()["error"]["param"], "input[0].type");
}
