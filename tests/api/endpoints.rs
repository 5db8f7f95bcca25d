//! The routes beside a response: its input, the tokens of a prompt; and what a request has sealed or only prefilled.

use serde_json::{Value, json};

use crate::support::{Server, Setup};

#[tokio::test]
async fn the_input_of_a_response_is_listed_page_by_page() {
    let server = Server::start().await;
    let input: Vec<Value> = (0..5).map(|number| json!({"role": "user", "content": number.to_string()})).collect();
    let id = server.post("/v1/responses", json!({"input": input})).await.id();
    let page = async |query: &str| server.get(&format!("/v1/responses/{id}/input_items?{query}")).await.body;
    let texts = |page: &Value| -> Vec<String> {
        let items = page["data"].as_array().unwrap().iter();
        items.map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts(&page("").await), ["4", "3", "2", "1", "0"]);
    let first = page("order=asc&limit=2").await;
    assert_eq!((texts(&first), &first["has_more"]), (vec!["0".to_owned(), "1".to_owned()], &json!(true)));
    let next = page(&format!("order=asc&limit=5&after={}", first["last_id"].as_str().unwrap())).await;
    assert_eq!(
        (texts(&next), &next["has_more"]),
        (vec!["2".to_owned(), "3".to_owned(), "4".to_owned()], &json!(false))
    );
    server.get(&format!("/v1/responses/{id}/input_items?limit=0")).await.assert_error(400, "invalid_input");
    server.get("/v1/responses/resp_none/input_items").await.assert_error(404, "response_not_found");
}

#[tokio::test]
async fn the_tokens_of_an_input_are_counted_as_its_response_counts_them() {
    let server = Server::start().await;
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let first = json!({"input": "hi", "instructions": "Be brief.", "tools": tools});
    let counted = server.post("/v1/responses/input_tokens", first.clone()).await.body;
    let answer = server.post("/v1/responses", first).await;
    assert_eq!(counted["object"], "response.input_tokens");
    assert_eq!(counted["input_tokens"], answer.body["usage"]["input_tokens"]);
    let again = server.post("/v1/responses", json!({"input": "hi", "previous_response_id": answer.id()})).await;
    for behind in [answer.id(), again.id()] {
        let next = json!({"input": "and then?", "previous_response_id": behind});
        let counted = server.post("/v1/responses/input_tokens", next.clone()).await.body;
        let usage = &server.post("/v1/responses", next).await.body["usage"];
        assert_eq!(counted["input_tokens"], usage["input_tokens"]);
    }
    let conversation = server.conversation().await;
    let next = json!({"input": "hi", "conversation": conversation});
    let counted = server.post("/v1/responses/input_tokens", next.clone()).await.body;
    assert_eq!(counted["input_tokens"], server.post("/v1/responses", next).await.body["usage"]["input_tokens"]);
    server.post("/v1/responses/input_tokens", json!({})).await.assert_error(400, "invalid_input");
    let unknown = json!({"input": "a", "previous_response_id": "resp_1"});
    server.post("/v1/responses/input_tokens", unknown).await.assert_error(400, "previous_response_not_found");
}

#[tokio::test]
async fn sealed_reasoning_gives_a_stateless_client_its_reasoning_back() {
    let server = Server::start().await;
    let asked = json!({"input": "think", "store": false, "include": ["reasoning.encrypted_content"], "stream": true});
    let events = server.post_stream("/v1/responses", asked).await.rest_json().await;
    let last = &events.last().unwrap()["response"]["output"];
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!(done["item"], last[0], "the stream and the object show the same");
    let added = events.iter().find(|event| event["type"] == "response.output_item.added").unwrap();
    assert_eq!(added["item"]["encrypted_content"], Value::Null);
    let mut reasoning = last[0].clone();
    assert!(reasoning["encrypted_content"].is_string(), "{reasoning}");
    reasoning["content"] = Value::Null;
    let input = json!([{"role": "user", "content": "think"}, reasoning, last[1], {"role": "user", "content": "hi"}]);
    let answer = server.post("/v1/responses", json!({"input": input})).await;
    let items = server.get(&format!("/v1/responses/{}/input_items?order=asc", answer.id())).await.body;
    assert_eq!(items["data"][1]["content"], json!([{"type": "reasoning_text", "text": "hm, well"}]));
    let plain = server.post("/v1/responses", json!({"input": "think"})).await.body;
    assert_eq!(plain["output"][0]["encrypted_content"], Value::Null, "who does not ask gets none");
}

#[tokio::test]
async fn a_request_without_an_answer_is_done_once_its_prompt_is_computed_and_can_be_continued() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    for input in [json!([{"role": "developer", "content": "Be brief."}]), json!([])] {
        let create = json!({"type": "response.create", "generate": false, "store": false, "input": input});
        socket.send(create).await;
        let frames = socket.until(|frame| frame["type"] == "response.completed").await;
        let last = frames.last().unwrap();
        assert_eq!((&last["type"], &last["response"]["output"]), (&json!("response.completed"), &json!([])));
        assert_eq!(last["response"]["usage"]["output_tokens"], 0);
        let id = last["response"]["id"].clone();
        let next = json!({"type": "response.create", "store": false, "previous_response_id": id, "input": "hi"});
        socket.send(next).await;
        let frames = socket.until(|frame| frame["type"] == "response.completed").await;
        assert_eq!(frames.last().unwrap()["response"]["output"][0]["content"][0]["text"], "Hello, world");
    }
    let stored = server.post("/v1/responses", json!({"generate": false, "input": "hi"})).await;
    assert_eq!((stored.status, &stored.body["status"]), (200, &json!("completed")));
    let answer = server.post("/v1/responses", json!({"previous_response_id": stored.id(), "input": "rain"})).await;
    assert_eq!(answer.body["output"][0]["content"][0]["text"], "Take an umbrella.");
}

#[tokio::test]
async fn a_transcript_is_made_short_and_its_summary_stands_for_it() {
    let server = Server::start().await;
    let said = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "rain"},
        {"role": "assistant", "content": "Take an umbrella."},
    ]);
    let compacted = server.post("/v1/responses/compact", json!({"input": said})).await.body;
    assert_eq!(compacted["object"], "response.compaction", "{compacted}");
    let output = compacted["output"].as_array().unwrap();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "message", "compaction"]);
    assert_eq!((&output[0]["role"], &output[1]["role"]), (&json!("developer"), &json!("user")));
    assert!(compacted["usage"]["input_tokens"].as_u64() > Some(0));
    let mut input = output.clone();
    input.push(json!({"role": "user", "content": "and then?"}));
    let rendered = server.post("/v1/chat/render", json!({"input": input})).await.body;
    assert!(rendered["prompt"].as_str().unwrap().contains("Hello, world"), "the summary: {rendered}");
    let answer = server.post("/v1/responses", json!({"input": input})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let foreign = json!([{"type": "compaction", "encrypted_content": "of another server"}]);
    let refused = server.post("/v1/responses", json!({"input": foreign})).await;
    assert_eq!(refused.assert_error(400, "invalid_input")["param"], "input[0].encrypted_content");
}

#[tokio::test]
async fn what_a_stored_response_ends_is_made_short_as_well() {
    let server = Server::start().await;
    let first = server.post("/v1/responses", json!({"input": "rain"})).await.id();
    let second = server.post("/v1/responses", json!({"input": "hi", "previous_response_id": first})).await.id();
    for (previous, more, users) in [(&second, None, 2), (&first, None, 1), (&first, Some("so?"), 2)] {
        let body = json!({"previous_response_id": previous, "input": more});
        let compacted = server.post("/v1/responses/compact", body).await.body;
        let output = compacted["output"].as_array().unwrap_or_else(|| panic!("{compacted}"));
        let roles: Vec<_> = output.iter().filter(|item| item["type"] == "message").map(|item| &item["role"]).collect();
        assert_eq!(roles, vec!["user"; users], "{compacted}");
        assert_eq!((output.len(), &output[users]["type"]), (users + 1, &json!("compaction")));
        let answer = server.post("/v1/responses", json!({"input": output})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    assert_eq!(server.get(&format!("/v1/responses/{second}")).await.status, 200, "what was stored stays");
}

#[tokio::test]
async fn a_trigger_at_the_end_of_the_input_makes_the_answer_one_sealed_summary() {
    let server = Server::start().await;
    let input = json!([{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}]);
    let body = json!({"input": input, "stream": true, "store": false});
    let events = server.post_stream("/v1/responses", body).await.rest_json().await;
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>(), "no gap where nothing is shown");
    let done: Vec<&Value> = events.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0]["item"]["type"], "compaction");
    assert!(done[0]["item"]["encrypted_content"].as_str().is_some_and(|sealed| !sealed.is_empty()));
    assert!(events.iter().all(|event| !event.to_string().contains("Hello")), "nobody else reads it");
}

#[tokio::test]
async fn what_is_no_whole_summary_is_an_error_and_never_given_for_the_transcript() {
    let script = json!([
        {"deltas": ["So", " far", " so", " good"]},
    ]);
    let server = Server::start_with(Setup { script: Some(script), ..Setup::default() }).await;
    let cut = server.post("/v1/responses/compact", json!({"input": "a", "max_output_tokens": 1})).await;
    cut.assert_error(409, "response_failed");
    let refused = server.post("/v1/responses/compact", json!({"input": "a", "generate": false})).await;
    assert_eq!(refused.assert_error(400, "invalid_input")["param"], "generate");
    assert_eq!(server.post("/v1/responses/compact", json!({"input": "a"})).await.status, 200);
    let asked = json!([{"role": "user", "content": "a"}, {"type": "compaction_trigger"}]);
    let cut = server.post("/v1/responses", json!({"input": asked, "max_output_tokens": 1})).await.body;
    for (path, field, list) in [
        ("/v1/responses", "input", json!([{"type": "compaction_trigger"}, {"role": "user", "content": "a"}])),
        ("/v1/conversations", "items", json!([{"type": "compaction_trigger"}])),
    ] {
        let mut body = json!({});
        body[field] = list;
        let refused = server.post(path, body).await;
        assert_eq!(refused.assert_error(400, "invalid_input")["param"], format!("{field}[0].type"));
    }
    let part = &cut["output"][0];
    assert_eq!((&part["type"], &part["encrypted_content"]), (&json!("compaction"), &json!("")), "{cut}");
}
