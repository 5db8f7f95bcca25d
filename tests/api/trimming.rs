//! Events that are no longer kept: cursors in front of them are told so, and nothing else changes.

use serde_json::{Value, json};

use crate::support::Server;

/// A conversation with two turns of which the events of the first are no longer kept.
struct Trimmed {
    server: Server,
    conversation: String,
    /// The first response, with the key `first`, and the second.
    responses: [String; 2],
    oldest_seq: u64,
}

async fn trimmed() -> Trimmed {
    let mut whole = whole().await;
    whole.oldest_seq = whole.server.trim_before(&whole.responses[1]).await;
    whole
}

/// The same before it is trimmed.
async fn whole() -> Trimmed {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let body = first(&conversation);
    let first = server.post_keyed("/v1/responses", "first", body).await.id();
    server.ended(&first).await;
    let second = server.post("/v1/responses", json!({"input": "rain", "conversation": conversation})).await.id();
    Trimmed { server, conversation, responses: [first, second], oldest_seq: 1 }
}

async fn texts(server: &Server, conversation: &str) -> Vec<String> {
    let items = server.get(&format!("/v1/conversations/{conversation}/items?order=asc")).await.body;
    let text = |item: &Value| item["content"][0]["text"].as_str().unwrap().to_owned();
    items["data"].as_array().unwrap().iter().map(text).collect()
}

fn first(conversation: &str) -> Value {
    json!({"input": "slow", "conversation": conversation, "background": true})
}

#[tokio::test]
async fn a_cursor_in_front_of_the_oldest_event_is_gone_and_the_answer_says_where_to_go_on() {
    let Trimmed { server, conversation, responses, oldest_seq } = trimmed().await;
    let path = format!("/v1/conversations/{conversation}/events");
    for after in [json!(0), json!(1), json!(oldest_seq - 2), json!(format!("0-{}", oldest_seq - 2))] {
        let after = after.to_string().replace('"', "");
        let gone = server.get(&format!("{path}?after={after}")).await;
        let error = gone.assert_error(410, "cursor_expired");
        assert_eq!((&error["oldest_seq"], &error["param"]), (&json!(oldest_seq), &json!("after")));
        let snapshot = &error["snapshot"];
        assert_eq!((&snapshot["type"], &snapshot["oldest_seq"]), (&json!("conversation.snapshot"), &json!(oldest_seq)));
        assert_eq!((&snapshot["status"], &gone.body["oldest_seq"]), (&json!("idle"), &json!(oldest_seq)));
        let request = server.request(reqwest::Method::GET, &path).header("Last-Event-ID", &after);
        assert_eq!(request.send().await.unwrap().status(), 410);
    }
    // Behind it, and without a cursor, all that is there.
    for query in [String::new(), format!("?after={}", oldest_seq - 1)] {
        let mut stream = server.get_stream(&format!("{path}{query}")).await;
        let snapshot = stream.next().await.unwrap().json();
        assert_eq!(snapshot["oldest_seq"], oldest_seq);
        let oldest = stream.next().await.unwrap().json();
        assert_eq!((&oldest["seq"], &oldest["type"]), (&json!(oldest_seq), &json!("response.created")));
        assert_eq!(oldest["response_id"], responses[1]);
        assert_eq!(stream.until("response.completed").await["seq"], snapshot["last_seq"]);
    }
}

#[tokio::test]
async fn a_socket_is_told_the_same_and_stays_usable() {
    let Trimmed { server, conversation, oldest_seq, .. } = trimmed().await;
    let mut socket = server.socket(&conversation).await;
    socket.send(json!({"type": "conversation.subscribe", "after": 3, "event_id": "a"})).await;
    let gone = socket.next().await;
    assert_eq!((&gone["type"], &gone["event_id"], &gone["status"]), (&json!("error"), &json!("a"), &json!(410)));
    assert_eq!(gone["error"]["code"], "cursor_expired");
    assert_eq!(gone["error"]["oldest_seq"], oldest_seq);
    assert_eq!(gone["error"]["snapshot"]["oldest_seq"], oldest_seq);
    socket.send(json!({"type": "conversation.subscribe", "event_id": "b"})).await;
    let snapshot = socket.next().await;
    assert_eq!((&snapshot["type"], &snapshot["oldest_seq"]), (&json!("conversation.snapshot"), &json!(oldest_seq)));
    assert_eq!(socket.next().await["seq"], oldest_seq);
    socket.send(json!({"type": "response.create", "input": "hi"})).await;
    socket
        .until(|frame| frame["type"] == "response.completed" && frame["seq"].as_u64() > snapshot["last_seq"].as_u64())
        .await;
}

#[tokio::test]
async fn a_stream_of_a_trimmed_response_is_gone_and_its_object_is_not() {
    let Trimmed { server, conversation, responses: [first, second], .. } = trimmed().await;
    let before = server.ended(&first).await;
    assert_eq!(before["output"][0]["content"][0]["text"], "one two three four");
    for query in ["stream=true", "stream=true&starting_after=2"] {
        let gone = server.get(&format!("/v1/responses/{first}?{query}")).await;
        let error = gone.assert_error(410, "cursor_expired");
        assert!(error["message"].as_str().unwrap().contains("without its stream"), "{error}");
    }
    let mut stream = server.get_stream(&format!("/v1/responses/{second}?stream=true")).await;
    stream.until("response.completed").await;
    assert_eq!(texts(&server, &conversation).await, ["slow", "one two three four", "rain", "Take an umbrella."]);
}

#[tokio::test]
async fn a_fork_of_a_trimmed_response_is_the_fork_that_it_was_before() {
    let mut forks = Vec::new();
    for Trimmed { server, conversation, responses: [first, _], .. } in [whole().await, trimmed().await] {
        let fork = server.post("/v1/responses", json!({"input": "French", "previous_response_id": first})).await.body;
        assert_eq!(fork["previous_response_id"], first);
        let copy = fork["conversation"]["id"].as_str().unwrap();
        assert_ne!(copy, conversation);
        forks.push((texts(&server, copy).await, fork["usage"].clone()));
    }
    assert_eq!(forks[1].0[..3], ["slow", "one two three four", "French"]);
    assert_eq!(forks[0], forks[1]);
}

#[tokio::test]
async fn keys_of_trimmed_responses_give_their_first_answers_again() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let background = first(&conversation);
    let queued = server.post_keyed("/v1/responses", "queued", background.clone()).await;
    server.ended(&queued.id()).await;
    let whole = json!({"input": "hi", "conversation": conversation});
    let done = server.post_keyed("/v1/responses", "whole", whole.clone()).await;
    let streamed = json!({"input": "hi", "conversation": conversation, "stream": true});
    let request = server.request(reqwest::Method::POST, "/v1/responses").header("Idempotency-Key", "stream");
    server.stream(request.json(&streamed)).await.rest().await;
    let last = server.post("/v1/responses", json!({"input": "rain", "conversation": conversation})).await.id();
    server.trim_before(&last).await;
    for (key, body, first) in [("queued", background, &queued), ("whole", whole, &done)] {
        let again = server.post_keyed("/v1/responses", key, body).await;
        assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")), "{key}");
        assert_eq!(again.body, first.body, "{key}");
    }
    let again = server.post_keyed("/v1/responses", "stream", streamed).await;
    again.assert_error(410, "cursor_expired");
    let mut socket = server.socket(&conversation).await;
    let create = json!({"type": "response.create", "input": "French", "event_id": "w"});
    socket.send(create.clone()).await;
    let created = socket.until_type("response.created").await;
    let id = created["response_id"].as_str().unwrap().to_owned();
    server.ended(&id).await;
    let last = server.post("/v1/responses", json!({"input": "rain", "conversation": conversation})).await.id();
    let oldest_seq = server.trim_before(&last).await;
    let mut socket = server.socket(&conversation).await;
    socket.send(create).await;
    let again = socket.until(|frame| frame["replayed"] == true).await.pop().unwrap();
    assert_eq!((&again["response_id"], &again["seq"]), (&created["response_id"], &created["seq"]));
    assert_eq!(again["response"], created["response"]);
    socket.until(|frame| frame["seq"] == oldest_seq).await;
}

#[tokio::test]
async fn the_key_of_a_trimmed_chat_gives_its_first_answer_again() {
    let server = Server::start().await;
    let chat = |stream: bool| json!({"messages": [{"role": "user", "content": "hi"}], "store": true, "stream": stream});
    let done = server.post_keyed("/v1/chat/completions", "whole", chat(false)).await;
    assert_eq!(done.status, 200);
    let id = done.id().replace("chatcmpl-", "resp_");
    let conversation = server.get(&format!("/v1/responses/{id}")).await.body["conversation"]["id"].clone();
    let last = server.post("/v1/responses", json!({"input": "rain", "conversation": conversation})).await.id();
    server.trim_before(&last).await;
    let again = server.post_keyed("/v1/chat/completions", "whole", chat(false)).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(again.body, done.body);
}

#[tokio::test]
async fn the_key_of_an_injection_into_a_trimmed_turn_gives_its_first_answer_again() {
    for openai in [true, false] {
        let server = Server::start().await;
        let conversation = server.conversation().await;
        let tools = json!([{"type": "function", "name": "weather"}]);
        let ask = json!({"input": "weather", "conversation": conversation, "tools": tools});
        let asked = server.post("/v1/responses", ask).await.body;
        let output = json!({"type": "function_call_output", "call_id": asked["output"][1]["call_id"], "output": "wet"});
        let inject = json!({"type": "response.inject", "response_id": asked["id"], "input": [output], "event_id": "i"});
        let mut told = Vec::new();
        for _ in 0..2 {
            let mut socket = if openai { server.responses_socket().await } else { server.socket(&conversation).await };
            socket.send(inject.clone()).await;
            told.push(socket.until(|frame| frame["event_id"] == "i").await.pop().unwrap());
            // Its successor ends before this one does.
            let last = server
                .post("/v1/responses", json!({"input": "hi", "conversation": conversation, "if_busy": "enqueue"}))
                .await;
            server.trim_before(&last.id()).await;
        }
        assert_eq!([&told[0]["type"], &told[1]["type"]], ["response.inject.created"; 2], "{told:?}");
        assert_eq!([&told[0]["replayed"], &told[1]["replayed"]], [&Value::Null, &json!(true)]);
    }
}

#[tokio::test]
async fn interventions_and_closed_calls_of_trimmed_turns_are_known_for_ever() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let tools = json!([{"type": "function", "name": "weather"}]);
    let ask = json!({"input": "weather", "conversation": conversation, "tools": tools});
    let asked = server.post("/v1/responses", ask.clone()).await.body;
    let call = asked["output"][1]["call_id"].as_str().unwrap().to_owned();
    let results = format!("/v1/conversations/{conversation}/tool_results");
    let result = |output: &str| json!({"call_id": call, "output": output});
    let given = server.post(&results, result("wet")).await;
    server.ended(given.body["successor_id"].as_str().unwrap()).await;
    let closed = server.post("/v1/responses", ask).await.body["output"][1]["call_id"].as_str().unwrap().to_owned();
    let body = json!({"input": "endless", "conversation": conversation, "background": true});
    let running = server.post("/v1/responses", body).await.id();
    let path = format!("/v1/responses/{running}/interventions");
    let steer = server.post_keyed(&path, "s", json!({"input": "rain"})).await;
    server.ended(steer.body["successor_id"].as_str().unwrap()).await;
    let shown = server.get(&format!("/v1/interventions/{}", steer.id())).await.body;
    let last = server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await.id();
    let late = json!({"call_id": closed, "output": "late"});
    let before = server.post(&results, late.clone()).await;
    before.assert_error(409, "tool_call_closed");
    server.trim_before(&last).await;

    assert_eq!(server.get(&format!("/v1/interventions/{}", steer.id())).await.body, shown);
    let again = server.post_keyed(&path, "s", json!({"input": "rain"})).await;
    assert_eq!((again.status, &again.body["id"]), (steer.status, &steer.body["id"]));
    server.post_keyed(&path, "t", json!({"input": "more"})).await.assert_error(409, "response_already_completed");
    assert_eq!(server.post(&results, late).await.body, before.body);
    let repeated = server.post(&results, result("wet")).await;
    assert_eq!((repeated.status, &repeated.body), (200, &given.body));
    server.post(&results, result("dry")).await.assert_error(422, "tool_result_conflict");
}
