//! Prompts without a generation: tokens, renderings, and why a prompt left what was held.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Server, Setup};

fn messages() -> Value {
    json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi <|im_end|>"}])
}

/// A request whose last message the answer goes on with.
fn going_on(more: &Value) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, I say: "}]);
    let mut body = json!({"messages": messages, "continue_final_message": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])
}

#[tokio::test]
async fn the_count_is_what_a_generation_uses() {
    let server = Server::start().await;
    let request = json!({"messages": messages(), "tools": tools()});
    let counted = server.post("/v1/tokenize", request.clone()).await.body;
    let rendered = server.post("/v1/chat/render", request.clone()).await.body;
    let answered = server.post("/v1/chat/completions", request).await.body;
    assert_eq!(counted["count"], answered["usage"]["prompt_tokens"]);
    assert_eq!(counted["count"].as_u64().unwrap() as usize, counted["tokens"].as_array().unwrap().len());
    assert_eq!(counted["max_model_len"], 1 << 20);
    assert_eq!(rendered["tokens"], counted["tokens"]);
    let text = rendered["prompt"].as_str().unwrap();
    assert!(text.starts_with("<|im_start|>system\nBe kind.\n\n# Tools") && text.ends_with("<|im_start|>assistant\n"));
    let spelled = server.post("/v1/detokenize", json!({"tokens": counted["tokens"]})).await.body;
    assert_eq!(spelled["prompt"], text);
    // A text is what it is, control tokens in it too: their texts in messages are not.
    let text = server.post("/v1/tokenize", json!({"prompt": text, "return_token_strs": true})).await.body;
    assert_ne!(text["tokens"], counted["tokens"]);
    assert_eq!(text["token_strs"][0], "<|im_start|>");
    assert_eq!(counted["token_strs"], Value::Null);
}

#[tokio::test]
async fn a_response_s_request_and_its_variables_are_rendered_too() {
    let server = Server::start().await;
    let said = json!({"instructions": "Be kind.", "input": "hi", "add_generation_prompt": false});
    let rendered = server.post("/v1/chat/render", said).await.body;
    assert_eq!(rendered["prompt"], "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n");
    let billed = "x-anthropic-billing-header: cc_version=1;\nBe kind.";
    let mut said = json!({"instructions": billed, "input": "hi"});
    let kept = server.post("/v1/chat/render", said.clone()).await.body;
    said["strip_preamble"] = json!(true);
    let stripped = server.post("/v1/chat/render", said).await.body;
    assert!(kept["prompt"].as_str().unwrap().contains("billing"));
    assert!(!stripped["prompt"].as_str().unwrap().contains("billing"));
}

#[tokio::test]
async fn an_answer_goes_on_with_the_last_message_and_the_next_prompt_with_both() {
    let server = Server::start().await;
    let rendered = server.post("/v1/chat/render", going_on(&json!({}))).await.body;
    let text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nWell, I say: ";
    assert_eq!((&rendered["prompt"], &rendered["starts_in_reasoning"]), (&json!(text), &json!(false)));
    let counted = server.post("/v1/tokenize", going_on(&json!({"add_generation_prompt": false}))).await.body;
    assert_eq!(counted["tokens"], rendered["tokens"]);
    let answered = server.post("/v1/chat/completions", going_on(&json!({"store": true}))).await.body;
    assert_eq!(answered["choices"][0]["message"]["content"], "Hello, world");
    assert_eq!(answered["usage"]["prompt_tokens"], counted["count"]);
    let id = answered["id"].as_str().unwrap().replacen("chatcmpl-", "resp_", 1);
    let next = server.post("/v1/responses", json!({"input": "and?", "previous_response_id": id})).await.body;
    let report = server.get(&format!("/v1/responses/{}/prefix", next["id"].as_str().unwrap())).await.body;
    assert_eq!((&report["previous_response_id"], &report["complete"]), (&json!(id), &json!(true)), "{report}");
    assert_eq!(report["common_tokens"], report["held_tokens"]);
}

#[tokio::test]
async fn an_answer_without_a_generation_prompt_begins_behind_the_last_message() {
    let server = Server::start().await;
    let request = json!({"messages": messages(), "add_generation_prompt": false});
    let rendered = server.post("/v1/chat/render", request.clone()).await.body;
    assert!(rendered["prompt"].as_str().unwrap().ends_with("hi <|im_end|><|im_end|>\n"), "{rendered}");
    let answered = server.post("/v1/chat/completions", request).await.body;
    assert_eq!(answered["usage"]["prompt_tokens"], rendered["count"]);
}

/// A transcript of text parts, a refusal and a result in parts, in each API's shape; and as plain texts.
fn parted() -> [(Value, Value); 2] {
    let text = |kind: &str, texts: &[&str]| -> Value {
        texts.iter().map(|text| json!({"type": kind, "text": text})).collect()
    };
    let call = json!([{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]);
    let chat = |joined: bool| {
        let said = |texts: &[&str]| if joined { json!(texts.concat()) } else { text("text", texts) };
        let refusal = json!([{"type": "refusal", "refusal": "I won't."}]);
        json!({"tools": tools(), "messages": [
            {"role": "system", "content": said(&["Be ", "kind.\n"])},
            {"role": "user", "content": said(&["  What's", "", " <|im_end|>up?"])},
            {"role": "assistant", "content": if joined { json!("I won't.") } else { refusal }},
            {"role": "user", "content": said(&["Look!"])},
            {"role": "assistant", "content": null, "tool_calls": call},
            {"role": "tool", "tool_call_id": "c1", "content": said(&["bl", "ue"])},
        ]})
    };
    let responses = |joined: bool| {
        let said = |kind: &str, texts: &[&str]| if joined { json!(texts.concat()) } else { text(kind, texts) };
        let refusal = json!([{"type": "refusal", "refusal": "I won't."}]);
        json!({"tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}], "input": [
            {"role": "developer", "content": said("input_text", &["Be ", "kind.\n"])},
            {"role": "user", "content": said("input_text", &["  What's", "", " <|im_end|>up?"])},
            {"role": "assistant", "content": if joined { json!("I won't.") } else { refusal }},
            {"role": "assistant", "content": said("output_text", &["So", "."])},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": said("input_text", &["bl", "ue"])},
        ]})
    };
    [(chat(false), chat(true)), (responses(false), responses(true))]
}

#[tokio::test]
async fn parts_are_one_text_and_a_refusal_is_what_was_said() {
    let server = Server::start().await;
    for (parts, plain) in parted() {
        let parts = server.post("/v1/chat/render", parts).await.body;
        let plain = server.post("/v1/chat/render", plain).await.body;
        let text = parts["prompt"].as_str().unwrap();
        for said in ["Be kind.\n", "  What's <|im_end|>up?", "I won't.", "blue"] {
            assert!(text.contains(said), "{text}");
        }
        assert_eq!((text, &parts["tokens"]), (plain["prompt"].as_str().unwrap(), &plain["tokens"]));
    }
}

#[tokio::test]
async fn what_a_model_that_reads_text_cannot_read_is_refused_by_its_place() {
    let server = Server::start().await;
    let image = "data:image/png;base64,AAAA";
    let text = json!({"type": "text", "text": "What is this?"});
    for part in [
        json!({"type": "image_url", "image_url": {"url": image}}),
        json!({"type": "input_image", "image_url": image}),
        json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        json!({"type": "input_file", "file_data": "AAAA"}),
    ] {
        let content = json!([text, part]);
        let results = [
            json!({"role": "assistant", "tool_calls":
                [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}),
            json!({"role": "tool", "tool_call_id": "c1", "content": content}),
        ];
        for (path, body, at) in [
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": content}]}),
                "messages[0].content",
            ),
            ("/v1/chat/completions", json!({"messages": results}), "messages[1].content"),
            ("/v1/responses", json!({"input": [{"role": "user", "content": content}]}), "input[0].content"),
            ("/v1/chat/render", json!({"messages": [{"role": "user", "content": content}]}), "messages[0].content"),
        ] {
            let answer = server.post(path, body).await;
            let error = answer.assert_error(400, "invalid_input").clone();
            assert_eq!(error["param"], format!("{at}[1].type"));
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("reads text") && message.contains(part["type"].as_str().unwrap()), "{message}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_rendered_is_refused_by_its_field() {
    let server = Server::start().await;
    for (path, body, param) in [
        ("/v1/tokenize", json!({}), "prompt"),
        ("/v1/tokenize", json!({"prompt": "a", "messages": []}), "prompt"),
        ("/v1/chat/render", json!({"prompt": "a"}), "messages"),
        ("/v1/chat/render", json!({"messages": []}), "messages"),
        ("/v1/chat/render", json!({"input": "a", "previous_response_id": "resp_1"}), "previous_response_id"),
        ("/v1/chat/render", json!({"messages": messages(), "continue_final_message": true}), "continue_final_message"),
        ("/v1/tokenize", json!({"input": "hi", "continue_final_message": true}), "continue_final_message"),
        ("/v1/chat/completions", going_on(&json!({"add_generation_prompt": true})), "continue_final_message"),
        ("/v1/detokenize", json!({"tokens": [1, 999_999]}), "tokens[1]"),
        ("/v1/detokenize", json!({}), ""),
    ] {
        let answer = server.post(path, body.clone()).await;
        let error = answer.assert_error(400, "invalid_input").clone();
        if !param.is_empty() {
            assert_eq!(error["param"], param, "{path} {body}");
        }
    }
    server.post("/v1/tokenize", json!({"model": "x", "prompt": "a"})).await.assert_error(404, "model_not_found");
    // The scripted model has a token per byte. What no context could hold is not counted to its end.
    let hopeless = "a".repeat((1 << 20) + 1);
    server.post("/v1/tokenize", json!({"prompt": hopeless})).await.assert_error(400, "context_length_exceeded");
}

#[tokio::test]
async fn a_prompt_that_goes_on_says_so_and_one_that_does_not_says_why() {
    let server = Server::start_with(Setup::default()).await;
    let ask = async |body: Value| server.post("/v1/responses", body).await.body;
    let first = ask(json!({"instructions": "It is 10:15.", "input": "a"})).await;
    let second = ask(json!({"instructions": "It is 10:15.", "input": "b", "previous_response_id": first["id"]})).await;
    let third = ask(json!({"instructions": "It is 10:27.", "input": "c", "previous_response_id": second["id"]})).await;
    let report = async |id: &Value| server.get(&format!("/v1/responses/{}/prefix", id.as_str().unwrap())).await.body;
    let begun = report(&first["id"]).await;
    assert_eq!((&begun["previous_response_id"], &begun["complete"]), (&Value::Null, &json!(true)));
    let on = report(&second["id"]).await;
    assert_eq!((&on["object"], &on["previous_response_id"]), (&json!("response.prefix"), &first["id"]));
    assert_eq!((&on["complete"], &on["difference"]), (&json!(true), &Value::Null));
    assert_eq!(on["common_tokens"], on["held_tokens"]);
    let off = report(&third["id"]).await;
    let difference = &off["difference"];
    assert_eq!((&off["complete"], &difference["cause"]), (&json!(false), &json!("timestamp")), "{off}");
    assert_eq!((&difference["message"], &difference["role"]), (&json!(0), &json!("system")));
    assert_eq!(difference["byte"], "<|im_start|>system\nIt is 10:".len());
    assert!(difference["held"].as_str().unwrap().contains("10:15"), "{off}");
    assert!(difference["prompt"].as_str().unwrap().contains("10:27"), "{off}");
}

#[tokio::test]
async fn there_is_no_report_of_what_is_not_there() {
    let server = Server::start().await;
    for id in ["resp_00000000000000000000000000000000", "nonsense"] {
        server.get(&format!("/v1/responses/{id}/prefix")).await.assert_error(404, "response_not_found");
    }
    let answer = server.request(Method::POST, "/v1/responses/x/prefix").send().await.unwrap();
    assert_eq!(answer.status(), 405);
}
