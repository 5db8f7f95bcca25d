//! `GET /v1/responses` as a WebSocket: OpenAI's events and errors, and nothing of ours.

use futures_util::SinkExt;
use midstream::api::Phase;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::{Server, Setup, Socket, text_of};

fn create(input: &str) -> Value {
    json!({"type": "response.create", "input": input})
}

fn is_end(frame: &Value) -> bool {
    let ends = ["response.completed", "response.incomplete", "response.failed"];
    frame["type"].as_str().is_some_and(|kind| ends.contains(&kind))
}

/// One response, from its first event to its last.
async fn turn(socket: &mut Socket, frame: Value) -> Vec<Value> {
    socket.send(frame).await;
    socket.until(is_end).await
}

fn id_of(frames: &[Value]) -> String {
    frames[0]["response"]["id"].as_str().unwrap_or_else(|| panic!("no id: {}", frames[0])).to_owned()
}

/// Starts a response and gives its id when it says something.
async fn started(socket: &mut Socket, input: &str, sign: &str) -> String {
    socket.send(create(input)).await;
    id_of(&socket.until(|frame| frame["type"] == sign).await)
}

#[tokio::test]
async fn responses_follow_each_other_on_one_socket_as_openai_streams_them() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let first = turn(&mut socket, create("hi")).await;
    assert_eq!(text_of(&first), "Hello, world");
    let id = id_of(&first);
    let over_http = server.get_stream(&format!("/v1/responses/{id}?stream=true")).await.rest_json().await;
    assert_eq!(first, over_http, "the events are those of the HTTP stream");
    let next = json!({"type": "response.create", "input": "rain", "previous_response_id": id, "stream": true});
    let second = turn(&mut socket, next).await;
    assert_eq!(text_of(&second), "Take an umbrella.");
    assert_eq!(second[0]["response"]["previous_response_id"], json!(id));
    assert_eq!(second[0]["response"]["conversation"], first[0]["response"]["conversation"]);
    let fork = json!({"type": "response.create", "input": "In French", "previous_response_id": id});
    let forked = turn(&mut socket, fork).await;
    assert_eq!(text_of(&forked), "Bonjour");
    assert_ne!(forked[0]["response"]["conversation"], first[0]["response"]["conversation"]);
}

#[tokio::test]
async fn what_was_asked_for_under_an_event_id_is_created_under_it() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    for store in [true, false] {
        let asked = json!({"type": "response.create", "input": "hi", "event_id": format!("e {store}"), "store": store});
        let frames = turn(&mut socket, asked).await;
        assert_eq!(
            (&frames[0]["type"], &frames[0]["event_id"]),
            (&json!("response.created"), &json!(format!("e {store}")))
        );
        assert!(frames[1..].iter().all(|frame| frame.get("event_id").is_none()));
    }
    let frames = turn(&mut socket, create("hi")).await;
    assert_eq!(frames[0].get("event_id"), None);
}

#[tokio::test]
async fn a_conversation_is_joined_and_other_clients_responses_are_not_shown() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let mut socket = server.responses_socket().await;
    let joined = json!({"type": "response.create", "input": "hi", "conversation": conversation});
    let first = turn(&mut socket, joined.clone()).await;
    assert_eq!(first[0]["response"]["conversation"]["id"], json!(conversation));
    server.post("/v1/responses", json!({"input": "rain", "conversation": conversation})).await;
    let second = turn(&mut socket, joined).await;
    assert_eq!(second[0]["type"], "response.created");
    assert_eq!(text_of(&second), "Hello, world");
}

#[tokio::test]
async fn what_is_not_stored_is_continued_on_its_socket_and_nowhere_else() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let first = turn(&mut socket, json!({"type": "response.create", "input": "hi", "store": false})).await;
    let next = |previous: &str| {
        let input = "rain";
        json!({"type": "response.create", "input": input, "store": false, "previous_response_id": previous})
    };
    let second = turn(&mut socket, next(&id_of(&first))).await;
    assert_eq!(text_of(&second), "Take an umbrella.");
    let told = &second.last().unwrap()["response"]["usage"]["input_tokens"];
    assert!(told.as_u64() > first.last().unwrap()["response"]["usage"]["input_tokens"].as_u64(), "it has the history");
    let mut other = server.responses_socket().await;
    other.send(next(&id_of(&second))).await;
    assert_eq!(other.next().await["error"]["code"], "previous_response_not_found");
    let third = turn(&mut socket, next(&id_of(&second))).await;
    assert_eq!(third[0]["response"]["previous_response_id"], json!(id_of(&second)));
    let forked = turn(&mut socket, next(&id_of(&first))).await;
    let told = |frames: &[Value]| frames.last().unwrap()["response"]["usage"]["input_tokens"].as_u64();
    assert_eq!(told(&forked), told(&second), "what was continued before is continued anew");
}

#[tokio::test]
async fn what_runs_is_cancelled_by_its_id_or_as_what_runs() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let id = started(&mut socket, "endless", "response.output_text.delta").await;
    socket.send(json!({"type": "response.cancel"})).await;
    let last = socket.until(is_end).await.pop().unwrap();
    assert_eq!((&last["response"]["id"], &last["response"]["status"]), (&json!(id), &json!("cancelled")));
    socket.send(json!({"type": "response.cancel", "response_id": id, "event_id": "e1"})).await;
    let late = socket.next().await;
    assert_eq!((&late["error"]["code"], &late["event_id"]), (&json!("response_already_completed"), &json!("e1")));
    assert_eq!(late["error"]["cancel"]["outcome"], "already_cancelled");
    socket.send(json!({"type": "response.cancel"})).await;
    assert_eq!(socket.next().await["error"]["code"], "response_not_active");
    assert_eq!(text_of(&turn(&mut socket, create("hi")).await), "Hello, world");
}

#[tokio::test]
async fn a_response_of_another_socket_is_cancelled_with_its_last_event_as_the_answer() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let mut socket = server.responses_socket().await;
    socket.send(json!({"type": "response.cancel", "response_id": id})).await;
    let last = socket.next().await;
    let events = server.get_stream(&format!("/v1/responses/{id}?stream=true")).await.rest_json().await;
    assert_eq!(last, *events.last().unwrap());
}

#[tokio::test]
async fn a_steers_successor_comes_on_the_same_socket_without_another_create() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let id = started(&mut socket, "ponder", "response.reasoning_text.delta").await;
    socket.send(json!({"type": "response.steer", "previous_response_id": id, "input": "In French"})).await;
    let frames = socket.until(|frame| frame["type"] == "response.completed").await;
    let kinds: Vec<_> = frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect();
    assert!(kinds.iter().all(|kind| kind.starts_with("response.")), "{kinds:?}");
    let place = |kind: &str| kinds.iter().position(|it| *it == kind).unwrap_or_else(|| panic!("{kind}: {kinds:?}"));
    assert!(place("response.steer.accepted") < place("response.incomplete"));
    assert_eq!(place("response.incomplete") + 1, place("response.created"), "nothing comes in between");
    assert_eq!(frames[place("response.incomplete")]["response"]["incomplete_details"]["reason"], "steered");
    assert_eq!(frames[place("response.created")]["response"]["previous_response_id"], json!(id));
    assert_eq!(text_of(&frames), "Bonjour");
    let successor = frames.last().unwrap()["response"]["id"].clone();
    let next = json!({"type": "response.create", "input": "rain", "previous_response_id": successor});
    assert_eq!(text_of(&turn(&mut socket, next).await), "Take an umbrella.");
}

#[tokio::test]
async fn a_pending_steer_joins_the_create_that_brings_the_results() {
    for store in [true, false] {
        let server = Server::start().await;
        let mut socket = server.responses_socket().await;
        let tools = json!([{"type": "function", "name": "weather"}]);
        let weather = json!({"type": "response.create", "input": "weather", "tools": tools, "store": store});
        let first = turn(&mut socket, weather).await;
        let id = id_of(&first);
        socket.send(json!({"type": "response.steer", "previous_response_id": id, "input": "and rain"})).await;
        let accepted = socket.next().await;
        assert_eq!(accepted["type"], "response.steer.accepted", "{accepted}");
        assert_eq!(accepted.get("durable"), (!store).then_some(&json!(false)));
        let pending = socket.next().await;
        assert_eq!((&pending["type"], &pending["steer"]), (&json!("response.steer.pending"), &accepted["steer"]));
        let call_id = &first.last().unwrap()["response"]["output"][1]["call_id"];
        assert_eq!(pending["required_input"][0]["call_id"], *call_id);
        let result = json!({"type": "function_call_output", "call_id": call_id, "output": "storm"});
        let frame = json!({
            "type": "response.create", "previous_response_id": id, "input": [result], "store": store,
            "metadata": {"mine": "yes"},
        });
        let second = turn(&mut socket, frame).await;
        assert_eq!(second[0]["response"]["metadata"], json!({"mine": "yes"}));
        assert_eq!(text_of(&second), "Take an umbrella.", "the steer is what the model answers");
    }
}

#[tokio::test]
async fn a_pending_steer_that_is_closed_from_elsewhere_is_given_back() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let tools = json!([{"type": "function", "name": "weather"}]);
    let weather = json!({"type": "response.create", "input": "weather", "tools": tools});
    let id = id_of(&turn(&mut socket, weather).await);
    socket.send(json!({"type": "response.steer", "previous_response_id": id, "input": "and rain"})).await;
    socket.until_type("response.steer.pending").await;
    server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
    let failed = socket.next().await;
    assert_eq!((&failed["type"], &failed["steer"]["input"]), (&json!("response.steer.failed"), &json!("and rain")));
    assert_eq!(failed["error"]["code"], "successor_creation_failed");
}

#[tokio::test]
async fn a_steer_finds_its_response_after_a_reconnect() {
    let server = Server::start().await;
    let id = server.running("slow").await;
    let mut socket = server.responses_socket().await;
    socket.send(json!({"type": "response.steer", "previous_response_id": id, "input": "first"})).await;
    socket.send(json!({"type": "response.steer", "previous_response_id": id, "input": "In French"})).await;
    assert_eq!(socket.next().await["type"], "response.steer.accepted");
    let frames = socket.until(is_end).await;
    let created = frames.iter().find(|frame| frame["type"] == "response.created").unwrap();
    assert_eq!(created["response"]["previous_response_id"], json!(id));
    assert_eq!(text_of(&frames), "Bonjour");
}

#[tokio::test]
async fn refused_steers_and_interrupts_are_answered_in_the_dialect() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let id = id_of(&turn(&mut socket, create("hi")).await);
    for (previous, code) in [(id.as_str(), "response_already_completed"), ("resp_1", "response_not_found")] {
        socket.send(json!({"type": "response.steer", "previous_response_id": previous, "input": "a"})).await;
        let failed = socket.next().await;
        assert_eq!((&failed["type"], &failed["error"]["code"]), (&json!("response.steer.failed"), &json!(code)));
        assert_eq!(failed["steer"], json!({"previous_response_id": previous, "input": "a"}));
        let mode = "discard_partial_items";
        socket.send(json!({"type": "response.interrupt", "response_id": previous, "mode": mode})).await;
        let failed = socket.next().await;
        assert_eq!((&failed["type"], &failed["error"]["code"]), (&json!("response.interrupt.failed"), &json!(code)));
    }
    let lane = json!({"type": "response.steer", "previous_response_id": id, "input": "a", "stream_id": "s"});
    socket.send(lane).await;
    assert_eq!(socket.next().await["error"]["code"], "invalid_input");
}

#[tokio::test]
async fn codex_interrupts_and_goes_on_with_a_new_message() {
    for store in [true, false] {
        let server = Server::start().await;
        let mut socket = server.responses_socket().await;
        socket.send(json!({"type": "response.create", "input": "muse", "store": store})).await;
        let id = id_of(&socket.until(|frame| frame["type"] == "response.output_text.delta").await);
        socket.send(json!({"type": "response.interrupt", "response_id": id, "mode": "discard_partial_items"})).await;
        let frames = socket.until(is_end).await;
        let tail: Vec<_> = frames.iter().rev().take(3).rev().map(|frame| frame["type"].as_str().unwrap()).collect();
        assert_eq!(tail, ["response.interrupt.accepted", "response.output_item.interrupted", "response.incomplete"]);
        let [accepted, partial, last] = &frames[frames.len() - 3..] else { panic!("three frames") };
        assert_eq!((&accepted["response_id"], accepted["sequence_number"].is_u64()), (&json!(id), true));
        let added = json!({"type": "response.output_item.interrupted", "response_id": id, "output_index": 1});
        assert_eq!((&partial["output_index"], partial["item_id"].is_string()), (&added["output_index"], true));
        assert_eq!(partial.as_object().unwrap().len(), 4, "{partial}");
        let response = &last["response"];
        assert_eq!(response["incomplete_details"]["reason"], "interrupted");
        assert_eq!(
            (response["output"].as_array().unwrap().len(), &response["output"][0]["type"]),
            (1, &json!("reasoning"))
        );
        let next = json!({
            "type": "response.create", "previous_response_id": id, "store": store,
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "In French"}]}],
        });
        assert_eq!(text_of(&turn(&mut socket, next).await), "Bonjour");
    }
}

#[tokio::test]
async fn an_unknown_previous_response_is_the_error_that_codex_expects() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    for previous in ["resp_2", "resp_00000000000000000000000000000000"] {
        for store in [true, false] {
            let frame =
                json!({"type": "response.create", "input": "a", "previous_response_id": previous, "store": store});
            socket.send(frame).await;
            let error = socket.next().await;
            assert_eq!((&error["type"], &error["status"]), (&json!("error"), &json!(400)));
            let object = &error["error"];
            assert_eq!(object["code"], "previous_response_not_found");
            assert_eq!(
                (&object["type"], &object["param"]),
                (&json!("invalid_request_error"), &json!("previous_response_id"))
            );
            assert!(error.get("event_id").is_none());
        }
    }
    assert_eq!(text_of(&turn(&mut socket, create("hi")).await), "Hello, world");
}

#[tokio::test]
async fn faulty_frames_are_answered_and_change_nothing() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let mut socket = server.responses_socket().await;
    for (text, param) in [
        ("{", Value::Null),
        ("[1]", Value::Null),
        ("{}", json!("type")),
        (r#"{"type": "no.such"}"#, json!("type")),
        (r#"{"type": "conversation.subscribe"}"#, json!("type")),
        (r#"{"type": "response.inject"}"#, json!("response_id")),
        (r#"{"type": "response.inject", "response_id": "resp_1"}"#, json!("input")),
        (r#"{"type": "response.create", "temperature": "hot", "input": "a"}"#, json!("temperature")),
        (r#"{"type": "response.create"}"#, json!("input")),
        (r#"{"type": "response.create", "input": "a", "stream_id": 7}"#, json!("stream_id")),
        (r#"{"type": "response.create", "input": "a", "stream_id": ""}"#, json!("stream_id")),
        (r#"{"type": "response.create", "input": "a", "stream": false}"#, json!("stream")),
        (r#"{"type": "response.create", "input": "a", "background": true}"#, json!("background")),
        (r#"{"type": "response.create", "input": "a", "event_id": 7}"#, json!("event_id")),
        (r#"{"type": "response.cancel", "response_id": 7}"#, json!("response_id")),
    ] {
        let text = text.replace("\"input\"", &format!("\"conversation\": {conversation:?}, \"input\""));
        socket.0.send(Message::text(text.clone())).await.unwrap();
        let error = socket.next().await;
        assert_eq!((&error["type"], &error["status"]), (&json!("error"), &json!(400)), "{text}: {error}");
        assert_eq!((&error["error"]["code"], &error["error"]["param"]), (&json!("invalid_input"), &param), "{text}");
    }
    socket.0.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert_eq!(socket.next().await["error"]["code"], "invalid_input");
    let unknown = json!({"type": "response.create", "event_id": "e9", "model": "no", "input": "a"});
    socket.send(unknown).await;
    let error = socket.next().await;
    assert_eq!((&error["event_id"], &error["status"]), (&json!("e9"), &json!(404)));
    let mut stream = server.get_stream(&format!("/v1/conversations/{conversation}/events")).await;
    assert_eq!(stream.until("conversation.snapshot").await["last_seq"], 1, "the journal is unchanged");
    assert_eq!(text_of(&turn(&mut socket, create("hi")).await), "Hello, world");
}

#[tokio::test]
async fn faulty_frames_of_a_conversations_socket_leave_its_journal_as_it_was() {
    let server = Server::start().await;
    let mut socket = server.socket(&server.conversation().await).await;
    for text in [
        "nonsense",
        r#"{"type": "response.inject", "input": "a"}"#,
        r#"{"type": "response.steer", "previous_response_id": "resp_1", "input": "a"}"#,
        r#"{"type": "response.steer", "input": []}"#,
        r#"{"type": "response.interrupt", "response_id": "resp_1", "mode": "discard_partial_items"}"#,
        r#"{"type": "response.create", "input": "a", "previous_response_id": "resp_1"}"#,
    ] {
        socket.0.send(Message::text(text)).await.unwrap();
        let answer = socket.next().await;
        assert!(answer["error"]["code"].is_string(), "{text}: {answer}");
    }
    socket.send(json!({"type": "conversation.subscribe"})).await;
    assert_eq!(socket.next().await["last_seq"], 1);
}

#[tokio::test]
async fn a_frame_over_the_limit_closes_the_socket() {
    let server = Server::start_with(Setup { ws_frame_bytes_max: 1000, ..Setup::default() }).await;
    let mut socket = server.responses_socket().await;
    let _ = socket.0.send(Message::text("x".repeat(100_000))).await;
    // The client may notice the end before it can read the close frame.
    while let Some(Ok(message)) = futures_util::StreamExt::next(&mut socket.0).await {
        if let Message::Close(Some(frame)) = message {
            assert_eq!(u16::from(frame.code), 1009);
        }
    }
    assert_eq!(text_of(&turn(&mut server.responses_socket().await, create("hi")).await), "Hello, world");
}

#[tokio::test]
async fn a_socket_that_closes_is_no_cancel_for_what_is_stored() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let id = started(&mut socket, "slow", "response.output_text.delta").await;
    drop(socket);
    let events = server.get_stream(&format!("/v1/responses/{id}?stream=true")).await.rest_json().await;
    assert_eq!(
        (&events.last().unwrap()["type"], text_of(&events).as_str()),
        (&json!("response.completed"), "one two three four")
    );
}

#[tokio::test]
async fn a_repeated_create_is_the_same_response_from_its_first_event() {
    let server = Server::start().await;
    let mut frame = create("slow");
    frame["event_id"] = "k".into();
    let mut socket = server.responses_socket().await;
    socket.send(frame.clone()).await;
    let id = id_of(&socket.until(|frame| frame["type"] == "response.output_text.delta").await);
    drop(socket);
    let frames = turn(&mut server.responses_socket().await, frame).await;
    assert_eq!((id_of(&frames), text_of(&frames).as_str()), (id, "one two three four"));
}

#[tokio::test]
async fn a_stop_of_the_server_closes_sockets_as_restarting() {
    let server = Server::start().await;
    let mut idle = server.responses_socket().await;
    let mut busy = server.responses_socket().await;
    started(&mut busy, "endless", "response.output_text.delta").await;
    server.enter(Phase::Draining);
    assert_eq!(idle.close_code().await, 1012);
    busy.send(json!({"type": "response.steer", "previous_response_id": "resp_1", "input": "a"})).await;
    busy.until_type("response.steer.failed").await;
    server.root.stop().await;
    let error = busy.until_type("error").await;
    assert_eq!((&error["status"], &error["headers"]), (&json!(503), &json!({"retry-after": "1"})));
    assert_eq!(busy.close_code().await, 1012);
}

#[tokio::test]
async fn without_an_upgrade_the_route_says_what_it_is() {
    let server = Server::start().await;
    server.get("/v1/responses").await.assert_error(405, "method_not_allowed");
}

#[tokio::test]
async fn an_offer_to_compress_is_declined_and_the_socket_works_without() {
    let server = Server::start().await;
    let offer = "permessage-deflate; client_max_window_bits, permessage-deflate";
    for path in ["/v1/responses".to_owned(), format!("/v1/conversations/{}/ws", server.conversation().await)] {
        let mut request = format!("ws://{}{path}", server.address).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-extensions", offer.parse().unwrap());
        let (socket, answer) = tokio_tungstenite::connect_async(request).await.unwrap();
        assert_eq!(answer.status(), 101);
        assert!(!answer.headers().contains_key("sec-websocket-extensions"), "{answer:?}");
        let mut socket = Socket(socket);
        socket.send(json!({"type": "response.create", "input": "hi"})).await;
        socket.until_type("response.completed").await;
    }
}
