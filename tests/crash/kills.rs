//! Killed in the middle of scripted answers, at many points.

use serde_json::{Value, json};

use crate::support::{Site, journaled, shown_text};
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
async fn some(server: &crate::support::Server, conversation: &str, after: u64, count: usize) -> Vec<Value> {
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

#[tokio::test]
async fn killed_at_random_moments_nothing_that_was_acknowledged_or_seen_is_lost() {
    let seed = midstream::clock::Clock::System.unix_ms();
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let site = site();
    let mut server = site.start().await;
    let mut witness = Witness::default();
    let (mut begun, mut steered): (Vec<(String, String)>, Vec<String>) = (Vec::new(), Vec::new());
    for round in 0..12 {
        let (key, input) = (format!("round{round}"), format!("tell {round}"));
        let body = json!({"input": input, "background": true});
        let (path, conversation) = ("/v1/responses", None);
        let create = Ask { operation: "create", path, key: &key, conversation, input: Some(&input), body };
        let answer = witness.ask(&server, &create).await.unwrap();
        let id = |value: &Value| value.as_str().unwrap().to_owned();
        let (response, conversation) = (id(&answer["id"]), id(&answer["conversation"]["id"]));
        let (mut seen, enough) = (0, 1 + dice.below(30));
        let count = |_: &Value| {
            seen += 1;
            seen == enough
        };
        witness.read(&server, &conversation, 0, count).await;
        begun.push((conversation.clone(), response.clone()));
        if dice.below(2) == 0 {
            let (path, input) =
                (format!("/v1/responses/{response}/interventions"), format!("I changed my mind {round}"));
            let (body, place) = (json!({"input": input}), Some(conversation.as_str()));
            let (operation, path, input) = ("intervene", path.as_str(), Some(input.as_str()));
            let steer = Ask { operation, path, key: &key, conversation: place, input, body };
            let receipt = witness.ask(&server, &steer).await.unwrap();
            steered.push(id(&receipt["successor_id"]));
            begun.push((conversation, id(&receipt["successor_id"])));
        }
        server.kill();
        server = site.start().await;
    }
    for (conversation, response) in begun {
        assert!(witness.until_ended(&server, &conversation, &response).await);
    }
    for successor in steered {
        let object = server.get(&format!("/v1/responses/{successor}")).await;
        assert_eq!(object["output"][0]["content"][0]["text"], "As you wish.", "{object}");
    }
    witness.audit(&site, server).await.unwrap();
}
