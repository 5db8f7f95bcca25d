//! What is somebody else's does not exist: on every route, on both sockets, and for idempotency keys.

use reqwest::Method;
use serde_json::{Value, json};

use crate::keys::{Guarded, routes};
use crate::support::{Answer, Socket};

/// What one principal has, and ids that nobody was ever given.
struct Things {
    conversation: String,
    response: String,
    steer: String,
    call: String,
    item: String,
    chat: String,
}

impl Things {
    fn unknown() -> Self {
        let none = "0".repeat(32);
        let (conversation, response) = (format!("conv_{none}"), format!("resp_{none}"));
        let (steer, item, chat) = (format!("steer_{none}"), format!("msg_{none}"), format!("chatcmpl-{none}"));
        Self { conversation, response, steer, item, chat, call: format!("call{}", "0".repeat(24)) }
    }

    /// A conversation with an open call and a steer that waits for it.
    async fn of(guarded: &Guarded, key: &str) -> Self {
        let conversation = guarded.post(key, "/v1/conversations", json!({})).await.id();
        let tools = json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}]);
        let body = json!({"input": "weather", "tools": tools, "conversation": conversation});
        let answer = guarded.post(key, "/v1/responses", body).await;
        let call = answer.body["output"].as_array().unwrap().last().unwrap()["call_id"].as_str().unwrap().to_owned();
        let response = answer.id();
        let path = format!("/v1/responses/{response}/interventions");
        let steer = guarded.request(key, Method::POST, &path).header("idempotency-key", "mine");
        let steer = steer.json(&json!({"input": "more", "tools": "await"})).send().await.unwrap();
        let steer = Answer::read(steer).await.id();
        let items = guarded.get(key, &format!("/v1/conversations/{conversation}/items")).await;
        let item = items.body["data"][0]["id"].as_str().unwrap().to_owned();
        let chat = json!({"messages": [{"role": "user", "content": "hi"}], "store": true});
        let chat = guarded.post(key, "/v1/chat/completions", chat).await.id();
        Self { conversation, response, steer, call, item, chat }
    }

    /// The text with these ids in the place of names.
    fn fill(&self, text: &str) -> String {
        let mut filled = text.to_owned();
        for (name, id) in self.names() {
            filled = filled.replace(name, id);
        }
        filled
    }

    /// The text with names in the place of these ids.
    fn blank(&self, text: &str) -> String {
        let mut blank = text.to_owned();
        for (name, id) in self.names() {
            blank = blank.replace(id, name);
        }
        blank
    }

    fn names(&self) -> [(&'static str, &str); 6] {
        let Self { conversation, response, steer, call, item, chat } = self;
        [("CONV", conversation), ("RESP", response), ("STEER", steer), ("CALL", call), ("ITEM", item), ("CHAT", chat)]
    }
}

/// Method, path and body of every request that names something.
const REQUESTS: &[(&str, &str, &str)] = &[
    ("GET", "/v1/conversations?after=CONV", ""),
    ("GET", "/v1/conversations/CONV", ""),
    ("POST", "/v1/conversations/CONV", r#"{"metadata": {}}"#),
    ("DELETE", "/v1/conversations/CONV", ""),
    ("GET", "/v1/conversations/CONV/items", ""),
    ("POST", "/v1/conversations/CONV/items", r#"{"items": [{"role": "user", "content": "x"}]}"#),
    ("GET", "/v1/conversations/CONV/items/ITEM", ""),
    ("DELETE", "/v1/conversations/CONV/items/ITEM", ""),
    ("GET", "/v1/conversations/CONV/events", ""),
    ("GET", "/v1/conversations/CONV/events?after=1", ""),
    ("GET", "/v1/conversations/CONV/ws", ""),
    ("POST", "/v1/conversations/CONV/tool_results", r#"{"response_id": "RESP", "call_id": "CALL", "output": "x"}"#),
    ("POST", "/v1/conversations/CONV/tool_calls/CALL/claim", r#"{"response_id": "RESP"}"#),
    ("GET", "/v1/responses/RESP", ""),
    ("GET", "/v1/responses/RESP?stream=true", ""),
    ("DELETE", "/v1/responses/RESP", ""),
    ("GET", "/v1/responses/RESP/input_items", ""),
    ("GET", "/v1/responses/RESP/prefix", ""),
    ("POST", "/v1/responses/RESP/cancel", "{}"),
    ("POST", "/v1/responses/RESP/interventions", r#"{"input": "x"}"#),
    ("GET", "/v1/interventions/STEER", ""),
    ("DELETE", "/v1/interventions/STEER", ""),
    ("POST", "/v1/responses", r#"{"input": "x", "conversation": "CONV"}"#),
    ("POST", "/v1/responses", r#"{"input": "x", "previous_response_id": "RESP"}"#),
    ("POST", "/v1/responses", r#"{"input": "x", "previous_response_id": "RESP", "store": false}"#),
    ("POST", "/v1/responses/input_tokens", r#"{"input": "x", "conversation": "CONV"}"#),
    ("POST", "/v1/responses/input_tokens", r#"{"input": "x", "previous_response_id": "RESP"}"#),
    ("POST", "/v1/responses", r#"{"input": [{"type": "item_reference", "id": "ITEM"}]}"#),
    ("POST", "/v1/responses/input_tokens", r#"{"input": [{"id": "ITEM"}]}"#),
    ("POST", "/v1/conversations", r#"{"items": [{"type": "item_reference", "id": "ITEM"}]}"#),
    ("GET", "/v1/chat/completions/CHAT", ""),
    ("POST", "/v1/chat/completions/CHAT", r#"{"metadata": {}}"#),
    ("DELETE", "/v1/chat/completions/CHAT", ""),
    ("GET", "/v1/chat/completions/CHAT/messages", ""),
    ("POST", "/v1/responses/compact", r#"{"input": "x", "previous_response_id": "RESP"}"#),
];

async fn ask(guarded: &Guarded, key: &str, things: &Things, request: (&str, &str, &str)) -> (u16, String) {
    let (method, path, body) = request;
    let sent = guarded.request(key, method.parse().unwrap(), &things.fill(path));
    let sent = sent.header("idempotency-key", "mine").body(things.fill(body)).send().await.unwrap();
    let status = sent.status().as_u16();
    let mut body: Value = serde_json::from_str(&sent.text().await.unwrap()).unwrap_or_default();
    body.as_object_mut().map(|fields| fields.remove("request_id"));
    (status, things.blank(&body.to_string()))
}

#[test]
fn the_table_has_every_route_that_names_something() {
    for route in routes().iter().filter(|route| route.contains("{id}")) {
        let parts: Vec<_> = route.split('/').collect();
        let is_tried = |path: &str| {
            let path = path.split('?').next().unwrap();
            let tried: Vec<_> = path.split('/').collect();
            tried.len() == parts.len()
                && tried.iter().zip(&parts).all(|(tried, part)| tried == part || part.starts_with('{'))
        };
        assert!(REQUESTS.iter().any(|(_, path, _)| is_tried(path)), "{route} is not tried with somebody else's id");
    }
}

#[tokio::test]
async fn on_every_route_what_is_somebody_elses_is_as_what_never_was() {
    let guarded = Guarded::start().await;
    let (ann, bob) = (guarded.named("ann"), guarded.named("bob"));
    let (hers, nobodys) = (Things::of(&guarded, &ann).await, Things::unknown());
    let before = guarded.get(&ann, &format!("/v1/conversations/{}", hers.conversation)).await.body;
    for request in REQUESTS {
        let theirs = ask(&guarded, &bob, &hers, *request).await;
        assert!(matches!(theirs.0, 400 | 404), "{request:?}: {theirs:?}");
        assert!(theirs.1.contains("not_found"), "{request:?}: {theirs:?}");
        assert_eq!(theirs, ask(&guarded, &bob, &nobodys, *request).await, "{request:?}");
    }
    assert_eq!(guarded.get(&ann, &format!("/v1/conversations/{}", hers.conversation)).await.body, before);
    assert_eq!(guarded.get(&ann, &hers.fill("/v1/responses/RESP")).await.body["status"], "completed");
    assert_eq!(guarded.get(&ann, &hers.fill("/v1/interventions/STEER")).await.body["status"], "pending");
}

/// Frames that name a response.
const FRAMES: &[&str] = &[
    r#"{"type": "response.create", "input": "x", "previous_response_id": "RESP", "event_id": "E"}"#,
    r#"{"type": "response.create", "input": "x", "conversation": "CONV", "event_id": "E"}"#,
    r#"{"type": "response.steer", "previous_response_id": "RESP", "input": [{"role": "user", "content": "x"}],
        "event_id": "E"}"#,
    r#"{"type": "response.cancel", "response_id": "RESP", "event_id": "E"}"#,
    r#"{"type": "response.interrupt", "response_id": "RESP", "mode": "discard_partial_items", "event_id": "E"}"#,
    r#"{"type": "response.inject", "response_id": "RESP", "event_id": "E",
        "input": [{"type": "function_call_output", "call_id": "CALL", "output": "x"}]}"#,
    r#"{"type": "conversation.intervene", "response_id": "RESP", "input": "x", "event_id": "E"}"#,
    r#"{"type": "intervention.withdraw", "intervention_id": "STEER", "event_id": "E"}"#,
    r#"{"type": "conversation.tool_claim", "response_id": "RESP", "call_id": "CALL", "event_id": "E"}"#,
    r#"{"type": "conversation.tool_result", "response_id": "RESP", "call_id": "CALL", "output": "x", "event_id": "E"}"#,
];

/// What the socket says to a frame with these ids.
async fn told(socket: &mut Socket, frame: &str, things: &Things, number: usize) -> String {
    // As no id is spelled, in which it would be found as well.
    let event_id = format!("frame-{number}");
    let frame = things.fill(frame).replace("\"E\"", &format!("\"{event_id}\""));
    socket.send(serde_json::from_str(&frame).unwrap()).await;
    let answer = socket.next().await.to_string();
    things.blank(&answer).replace(&event_id, "E")
}

#[tokio::test]
async fn on_both_sockets_what_is_somebody_elses_is_as_what_never_was() {
    let guarded = Guarded::start().await;
    let (ann, bob) = (guarded.named("ann"), guarded.named("bob"));
    let (hers, nobodys) = (Things::of(&guarded, &ann).await, Things::unknown());
    let his = guarded.post(&bob, "/v1/conversations", json!({})).await.id();
    for path in ["/v1/responses".to_owned(), format!("/v1/conversations/{his}/ws")] {
        for (number, frame) in FRAMES.iter().enumerate() {
            let mut socket = guarded.socket(&bob, &path).await.unwrap();
            let theirs = told(&mut socket, frame, &hers, 2 * number).await;
            let expected = told(&mut socket, frame, &nobodys, 2 * number + 1).await;
            assert_eq!(theirs, expected, "{path} {frame}");
            assert!(theirs.contains("error") || theirs.contains("failed"), "{path} {frame}: {theirs}");
        }
    }
    assert_eq!(guarded.socket(&bob, &hers.fill("/v1/conversations/CONV/ws")).await.err(), Some(404));
    assert_eq!(guarded.get(&ann, &hers.fill("/v1/interventions/STEER")).await.body["status"], "pending");
}

#[tokio::test]
async fn an_idempotency_key_is_its_principals_own() {
    let guarded = Guarded::start().await;
    let (ann, bob) = (guarded.named("ann"), guarded.named("bob"));
    let create = async |key: &str, topic: &str| {
        let request = guarded.request(key, Method::POST, "/v1/conversations").header("idempotency-key", "k");
        Answer::read(request.json(&json!({"metadata": {"topic": topic}})).send().await.unwrap()).await
    };
    let hers = create(&ann, "a").await;
    let his = create(&bob, "b").await;
    assert_eq!((hers.status, his.status), (200, 200), "no key was reused");
    assert_ne!(hers.id(), his.id());
    let again = create(&ann, "a").await;
    assert_eq!((again.id(), again.header("idempotent-replayed")), (hers.id(), Some("true")));
}

#[tokio::test]
async fn two_keys_of_one_principal_share_what_it_owns() {
    let guarded = Guarded::start().await;
    let (old, key) = guarded.key(midstream::access::NewKey { name: "old".to_owned(), ..Default::default() });
    let of = Some(key.principal);
    let new = midstream::access::NewKey { name: "new".to_owned(), principal: of, ..Default::default() };
    let new = guarded.key(new).0;
    let hers = Things::of(&guarded, &old).await;
    assert_eq!(guarded.get(&new, &hers.fill("/v1/responses/RESP")).await.status, 200);
}

#[tokio::test]
async fn reasoning_that_was_sealed_for_another_principal_says_nothing() {
    let guarded = Guarded::start().await;
    let (ann, bob) = (guarded.named("ann"), guarded.named("bob"));
    let body = json!({"input": "think", "store": false, "include": ["reasoning.encrypted_content"]});
    let first = guarded.post(&ann, "/v1/responses", body).await;
    let sealed = &first.body["output"][0];
    assert!(sealed["encrypted_content"].is_string(), "{sealed}");
    let count = async |key: &str, reasoning: &Value| {
        let said = json!({"role": "assistant", "content": "so it is"});
        let input = json!([{"role": "user", "content": "think"}, reasoning, said, {"role": "user", "content": "on"}]);
        let counted = guarded.post(key, "/v1/responses/input_tokens", json!({"input": input})).await;
        let rendered = guarded.post(key, "/v1/tokenize", json!({"input": input})).await;
        assert_eq!((counted.status, rendered.status), (200, 200), "{} {}", counted.body, rendered.body);
        assert_eq!(counted.body["input_tokens"], rendered.body["count"]);
        counted.body["input_tokens"].as_u64().unwrap()
    };
    let foreign = json!({"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo"});
    let bare = json!({"type": "reasoning", "summary": [], "encrypted_content": sealed["encrypted_content"]});
    assert_eq!(count(&bob, &bare).await, count(&bob, &foreign).await, "as what another server sealed");
    assert!(count(&ann, &bare).await >= count(&bob, &bare).await);
}

#[tokio::test]
async fn a_list_of_conversations_has_ones_own_and_no_other() {
    let guarded = Guarded::start().await;
    let (ann, bob) = (guarded.named("ann"), guarded.named("bob"));
    let open = async |key: &str| guarded.post(key, "/v1/conversations", json!({})).await.id();
    let (hers, his) = (open(&ann).await, open(&bob).await);
    for (key, own) in [(&ann, hers), (&bob, his)] {
        let listed = guarded.get(key, "/v1/conversations").await.body;
        let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|it| it["id"].clone()).collect();
        assert_eq!(ids, [json!(own)], "{listed}");
    }
}
