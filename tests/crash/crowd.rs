//! Very many at once: each is served or told to come back, and who leaves makes room.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{PATIENCE, Server, Site};

/// Streams that are open together.
const CROWD: usize = 1_000;

/// A stream of an answer that does not come in a test's time; it has begun when this returns.
async fn begun(host: String, path: &'static str, body: Value) -> TcpStream {
    let mut socket = TcpStream::connect(&host).await.unwrap();
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    socket.write_all((head + &body).as_bytes()).await.unwrap();
    let mut read = Vec::new();
    while !read.windows(6).any(|window| window == b"data: ") {
        assert!(socket.read_buf(&mut read).await.unwrap() > 0, "{path}: {}", String::from_utf8_lossy(&read));
    }
    assert!(read.starts_with(b"HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&read));
    socket
}

/// Asks until the server has room again.
async fn answered(server: &Server) -> Value {
    loop {
        let (status, body) = server.post("/v1/responses", "again", &json!({"input": "quick"})).await;
        if status == 200 {
            return body;
        }
        assert_eq!((status, &body["error"]["code"]), (503, &json!("overloaded")), "{body}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_thousand_streams_are_open_at_once_even_where_few_files_may_be_and_their_ends_make_room() {
    // The sockets' other ends are files of this process.
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    let replies = json!([
        {"match": "slow", "deltas": ["late"], "delay_ms": 3_600_000},
        {"match": "quick", "deltas": ["here"]},
    ]);
    let few = ["sh", "-c", "ulimit -S -n 256; exec \"$0\" \"$@\""];
    let room = ("MIDSTREAM_REQUESTS_IN_FLIGHT_MAX", "1000");
    let site = Site::scripted(&replies).under(&few);
    let server = site.try_start(&[room]).await.unwrap();
    let host = server.base.trim_start_matches("http://").to_owned();
    let messages = json!([{"role": "user", "content": "slow"}]);
    let kinds = [
        ("/v1/responses", json!({"input": "slow", "stream": true, "store": false})),
        ("/v1/chat/completions", json!({"messages": messages, "stream": true})),
        ("/v1/messages", json!({"messages": messages, "stream": true, "max_tokens": 9})),
    ];
    let mut begins = JoinSet::new();
    for (path, body) in kinds.iter().cycle().take(CROWD) {
        begins.spawn(begun(host.clone(), path, body.clone()));
    }
    let crowd = timeout(PATIENCE, begins.join_all()).await.expect("some do not begin");
    assert_eq!(crowd.len(), CROWD);
    let (status, refused) = server.post("/v1/responses", "one more", &json!({"input": "quick"})).await;
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("overloaded")), "{refused}");
    assert_eq!(server.get("/readyz").await["status"], "ready");
    drop(crowd);
    assert_eq!(timeout(PATIENCE, answered(&server)).await.unwrap()["status"], "completed");
    server.kill();
}
