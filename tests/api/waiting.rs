//! Instructions and turns that wait, over HTTP and on the socket: what becomes of them is always told.

use serde_json::{Value, json};

use crate::support::{Server, text_of};

fn path(id: &str) -> String {
    format!("/v1/responses/{id}/interventions")
}

async fn found(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/interventions/{id}")).await.body
}

#[tokio::test]
async fn an_instruction_for_later_is_the_next_turn_and_its_receipt_stays_the_same() {
    let server = Server::start().await;
    let id = server.running("slow").await;
    let body = json!({"input": "In French", "when": "after"});
    let receipt = server.post_keyed(&path(&id), "k", body.clone()).await;
    assert_eq!((receipt.status, &receipt.body["status"]), (202, &json!("accepted")), "{}", receipt.body);
    assert_eq!(receipt.body["outcome"], Value::Null);
    server.get_stream(&format!("/v1/responses/{id}?stream=true")).await.rest_json().await;
    let decided = found(&server, &receipt.id()).await;
    assert_eq!((&decided["status"], &decided["outcome"]), (&json!("committed"), &json!("committed")));
    let successor = decided["successor_id"].as_str().unwrap();
    let events = server.get_stream(&format!("/v1/responses/{successor}?stream=true")).await.rest_json().await;
    assert_eq!(text_of(&events), "Bonjour");
    let again = server.post_keyed(&path(&id), "k", body).await;
    assert_eq!((&again.body, again.header("idempotent-replayed")), (&receipt.body, Some("true")));
}

#[tokio::test]
async fn a_late_instruction_can_become_the_next_turn() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let id = server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await.id();
    let receipt = server.post_keyed(&path(&id), "k", json!({"input": "In French", "on_late": "enqueue"})).await;
    assert_eq!((receipt.status, &receipt.body["outcome"]), (202, &json!("enqueued")), "{}", receipt.body);
    let successor = receipt.body["successor_id"].as_str().unwrap();
    let events = server.get_stream(&format!("/v1/responses/{successor}?stream=true")).await.rest_json().await;
    assert_eq!(text_of(&events), "Bonjour");
}

#[tokio::test]
async fn an_instruction_that_awaits_results_is_pending_until_they_are_there() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let tools = json!([{"type": "function", "name": "weather"}]);
    let body = json!({"input": "weather", "conversation": conversation, "tools": tools});
    let response = server.post("/v1/responses", body).await;
    let call = response.body["output"][1]["call_id"].clone();
    let body = json!({"input": "and rain", "tools": "await"});
    let receipt = server.post_keyed(&path(&response.id()), "k", body.clone()).await;
    assert_eq!((&receipt.body["status"], &receipt.body["outcome"]), (&json!("pending"), &Value::Null));
    let result = json!({"call_id": call, "output": "storm"});
    let done = server.post(&format!("/v1/conversations/{conversation}/tool_results"), result).await;
    let decided = found(&server, &receipt.id()).await;
    assert_eq!((&decided["status"], &decided["successor_id"]), (&json!("committed"), &done.body["successor_id"]));
    let again = server.post_keyed(&path(&response.id()), "k", body).await;
    assert_eq!(again.body, receipt.body);
}

#[tokio::test]
async fn an_undecided_instruction_is_taken_back_over_http_and_on_the_socket() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let first = server.post_keyed(&path(&id), "k1", json!({"input": "a", "when": "after"})).await.id();
    let second = server.post_keyed(&path(&id), "k2", json!({"input": "b", "when": "after"})).await.id();
    let at = format!("/v1/interventions/{first}");
    let gone = server.delete(&at).await;
    assert_eq!((gone.status, &gone.body["status"]), (200, &json!("withdrawn")));
    server.delete(&at).await.assert_error(409, "intervention_decided");
    let conversation = server.get(&format!("/v1/responses/{id}")).await.body["conversation"]["id"].clone();
    let mut socket = server.socket(conversation.as_str().unwrap()).await;
    socket.send(json!({"type": "intervention.withdraw", "event_id": "e", "intervention_id": second})).await;
    assert_eq!(socket.answer_to("e").await["intervention"]["status"], "withdrawn");
    server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
}

#[tokio::test]
async fn a_cancel_tells_what_became_of_the_instructions_that_waited() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let receipt = server.post_keyed(&path(&id), "k", json!({"input": "later", "when": "after"})).await;
    server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
    let decided = found(&server, &receipt.id()).await;
    assert_eq!((&decided["status"], &decided["error"]["code"]), (&json!("failed"), &json!("response_cancelled")));
    assert_eq!(decided["input"][0]["content"][0]["text"], "later");
}

#[tokio::test]
async fn a_cascading_cancel_waits_for_the_successor_to_be_gone() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let steered = server.post_keyed(&path(&id), "k", json!({"input": "endless again"})).await;
    let successor = steered.body["successor_id"].as_str().unwrap().to_owned();
    let done = server.post(&format!("/v1/responses/{id}/cancel"), json!({"cascade": true})).await;
    assert_eq!((done.status, &done.body["cancel"]["outcome"]), (200, &json!("too_late")));
    assert_eq!(done.body["cancel"]["cascaded_id"], json!(successor));
    assert_eq!(server.get(&format!("/v1/responses/{successor}")).await.body["status"], "cancelled");
}

#[tokio::test]
async fn a_busy_conversation_takes_a_turn_behind_the_one_that_runs_or_in_its_place() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let fixed = json!({"conversation": conversation, "background": true});
    let create = |input: &str, if_busy: &str| {
        let mut body = fixed.clone();
        (body["input"], body["if_busy"]) = (input.into(), if_busy.into());
        body
    };
    let first = server.post("/v1/responses", create("slow", "fail")).await.id();
    server.post("/v1/responses", create("hi", "fail")).await.assert_error(409, "conversation_busy");
    let queued = server.post("/v1/responses", create("rain", "enqueue")).await;
    assert_eq!((queued.status, &queued.body["status"]), (200, &json!("queued")), "{}", queued.body);
    let events = server.get_stream(&format!("/v1/responses/{}?stream=true", queued.id())).await.rest_json().await;
    assert_eq!(text_of(&events), "Take an umbrella.");
    assert_eq!(server.get(&format!("/v1/responses/{first}")).await.body["status"], "completed");

    let running = server.post("/v1/responses", create("endless", "fail")).await.id();
    let instead = server.post("/v1/responses", create("In French", "steer")).await.id();
    let events = server.get_stream(&format!("/v1/responses/{instead}?stream=true")).await.rest_json().await;
    assert_eq!(text_of(&events), "Bonjour");
    let old = server.get(&format!("/v1/responses/{running}")).await.body;
    assert_eq!((&old["incomplete_details"]["reason"], &old["successor_id"]), (&json!("steered"), &json!(instead)));
}

#[tokio::test]
async fn a_paused_response_goes_on_for_the_next_reader() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let events = format!("/v1/conversations/{conversation}/events");
    let body = json!({"input": "endless", "conversation": conversation, "stream": true,
        "on_disconnect": "pause", "grace_ms": 0});
    let mut stream = server.post_stream("/v1/responses", body).await;
    stream.until("response.output_text.delta").await;
    drop(stream);
    let id = server.paused(&conversation).await;
    // A reader brings it back to life.
    let mut reader = server.get_stream(&events).await;
    reader.until("response.paused").await;
    reader.until("response.resumed").await;
    reader.until("response.output_text.delta").await;
    drop(reader);
    server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
}

#[tokio::test]
async fn an_unread_response_generates_only_as_much_as_it_may() {
    let server = Server::start().await;
    let body = json!({"input": "endless", "background": true, "max_unattended_tokens": 20});
    let id = server.post("/v1/responses", body).await.id();
    let old = server.ended(&id).await;
    assert_eq!(old["incomplete_details"]["reason"], "max_unattended_tokens");
    for (name, value) in [("on_disconnect", json!("explode")), ("grace_ms", json!(-1)), ("durability", json!(3))] {
        let refused = server.post("/v1/responses", json!({"input": "a", name: value})).await;
        assert_eq!(refused.assert_error(400, "invalid_input")["param"], name);
    }
}

#[tokio::test]
async fn a_conversation_whose_tokens_are_spent_says_so_before_and_at_the_end() {
    let server = Server::start().await;
    let opened = server.post("/v1/conversations", json!({"max_conversation_tokens": 50})).await;
    let conversation = opened.body["id"].as_str().unwrap().to_owned();
    let ask = async |more: Value| {
        let mut body = json!({"input": "endless", "conversation": conversation});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/responses", body).await.body
    };
    let why = |response: &Value| response["incomplete_details"]["reason"].as_str().unwrap_or_default().to_owned();
    let first = ask(json!({"max_output_tokens": 20})).await;
    assert_eq!(why(&first), "max_output_tokens");
    let second = ask(json!({})).await;
    assert_eq!((&second["status"], why(&second).as_str()), (&json!("incomplete"), "max_conversation_tokens"));
    assert_eq!(second["usage"]["output_tokens"], 30, "what the first one left");
    // Nothing is left: no token is generated, and OpenAI's stream ends as every other.
    let body = json!({"input": "hi", "conversation": conversation, "stream": true});
    let shown = server.post_stream("/v1/responses", body).await.rest_json().await;
    let [created, ended] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!((&created["type"], &ended["type"]), (&json!("response.created"), &json!("response.incomplete")));
    let third = &ended["response"];
    assert_eq!((why(third).as_str(), &third["output"]), ("max_conversation_tokens", &json!([])));
    // A request may say another bound.
    let fourth = ask(json!({"input": "hi", "max_conversation_tokens": 1000})).await;
    assert_eq!(fourth["status"], "completed");
    let events = format!("/v1/conversations/{conversation}/events?types=conversation.budget_low,response.incomplete");
    let mut told = server.get_stream(&events).await;
    assert_eq!(told.until("response.incomplete").await["response_id"], first["id"]);
    let warning = told.until("conversation.budget_low").await;
    assert_eq!((&warning["max_conversation_tokens"], &warning["response_id"]), (&json!(50), &second["id"]));
    assert!(warning["left_tokens"].as_u64().unwrap() <= 5, "{warning}");
    assert_eq!(told.until("response.incomplete").await["response_id"], second["id"]);
    for wrong in [json!(0), json!(-1), json!("many")] {
        let refused = server.post("/v1/conversations", json!({"max_conversation_tokens": wrong})).await;
        assert_eq!(refused.assert_error(400, "invalid_input")["param"], "max_conversation_tokens");
    }
}

#[tokio::test]
async fn a_model_that_thinks_is_told_to_stop_thinking_while_it_does() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let body = json!({"input": "ponder", "conversation": conversation, "stream": true});
    let mut stream = server.post_stream("/v1/responses", body).await;
    let id = stream.until("response.created").await["response"]["id"].as_str().unwrap().to_owned();
    stream.until("response.reasoning_text.delta").await;
    let receipt = server.post_keyed(&path(&id), "k", json!({"reasoning": {"effort": "none"}})).await;
    assert_eq!((receipt.status, &receipt.body["status"]), (202, &json!("committed")), "{}", receipt.body);
    assert_eq!(receipt.body["successor_id"], json!(id), "the response itself answers it");
    let done = stream.until("response.completed").await["response"].clone();
    let reasoning = done["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(reasoning.starts_with("0?") && !reasoning.contains("1999?"), "{reasoning}");
    assert_eq!(done["output"][1]["type"], "message");
    let late = server.post_keyed(&path(&id), "k2", json!({"reasoning": {"budget_tokens": 5}})).await;
    late.assert_error(409, "response_already_completed");
    for (wrong, param) in [
        (json!({"effort": "much"}), "reasoning.effort"),
        (json!({"budget_tokens": -1}), "reasoning.budget_tokens"),
        (json!({}), "reasoning"),
    ] {
        let refused = server.post_keyed(&path(&id), "k3", json!({"reasoning": wrong})).await;
        assert_eq!(refused.assert_error(400, "invalid_input")["param"], param);
    }
}

#[tokio::test]
async fn a_budget_ends_reasoning_where_the_model_rests_and_not_behind_it() {
    let server = Server::start().await;
    let thinking = json!({"type": "enabled", "budget_tokens": 1024});
    let messages = json!([{"role": "user", "content": "ponder"}]);
    let body = json!({"messages": messages, "max_tokens": 1100, "thinking": thinking});
    let answer = server.post("/v1/messages", body).await.body;
    let thought = answer["content"][0]["thinking"].as_str().unwrap();
    assert!(thought.ends_with('?'), "{thought}");
    // The scripted model's tokens are bytes; it rests after at most six. The tags are not part of the text.
    assert!((1024 - 80..1024).contains(&thought.len()), "{}", thought.len());
}

#[tokio::test]
async fn how_hard_to_think_is_said_in_the_words_that_the_model_takes() {
    let server = Server::start().await;
    let thought = async |word: &str| {
        let body = json!({"input": "ponder", "reasoning": {"effort": word}, "max_output_tokens": 400});
        let response = server.post("/v1/responses", body).await.body;
        response["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap()
    };
    // The words are settings of the model; the closing of the reasoning counts for it.
    let (briefly, none, low) = (thought("briefly").await, thought("none").await, thought("low").await);
    assert!(none < briefly && briefly < 30 && low > 300, "{none} {briefly} {low}");
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "extreme"});
    let (path, responses) = ("/v1/responses", json!({"input": "hi", "reasoning": {"effort": "extreme"}}));
    for (path, body, at) in [("/v1/chat/completions", chat, "reasoning_effort"), (path, responses, "reasoning.effort")]
    {
        let refused = server.post(path, body).await;
        let error = refused.assert_error(400, "invalid_input");
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["param"], at);
        assert!(message.contains("none, minimal, low, medium, high, xhigh, briefly"), "{message}");
    }
    // Summaries alone say nothing of it.
    let silent = json!({"input": "hi", "reasoning": {"effort": null, "summary": "auto"}});
    assert_eq!(server.post("/v1/responses", silent).await.status, 200);
}

#[tokio::test]
async fn a_turn_that_waits_is_nothing_to_continue_from() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let create = |input: &str| {
        json!({"input": input, "conversation": conversation, "background": true,
        "if_busy": "enqueue"})
    };
    let running = server.post("/v1/responses", create("endless")).await.id();
    let waiting = server.post("/v1/responses", create("rain")).await.id();
    for store in [true, false] {
        let body = json!({"input": "what?", "previous_response_id": waiting, "store": store});
        server.post("/v1/responses", body).await.assert_error(409, "conversation_busy");
    }
    server.post(&format!("/v1/responses/{waiting}/cancel"), json!({})).await;
    for store in [true, false] {
        let body = json!({"input": "what?", "previous_response_id": waiting, "store": store});
        server.post("/v1/responses", body).await.assert_error(400, "previous_response_not_found");
    }
    server.post(&format!("/v1/responses/{running}/cancel"), json!({})).await;
}

#[tokio::test]
async fn an_instruction_for_a_request_that_is_not_stored_is_known_while_it_lives() {
    let server = Server::start().await;
    let mut stream =
        server.post_stream("/v1/responses", json!({"input": "endless", "store": false, "stream": true})).await;
    let id = stream.until("response.created").await["response"]["id"].as_str().unwrap().to_owned();
    let later = json!({"input": "later", "when": "after"});
    let receipt = server.post_keyed(&path(&id), "k", later.clone()).await;
    assert_eq!((receipt.status, &receipt.body["durable"]), (202, &json!(false)));
    assert_eq!(server.post_keyed(&path(&id), "k", later).await.body, receipt.body);
    assert_eq!(found(&server, &receipt.id()).await, receipt.body);
    assert_eq!(server.delete(&format!("/v1/interventions/{}", receipt.id())).await.body["status"], "withdrawn");
}

#[tokio::test]
async fn too_many_instructions_are_turned_away_and_change_nothing_until_others_are_decided() {
    let server = Server::start().await;
    let id = server.running("endless").await;
    let waits = |text: String| json!({"input": text, "when": "after"});
    let mut waiting = Vec::new();
    for number in 0..16 {
        let key = format!("k{number}");
        waiting.push(server.post_keyed(&path(&id), &key, waits(key.clone())).await.id());
    }
    let turned_away = server.post_keyed(&path(&id), "late", waits("late".to_owned())).await;
    turned_away.assert_error(429, "too_many_pending_steers");
    assert!(turned_away.header("retry-after").is_some());
    assert_eq!(found(&server, &waiting[15]).await["status"], "accepted");
    server.delete(&format!("/v1/interventions/{}", waiting[0])).await;
    // The refusal left its key free. Sixteen wait again, and of large ones fewer do.
    assert_eq!(server.post_keyed(&path(&id), "late", waits("late".to_owned())).await.status, 202);
    for waiting in &waiting[1..] {
        server.delete(&format!("/v1/interventions/{waiting}")).await;
    }
    let large = server.post_keyed(&path(&id), "large", waits("x".repeat(64 << 10))).await;
    large.assert_error(429, "too_many_pending_steers");
    server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
}
