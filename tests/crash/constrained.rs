//! Answers of a given form on the default model, which knows nothing of forms: through the API, and across a kill.

use serde_json::{Value, json};

use crate::support::{Server, Site, shown_text};

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "profession": {"enum": ["painter", "physicist", "sailor"]},
            "born": {"type": "integer", "minimum": 1000, "maximum": 2020},
            "works": {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 2, "maxItems": 4},
        },
        "required": ["name", "profession", "born", "works"],
        "additionalProperties": false,
    })
}

fn is_person(text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(text) else { return false };
    let works = value["works"].as_array().map_or(0, Vec::len);
    let born = value["born"].as_u64().unwrap_or(0);
    value.as_object().is_some_and(|fields| fields.len() == 4)
        && value["name"].as_str().is_some_and(|name| name.chars().count() <= 40)
        && ["painter", "physicist", "sailor"].iter().any(|known| value["profession"] == *known)
        && (1000..=2020).contains(&born)
        && (2..=4).contains(&works)
}

fn weather() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": false,
    });
    let function = json!({"name": "get_weather", "description": "Weather of a city", "parameters": parameters});
    json!({"type": "function", "function": function})
}

async fn chat(server: &Server, body: Value) -> Value {
    let (status, answer) = server.post("/v1/chat/completions", &uuid(&body), &body).await;
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0].clone()
}

/// A key of its own for each body.
fn uuid(body: &Value) -> String {
    let text = body.to_string();
    format!(
        "{:x}",
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    )
}

#[tokio::test]
async fn any_model_answers_in_json_and_calls_tools_when_it_must() {
    let server = Site::real_model().start().await;
    let ask = |content: &str| json!([{"role": "user", "content": content}]);
    for seed in 0..3 {
        let body = json!({
            "messages": ask("Tell me about Albert Einstein."), "seed": seed, "max_tokens": 300,
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": person()}},
        });
        let choice = chat(&server, body).await;
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(is_person(text) && choice["finish_reason"] == "stop", "{choice}");

        let body = json!({
            "messages": ask("What is the weather in Paris?"), "seed": seed, "max_tokens": 200,
            "tools": [weather()], "tool_choice": "required", "parallel_tool_calls": false,
        });
        let choice = chat(&server, body).await;
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0]["function"]["name"], "get_weather");
        let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["city"].is_string() && arguments["unit"].is_string(), "{arguments}");
    }
    let body = json!({"messages": ask("Is the sky blue?"), "structured_outputs": {"choice": ["yes", "no"]}});
    let word = chat(&server, body).await["message"]["content"].clone();
    assert!(word == "yes" || word == "no", "{word}");
    let body =
        json!({"messages": ask("When was the war?"), "structured_outputs": {"regex": "[12][0-9]{3}-[12][0-9]{3}"}});
    let years = chat(&server, body).await["message"]["content"].clone();
    assert_eq!(years.as_str().unwrap().len(), 9, "{years}");
}

/// Any object: nothing but one, cut where the answer's length ends.
#[tokio::test]
async fn a_json_object_is_an_object_however_it_is_asked_for() {
    let site = Site::real_model();
    let server = site.start().await;
    let question = "Tell me about the sea.";
    let form = json!({"type": "json_object"});
    let chat_body = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": question}], "max_tokens": 48});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for seed in 0..3 {
        for more in [
            json!({"seed": seed, "response_format": form}),
            json!({"seed": seed, "structured_outputs": {"json_object": true}}),
        ] {
            let choice = chat(&server, chat_body(more)).await;
            let whole = choice["finish_reason"] == "stop";
            assert_is_object(choice["message"]["content"].as_str().unwrap(), whole);
        }
        let body = json!({"input": question, "seed": seed, "max_output_tokens": 48, "text": {"format": form}});
        let (status, answer) = server.post("/v1/responses", &format!("object {seed}"), &body).await;
        assert_eq!(status, 200, "{answer}");
        let text = answer["output"][0]["content"][0]["text"].as_str().unwrap();
        assert_is_object(text, answer["status"] == "completed");
    }
    // A model that wants nothing but to close it says the shortest object there is, and then ends.
    let (_, tokens) =
        server.post("/v1/tokenize", "closing", &json!({"prompt": "}", "add_special_tokens": false})).await;
    let closing = tokens["tokens"][0].to_string();
    let choice = chat(&server, chat_body(json!({"response_format": form, "logit_bias": {closing: 100}}))).await;
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    assert_is_object(choice["message"]["content"].as_str().unwrap(), true);
}

fn assert_is_object(text: &str, whole: bool) {
    assert!(text.trim_start().starts_with('{'), "{text}");
    match serde_json::from_str::<Value>(text) {
        Ok(value) => assert!(value.is_object(), "{text}"),
        Err(error) => assert!(!whole && error.is_eof(), "{error}: {text}"),
    }
}

#[tokio::test]
async fn killed_in_the_middle_of_a_constrained_answer_it_ends_as_it_would_have() {
    let site = Site::real_model();
    let body = |seed: u64| {
        let format = json!({"type": "json_schema", "name": "person", "schema": person()});
        json!({"input": "Tell me about a sailor.", "seed": seed, "max_output_tokens": 300, "text": {"format": format}})
    };
    let server = site.start().await;
    let (response, conversation) = server.begin("undisturbed", body(7)).await;
    let expected = shown_text(&server.until_ended(&conversation, &response, 0).await, &response);
    assert!(is_person(&expected), "{expected}");

    let (response, conversation) = server.begin("killed", body(7)).await;
    let mut frames = server.follow(&format!("/v1/conversations/{conversation}/events?after=0")).await;
    let mut seen = String::new();
    while seen.len() < expected.len() / 3 {
        let frame = frames.next().await.unwrap();
        seen.push_str(frame["delta"].as_str().filter(|_| frame["type"] == "response.output_text.delta").unwrap_or(""));
    }
    server.kill();
    let server = site.start().await;
    let shown = shown_text(&server.until_ended(&conversation, &response, 0).await, &response);
    assert_eq!(shown, expected);
    assert!(shown.starts_with(&seen));
}

/// However tokens are chosen, whatever of it is no function of the last tokens alone.
#[tokio::test]
async fn killed_in_the_middle_of_a_shaped_answer_it_ends_as_it_would_have() {
    let site = Site::real_model();
    let biases: serde_json::Map<String, Value> = (300..340).map(|token| (token.to_string(), json!(3))).collect();
    let format = json!({"type": "json_schema", "name": "person", "schema": person()});
    for (name, more) in [
        ("logit_bias", json!({"logit_bias": biases})),
        ("xtc", json!({"xtc_probability": 0.5, "xtc_threshold": 0.05})),
        ("typical_p", json!({"typical_p": 0.6, "repetition_penalty": 1.2, "dry_multiplier": 0.8})),
        ("mirostat", json!({"mirostat": 2, "text": {"format": format}})),
    ] {
        let mut body = json!({"input": "Tell me about a sailor.", "seed": 7, "max_output_tokens": 40});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let server = site.start().await;
        let (response, conversation) = server.begin(&format!("{name} undisturbed"), body.clone()).await;
        let expected = shown_text(&server.until_ended(&conversation, &response, 0).await, &response);

        let (response, conversation) = server.begin(&format!("{name} killed"), body).await;
        let mut frames = server.follow(&format!("/v1/conversations/{conversation}/events?after=0")).await;
        let mut seen = String::new();
        while seen.len() < expected.len() / 3 {
            let frame = frames.next().await.unwrap();
            let delta = frame["delta"].as_str().filter(|_| frame["type"] == "response.output_text.delta");
            seen.push_str(delta.unwrap_or(""));
        }
        server.kill();
        let server = site.start().await;
        let shown = shown_text(&server.until_ended(&conversation, &response, 0).await, &response);
        assert_eq!(shown, expected, "{name}");
        server.kill();
    }
}

#[tokio::test]
async fn what_cannot_be_held_to_is_refused_before_anything_begins() {
    let server = Site::real_model().start().await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let format = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    for (fields, param, word) in [
        (
            json!({"response_format": format(json!({"type": "object", "properties": {"a": {"not": {}}}}))}),
            "response_format.json_schema.schema",
            "#/properties/a/not",
        ),
        (
            json!({"response_format": format(json!({"type": "number", "minimum": 5, "maximum": 1}))}),
            "response_format.json_schema.schema",
            "minimum",
        ),
        (json!({"response_format": {"type": "xml"}}), "response_format.type", "json_schema"),
        (json!({"structured_outputs": {"regex": "(a"}}), "structured_outputs.regex", "enforced"),
        (json!({"guided_regex": "a", "guided_choice": ["b"]}), "guided_choice", "exclude"),
        (json!({"tool_choice": "required"}), "tool_choice", "no tools"),
        (
            json!({"tools": [weather()], "tool_choice": {"type": "function", "function": {"name": "other"}}}),
            "tool_choice",
            "other",
        ),
        (json!({"logit_bias": {"99999999": 1}}), "logit_bias.99999999", "ids are below"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5", "between"),
        (json!({"frequency_penalty": 3}), "frequency_penalty", "between"),
        (json!({"samplers": ["top_k", "magic"]}), "samplers[1]", "magic"),
        (json!({"mirostat": 2, "samplers": ["top_k"]}), "samplers", "mirostat"),
        (json!({"mirostat": 7}), "mirostat", "0 for off"),
    ] {
        let mut body = json!({"messages": messages});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (status, answer) = server.post("/v1/chat/completions", &uuid(&body), &body).await;
        assert_eq!(status, 400, "{body}: {answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{answer}");
    }
}

/// The tokens of a text with their logarithms, as one API or the other shows them.
fn weighed(logprobs: &Value, top: usize) -> (String, usize) {
    let logprobs = logprobs.as_array().unwrap();
    let mut bytes: Vec<u8> = Vec::new();
    for token in logprobs {
        bytes.extend(token["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8));
        let logprob = token["logprob"].as_f64().unwrap();
        let likeliest = token["top_logprobs"].as_array().unwrap();
        assert!(logprob <= 0.0 && likeliest.len() == top, "{token}");
        let order: Vec<f64> = likeliest.iter().map(|one| one["logprob"].as_f64().unwrap()).collect();
        assert!(order.is_sorted_by(|a, b| a >= b) && order[0] >= logprob, "{token}");
    }
    (String::from_utf8(bytes).unwrap(), logprobs.len())
}

#[tokio::test]
async fn every_token_says_how_likely_it_was_streamed_or_whole_and_after_a_kill() {
    let site = Site::real_model();
    let server = site.start().await;
    let messages = json!([{"role": "user", "content": "Count to five."}]);
    let mut body =
        json!({"messages": messages, "max_tokens": 24, "temperature": 0, "logprobs": true, "top_logprobs": 3});
    let (_, answer) = server.post("/v1/chat/completions", "whole", &body).await;
    let choice = &answer["choices"][0];
    let (text, count) = weighed(&choice["logprobs"]["content"], 3);
    assert_eq!(text, choice["message"]["content"].as_str().unwrap());
    let stops = usize::from(choice["finish_reason"] == "stop");
    assert_eq!(count + stops, answer["usage"]["completion_tokens"].as_u64().unwrap() as usize);

    body["stream"] = json!(true);
    let response = server.send("/v1/chat/completions", "streamed", &body).await.text().await.unwrap();
    let chunks = response.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let streamed: Vec<Value> =
        chunks.filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned()).flatten().collect();
    assert_eq!(Value::from(streamed), choice["logprobs"]["content"], "a stream has the same, each once");

    // Greedily the token is the likeliest one; and a response keeps what it was, across a kill.
    let ask = json!({
        "input": "Count to five.", "max_output_tokens": 24, "temperature": 0, "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    });
    let (id, conversation) = server.begin("stored", ask).await;
    server.until_ended(&conversation, &id, 0).await;
    let part = |response: &Value| response["output"][0]["content"][0].clone();
    let before = part(&server.get(&format!("/v1/responses/{id}")).await);
    assert_eq!(weighed(&before["logprobs"], 2).0, before["text"].as_str().unwrap());
    for token in before["logprobs"].as_array().unwrap() {
        assert_eq!(token["top_logprobs"][0]["token"], token["token"]);
    }
    server.kill();
    let server = site.start().await;
    assert_eq!(part(&server.get(&format!("/v1/responses/{id}")).await), before);
}
