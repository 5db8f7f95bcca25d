//! `/v1/messages`: answers whole and as streams, in the blocks, the events and the errors of Anthropic's API.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, PATIENCE, Server, Setup, SseEvent};

pub(crate) const PATH: &str = "/v1/messages?beta=true";

pub(crate) fn ask(text: &str) -> Value {
    json!({"model": "scripted", "max_tokens": 4096, "messages": [{"role": "user", "content": text}]})
}

fn thinking(text: &str, display: &str) -> Value {
    let mut body = ask(text);
    body["thinking"] = json!({"type": "adaptive", "display": display});
    body
}

pub(crate) fn tools() -> Value {
    json!([{"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}])
}

async fn streamed(server: &Server, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let events = server.post_stream(PATH, body).await.rest().await;
    let named = |event: &SseEvent| assert_eq!(event.event.as_deref(), event.json()["type"].as_str());
    events.iter().for_each(named);
    events.iter().map(SseEvent::json).collect()
}

/// The message that a client makes of its events; checks their order on the way.
fn gathered(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    assert_eq!((&events[0]["type"], &message["content"]), (&json!("message_start"), &json!([])));
    let mut blocks: Vec<(Value, String)> = Vec::new();
    let mut is_open = false;
    for event in &events[1..] {
        let place = blocks.len().wrapping_sub(1);
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert!(!is_open, "one block at a time: {event}");
                let input = event["content_block"].get("input");
                assert!(input.is_none_or(|input| *input == json!({})), "what is told is added to this: {event}");
                assert_eq!(event["index"], blocks.len());
                is_open = true;
                blocks.push((event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                assert_eq!((&event["index"], is_open), (&json!(place), true));
                let delta = &event["delta"];
                match delta["type"].as_str().unwrap() {
                    "signature_delta" => blocks[place].0["signature"] = delta["signature"].clone(),
                    kind => {
                        let field =
                            ["thinking", "text", "partial_json"].into_iter().find(|it| delta.get(*it).is_some());
                        blocks[place].1 += delta[field.unwrap()].as_str().unwrap_or_else(|| panic!("{kind}"));
                    }
                }
            }
            "content_block_stop" => {
                assert_eq!((&event["index"], is_open), (&json!(place), true));
                is_open = false;
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "ping" | "tool_call_dispatch" | "message_stop" => {}
            kind => panic!("{kind}: {event}"),
        }
    }
    assert!(!is_open);
    let whole = |(mut block, text): (Value, String)| {
        match block["type"].as_str().unwrap().to_owned().as_str() {
            "tool_use" => {
                block["input"] = serde_json::from_str(&text).unwrap_or_else(|_| json!({"INVALID_JSON": text}));
            }
            kind => block[kind] = text.into(),
        }
        block
    };
    message["content"] = blocks.into_iter().map(whole).collect();
    message
}

/// Both ways of asking, which must give the same blocks.
async fn both(server: &Server, body: Value) -> Value {
    let whole = server.post(PATH, body.clone()).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let events = streamed(server, body).await;
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let (mut left, mut right) = (whole.body.clone(), gathered(&events));
    // Each answer has ids and seals of its own.
    for message in [&mut left, &mut right] {
        message["id"] = Value::Null;
        for block in message["content"].as_array_mut().unwrap() {
            for name in ["id", "signature"] {
                if let Some(value) = block.get_mut(name) {
                    assert!(value.as_str().is_some_and(|value| !value.is_empty()), "{name}");
                    *value = Value::Null;
                }
            }
        }
    }
    assert_eq!(left, right);
    whole.body
}

fn kinds(message: &Value) -> Vec<&str> {
    message["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_text_is_given_whole_and_streamed_alike() {
    let server = Server::start().await;
    let message = both(&server, ask("hi")).await;
    assert_eq!(message["content"], json!([{"type": "text", "text": "Hello, world", "citations": null}]));
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!((&message["model"], &message["stop_reason"]), (&json!("scripted"), &json!("end_turn")));
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(message["stop_sequence"], Value::Null);
}

#[tokio::test]
async fn usage_is_true_from_the_first_event_on() {
    let server = Server::start().await;
    let counted = server.post("/v1/messages/count_tokens?beta=true", ask("hi")).await.body["input_tokens"].clone();
    let events = streamed(&server, ask("hi")).await;
    let usage = &events[0]["message"]["usage"];
    assert_eq!(usage["input_tokens"], counted);
    assert_eq!((&usage["cache_read_input_tokens"], &usage["output_tokens"]), (&json!(0), &json!(0)));
    let last = &events[events.len() - 2];
    assert_eq!((&last["type"], &last["usage"]["input_tokens"]), (&json!("message_delta"), &counted));
    // A token is a byte here, and the last one ends the turn.
    assert_eq!(last["usage"]["output_tokens"], "Hello, world".len() + 1);
}

#[tokio::test]
async fn thinking_stands_in_its_place_and_comes_back_by_its_signature() {
    let server = Server::start().await;
    let message = both(&server, thinking("think", "summarized")).await;
    assert_eq!(kinds(&message), ["thinking", "text"]);
    assert_eq!(message["content"][0]["thinking"], "hm, well");
    assert!(message["usage"]["output_tokens_details"]["thinking_tokens"].as_u64() > Some(0));

    let omitted = both(&server, thinking("think", "omitted")).await;
    assert_eq!((kinds(&omitted), &omitted["content"][0]["thinking"]), (vec!["thinking", "text"], &json!("")));
    // What was not shown is not lost.
    let count = async |thought: &Value| {
        let mut body = thinking("think", "omitted");
        // Of what was thought in front of a call every template keeps all.
        let call = json!({"type": "tool_use", "id": "toolu1", "name": "weather", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "toolu1", "content": "rain"});
        let answer = json!({"role": "assistant", "content": [thought, call]});
        let next = json!({"role": "user", "content": [result]});
        body["messages"].as_array_mut().unwrap().extend([answer, next]);
        let counted = server.post("/v1/messages/count_tokens", body).await;
        counted.body["input_tokens"].as_u64().unwrap_or_else(|| panic!("{}", counted.body))
    };
    let shown = count(&message["content"][0]).await;
    assert_eq!(count(&omitted["content"][0]).await, shown);
    let redacted = json!({"type": "redacted_thinking", "data": message["content"][0]["signature"]});
    assert_eq!(count(&redacted).await, shown);
    // What others sealed, or nobody, is the text that there is.
    let forged = json!({"type": "thinking", "thinking": "hm, well", "signature": "EqQBCkYIBxgCKkA"});
    assert_eq!(count(&forged).await, shown);
    let foreign = json!({"type": "redacted_thinking", "data": "EqQBCkYIBxgCKkA"});
    assert!(count(&foreign).await < shown);
}

#[tokio::test]
async fn what_is_thought_behind_a_call_stands_where_it_was_thought() {
    let call = r#"<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>"#;
    let thought = |text: &str| ["<think>".to_owned(), text.to_owned(), "</think>".to_owned()].concat();
    let script = json!([{"deltas": [thought("hm"), call, thought("well"), call]}]);
    let server = Server::start_with(Setup { script: Some(script), ..Setup::default() }).await;
    let mut body = thinking("hi", "summarized");
    body["tools"] = tools();
    let message = both(&server, body.clone()).await;
    let expected = ["thinking", "tool_use", "thinking", "tool_use"];
    assert_eq!(kinds(&message), expected, "{message}");
    assert_eq!(
        (&message["content"][0]["thinking"], &message["content"][2]["thinking"]),
        (&json!("hm"), &json!("well"))
    );
    body["thinking"]["display"] = "omitted".into();
    assert_eq!(kinds(&both(&server, body).await), expected);
}

#[tokio::test]
async fn calls_are_blocks_of_their_own_between_the_texts() {
    let server = Server::start().await;
    let mut body = ask("weather");
    body["tools"] = tools();
    let message = both(&server, body.clone()).await;
    assert_eq!((kinds(&message), &message["stop_reason"]), (vec!["text", "tool_use"], &json!("tool_use")));
    let call = &message["content"][1];
    assert_eq!((&call["name"], &call["input"]), (&json!("weather"), &json!({"city": "Oslo"})));

    let mut twice = body.clone();
    twice["messages"][0]["content"] = "twice".into();
    let message = both(&server, twice).await;
    assert_eq!(kinds(&message), ["tool_use", "tool_use"]);
    assert_ne!(message["content"][0]["id"], message["content"][1]["id"]);

    let result =
        json!({"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "rain"}]});
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": [call]}));
    messages.push(json!({"role": "user", "content": [result]}));
    let message = both(&server, body).await;
    assert_eq!(message["content"][0]["text"], "Take an umbrella.");
}

#[tokio::test]
async fn arguments_are_streamed_while_they_are_generated_and_whole_calls_told_to_who_asks() {
    let server = Server::start().await;
    let mut body = ask("typhoon");
    body["tools"] = tools();
    let events = streamed(&server, body.clone()).await;
    let partial = events.iter().filter(|event| event["delta"]["type"] == "input_json_delta").count();
    assert!(partial > 2, "{partial} parts");
    assert!(events.iter().all(|event| event["type"] != "tool_call_dispatch"));
    body["stream_options"] = json!({"include_dispatch": true});
    let events = streamed(&server, body).await;
    let told: Vec<&Value> = events.iter().filter(|event| event["type"] == "tool_call_dispatch").collect();
    assert_eq!((told.len(), &told[0]["name"], &told[0]["index"]), (1, &json!("weather"), &json!(0)));
    assert_eq!(told[0]["input"]["city"], "O".repeat(20));
    gathered(&events);
}

#[tokio::test]
async fn why_a_message_ended_is_said_in_anthropics_words() {
    let server = Server::start().await;
    let mut cut = ask("endless");
    cut["max_tokens"] = 5.into();
    let message = both(&server, cut).await;
    assert_eq!((&message["stop_reason"], &message["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(5)));
    // The script ends its answer, as a full context would.
    assert_eq!(both(&server, ask("long")).await["stop_reason"], "model_context_window_exceeded");
    let mut stopped = ask("hi");
    stopped["stop_sequences"] = json!(["never", ", w"]);
    let message = both(&server, stopped).await;
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("stop_sequence"), &json!(", w")));
    assert_eq!(message["content"][0]["text"], "Hello");
}

#[tokio::test]
async fn an_answer_that_somebody_else_cut_is_paused_and_can_be_gone_on_with() {
    let server = Server::start().await;
    let mut body = ask("endless");
    body["stream"] = true.into();
    let mut stream = server.post_stream(PATH, body).await;
    let begun = stream.until("message_start").await;
    stream.until("content_block_delta").await;
    let id = begun["message"]["id"].as_str().unwrap().replacen("msg_", "resp_", 1);
    let path = format!("/v1/responses/{id}/interventions");
    let steered = server.post_keyed(&path, "k", json!({"input": "rain", "when": "now"})).await;
    assert_eq!(steered.status, 202, "{}", steered.body);
    assert_eq!(stream.until("message_delta").await["delta"]["stop_reason"], "pause_turn");
    assert_eq!(stream.next().await.unwrap().json()["type"], "message_stop");
}

#[tokio::test]
async fn a_model_that_thinks_unasked_is_stopped_unless_the_request_says_otherwise() {
    let server = Server::start().await;
    let thoughts = async |body: Value| {
        let message = server.post(PATH, body).await.body;
        let blocks = message["content"].as_array().unwrap_or_else(|| panic!("{message}")).iter();
        blocks
            .filter(|block| block["type"] == "thinking")
            .map(|block| block["thinking"].to_string())
            .collect::<String>()
    };
    let mut off = ask("think");
    assert!(thoughts(off.clone()).await.len() < "hm, well".len());
    off["thinking"] = json!({"type": "between_tools"});
    assert!(thoughts(off).await.len() < "hm, well".len());
    assert_eq!(thoughts(thinking("think", "summarized")).await, "\"hm, well\"");
}

#[tokio::test]
async fn a_request_for_no_tokens_computes_the_prompt_only() {
    let server = Server::start().await;
    let mut body = ask("hi");
    body["max_tokens"] = 0.into();
    let message = both(&server, body).await;
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &json!("max_tokens")));
    assert_eq!(message["usage"]["output_tokens"], 0);
}

#[tokio::test]
async fn a_text_of_the_assistant_at_the_end_is_gone_on_with() {
    let server = Server::start().await;
    let mut body = ask("In French");
    body["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": "Say: "}));
    let plain = server.post("/v1/messages/count_tokens", ask("In French")).await.body["input_tokens"].as_u64();
    let counted = server.post("/v1/messages/count_tokens", body.clone()).await.body["input_tokens"].as_u64();
    assert_eq!(counted.unwrap() - plain.unwrap(), "Say: ".len() as u64, "nothing closes it");
}

#[tokio::test]
async fn silence_is_broken_by_pings() {
    let server = Server::start_with(Setup { silence: std::time::Duration::from_millis(20), ..Setup::default() }).await;
    let events = streamed(&server, ask("slow")).await;
    assert!(events.iter().any(|event| event["type"] == "ping"));
    let first = events.iter().find(|event| event["type"] != "ping").unwrap();
    assert_eq!(first["type"], "message_start");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_answer() {
    let server = Server::start().await;
    let mut body = ask("endless");
    body["stream"] = true.into();
    let mut stream = server.post_stream(PATH, body).await;
    stream.until("content_block_delta").await;
    assert_eq!(server.running.count(), 1);
    drop(stream);
    tokio::time::timeout(PATIENCE, server.running.idle()).await.unwrap();
}

#[tokio::test]
async fn errors_have_anthropics_shape_before_and_within_a_stream() {
    let server = Server::start().await;
    let answer = server.post(PATH, ask("broken")).await;
    let error = &answer.body["error"];
    assert_eq!((answer.status, &answer.body["type"]), (500, &json!("error")));
    assert_eq!((&error["type"], &error["details"]["error_code"]), (&json!("api_error"), &json!("engine_failed")));
    assert_eq!(answer.header("request-id"), answer.body["request_id"].as_str());
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));

    let mut late = ask("breaks late");
    late["stream"] = true.into();
    let events = server.post_stream(PATH, late).await.rest().await;
    let last = events.last().unwrap();
    assert_eq!((last.event.as_deref(), &last.json()["error"]["type"]), (Some("error"), &json!("api_error")));
    assert!(events.iter().all(|event| event.event.as_deref() != Some("message_stop")));
    assert!(last.json()["request_id"].as_str().is_some_and(|id| id.starts_with("req_")), "{}", last.data);

    let mut unknown = ask("hi");
    unknown["model"] = "claude-unheard-of".into();
    let answer = server.post(PATH, unknown).await;
    assert_eq!((answer.status, &answer.body["error"]["type"]), (404, &json!("not_found_error")));
    let raw = server.request(Method::POST, PATH).body("{").header("content-type", "application/json");
    let answer = Answer::read(raw.send().await.unwrap()).await;
    assert_eq!((answer.status, &answer.body["error"]["type"]), (400, &json!("invalid_request_error")));
    let nowhere = server.get("/v1/messages/batches").await;
    assert_eq!((nowhere.status, &nowhere.body["error"]["type"]), (404, &json!("not_found_error")));
}

#[tokio::test]
async fn a_full_server_says_529_and_when_to_come_back() {
    let server = Server::start_with(Setup { requests_in_flight_max: 1, ..Setup::default() }).await;
    let mut body = ask("endless");
    body["stream"] = true.into();
    let mut first = server.post_stream(PATH, body).await;
    first.until("content_block_delta").await;
    let refused = server.post(PATH, ask("hi")).await;
    assert_eq!((refused.status, &refused.body["error"]["type"]), (529, &json!("overloaded_error")));
    assert_eq!(refused.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_prompt_that_cannot_fit_is_refused_in_the_words_that_clients_read() {
    let server = Server::start().await;
    for stream in [false, true] {
        let mut body = ask(&"long ".repeat(250_000));
        body["stream"] = stream.into();
        let refused = server.post(PATH, body).await;
        assert_eq!((refused.status, &refused.body["error"]["type"]), (400, &json!("invalid_request_error")));
        let message = refused.body["error"]["message"].as_str().unwrap();
        let (asked, rest) = message.strip_prefix("prompt is too long: ").unwrap().split_once(" tokens > ").unwrap();
        let most = rest.split_once(" maximum").unwrap().0;
        assert!(asked.parse::<u64>().unwrap() > most.parse().unwrap(), "{message}");
    }
}

#[tokio::test]
async fn a_key_is_answered_once() {
    let server = Server::start().await;
    let mut body = ask("endless");
    let mark = json!({"type": "ephemeral", "ttl": "1h"});
    body["messages"][0]["content"] = json!([{"type": "text", "text": "endless", "cache_control": mark}]);
    body["context_management"] = json!({"edits": [{"type": "clear_thinking_20251015"}]});
    body["stream"] = true.into();
    let begin = || server.stream(server.request(Method::POST, PATH).header("idempotency-key", "k").json(&body));
    let mut first = begin().await;
    let begun = first.next().await.unwrap().json();
    assert_eq!(begun["type"], "message_start");
    let message = &begun["message"];
    assert!(message["usage"]["cache_creation"]["ephemeral_1h_input_tokens"].as_u64() > Some(0), "{message}");
    assert_eq!(message["context_management"]["applied_edits"], json!([]));
    let mut again = begin().await;
    assert_eq!(again.next().await.unwrap().json(), begun, "it is followed from its beginning");
    assert_eq!(server.running.count(), 1);
    let refused = |answer: &Answer| answer.body["error"]["details"]["error_code"].clone();
    let other = server.post_keyed(PATH, "k", ask("rain")).await;
    assert_eq!((other.status, refused(&other)), (422, json!("idempotency_key_reused")), "{}", other.body);
    let mut whole = body.clone();
    whole["stream"] = false.into();
    let whole = server.post_keyed(PATH, "k", whole).await;
    assert_eq!((whole.status, refused(&whole)), (409, json!("idempotency_in_progress")), "{}", whole.body);
    // The second reader keeps it alive.
    drop(first);
    again.until("content_block_delta").await;
}

#[tokio::test]
async fn whoever_greets_is_answered() {
    let server = Server::start().await;
    for (method, path) in [(Method::HEAD, "/"), (Method::HEAD, "/api/hello"), (Method::GET, "/api/hello")] {
        assert_eq!(server.request(method, path).send().await.unwrap().status(), 200, "{path}");
    }
}

#[tokio::test]
async fn a_call_that_was_cut_off_and_one_that_is_no_json_say_so_in_whole_answers_and_streams_alike() {
    let cut = "hi <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Os";
    let broken = "hi <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": Oslo}}</tool_call>";
    let script = json!([
        {"match": "cut", "deltas": [cut], "finish": "length"},
        {"match": "broken", "deltas": [broken]},
        {"deltas": ["so"]},
    ]);
    let server = Server::start_with(Setup { script: Some(script), ..Setup::default() }).await;
    let asked = |text: &str| {
        let mut body = ask(text);
        body["tools"] = tools();
        body
    };
    let cut = both(&server, asked("cut")).await;
    assert_eq!(kinds(&cut), ["text", "tool_use"], "{cut}");
    let input = json!({"INVALID_JSON": "{\"city\": \"Os"});
    assert_eq!((&cut["content"][1]["name"], &cut["content"][1]["input"]), (&json!("weather"), &input));
    assert_ne!(cut["stop_reason"], "tool_use", "nobody may run it");
    let broken = both(&server, asked("broken")).await;
    let calls = broken["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use");
    for call in calls {
        assert!(call["input"]["INVALID_JSON"].as_str().is_some_and(|said| said.contains("Oslo")), "{broken}");
    }
    // A client that was cut off goes on with what it has.
    let mut again = asked("cut");
    again["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": cut["content"]}));
    again["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": "hi"}));
    assert_eq!(server.post(PATH, again).await.status, 200);
}

#[tokio::test]
async fn a_prompt_that_is_only_computed_is_counted_and_found_again() {
    let server = Server::start().await;
    let mut body = ask("hi");
    body["max_tokens"] = json!(0);
    let computed = server.post(PATH, body).await.body;
    let counted = server.post("/v1/messages/count_tokens", ask("hi")).await.body;
    assert_eq!(computed["usage"]["input_tokens"], counted["input_tokens"]);
    assert_eq!((&computed["content"], &computed["stop_reason"]), (&json!([]), &json!("max_tokens")));
}
