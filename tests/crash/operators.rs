//! What an operator does with the data folder between two runs of the server.

use serde_json::{Value, json};

use crate::support::{Site, journaled};

fn lines(output: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn what_an_operator_deletes_is_gone_and_what_stays_survives_a_compaction() {
    let site = Site::scripted(&json!([{"deltas": ["one ", "two ", "three"]}]));
    let server = site.start().await;
    let (kept, kept_in) = server.begin("1", json!({"input": "go"})).await;
    let (gone, gone_in) = server.begin("2", json!({"input": "go"})).await;
    let before = server.until_ended(&kept_in, &kept, 0).await;
    server.until_ended(&gone_in, &gone, 0).await;
    let refused = site.refused(&["conversations", "compact"]);
    assert!(refused.contains("another midstream runs on this data folder"), "{refused}");
    server.kill();

    let listed = lines(&site.run(&["conversations", "list"], b""));
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|line| line["active"] == false && line["event_bytes"].as_u64() > Some(0)), "{listed:?}");
    let shown = lines(&site.run(&["conversations", "show", &gone_in], b""));
    assert_eq!(shown[0]["event"]["type"], "conversation_created");
    site.run(&["conversations", "delete", &gone_in], b"");
    let refused = site.refused(&["conversations", "show", &gone_in]);
    assert!(refused.contains("there is no conversation"), "{refused}");
    site.run(&["conversations", "compact"], b"");
    site.run(&["conversations", "repair"], b"");

    let server = site.start().await;
    assert_eq!(server.get(&format!("/v1/responses/{gone}")).await["error"]["code"], "response_not_found");
    assert_eq!(
        server.get(&format!("/v1/conversations/{gone_in}/events")).await["error"]["code"],
        "conversation_not_found"
    );
    let after = server.until_ended(&kept_in, &kept, 0).await;
    assert_eq!(journaled(&after), journaled(&before));
}
