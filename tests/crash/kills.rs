//! Killed in the middle of scripted answers, at many points.

use serde_json::{Value, json};

use crate::support::{Server, Site, is_terminal, journaled, shown_text};
use crate::witness::{Ask, Witness};

/// Words of the long answer: seconds of it, so that it still runs when a slow machine comes to steer it.
const WORDS: usize = 500;

fn site() -> Site {
    Site::scripted(&json!([
        {"match": "changed my mind", "deltas": ["As ", "you ", "wish."], "delay_ms": 1},
        {"deltas": words(), "delay_ms": 5},
    ]))
}

fn whole() -> String {
    words().concat()
}

fn words() -> Vec<String> {
    (0..WORDS).map(|index| format!("word{index} ")).collect()
}

/// Reads frames until `count` were seen or the connection is gone.
async fn some(server: &Server, conversation: &str, after: u64, count: usize) -> Vec<Value> {
    let mut frames = server.follow(&format!("/v1/conversations/{conversation}/events?after={after}")).await;
    let mut seen = Vec::new();
    while seen.len() < count
        && let Some(frame) = frames.next().await
    {
        seen.push(frame);
    }
    seen
}

#[tokio::test]
async fn an_answer_killed_again_and_again_ends_with_the_exact_text_and_no_gap_or_duplicate() {
    let site = site();
    let mut server = site.start().await;
    let (response, conversation) = server.begin("one", json!({"input": "tell"})).await;
    let mut seen: Vec<Value> = Vec::new();
    for frames in [1, 3, 7, 19, 40] {
        let after = seen.last().map_or(0, |frame| frame["seq"].as_u64().unwrap());
        seen.extend(journaled(&some(&server, &conversation, after, frames).await));
        server.kill();
        server = site.start().await;
    }
    let after = seen.last().map_or(0, |frame| frame["seq"].as_u64().unwrap());
    seen.extend(server.until_ended(&conversation, &response, after).await);
    let seen = journaled(&seen);
    assert_eq!(shown_text(&seen, &response), whole());
    // What was seen in pieces, across five processes, is what a replay shows now.
    let replay = journaled(&server.until_ended(&conversation, &response, 0).await);
    assert_eq!(replay, seen);
}

#[tokio::test]
async fn an_answer_is_read_as_it_was_begun_although_the_server_starts_with_other_formats() {
    let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let deltas = [&["<think>\n".to_owned()][..], &words()[..60], &["\n</think>\n\n".to_owned()], &words()[..60]];
    let deltas = [&deltas.concat()[..], &[call.to_owned()]].concat();
    let script = |tool_format: &str, reasoning: &str| {
        let replies = json!([{"deltas": deltas, "delay_ms": 5}]);
        json!({"tool_format": tool_format, "reasoning": reasoning, "replies": replies})
    };
    let site = Site::scripted(&script("hermes", "qwen3"));
    let mut server = site.start().await;
    let tools = json!([{"type": "function", "name": "look", "parameters": {}}]);
    let (response, conversation) = server.begin("one", json!({"input": "tell", "tools": tools})).await;
    let mut after = 0;
    // Inside the reasoning, and behind it.
    for frames in [20, 70] {
        after = some(&server, &conversation, after, frames).await.last().unwrap()["seq"].as_u64().unwrap();
        server.kill();
        site.rewrite(&script("none", "none"));
        server = site.start().await;
    }
    server.until_ended(&conversation, &response, after).await;
    let output = server.get(&format!("/v1/responses/{response}")).await["output"].clone();
    let [thought, said, called] = &output.as_array().unwrap()[..] else { panic!("{output}") };
    let text = words()[..60].concat();
    assert_eq!(thought["content"][0]["text"], text, "{thought}");
    assert_eq!(said["content"][0]["text"], text, "{said}");
    assert_eq!((&called["name"], &called["arguments"]), (&json!("look"), &json!("{\"a\": 1}")));
}

#[tokio::test]
async fn what_a_client_saw_on_the_response_stream_is_replayed_the_same() {
    let site = site();
    let server = site.start().await;
    let (response, _) = server.begin("one", json!({"input": "tell"})).await;
    let path = format!("/v1/responses/{response}?stream=true&starting_after=0");
    let mut frames = server.follow(&path).await;
    let mut seen = Vec::new();
    for _ in 0..30 {
        seen.push(frames.next().await.unwrap());
    }
    server.kill();
    let server = site.start().await;
    let mut frames = server.follow(&path).await;
    for frame in &seen {
        assert_eq!(frames.next().await.as_ref(), Some(frame));
    }
}

#[tokio::test]
async fn an_acknowledged_steer_is_in_the_transcript_after_a_kill() {
    let site = site();
    let server = site.start().await;
    let (response, conversation) = server.begin("one", json!({"input": "tell"})).await;
    some(&server, &conversation, 0, 20).await;
    let steer = json!({"input": "I changed my mind"});
    let (status, receipt) = server.post(&format!("/v1/responses/{response}/interventions"), "s1", &steer).await;
    server.kill();
    assert_eq!(status, 202, "{receipt}");
    let server = site.start().await;
    let successor = receipt["successor_id"].as_str().unwrap().to_owned();
    let frames = server.until_ended(&conversation, &successor, 0).await;
    assert_eq!(shown_text(&frames, &successor), "As you wish.");
    let steered = server.get(&format!("/v1/responses/{response}")).await;
    assert_eq!(
        (&steered["status"], &steered["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("steered"))
    );
    let again = server.get(&format!("/v1/interventions/{}", receipt["id"].as_str().unwrap())).await;
    assert_eq!((&again["status"], &again["successor_id"]), (&json!("committed"), &receipt["successor_id"]));
    // The same key, in another process: the same answer and no second effect.
    let (status, repeated) = server.post(&format!("/v1/responses/{response}/interventions"), "s1", &steer).await;
    assert_eq!((status, repeated), (202, receipt));
}

#[tokio::test]
async fn an_acknowledged_cancel_holds_after_a_kill() {
    let site = site();
    let server = site.start().await;
    let (response, conversation) = server.begin("one", json!({"input": "tell"})).await;
    some(&server, &conversation, 0, 20).await;
    let path = format!("/v1/responses/{response}/cancel?wait=false");
    let (status, answer) = server.post(&path, "c1", &json!({})).await;
    server.kill();
    // It may have taken effect before the answer was made.
    assert!(status == 202 || status == 200 && answer["status"] == "cancelled", "{status} {answer}");
    let server = site.start().await;
    let frames = server.until_ended(&conversation, &response, 0).await;
    assert_eq!(server.get(&format!("/v1/responses/{response}")).await["status"], "cancelled");
    let text = shown_text(&frames, &response);
    assert!(whole().starts_with(&text) && text.len() < whole().len(), "cut, not whole: {text}");
}

#[tokio::test]
async fn a_create_repeated_with_its_key_after_a_kill_is_the_same_response() {
    let site = site();
    let server = site.start().await;
    let (response, conversation) = server.begin("one", json!({"input": "tell"})).await;
    server.kill();
    let server = site.start().await;
    assert_eq!(server.begin("one", json!({"input": "tell"})).await, (response.clone(), conversation.clone()));
    let frames = server.until_ended(&conversation, &response, 0).await;
    assert_eq!(shown_text(&frames, &response), whole());
    let other = json!({"input": "something else", "background": true});
    let (status, refusal) = server.post("/v1/responses", "one", &other).await;
    assert_eq!((status, &refusal["error"]["code"]), (422, &json!("idempotency_key_reused")));
}

#[tokio::test]
async fn many_conversations_killed_at_once_all_go_on() {
    let site = site();
    let mut server = site.start().await;
    let mut begun = Vec::new();
    for index in 0..8 {
        begun.push(server.begin(&format!("key{index}"), json!({"input": "tell"})).await);
    }
    for _ in 0..3 {
        some(&server, &begun[0].1, 0, 10).await;
        server.kill();
        server = site.start().await;
    }
    for (response, conversation) in begun {
        let frames = journaled(&server.until_ended(&conversation, &response, 0).await);
        assert_eq!(shown_text(&frames, &response), whole());
    }
}

/// Draws numbers from a seed; the seed is in the message of a failure.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        // Knuth's multiplier; the high bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What was asked for in a round, and what was said at the end.
struct Round {
    body: Value,
    text: String,
    /// What was said to who changed his mind.
    steered: Option<String>,
}

/// What a response said, whole.
async fn said(server: &Server, response: &str) -> String {
    let object = server.get(&format!("/v1/responses/{response}")).await;
    let parts = object["output"].as_array().unwrap().iter().flat_map(|item| item["content"].as_array().unwrap());
    parts.map(|part| part["text"].as_str().unwrap()).collect()
}

/// Kills the process in the round of each body, at a moment that is drawn, behind this many frames or more; then
/// everything ends, and is audited.
async fn soak(site: &Site, seed: u64, frames_min: u64, bodies: Vec<Value>) -> Vec<Round> {
    let mut dice = Dice(seed);
    let mut server = site.start().await;
    let mut witness = Witness::default();
    let mut begun: Vec<(Value, String, String, Option<String>)> = Vec::new();
    for (round, body) in bodies.into_iter().enumerate() {
        let key = format!("round{round}");
        let (operation, path, input) = ("create", "/v1/responses", body["input"].as_str());
        let create = Ask { operation, path, key: &key, conversation: None, input, body: body.clone() };
        let answer = witness.ask(&server, &create).await.unwrap();
        let id = |value: &Value| value.as_str().unwrap().to_owned();
        let (response, conversation) = (id(&answer["id"]), id(&answer["conversation"]["id"]));
        let (mut seen, enough) = (0, frames_min + dice.below(30));
        let count = |frame: &Value| {
            seen += 1;
            seen == enough || is_terminal(frame)
        };
        witness.read(&server, &conversation, 0, count).await;
        let mut successor = None;
        if dice.below(2) == 0 {
            let (path, input) =
                (format!("/v1/responses/{response}/interventions"), format!("I changed my mind {round}"));
            let (body, place) = (json!({"input": input}), Some(conversation.as_str()));
            let (operation, path, input) = ("intervene", path.as_str(), Some(input.as_str()));
            let steer = Ask { operation, path, key: &key, conversation: place, input, body };
            // It may have come too late.
            successor = witness.ask(&server, &steer).await.unwrap()["successor_id"].as_str().map(str::to_owned);
        }
        begun.push((body, conversation, response, successor));
        server.kill();
        server = site.start().await;
    }
    let mut told = Vec::new();
    for (body, conversation, response, successor) in begun {
        let last = successor.as_ref().unwrap_or(&response);
        assert!(witness.until_ended(&server, &conversation, last).await);
        let steered = match &successor {
            Some(successor) => Some(said(&server, successor).await),
            None => None,
        };
        told.push(Round { body, text: said(&server, &response).await, steered });
    }
    witness.audit(site, server).await.unwrap();
    told
}

/// Rounds of a soak: these, unless `MIDSTREAM_TEST_SOAK_ROUNDS` says more.
fn rounds(usual: u32) -> u32 {
    let asked = std::env::var("MIDSTREAM_TEST_SOAK_ROUNDS").ok();
    asked.map_or(usual, |text| text.parse().expect("MIDSTREAM_TEST_SOAK_ROUNDS is a number"))
}

#[tokio::test]
async fn killed_at_random_moments_nothing_that_was_acknowledged_or_seen_is_lost() {
    let seed = midstream::clock::Clock::System.unix_ms();
    println!("seed {seed}");
    let bodies = (0..rounds(12)).map(|round| json!({"input": format!("tell {round}"), "background": true})).collect();
    for Round { text, steered, .. } in soak(&site(), seed, 1, bodies).await {
        match steered {
            Some(steered) => assert_eq!(steered, "As you wish."),
            None => assert_eq!(text, whole()),
        }
    }
}

#[tokio::test]
async fn a_real_model_killed_at_random_moments_says_what_it_says_undisturbed() {
    let seed = midstream::clock::Clock::System.unix_ms();
    println!("seed {seed}");
    // Each story is asked for twice, and the auditor compares what is told.
    let body = |round: u32| {
        let story = round / 2;
        let input = format!("Tell me a story about the number {story}.");
        json!({"input": input, "background": true, "max_output_tokens": 40, "temperature": 0.8, "seed": story})
    };
    // With tokens in each round: what is resumed again and again without one is given up.
    let told = soak(&Site::real_model(), seed, 4, (0..rounds(4)).map(body).collect()).await;
    let site = Site::real_model();
    let undisturbed = site.start().await;
    for (number, Round { body, text, steered }) in told.into_iter().enumerate() {
        let (response, conversation) = undisturbed.begin(&format!("round{number}"), body).await;
        undisturbed.until_ended(&conversation, &response, 0).await;
        let whole = said(&undisturbed, &response).await;
        let is_whole = whole == text || steered.is_some() && whole.starts_with(&text);
        assert!(is_whole, "{text:?} instead of {whole:?}");
    }
}
