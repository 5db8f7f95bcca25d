//! Clients that are slow, silent, half gone, or say what nobody can mean: each gets a clear answer or is closed, within
//! bounds that have names, and others are answered meanwhile.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use midstream::api::Doors;
use midstream::config::Config;
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::support::{Answer, PATIENCE, Server, Setup};

/// What is small enough to be waited for.
const BRIEF: Duration = Duration::from_millis(500);

fn doors(change: impl FnOnce(&mut Doors)) -> Doors {
    let mut doors = Doors::new(&Config::default());
    change(&mut doors);
    doors
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(&server.address).await.unwrap()
}

/// What the server says until it closes; a reset is a close.
async fn said(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        let mut part = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut part).await {
            bytes.extend_from_slice(&part[..count]);
        }
    };
    timeout(PATIENCE, reading).await.expect("it is closed");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether somebody else is answered, on a connection of his own.
async fn answers_others(server: &Server) -> bool {
    let mut stream = connect(server).await;
    let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(ask).await.is_ok() && said(stream).await.starts_with("HTTP/1.1 200")
}

/// Drips until others were answered meanwhile, and gives what the server said.
/// A busy machine may answer nobody in time.
async fn drip(server: &Server, head: &str) -> String {
    loop {
        let (said, answered) = drip_once(server, head).await;
        if answered > 0 {
            return said;
        }
    }
}

/// Sends this and then one byte after the other until the server closes; between two of them others ask. Gives what the
/// server said, and how many others were answered.
async fn drip_once(server: &Server, head: &str) -> (String, usize) {
    let (mut from, mut to) = connect(server).await.into_split();
    to.write_all(head.as_bytes()).await.unwrap();
    let reading = async {
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = from.read(&mut part).await {
            bytes.extend_from_slice(&part[..count]);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let mut answered = 0;
    let dripping = async {
        loop {
            answered += usize::from(answers_others(server).await);
            if to.write_all(b"a").await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let told = async {
        tokio::select! {
            said = reading => said,
            () = dripping => unreachable!("it drips for ever"),
        }
    };
    let told = Box::pin(timeout(PATIENCE, told)).await.expect("who drips is closed");
    (told, answered)
}

#[tokio::test]
async fn headers_that_drip_are_not_waited_for() {
    let server = Server::start_with(Setup { doors: doors(|it| it.header_timeout = BRIEF), ..Setup::default() }).await;
    let heads = ["G", "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: "].map(|head| drip(&server, head));
    // Who says nothing at all is closed as well.
    let (dripped, silent) = tokio::join!(futures_util::future::join_all(heads), said(connect(&server).await));
    assert_eq!((dripped, silent), (vec![String::new(); 2], String::new()), "closed without a word");
}

#[tokio::test]
async fn a_connection_that_stays_silent_behind_an_answer_is_closed() {
    let server = Server::start_with(Setup { doors: doors(|it| it.header_timeout = BRIEF), ..Setup::default() }).await;
    let answered = async {
        loop {
            let mut stream = connect(&server).await;
            let asked = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            // Who is kept from asking for too long by a busy machine asks again.
            if asked.is_ok() && said(stream).await.starts_with("HTTP/1.1 200") {
                return;
            }
        }
    };
    timeout(PATIENCE, answered).await.expect("it is answered and closed");
}

#[tokio::test]
async fn a_body_that_drips_gets_408_and_its_room_is_free_again() {
    let setup = Setup { body_timeout: BRIEF, requests_in_flight_max: 2, ..Setup::default() };
    let server = Server::start_with(setup).await;
    for path in ["/v1/responses", "/v1/chat/completions", "/v1/messages", "/v1/conversations"] {
        let heads = ["content-length: 1000000\r\n\r\n", "transfer-encoding: chunked\r\n\r\nfffff\r\n"];
        let heads = heads.map(|framing| format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{framing}"));
        for answer in futures_util::future::join_all(heads.each_ref().map(|head| drip(&server, head))).await {
            assert!(answer.starts_with("HTTP/1.1 408"), "{path}: {answer}");
            assert!(answer.contains("request_timeout") && answer.contains("within 500 ms"), "{path}: {answer}");
        }
    }
    // All of the room is there.
    let slow = || server.post("/v1/responses", json!({"input": "slow"}));
    for answer in futures_util::future::join_all([slow(), slow()]).await {
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answers_is_closed() {
    let server = Server::start_with(Setup { doors: doors(|it| it.write_timeout = BRIEF), ..Setup::default() }).await;
    let id = server.post("/v1/responses", json!({"input": "x".repeat(900_000)})).await.id();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address.parse().unwrap()).await.unwrap();
    // More than the system keeps for a client that does not read.
    let asks = format!("GET /v1/responses/{id}/input_items HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(40);
    let closed = async {
        while stream.write_all(asks.as_bytes()).await.is_ok() {
            assert_eq!(server.get("/healthz").await.status, 200);
        }
    };
    timeout(PATIENCE, closed).await.expect("it is closed");
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_one_that_goes_makes_room() {
    let server = Server::start_with(Setup { doors: doors(|it| it.connections_max = 2), ..Setup::default() }).await;
    let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = connect(&server).await;
        stream.write_all(ask).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        held.push(stream);
    }
    assert_eq!(said(connect(&server).await).await, "");
    held.pop();
    let room = async {
        loop {
            let mut stream = connect(&server).await;
            let mut answer = [0; 12];
            if stream.write_all(ask).await.is_ok() && stream.read_exact(&mut answer).await.is_ok() {
                return answer;
            }
        }
    };
    assert_eq!(&timeout(PATIENCE, room).await.expect("there is room again"), b"HTTP/1.1 200");
}

#[tokio::test]
async fn a_socket_keeps_the_place_of_its_connection() {
    let server = Server::start_with(Setup { doors: doors(|it| it.connections_max = 2), ..Setup::default() }).await;
    let conversation = server.conversation().await;
    // The client of the tests keeps one connection.
    let _socket = server.socket(&conversation).await;
    assert_eq!(said(connect(&server).await).await, "");
}

#[tokio::test]
async fn a_connection_that_is_half_closed_is_answered_or_closed() {
    let server = Server::start().await;
    let body = json!({"messages": [{"role": "user", "content": "endless"}], "stream": true}).to_string();
    let head = |length: usize| {
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n")
    };
    for (sent, statuses) in [
        (String::new(), vec![]),
        ("GET /heal".to_owned(), vec!["400"]),
        ("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), vec!["200"]),
        (head(100) + "{\"input\"", vec!["400"]),
        (head(body.len()) + &body, vec!["200"]),
    ] {
        let mut stream = connect(&server).await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = said(stream).await;
        let status = answer.split(' ').nth(1);
        assert!(status.is_none_or(|status| statuses.contains(&status)), "{sent}: {answer}");
    }
    timeout(PATIENCE, server.running.idle()).await.expect("nothing runs for who is gone");
    assert_eq!(server.post("/v1/responses", json!({"input": "hi"})).await.status, 200);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_by_its_size() {
    let server = Server::start().await;
    let long = "x".repeat(64 << 10);
    let many = "x-one: of many\r\n".repeat(200);
    for (head, statuses) in [
        (format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: {long}\r\n\r\n"), vec!["431"]),
        (format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"), vec!["431"]),
        (format!("GET /v1/models?{long} HTTP/1.1\r\nhost: localhost\r\n\r\n"), vec!["431", "414"]),
        (format!("{long} /healthz HTTP/1.1\r\n\r\n"), vec!["431", "400"]),
    ] {
        let mut stream = connect(&server).await;
        // The answer may come before all was said.
        let _ = stream.write_all(head.as_bytes()).await;
        let answer = said(stream).await;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(statuses.contains(&status), "{}: {answer}", &head[..20]);
    }
    // What clients send has room: Claude Code and Codex stay below 4 KiB.
    let large = server.request(Method::GET, "/healthz").header("x-large", "x".repeat(30 << 10));
    assert_eq!(large.send().await.unwrap().status(), 200);
}

/// Routes that take a body, with a body of theirs that is one text but for a field.
const ROUTES: [(&str, &str); 4] = [
    ("/v1/responses", r#"{"input": "hi", "FIELD": VALUE}"#),
    ("/v1/chat/completions", r#"{"messages": [{"role": "user", "content": "hi"}], "FIELD": VALUE}"#),
    ("/v1/messages", r#"{"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "FIELD": VALUE}"#),
    ("/v1/conversations", r#"{"FIELD": VALUE}"#),
];

async fn post(server: &Server, path: &str, body: Vec<u8>) -> Answer {
    let request = server.request(Method::POST, path).header("content-type", "application/json").body(body);
    Answer::read(request.send().await.unwrap()).await
}

/// The message of a refusal, whatever its form.
fn refusal(answer: &Answer) -> &str {
    assert_eq!(answer.status, 400, "{}", answer.body);
    let code = answer.body["error"].get("code").or(answer.body.pointer("/error/details/error_code"));
    assert_eq!(code, Some(&json!("invalid_input")), "{}", answer.body);
    answer.body["error"]["message"].as_str().unwrap()
}

#[tokio::test]
async fn json_of_ten_thousand_levels_and_numbers_of_400_digits_are_refused_in_words() {
    let server = Server::start().await;
    let deep = ["[".repeat(10_000) + &"]".repeat(10_000), "{\"a\":".repeat(10_000) + "1" + &"}".repeat(10_000)];
    let long = ["9".repeat(400), format!("-{}", "9".repeat(400)), format!("1e{}", "9".repeat(400))];
    for (path, body) in ROUTES {
        let with = |field: &str, value: &str| body.replace("FIELD", field).replace("VALUE", value).into_bytes();
        for value in &deep {
            let answer = post(&server, path, with("metadata", value)).await;
            assert!(refusal(&answer).contains("nested too deeply"), "{path}: {}", answer.body);
        }
        for value in &long {
            let answer = post(&server, path, with("seed", value)).await;
            assert!(refusal(&answer).contains("not valid JSON"), "{path}: {}", answer.body);
        }
        // Long, and a number like any other.
        let answer = post(&server, path, with("temperature", &format!("0.{}", "5".repeat(400)))).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    let id = server.conversation().await;
    let mut socket = server.socket(&id).await;
    socket.send_text(format!(r#"{{"type": "response.create", "input": {}}}"#, deep[0])).await;
    let frame = socket.until_type("error").await;
    assert!(frame["error"]["message"].as_str().unwrap().contains("nested too deeply"), "{frame}");
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_wherever_they_stand() {
    let server = Server::start().await;
    for (path, body) in ROUTES {
        let text = body.replace("FIELD", "user").replace("VALUE", "\"u\"");
        let mut bytes = text.into_bytes();
        let place = bytes.len() - 3;
        bytes[place] = 0xff;
        assert!(refusal(&post(&server, path, bytes).await).contains("not valid JSON"), "{path}");
    }
    let mut asks: Vec<(Vec<u8>, &[&str])> =
        vec![(b"GET /v1/responses/\xff HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(), &["400", "404"])];
    for name in ["idempotency-key", "authorization", "x-api-key", "anthropic-version", "content-type", "origin", "host"]
    {
        let more = if name == "host" { "" } else { "host: localhost\r\n" };
        let head = format!("POST /v1/responses HTTP/1.1\r\n{more}connection: close\r\ncontent-length: 2\r\n{name}: ");
        asks.push(([head.as_bytes(), b"\xff\xfe\r\n\r\n{}"].concat(), &["400", "403"]));
    }
    for (ask, statuses) in asks {
        let mut stream = connect(&server).await;
        stream.write_all(&ask).await.unwrap();
        let answer = said(stream).await;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(statuses.contains(&status), "{}: {answer}", String::from_utf8_lossy(&ask));
    }
}

#[tokio::test]
async fn a_text_frame_that_is_no_text_closes_its_socket_with_the_code_for_that() {
    let server = Server::start().await;
    let id = server.conversation().await;
    for mut socket in [server.socket(&id).await, server.responses_socket().await] {
        let bytes = b"{\"type\": \"\xff\xfe\"}".to_vec();
        let frame = Frame::message(bytes, OpCode::Data(Data::Text), true);
        socket.0.send(Message::Frame(frame)).await.unwrap();
        let closed = async {
            while let Some(Ok(message)) = socket.0.next().await {
                if let Message::Close(Some(frame)) = message {
                    return u16::from(frame.code);
                }
            }
            panic!("it is closed without a word");
        };
        assert_eq!(timeout(PATIENCE, closed).await.expect("it is closed"), 1007);
    }
}
