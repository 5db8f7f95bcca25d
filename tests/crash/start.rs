//! Not ready yet: probes are answered from the first moment on, others once there is somebody to answer them, and who
//! wants the process to end need not wait for its start.

use std::process::Command;

use serde_json::json;

use crate::support::{PATIENCE, Server, Site};

/// A server whose start waits until somebody writes the data folder's key, which is a pipe.
async fn held() -> (Site, Server) {
    let site = Site::scripted(&json!([{"deltas": ["Hello"]}]));
    let data = site.path().join("data");
    std::fs::create_dir_all(&data).unwrap();
    assert!(Command::new("mkfifo").arg(data.join("seal.key")).status().unwrap().success());
    let server = site.open_port().await;
    // The key is read behind the journal's opening.
    let open = async { while server.get("/readyz").await["starting"]["journal"] != "open" {} };
    tokio::time::timeout(PATIENCE, open).await.expect("the journal opens");
    (site, server)
}

#[tokio::test]
async fn a_server_that_starts_is_alive_and_not_ready_and_answers_who_came_early() {
    let (site, server) = held().await;
    assert_eq!(server.get("/healthz").await, json!({"status": "ok"}));
    let unready = server.get("/readyz").await;
    assert_eq!((&unready["status"], &unready["error"]["code"]), (&json!(503), &json!("recovering")));
    let pipe = site.path().join("data/seal.key");
    let release = async {
        // Answered in front of the release, so that the other request has come too.
        server.get("/healthz").await;
        tokio::task::spawn_blocking(move || std::fs::write(pipe, [7; 32])).await.unwrap().unwrap();
    };
    let ask = json!({"input": "hi"});
    let (early, ()) = tokio::join!(server.post("/v1/responses", "one", &ask), release);
    // On a machine that is very busy its wait may be over before the start is.
    let answered = early.0 == 200 && early.1["status"] == "completed";
    assert!(answered || early.1["error"]["code"] == "recovering", "{early:?}");
    assert_eq!(server.get("/readyz").await, json!({"status": "ready"}));
    assert_eq!(server.terminate().await, Some(0));
}

#[tokio::test]
async fn a_server_that_starts_ends_when_it_is_told_to() {
    let (_site, server) = held().await;
    assert_eq!(server.terminate().await, Some(0));
}
