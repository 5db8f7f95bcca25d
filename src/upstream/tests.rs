//! Upstreams that misbehave, over connections in memory and in time that stands still until everybody waits.

mod responses;
mod several;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::*;
use crate::config::UpstreamKind;
use crate::engine::settings::{Constraint, TextRule};
use crate::engine::{Chat, Counted, Refusal};
use crate::parse::Piece;
use crate::prompt::{Message, Role, ToolCall};

/// What becomes of one connection.
enum Scene {
    /// Nobody listens.
    Refused,
    /// Nobody answers the knock.
    Unanswered,
    /// The request is read, and then this is done.
    Acts(Vec<Act>),
}

enum Act {
    Say(String),
    Wait(u64),
    /// The next request of the same connection is read.
    Next,
    /// The connection stays open and says nothing more.
    Hang,
}

/// What came of an answer.
#[derive(Debug)]
struct Outcome {
    events: Vec<EngineEvent>,
    finish: FinishReason,
    /// The bodies of the requests, in order.
    requests: Vec<Value>,
    took: Duration,
}

impl Outcome {
    fn text(&self) -> String {
        let text = |event: &EngineEvent| match event {
            EngineEvent::Piece(Piece::Text(text)) => Some(text.clone()),
            _ => None,
        };
        self.events.iter().filter_map(text).collect()
    }

    fn pieces(&self) -> Vec<&Piece> {
        let mut pieces = Vec::new();
        for event in &self.events {
            if let EngineEvent::Piece(piece) = event {
                pieces.push(piece);
            }
        }
        pieces
    }

    fn seconds(&self) -> f64 {
        self.took.as_secs_f64()
    }
}

fn head(status: &str, more: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{more}\r\n")
}

fn stream() -> String {
    head("200 OK", "content-type: text/event-stream\r\n")
}

fn delta(delta: &Value) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}))
}

fn says(text: &str) -> String {
    delta(&json!({"content": text}))
}

fn ends(reason: &str) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
}

fn usage(prompt: u32, completion: u32) -> String {
    format!("data: {}\n\n", json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}))
}

/// Sun, 06 Nov 1994 08:49:37 GMT.
const NOW_MS: u64 = 784_111_777_000;

const DONE: &str = "data: [DONE]\n\n";

/// A stream of these parts, in one piece.
fn streams(parts: &[&str]) -> Scene {
    Scene::Acts(vec![Act::Say(stream() + &parts.concat())])
}

fn answers(status: &str, headers: &str, body: &str) -> Scene {
    let length = format!("content-length: {}\r\n", body.len());
    Scene::Acts(vec![Act::Say(head(status, &(length + headers)) + body)])
}

fn config() -> UpstreamConfig {
    UpstreamConfig {
        kind: Some(UpstreamKind::Vllm),
        base_url: "http://gpu.example:8000/v1/".to_owned(),
        models: vec!["m".to_owned()],
        api_key_env: Some("KEY".to_owned()),
        ..UpstreamConfig::default()
    }
}

fn asks(chat: Chat, messages: &[Message]) -> GenerationRequest {
    GenerationRequest {
        messages: messages.into(),
        chat: Arc::new(chat),
        ..GenerationRequest::greedy(Arc::default(), u32::MAX)
    }
}

fn question() -> GenerationRequest {
    asks(Chat::default(), &[Message::text(Role::User, "Count.")])
}

/// The same in chunks, behind whose end the connection may be used again.
fn chunked(parts: &[&str]) -> String {
    let head = head("200 OK", "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n");
    let chunk = |part: &&str| format!("{:x}\r\n{part}\r\n", part.len());
    head + &parts.iter().map(chunk).collect::<String>() + "0\r\n\r\n"
}

/// Reads a request, checks what every one has, and gives its body.
async fn request(stream: &mut DuplexStream) -> Value {
    let mut bytes = Vec::new();
    loop {
        bytes.push(stream.read_u8().await.unwrap());
        if bytes.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let head = String::from_utf8(bytes).unwrap();
    assert!(head.contains("host: gpu.example:8000\r\n"), "{head}");
    if head.starts_with("POST /v1/messages HTTP/1.1\r\n") {
        assert!(head.contains("x-api-key: sk-secret\r\n") && head.contains("anthropic-version: 2023"), "{head}");
    } else {
        let paths = ["chat/completions", "responses"].map(|path| format!("POST /v1/{path} HTTP/1.1\r\n"));
        assert!(paths.iter().any(|path| head.starts_with(path)), "{head}");
        assert!(head.contains("authorization: Bearer sk-secret\r\n"), "{head}");
    }
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

async fn act(mut stream: DuplexStream, acts: Vec<Act>, requests: &Mutex<Vec<Value>>) {
    let body = request(&mut stream).await;
    requests.lock().unwrap().push(body);
    for act in acts {
        match act {
            Act::Say(text) => stream.write_all(text.as_bytes()).await.unwrap(),
            Act::Wait(ms) => sleep(Duration::from_millis(ms)).await,
            Act::Next => {
                let body = request(&mut stream).await;
                requests.lock().unwrap().push(body);
            }
            Act::Hang => {
                // It ends when the other side closes.
                let _ = stream.read_u8().await;
            }
        }
    }
}

/// An upstream, and what becomes of its connections.
struct Part {
    upstream: Arc<Upstream>,
    scenes: Arc<Mutex<VecDeque<Scene>>>,
}

type Accepted = mpsc::Sender<(DuplexStream, Vec<Act>)>;

fn part(name: &str, config: &UpstreamConfig, scenes: Vec<Scene>, accepted: Accepted) -> Part {
    let scenes = Arc::new(Mutex::new(VecDeque::from(scenes)));
    let (upcoming, asked) = (scenes.clone(), name.to_owned());
    let dial: http::Dial = Arc::new(move || {
        let scene = upcoming.lock().unwrap().pop_front().unwrap_or_else(|| panic!("nobody asks {asked} again"));
        let accepted = accepted.clone();
        Box::pin(async move {
            match scene {
                Scene::Refused => Err(std::io::ErrorKind::ConnectionRefused.into()),
                Scene::Unanswered => std::future::pending().await,
                Scene::Acts(acts) => {
                    let (ours, theirs) = duplex(1 << 16);
                    accepted.send((theirs, acts)).await.unwrap();
                    Ok(Box::new(ours) as Box<dyn http::Io>)
                }
            }
        })
    });
    let key = |name: &str| (name == "KEY").then(|| "sk-secret".to_owned());
    let mut upstream = upstream(name, config, key).unwrap();
    upstream.client = upstream.client.over(dial);
    upstream.clock = Clock::Manual(Arc::new(NOW_MS.into()));
    Part { upstream: Arc::new(upstream), scenes }
}

/// Asks for one answer after the other.
async fn run_all(upstreams: Vec<(&str, UpstreamConfig, Vec<Scene>)>, asked: Vec<GenerationRequest>) -> Vec<Outcome> {
    let (connections, mut accepted) = mpsc::channel(8);
    let parts: Vec<_> =
        upstreams.into_iter().map(|(name, config, scenes)| part(name, &config, scenes, connections.clone())).collect();
    let upstreams = parts.iter().map(|part| part.upstream.clone()).collect();
    let route = Route { model: "m".to_owned(), capabilities: Capabilities::default(), upstreams };
    let requests = Mutex::default();
    let server = async {
        while let Some((stream, acts)) = accepted.recv().await {
            act(stream, acts, &requests).await;
        }
    };
    let answers = async {
        let mut outcomes = Vec::new();
        for request in asked {
            let (events, mut told) = mpsc::channel(1000);
            let began = Instant::now();
            let (finish, rest) = run::answer(&route, &request, &events).await;
            let took = began.elapsed();
            if let Some(rest) = rest {
                rest.settle().await;
            }
            drop(events);
            let mut all = Vec::new();
            while let Some(event) = told.recv().await {
                all.push(event);
            }
            let requests = std::mem::take(&mut *requests.lock().unwrap());
            outcomes.push(Outcome { events: all, finish, requests, took });
        }
        outcomes
    };
    let outcomes = tokio::select! {
        outcomes = answers => outcomes,
        () = server => unreachable!("the client lives"),
    };
    let is_played = parts.iter().all(|part| part.scenes.lock().unwrap().is_empty());
    assert!(is_played, "it gave up early: {outcomes:?}");
    outcomes
}

async fn run_with(config: &UpstreamConfig, request: GenerationRequest, scenes: Vec<Scene>) -> Outcome {
    run_all(vec![("gpu", config.clone(), scenes)], vec![request]).await.remove(0)
}

async fn run(scenes: Vec<Scene>) -> Outcome {
    run_with(&config(), question(), scenes).await
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_told_piece_by_piece_and_with_the_upstreams_count() {
    let outcome = run(vec![streams(&[&says("one "), &says("two"), &ends("stop"), &usage(9, 2), DONE])]).await;
    let counted = Counted { input_tokens: 9, output_tokens: 2, ..Counted::default() };
    let expected = [
        EngineEvent::Started { cached_tokens: 0 },
        EngineEvent::Piece(Piece::Text("one ".to_owned())),
        EngineEvent::Piece(Piece::Text("two".to_owned())),
        EngineEvent::Counted(counted),
    ];
    assert_eq!((&outcome.events[..], outcome.finish), (&expected[..], FinishReason::Stop));
    assert_eq!(outcome.requests[0]["model"], "m");
    assert_eq!(outcome.requests[0]["stream_options"], json!({"include_usage": true}));
    assert!(outcome.took.is_zero());
}

#[tokio::test(start_paused = true)]
async fn what_fails_before_a_word_was_said_is_asked_again_after_a_growing_while() {
    let fails = || answers("500 Internal Server Error", "", "{}");
    let good = || streams(&[&says("hi"), &ends("stop"), DONE]);
    let outcome = run(vec![Scene::Refused, fails(), streams(&[]), good()]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("hi", &FinishReason::Stop));
    // Half of 0.5, 1 and 2 seconds at least, all of them at most.
    assert!((1.75..=3.5).contains(&outcome.seconds()), "{outcome:?}");
    assert!(outcome.requests.iter().all(|request| *request == outcome.requests[0]));
    let config = UpstreamConfig { retries_max: 1, ..config() };
    let outcome = run_with(&config, question(), vec![fails(), fails()]).await;
    assert_eq!(outcome.finish, FinishReason::Failed("the upstream gpu failed (500)".to_owned()));
    assert!(outcome.events.is_empty(), "nothing has begun: {outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn an_upstream_says_how_long_to_wait() {
    let busy = |header: &str| answers("429 Too Many Requests", header, r#"{"error": {"message": "slow down"}}"#);
    let dated = busy("retry-after: Sun, 06 Nov 1994 08:49:44 GMT\r\n");
    let good = streams(&[&says("hi"), &ends("stop"), DONE]);
    let outcome = run(vec![busy("retry-after: 20\r\n"), busy("retry-after-ms: 1500\r\n"), dated, good]).await;
    assert_eq!(outcome.finish, FinishReason::Stop);
    assert!((outcome.seconds() - 28.5).abs() < 0.01, "{outcome:?}");
    // Longer than anybody waits, and a word that it is of no use.
    for header in ["retry-after: 121\r\n", "x-should-retry: false\r\n"] {
        let outcome = run(vec![busy(header)]).await;
        assert!(
            matches!(&outcome.finish, FinishReason::Refused(Refusal::Overloaded, text) if text.contains("slow down"))
        );
        assert!(outcome.took.is_zero());
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_is_gone_on_with_behind_what_was_shown() {
    let cut = Scene::Acts(vec![Act::Say(stream() + &says("one tw") + "data: {\"choices\": [{\"del")]);
    let stalls = Scene::Acts(vec![Act::Say(stream() + &says("o thr")), Act::Hang]);
    let fails = streams(&[&says("e"), "data: {\"error\": {\"message\": \"worker died\", \"code\": 500}}\n\n"]);
    let good = streams(&[&says("e four"), &ends("stop"), &usage(30, 2), DONE]);
    let outcome = run(vec![cut, stalls, fails, good]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("one two three four", &FinishReason::Stop));
    let begun = outcome.events.iter().filter(|event| matches!(event, EngineEvent::Started { .. }));
    assert_eq!(begun.count(), 1);
    let prefixes: Vec<_> = outcome.requests.iter().map(|request| request["messages"][1]["content"].clone()).collect();
    assert_eq!(prefixes, [json!(null), json!("one tw"), json!("one two thr"), json!("one two thre")]);
    assert_eq!(outcome.requests[1]["continue_final_message"], true);
    let counted = Counted { input_tokens: 27, output_tokens: 5, ..Counted::default() };
    assert_eq!(outcome.events.last(), Some(&EngineEvent::Counted(counted)));
    assert!(outcome.seconds() > 300.0, "it waited as long as an upstream may be silent");
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_tokens_holds_over_all_of_an_answers_streams() {
    let request = GenerationRequest { max_tokens: 3, ..question() };
    let cut = || streams(&[&says("one "), &says("two ")]);
    let outcome = run_with(&config(), request.clone(), vec![cut(), streams(&[&says("three")])]).await;
    assert_eq!((outcome.text().as_str(), outcome.finish), ("one two three", FinishReason::Length));
    assert_eq!((&outcome.requests[0]["max_tokens"], &outcome.requests[1]["max_tokens"]), (&json!(3), &json!(1)));
    // A prompt that is only to be computed, and an answer that had all its tokens before a restart.
    let resumed: Arc<[u32]> = Arc::new([0; 3]);
    let outcome = run_with(&config(), GenerationRequest { resumed, ..request }, vec![]).await;
    assert_eq!(outcome.finish, FinishReason::Length);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_breaks_off_is_marked_and_made_anew_and_a_whole_one_waits_for_its_result() {
    let call = |arguments: &str, id: &str| {
        let function = json!({"name": "f", "arguments": arguments});
        delta(&json!({"tool_calls": [{"index": 0, "id": id, "function": function}]}))
    };
    let outcome =
        run(vec![streams(&[&says("Let me see."), &call("{\"a\":", "c1")]), streams(&[&call("{\"a\": 1}", "c2")])])
            .await;
    assert_eq!(outcome.finish, FinishReason::Stop);
    let done = |index, id: &str, arguments: &str, complete| Piece::ToolCallDone {
        index,
        id: Some(id.to_owned()),
        arguments: arguments.to_owned(),
        complete,
    };
    let ended: Vec<_> =
        outcome.pieces().into_iter().filter(|piece| matches!(piece, Piece::ToolCallDone { .. })).cloned().collect();
    assert_eq!(ended, [done(0, "c1", "{\"a\":", false), done(0, "c2", "{\"a\": 1}", true)]);
    assert_eq!(outcome.requests[1]["messages"][1], json!({"role": "assistant", "content": "Let me see."}));
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_a_form_is_not_gone_on_with_inside_of_it() {
    let text = TextRule::JsonSchema { schema: json!({"type": "object"}) };
    let constraint = Some(Constraint { text, calls: None, at: None });
    let request = asks(Chat { constraint, ..Chat::default() }, &[Message::text(Role::User, "Count.")]);
    let fails = answers("500 Internal Server Error", "", "{}");
    let outcome = run_with(&config(), request, vec![fails, streams(&[&says("{\"a\": ")])]).await;
    assert!(
        matches!(&outcome.finish, FinishReason::Failed(text) if text.contains("inside of the form")),
        "{outcome:?}"
    );
    assert_eq!(outcome.text(), "{\"a\": ");
}

#[tokio::test(start_paused = true)]
async fn what_comes_behind_an_end_changes_nothing_and_a_fault_that_is_told_as_an_end_is_one() {
    let fault = "data: {\"error\": {\"message\": \"late\"}}\n\n";
    let outcome = run(vec![streams(&[&says("hi"), &ends("stop"), fault, "data: no json\n\n"])]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("hi", &FinishReason::Stop));
    let aborted = streams(&[&says("one"), &ends("abort")]);
    let outcome = run(vec![aborted, streams(&[&says(" two"), &ends("content_filter"), DONE])]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("one two", &FinishReason::Filtered));
    // Signs of life do not lengthen the wait for usage.
    let ping = || [Act::Wait(900), Act::Say(": ping\n\n".to_owned())];
    let begins = Act::Say(stream() + &says("hi") + &ends("stop"));
    let acts = [begins].into_iter().chain(ping()).chain(ping()).chain(ping()).chain([Act::Hang]).collect();
    let outcome = run(vec![Scene::Acts(acts)]).await;
    assert!((outcome.seconds() - 2.0).abs() < 0.01, "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_a_restart_cut_goes_on_from_its_prefix() {
    let begun = |answer: Message| {
        let messages = [Message::text(Role::User, "Count."), answer];
        asks(Chat { begun: 1, ..Chat::default() }, &messages)
    };
    let rest = || streams(&[&says(" two"), &ends("stop"), DONE]);
    let outcome = run_with(&config(), begun(Message::text(Role::Assistant, "one")), vec![rest()]).await;
    assert_eq!(outcome.requests[0]["messages"][1], json!({"role": "assistant", "content": "one"}));
    assert_eq!(outcome.text(), " two");
    // Reasoning alone is not gone on with.
    let thought = Message { reasoning_content: Some("hm".to_owned()), ..Message::text(Role::Assistant, "") };
    let outcome = run_with(&config(), begun(thought.clone()), vec![rest()]).await;
    assert_eq!(outcome.requests[0]["messages"].as_array().unwrap().len(), 1);
    // Behind a text it is left out; a message of the assistant that a client brought is none of the answer's.
    let said = |text: &str| Message::text(Role::Assistant, text);
    let messages = [Message::text(Role::User, "Count."), said("brought"), said("one"), thought];
    let begun_twice = asks(Chat { begun: 2, ..Chat::default() }, &messages);
    let outcome = run_with(&config(), begun_twice, vec![rest()]).await;
    let contents: Vec<_> =
        outcome.requests[0]["messages"].as_array().unwrap().iter().map(|it| it["content"].clone()).collect();
    assert_eq!(contents, ["Count.", "brought", "one"]);
    assert_eq!(outcome.requests[0]["continue_final_message"], true);
    // Whole calls wait for their results, and nobody is asked.
    let calls = Message { tool_calls: vec![ToolCall::new("c1", "f", "{}")], ..Message::text(Role::Assistant, "") };
    assert_eq!(run_with(&config(), begun(calls), vec![]).await.finish, FinishReason::Stop);
}

#[tokio::test(start_paused = true)]
async fn timeouts_hold_for_connections_heads_and_silence() {
    let once = |idle_timeout_ms| UpstreamConfig { retries_max: 0, idle_timeout_ms, ..config() };
    let seconds = |outcome: &Outcome, text: &str, seconds: f64| {
        let (FinishReason::Failed(said) | FinishReason::Refused(Refusal::Unreachable, said)) = &outcome.finish else {
            panic!("{outcome:?}")
        };
        assert!(said.contains(text), "{outcome:?}");
        assert!((outcome.seconds() - seconds).abs() < 0.01, "{outcome:?}");
    };
    let outcome = run_with(&once(5000), question(), vec![Scene::Unanswered]).await;
    seconds(&outcome, "no connection in 10s", 10.0);
    let outcome = run_with(&once(5000), question(), vec![Scene::Acts(vec![Act::Wait(5001)])]).await;
    seconds(&outcome, "said nothing for 5s", 5.0);
    // A slow head and signs of life are no silence.
    let acts = vec![
        Act::Wait(4000),
        Act::Say(stream()),
        Act::Wait(4000),
        Act::Say(": ping\n\n".to_owned()),
        Act::Wait(4000),
        Act::Say(says("hi") + &ends("stop") + DONE),
    ];
    let outcome = run_with(&once(5000), question(), vec![Scene::Acts(acts)]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("hi", &FinishReason::Stop));
    assert!((outcome.seconds() - 12.0).abs() < 0.01);
}

#[tokio::test(start_paused = true)]
async fn an_end_is_an_end_with_or_without_usage_and_however_often_it_is_told() {
    let twice = streams(&[&usage(1, 1), &says("hi"), &ends("stop"), &ends("length"), &usage(9, 1), &usage(9, 2), DONE]);
    let outcome = run(vec![twice]).await;
    let counted = Counted { input_tokens: 9, output_tokens: 2, ..Counted::default() };
    assert_eq!(outcome.events.last(), Some(&EngineEvent::Counted(counted)));
    assert_eq!((outcome.text().as_str(), outcome.finish), ("hi", FinishReason::Stop));
    let hangs = Scene::Acts(vec![Act::Say(stream() + &says("hi") + &ends("length")), Act::Hang]);
    let outcome = run(vec![hangs]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("hi", &FinishReason::Length));
    assert!((outcome.seconds() - 2.0).abs() < 0.01, "usage is not waited for any longer");
    assert_eq!(run(vec![streams(&[&says("hi"), &ends("stop")])]).await.finish, FinishReason::Stop);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_was_not_told_or_that_nobody_knows_is_none() {
    let rest = |text: &str| streams(&[&says(text), &ends("stop"), DONE]);
    for broken in [streams(&[&says("one"), DONE]), streams(&[&says("one"), &ends("who knows"), DONE])] {
        let outcome = run(vec![broken, rest(" two")]).await;
        assert_eq!((outcome.text().as_str(), &outcome.finish), ("one two", &FinishReason::Stop));
    }
    // A whole answer was not shown yet, and is asked for again.
    for reason in [json!(null), json!("who knows")] {
        let choice = json!({"message": {"role": "assistant", "content": "one"}, "finish_reason": reason});
        let whole = answers("200 OK", "content-type: application/json\r\n", &json!({"choices": [choice]}).to_string());
        let outcome = run(vec![whole, rest("two")]).await;
        assert_eq!((outcome.text().as_str(), &outcome.finish), ("two", &FinishReason::Stop));
        assert_eq!(outcome.requests[0], outcome.requests[1]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_forgets_where_to_end_is_cut_and_its_connection_closed() {
    let request = GenerationRequest { max_tokens: 2, ..question() };
    let talks = || Scene::Acts(vec![Act::Say(stream() + &says("one ") + &says("two ") + &says("three")), Act::Hang]);
    let outcome = run_with(&config(), request.clone(), vec![talks()]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("one two ", &FinishReason::Length));
    assert!(outcome.took.is_zero(), "nobody waits for the end of it");
    // One that ends where it should is not cut.
    let ends = streams(&[&says("one "), &says("two"), &ends("stop"), DONE]);
    assert_eq!(run_with(&config(), request.clone(), vec![ends]).await.finish, FinishReason::Stop);
    let call = |arguments: &str| {
        delta(&json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": arguments}}]}))
    };
    let outcome =
        run_with(&config(), request, vec![streams(&[&call("{"), &call("\"a\""), &call(":"), &call("1}")])]).await;
    let Some(Piece::ToolCallDone { complete, arguments, .. }) = outcome.pieces().pop() else { panic!("{outcome:?}") };
    assert_eq!((*complete, &outcome.finish), (false, &FinishReason::Length), "{arguments}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_kept_for_the_next_answer_and_another_opened_where_it_is_gone() {
    let answer = || Act::Say(chunked(&[&says("hi"), &ends("stop"), DONE]));
    let busy = "HTTP/1.1 503 Busy\r\ncontent-length: 2\r\nretry-after: 1\r\n\r\n{}".to_owned();
    let first = Scene::Acts(vec![answer(), Act::Next, Act::Say(busy), Act::Next, answer()]);
    let second = Scene::Acts(vec![answer()]);
    let asked = vec![question(), question(), question()];
    let outcomes = run_all(vec![("gpu", config(), vec![first, second])], asked).await;
    let seen: Vec<_> = outcomes.iter().map(|outcome| (outcome.text(), outcome.requests.len())).collect();
    assert_eq!(seen, [("hi".to_owned(), 1), ("hi".to_owned(), 2), ("hi".to_owned(), 1)]);
    // A stream that was cut is not read on.
    let cut = Scene::Acts(vec![Act::Say(stream() + &says("a") + &says("b")), Act::Hang]);
    let second = Scene::Acts(vec![answer()]);
    let bounded = GenerationRequest { max_tokens: 1, ..question() };
    let outcomes = run_all(vec![("gpu", config(), vec![cut, second])], vec![bounded, question()]).await;
    assert_eq!(outcomes.iter().map(Outcome::text).collect::<Vec<_>>(), ["a", "hi"]);
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_cannot_stream_is_asked_for_whole_answers() {
    let whole = json!({
        "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    })
    .to_string();
    let json = || answers("200 OK", "content-type: application/json; charset=utf-8\r\n", &whole);
    let refuses = answers("400 Bad Request", "", r#"{"error": {"message": "Streaming is not supported"}}"#);
    let outcome = run(vec![refuses, json()]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("hi", &FinishReason::Stop));
    assert_eq!((&outcome.requests[0]["stream"], &outcome.requests[1]["stream"]), (&json!(true), &json!(false)));
    assert!(outcome.took.is_zero());
    assert_eq!(outcome.requests[1].get("stream_options"), None);
    // One that answers so without a word, and one that is known for it.
    assert_eq!(run(vec![json()]).await.text(), "hi");
    let config = UpstreamConfig { stream: false, ..config() };
    assert_eq!(run_with(&config, question(), vec![json()]).await.requests[0]["stream"], false);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_answer_at_all_is_said_and_not_asked_again() {
    let page = answers("200 OK", "content-type: text/html\r\n", "<html>");
    let FinishReason::Failed(text) = run(vec![page]).await.finish else { panic!() };
    assert!(text.contains("text/html") && text.contains("base_url"), "{text}");
    let empty = answers("200 OK", "content-type: application/json\r\n", "{}");
    let config = UpstreamConfig { retries_max: 0, ..config() };
    let FinishReason::Failed(text) = run_with(&config, question(), vec![empty]).await.finish else { panic!() };
    assert!(text.contains("says nothing"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_key_is_in_no_error_whatever_the_upstream_says() {
    for status in ["401 Unauthorized", "400 Bad Request", "404 Not Found"] {
        let body = r#"{"error": {"message": "Incorrect API key provided: sk-secret"}}"#;
        let outcome = run(vec![answers(status, "", body)]).await;
        assert!(!format!("{:?}", outcome.finish).contains("sk-secret"), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_wants_any_more_closes_its_connection() {
    let (connections, mut accepted) = mpsc::channel(1);
    let dial: http::Dial = Arc::new(move || {
        let (ours, theirs) = duplex(1 << 16);
        connections.try_send(theirs).unwrap();
        Box::pin(async { Ok(Box::new(ours) as Box<dyn http::Io>) })
    });
    let mut upstream = upstream("gpu", &config(), |_| Some("sk-secret".to_owned())).unwrap();
    upstream.client = upstream.client.over(dial);
    let route =
        Route { model: "m".to_owned(), capabilities: Capabilities::default(), upstreams: vec![Arc::new(upstream)] };
    let (events, mut told) = mpsc::channel(8);
    let (abort, aborted) = watch::channel(false);
    let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let work = Work { route, request: question(), events, aborted, place };
    let server = async {
        let mut stream: DuplexStream = accepted.recv().await.unwrap();
        request(&mut stream).await;
        stream.write_all((self::stream() + &says("one ")).as_bytes()).await.unwrap();
        while !matches!(told.recv().await, Some(EngineEvent::Piece(_))) {}
        abort.send_replace(true);
        // The end of what the client will ever send.
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        told.recv().await
    };
    let (last, ()) = tokio::join!(server, read(work));
    assert_eq!(last, Some(EngineEvent::Finished(FinishReason::Aborted)));
}
