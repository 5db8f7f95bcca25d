//! What a stream of a conversation's events shows: `types`, whole calls, cursors, and whose conversation it is.

use midstream::actors::Open;
use serde_json::{Value, json};

use crate::support::{Server, SseEvent};

/// A conversation with a response that made two calls.
async fn with_calls(server: &Server) -> (String, Value) {
    let conversation = server.conversation().await;
    let tools = json!([{"type": "function", "name": "weather"}]);
    let body = json!({"input": "twice", "conversation": conversation, "tools": tools});
    let response = server.post("/v1/responses", body).await.body;
    (conversation, response)
}

#[tokio::test]
async fn a_whole_call_comes_in_one_frame_where_it_is_asked_for() {
    let server = Server::start().await;
    let (conversation, response) = with_calls(&server).await;
    let expected: Vec<Value> = response["output"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(|(index, call)| {
            json!({
                "type": "tool_call_dispatch", "response_id": response["id"], "index": index,
                "call_id": call["call_id"], "name": "weather", "arguments": call["arguments"],
            })
        })
        .collect();
    assert_eq!(expected.len(), 2);

    let mut socket = server.socket(&conversation).await;
    socket.send(json!({"type": "conversation.subscribe", "types": ["tool_call_dispatch"]})).await;
    assert_eq!(socket.next().await["type"], "conversation.snapshot");
    assert_eq!([socket.next().await, socket.next().await], expected[..]);

    socket.send(json!({"type": "conversation.subscribe", "types": ["*", "tool_call_dispatch"]})).await;
    let frames = socket.until(|frame| frame["type"] == "response.completed").await;
    let places = frames.iter().enumerate().filter(|(_, frame)| frame["type"] == "tool_call_dispatch");
    for (place, frame) in places {
        assert_eq!(frames[place - 1]["type"], "tool_call.requested");
        assert_eq!(
            (&frames[place - 1]["call_id"], &frames[place - 1]["arguments"]),
            (&frame["call_id"], &frame["arguments"])
        );
    }
    let seqs: Vec<u64> = frames.iter().filter_map(|frame| frame["seq"].as_u64()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "it has no place in the order of events");

    let path = format!("/v1/conversations/{conversation}/events?types=tool_call_dispatch");
    let mut stream = server.get_stream(&path).await;
    stream.until("conversation.snapshot").await;
    for expected in &expected {
        let event = stream.next().await.unwrap();
        assert_eq!((&event.json(), event.id.as_deref()), (expected, None));
    }
}

#[tokio::test]
async fn whole_calls_come_to_nobody_who_did_not_ask() {
    let server = Server::start().await;
    let (conversation, _) = with_calls(&server).await;
    let mut socket = server.socket(&conversation).await;
    socket.send(json!({"type": "conversation.subscribe"})).await;
    let frames = socket.until(|frame| frame["type"] == "response.completed").await;
    assert!(frames.iter().all(|frame| frame["type"] != "tool_call_dispatch"));
}

#[tokio::test]
async fn a_call_that_is_offered_again_is_not_dispatched_again() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let mut socket = server.socket(&conversation).await;
    socket.send(json!({"type": "conversation.subscribe", "types": ["*", "tool_call_dispatch"]})).await;
    let policy = json!({"idempotent": true, "max_attempts": 2});
    let tools = json!([{"type": "function", "name": "weather", "x_midstream": policy}]);
    socket.send(json!({"type": "response.create", "input": "weather", "tools": tools})).await;
    let dispatched = socket.until_type("tool_call_dispatch").await;
    let claim = json!({"type": "conversation.tool_claim", "call_id": dispatched["call_id"], "lease_ms": 1});
    socket.send(claim).await;
    let frames = socket.until(|frame| frame["type"] == "tool_call.requested" && frame["attempt"] == 2).await;
    socket.send(json!({"type": "response.create", "input": "hi"})).await;
    let rest = socket
        .until(|frame| frame["type"] == "response.completed" && frame["response"]["output"][0]["content"].is_array())
        .await;
    assert!(frames.iter().chain(&rest).all(|frame| frame["type"] != "tool_call_dispatch"));
}

#[tokio::test]
async fn a_subscription_of_some_types_gets_those_with_the_seqs_they_have() {
    let server = Server::start().await;
    let (conversation, response) = with_calls(&server).await;
    let path = format!("/v1/conversations/{conversation}/events");
    let mut all = server.get_stream(&path).await;
    let mut expected = Vec::new();
    loop {
        let event = all.next().await.unwrap();
        let kind = event.event.clone().unwrap();
        if ["tool_call.requested", "response.completed"].contains(&kind.as_str()) {
            expected.push(event);
        }
        if kind == "response.completed" {
            break;
        }
    }
    assert_eq!(expected.len(), 3);
    let shown = |events: &[SseEvent]| events.iter().map(|it| (it.id.clone(), it.json())).collect::<Vec<_>>();
    let mut some = server.get_stream(&format!("{path}?types=tool_call.requested,response.completed")).await;
    some.until("conversation.snapshot").await;
    let events = [some.next().await.unwrap(), some.next().await.unwrap(), some.next().await.unwrap()];
    assert_eq!(shown(&events), shown(&expected));

    let mut socket = server.socket(&conversation).await;
    let types = json!(["response.completed"]);
    socket.send(json!({"type": "conversation.subscribe", "event_id": "e1", "types": types, "after": 2})).await;
    assert_eq!(socket.next().await["event_id"], "e1");
    assert_eq!(socket.next().await["response"]["id"], response["id"]);
    // What answers a request of this socket comes in any case.
    socket.send(json!({"type": "response.create", "event_id": "e2", "input": "hi"})).await;
    let created = socket.next().await;
    assert_eq!((&created["type"], &created["event_id"]), (&json!("response.created"), &json!("e2")));
    assert_eq!(socket.next().await["type"], "response.completed");
    server.delete(&format!("/v1/conversations/{conversation}")).await;
    assert_eq!(socket.next().await["type"], "conversation.deleted", "a reader is told of the end");
}

#[tokio::test]
async fn a_list_of_types_that_names_none_is_refused_and_the_socket_stays() {
    let server = Server::start().await;
    let (conversation, _) = with_calls(&server).await;
    let mut socket = server.socket(&conversation).await;
    for types in [json!([]), json!([""]), json!([7]), json!("all"), json!(vec!["a"; 65]), json!(["response.create"])] {
        socket.send(json!({"type": "conversation.subscribe", "types": types})).await;
        let error = socket.next().await;
        assert_eq!((&error["status"], &error["error"]["code"]), (&json!(400), &json!("invalid_input")), "{types}");
    }
    let path = format!("/v1/conversations/{conversation}/events?types=");
    server.get(&path).await.assert_error(400, "invalid_input");
    let unknown = server.get(&format!("{path}response.create")).await;
    let text = unknown.assert_error(400, "invalid_input")["message"].to_string();
    assert!(text.contains("response.created"), "it lists what there is: {text}");
    socket.send(json!({"type": "conversation.subscribe"})).await;
    assert_eq!(socket.next().await["type"], "conversation.snapshot");
}

#[tokio::test]
async fn a_cursor_of_the_future_is_refused_and_the_socket_stays() {
    let server = Server::start().await;
    let (conversation, _) = with_calls(&server).await;
    let mut socket = server.socket(&conversation).await;
    for after in [json!(9999), json!("0-9999"), json!("7-1")] {
        socket.send(json!({"type": "conversation.subscribe", "event_id": "e1", "after": after})).await;
        let error = socket.next().await;
        assert_eq!((&error["type"], &error["event_id"]), (&json!("error"), &json!("e1")));
        assert_eq!((&error["status"], &error["error"]["code"]), (&json!(400), &json!("cursor_in_future")));
        assert!(error["error"]["last_seq"].is_u64());
        let path = format!("/v1/conversations/{conversation}/events?after={}", after.to_string().trim_matches('"'));
        server.get(&path).await.assert_error(400, "cursor_in_future");
    }
    socket.send(json!({"type": "conversation.subscribe"})).await;
    assert_eq!(socket.next().await["type"], "conversation.snapshot");
}

#[tokio::test]
async fn somebody_elses_conversation_is_not_there() {
    let server = Server::start().await;
    let open = Open { principal: "somebody else".to_owned(), ..Open::default() };
    let theirs = server.root.directory().open(open, None).await.unwrap().id().to_string();
    for path in ["", "/items", "/events", "/events?types=*", "/ws"] {
        let answer = server.get(&format!("/v1/conversations/{theirs}{path}")).await;
        answer.assert_error(404, "conversation_not_found");
    }
    let url = format!("ws://{}/v1/conversations/{theirs}/ws", server.address);
    let refused = tokio_tungstenite::connect_async(url).await.unwrap_err();
    assert!(
        matches!(&refused, tokio_tungstenite::tungstenite::Error::Http(answer) if answer.status() == 404),
        "{refused}"
    );
    let mut socket = server.responses_socket().await;
    socket.send(json!({"type": "response.create", "input": "hi", "conversation": theirs})).await;
    assert_eq!(socket.next().await["error"]["code"], "conversation_not_found");
}
