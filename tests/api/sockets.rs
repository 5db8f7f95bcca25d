//! `/v1/conversations/{id}/ws`.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{PATIENCE, Server, Setup, text_of};

/// Whether these frames are a slice of the journal, answers left out.
#[track_caller]
fn assert_gapless(frames: &[Value]) {
    let seqs: Vec<u64> = frames.iter().filter_map(|frame| frame["seq"].as_u64()).collect();
    let first = seqs[0];
    assert_eq!(seqs, (first..first + seqs.len() as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_created_response_is_followed_from_its_first_event() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    socket.send(json!({"type": "response.create", "event_id": "e1", "input": "hi"})).await;
    let frames = socket.until(|frame| frame["type"] == "response.completed").await;
    assert_eq!(frames[0]["type"], "conversation.snapshot");
    assert_eq!((&frames[1]["type"], &frames[1]["event_id"]), (&json!("response.created"), &json!("e1")));
    assert!(frames[2..].iter().all(|frame| frame.get("event_id").is_none()));
    assert_gapless(&frames);
    assert_eq!(text_of(&frames), "Hello, world");
}

#[tokio::test]
async fn a_subscriber_gets_what_it_missed_and_what_follows_each_once() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await;
    let mut socket = server.socket(&conversation).await;
    socket.send(json!({"type": "conversation.subscribe", "event_id": "e1", "after": 1})).await;
    socket.send(json!({"type": "response.create", "event_id": "e2", "input": "rain"})).await;
    let created = |frame: &Value| frame["type"] == "response.created" && frame["event_id"] == "e2";
    let mut frames = socket.until(created).await;
    frames.extend(socket.until(|frame| frame["type"] == "response.completed").await);
    assert_eq!((&frames[0]["type"], &frames[0]["event_id"]), (&json!("conversation.snapshot"), &json!("e1")));
    assert_eq!(frames[1]["seq"], 2);
    assert_gapless(&frames);
    assert_eq!(text_of(&frames), "Hello, worldTake an umbrella.");
}

#[tokio::test]
async fn a_subscription_outlives_another_one_that_is_refused() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    socket.send(json!({"type": "conversation.subscribe"})).await;
    socket.send(json!({"type": "conversation.subscribe", "event_id": "e1", "after": 99})).await;
    socket.until(|frame| frame["type"] == "error" && frame["event_id"] == "e1").await;
    socket.send(json!({"type": "response.create", "input": "hi"})).await;
    let frames = socket.until(|frame| frame["type"] == "response.completed").await;
    assert!(frames.iter().all(|frame| frame["type"] != "conversation.snapshot"), "it began anew: {frames:?}");
}

#[tokio::test]
async fn an_instruction_is_accepted_and_committed_in_the_stream() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    socket.send(json!({"type": "response.create", "input": "endless"})).await;
    let mut frames = socket.until(|frame| frame["type"] == "response.output_text.delta").await;
    let id = frames[1]["response_id"].clone();
    let steer = json!({"type": "conversation.intervene", "event_id": "e2", "response_id": id, "input": "In French"});
    socket.send(steer.clone()).await;
    frames.extend(socket.until(|frame| frame["type"] == "intervention.committed").await);
    let committed = frames.last().unwrap().clone();
    let accepted = frames.iter().find(|frame| frame["type"] == "intervention.accepted").unwrap();
    assert_eq!((&accepted["event_id"], &committed["event_id"]), (&json!("e2"), &json!("e2")));
    assert_eq!((&committed["response_id"], committed["cut"]["token_index"].is_u64()), (&id, true));
    frames.extend(socket.until(|frame| frame["type"] == "response.completed").await);
    assert_eq!(frames.last().unwrap()["response_id"], committed["successor_id"]);
    assert_gapless(&frames);
    assert!(text_of(&frames).ends_with("Bonjour"));

    socket.send(steer).await;
    let replayed = socket.answer_to("e2").await;
    assert_eq!((&replayed["replayed"], &replayed["type"]), (&json!(true), &json!("intervention.committed")));
    assert_eq!(replayed["intervention_id"], committed["intervention_id"]);
    let late = json!({"type": "conversation.intervene", "event_id": "e3", "response_id": id, "input": "no"});
    socket.send(late).await;
    let error = socket.answer_to("e3").await;
    assert_eq!((&error["type"], &error["status"]), (&json!("error"), &json!(409)));
    assert_eq!(error["error"]["code"], "response_already_completed");
    assert_eq!((&error["error"]["input"], &error["error"]["successor_id"]), (&json!("no"), &committed["successor_id"]));
}

#[tokio::test]
async fn a_cancel_without_an_id_means_the_active_response() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    socket.send(json!({"type": "response.create", "input": "endless"})).await;
    let delta = socket.until_type("response.output_text.delta").await;
    socket.send(json!({"type": "response.cancel", "event_id": "e2"})).await;
    // The answer lies outside the order of events: either may come first.
    let (mut last, mut answer) = (Value::Null, Value::Null);
    while last.is_null() || answer.is_null() {
        let frame = socket.next().await;
        if frame["type"] == "response.incomplete" {
            last = frame;
        } else if frame["event_id"] == "e2" {
            answer = frame;
        }
    }
    assert_eq!((&last["response_id"], &last["response"]["status"]), (&delta["response_id"], &json!("cancelled")));
    assert_eq!(answer["type"], "response.cancel.result");
    assert_eq!(
        (&answer["cancel"]["outcome"], &answer["response"]["status"]),
        (&json!("cancelled"), &json!("cancelled"))
    );
    socket.send(json!({"type": "response.cancel", "event_id": "e3", "response_id": delta["response_id"]})).await;
    assert_eq!(socket.answer_to("e3").await["cancel"]["outcome"], "already_cancelled");
    socket.send(json!({"type": "response.cancel", "event_id": "e4"})).await;
    assert_eq!(socket.answer_to("e4").await["error"]["code"], "response_not_active");
}

#[tokio::test]
async fn a_cancel_on_a_socket_need_not_wait_and_follows_a_steer_if_asked_to() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    socket.send(json!({"type": "response.create", "event_id": "e1", "input": "endless"})).await;
    let id = socket.answer_to("e1").await["response_id"].clone();
    socket.until_type("response.output_text.delta").await;
    let steer = json!({"type": "conversation.intervene", "response_id": id, "input": "endless again"});
    socket.send(steer).await;
    let successor = socket.until_type("intervention.committed").await["successor_id"].clone();
    let cancel = |event_id: &str, more: Value| {
        let mut frame = json!({"type": "response.cancel", "event_id": event_id});
        frame.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        frame
    };
    socket.send(cancel("e2", json!({"response_id": id}))).await;
    let late = socket.answer_to("e2").await["cancel"].clone();
    assert_eq!((&late["outcome"], &late["successor_id"]), (&json!("too_late"), &successor));
    let path = format!("/v1/responses/{}", successor.as_str().unwrap());
    assert_ne!(server.get(&path).await.body["status"], "cancelled", "it was not asked for");
    socket.send(cancel("e3", json!({"response_id": id, "cascade": true}))).await;
    let cascaded = socket.answer_to("e3").await;
    assert_eq!((&cascaded["cancel"]["outcome"], &cascaded["cancel"]["cascaded_id"]), (&json!("too_late"), &successor));
    assert_eq!(server.get(&path).await.body["status"], "cancelled");

    socket.send(json!({"type": "response.create", "event_id": "e4", "input": "endless"})).await;
    let id = socket.answer_to("e4").await["response_id"].clone();
    socket.until_type("response.output_text.delta").await;
    socket.send(cancel("e5", json!({"wait": false}))).await;
    let requested = socket.answer_to("e5").await;
    assert_eq!((&requested["cancel"]["outcome"], &requested["response_id"]), (&json!("requested"), &id));
    assert_eq!(server.ended(id.as_str().unwrap()).await["status"], "cancelled");
}

#[tokio::test]
async fn a_repeated_create_is_answered_again_and_makes_no_second_response() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let create = json!({"type": "response.create", "event_id": "e1", "input": "slow"});
    let mut first = server.socket(&conversation).await;
    first.send(create.clone()).await;
    let created = first.answer_to("e1").await;
    drop(first);
    let mut second = server.socket(&conversation).await;
    second.send(create).await;
    let frames = second.until(|frame| frame["type"] == "response.completed").await;
    let replayed = frames.iter().find(|frame| frame["event_id"] == "e1").unwrap();
    assert_eq!((&replayed["replayed"], &replayed["response_id"]), (&json!(true), &created["response_id"]));
    assert_eq!(text_of(&frames), "one two three four");
    let body = json!({"input": "slow", "stream": true, "conversation": conversation});
    let request = server.request(reqwest::Method::POST, "/v1/responses").header("Idempotency-Key", "e1").json(&body);
    let over_http = server.stream(request).await.rest_json().await;
    assert_eq!(over_http[0]["response"]["id"], created["response_id"], "a key is the same over HTTP");
}

#[tokio::test]
async fn faulty_frames_are_answered_and_the_socket_stays_open() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    for (text, param) in [
        ("{", Value::Null),
        ("[1]", Value::Null),
        ("{}", json!("type")),
        (r#"{"type": "no.such"}"#, json!("type")),
        (r#"{"type": "response.create", "temperature": "hot", "input": "a"}"#, json!("temperature")),
        (r#"{"type": "response.create", "input": "a", "store": false}"#, json!("store")),
        (r#"{"type": "response.create", "input": "a", "conversation": "conv_1"}"#, json!("conversation")),
        (r#"{"type": "conversation.intervene", "input": "a"}"#, json!("response_id")),
        (r#"{"type": "conversation.subscribe", "after": {}}"#, json!("after")),
    ] {
        socket.0.send(Message::text(text)).await.unwrap();
        let error = socket.next().await;
        assert_eq!((&error["type"], &error["status"]), (&json!("error"), &json!(400)), "{text}: {error}");
        assert_eq!((&error["error"]["code"], &error["error"]["param"]), (&json!("invalid_input"), &param), "{text}");
    }
    socket.0.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert_eq!(socket.next().await["error"]["code"], "invalid_input");
    socket.send(json!({"type": "response.create", "event_id": "e9", "model": "no", "input": "a"})).await;
    let error = socket.next().await;
    assert_eq!((&error["event_id"], &error["status"]), (&json!("e9"), &json!(404)));
    socket.send(json!({"type": "response.create", "input": "hi"})).await;
    socket.until_type("response.completed").await;
}

#[tokio::test]
async fn a_conversations_socket_forks_nothing() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    socket.send(json!({"type": "response.create", "event_id": "e1", "input": "hi"})).await;
    let first = socket.answer_to("e1").await["response_id"].clone();
    socket.until_type("response.completed").await;
    socket.send(json!({"type": "response.create", "input": "rain", "previous_response_id": first})).await;
    socket.until_type("response.completed").await;
    let older = json!({"type": "response.create", "event_id": "e2", "input": "hi", "previous_response_id": first});
    socket.send(older).await;
    let error = socket.answer_to("e2").await;
    assert_eq!((&error["status"], &error["error"]["code"]), (&json!(409), &json!("response_not_active")), "{error}");
    assert_eq!(error["error"]["param"], "previous_response_id");
}

#[tokio::test]
async fn a_frame_over_the_limit_closes_the_socket_and_nothing_else() {
    let server = Server::start_with(Setup { ws_frame_bytes_max: 1000, ..Setup::default() }).await;
    let conversation = server.conversation().await;
    let mut socket = server.socket(&conversation).await;
    let _ = socket.0.send(Message::text("x".repeat(100_000))).await;
    loop {
        match tokio::time::timeout(PATIENCE, socket.0.next()).await.unwrap() {
            None | Some(Err(_) | Ok(Message::Close(_))) => break,
            Some(Ok(_)) => {}
        }
    }
    assert_eq!(server.get(&format!("/v1/conversations/{conversation}")).await.status, 200);
}

#[tokio::test]
async fn silence_on_a_socket_is_broken_by_a_ping() {
    let server = Server::start_with(Setup { silence: Duration::from_millis(20), ..Setup::default() }).await;
    let mut socket = server.socket(&server.conversation().await).await;
    let message = tokio::time::timeout(PATIENCE, socket.0.next()).await.unwrap();
    assert!(matches!(message, Some(Ok(Message::Ping(_)))), "{message:?}");
}

#[tokio::test]
async fn a_request_that_waits_delays_no_other() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    socket.send(json!({"type": "response.create", "event_id": "e1", "input": "endless"})).await;
    let created = socket.answer_to("e1").await;
    socket.until_type("response.output_text.delta").await;
    socket.send(json!({"type": "response.create", "event_id": "e2", "input": "hi"})).await;
    let busy = socket.answer_to("e2").await;
    assert_eq!(
        (&busy["error"]["code"], &busy["error"]["active_id"]),
        (&json!("conversation_busy"), &created["response_id"])
    );
    socket.send(json!({"type": "response.cancel", "event_id": "e3"})).await;
    assert_eq!(socket.answer_to("e3").await["cancel"]["outcome"], "cancelled");
}

#[tokio::test]
async fn a_socket_that_is_cut_says_where_to_resume() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    socket.send(json!({"type": "response.create", "input": "endless"})).await;
    socket.until_type("response.output_text.delta").await;
    server.root.stop().await;
    let mut frames = socket.until(|frame| frame["type"] == "error").await;
    let error = frames.pop().unwrap();
    assert_eq!(error["resume_after"], frames.last().map_or(error["resume_after"].clone(), |last| last["seq"].clone()));
    assert_eq!(socket.close_code().await, 1013);
}

#[tokio::test]
async fn an_idle_socket_is_closed_as_restarting_when_the_server_stops() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    server.enter(midstream::api::Phase::Draining);
    assert_eq!(socket.close_code().await, 1012);
}

/// Bytes of memory that this process occupies.
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn answers_to_a_client_that_never_reads_are_not_held_in_memory() {
    const PINGS: usize = 800_000;
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    let before = resident_bytes();
    let ping = Message::Ping(vec![0; 125].into());
    let flood = async {
        for _ in 0..PINGS {
            socket.0.feed(ping.clone()).await?;
        }
        socket.0.flush().await
    };
    // That the socket is closed on the way is as good.
    // So many take a machine that does something else as well a while.
    let _ = tokio::time::timeout(PATIENCE * 6, flood).await.expect("the socket is read or closed, not stuck");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 40 << 20, "{grown} bytes are held for {PINGS} pongs that nobody reads");
}
