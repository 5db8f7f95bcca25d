//! Tools of every kind that clients declare: what the model's calls of them look like, and that results come back.

use serde_json::{Value, json};

use crate::support::{Server, Setup, SseEvent};

/// A model that makes a call where it is asked to `go`, and another where it is asked to `go on`.
async fn server(calls: &[Value]) -> Server {
    let mut script: Vec<Value> = Vec::new();
    for (asked, call) in ["go now", "go on"].iter().zip(calls) {
        let text = format!("<tool_call>{call}</tool_call>");
        let letters: Vec<String> = text.chars().map(String::from).collect();
        script.push(json!({"match": asked, "deltas": letters}));
    }
    script.push(json!({"deltas": ["ok"]}));
    Server::start_with(Setup { script: Some(script.into()), ..Setup::default() }).await
}

fn call(function: &str, arguments: &Value) -> Value {
    json!({"name": function, "arguments": arguments})
}

/// Asks for an answer in which the model calls something.
async fn called(server: &Server, tools: &Value) -> Vec<Value> {
    let body = json!({"input": "go now", "tools": tools, "stream": true});
    server.post_stream("/v1/responses", body).await.rest_json().await
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

/// The whole call, as the stream and the stored object both show it.
fn item(events: &[Value]) -> &Value {
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "no gap: {:?}", kinds(events));
    }
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!(events.last().unwrap()["response"]["output"][0], done["item"]);
    &done["item"]
}

#[tokio::test]
async fn a_call_into_a_namespace_names_it_and_comes_back_under_it() {
    let server = server(&[call("agents__spawn", &json!({"task": "a"}))]).await;
    let spawn = json!({"type": "function", "name": "spawn", "parameters": {"type": "object"}});
    let tools = json!([{"type": "namespace", "name": "agents", "description": "d", "tools": [spawn]}]);
    let events = called(&server, &tools).await;
    let call = item(&events);
    assert_eq!(
        (&call["type"], &call["namespace"], &call["name"]),
        (&json!("function_call"), &json!("agents"), &json!("spawn"))
    );
    assert_eq!(events.last().unwrap()["response"]["tools"], tools, "the object repeats what was declared");
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": [
        {"type": "input_text", "text": "all "}, {"type": "input_text", "text": "well"},
        {"type": "input_image", "image_url": "data:,"},
    ]});
    let replayed = json!([{"role": "user", "content": "go"}, call, result]);
    let answer = server.post("/v1/responses", json!({"input": replayed, "tools": tools, "store": true})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let items = server.get(&format!("/v1/responses/{}/input_items?order=asc", answer.id())).await.body;
    assert_eq!(items["data"][1]["namespace"], "agents");
    let output = items["data"][2]["output"].as_str().unwrap();
    assert!(output.starts_with("all well[") && output.contains("input_image"), "{output}");
}

#[tokio::test]
async fn a_custom_tool_is_called_with_its_text_which_streams() {
    let text = "*** Begin\n+\"a\" \\ \u{fc}\n";
    let server = server(&[call("patch", &json!({"input": text}))]).await;
    let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: /.+/"});
    let tools = json!([{"type": "custom", "name": "patch", "description": "d", "format": format}]);
    let events = called(&server, &tools).await;
    let call = item(&events);
    assert_eq!(
        (&call["type"], &call["name"], &call["input"]),
        (&json!("custom_tool_call"), &json!("patch"), &json!(text))
    );
    let deltas = events.iter().filter(|event| event["type"] == "response.custom_tool_call_input.delta");
    assert_eq!(deltas.map(|event| event["delta"].as_str().unwrap()).collect::<String>(), text);
    let done = events.iter().find(|event| event["type"] == "response.custom_tool_call_input.done").unwrap();
    assert_eq!(done["input"], text);
    let id = events[0]["response"]["id"].clone();
    let result = json!({"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done."});
    let body = json!({"previous_response_id": id, "input": [result], "tools": tools});
    let answer = server.post("/v1/responses", body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let items = server.get(&format!("/v1/responses/{}/input_items", answer.id())).await.body;
    assert_eq!(items["data"][0]["type"], "custom_tool_call_output");
}

#[tokio::test]
async fn a_search_for_tools_brings_tools_that_can_be_called() {
    let calls = [call("tool_search", &json!({"query": "agents"})), call("agents__spawn", &json!({}))];
    let server = server(&calls).await;
    let tools = json!([{"type": "tool_search", "execution": "client", "description": "d",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}]);
    let events = called(&server, &tools).await;
    assert!(!kinds(&events).iter().any(|kind| kind.contains("arguments")), "{:?}", kinds(&events));
    let call = item(&events);
    assert_eq!(
        (&call["type"], &call["execution"], &call["arguments"]),
        (&json!("tool_search_call"), &json!("client"), &json!({"query": "agents"}))
    );
    let found = json!([{"type": "namespace", "name": "agents", "tools": [
        {"type": "function", "name": "spawn", "description": "d", "parameters": {"type": "object"}},
    ]}]);
    let result = json!({"type": "tool_search_output", "call_id": call["call_id"], "execution": "client",
        "tools": found, "status": "completed"});
    let asked = json!({"role": "user", "content": "go on"});
    let body = json!({"previous_response_id": events[0]["response"]["id"], "input": [result, asked], "tools": tools});
    let answer = server.post("/v1/responses", body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.body["output"][0]["namespace"], "agents");
    let items = server.get(&format!("/v1/responses/{}/input_items?order=asc", answer.id())).await.body;
    assert_eq!((&items["data"][0]["type"], &items["data"][0]["tools"]), (&json!("tool_search_output"), &found));
}

#[tokio::test]
async fn a_shell_call_has_its_command() {
    let server = server(&[call("local_shell", &json!({"command": ["ls", "-l"], "timeout_ms": 5}))]).await;
    let tools = json!([{"type": "local_shell"}]);
    let events = called(&server, &tools).await;
    let call = item(&events);
    let action = json!({"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5});
    assert_eq!((&call["type"], &call["action"]), (&json!("local_shell_call"), &action));
    let result = json!({"type": "local_shell_call_output", "id": call["call_id"], "output": "a"});
    let body = json!({"previous_response_id": events[0]["response"]["id"], "input": [result], "tools": tools});
    assert_eq!(server.post("/v1/responses", body).await.status, 200);
}

#[tokio::test]
async fn tools_that_an_item_brings_last_for_the_conversation() {
    let server = server(&[call("exec", &json!({"input": "text(1)"})), call("clock__wait", &json!({}))]).await;
    let wait = json!({"type": "function", "name": "wait", "parameters": {"type": "object"}});
    let exec = json!({"type": "custom", "name": "exec"});
    let brought = json!({"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [
        {"type": "namespace", "name": "functions", "tools": [exec]},
        {"type": "namespace", "name": "clock", "tools": [wait]},
    ]});
    let say = |text: &str| json!({"role": "user", "content": text});
    let first = server.post("/v1/responses", json!({"input": [brought, say("hi")]})).await;
    assert_eq!(first.status, 200, "{}", first.body);
    let next = |previous: String, text: &str| json!({"previous_response_id": previous, "input": [say(text)]});
    let second = server.post("/v1/responses", next(first.id(), "go now")).await;
    let output = &second.body["output"][0];
    assert_eq!((&output["type"], &output["input"]), (&json!("custom_tool_call"), &json!("text(1)")));
    assert!(output.get("namespace").is_none(), "the default namespace is not named: {output}");
    let third = server.post("/v1/responses", next(second.id(), "go on")).await;
    assert_eq!(third.body["output"][0]["namespace"], "clock");
}

#[tokio::test]
async fn kinds_that_nobody_runs_here_fail_no_request_and_are_noted() {
    let server = server(&[]).await;
    let tools = json!([
        {"type": "web_search", "external_web_access": false, "search_content_types": ["text"]},
        {"type": "mcp", "server_label": "a", "server_url": "https://example.org"},
        {"type": "of tomorrow", "name": 5, "x": {}},
    ]);
    let input = json!([
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "a"}},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": "a"}},
        {"type": "of tomorrow", "output": [{}]},
        {"type": "of tomorrow", "content": {"a": 1}, "id": 7, "input": [1], "summary": "s", "role": []},
        {"role": "assistant", "content": [
            {"type": "output_picture", "url": "a"}, {"type": "output_text", "text": "So."},
        ]},
        {"type": "reasoning", "summary": [{"type": "of tomorrow"}], "content": [{"type": "of tomorrow", "x": 1}]},
        {"type": "reasoning", "summary": [], "content": null, "encrypted_content": "somebody else's"},
        {"role": "user", "content": "hi", "phase": "final_answer"},
    ]);
    let body = json!({"input": input, "tools": tools, "tool_choice": {"type": "web_search"},
        "metadata": {"own": "label"}, "nobody_knows": [1]});
    let answer = server.post("/v1/responses", body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let noted = &answer.body["metadata"];
    assert_eq!(noted["own"], "label");
    assert_eq!(noted["midstream_ignored_tools"], "web_search, mcp, of tomorrow");
    assert_eq!(noted["midstream_ignored_items"], "web_search_call, computer_call_output, of tomorrow");
    assert_eq!(answer.body["tools"], tools);
}

#[tokio::test]
async fn a_choice_of_nothing_that_is_run_here_leaves_the_model_no_tool_of_an_item_either() {
    let server = server(&[]).await;
    let look = json!({"type": "function", "name": "look", "parameters": {"type": "object"}});
    let brought = json!({"type": "additional_tools", "role": "developer",
        "tools": [{"type": "function", "name": "brought", "parameters": {"type": "object"}}]});
    let input = json!([brought, {"role": "user", "content": "hi"}]);
    let allowed = json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]});
    for choice in [allowed, json!("none")] {
        let body = json!({"input": input, "tools": [look], "tool_choice": choice});
        let prompt = server.post("/v1/chat/render", body).await.body["prompt"].to_string();
        assert!(!prompt.contains("look") && !prompt.contains("brought"), "{choice}: {prompt}");
    }
    let body = json!({"input": input, "tools": [look]});
    let prompt = server.post("/v1/chat/render", body).await.body["prompt"].to_string();
    assert!(prompt.contains("look") && prompt.contains("brought"), "{prompt}");
}

#[tokio::test]
async fn a_whole_call_into_a_namespace_names_it_and_a_wrong_tool_of_an_item_is_refused_by_its_place() {
    let server = server(&[call("agents__spawn", &json!({"task": "a"}))]).await;
    let spawn = json!({"type": "function", "name": "spawn", "parameters": {"type": "object"}});
    let brought = json!({"type": "additional_tools", "tools": [
        {"type": "namespace", "name": "agents", "tools": [spawn]},
    ]});
    let input = json!([brought, {"role": "user", "content": "go now"}]);
    let body = json!({"input": input, "stream": true, "stream_options": {"include_dispatch": true}});
    let events = server.post_stream("/v1/responses", body).await.rest_json().await;
    let whole = events.iter().find(|event| event["type"] == "tool_call_dispatch").unwrap();
    assert_eq!((&whole["namespace"], &whole["name"]), (&json!("agents"), &json!("spawn")));
    let wrong =
        json!([{"role": "user", "content": "a"}, {"type": "additional_tools", "tools": [{"type": "function"}]}]);
    for (path, field) in [("/v1/responses", "input"), ("/v1/conversations", "items")] {
        let mut body = json!({});
        body[field] = wrong.clone();
        let refused = server.post(path, body).await;
        assert_eq!(refused.assert_error(400, "invalid_input")["param"], format!("{field}[1].tools[0].name"));
    }
}

#[tokio::test]
async fn a_chat_calls_a_custom_tool_with_its_text_whole_and_in_pieces() {
    let text = "*** Begin\n+\"a\" \\ \u{fc}\n";
    let server = server(&[call("patch", &json!({"input": text}))]).await;
    let grammar = json!({"syntax": "lark", "definition": "start: /.+/"});
    let custom = json!({"name": "patch", "description": "d", "format": {"type": "grammar", "grammar": grammar}});
    let tools = json!([{"type": "custom", "custom": custom}]);
    let user = json!({"role": "user", "content": "go now"});
    let options = json!({"include_dispatch": true});
    let ask = json!({"messages": [user], "tools": tools});
    let whole = server.post("/v1/chat/completions", ask.clone()).await.body;
    let choice = &whole["choices"][0];
    let made = choice["message"]["tool_calls"][0].clone();
    let custom = json!({"name": "patch", "input": text});
    assert_eq!(made, json!({"id": made["id"], "type": "custom", "custom": custom}));
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));

    let mut streamed = ask.clone();
    (streamed["stream"], streamed["stream_options"]) = (true.into(), options);
    let events = server.post_stream("/v1/chat/completions", streamed).await.rest().await;
    let dispatched = events.iter().find(|event| event.event.as_deref() == Some("tool_call_dispatch")).unwrap().json();
    assert_eq!((&dispatched["tool_call"]["custom"], &dispatched["tool_call"]["type"]), (&custom, &json!("custom")));
    let chunks = events.iter().filter(|event| event.event.is_none() && event.data != "[DONE]").map(SseEvent::json);
    let parts: Vec<Value> = chunks.map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0].clone()).collect();
    let parts: Vec<&Value> = parts.iter().filter(|part| !part.is_null()).collect();
    let head = json!({"index": 0, "id": parts[0]["id"], "type": "custom", "custom": {"name": "patch", "input": ""}});
    assert_eq!(*parts[0], head);
    assert!(parts[1..].iter().all(|part| part.as_object().unwrap().keys().eq(["index", "custom"])), "{parts:?}");
    assert_eq!(parts.iter().map(|part| part["custom"]["input"].as_str().unwrap()).collect::<String>(), text);

    // The history has both kinds of calls, and each result is of its call's kind.
    let function = json!({"id": "f1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let result = |id: &Value| json!({"role": "tool", "tool_call_id": id, "content": "Done."});
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [made, function]});
    let messages = json!([user, calls, result(&made["id"]), result(&json!("f1"))]);
    let answer =
        server.post("/v1/chat/completions", json!({"messages": messages, "tools": tools, "store": true})).await;
    assert_eq!(answer.body["choices"][0]["message"]["content"], "ok", "{}", answer.body);
    let id = answer.id().replacen("chatcmpl-", "resp_", 1);
    let items = server.get(&format!("/v1/responses/{id}/input_items?order=asc")).await.body;
    let kinds: Vec<&Value> = items["data"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    let expected = ["message", "custom_tool_call", "function_call", "custom_tool_call_output", "function_call_output"];
    assert_eq!(kinds, expected);
    assert_eq!(items["data"][1]["input"], text);
}

#[tokio::test]
async fn what_is_wrong_with_a_custom_tool_or_its_call_in_a_chat_is_refused_by_its_place() {
    let server = server(&[]).await;
    let tool = |custom: Value| json!({"tools": [{"type": "custom", "custom": custom}]});
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "custom"}]});
    for (fields, param) in [
        (tool(json!({"description": "d"})), "tools[0].custom.name"),
        (tool(json!({"name": "a", "format": {"type": "xml"}})), "tools[0].custom.format.type"),
        (json!({"messages": [{"role": "user", "content": "hi"}, call]}), "messages[1].tool_calls[0].function"),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let refused = server.post("/v1/chat/completions", body).await;
        assert_eq!(refused.assert_error(400, "invalid_input")["param"], param, "{}", refused.body);
    }
}
