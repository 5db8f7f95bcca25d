//! Upstreams that are asked over OpenAI's Responses: midstream itself, and one whose thoughts come back sealed.

use midstream::config::{UpstreamConfig, UpstreamKind};
use serde_json::{Value, json};

use crate::support::{Server, Setup, behind, text_of};
use crate::upstreams::{plays, weather};

fn over_responses(address: &str, kind: UpstreamKind) -> UpstreamConfig {
    UpstreamConfig { responses: true, ..behind(address, kind) }
}

async fn front_of(address: &str, kind: UpstreamKind) -> Server {
    Server::start_with(Setup { upstream: vec![over_responses(address, kind)], ..Setup::default() }).await
}

#[tokio::test]
async fn over_responses_it_thinks_calls_and_goes_on_behind_results() {
    let behind = Server::start().await;
    let front = front_of(&behind.address, UpstreamKind::Midstream).await;
    let thought = front.post("/v1/responses", json!({"input": "think", "reasoning": {"effort": "low"}})).await.body;
    let kinds: Vec<_> = thought["output"].as_array().unwrap().iter().map(|item| item["type"].clone()).collect();
    assert_eq!(kinds, ["reasoning", "message"], "{thought}");
    assert_eq!(thought["output"][1]["content"][0]["text"], "so it is");
    let own = behind.post("/v1/responses", json!({"input": "think"})).await.body;
    assert_eq!(thought["usage"], own["usage"]);

    let tools = json!([{"type": "function", "name": "weather", "parameters": weather()}]);
    let body = json!({"input": "weather", "tools": tools, "stream": true});
    let events = front.post_stream("/v1/responses", body).await.rest_json().await;
    let last = &events.last().unwrap()["response"];
    assert_eq!((&last["status"], text_of(&events).as_str()), (&json!("completed"), "Let me see. "));
    let call = &last["output"][1];
    assert_eq!((&call["type"], &call["status"]), (&json!("function_call"), &json!("completed")), "{last}");
    assert_eq!(call["arguments"].as_str().unwrap().parse::<Value>().unwrap(), json!({"city": "Oslo"}));
    let result = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}]);
    let body = json!({"input": result, "previous_response_id": last["id"], "tools": tools});
    let answer = front.post("/v1/responses", body).await.body;
    assert_eq!(answer["output"][0]["content"][0]["text"], "Take an umbrella.", "{answer}");

    let chat = json!({"model": "scripted", "messages": [{"role": "user", "content": "long"}]});
    let answer = front.post("/v1/chat/completions", chat).await.body;
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
    let failed = front.post("/v1/responses", json!({"input": "broken"})).await;
    failed.assert_error(500, "engine_failed");
}

/// A whole response with these items.
fn response(output: &Value) -> Value {
    let usage = json!({"input_tokens": 9, "output_tokens": 4});
    json!({"object": "response", "status": "completed", "error": null, "output": output, "usage": usage})
}

/// A front whose upstream plays a sealed thought with a call, and then a text; gives what the upstream is asked last.
async fn replays_thoughts(turns: impl AsyncFn(&Server)) -> Value {
    let summary = json!([{"type": "summary_text", "text": "hm"}]);
    let thought = json!({"type": "reasoning", "id": "rs_1", "encrypted_content": "c2VhbGVk", "summary": summary});
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather",
        "arguments": "{\"city\":\"Oslo\"}", "status": "completed"});
    let text = json!({"type": "message", "content": [{"type": "output_text", "text": "Rain."}]});
    let (address, playing) = plays(vec![response(&json!([thought, call])), response(&json!([text]))]).await;
    let front = front_of(&address, UpstreamKind::Openai).await;
    turns(&front).await;
    playing.await.unwrap().pop().unwrap()
}

#[tokio::test]
async fn what_a_provider_sealed_goes_back_to_it_from_the_journal_and_from_the_client() {
    // The id of a call is the provider's own where the journal has it, else ours.
    let goes_back = |asked: &Value, is_own: fn(&str) -> bool| {
        let call_id = asked["input"][2]["call_id"].as_str().unwrap();
        assert!(is_own(call_id), "{asked}");
        let summary = json!([{"type": "summary_text", "text": "hm"}]);
        let expected = json!([
            {"type": "reasoning", "encrypted_content": "c2VhbGVk", "summary": summary},
            {"type": "function_call", "call_id": call_id, "name": "weather", "arguments": "{\"city\":\"Oslo\"}"},
            {"type": "function_call_output", "call_id": call_id, "output": "rain"},
        ]);
        assert_eq!(asked["input"].as_array().unwrap()[1..], expected.as_array().unwrap()[..], "{asked}");
        assert_eq!((&asked["store"], &asked["reasoning"]["effort"]), (&json!(false), &json!("high")));
    };
    let tools = json!([{"type": "function", "name": "weather", "parameters": weather()}]);
    let result = |call: &Value| json!({"type": "function_call_output", "call_id": call["call_id"], "output": "rain"});
    let ask = |more: Value| {
        let mut body = json!({"tools": tools, "reasoning": {"effort": "high"}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let stored = async |front: &Server| {
        let answer = front.post("/v1/responses", ask(json!({"input": "weather"}))).await.body;
        let next = json!({"input": [result(&answer["output"][1])], "previous_response_id": answer["id"]});
        let answer = front.post("/v1/responses", ask(next)).await.body;
        assert_eq!(answer["output"][0]["content"][0]["text"], "Rain.", "{answer}");
    };
    goes_back(&replays_thoughts(stored).await, |id| id == "call_1");
    let brought = async |front: &Server| {
        let question = json!({"role": "user", "content": "weather"});
        let kept = json!({"store": false, "include": ["reasoning.encrypted_content"], "input": [question]});
        let answer = front.post("/v1/responses", ask(kept)).await.body;
        let (thought, call) = (&answer["output"][0], &answer["output"][1]);
        assert!(
            thought["encrypted_content"].as_str().is_some_and(|it| it != "c2VhbGVk"),
            "it is sealed here: {answer}"
        );
        let input = json!([question, thought, call, result(call)]);
        let answer = front.post("/v1/responses", ask(json!({"store": false, "input": input}))).await.body;
        assert_eq!(answer["output"][0]["content"][0]["text"], "Rain.", "{answer}");
    };
    goes_back(&replays_thoughts(brought).await, |id| id.starts_with("call") && id != "call_1");
}
