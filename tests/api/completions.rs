//! `/v1/completions`.

use serde_json::{Value, json};

use crate::support::{PATIENCE, Server, SseEvent};

const PATH: &str = "/v1/completions";

fn ask(prompt: impl Into<Value>) -> Value {
    json!({"model": "scripted", "prompt": prompt.into(), "max_tokens": 100})
}

fn with(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn bytes(text: &str) -> Value {
    text.bytes().collect::<Vec<_>>().into()
}

#[tokio::test]
async fn a_whole_answer_has_the_shape_of_openais() {
    let server = Server::start().await;
    let answer = server.post(PATH, ask("Say it in French: ")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = &answer.body;
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!((&body["object"], &body["model"]), (&json!("text_completion"), &json!("scripted")));
    let choice = json!({"text": "Bonjour", "index": 0, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(body["choices"], json!([choice]));
    // A token is a byte here, and the end is one more: nothing stands around the prompt.
    assert_eq!((&body["usage"]["prompt_tokens"], &body["usage"]["completion_tokens"]), (&json!(18), &json!(8)));
}

#[tokio::test]
async fn a_prompt_is_a_text_or_tokens_or_a_list_of_either() {
    let server = Server::start().await;
    for (prompt, texts) in [
        (json!("French"), &["Bonjour"][..]),
        (bytes("French"), &["Bonjour"]),
        (json!(["French", "hi"]), &["Bonjour", "Hello, world"]),
        (json!([bytes("hi"), bytes("French")]), &["Hello, world", "Bonjour"]),
        (json!(["hi", bytes("French")]), &["Hello, world", "Bonjour"]),
    ] {
        let answer = server.post(PATH, ask(prompt.clone())).await;
        let choices = answer.body["choices"].as_array().unwrap_or_else(|| panic!("{prompt}: {}", answer.body));
        for (index, (choice, text)) in choices.iter().zip(texts).enumerate() {
            assert_eq!((&choice["text"], &choice["index"]), (&json!(text), &json!(index)), "{prompt}");
        }
        assert_eq!(choices.len(), texts.len());
    }
    let nothing = server.post(PATH, json!({"model": "scripted"})).await;
    assert_eq!(nothing.body["choices"][0]["text"], "Hello, world", "{}", nothing.body);
}

#[tokio::test]
async fn nothing_of_the_text_is_read_as_reasoning_or_as_a_call() {
    let server = Server::start().await;
    let text = |answer: Value| answer["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text(server.post(PATH, ask("think")).await.body), "<think>hm, well</think>so it is");
    assert!(text(server.post(PATH, ask("weather")).await.body).starts_with("Let me see. <tool_call>{"));
}

#[tokio::test]
async fn every_prompt_is_given_n_choices_and_the_tokens_are_added_up() {
    let server = Server::start().await;
    let one = server.post(PATH, ask("French")).await.body["usage"].clone();
    let several = server.post(PATH, with(ask(json!(["French", "French"])), &json!({"n": 2, "best_of": 2}))).await.body;
    let indexes: Vec<_> =
        several["choices"].as_array().unwrap().iter().map(|it| it["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    let count = |usage: &Value, name: &str| usage[name].as_u64().unwrap();
    assert_eq!(count(&several["usage"], "prompt_tokens"), 2 * count(&one, "prompt_tokens"));
    assert_eq!(count(&several["usage"], "completion_tokens"), 4 * count(&one, "completion_tokens"));
}

#[tokio::test]
async fn of_best_of_answers_n_are_shown_and_all_are_counted() {
    let server = Server::start().await;
    let one = server.post(PATH, ask("French")).await.body["usage"].clone();
    let best = server.post(PATH, with(ask(json!(["French", "hi"])), &json!({"best_of": 3, "echo": true}))).await.body;
    let texts = best["choices"].as_array().unwrap().iter().map(|it| (&it["index"], &it["text"], &it["logprobs"]));
    let shown = |index: u64, text: &str| (json!(index), json!(text), Value::Null);
    let expected = [shown(0, "FrenchBonjour"), shown(1, "hiHello, world")];
    assert_eq!(texts.collect::<Vec<_>>(), expected.iter().map(|(a, b, c)| (a, b, c)).collect::<Vec<_>>());
    let count = |usage: &Value, name: &str| usage[name].as_u64().unwrap();
    // "Hello, world" and "Bonjour", three times each, with their ends.
    assert_eq!(count(&best["usage"], "completion_tokens"), 3 * (count(&one, "completion_tokens") + 13));
}

#[tokio::test]
async fn a_text_is_cut_at_sixteen_tokens_where_nothing_is_said_and_at_a_stop() {
    let server = Server::start().await;
    let answer = server.post(PATH, json!({"prompt": "endless"})).await.body;
    assert_eq!(
        (&answer["usage"]["completion_tokens"], &answer["choices"][0]["finish_reason"]),
        (&json!(16), &json!("length"))
    );
    let answer = server.post(PATH, with(ask("hi"), &json!({"stop": ", w"}))).await.body;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("Hello"), &json!("stop")));
}

async fn streamed(server: &Server, body: Value) -> Vec<Value> {
    let body = with(body, &json!({"stream": true}));
    let events = server.post_stream(PATH, body).await.rest().await;
    assert_eq!(events.last().unwrap().data, "[DONE]");
    events[..events.len() - 1].iter().map(SseEvent::json).collect()
}

#[tokio::test]
async fn a_stream_has_the_texts_of_all_choices_and_at_last_the_usage() {
    let server = Server::start().await;
    let body = with(ask(json!(["French", "hi"])), &json!({"stream_options": {"include_usage": true}, "echo": true}));
    let whole = server.post(PATH, body.clone()).await.body;
    let parts = streamed(&server, body).await;
    let (last, parts) = parts.split_last().unwrap();
    for (index, text) in [(0, "FrenchBonjour"), (1, "hiHello, world")] {
        let own: Vec<&Value> = parts.iter().map(|part| &part["choices"][0]).filter(|it| it["index"] == index).collect();
        assert_eq!(own.iter().map(|it| it["text"].as_str().unwrap()).collect::<String>(), text);
        assert_eq!(whole["choices"][index]["text"], text);
        let ends = own.iter().filter(|it| it["finish_reason"] == "stop").count();
        assert_eq!((ends, &own.last().unwrap()["finish_reason"]), (1, &json!("stop")));
    }
    assert!(parts.iter().all(|part| part["usage"].is_null() && part["object"] == "text_completion"));
    assert!(parts.iter().all(|part| part["id"] == parts[0]["id"]));
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]));
    let silent = streamed(&server, ask("hi")).await;
    assert!(silent.iter().all(|part| part.get("usage").is_none()));
}

#[tokio::test]
async fn how_likely_tokens_were_is_told_in_lists_of_equal_length() {
    let server = Server::start().await;
    let body = with(ask("French"), &json!({"logprobs": 2}));
    let whole = server.post(PATH, body.clone()).await.body["choices"][0]["logprobs"].clone();
    let length = |name: &str| whole[name].as_array().unwrap().len();
    assert_eq!(
        whole["tokens"].as_array().unwrap()[..7],
        "Bonjour".chars().map(|it| json!(it.to_string())).collect::<Vec<_>>()
    );
    assert_eq!(whole["text_offset"].as_array().unwrap()[..7], (0..7).map(Value::from).collect::<Vec<_>>());
    let lengths = ["tokens", "token_logprobs", "top_logprobs", "text_offset"].map(length);
    assert!(lengths.iter().all(|it| *it == lengths[0]), "{whole}");
    assert!(whole["top_logprobs"][0]["B"].is_number());
    let parts = streamed(&server, body).await;
    for name in ["tokens", "text_offset"] {
        let lists = parts.iter().filter_map(|part| part["choices"][0]["logprobs"][name].as_array());
        assert_eq!(lists.flatten().cloned().collect::<Vec<_>>()[..7], whole[name].as_array().unwrap()[..7], "{name}");
    }
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_by_name() {
    let server = Server::start().await;
    for (fields, param) in [
        (json!({"suffix": "end"}), "suffix"),
        (json!({"n": 2, "best_of": 1}), "best_of"),
        (json!({"best_of": 2, "stream": true}), "best_of"),
        (json!({"best_of": 129}), "best_of"),
        (json!({"n": 0}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({"prompt": ["a", 7]}), "prompt[1]"),
        (json!({"prompt": [1, -1]}), "prompt[1]"),
        (json!({"prompt": [[1], [1_000_000]]}), "prompt[1][0]"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"logprobs": 1, "echo": true}), "logprobs"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"temperature": 3}), "temperature"),
        (json!({"stop": vec!["x"; 17]}), "stop"),
    ] {
        let answer = server.post(PATH, with(ask("hi"), &fields)).await;
        assert_eq!(answer.assert_error(400, "invalid_input")["param"], param, "{}", answer.body);
    }
    server.post(PATH, with(ask("hi"), &json!({"model": "gpt-99"}))).await.assert_error(404, "model_not_found");
    server.post(PATH, ask("broken")).await.assert_error(500, "engine_failed");
    let taken = json!({"suffix": "", "user": "u", "best_of": null, "tools": [], "seed": 7, "top_k": 3, "min_p": 0.1,
        "repetition_penalty": 1.1, "dry_multiplier": 0.5, "never_heard_of": {}});
    let answer = server.post(PATH, with(ask("French"), &taken)).await;
    assert_eq!(answer.body["choices"][0]["text"], "Bonjour", "{}", answer.body);
}

#[tokio::test]
async fn a_key_gives_the_same_answer_again_and_a_client_that_leaves_ends_its_choices() {
    let server = Server::start().await;
    let two = server.post_keyed(PATH, "two", with(ask("hi"), &json!({"n": 2}))).await;
    assert_eq!(two.assert_error(400, "invalid_input")["param"], "n");
    let body = with(ask(json!(["endless", "endless"])), &json!({"max_tokens": 10_000, "stream": true}));
    let mut stream = server.post_stream(PATH, body).await;
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2 {
        seen.insert(stream.next().await.unwrap().json()["choices"][0]["index"].as_u64());
    }
    assert_eq!(server.running.count(), 2);
    drop(stream);
    tokio::time::timeout(PATIENCE, server.running.idle()).await.unwrap();
}
