//! `/v1/responses`.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Answer, PATIENCE, Server, Setup, SseEvent, text_of};

#[tokio::test]
async fn what_a_request_says_of_its_answer_is_repeated_in_the_object() {
    let server = Server::start().await;
    let said = json!({
        "truncation": "disabled", "max_tool_calls": 3, "prompt_cache_key": "k", "safety_identifier": "s", "user": "u",
        "service_tier": "flex", "top_logprobs": 2, "parallel_tool_calls": true,
        "reasoning": {"effort": "low", "summary": null},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    });
    let mut body = said.clone();
    body["input"] = "hi".into();
    // Of reasoning no summary is made, and the object does not say that one was.
    body["reasoning"]["summary"] = "auto".into();
    let answer = server.post("/v1/responses", body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (name, value) in said.as_object().unwrap() {
        assert_eq!(&answer.body[name], value, "{name}");
    }
    let stored = server.get(&format!("/v1/responses/{}", answer.id())).await;
    assert_eq!(stored.body, answer.body);
}

#[tokio::test]
async fn silence_is_broken_by_a_whole_event_with_the_next_number_over_http_and_on_a_socket() {
    let script = json!([{"deltas": ["late"], "delay_ms": 3_600_000}]);
    let silence = Duration::from_millis(50);
    let server = Server::start_with(Setup { script: Some(script), silence, ..Setup::default() }).await;
    let body = json!({"input": "hi", "stream": true});
    let mut stream = server.post_stream("/v1/responses", body).await;
    let mut socket = server.responses_socket().await;
    socket.send(json!({"type": "response.create", "input": "hi"})).await;
    for number in 0..5 {
        let kind = if number == 0 { "response.created" } else { "response.in_progress" };
        for event in [stream.next().await.unwrap().json(), socket.next().await] {
            assert_eq!((&event["type"], &event["sequence_number"]), (&json!(kind), &json!(number)));
            assert_eq!(event["response"]["object"], "response", "{event}");
        }
    }
}

#[tokio::test]
async fn a_client_that_resets_its_connection_behind_the_last_event_has_its_answer() {
    let server = Server::start().await;
    let mut socket = TcpStream::connect(&server.address).await.unwrap();
    let body = json!({"input": "hi", "stream": true}).to_string();
    let head = format!("POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all((head + &body).as_bytes()).await.unwrap();
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("event: response.completed") {
        assert!(socket.read_buf(&mut read).await.unwrap() > 0);
    }
    // Dropped with unread bytes or none, the system sends a reset and not an end.
    socket.set_zero_linger().unwrap();
    drop(socket);
    let text = String::from_utf8_lossy(&read).into_owned();
    let id = text.split(r#""id":""#).nth(1).unwrap().split('"').next().unwrap();
    let answer = server.get(&format!("/v1/responses/{id}")).await;
    assert_eq!((&answer.body["status"], &answer.body["error"]), (&json!("completed"), &Value::Null));
}

#[tokio::test]
async fn a_foreground_answer_whose_client_leaves_before_its_first_event_or_its_whole_is_cancelled() {
    let script = json!([{"deltas": ["late"], "delay_ms": 3_600_000}]);
    let server = Server::start_with(Setup { script: Some(script), ..Setup::default() }).await;
    for path in ["/v1/responses", "/v1/chat/completions", "/v1/messages"] {
        for streams in [true, false] {
            let messages = json!([{"role": "user", "content": "hi"}]);
            let body = if path == "/v1/responses" {
                json!({"input": "hi", "store": false, "stream": streams})
            } else {
                json!({"messages": messages, "max_tokens": 9, "stream": streams})
            };
            let request = server.request(Method::POST, path).json(&body).send();
            let asked = tokio::spawn(request);
            while server.running.count() == 0 {
                tokio::task::yield_now().await;
            }
            asked.abort();
            timeout(PATIENCE, server.running.idle()).await.unwrap_or_else(|_| panic!("{path}, {streams}: it runs on"));
        }
    }
}

#[tokio::test]
async fn bodies_of_many_megabytes_are_taken_over_http_and_on_a_socket() {
    let (body_bytes_max, ws_frame_bytes_max) = (64 << 20, 64 << 20);
    let server = Server::start_with(Setup { body_bytes_max, ws_frame_bytes_max, ..Setup::default() }).await;
    // What is long and means nothing: a prompt as long would not fit the model.
    let junk = json!({"type": "of tomorrow", "content": "x".repeat(20 << 20)});
    let input = json!([junk, {"role": "user", "content": "hi"}]);
    let answer = server.post("/v1/responses", json!({"input": input})).await;
    assert_eq!((answer.status, &answer.body["status"]), (200, &json!("completed")));
    let mut socket = server.responses_socket().await;
    socket.send(json!({"type": "response.create", "input": input})).await;
    assert_eq!(socket.until_type("response.completed").await["response"]["status"], "completed");
}

#[tokio::test]
async fn a_whole_response_has_every_field_that_sdks_require() {
    let server = Server::start().await;
    let body = json!({"input": "hi", "instructions": "Be brief.", "temperature": 0.7, "metadata": {"a": "b"}});
    let answer = server.post("/v1/responses", body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let response = &answer.body;
    for field in [
        "id",
        "object",
        "created_at",
        "status",
        "error",
        "incomplete_details",
        "instructions",
        "metadata",
        "model",
        "output",
        "parallel_tool_calls",
        "temperature",
        "tool_choice",
        "tools",
        "top_p",
        "usage",
        "conversation",
        "previous_response_id",
        "background",
        "store",
        "completed_at",
        "text",
        "reasoning",
        "truncation",
        "max_output_tokens",
        "service_tier",
        "top_logprobs",
    ] {
        assert!(response.get(field).is_some(), "{field} is missing");
    }
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("completed")));
    assert_eq!((&response["temperature"], &response["top_p"]), (&json!(0.7), &json!(1.0)));
    assert_eq!(response["metadata"], json!({"a": "b"}));
    let message = &response["output"][0];
    assert_eq!(
        (&message["type"], &message["role"], &message["status"]),
        (&json!("message"), &json!("assistant"), &json!("completed"))
    );
    let part = json!({"type": "output_text", "text": "Hello, world", "annotations": [], "logprobs": []});
    assert_eq!(message["content"], json!([part]));
    let usage = &response["usage"];
    assert!(usage["input_tokens_details"]["cached_tokens"].is_u64());
    assert!(usage["output_tokens_details"]["reasoning_tokens"].is_u64());
    assert!(response["conversation"]["id"].as_str().unwrap().starts_with("conv_"));
    assert_eq!(server.get(&format!("/v1/responses/{}", answer.id())).await.body, *response);
}

#[tokio::test]
async fn a_stream_has_openais_events_in_openais_order_numbered_from_zero() {
    let server = Server::start().await;
    let mut stream = server.post_stream("/v1/responses", json!({"input": "hi", "stream": true})).await;
    let events = stream.rest().await;
    assert!(events.iter().all(|event| event.event.as_deref() == event.json()["type"].as_str()));
    let events: Vec<Value> = events.iter().map(SseEvent::json).collect();
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(text_of(&events), "Hello, world");
    assert!(events.iter().all(|event| event.get("seq").is_none()), "our own fields are not for this stream");
}

#[tokio::test]
async fn a_stored_response_is_replayed_from_any_number_with_the_same_bytes() {
    let server = Server::start().await;
    let live = server.post_stream("/v1/responses", json!({"input": "think", "stream": true})).await.rest_json().await;
    let id = live[0]["response"]["id"].as_str().unwrap();
    let all = server.get_stream(&format!("/v1/responses/{id}?stream=true")).await.rest_json().await;
    assert_eq!(all, live);
    let tail = server.get_stream(&format!("/v1/responses/{id}?stream=true&starting_after=3")).await;
    let mut tail = tail;
    assert_eq!(tail.rest_json().await, live[4..]);
    let last = live.len() - 1;
    let path = format!("/v1/responses/{id}?stream=true&starting_after={last}");
    assert!(server.get_stream(&path).await.rest().await.is_empty());
    let path = format!("/v1/responses/{id}?stream=true&starting_after={}", last + 1);
    server.get(&path).await.assert_error(400, "cursor_in_future");
}

#[tokio::test]
async fn a_background_response_is_queued_at_once_and_followed_to_its_end() {
    let server = Server::start().await;
    let queued = server.post("/v1/responses", json!({"input": "slow", "background": true})).await;
    assert_eq!((queued.status, &queued.body["status"]), (200, &json!("queued")));
    assert_eq!((&queued.body["output"], &queued.body["usage"]), (&json!([]), &Value::Null));
    let path = format!("/v1/responses/{}?stream=true", queued.id());
    let events = server.get_stream(&path).await.rest_json().await;
    assert_eq!(text_of(&events), "one two three four");
    assert_eq!(events.last().unwrap()["type"], "response.completed");
}

#[tokio::test]
async fn the_last_response_is_continued_and_an_older_one_is_forked() {
    let server = Server::start().await;
    let first = server.post("/v1/responses", json!({"input": "hi"})).await;
    let second = server.post("/v1/responses", json!({"input": "rain", "previous_response_id": first.id()})).await;
    assert_eq!(second.body["conversation"], first.body["conversation"]);
    assert_eq!(second.body["previous_response_id"], first.body["id"]);
    let fork = server.post("/v1/responses", json!({"input": "French", "previous_response_id": first.id()})).await;
    assert_eq!(fork.status, 200, "{}", fork.body);
    assert_ne!(fork.body["conversation"], first.body["conversation"]);
    let conversation = fork.body["conversation"]["id"].as_str().unwrap();
    let items = server.get(&format!("/v1/conversations/{conversation}/items?order=asc")).await.body;
    let texts: Vec<_> = items["data"].as_array().unwrap().iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!(texts, ["hi", "Hello, world", "French", "Bonjour"]);
}

#[tokio::test]
async fn a_response_joins_a_conversation_by_id_or_object() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    for parameter in [json!(conversation), json!({"id": conversation})] {
        let answer = server.post("/v1/responses", json!({"input": "hi", "conversation": parameter})).await;
        assert_eq!(answer.body["conversation"], json!({"id": conversation}), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_response_that_is_not_stored_cannot_be_found_again() {
    let server = Server::start().await;
    let answer = server.post("/v1/responses", json!({"input": "hi", "store": false})).await;
    assert_eq!((answer.status, &answer.body["store"]), (200, &json!(false)), "{}", answer.body);
    assert_eq!(answer.body["conversation"], Value::Null);
    server.get(&format!("/v1/responses/{}", answer.id())).await.assert_error(404, "response_not_found");
}

#[tokio::test]
async fn an_unstored_response_still_reads_the_one_before_it() {
    let server = Server::start().await;
    let first = server.post("/v1/responses", json!({"input": "hi"})).await;
    let body = json!({"input": "rain", "store": false, "previous_response_id": first.id()});
    let second = server.post("/v1/responses", body).await;
    assert_eq!(second.body["output"][0]["content"][0]["text"], "Take an umbrella.", "{}", second.body);
    let prompt = |answer: &Answer| answer.body["usage"]["input_tokens"].as_u64().unwrap();
    assert!(prompt(&second) > prompt(&first) + 10, "the transcript is not in the prompt");
}

#[tokio::test]
async fn a_call_waits_for_its_result_and_the_result_goes_on() {
    let server = Server::start().await;
    let tools =
        json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}, {"type": "web_search"}]);
    let first = server.post("/v1/responses", json!({"input": "weather", "tools": tools})).await;
    assert_eq!(first.body["status"], "completed");
    assert_eq!(first.body["tools"], tools, "unknown tools are repeated");
    let call = &first.body["output"][1];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")), "{}", first.body);
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "rain"});
    let body = json!({"input": [result], "previous_response_id": first.id(), "tools": tools});
    let second = server.post("/v1/responses", body.clone()).await;
    assert_eq!(second.body["output"][0]["content"][0]["text"], "Take an umbrella.", "{}", second.body);
    let unknown = json!({"type": "function_call_output", "call_id": "callnobodymade", "output": "rain"});
    let body = json!({"input": [unknown], "previous_response_id": second.id()});
    server.post("/v1/responses", body).await.assert_error(404, "tool_call_not_found");
}

#[tokio::test]
async fn a_whole_transcript_of_an_agent_is_taken_as_input() {
    let server = Server::start().await;
    let body = json!({"store": false, "include": ["reasoning.encrypted_content"], "input": [
        {"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
        {"role": "user", "content": "weather"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": null, "encrypted_content": "x"},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "rain"}]},
    ]});
    let answer = server.post("/v1/responses", body).await;
    assert_eq!(answer.body["output"][0]["content"][0]["text"], "Take an umbrella.", "{}", answer.body);
}

#[tokio::test]
async fn a_cancel_ends_the_stream_as_incomplete_with_the_status_cancelled() {
    let server = Server::start().await;
    let mut stream = server.post_stream("/v1/responses", json!({"input": "endless", "stream": true})).await;
    let created = stream.until("response.created").await;
    let id = created["response"]["id"].as_str().unwrap();
    stream.until("response.output_text.delta").await;
    let cancelled = server.request(reqwest::Method::POST, &format!("/v1/responses/{id}/cancel")).send().await.unwrap();
    let cancelled = Answer::read(cancelled).await;
    assert_eq!((cancelled.status, &cancelled.body["status"]), (200, &json!("cancelled")), "{}", cancelled.body);
    assert!(cancelled.body.get("cancel").is_none());
    assert!(
        !cancelled.body["output"][0]["content"][0]["text"].as_str().unwrap().is_empty(),
        "the partial text is kept"
    );
    let last = stream.rest_json().await.pop().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.incomplete"), &json!("cancelled")));
    assert_eq!(last["response"]["incomplete_details"], json!({"reason": "cancelled"}));
    let again = server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
    assert_eq!((again.status, &again.body["cancel"]["outcome"]), (200, &json!("already_cancelled")));
}

#[tokio::test]
async fn an_unstored_response_is_cancelled_by_its_id_while_it_runs() {
    let server = Server::start().await;
    let body = json!({"input": "endless", "stream": true, "store": false});
    let mut stream = server.post_stream("/v1/responses", body).await;
    let created = stream.until("response.created").await;
    let id = created["response"]["id"].as_str().unwrap();
    stream.until("response.output_text.delta").await;
    let cancelled = server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
    assert_eq!((cancelled.status, &cancelled.body["status"]), (200, &json!("cancelled")), "{}", cancelled.body);
    let last = stream.rest_json().await.pop().unwrap();
    assert_eq!(last["response"]["status"], "cancelled");
}

#[tokio::test]
async fn what_is_not_stored_cannot_be_continued_though_it_is_found_while_it_runs() {
    let server = Server::start().await;
    let body = json!({"input": "endless", "stream": true, "store": false});
    let mut stream = server.post_stream("/v1/responses", body).await;
    let created = stream.until("response.created").await;
    for store in [true, false] {
        let body = json!({"input": "more", "previous_response_id": created["response"]["id"], "store": store});
        server.post("/v1/responses", body).await.assert_error(400, "previous_response_not_found");
    }
}

#[tokio::test]
async fn a_cancel_without_waiting_is_accepted_and_a_late_one_says_so() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let accepted = server.post(&format!("/v1/responses/{id}/cancel?wait=false"), json!({})).await;
    assert!(accepted.status == 202 || accepted.body["status"] == "cancelled", "{}", accepted.body);
    let done = server.post("/v1/responses", json!({"input": "hi"})).await;
    let late = server.post(&format!("/v1/responses/{}/cancel", done.id()), json!({})).await;
    assert_eq!((late.status, &late.body["status"]), (200, &json!("completed")));
    assert_eq!(late.body["cancel"]["outcome"], "too_late");
}

#[tokio::test]
async fn a_background_response_goes_on_without_a_reader() {
    let server = Server::start().await;
    let id = server.running("slow").await;
    let events = server.get_stream(&format!("/v1/responses/{id}?stream=true")).await.rest_json().await;
    assert_eq!(text_of(&events), "one two three four");
}

#[tokio::test]
async fn an_unstored_response_ends_when_its_reader_leaves() {
    let server = Server::start().await;
    for path in ["/v1/responses", "/v1/chat/completions"] {
        let messages = json!([{"role": "user", "content": "endless"}]);
        let body = json!({"input": "endless", "messages": messages, "stream": true, "store": false});
        let mut stream = server.post_stream(path, body).await;
        stream.next().await;
        assert_eq!(server.running.count(), 1);
        drop(stream);
        tokio::time::timeout(PATIENCE, server.running.idle()).await.expect("it is still generated");
    }
}

#[tokio::test]
async fn a_request_over_the_bound_is_turned_away_until_another_ends() {
    let server = Server::start_with(Setup { requests_in_flight_max: 1, ..Setup::default() }).await;
    let mut stream = server.post_stream("/v1/responses", json!({"input": "slow", "stream": true})).await;
    let turned_away = server.post("/v1/responses", json!({"input": "hi"})).await;
    turned_away.assert_error(503, "overloaded");
    assert!(turned_away.header("retry-after").is_some());
    stream.rest().await;
    drop(stream);
    assert_eq!(server.post("/v1/responses", json!({"input": "hi"})).await.status, 200);
}

#[tokio::test]
async fn a_stream_that_is_cut_ends_with_an_error_event() {
    let server = Server::start().await;
    let body = json!({"input": "endless", "stream": true});
    let mut stream = server.post_stream("/v1/responses", body).await;
    let delta = stream.until("response.output_text.delta").await;
    server.root.stop().await;
    let rest = stream.rest_json().await;
    let last = rest.last().unwrap();
    assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!("overloaded")));
    let numbers =
        [delta["sequence_number"].clone()].into_iter().chain(rest.iter().map(|it| it["sequence_number"].clone()));
    let numbers: Vec<_> = numbers.map(|number| number.as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
}

#[tokio::test]
async fn a_conversation_that_is_not_there_is_named_as_the_fault() {
    let server = Server::start().await;
    for id in ["conv_1", "conv_00000000000000000000000000000000"] {
        for path in ["/v1/responses", "/v1/responses/input_tokens"] {
            let refused = server.post(path, json!({"input": "a", "conversation": id})).await;
            assert_eq!(refused.assert_error(404, "conversation_not_found")["param"], "conversation");
        }
    }
}

#[tokio::test]
async fn a_prompt_longer_than_the_context_is_refused_before_a_stream_begins() {
    let server = Server::start().await;
    let input = "x".repeat(1_200_000);
    let body = |stream: bool, background: bool| json!({"input": input, "stream": stream, "background": background});
    for stream in [false, true] {
        let refused = server.post("/v1/responses", body(stream, false)).await;
        assert_eq!(refused.assert_error(400, "context_length_exceeded")["param"], "input");
    }
    let messages = json!([{"role": "user", "content": input}]);
    for (path, body, param) in [
        ("/v1/chat/completions", json!({"messages": messages}), "messages"),
        ("/v1/chat/completions", json!({"messages": messages, "stream": true}), "messages"),
        ("/v1/chat/render", json!({"messages": messages}), "messages"),
        ("/v1/completions", json!({"prompt": input}), "prompt"),
        ("/v1/responses/input_tokens", json!({"input": input}), "input"),
    ] {
        let refused = server.post(path, body).await;
        assert_eq!(refused.assert_error(400, "context_length_exceeded")["param"], param, "{path}");
    }
    let queued = server.post("/v1/responses", body(false, true)).await;
    let events = server.get_stream(&format!("/v1/responses/{}?stream=true", queued.id())).await.rest_json().await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["error"]["code"], "context_length_exceeded");
}

#[tokio::test]
async fn no_more_calls_are_made_than_the_request_allows() {
    let server = Server::start().await;
    let tools = json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}]);
    for (most, count) in [(json!(0), 0), (json!(1), 1), (json!(2), 2), (Value::Null, 2)] {
        let body = json!({"input": "twice", "tools": tools, "max_tool_calls": most});
        let answer = server.post("/v1/responses", body).await;
        assert_eq!(answer.body["status"], "completed", "{}", answer.body);
        let calls = answer.body["output"].as_array().unwrap().iter();
        let calls: Vec<_> = calls.filter(|item| item["type"] == "function_call").collect();
        assert_eq!(calls.len(), count, "{most}: {}", answer.body);
        assert!(calls.iter().all(|call| call["status"] == "completed"));
        let results = calls
            .iter()
            .map(|call| json!({"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}));
        let input: Vec<_> = results.chain([json!({"role": "user", "content": "hi"})]).collect();
        let next = server.post("/v1/responses", json!({"input": input, "previous_response_id": answer.id()})).await;
        assert_eq!(next.body["output"][0]["content"][0]["text"], "Hello, world", "{}", next.body);
    }
    for wrong in [json!(-1), json!("two")] {
        let refused = server.post("/v1/responses", json!({"input": "hi", "max_tool_calls": wrong})).await;
        assert_eq!(refused.assert_error(400, "invalid_input")["param"], "max_tool_calls");
    }
}

#[tokio::test]
async fn fields_that_exclude_each_other_are_refused() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let first = server.post("/v1/responses", json!({"input": "hi"})).await;
    for (body, param) in [
        (json!({"input": "a", "background": true, "store": false}), "background"),
        (json!({"input": "a", "conversation": conversation, "store": false}), "store"),
        (
            json!({"input": "a", "conversation": conversation, "previous_response_id": first.id()}),
            "previous_response_id",
        ),
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({}), "input"),
        (json!({"input": [{"type": "item_reference"}]}), "input[0].id"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "input[0].content[0].type"),
    ] {
        let answer = server.post("/v1/responses", body).await;
        assert_eq!(answer.assert_error(400, "invalid_input")["param"], param, "{}", answer.body);
    }
}

#[tokio::test]
async fn an_unknown_previous_response_is_an_error_and_never_an_empty_start() {
    let server = Server::start().await;
    for id in ["resp_1", "resp_00000000000000000000000000000000", ""] {
        let answer = server.post("/v1/responses", json!({"input": "a", "previous_response_id": id})).await;
        let error = answer.assert_error(400, "previous_response_not_found");
        assert_eq!(error["param"], "previous_response_id");
    }
}

#[tokio::test]
async fn a_second_response_in_a_running_conversation_is_refused_with_the_winner() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let body = json!({"input": "endless", "background": true, "conversation": conversation});
    let first = server.post("/v1/responses", body.clone()).await;
    let second = server.post("/v1/responses", body).await;
    assert_eq!(second.assert_error(409, "conversation_busy")["active_id"], first.body["id"]);
    assert_eq!(second.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn a_turn_is_told_the_servers_name_and_keeps_the_one_it_came_with() {
    let server = Server::start().await;
    let name = "x-codex-turn-state";
    let ask = || server.request(Method::POST, "/v1/responses").json(&json!({"input": "hi"}));
    let first = Answer::read(ask().send().await.unwrap()).await;
    let own = first.header(name).expect("the server has a name").to_owned();
    let second = Answer::read(ask().header(name, "another").send().await.unwrap()).await;
    assert_eq!(second.header(name), Some("another"));
    let third = Answer::read(ask().send().await.unwrap()).await;
    assert_eq!(third.header(name), Some(&*own));
}
