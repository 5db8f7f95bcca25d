//! What costs memory: connections that say nothing, and small bodies that expand to large ones.

use reqwest::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Server, Site};

/// Bytes of memory that the server has.
fn resident_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Has an answer given, so that everything there is once is there.
async fn ask(server: &Server, key: &str) {
    assert_eq!(server.post("/v1/responses", key, &json!({"input": "hi"})).await.0, 200);
}

#[tokio::test]
async fn a_thousand_idle_connections_cost_little_and_keep_nobody_waiting() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let count = limit.maximum.map_or(1_000, |most| most.saturating_sub(400).clamp(50, 1_000));
    let site = Site::scripted(&json!([{"deltas": ["hello"]}]));
    let server = site.start().await;
    ask(&server, "before").await;
    let before = resident_bytes(&server);
    let address = server.base.trim_start_matches("http://");
    let mut idle = Vec::new();
    for number in 0..count {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Some have begun to say something.
        stream.write_all(&b"GET /healthz HTTP/1.1\r\n"[..number as usize % 20]).await.unwrap();
        idle.push(stream);
    }
    ask(&server, "beside").await;
    let each = resident_bytes(&server).saturating_sub(before) / count;
    assert!(each < 64 << 10, "{each} bytes for each of {count} connections");
    // They are connections like any other still.
    let mut first = idle.swap_remove(0);
    first.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    first.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(idle);
    ask(&server, "behind").await;
    server.kill();
}

#[tokio::test]
async fn a_small_body_that_expands_to_a_gibibyte_costs_no_more_than_the_bound() {
    let spaces = std::io::Read::take(std::io::repeat(b' '), 1 << 30);
    let bomb = zstd::stream::encode_all(spaces, 1).unwrap();
    assert!(bomb.len() < 1 << 20, "{} bytes", bomb.len());
    let site = Site::scripted(&json!([{"deltas": ["hello"]}]));
    let server = site.try_start(&[("MIDSTREAM_BODY_BYTES_MAX", "4194304")]).await.unwrap();
    ask(&server, "before").await;
    let before = resident_bytes(&server);
    let client = Client::builder().no_proxy().build().unwrap();
    for path in ["/v1/responses", "/v1/messages", "/v1/conversations", "/v1/tokenize"] {
        let request = client.post(format!("{}{path}", server.base)).header("content-encoding", "zstd");
        // The answer comes before all was sent, so the client may not hear it.
        if let Ok(answer) = request.body(bomb.clone()).send().await {
            assert_eq!(answer.status(), 413, "{path}");
        }
    }
    let more = resident_bytes(&server).saturating_sub(before);
    assert!(more < 64 << 20, "{more} bytes");
    ask(&server, "behind").await;
    server.kill();
}
