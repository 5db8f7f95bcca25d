//! `/v1/chat/completions/{id}` and the list: completions that were asked for with `store`.

use serde_json::{Value, json};

use crate::keys::Guarded;
use crate::support::Server;

async fn kept(server: &Server, text: &str, topic: &str) -> Value {
    let messages = json!([{"role": "user", "content": text}]);
    let body = json!({"messages": messages, "store": true, "metadata": {"topic": topic}});
    let answer = server.post("/v1/chat/completions", body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

fn path(completion: &Value) -> String {
    format!("/v1/chat/completions/{}", completion["id"].as_str().unwrap())
}

fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_completion_that_is_kept_is_shown_as_it_was_answered_until_it_is_deleted() {
    let server = Server::start().await;
    let mut answered = kept(&server, "hi", "greeting").await;
    let path = path(&answered);
    answered["metadata"] = json!({"topic": "greeting"});
    assert_eq!(server.get(&path).await.body, answered);

    let updated = server.post(&path, json!({"metadata": {"topic": "parting", "of": "ann"}})).await;
    answered["metadata"] = json!({"topic": "parting", "of": "ann"});
    assert_eq!((updated.status, &updated.body), (200, &answered));
    assert_eq!(server.get(&path).await.body, answered);
    let bare = server.post(&path, json!({"metadata": null})).await;
    assert_eq!(bare.body["metadata"], json!({}));
    server.post(&path, json!({"metadata": 1})).await.assert_error(400, "invalid_input");

    let deleted = server.delete(&path).await;
    assert_eq!(deleted.body, json!({"object": "chat.completion.deleted", "id": answered["id"], "deleted": true}));
    for gone in [server.get(&path).await, server.delete(&path).await, server.get(&format!("{path}/messages")).await] {
        assert_eq!(gone.assert_error(404, "not_found")["param"], "completion_id");
    }
    assert_eq!(server.get("/v1/chat/completions").await.body["data"], json!([]));
}

#[tokio::test]
async fn what_is_no_kept_completion_is_not_found() {
    let server = Server::start().await;
    let passing = json!({"messages": [{"role": "user", "content": "hi"}]});
    let passing = server.post("/v1/chat/completions", passing).await.id();
    let broken = json!({"messages": [{"role": "user", "content": "broken"}], "store": true});
    assert_eq!(server.post("/v1/chat/completions", broken).await.status, 500);
    let response = server.post("/v1/responses", json!({"input": "hi"})).await.id();
    let disguised = response.replace("resp_", "chatcmpl-");
    for id in [passing.as_str(), response.as_str(), disguised.as_str(), "chatcmpl-1", "1"] {
        let path = format!("/v1/chat/completions/{id}");
        server.get(&path).await.assert_error(404, "not_found");
        server.post(&path, json!({"metadata": {}})).await.assert_error(404, "not_found");
        server.delete(&path).await.assert_error(404, "not_found");
        let after = server.get(&format!("/v1/chat/completions?after={id}")).await;
        assert!(matches!(after.status, 200 | 404), "{}", after.body);
    }
    assert_eq!(server.get("/v1/chat/completions").await.body["data"], json!([]), "nothing of it is listed");
}

#[tokio::test]
async fn the_list_goes_page_by_page_and_by_model_and_labels() {
    let server = Server::start().await;
    let mut all = Vec::new();
    for topic in ["a", "b", "a", "b", "a"] {
        all.push(kept(&server, "hi", topic).await["id"].as_str().unwrap().to_owned());
    }
    // Ids of one millisecond are in no order.
    all.sort();
    let listed = async |query: &str| server.get(&format!("/v1/chat/completions{query}")).await.body;
    let first = listed("?limit=2").await;
    assert_eq!((ids(&first), &first["has_more"]), (all[..2].iter().map(String::as_str).collect(), &json!(true)));
    assert_eq!(
        (&first["object"], &first["first_id"], &first["last_id"]),
        (&json!("list"), &json!(all[0]), &json!(all[1]))
    );
    let rest = listed(&format!("?limit=3&after={}", all[1])).await;
    assert_eq!((ids(&rest), &rest["has_more"]), (all[2..].iter().map(String::as_str).collect(), &json!(false)));
    let newest = listed(&format!("?order=desc&limit=2&after={}", all[4])).await;
    assert_eq!((ids(&newest), &newest["has_more"]), (vec![all[3].as_str(), all[2].as_str()], &json!(true)));
    let of_b = listed("?metadata[topic]=b").await;
    assert_eq!(ids(&of_b).len(), 2);
    assert!(of_b["data"].as_array().unwrap().iter().all(|it| it["metadata"] == json!({"topic": "b"})), "{of_b}");
    assert_eq!(ids(&listed("?metadata%5Btopic%5D=a&model=scripted").await).len(), 3);
    for nothing in ["?model=other", "?metadata[topic]=c", "?metadata[other]=a"] {
        let none = listed(nothing).await;
        assert_eq!((&none["data"], &none["first_id"], &none["has_more"]), (&json!([]), &Value::Null, &json!(false)));
    }
    for wrong in ["limit=0", "limit=101", "order=up"] {
        let refused = server.get(&format!("/v1/chat/completions?{wrong}")).await;
        let name = wrong.split('=').next().unwrap();
        assert_eq!(refused.assert_error(400, "invalid_input")["param"], name);
    }
}

#[tokio::test]
async fn its_messages_are_those_of_the_request() {
    let server = Server::start().await;
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "weather"}]},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "hi"},
    ]);
    let answered = server.post("/v1/chat/completions", json!({"messages": messages, "store": true})).await;
    let (path, id) = (path(&answered.body), answered.id());
    let list = server.get(&format!("{path}/messages")).await.body;
    let mut expected = messages.as_array().unwrap().clone();
    for (place, message) in expected.iter_mut().enumerate() {
        message["id"] = format!("{id}-{place}").into();
    }
    expected[1]["content"] = "weather".into();
    assert_eq!((&list["data"], &list["has_more"]), (&json!(expected), &json!(false)));
    let page = server.get(&format!("{path}/messages?order=desc&limit=2&after={id}-4")).await.body;
    assert_eq!((&page["data"], &page["has_more"]), (&json!([expected[3], expected[2]]), &json!(true)));
    server.get(&format!("{path}/messages?after={id}-9")).await.assert_error(404, "not_found");
}

#[tokio::test]
async fn a_streamed_completion_is_kept_as_well_and_what_went_on_keeps_its_transcript() {
    let server = Server::start().await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "store": true, "stream": true});
    let chunks = server.post_stream("/v1/chat/completions", body).await.rest_json().await;
    let path = path(&chunks[0]);
    assert_eq!(server.get(&path).await.body["choices"][0]["message"]["content"], "Hello, world");
    let response = chunks[0]["id"].as_str().unwrap().replace("chatcmpl-", "resp_");
    let next = server.post("/v1/responses", json!({"input": "more", "previous_response_id": response})).await;
    assert_eq!(ids(&server.get("/v1/chat/completions").await.body).len(), 1, "the next one was no chat");
    assert_eq!(server.delete(&path).await.status, 200);
    server.get(&path).await.assert_error(404, "not_found");
    assert_eq!(server.get(&format!("/v1/responses/{}", next.id())).await.status, 200);
}

#[tokio::test]
async fn what_goes_on_behind_a_result_is_no_kept_chat() {
    let server = Server::start().await;
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    let messages = json!([{"role": "user", "content": "weather"}]);
    let chat = server.post("/v1/chat/completions", json!({"messages": messages, "tools": tools, "store": true})).await;
    let call = &chat.body["choices"][0]["message"]["tool_calls"][0]["id"];
    let response = chat.id().replace("chatcmpl-", "resp_");
    let kept = server.get(&format!("/v1/responses/{response}")).await.body;
    let path = format!("/v1/conversations/{}/tool_results", kept["conversation"]["id"].as_str().unwrap());
    let accepted = server.post(&path, json!({"call_id": call, "output": "rain"})).await;
    assert!(accepted.body["successor_id"].is_string(), "{}", accepted.body);
    server.running.idle().await;
    assert_eq!(ids(&server.get("/v1/chat/completions").await.body), [chat.id()]);
}

#[tokio::test]
async fn everybody_lists_what_is_their_own() {
    let guarded = Guarded::start().await;
    let (ann, bob) = (guarded.named("ann"), guarded.named("bob"));
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "store": true});
    let hers = guarded.post(&ann, "/v1/chat/completions", body).await;
    assert_eq!(ids(&guarded.get(&ann, "/v1/chat/completions").await.body), [hers.id()]);
    assert_eq!(guarded.get(&bob, "/v1/chat/completions").await.body["data"], json!([]));
    guarded.get(&bob, &path(&hers.body)).await.assert_error(404, "not_found");
}
