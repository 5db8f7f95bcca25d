//! What is deleted is gone through every interface at once.

use serde_json::json;

use crate::support::Server;

#[tokio::test]
async fn a_deleted_conversation_is_gone_through_every_interface() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let at = format!("/v1/conversations/{conversation}");
    let done = server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await.id();
    let body = json!({"input": "endless", "conversation": conversation, "background": true});
    let running = server.post_keyed("/v1/responses", "k", body.clone()).await.id();
    let later = json!({"input": "later", "when": "after"});
    let steer = server.post_keyed(&format!("/v1/responses/{running}/interventions"), "s", later).await.id();
    let mut reader = server.get_stream(&format!("{at}/events")).await;
    let deleted = server.delete(&at).await;
    assert_eq!((deleted.status, &deleted.body["deleted"]), (200, &json!(true)), "{}", deleted.body);

    assert_eq!(reader.until("intervention.failed").await["error"]["code"], "conversation_deleted");
    assert_eq!(reader.until("response.incomplete").await["response_id"], json!(running));
    reader.until("conversation.deleted").await;
    assert!(reader.rest().await.is_empty(), "nothing follows");

    for path in [at.clone(), format!("{at}/items"), format!("{at}/events"), format!("{at}/ws")] {
        server.get(&path).await.assert_error(404, "conversation_not_found");
    }
    for id in [&done, &running] {
        server.get(&format!("/v1/responses/{id}")).await.assert_error(404, "response_not_found");
    }
    server.get(&format!("/v1/interventions/{steer}")).await.assert_error(404, "intervention_not_found");
    server.delete(&at).await.assert_error(404, "conversation_not_found");
    server.post_keyed("/v1/responses", "k", body).await.assert_error(404, "conversation_not_found");
    let body = json!({"input": "go on", "previous_response_id": done});
    server.post("/v1/responses", body).await.assert_error(400, "previous_response_not_found");
}

#[tokio::test]
async fn deleting_a_parent_leaves_its_fork_whole() {
    let server = Server::start().await;
    let first = server.post("/v1/responses", json!({"input": "hi"})).await;
    let body = json!({"input": "rain", "previous_response_id": first.id()});
    server.post("/v1/responses", body.clone()).await;
    let fork = server.post("/v1/responses", body).await;
    assert_ne!(fork.body["conversation"]["id"], first.body["conversation"]["id"]);
    server.delete(&format!("/v1/conversations/{}", first.body["conversation"]["id"].as_str().unwrap())).await;
    let fork = fork.body["conversation"]["id"].as_str().unwrap().to_owned();
    let items = server.get(&format!("/v1/conversations/{fork}/items?order=asc")).await;
    assert_eq!(items.body["data"][0]["content"][0]["text"], "hi");
}

#[tokio::test]
async fn a_deleted_response_leaves_the_transcript() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let id = server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await.id();
    let at = format!("/v1/responses/{id}");
    assert_eq!(server.delete(&at).await.body["deleted"], true);
    server.get(&at).await.assert_error(404, "response_not_found");
    server.delete(&at).await.assert_error(404, "response_not_found");
    let items = server.get(&format!("/v1/conversations/{conversation}/items?order=asc")).await;
    assert_eq!(items.body["data"][1]["content"][0]["text"], "Hello, world");
    let running = server.running("endless").await;
    server.delete(&format!("/v1/responses/{running}")).await.assert_error(409, "conversation_busy");
    server.post(&format!("/v1/responses/{running}/cancel"), json!({})).await;
}

#[tokio::test]
async fn items_are_added_found_and_taken_out_between_turns() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let at = format!("/v1/conversations/{conversation}/items");
    let added = server.post(&at, json!({"items": [{"role": "user", "content": "note"}]})).await;
    let item = added.body["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(server.get(&format!("{at}/{item}")).await.body["content"][0]["text"], "note");
    assert_eq!(server.delete(&format!("{at}/{item}")).await.status, 200);
    server.get(&format!("{at}/{item}")).await.assert_error(404, "not_found");
    server.delete(&format!("{at}/{item}")).await.assert_error(404, "not_found");
    let body = json!({"input": "endless", "conversation": conversation, "background": true});
    let id = server.post("/v1/responses", body).await.id();
    let busy = server.post(&at, json!({"items": [{"role": "user", "content": "note"}]})).await;
    busy.assert_error(409, "conversation_busy");
    server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
    server.post(&at, json!({"items": []})).await.assert_error(400, "invalid_input");
}

#[tokio::test]
async fn labels_are_replaced() {
    let server = Server::start().await;
    let at = format!("/v1/conversations/{}", server.conversation().await);
    let labelled = server.post(&at, json!({"metadata": {"topic": "b"}})).await;
    assert_eq!(labelled.body["metadata"], json!({"topic": "b"}));
    assert_eq!(server.get(&at).await.body, labelled.body);
}

#[tokio::test]
async fn a_socket_of_a_deleted_conversation_closes_for_good() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let mut socket = server.socket(&conversation).await;
    let mut idle = server.socket(&conversation).await;
    socket.send(json!({"type": "conversation.subscribe"})).await;
    socket.until_type("conversation.created").await;
    server.delete(&format!("/v1/conversations/{conversation}")).await;
    socket.until_type("conversation.deleted").await;
    assert_eq!(socket.close_code().await, 1000);
    idle.send(json!({"type": "conversation.subscribe", "event_id": "e"})).await;
    assert_eq!(idle.answer_to("e").await["error"]["code"], "conversation_not_found");
}

#[tokio::test]
async fn a_path_that_is_no_text_is_not_found() {
    let server = Server::start().await;
    let at = format!("/v1/conversations/{}", server.conversation().await);
    server.get(&format!("{at}/items/%ff")).await.assert_error(404, "not_found");
    server.delete(&format!("{at}/items/%ff")).await.assert_error(404, "not_found");
    server.post(&format!("{at}/tool_calls/%ff/claim"), json!({})).await.assert_error(404, "not_found");
}
