//! One whole stream of each kind, as a client reads it, against the file in `tests/golden/streams` of its name. What is
//! drawn anew in each run is replaced, and pieces of one text are one: how they are cut is a matter of time.
//!
//! `MIDSTREAM_UPDATE_GOLDEN=1` writes the files again.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::support::{Server, Setup, Socket, Sse, SseEvent};

/// Texts that come in pieces.
const PIECES: [&str; 7] = ["delta", "content", "text", "reasoning_content", "arguments", "partial_json", "thinking"];
/// Where in its order an event stands; whether it is gapless, other tests ask.
const PLACES: [&str; 5] = ["sequence_number", "seq", "last_seq", "epoch", "durable"];
/// What means something only to the server.
const OPAQUE: [&str; 3] = ["signature", "encrypted_content", "system_fingerprint"];

fn script() -> Value {
    let call = r#"<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>"#;
    let called = |name: &str, arguments: Value| {
        format!("<tool_call>{}</tool_call>", json!({"name": name, "arguments": arguments}))
    };
    json!([
        {"match": "write a summary", "deltas": ["It ", "was ", "so."]},
        {"match": "namespace", "deltas": [called("agents__spawn", json!({"name": "a"}))]},
        {"match": "custom", "deltas": [called("patch", json!({"input": "a\nb"}))]},
        {"match": "search", "deltas": [called("tool_search", json!({"query": "q"}))]},
        {"match": "shell", "deltas": [called("local_shell", json!({"command": ["ls"]}))]},
        {"match": "ask", "deltas": ["<think>", "hm, ", "well", "</think>", "Let me ", "see. ", call]},
        {"match": "fail", "deltas": ["so ", "far"], "finish": "error"},
        {"match": "long", "deltas": ["cut ", "off"], "finish": "length"},
        {"match": "silent", "deltas": ["at last"], "delay_ms": 600_000},
        {"deltas": ["It ", "is ", "so."]},
    ])
}

/// Makes frames of two runs the same.
#[derive(Default)]
struct Plain {
    /// Ids by their digits, which the kinds of ids of one thing share.
    names: HashMap<String, usize>,
    lines: Vec<(String, Value)>,
}

impl Plain {
    fn add(&mut self, event: &str, mut frame: Value) {
        self.plain(&mut frame);
        if let Some((last, before)) = self.lines.last_mut()
            && last == event
            && let Some(whole) = joined(before, &frame)
        {
            *before = whole;
            return;
        }
        self.lines.push((event.to_owned(), frame));
    }

    fn plain(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => self.plain_fields(fields),
            Value::Array(list) => list.iter_mut().for_each(|value| self.plain(value)),
            Value::String(text) => {
                // Sentences have ids, too.
                let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
                for word in &mut words {
                    *word = self.name(word).unwrap_or_else(|| std::mem::take(word));
                }
                *text = words.join(" ");
            }
            _ => {}
        }
    }

    fn plain_fields(&mut self, fields: &mut Map<String, Value>) {
        fields.retain(|name, _| !PLACES.contains(&name.as_str()));
        for (name, value) in fields {
            let is_time = name.starts_with("created") || name.ends_with("_at") || name.ends_with("_ms");
            match value {
                Value::Number(_) if is_time => *value = 0.into(),
                Value::String(text) if OPAQUE.contains(&name.as_str()) && !text.is_empty() => "…".clone_into(text),
                _ => self.plain(value),
            }
        }
    }

    /// An id's name: its kind, and how many others were seen before it.
    fn name(&mut self, text: &str) -> Option<String> {
        // Ids of calls are in the form that the model's family gives them.
        let call = || text.strip_prefix("call").map(|digits| ("call", digits));
        let (kind, digits) = text.split_once(['_', '-']).or_else(call)?;
        let is_id = digits.len() >= 20 && digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let count = self.names.len();
        is_id.then(|| format!("{kind}_{}", self.names.entry(digits.to_owned()).or_insert(count)))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (event, frame) in &self.lines {
            writeln!(text, "{event}{}{frame}", if event.is_empty() { "" } else { " " }).unwrap();
        }
        text
    }
}

/// Two frames as one, if they are pieces of one text: nothing else may differ.
fn joined(before: &Value, after: &Value) -> Option<Value> {
    let mut whole = before.clone();
    let mut pieces = 0;
    join(&mut whole, after, "", &mut pieces)?;
    (pieces == 1).then_some(whole)
}

fn join(whole: &mut Value, after: &Value, name: &str, pieces: &mut usize) -> Option<()> {
    match (whole, after) {
        (Value::Object(whole), Value::Object(after)) if whole.len() == after.len() => {
            whole.iter_mut().try_for_each(|(name, value)| join(value, after.get(name)?, name, pieces))
        }
        (Value::Array(whole), Value::Array(after)) if whole.len() == after.len() => {
            whole.iter_mut().zip(after).try_for_each(|(value, after)| join(value, after, name, pieces))
        }
        (Value::String(whole), Value::String(after)) if PIECES.contains(&name) => {
            whole.push_str(after);
            *pieces += 1;
            Some(())
        }
        (whole, after) => (whole == after).then_some(()),
    }
}

/// Checks the frames of a stream against the file of this name.
#[track_caller]
fn check(name: &str, frames: impl IntoIterator<Item = (String, Value)>) {
    let mut plain = Plain::default();
    frames.into_iter().for_each(|(event, frame)| plain.add(&event, frame));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/streams").join(name);
    if std::env::var_os("MIDSTREAM_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, plain.text()).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(plain.text(), golden, "{name}: if it is meant, write it again with MIDSTREAM_UPDATE_GOLDEN=1");
}

/// The events of a stream to its end.
async fn read(mut stream: Sse) -> Vec<(String, Value)> {
    let named = |event: SseEvent| {
        let frame = if event.data == "[DONE]" { event.data.clone().into() } else { event.json() };
        (event.event.unwrap_or_default(), frame)
    };
    stream.rest().await.into_iter().map(named).collect()
}

fn unnamed(frames: Vec<Value>) -> Vec<(String, Value)> {
    frames.into_iter().map(|frame| (String::new(), frame)).collect()
}

async fn server() -> Server {
    Server::start_with(Setup { script: Some(script()), ..Setup::default() }).await
}

fn function() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!({"name": "weather", "description": "d", "parameters": parameters})
}

fn tool(nested: bool) -> Value {
    let mut tool = json!({"type": "function"});
    if nested {
        tool["function"] = function();
    } else {
        tool.as_object_mut().unwrap().extend(function().as_object().unwrap().clone());
    }
    tool
}

#[tokio::test]
async fn responses_as_events_of_http() {
    let server = server().await;
    for input in ["ask", "fail", "long", "plain"] {
        let body = json!({"input": input, "stream": true, "tools": [tool(false)]});
        let frames = read(server.post_stream("/v1/responses", body).await).await;
        let id = frames[0].1["response"]["id"].as_str().unwrap().to_owned();
        let again = read(server.get_stream(&format!("/v1/responses/{id}?stream=true")).await).await;
        assert_eq!(again, frames, "what is read later is what was read");
        check(&format!("responses_{input}.sse"), frames);
    }
}

#[tokio::test]
async fn calls_of_every_kind_and_whole_ones_beside_their_parts() {
    let server = server().await;
    let parameters = json!({"type": "object"});
    let tools = json!([
        {"type": "namespace", "name": "agents", "tools": [
            {"type": "function", "name": "spawn", "parameters": parameters},
        ]},
        {"type": "custom", "name": "patch"},
        {"type": "tool_search", "execution": "client", "description": "d", "parameters": parameters},
        {"type": "local_shell"},
    ]);
    for kind in ["namespace", "custom", "search", "shell"] {
        let body = json!({"input": kind, "stream": true, "tools": tools});
        check(&format!("responses_{kind}.sse"), read(server.post_stream("/v1/responses", body).await).await);
    }
    let options = json!({"include_dispatch": true});
    let body = json!({"input": "ask", "stream": true, "stream_options": options, "tools": [tool(false)]});
    check("responses_dispatch.sse", read(server.post_stream("/v1/responses", body).await).await);
}

#[tokio::test]
async fn a_summary_as_events_of_http() {
    let server = server().await;
    let input = json!([{"role": "user", "content": "plain"}, {"type": "compaction_trigger"}]);
    let body = json!({"input": input, "stream": true});
    check("responses_compaction.sse", read(server.post_stream("/v1/responses", body).await).await);
}

#[tokio::test]
async fn a_response_that_waits_for_its_turn_as_events_of_http() {
    let server = server().await;
    let conversation = server.conversation().await;
    let rest = json!({"conversation": conversation, "if_busy": "enqueue", "background": true, "stream": true});
    let body = |input: &str| {
        let mut body = rest.clone();
        body["input"] = input.into();
        body
    };
    let mut first = server.post_stream("/v1/responses", body("silent")).await;
    let running = first.until("response.in_progress").await["response"]["id"].as_str().unwrap().to_owned();
    let mut second = server.post_stream("/v1/responses", body("plain")).await;
    let created = second.next().await.unwrap();
    assert_eq!(created.json()["response"]["status"], "queued", "{}", created.data);
    server.post(&format!("/v1/responses/{running}/cancel"), json!({})).await;
    let mut frames = vec![(created.event.clone().unwrap_or_default(), created.json())];
    frames.extend(read(second).await);
    check("responses_queued.sse", frames);
}

#[tokio::test]
async fn an_interrupt_as_frames_of_openais_socket() {
    let server = server().await;
    let (mut socket, id, mut frames) = silent(&server).await;
    for event_id in ["i", "late"] {
        let mode = "discard_partial_items";
        let interrupt = json!({"type": "response.interrupt", "response_id": id, "mode": mode, "event_id": event_id});
        socket.send(interrupt).await;
        let is_told = |frame: &Value| is_end(frame) || frame["type"] == "response.interrupt.failed";
        frames.extend(socket.until(is_told).await);
    }
    check("interrupt.ws", unnamed(frames));
}

#[tokio::test]
async fn responses_as_frames_of_a_socket() {
    let server = server().await;
    for input in ["ask", "fail", "plain"] {
        let mut socket = server.responses_socket().await;
        let tools = json!([tool(false)]);
        socket.send(json!({"type": "response.create", "input": input, "tools": tools, "event_id": "mine"})).await;
        let ends = ["response.completed", "error"];
        let frames = socket.until(|frame| ends.iter().any(|end| frame["type"] == *end)).await;
        check(&format!("responses_{input}.ws"), unnamed(frames));
    }
}

/// A socket with a response that runs and says nothing, its id, and the frames so far.
async fn silent(server: &Server) -> (Socket, Value, Vec<Value>) {
    let mut socket = server.responses_socket().await;
    socket.send(json!({"type": "response.create", "input": "silent"})).await;
    let frames = socket.until(|frame| frame["type"] == "response.in_progress").await;
    (socket, frames[0]["response"]["id"].clone(), frames)
}

fn is_end(frame: &Value) -> bool {
    ["response.completed", "response.incomplete", "response.failed"].iter().any(|end| frame["type"] == *end)
}

#[tokio::test]
async fn a_steer_as_frames_of_openais_socket() {
    let server = server().await;
    let (mut socket, id, mut frames) = silent(&server).await;
    let input = json!([{"type": "message", "role": "user", "content": "plain"}]);
    socket.send(json!({"type": "response.steer", "previous_response_id": id, "input": input, "event_id": "s"})).await;
    for _ in 0..2 {
        frames.extend(socket.until(is_end).await);
    }
    socket.send(json!({"type": "response.steer", "previous_response_id": id, "input": "late", "event_id": "t"})).await;
    frames.push(socket.next().await);
    check("steer.ws", unnamed(frames));
}

#[tokio::test]
async fn a_cancel_as_frames_of_openais_socket() {
    let server = server().await;
    let (mut socket, id, mut frames) = silent(&server).await;
    for _ in 0..2 {
        // The second one finds nothing to be cancelled.
        socket.send(json!({"type": "response.cancel", "response_id": id, "event_id": "c"})).await;
        frames.extend(socket.until(|frame| is_end(frame) || frame["type"] == "error").await);
    }
    check("cancel.ws", unnamed(frames));
}

#[tokio::test]
async fn injected_results_as_frames_of_openais_socket() {
    let server = server().await;
    let mut socket = server.responses_socket().await;
    socket.send(json!({"type": "response.create", "input": "ask", "tools": [tool(false)]})).await;
    let mut frames = socket.until(is_end).await;
    let response = &frames.last().unwrap()["response"];
    let call = response["output"].as_array().unwrap().iter().find(|item| item["type"] == "function_call").unwrap();
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "rain"});
    let inject = json!({"type": "response.inject", "response_id": response["id"], "input": [result], "event_id": "i"});
    let late = json!({"type": "response.inject", "response_id": response["id"], "input": [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"},
    ]});
    socket.send(inject).await;
    frames.extend(socket.until(is_end).await);
    socket.send(late).await;
    frames.push(socket.next().await);
    check("inject.ws", unnamed(frames));
}

#[tokio::test]
async fn lanes_as_frames_of_openais_socket() {
    let server = server().await;
    let mut socket = server.responses_socket().await;
    for (lane, input) in [(json!("a"), "ask"), (json!("b"), "long"), (json!("a"), "plain"), (Value::Null, "plain")] {
        let tools = json!([tool(false)]);
        let create =
            json!({"type": "response.create", "stream_id": lane, "input": input, "tools": tools, "store": false});
        socket.send(create).await;
    }
    let mut frames = Vec::new();
    for _ in 0..4 {
        frames.extend(socket.until(is_end).await);
    }
    // Each has its order; how they are mixed is a matter of time.
    frames.sort_by_key(|frame| frame["stream_id"].to_string());
    check("lanes.ws", unnamed(frames));
}

#[tokio::test]
async fn chats() {
    let server = server().await;
    for input in ["ask", "fail", "long", "plain"] {
        let messages = json!([{"role": "user", "content": input}]);
        let options = json!({"include_usage": true, "include_dispatch": true});
        let body = json!({"messages": messages, "stream": true, "stream_options": options, "tools": [tool(true)]});
        check(&format!("chat_{input}.sse"), read(server.post_stream("/v1/chat/completions", body).await).await);
    }
    let messages = json!([{"role": "user", "content": "ask"}]);
    let body = json!({"messages": messages, "stream": true, "functions": [function()]});
    check("chat_functions.sse", read(server.post_stream("/v1/chat/completions", body).await).await);
}

#[tokio::test]
async fn completions() {
    let server = server().await;
    for input in ["fail", "long", "plain"] {
        let options = json!({"include_usage": true});
        let body = json!({"prompt": input, "stream": true, "echo": true, "stream_options": options});
        check(&format!("completions_{input}.sse"), read(server.post_stream("/v1/completions", body).await).await);
    }
}

#[tokio::test]
async fn messages() {
    let server = server().await;
    for input in ["ask", "fail", "long", "plain"] {
        let tool = json!({"name": "weather", "input_schema": function()["parameters"]});
        let body = json!({
            "messages": [{"role": "user", "content": input}],
            "max_tokens": 2048,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "tools": [tool],
            "stream": true,
        });
        check(&format!("messages_{input}.sse"), read(server.post_stream("/v1/messages", body).await).await);
    }
}

#[tokio::test]
async fn a_conversation_as_events_of_http_and_as_frames_of_its_socket() {
    let server = server().await;
    for input in ["ask", "fail", "long", "plain"] {
        let conversation = server.conversation().await;
        let mut socket = server.socket(&conversation).await;
        let create = json!({"type": "response.create", "input": input, "tools": [tool(false)], "event_id": "mine"});
        socket.send(create).await;
        let ends = ["response.completed", "response.failed", "response.incomplete"];
        let frames = socket.until(|frame| ends.iter().any(|end| frame["type"] == *end)).await;
        let mut events = server.get_stream(&format!("/v1/conversations/{conversation}/events")).await;
        let mut read = Vec::new();
        loop {
            let event = events.next().await.unwrap();
            let frame = event.json();
            let is_last = ends.iter().any(|end| frame["type"] == *end);
            read.push((event.event.unwrap_or_default(), frame));
            if is_last {
                break;
            }
        }
        check(&format!("conversation_{input}.ws"), unnamed(frames));
        check(&format!("conversation_{input}.sse"), read);
    }
}
