//! What `/v1/messages` takes in: the same prompt whatever the spelling, and refusals that name the message.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::messages::{PATH, ask, tools};
use crate::support::{Answer, PATIENCE, Server, Setup};

/// How many tokens the prompt has.
async fn count(server: &Server, body: Value) -> u64 {
    let counted = server.post("/v1/messages/count_tokens", body).await;
    counted.body["input_tokens"].as_u64().unwrap_or_else(|| panic!("{}", counted.body))
}

fn with(messages: Value) -> Value {
    let mut body = ask("");
    body["messages"] = messages;
    body
}

async fn refused(server: &Server, body: Value) -> String {
    let answer = server.post(PATH, body).await;
    assert_eq!(
        (answer.status, &answer.body["error"]["type"]),
        (400, &json!("invalid_request_error")),
        "{}",
        answer.body
    );
    answer.body["error"]["message"].as_str().unwrap().to_owned()
}

fn call(id: &str) -> Value {
    json!({"role": "assistant", "content": [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": id, "name": "weather", "input": {"city": "Oslo"}},
    ]})
}

fn result(id: &str, content: &Value) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": content})
}

#[tokio::test]
async fn the_spelling_of_a_request_does_not_change_its_prompt() {
    let server = Server::start().await;
    let plain = json!({"system": "Be kind.", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8});
    let expected = count(&server, plain).await;
    let mark = json!({"type": "ephemeral", "ttl": "1h"});
    let billing =
        |more: &str| format!("x-anthropic-billing-header: cc_version=2.1.332.0b8; cc_entrypoint=sdk-cli;{more}");
    let kind = json!({"type": "text", "text": "Be kind.", "cache_control": mark});
    for system in [
        json!([kind]),
        json!([{"type": "text", "text": billing("")}, kind]),
        json!([{"type": "text", "text": billing(" cch=a1b2c;")}, kind]),
        json!(billing("\nBe kind.")),
        json!(billing(" cch=00000;Be kind.")),
    ] {
        for content in [json!("hi"), json!([{"type": "text", "text": "hi", "cache_control": mark}])] {
            let message = json!({"role": "user", "content": content});
            let body = json!({"system": system, "messages": [message], "max_tokens": 8, "cache_control": mark});
            assert_eq!(count(&server, body.clone()).await, expected, "{body}");
        }
    }
    let kept = json!({"system": billing("\nBe kind."), "messages": [{"role": "user", "content": "hi"}],
        "strip_preamble": false});
    assert!(count(&server, kept).await > expected);
}

#[tokio::test]
async fn what_stands_in_front_of_the_last_mark_is_put_into_the_cache_and_told_by_how_long() {
    let server = Server::start().await;
    let asked = |first: Value, second: Value| {
        let text = |text: &str, mark: Value| json!([{"type": "text", "text": text, "cache_control": mark}]);
        with(json!([
            {"role": "user", "content": text("hi", first)},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": text("rain", second)},
        ]))
    };
    let usage = async |body: Value| server.post(PATH, body).await.body["usage"].clone();
    let (none, minutes, hour) = (Value::Null, json!({"type": "ephemeral"}), json!({"type": "ephemeral", "ttl": "1h"}));
    let plain = usage(asked(none.clone(), none.clone())).await;
    assert_eq!(plain["cache_creation_input_tokens"], 0);
    let (whole, first) = (plain["input_tokens"].as_u64().unwrap(), count(&server, ask("hi")).await);
    let all = usage(asked(minutes.clone(), hour.clone())).await;
    // The head of an answer is one control token, and a byte is a token.
    let answer = 1 + "assistant\n".len() as u64;
    assert_eq!((&all["cache_creation_input_tokens"], &all["input_tokens"]), (&json!(whole - answer), &json!(answer)));
    let by_ttl = json!({"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": whole - answer});
    assert_eq!(all["cache_creation"], by_ttl);
    let some = usage(asked(minutes, none)).await;
    assert_eq!(some["cache_creation"]["ephemeral_5m_input_tokens"], first - answer);
    assert_eq!(some["input_tokens"], whole - (first - answer));
    let mut top = asked(Value::Null, Value::Null);
    top["cache_control"] = hour;
    assert_eq!(usage(top).await, all);
}

#[tokio::test]
async fn marks_of_both_times_are_told_apart_and_one_on_a_tool_is_one_on_the_system_text() {
    let server = Server::start().await;
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    let mut body = ask("hi");
    body["messages"][0]["content"] = json!([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]);
    body["system"] = "Be kind.".into();
    body["tools"] = tools();
    let plain = server.post(PATH, body.clone()).await.body["usage"]["cache_creation"].clone();
    let all = plain["ephemeral_5m_input_tokens"].as_u64().unwrap();
    body["system"] = json!([{"type": "text", "text": "Be kind.", "cache_control": hour}]);
    let on_system = server.post(PATH, body.clone()).await.body["usage"]["cache_creation"].clone();
    body["system"] = "Be kind.".into();
    body["tools"][0]["cache_control"] = hour;
    let on_tools = server.post(PATH, body).await.body["usage"]["cache_creation"].clone();
    assert_eq!(on_tools, on_system);
    let (minutes, hour) = (&on_tools["ephemeral_5m_input_tokens"], &on_tools["ephemeral_1h_input_tokens"]);
    assert_eq!(minutes.as_u64().unwrap() + hour.as_u64().unwrap(), all);
    // A byte is a token, and a message has a control token at either end, and a line for its role.
    assert_eq!(minutes.as_u64().unwrap(), 1 + "user\nhi".len() as u64 + 1 + 1);
}

#[tokio::test]
async fn a_mark_counts_to_the_end_of_its_block() {
    let server = Server::start().await;
    let (hour, minutes) = (json!({"type": "ephemeral", "ttl": "1h"}), json!({"type": "ephemeral"}));
    let text = |text: &str, mark: &Value| json!({"type": "text", "text": text, "cache_control": mark});
    let created = async |body: &Value| {
        let created = server.post(PATH, body.clone()).await.body["usage"]["cache_creation"].clone();
        ["ephemeral_1h_input_tokens", "ephemeral_5m_input_tokens"].map(|name| created[name].as_u64().unwrap())
    };
    // A byte is a token; a message has a control token at either end, and the head of an answer one.
    let (answer, end) = (1 + "assistant\n".len() as u64, 1 + 1);
    let said = |text: &str| text.len() as u64;
    let hi = count(&server, ask("hi")).await - answer - end;
    let both = |first: &Value, second: &Value| {
        with(json!([{"role": "user", "content": [text("hi", first), text("rain", second)]}]))
    };
    let rest = said("\n\nrain") + end;
    for (first, second, expected) in [
        (&minutes, &Value::Null, [0, hi]),
        (&hour, &Value::Null, [hi, 0]),
        (&hour, &minutes, [hi, rest]),
        (&minutes, &hour, [hi + rest, 0]),
        (&hour, &hour, [hi + rest, 0]),
        (&minutes, &minutes, [0, hi + rest]),
    ] {
        assert_eq!(created(&both(first, second)).await, expected, "{first} {second}");
    }

    // Of the system text, of an answer, and inside of what a tool gave.
    let mut body = ask("hi");
    body["system"] = json!([text("Be kind.", &hour), text("Be brief.", &minutes)]);
    let [kind, brief] = created(&body).await;
    assert_eq!((kind, brief), (1 + said("system\nBe kind."), said("\n\nBe brief.") + end));
    let mut turn = with(json!([{"role": "user", "content": "hi"}, call("toolu1")]));
    let none = Value::Null;
    turn["messages"][1]["content"][0]["cache_control"] = hour.clone();
    let spoken = hi + end + 1 + said("assistant\nLet me see.");
    assert_eq!(created(&turn).await, [spoken, 0]);
    let given = json!([text("rain", &hour), text("wind", &none)]);
    turn["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": [result("toolu1", &given)]}));
    let [inside, nothing] = created(&turn).await;
    turn["messages"][2]["content"][0]["cache_control"] = minutes;
    let [same, behind] = created(&turn).await;
    assert_eq!((nothing, same, inside > spoken), (0, inside, true));
    assert_eq!(behind, count(&server, turn).await - answer - inside, "that is all of it");

    // On a tool, where there is no system text.
    let mut tooled = ask("hi");
    tooled["tools"] = tools();
    tooled["tools"][0]["cache_control"] = hour;
    let whole = count(&server, tooled.clone()).await;
    assert_eq!(created(&tooled).await, [whole - answer - end - said("hi"), 0]);
}

#[tokio::test]
async fn fifty_counts_at_once_are_the_tokens_that_answers_would_have() {
    let server = Server::start().await;
    let asked = json!({"role": "user", "content": "weather"});
    let body = |number: usize| match number % 5 {
        0 => ask(&"hi ".repeat(number + 1)),
        1 => with(json!([asked, call("toolu1"), {"role": "user", "content": "rain"}])),
        // Calls that nobody answers are closed, in the middle and at the end.
        2 => with(json!([asked, call("toolu1")])),
        3 => with(json!([asked, call("toolu1"), {"role": "user", "content": [result("toolu1", &json!("rain"))]}])),
        _ => {
            let mut body = with(json!([asked, {"role": "system", "content": "Be brief."}]));
            (body["tools"], body["system"]) = (tools(), "Be kind.".into());
            body
        }
    };
    let counts = (0..50).map(|number| count(&server, body(number)));
    let counts = futures_util::future::join_all(counts).await;
    for (number, counted) in counts.into_iter().enumerate() {
        let answer = server.post(PATH, body(number)).await.body;
        assert_eq!(answer["usage"]["input_tokens"], counted, "{number}: {answer}");
    }
}

#[tokio::test]
async fn counts_and_generations_take_no_room_from_each_other() {
    let server = Server::start_with(Setup { requests_in_flight_max: 1, ..Setup::default() }).await;
    let mut body = ask("endless");
    body["stream"] = true.into();
    let mut running = server.post_stream(PATH, body).await;
    running.until("content_block_delta").await;
    assert_eq!(server.post(PATH, ask("hi")).await.status, 529, "else nothing is proven");
    for path in ["/v1/messages/count_tokens", "/v1/tokenize", "/v1/chat/render"] {
        let answer = server.post(path, ask("hi")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    drop(running);
    server.running.idle().await;
    // The body of a count is announced, and never comes: it holds all the room that counts have.
    let mut socket = TcpStream::connect(&server.address).await.unwrap();
    let head = "POST /v1/messages/count_tokens HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.unwrap();
    let full = async { while server.post("/v1/messages/count_tokens", ask("hi")).await.status == 200 {} };
    timeout(PATIENCE, full).await.expect("one more is turned away");
    let free = async { while server.post(PATH, ask("hi")).await.status != 200 {} };
    timeout(PATIENCE, free).await.expect("what generates has its own");
}

#[tokio::test]
async fn results_are_taken_in_every_form_and_stand_behind_their_calls() {
    let server = Server::start().await;
    let turn = |results: Vec<Value>| {
        let mut body = with(json!([{"role": "user", "content": "weather"}, call("toolu1")]));
        body["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": results}));
        body["tools"] = tools();
        body
    };
    let text = count(&server, turn(vec![result("toolu1", &json!("rain"))])).await;
    let blocks = json!([{"type": "text", "text": "rain"}]);
    assert_eq!(count(&server, turn(vec![result("toolu1", &blocks)])).await, text);
    let empty = count(&server, turn(vec![result("toolu1", &Value::Null)])).await;
    assert_eq!(empty, text - "rain".len() as u64);
    let image = json!([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]);
    assert!(count(&server, turn(vec![result("toolu1", &image)])).await > empty);
    let mut failed = result("toolu1", &json!("rain"));
    failed["is_error"] = true.into();
    assert!(count(&server, turn(vec![failed])).await > text, "the model is told that the tool failed");
    // What the user said meanwhile is said behind the result, wherever it stands.
    let said = json!({"type": "text", "text": "rain"});
    for blocks in [vec![result("toolu1", &json!("ok")), said.clone()], vec![said, result("toolu1", &json!("ok"))]] {
        let answer = server.post(PATH, turn(blocks)).await;
        assert_eq!(answer.body["content"][0]["text"], "Take an umbrella.", "{}", answer.body);
    }
}

#[tokio::test]
async fn calls_without_a_result_are_closed_and_results_without_a_call_refused() {
    let server = Server::start().await;
    let asked = json!({"role": "user", "content": "weather"});
    let unanswered = with(json!([asked, call("toolu1"), {"role": "user", "content": "rain"}]));
    assert_eq!(server.post(PATH, unanswered).await.body["content"][0]["text"], "Take an umbrella.");
    let last = with(json!([asked, call("toolu1")]));
    assert_eq!(server.post(PATH, last).await.status, 200);
    let twice = json!({"role": "user", "content": [result("toolu1", &json!("a")), result("toolu1", &json!("b"))]});
    let said = refused(&server, with(json!([asked, call("toolu1"), twice]))).await;
    assert!(said.starts_with("messages.2.content.1: the call toolu1 has two results"), "{said}");
    let foreign = json!({"role": "user", "content": [result("toolu2", &json!("a"))]});
    let said = refused(&server, with(json!([asked, call("toolu1"), foreign]))).await;
    assert!(said.starts_with("messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks"), "{said}");
    let one = |id: &str| json!({"role": "user", "content": [result(id, &json!("rain"))]});
    let apart = json!([asked, call("toolu1"), call("toolu2"), one("toolu1"), one("toolu2")]);
    assert_eq!(server.post(PATH, with(apart)).await.status, 200, "results of one turn may come in several messages");
    let late = json!([asked, call("toolu1"), {"role": "user", "content": "no"}, {"role": "user", "content":
        [result("toolu1", &json!("a"))]}]);
    assert!(refused(&server, with(late)).await.starts_with("messages.3.content.0: unexpected"));
}

#[tokio::test]
async fn a_system_message_stands_where_it_is_and_changes_nothing_before_it() {
    let server = Server::start().await;
    let rendered = async |messages: Value| count(&server, with(messages)).await;
    let user = json!({"role": "user", "content": "hi"});
    let plain = rendered(json!([user])).await;
    let told = rendered(json!([user, {"role": "system", "content": "Be brief."}])).await;
    assert!(told > plain);
    let blocks = json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]);
    assert_eq!(rendered(json!([user, {"role": "system", "content": blocks}])).await, told);
    // Effort is told where it changes, and only there.
    let effort = |word: &str| json!({"role": "system", "content": [], "output_config": {"effort": word}});
    let once = rendered(json!([user, effort("low")])).await;
    assert!(once > plain);
    assert_eq!(rendered(json!([user, effort("low"), effort("low")])).await, once);
    assert!(rendered(json!([user, effort("low"), effort("high")])).await > once);
    // What holds for one turn is not shown behind it.
    let briefly = json!({"role": "system", "content": "Be brief.", "clear_at": "next_user_message"});
    assert_eq!(rendered(json!([user, briefly])).await, told);
    assert_eq!(rendered(json!([user, briefly, user])).await, rendered(json!([user, user])).await);
    let nothing = refused(&server, with(json!([user, {"role": "system", "content": []}]))).await;
    assert!(nothing.starts_with("messages.1"), "{nothing}");
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_its_place() {
    let server = Server::start().await;
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    for (messages, at) in [
        (json!([]), "messages"),
        (json!([{"role": "robot", "content": "a"}]), "messages.0.role"),
        (json!([{"role": "user"}]), "messages.0.content"),
        (user(json!("")), "messages.0"),
        (user(json!([{"type": "text", "text": ""}])), "messages.0"),
        (user(json!([{"type": "text"}])), "messages.0.content.0.text"),
        (user(json!([{"type": "riddle"}])), "messages.0.content.0.type"),
        (user(json!([{"type": "text", "text": "a"}, {"type": 7}])), "messages.0.content"),
        (user(json!([{"type": "tool_result"}])), "messages.0.content.0.tool_use_id"),
        (json!([{"role": "user", "content": "a"}, {"role": 7}]), "messages.1.role: "),
        (
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "riddle"}]}]),
            "messages.1.content.0.type",
        ),
        (user(json!([{"type": "image", "source": {}}])), "messages.0.content.0.type"),
        (json!([{"role": "assistant", "content": [{"type": "tool_use", "name": "a"}]}]), "messages.0.content.0.id"),
    ] {
        let said = refused(&server, with(messages.clone())).await;
        assert!(said.starts_with(at), "{messages}: {said}");
    }
    for (name, value, at) in [
        ("max_tokens", Value::Null, "max_tokens"),
        ("max_tokens", json!(-1), "max_tokens: "),
        ("thinking", json!({"type": "enabled", "budget_tokens": 1000}), "thinking.budget_tokens"),
        ("thinking", json!({"type": "sometimes"}), "thinking.type"),
        ("thinking", json!({"type": "enabled", "budget_tokens": 5000}), "`max_tokens` must be greater"),
        ("tool_choice", json!({"type": "tool", "name": "nobody"}), "tool_choice"),
        ("tools", json!([{"type": "bash_20250124", "name": "bash"}]), "tools.0.type"),
        ("container", json!("container_1"), "container"),
        ("mcp_servers", json!([{"type": "url"}]), "mcp_servers"),
        ("stop_sequences", json!([""]), "an empty stop string"),
        (
            "output_config",
            json!({"format": {"type": "json_schema", "schema": {"type": "object"}}}),
            "output_config.format",
        ),
        ("temperature", json!(7), "temperature"),
    ] {
        let mut body = ask("hi");
        body[name] = value;
        let said = refused(&server, body).await;
        assert!(said.starts_with(at), "{name}: {said}");
    }
    // Nothing is wrong with an empty block beside others, nor with an empty answer.
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": []}, {"role": "user", "content": "rain"}]);
    assert_eq!(server.post(PATH, with(messages)).await.status, 200);
}

#[tokio::test]
async fn blocks_of_hosted_tools_say_nothing_and_a_search_result_is_read() {
    let server = Server::start().await;
    let said = json!({"type": "text", "text": "It rains."});
    let turn = |answer: Value| {
        with(json!([{"role": "user", "content": "weather"},
        {"role": "assistant", "content": answer}, {"role": "user", "content": "hi"}]))
    };
    let plain = count(&server, turn(json!([said]))).await;
    let hosted = json!([
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rain"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "look", "server_name": "a", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "content": []},
        said,
    ]);
    assert_eq!(count(&server, turn(hosted)).await, plain);
    let found = json!({"type": "search_result", "source": "https://example.com", "title": "Rain",
        "content": [{"type": "text", "text": "It rains."}]});
    let mut read = ask("");
    read["messages"][0]["content"] = json!([found, {"type": "text", "text": "hi"}]);
    let most = "https://example.comRainIt rains.".len() as u64;
    assert!(count(&server, read).await > count(&server, ask("hi")).await + most);
}

#[tokio::test]
async fn what_means_nothing_here_is_taken_all_the_same() {
    let server = Server::start().await;
    let plain = count(&server, ask("hi")).await;
    for (name, value) in [
        ("metadata", json!({"user_id": "{\"device_id\": \"a\"}"})),
        ("service_tier", json!("auto")),
        ("inference_geo", json!("eu")),
        ("container", Value::Null),
        ("mcp_servers", json!([])),
        ("betas", json!(["any-2026-01-01"])),
    ] {
        let mut body = ask("hi");
        body[name] = value;
        assert_eq!(count(&server, body.clone()).await, plain, "{name}");
        let answer = server.post(PATH, body).await;
        assert_eq!((answer.status, &answer.body["content"][0]["text"]), (200, &json!("Hello, world")), "{name}");
    }
}

#[tokio::test]
async fn a_mark_for_a_time_that_there_is_not_is_refused_by_its_place() {
    let server = Server::start().await;
    let mark = |ttl: Value| json!({"type": "ephemeral", "ttl": ttl});
    for ttl in [json!("7m"), json!(""), json!("1H"), json!(300)] {
        let block = json!({"type": "text", "text": "hi", "cache_control": mark(ttl.clone())});
        let given = json!({"type": "tool_result", "tool_use_id": "toolu1", "content": [block]});
        let turn = json!([{"role": "user", "content": "hi"}, call("toolu1"), {"role": "user", "content": [given]}]);
        let mut tool = tools()[0].clone();
        tool["cache_control"] = mark(ttl.clone());
        for (name, value, at) in [
            ("messages", json!([{"role": "user", "content": [block]}]), "messages.0.content.0.cache_control.ttl: "),
            ("messages", turn, "messages.2.content.0.content.0.cache_control.ttl: "),
            ("system", json!([block]), "system.0.cache_control.ttl: "),
            ("tools", json!([tool]), "tools.0.cache_control.ttl: "),
            ("cache_control", mark(ttl.clone()), "cache_control.ttl: "),
        ] {
            let mut body = ask("hi");
            body[name] = value;
            let said = refused(&server, body).await;
            assert!(said.starts_with(at), "{said}");
        }
    }
    let mut body = ask("hi");
    for ttl in [json!("5m"), json!("1h"), Value::Null] {
        body["cache_control"] = mark(ttl);
        assert_eq!(server.post(PATH, body.clone()).await.status, 200);
    }
}

#[tokio::test]
async fn the_newer_version_is_stricter() {
    let server = Server::start().await;
    let post = async |version: &str, body: &Value| {
        let request = server.request(Method::POST, PATH).header("anthropic-version", version).json(body);
        Answer::read(request.send().await.unwrap()).await.status
    };
    let sampled = |name: &str| {
        let mut body = ask("hi");
        body[name] = 1.into();
        body
    };
    let source = json!({"type": "text", "media_type": "text/plain", "data": "a"});
    let document = json!({"type": "document", "source": source});
    let shown = with(json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": [document]},
        {"role": "user", "content": "hi"}]));
    let cited = with(json!([{"role": "user", "content": [{"type": "text", "text": "hi", "citations": [{}]}]}]));
    for body in [sampled("temperature"), sampled("top_p"), sampled("top_k"), shown, cited] {
        assert_eq!(post("2023-06-01", &body).await, 200, "{body}");
        assert_eq!(post("2026-10-21", &body).await, 400, "{body}");
    }
    assert_eq!(post("2026-10-21", &ask("hi")).await, 200);
}

#[tokio::test]
async fn either_credential_and_any_beta_is_taken() {
    let server = Server::start().await;
    for (name, value) in [("x-api-key", "sk-ant-fake"), ("authorization", "Bearer sk-ant-fake")] {
        let request = server.request(Method::POST, PATH).header(name, value).header("anthropic-beta", "any-2026-01-01");
        let answer = Answer::read(request.json(&ask("hi")).send().await.unwrap()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}
