//! A disk that takes no more: what cannot be written is not acknowledged, and behind the restart everything goes on.

use serde_json::json;

use crate::support::{Server, Site, journaled, shown_text};
use crate::witness::{Ask, Witness};

/// Words of an answer that is to be running when the disk takes no more.
const WORDS: usize = 600;

fn words() -> Vec<String> {
    (0..WORDS).map(|index| format!("word{index} ")).collect()
}

fn site() -> Site {
    Site::scripted(&json!([{"match": "tell", "deltas": words(), "delay_ms": 5}]))
}

/// Opens conversations that hold this until that is refused or the server has died.
async fn fill(server: &Server, witness: &mut Witness, text: &str) {
    let item = json!({"type": "message", "role": "user", "content": text});
    for number in 0.. {
        let (operation, path, key) = ("open", "/v1/conversations", format!("open {number}"));
        let body = json!({"items": [item]});
        let ask = Ask { operation, path, key: &key, conversation: None, input: None, body };
        if witness.ask(server, &ask).await.is_none_or(|answer| answer.is_null()) {
            return;
        }
    }
}

/// Starts the long answer; gives its conversation and its id.
async fn tell(server: &Server, witness: &mut Witness) -> (String, String) {
    let body = json!({"input": "tell", "background": true});
    let (operation, path, key, input) = ("create", "/v1/responses", "tell", Some("tell"));
    let answer = witness.ask(server, &Ask { operation, path, key, conversation: None, input, body }).await.unwrap();
    let id = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    (id(&answer["conversation"]["id"]), id(&answer["id"]))
}

/// What is there behind a start with a disk that takes everything.
async fn goes_on(site: &Site, witness: &mut Witness, conversation: &str, response: &str) {
    let server = site.start().await;
    let frames = journaled(&server.until_ended(conversation, response, 0).await);
    assert_eq!(shown_text(&frames, response), words().concat());
    assert!(witness.until_ended(&server, conversation, response).await);
    witness.audit(site, server).await.unwrap();
}

/// A limit on the size of files stands for the full disk: writes fail in the same places.
#[tokio::test]
async fn a_full_disk_is_told_on_every_route_and_what_was_acknowledged_goes_on_behind_the_restart() {
    let site = site().under(&["sh", "-c", "trap '' XFSZ; ulimit -f 6144; exec \"$0\" \"$@\""]);
    let (server, mut witness) = (site.start().await, Witness::default());
    let (conversation, response) = tell(&server, &mut witness).await;
    fill(&server, &mut witness, &"much ".repeat(20_000)).await;
    for path in ["/readyz", "/v1/models"] {
        assert_eq!(server.get(path).await["error"]["code"], "storage_unavailable", "{path}");
    }
    let (status, refused) = server.post("/v1/responses", "late", &json!({"input": "tell"})).await;
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("storage_unavailable")), "{refused}");
    server.kill();
    goes_on(&site.bare(), &mut witness, &conversation, &response).await;
}

#[tokio::test]
async fn a_sync_that_fails_ends_the_process_as_failed_and_what_was_acknowledged_goes_on_behind_the_restart() {
    let log = "/dev/null";
    let inject = "inject=fdatasync:error=EIO:when=60+";
    let site = site().under(&["strace", "-f", "-e", "trace=fdatasync", "-e", inject, "-o", log]);
    let (server, mut witness) = (site.start().await, Witness::default());
    let (conversation, response) = tell(&server, &mut witness).await;
    fill(&server, &mut witness, "little").await;
    let code = server.dead().await;
    assert!(code.is_some_and(|code| code != 0), "it ended with {code:?}");
    goes_on(&site.bare(), &mut witness, &conversation, &response).await;
}
