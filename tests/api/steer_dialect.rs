//! OpenAI's `response.steer` and Codex's `response.interrupt`, on the conversation's socket beside its own frames.

use serde_json::{Value, json};

use crate::support::{Server, Socket, text_of};

/// A socket whose response has begun to say something, and the response's id.
async fn running(server: &Server, input: &str, sign: &str) -> (Socket, String, String) {
    let conversation = server.conversation().await;
    let mut socket = server.socket(&conversation).await;
    let tools = json!([{"type": "function", "name": "weather"}]);
    socket.send(json!({"type": "response.create", "input": input, "tools": tools})).await;
    let event = socket.until_type(sign).await;
    let id = event["response_id"].as_str().unwrap().to_owned();
    (socket, conversation, id)
}

fn steer(previous: &str, input: impl Into<Value>) -> Value {
    json!({"type": "response.steer", "previous_response_id": previous, "input": input.into()})
}

fn types(frames: &[Value]) -> Vec<&str> {
    frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect()
}

#[track_caller]
fn place(frames: &[Value], kind: &str) -> usize {
    let place = frames.iter().position(|frame| frame["type"] == kind);
    place.unwrap_or_else(|| panic!("no {kind} in {:?}", types(frames)))
}

async fn input_texts(server: &Server, conversation: &str) -> Vec<String> {
    let items = server.get(&format!("/v1/conversations/{conversation}/items?order=asc&limit=100")).await.body;
    let items = items["data"].as_array().unwrap().iter();
    let said = items.filter(|item| item["role"] == "user" || item["type"] == "function_call_output");
    said.map(|item| item["content"][0]["text"].as_str().or(item["output"].as_str()).unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_steer_waits_for_the_open_item_and_its_successor_answers_it() {
    let server = Server::start().await;
    let (mut socket, _, id) = running(&server, "ponder", "response.reasoning_text.delta").await;
    let mut first = steer(&id, "In French");
    first["event_id"] = "e1".into();
    socket.send(first).await;
    let mut frames = socket.until(|frame| frame["type"] == "response.completed").await;
    let accepted = &frames[place(&frames, "response.steer.accepted")];
    assert_eq!((&accepted["event_id"], &accepted["steer"]["previous_response_id"]), (&json!("e1"), &json!(id)));
    assert!(accepted["sequence_number"].is_u64() && accepted.get("seq").is_none(), "{accepted}");
    let steer_id = accepted["steer"]["id"].as_str().unwrap().to_owned();
    assert_eq!(frames[place(&frames, "intervention.accepted")]["intervention_id"], steer_id.as_str());
    let old = &frames[place(&frames, "response.incomplete")]["response"];
    assert_eq!((&old["id"], &old["incomplete_details"]["reason"]), (&json!(id), &json!("steered")));
    assert_eq!((&old["output"][0]["type"], &old["output"][0]["status"]), (&json!("reasoning"), &json!("completed")));
    let created = place(&frames, "response.created");
    assert!(place(&frames, "response.incomplete") < created);
    assert_eq!(frames[created]["response"]["previous_response_id"], json!(id));
    let successor = frames[created]["response"]["id"].clone();
    assert_eq!(frames.pop().unwrap()["response"]["id"], successor);
    assert_eq!(text_of(&frames), "Bonjour");
    let decided = server.get(&format!("/v1/interventions/{steer_id}")).await.body;
    assert_eq!((&decided["status"], &decided["successor_id"]), (&json!("committed"), &successor));
}

#[tokio::test]
async fn steers_of_one_response_join_in_the_order_of_their_submission() {
    let server = Server::start().await;
    let (mut socket, conversation, id) = running(&server, "slow", "response.output_text.delta").await;
    socket.send(steer(&id, "first")).await;
    let parts = json!([{"type": "input_text", "text": "second, "}, {"type": "input_text", "text": "in French"}]);
    socket.send(steer(&id, json!([{"type": "message", "role": "user", "content": parts}]))).await;
    let old = socket.until_type("response.completed").await;
    assert_eq!((&old["response"]["id"], &old["response"]["status"]), (&json!(id), &json!("completed")));
    let frames = socket.until(|frame| frame["type"] == "response.completed").await;
    assert_eq!(text_of(&frames), "Bonjour");
    assert_eq!(input_texts(&server, &conversation).await, ["slow", "first", "second, in French"]);
}

#[tokio::test]
async fn a_steer_that_needs_results_says_which_and_joins_the_next_explicit_create() {
    let server = Server::start().await;
    let (mut socket, conversation, id) = running(&server, "typhoon", "response.function_call_arguments.delta").await;
    socket.send(steer(&id, "and rain")).await;
    let frames = socket.until(|frame| frame["type"] == "response.steer.pending").await;
    let pending = frames.last().unwrap();
    let ended = frames.iter().position(|frame| {
        matches!(frame["type"].as_str(), Some("response.completed" | "response.incomplete"))
            && frame["response_id"] == id
    });
    assert!(ended.is_some(), "it is told before its response has ended: {:?}", types(&frames));
    assert_eq!(pending["reason"], "waiting_for_required_input");
    let call_id = pending["required_input"][0]["call_id"].clone();
    let required = json!([{"type": "function_call_output", "call_id": call_id, "name": "weather"}]);
    assert_eq!(pending["required_input"], required);
    let accepted = &frames[place(&frames, "response.steer.accepted")];
    assert_eq!(pending["steer"], accepted["steer"]);
    let found = format!("/v1/interventions/{}", pending["steer"]["id"].as_str().unwrap());
    assert_eq!(server.get(&found).await.body["status"], "pending");

    let result = json!({"type": "function_call_output", "call_id": call_id, "output": "storm"});
    let mine = json!({"role": "user", "content": "In French"});
    socket
        .send(json!({
            "type": "response.create", "previous_response_id": id, "input": [result, mine],
            "metadata": {"mine": "yes"}, "max_output_tokens": 99,
        }))
        .await;
    let created = socket.until_type("response.created").await;
    assert_eq!(created["response"]["metadata"], json!({"mine": "yes"}));
    assert_eq!((&created["response"]["max_output_tokens"], &created["response"]["tools"]), (&json!(99), &json!([])));
    socket.until_type("response.completed").await;
    assert_eq!(input_texts(&server, &conversation).await, ["typhoon", "storm", "and rain", "In French"]);
    let decided = server.get(&found).await.body;
    assert_eq!((&decided["status"], &decided["successor_id"]), (&json!("committed"), &created["response"]["id"]));
}

#[tokio::test]
async fn a_steer_of_a_response_that_ended_with_calls_waits_for_their_results_too() {
    let server = Server::start().await;
    let (mut socket, _, id) = running(&server, "weather", "response.completed").await;
    socket.send(steer(&id, "and rain")).await;
    let frames = socket.until(|frame| frame["type"] == "response.steer.pending").await;
    assert!(place(&frames, "response.steer.accepted") < place(&frames, "response.steer.pending"));
}

#[tokio::test]
async fn a_refused_steer_names_openais_code_and_gives_the_input_back_as_it_came() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let done = server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await.id();
    let mut socket = server.socket(&conversation).await;
    let unknown = "resp_00000000000000000000000000000000";
    let said = json!([{"role": "user", "content": "a"}]);
    let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]);
    for (previous, input, code) in [
        (json!(done), said.clone(), "response_already_completed"),
        (json!(unknown), said.clone(), "response_not_found"),
        (json!("resp_1"), said.clone(), "response_not_found"),
        (Value::Null, said.clone(), "invalid_input"),
        (json!(7), said.clone(), "invalid_input"),
        (json!(done), Value::Null, "invalid_input"),
        (json!(done), json!(""), "invalid_input"),
        (json!(done), json!([]), "invalid_input"),
        (json!(done), json!([{"role": "assistant", "content": "a"}]), "invalid_input"),
        (json!(done), json!([{"role": "user"}]), "invalid_input"),
        (json!(done), json!([{"type": "function_call_output", "call_id": "c", "output": "a"}]), "invalid_input"),
        (json!(done), image, "invalid_input"),
    ] {
        let frame =
            json!({"type": "response.steer", "event_id": "k", "previous_response_id": previous, "input": input});
        socket.send(frame).await;
        let failed = socket.next().await;
        assert_eq!((&failed["type"], &failed["event_id"]), (&json!("response.steer.failed"), &json!("k")), "{failed}");
        assert_eq!(failed["steer"], json!({"previous_response_id": previous, "input": input}));
        assert_eq!(
            (&failed["error"]["type"], &failed["error"]["code"]),
            (&json!("invalid_request_error"), &json!(code))
        );
        assert!(failed["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    socket.send(json!({"type": "response.create", "input": "endless"})).await;
    socket.until_type("response.output_text.delta").await;
    socket.send(steer(&done, said)).await;
    assert_eq!(socket.until_type("response.steer.failed").await["error"]["code"], "response_not_active");
}

#[tokio::test]
async fn too_many_steers_are_refused_and_a_cancel_gives_all_inputs_back_before_the_end() {
    let server = Server::start().await;
    let (mut socket, _, id) = running(&server, "endless", "response.output_text.delta").await;
    for number in 0..17 {
        socket.send(steer(&id, format!("steer {number}"))).await;
    }
    let refused = socket.until_type("response.steer.failed").await;
    assert_eq!(refused["error"]["code"], "too_many_pending_steers");
    assert_eq!(refused["steer"], json!({"previous_response_id": id, "input": "steer 16"}));
    socket.send(json!({"type": "response.cancel", "response_id": id})).await;
    let frames = socket.until(|frame| frame["type"] == "response.incomplete").await;
    let failed: Vec<_> = frames.iter().filter(|frame| frame["type"] == "response.steer.failed").collect();
    let inputs: Vec<_> = failed.iter().map(|frame| frame["steer"]["input"].as_str().unwrap().to_owned()).collect();
    assert_eq!(inputs, (0..16).map(|number| format!("steer {number}")).collect::<Vec<_>>());
    for frame in failed {
        assert_eq!(frame["error"]["code"], "successor_creation_failed");
        let found = server.get(&format!("/v1/interventions/{}", frame["steer"]["id"].as_str().unwrap())).await.body;
        assert_eq!((&found["status"], &found["error"]["code"]), (&json!("failed"), &json!("response_cancelled")));
    }
}

#[tokio::test]
async fn a_steer_that_another_client_replaces_or_takes_back_is_given_back() {
    let server = Server::start().await;
    let (mut socket, _, id) = running(&server, "endless", "response.output_text.delta").await;
    socket.send(steer(&id, "first")).await;
    socket.until_type("response.steer.accepted").await;
    let path = format!("/v1/responses/{id}/interventions");
    server.post_keyed(&path, "k", json!({"input": "other", "when": "item", "on_multiple": "replace"})).await;
    assert_eq!(socket.until_type("response.steer.failed").await["steer"]["input"], "first");
    socket.send(steer(&id, "second")).await;
    let accepted = socket.until_type("response.steer.accepted").await;
    server.delete(&format!("/v1/interventions/{}", accepted["steer"]["id"].as_str().unwrap())).await;
    assert_eq!(socket.until_type("response.steer.failed").await["steer"]["input"], "second");
}

#[tokio::test]
async fn only_the_socket_that_steered_hears_of_it_in_the_dialect() {
    let server = Server::start().await;
    let (mut mine, conversation, id) = running(&server, "slow", "response.output_text.delta").await;
    let mut other = server.socket(&conversation).await;
    other.send(json!({"type": "conversation.subscribe"})).await;
    other.until_type("response.output_text.delta").await;
    mine.send(steer(&id, "In French")).await;
    let ended = |frame: &Value| frame["type"] == "response.completed" && frame["response"]["id"] != id.as_str();
    let (mine, other) = (mine.until(ended).await, other.until(ended).await);
    assert!(types(&mine).contains(&"response.steer.accepted"));
    assert!(types(&mine).contains(&"intervention.committed"));
    assert!(types(&other).contains(&"intervention.accepted"));
    assert!(!types(&other).iter().any(|kind| kind.starts_with("response.steer")), "{:?}", types(&other));
}

#[tokio::test]
async fn a_steer_outlives_its_socket_and_its_id_tells_what_became_of_it() {
    let server = Server::start().await;
    let (mut socket, conversation, id) = running(&server, "slow", "response.output_text.delta").await;
    socket.send(steer(&id, "In French")).await;
    let steer_id = socket.until_type("response.steer.accepted").await["steer"]["id"].as_str().unwrap().to_owned();
    drop(socket);
    let mut again = server.socket(&conversation).await;
    again.send(json!({"type": "conversation.subscribe", "types": ["intervention.committed"]})).await;
    let committed = again.until_type("intervention.committed").await;
    let found = server.get(&format!("/v1/interventions/{steer_id}")).await.body;
    assert_eq!((&found["status"], &found["successor_id"]), (&json!("committed"), &committed["successor_id"]));
}

#[tokio::test]
async fn a_socket_without_a_subscription_gets_the_answers_and_a_repeated_steer_is_one_steer() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let conversation = server.get(&format!("/v1/responses/{id}")).await.body["conversation"]["id"].clone();
    let mut socket = server.socket(conversation.as_str().unwrap()).await;
    let mut frame = steer(&id, "In French");
    frame["event_id"] = "e1".into();
    socket.send(frame.clone()).await;
    let first = socket.next().await;
    assert_eq!((&first["type"], &first["event_id"]), (&json!("response.steer.accepted"), &json!("e1")));
    socket.send(frame).await;
    let again = socket.next().await;
    assert_eq!((&again["steer"], &again["replayed"]), (&first["steer"], &json!(true)));
    let interrupt = json!({"type": "response.interrupt", "response_id": id, "mode": "discard_partial_items"});
    socket.send(interrupt.clone()).await;
    let accepted = socket.next().await;
    assert_eq!((&accepted["type"], &accepted["response_id"]), (&json!("response.interrupt.accepted"), &json!(id)));
    socket.send(interrupt).await;
    let failed = socket.next().await;
    assert_eq!((&failed["type"], &failed["response_id"]), (&json!("response.interrupt.failed"), &json!(id)));
    assert_eq!(failed["error"]["code"], "response_already_completed");
}

#[tokio::test]
async fn an_interrupt_keeps_finished_items_and_the_client_goes_on_itself() {
    let server = Server::start().await;
    let (mut socket, conversation, id) = running(&server, "muse", "response.output_text.delta").await;
    socket.send(steer(&id, "never mind")).await;
    socket.until_type("response.steer.accepted").await;
    socket.send(json!({"type": "response.interrupt", "response_id": id, "mode": "discard_partial_items"})).await;
    let frames = socket.until(|frame| frame["type"] == "response.incomplete").await;
    let accepted = place(&frames, "response.interrupt.accepted");
    let partial = place(&frames, "response.output_item.interrupted");
    assert!(accepted < partial, "{:?}", types(&frames));
    assert!(frames[accepted]["sequence_number"].is_u64());
    assert_eq!((&frames[partial]["response_id"], &frames[partial]["output_index"]), (&json!(id), &json!(1)));
    let failed = &frames[place(&frames, "response.steer.failed")];
    assert_eq!(failed["steer"]["input"], "never mind");
    let old = &frames.last().unwrap()["response"];
    assert_eq!(old["incomplete_details"]["reason"], "interrupted");
    assert_eq!(old["output"].as_array().unwrap().len(), 1, "{old}");
    assert_eq!((&old["output"][0]["type"], &old["output"][0]["status"]), (&json!("reasoning"), &json!("completed")));
    assert!(old["usage"]["output_tokens"].is_u64());

    socket.send(json!({"type": "response.create", "previous_response_id": id, "input": "In French"})).await;
    let created = socket.until_type("response.created").await;
    assert_eq!(created["response"]["previous_response_id"], json!(id));
    socket.until_type("response.completed").await;
    assert_eq!(input_texts(&server, &conversation).await, ["muse", "In French"]);
}

#[tokio::test]
async fn an_interrupt_of_what_is_not_there_fails_and_changes_nothing() {
    let server = Server::start().await;
    let (mut socket, _, id) = running(&server, "slow", "response.output_text.delta").await;
    let unknown = "resp_00000000000000000000000000000000";
    for (response_id, mode, code) in [
        (json!(id), Value::Null, "invalid_input"),
        (json!(id), json!("keep_partial_items"), "invalid_input"),
        (Value::Null, json!("discard_partial_items"), "invalid_input"),
        (json!(unknown), json!("discard_partial_items"), "response_not_found"),
    ] {
        let frame = json!({"type": "response.interrupt", "response_id": response_id, "mode": mode});
        socket.send(frame).await;
        let failed = socket.until_type("response.interrupt.failed").await;
        assert_eq!((&failed["response_id"], &failed["error"]["code"]), (&response_id, &json!(code)));
    }
    assert_eq!(socket.until_type("response.completed").await["response"]["id"], json!(id));
}

#[tokio::test]
async fn a_steer_that_says_nothing_fails_with_invalid_input() {
    let server = Server::start().await;
    let (mut socket, _, id) = running(&server, "slow", "response.output_text.delta").await;
    let parts = json!([{"type": "input_text", "text": " "}]);
    for input in [json!(" "), json!([{"role": "user", "content": ""}]), json!([{"role": "user", "content": parts}])] {
        socket.send(json!({"type": "response.steer", "previous_response_id": id, "input": input})).await;
        let failed = socket.until_type("response.steer.failed").await;
        assert_eq!((&failed["error"]["code"], &failed["steer"]["input"]), (&json!("invalid_input"), &input));
    }
}

#[tokio::test]
async fn two_interrupts_at_once_are_both_answered() {
    let server = Server::start().await;
    let (mut socket, _, id) = running(&server, "muse", "response.output_text.delta").await;
    let frame = |event_id: &str| {
        let mode = "discard_partial_items";
        json!({"type": "response.interrupt", "response_id": id, "mode": mode, "event_id": event_id})
    };
    socket.send(frame("e1")).await;
    socket.send(frame("e2")).await;
    let mut answered = Vec::new();
    while answered.len() < 2 {
        let answer = socket.until(|frame| frame["type"].as_str().unwrap().starts_with("response.interrupt.")).await;
        answered.push(answer.last().unwrap()["event_id"].as_str().unwrap().to_owned());
    }
    answered.sort();
    assert_eq!(answered, ["e1", "e2"]);
}
