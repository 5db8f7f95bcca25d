//! Messages on a model that runs, as its client sees them: what `cache_control` keeps, counted in tokens of `usage`,
//! and a call that must be and is cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::replay_tests::{BLOCK, app};
use super::{Doors, router, serve};
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::LoadOptions;
use crate::prompt::builtin_template;

/// Blocks that the cache has room for, of which half can be pinned; and the bytes of one of the tiny model's.
const BLOCKS: usize = 40;
const BLOCK_BYTES: usize = BLOCK * 1024;

/// A server, and the hands of its clock.
struct Served {
    address: String,
    client: reqwest::Client,
    now_ms: Arc<AtomicU64>,
    _folder: TempDir,
}

impl Served {
    /// A cache that is soon full.
    async fn small() -> Self {
        let (kv_bytes, kv_pinned_bytes_max) = (BLOCKS * BLOCK_BYTES, BLOCKS / 2 * BLOCK_BYTES);
        Self::start(LoadOptions { kv_bytes, kv_pinned_bytes_max, ..LoadOptions::default() }).await
    }

    async fn start(options: LoadOptions) -> Self {
        let (folder, now_ms) = (TempDir::new().unwrap(), Arc::new(AtomicU64::new(1_000_000)));
        let options = LoadOptions { clock: Clock::Manual(Arc::clone(&now_ms)), ..options };
        let router = router(app(&folder, options).await);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(serve(listener, router, Doors::new(&Config::default()), std::future::pending()));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { address, client, now_ms, _folder: folder }
    }

    fn wait(&self, time: Duration) {
        self.now_ms.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// The usage of an answer to this text, with this mark behind it.
    async fn ask(&self, name: &str, mark: Value) -> Value {
        let text = json!({"type": "text", "text": format!("{name} ").repeat(130 / (name.len() + 1))});
        let mut blocks = [text];
        blocks[0]["cache_control"] = mark;
        let body = json!({"max_tokens": 2, "messages": [{"role": "user", "content": blocks}]});
        self.post(&body).await["usage"].clone()
    }

    async fn post(&self, body: &Value) -> Value {
        let post = self.client.post(format!("{}/v1/messages", self.address)).json(body);
        let answer: Value = post.send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["type"], "message", "{answer}");
        answer
    }

    /// Tokens of this text that were in the cache.
    async fn cached(&self, name: &str) -> u64 {
        self.ask(name, Value::Null).await["cache_read_input_tokens"].as_u64().unwrap()
    }

    /// Asks for so much else that it would fill the cache seven times: what was used a few times goes as well.
    async fn press(&self, names: &str) {
        for number in 0..24 {
            self.ask(&format!("{names}{number}"), Value::Null).await;
        }
    }
}

fn mark(ttl: &str) -> Value {
    json!({"type": "ephemeral", "ttl": ttl})
}

#[tokio::test]
async fn what_is_marked_outlives_pressure_that_evicts_everything_else_until_its_time_is_over() {
    let served = Served::small().await;
    let usage = served.ask("kept", mark("5m")).await;
    let created = usage["cache_creation"]["ephemeral_5m_input_tokens"].as_u64().unwrap();
    let whole = created / BLOCK as u64 * BLOCK as u64;
    assert!(whole > 100, "{usage}");
    served.ask("plain", Value::Null).await;
    served.press("a").await;
    assert_eq!((served.cached("plain").await, served.cached("kept").await), (0, whole));
    served.wait(Duration::from_secs(299));
    served.press("b").await;
    assert_eq!(served.cached("kept").await, whole);
    served.wait(Duration::from_secs(1));
    served.press("c").await;
    assert_eq!(served.cached("kept").await, 0);
}

#[tokio::test]
async fn a_mark_for_an_hour_keeps_for_an_hour_and_asking_with_it_again_for_another() {
    let served = Served::small().await;
    let first = served.ask("kept", mark("1h")).await;
    let created = first["cache_creation"]["ephemeral_1h_input_tokens"].as_u64().unwrap();
    let whole = created / BLOCK as u64 * BLOCK as u64;
    served.wait(Duration::from_mins(59));
    served.press("a").await;
    let again = served.ask("kept", mark("1h")).await;
    // What is read is neither created nor new; together they are the prompt.
    let parts = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    let parts = |usage: &Value| parts.map(|name| usage[name].as_u64().unwrap());
    let (before, now) = (parts(&first), parts(&again));
    assert_eq!(before, [before[0], created, 0], "{first}");
    assert_eq!(now, [before[0], created - whole, whole], "{again}");
    served.wait(Duration::from_mins(59));
    served.press("b").await;
    assert_eq!(served.cached("kept").await, whole);
    served.wait(Duration::from_mins(1));
    served.press("c").await;
    assert_eq!(served.cached("kept").await, 0);
}

#[tokio::test]
async fn a_stream_begins_with_what_its_prompt_found_in_the_cache() {
    let served = Served::start(LoadOptions::default()).await;
    let first = served.ask("kept", Value::Null).await;
    let again = served.ask("kept", Value::Null).await;
    let read = again["cache_read_input_tokens"].as_u64().unwrap();
    assert!(read > 100, "else nothing is proven: {again}");
    let text = json!({"type": "text", "text": "kept ".repeat(26)});
    let messages = json!([{"role": "user", "content": [text]}]);
    let body = json!({"max_tokens": 2, "stream": true, "messages": messages});
    let post = served.client.post(format!("{}/v1/messages", served.address)).json(&body);
    let stream = post.send().await.unwrap().text().await.unwrap();
    let begun =
        stream.lines().filter_map(|line| line.strip_prefix("data: ")).find(|data| data.contains("message_start"));
    let begun: Value = serde_json::from_str(begun.unwrap()).unwrap();
    let usage = &begun["message"]["usage"];
    let rest = first["input_tokens"].as_u64().unwrap() - read;
    assert_eq!((&usage["cache_read_input_tokens"], &usage["input_tokens"]), (&json!(read), &json!(rest)));
}

#[tokio::test]
async fn a_tool_that_was_found_is_called_as_one_that_is_shown_and_one_that_was_removed_is_not() {
    let template = builtin_template("hermes").map(str::to_owned);
    let served = Served::start(LoadOptions { template, ..LoadOptions::default() }).await;
    let properties = json!({"at": {"enum": ["sea"]}});
    let schema = json!({"type": "object", "properties": properties, "required": ["at"], "additionalProperties": false});
    let put_off = |name: &str| json!({"name": name, "input_schema": schema, "strict": true, "defer_loading": true});
    let tools = json!([{"name": "search", "input_schema": schema, "strict": true}, put_off("look"), put_off("other")]);
    let call = json!({"type": "tool_use", "id": "a", "name": "search", "input": {"at": "sea"}});
    let found = json!([{"type": "tool_reference", "tool_name": "look"}]);
    let result = json!({"type": "tool_result", "tool_use_id": "a", "content": found});
    let removed = |name: &str| {
        let tool = json!({"type": "tool_reference", "name": name});
        json!({"role": "system", "content": [{"type": "tool_removal", "tool": tool}]})
    };
    let ask = async |gone: Option<&str>, choice: Value| {
        let mut messages = vec![
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "content": [call]}),
            json!({"role": "user", "content": [result]}),
        ];
        messages.extend(gone.map(removed));
        let body = json!({"max_tokens": 400, "messages": messages, "tools": tools, "tool_choice": choice});
        served.post(&body).await
    };
    let any = json!({"type": "any", "disable_parallel_tool_use": true});
    let forced = json!({"type": "tool", "name": "look", "disable_parallel_tool_use": true});
    for (gone, choice, name) in
        [(None, &forced, "look"), (Some("search"), &any, "look"), (Some("look"), &any, "search")]
    {
        let message = ask(gone, choice.clone()).await;
        let called = &message["content"][0];
        assert_eq!((&called["name"], &called["input"]), (&json!(name), &json!({"at": "sea"})), "{message}");
    }
    // Which of them must be called is not said in the prompt, so that it stays what it was.
    let prompt = |message: &Value| {
        let usage = &message["usage"];
        ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64().unwrap()).iter().sum::<u64>()
    };
    let free = served.post(&json!({"max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]})).await;
    assert!(prompt(&ask(None, any).await) > prompt(&free));
    assert_eq!(prompt(&ask(None, forced).await), prompt(&ask(None, json!({"type": "auto"})).await));
}

#[tokio::test]
async fn where_too_much_is_marked_the_oldest_makes_way() {
    let served = Served::small().await;
    for name in ["first", "second"] {
        served.ask(name, mark("1h")).await;
    }
    served.press("a").await;
    let (second, first) = (served.cached("second").await, served.cached("first").await);
    assert!(second > 100 && first < second, "{first} {second}");
}

#[tokio::test]
async fn a_call_that_must_be_and_is_cut_before_it_is_one_shows_nothing_of_its_marker() {
    let template = builtin_template("hermes").map(str::to_owned);
    let served = Served::start(LoadOptions { template, ..LoadOptions::default() }).await;
    let tools = json!([{"name": "look", "input_schema": {"type": "object"}}]);
    // A byte is a token: some of `<tool_call>`, and some more.
    for most in [1, 4, 12] {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let choice = json!({"type": "any"});
        let body = json!({"max_tokens": most, "messages": messages, "tools": tools, "tool_choice": choice});
        let message = served.post(&body).await;
        assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &json!("max_tokens")), "{message}");
        assert_eq!(message["usage"]["output_tokens"], most);
    }
}

#[tokio::test]
async fn an_answer_is_held_to_a_schema_by_either_name_and_to_one_call() {
    let template = builtin_template("hermes").map(str::to_owned);
    let served = Served::start(LoadOptions { template, ..LoadOptions::default() }).await;
    let properties = json!({"answer": {"enum": ["yes"]}});
    let schema = json!({"type": "object", "properties": properties, "required": ["answer"],
        "additionalProperties": false});
    let asked = json!({"max_tokens": 400, "messages": [{"role": "user", "content": "hi"}]});
    let format = json!({"type": "json_schema", "schema": schema});
    for (name, value) in [("output_config", json!({"format": format})), ("output_format", format)] {
        let mut body = asked.clone();
        body[name] = value;
        let message = served.post(&body).await;
        let said: Value = serde_json::from_str(message["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!((said, &message["stop_reason"]), (json!({"answer": "yes"}), &json!("end_turn")), "{message}");
    }
    let mut body = asked;
    body["tools"] = json!([{"name": "look", "input_schema": schema, "strict": true}]);
    body["tool_choice"] = json!({"type": "any", "disable_parallel_tool_use": true});
    let message = served.post(&body).await;
    let calls = message["content"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[0]["type"]), (1, &json!("tool_use")), "{message}");
    assert_eq!((&calls[0]["input"], &message["stop_reason"]), (&json!({"answer": "yes"}), &json!("tool_use")));
}
