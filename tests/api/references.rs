//! `item_reference`: items of stored responses and conversations, named in the place of being sent again.

use serde_json::{Value, json};

use crate::support::Server;

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn reference(item: &Value) -> Value {
    json!({"type": "item_reference", "id": item["id"]})
}

/// What a response was asked, oldest first, without what differs from item to item.
async fn asked(server: &Server, response: &str) -> Vec<Value> {
    let list = server.get(&format!("/v1/responses/{response}/input_items?order=asc")).await.body;
    let mut items = list["data"].as_array().unwrap().clone();
    for item in &mut items {
        item.as_object_mut().unwrap().remove("id");
    }
    items
}

#[tokio::test]
async fn a_reference_is_the_item_that_it_names_with_its_tokens() {
    let server = Server::start().await;
    let tools = json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}]);
    let thought = server.post("/v1/responses", json!({"input": "think"})).await;
    let called = server.post("/v1/responses", json!({"input": "weather", "tools": tools})).await;
    let (thoughts, calls) = (thought.body["output"].as_array().unwrap(), called.body["output"].as_array().unwrap());
    assert_eq!((&thoughts[0]["type"], &calls[1]["type"]), (&json!("reasoning"), &json!("function_call")));
    let question = server.get(&format!("/v1/responses/{}/input_items", thought.id())).await.body["data"][0].clone();
    let result = json!({"type": "function_call_output", "call_id": calls[1]["call_id"], "output": "rain"});
    let mut input = vec![reference(&question), reference(&thoughts[0]), json!({"id": thoughts[1]["id"]})];
    input.extend(calls.iter().map(reference));
    input.push(result);
    let next = server.post("/v1/responses", json!({"input": input, "tools": tools})).await;
    assert_eq!((next.status, &next.body["metadata"]), (200, &json!({})), "{}", next.body);
    let items = asked(&server, &next.id()).await;
    let mut expected = [vec![question], thoughts.clone(), calls.clone()].concat();
    for item in &mut expected {
        item.as_object_mut().unwrap().remove("id");
    }
    assert_eq!(items[..5], expected);
    assert_eq!(items[5]["output"], "rain");

    // A transcript with the reasoning's own tokens has the prompt that its response went on from.
    let id = thought.id();
    let counted = async |body: Value| {
        let answer = server.post("/v1/responses/input_tokens", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["input_tokens"].clone()
    };
    let named = json!([user("think"), reference(&thoughts[0]), reference(&thoughts[1]), user("on")]);
    let behind = json!({"input": [user("on")], "previous_response_id": id});
    assert_eq!(counted(json!({"input": named})).await, counted(behind).await);
}

#[tokio::test]
async fn a_reference_to_what_the_request_follows_does_not_say_it_twice() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let first = server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await;
    let said = &first.body["output"][0];
    let body = json!({"input": [reference(said), user("more")], "previous_response_id": first.id()});
    let next = server.post("/v1/responses", body).await;
    assert_eq!(asked(&server, &next.id()).await.len(), 1, "{}", next.body);
    let items = json!({"items": [reference(said), user("x")]});
    let added = server.post(&format!("/v1/conversations/{conversation}/items"), items.clone()).await;
    assert_eq!(added.body["data"].as_array().unwrap().len(), 1, "{}", added.body);
    let opened = server.post("/v1/conversations", items).await;
    let listed = server.get(&format!("/v1/conversations/{}/items?order=asc", opened.id())).await.body;
    assert_eq!(listed["data"][0]["content"], said["content"]);
}

#[tokio::test]
async fn what_is_referred_to_is_bounded_as_a_body_is() {
    let server = Server::start().await;
    let said = server.post("/v1/responses", json!({"input": "hi"})).await.body["output"][0].clone();
    let twice = server.post("/v1/responses", json!({"input": [reference(&said), reference(&said)]})).await;
    let error = twice.assert_error(400, "invalid_input");
    assert_eq!(error["param"], "input[1]");
    assert!(error["message"].as_str().unwrap().contains("a second time"), "{error}");
}

#[tokio::test]
async fn a_socket_takes_references_too() {
    let server = Server::start().await;
    let first = server.post("/v1/responses", json!({"input": "hi"})).await;
    let mut socket = server.responses_socket().await;
    let input = json!([reference(&first.body["output"][0]), user("more")]);
    socket.send(json!({"type": "response.create", "input": input})).await;
    let done = socket.until_type("response.completed").await;
    assert_eq!(asked(&server, done["response"]["id"].as_str().unwrap()).await.len(), 2);
}

#[tokio::test]
async fn what_is_not_kept_cannot_be_referred_to() {
    let server = Server::start().await;
    let passing = server.post("/v1/responses", json!({"input": "hi", "store": false})).await;
    let deleted = server.post("/v1/responses", json!({"input": "hi"})).await;
    let conversation = deleted.body["conversation"]["id"].as_str().unwrap();
    assert_eq!(server.delete(&format!("/v1/conversations/{conversation}")).await.status, 200);
    for item in [&passing.body["output"][0], &deleted.body["output"][0], &json!({"id": "msg_1"}), &json!({"id": "x"})] {
        let refused = server.post("/v1/responses", json!({"input": [user("a"), reference(item)]})).await;
        let error = refused.assert_error(404, "not_found");
        assert_eq!(error["param"], "input");
        assert!(error["message"].as_str().unwrap().contains("input[1]"), "{error}");
    }
    let steered = server.running("endless").await;
    let path = format!("/v1/responses/{steered}/interventions");
    let steer = json!({"input": [{"type": "item_reference", "id": "msg_1"}]});
    let steer = server.post_keyed(&path, "steer", steer).await;
    assert_eq!(steer.body["error"]["param"], "input[0].type", "{}", steer.body);
}
