//! What changes in the middle of a conversation on `/v1/messages`: tools that come and go, and what is left out of a
//! long transcript. The prompt in front of a change stays as it was.

use serde_json::{Value, json};

use crate::messages::{PATH, ask};
use crate::support::Server;

const COUNT: &str = "/v1/messages/count_tokens";

fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("Does {name}."), "input_schema": {"type": "object"}})
}

fn deferred(name: &str) -> Value {
    let mut tool = tool(name);
    tool["defer_loading"] = true.into();
    tool
}

async fn counted(server: &Server, tools: &Value, messages: &Value) -> Value {
    let mut body = ask("");
    (body["tools"], body["messages"]) = (tools.clone(), messages.clone());
    server.post(COUNT, body).await.body
}

async fn count(server: &Server, tools: &Value, messages: &Value) -> u64 {
    let counted = counted(server, tools, messages).await;
    counted["input_tokens"].as_u64().unwrap_or_else(|| panic!("{counted}"))
}

fn system(blocks: &Value) -> Value {
    json!({"role": "system", "content": blocks})
}

#[tokio::test]
async fn a_tool_that_is_put_off_costs_nothing_until_a_search_finds_it() {
    let server = Server::start().await;
    let user = json!({"role": "user", "content": "hi"});
    let (few, more) = (json!([tool("search")]), json!([tool("search"), deferred("weather"), deferred("stars")]));
    let plain = count(&server, &few, &json!([user])).await;
    assert_eq!(count(&server, &more, &json!([user])).await, plain);
    let shown = json!([tool("search"), tool("weather")]);
    assert!(count(&server, &shown, &json!([user])).await > plain);

    let call =
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "search", "input": {}}]});
    let found = |content: Value| {
        let result = json!({"type": "tool_result", "tool_use_id": "a", "content": content});
        json!([user, call, {"role": "user", "content": [result]}])
    };
    let reference = found(json!([{"type": "tool_reference", "tool_name": "weather"}]));
    let nothing = count(&server, &more, &found(json!([]))).await;
    let told = count(&server, &more, &reference).await;
    assert!(told > nothing + "Does weather.".len() as u64, "the result tells the model of the tool");
    // What was found can be called: the scripted model does.
    let mut body = ask("");
    (body["tools"], body["messages"]) = (more.clone(), reference);
    body["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": "weather"}));
    let answer = server.post(PATH, body).await.body;
    assert_eq!((&answer["stop_reason"], &answer["content"][1]["name"]), (&json!("tool_use"), &json!("weather")));
    let unknown = counted(&server, &more, &found(json!([{"type": "tool_reference", "tool_name": "moon"}]))).await;
    let said = unknown["error"]["message"].as_str().unwrap();
    assert!(said.starts_with("messages.2.content.0.content.0: no tool is called \"moon\""), "{said}");
}

#[tokio::test]
async fn tools_come_and_go_where_a_message_says_so() {
    let server = Server::start().await;
    let user = json!({"role": "user", "content": "hi"});
    let tools = json!([tool("look"), deferred("weather")]);
    let named = |kind: &str, name: &str| json!({"type": kind, "tool": {"type": "tool_reference", "name": name}});
    let plain = count(&server, &tools, &json!([user])).await;
    let with = async |blocks: Value| count(&server, &tools, &json!([user, system(&blocks)])).await;
    let added = with(json!([named("tool_addition", "weather")])).await;
    assert!(added > plain + "Does weather.".len() as u64);
    let own = json!({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("weather")}});
    assert_eq!(with(json!([own])).await, added, "whether it is named or defined");
    assert_eq!(with(json!([named("tool_addition", "look")])).await, plain, "it is there already");
    assert!(with(json!([named("tool_removal", "look")])).await > plain, "the head of the prompt stays");

    // What was removed cannot be asked for, until it is back.
    let mut body = ask("");
    (body["tools"], body["tool_choice"]) = (tools.clone(), json!({"type": "tool", "name": "look"}));
    body["messages"] = json!([user, system(&json!([named("tool_removal", "look")]))]);
    let refused = server.post(PATH, body).await;
    let said = refused.body["error"]["message"].as_str().unwrap();
    assert!(refused.status == 400 && said.contains("tool_choice"), "{said}");
    for (block, at) in [
        (json!({"type": "tool_addition"}), "messages.1.content.0.tool is missing"),
        (named("tool_removal", "moon"), "messages.1.content.0.tool: no tool is called"),
        (json!({"type": "tool_addition", "tool": {"type": "mcp_toolset_reference"}}), "messages.1.content.0.tool.type"),
    ] {
        let refused = counted(&server, &tools, &json!([user, system(&json!([block]))])).await;
        let said = refused["error"]["message"].as_str().unwrap();
        assert!(said.starts_with(at), "{said}");
    }
}

#[tokio::test]
async fn a_summary_stands_for_all_messages_before_it_but_not_for_the_system_text() {
    let server = Server::start().await;
    let user = |content: Value| json!({"role": "user", "content": content});
    let counted = async |messages: Value| {
        let mut body = ask("");
        (body["system"], body["tools"], body["messages"]) = ("Be kind.".into(), json!([tool("look")]), messages);
        server.post(COUNT, body).await.body["input_tokens"].as_u64().unwrap()
    };
    let summary = json!({"type": "compaction", "content": "They spoke of rain."});
    let alone = counted(json!([user(json!([summary, {"type": "text", "text": "hi"}]))])).await;
    let before = [user(json!("a long story ".repeat(50))), json!({"role": "assistant", "content": "And then?"})];
    let [story, answer] = &before;
    let behind = json!([story, answer, {"role": "assistant", "content": [summary]}, user(json!("hi"))]);
    assert_eq!(counted(behind).await, alone);
    let failed = json!({"type": "compaction", "content": null});
    let failed = counted(json!([story, answer, {"role": "assistant", "content": [failed]}, user(json!("hi"))])).await;
    assert!(failed > alone + 500, "one that failed stands for nothing");
    // What the compacted messages changed of the tools holds on.
    let mut changed = summary.clone();
    let removal = json!({"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}});
    changed["tool_changes"] = json!([removal]);
    let told = counted(json!([{"role": "assistant", "content": [changed]}, user(json!("hi"))])).await;
    assert!(told > alone, "the model is told");
}

/// Two turns with thinking and a call each, and a third that asks.
fn long() -> Value {
    let mut messages = Vec::new();
    for id in ["a", "b"] {
        messages.push(json!({"role": "user", "content": "weather"}));
        messages.push(json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm, well", "signature": ""},
            {"type": "tool_use", "id": id, "name": "weather", "input": {"city": "Oslo"}},
        ]}));
        let rain = "rain ".repeat(40);
        messages.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": rain}]}));
        messages.push(json!({"role": "assistant", "content": "It rains."}));
    }
    messages.push(json!({"role": "user", "content": "hi"}));
    messages.into()
}

async fn edited(server: &Server, edits: Value) -> (Value, Value) {
    let mut body = ask("");
    body["messages"] = long();
    body["context_management"] = json!({"edits": edits});
    let counted = server.post(COUNT, body.clone()).await.body;
    let answer = server.post(PATH, body).await.body;
    assert_eq!(answer["usage"]["input_tokens"], counted["input_tokens"], "{answer}");
    (answer["context_management"].clone(), counted)
}

#[tokio::test]
async fn old_thinking_and_old_results_are_left_out_and_told() {
    let server = Server::start().await;
    let all = json!([{"type": "clear_thinking_20251015", "keep": "all"}]);
    let (applied, counted) = edited(&server, all).await;
    let original = counted["input_tokens"].as_u64().unwrap();
    assert_eq!(applied, json!({"applied_edits": []}));
    assert_eq!(counted["context_management"]["original_input_tokens"], original);

    let (applied, counted) = edited(&server, json!([{"type": "clear_thinking_20251015"}])).await;
    let left = counted["input_tokens"].as_u64().unwrap();
    assert_eq!(counted["context_management"]["original_input_tokens"], original);
    let expected = json!([{"type": "clear_thinking_20251015", "cleared_thinking_turns": 1,
        "cleared_input_tokens": original - left}]);
    assert_eq!((&applied["applied_edits"], left < original), (&expected, true));

    let uses = json!({"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 1},
        "keep": {"type": "tool_uses", "value": 1}});
    let (applied, counted) = edited(&server, json!([uses])).await;
    let left = counted["input_tokens"].as_u64().unwrap();
    let expected = json!([{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 1,
        "cleared_input_tokens": original - left}]);
    assert_eq!((&applied["applied_edits"], left < original), (&expected, true));
    let with = |name: &str, value: Value| {
        let mut uses = uses.clone();
        uses[name] = value;
        json!([uses])
    };
    for nothing in [
        with("trigger", json!({"type": "input_tokens", "value": 100_000})),
        with("exclude_tools", json!(["weather"])),
        with("clear_at_least", json!({"type": "input_tokens", "value": 100_000})),
    ] {
        let (applied, counted) = edited(&server, nothing.clone()).await;
        assert_eq!((&applied["applied_edits"], &counted["input_tokens"]), (&json!([]), &json!(original)), "{nothing}");
    }
    let (_, inputs) = edited(&server, with("clear_tool_inputs", json!(true))).await;
    assert!(inputs["input_tokens"].as_u64().unwrap() < left, "the inputs are gone as well");
}

#[tokio::test]
async fn a_stream_tells_what_was_left_out_and_an_unknown_edit_is_refused() {
    let server = Server::start().await;
    let mut body = ask("");
    (body["messages"], body["stream"]) = (long(), true.into());
    body["context_management"] = json!({"edits": [{"type": "clear_thinking_20251015"}]});
    let events = server.post_stream(PATH, body.clone()).await.rest_json().await;
    let last = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(last["context_management"]["applied_edits"][0]["cleared_thinking_turns"], 1);
    for (edit, at) in [
        (json!({"type": "compact_20260112"}), "context_management.edits.0.type"),
        (json!({"type": "clear_thinking_20251015", "keep": 7}), "context_management.edits.0.keep"),
        (
            json!({"type": "clear_tool_uses_20250919", "trigger": {"type": "days"}}),
            "context_management.edits.0.trigger",
        ),
    ] {
        body["context_management"] = json!({"edits": [edit]});
        let refused = server.post(PATH, body.clone()).await;
        let said = refused.body["error"]["message"].as_str().unwrap();
        assert!(refused.status == 400 && said.starts_with(at), "{said}");
    }
}
