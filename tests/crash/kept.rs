//! What clients name without its conversation: kept chats and items are found again behind a kill.

use serde_json::json;

use crate::support::Site;

#[tokio::test]
async fn kept_chats_and_items_are_found_again_behind_a_kill() {
    let site = Site::scripted(&json!([{"deltas": ["It ", "is ", "so."]}]));
    let server = site.start().await;
    let messages = json!([{"role": "user", "content": "is it?"}]);
    let asked = json!({"messages": messages, "store": true, "metadata": {"topic": "doubt"}});
    let (status, mut chat) = server.post("/v1/chat/completions", "chat", &asked).await;
    assert_eq!(status, 200, "{chat}");
    chat["metadata"] = json!({"topic": "doubt"});
    let path = format!("/v1/chat/completions/{}", chat["id"].as_str().unwrap());
    assert_eq!(server.get(&path).await, chat);
    let (_, response) = server.post("/v1/responses", "response", &json!({"input": "hi"})).await;
    server.kill();

    let server = site.start().await;
    assert_eq!(server.get(&path).await, chat);
    assert_eq!(server.get("/v1/chat/completions?metadata[topic]=doubt").await["data"], json!([chat]));
    let input = json!([{"type": "item_reference", "id": response["output"][0]["id"]}, messages[0]]);
    let (status, next) = server.post("/v1/responses", "next", &json!({"input": input})).await;
    assert_eq!(status, 200, "{next}");
    let listed = server.get(&format!("/v1/responses/{}/input_items?order=asc", next["id"].as_str().unwrap())).await;
    assert_eq!(listed["data"][0]["content"], response["output"][0]["content"], "{listed}");
    server.kill();
}
