//! What is turned away when there is no room, and what never is.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Server, Setup};

#[tokio::test]
async fn a_request_without_room_is_turned_away_before_its_body_is_read() {
    let server = Server::start_with(Setup { requests_in_flight_max: 1, ..Setup::default() }).await;
    let one = format!("/v1/conversations/{}", server.conversation().await);
    let items = format!("{one}/items");
    let mut stream = server.post_stream("/v1/responses", json!({"input": "endless", "stream": true})).await;
    stream.until("response.output_text.delta").await;
    let kept = "/v1/chat/completions/chatcmpl-1";
    for path in ["/v1/responses", "/v1/chat/completions", kept, "/v1/conversations", &one, &items] {
        let mut socket = TcpStream::connect(&server.address).await.unwrap();
        // The body is announced, and never comes.
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 503", "{path}");
    }
}

#[tokio::test]
async fn what_steers_and_cancels_needs_no_room() {
    let server = Server::start_with(Setup { requests_in_flight_max: 1, ..Setup::default() }).await;
    let mut stream = server.post_stream("/v1/responses", json!({"input": "endless", "stream": true})).await;
    let id = stream.until("response.created").await["response"]["id"].as_str().unwrap().to_owned();
    server.post("/v1/responses", json!({"input": "hi"})).await.assert_error(503, "overloaded");
    let path = format!("/v1/responses/{id}/interventions");
    let later = server.post_keyed(&path, "k", json!({"input": "more", "when": "after"})).await;
    assert_eq!(later.status, 202);
    let large = json!({"input": "x".repeat(1 << 19)});
    server.post_keyed(&path, "l", large).await.assert_error(413, "request_too_large");
    let cancelled = server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
    assert_eq!(cancelled.body["status"], "cancelled");
}

#[tokio::test]
async fn only_so_many_streams_and_sockets_read_at_once() {
    let server = Server::start_with(Setup { readers_max: 2, ..Setup::default() }).await;
    let conversation = server.conversation().await;
    let events = format!("/v1/conversations/{conversation}/events");
    let mut first = server.get_stream(&events).await;
    first.next().await.unwrap();
    let _socket = server.socket(&conversation).await;
    server.get(&events).await.assert_error(503, "overloaded");
    assert_eq!(server.post("/v1/responses", json!({"input": "hi"})).await.status, 200, "this needs no seat");
}
