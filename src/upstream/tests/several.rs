//! Several upstreams that have one model, and upstreams that speak Anthropic's Messages.

use super::*;
use crate::clock::monotonic;
use crate::upstream::route::Rounds;

fn ranked(rank: u32) -> UpstreamConfig {
    UpstreamConfig { rank, ..config() }
}

fn good(text: &str) -> Scene {
    streams(&[&says(text), &ends("stop"), DONE])
}

fn fails() -> Scene {
    answers("500 Internal Server Error", "", "{}")
}

/// One answer of a first upstream and of one that stands behind it.
async fn of_two(first: Vec<Scene>, second: Vec<Scene>) -> Outcome {
    let upstreams = vec![("b", ranked(0), first), ("a", ranked(1), second)];
    run_all(upstreams, vec![question()]).await.remove(0)
}

#[tokio::test(start_paused = true)]
async fn where_the_first_upstream_fails_the_second_is_asked_at_once() {
    let key = answers("401 Unauthorized", "", "{}");
    let busy = answers("429 Too Many Requests", "retry-after: 20\r\n", "{}");
    for first in [Scene::Refused, fails(), busy, key, streams(&[])] {
        let outcome = of_two(vec![first], vec![good("hi")]).await;
        assert_eq!((outcome.text().as_str(), &outcome.finish), ("hi", &FinishReason::Stop));
        assert!(outcome.took.is_zero(), "{outcome:?}");
    }
    // What the request itself is refused for, nobody else is asked for.
    let outcome = of_two(vec![answers("400 Bad Request", "", "{}")], vec![]).await;
    assert!(matches!(outcome.finish, FinishReason::Refused(Refusal::Input, _)), "{outcome:?}");
    // When all have failed, it begins again in front, but for who will never answer.
    let outcome = of_two(vec![fails(), good("hi")], vec![answers("404 Not Found", "", "{}")]).await;
    assert_eq!((outcome.text().as_str(), outcome.requests.len()), ("hi", 3));
    assert!((0.25..=0.5).contains(&outcome.seconds()), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn each_is_asked_again_when_it_says_and_what_one_has_no_words_for_another_is_asked_for() {
    let busy = answers("429 Too Many Requests", "retry-after: 20\r\n", "{}");
    let outcome = of_two(vec![busy], vec![Scene::Refused, good("hi")]).await;
    assert_eq!((outcome.text().as_str(), outcome.requests.len()), ("hi", 2));
    assert!((0.25..=0.5).contains(&outcome.seconds()), "{outcome:?}");
    let unpaid = answers("402 Payment Required", "", "{}");
    let busy = answers("429 Too Many Requests", "retry-after: 20\r\n", "{}");
    let outcome = of_two(vec![busy, good("hi")], vec![unpaid]).await;
    assert!((outcome.seconds() - 20.0).abs() < 0.01, "{outcome:?}");
    let openai = UpstreamConfig { kind: Some(UpstreamKind::Openai), ..ranked(0) };
    let mut request = question();
    request.sampling.top_k = 4;
    let upstreams = vec![("b", openai.clone(), vec![]), ("a", ranked(1), vec![good("hi")])];
    assert_eq!(run_all(upstreams, vec![request.clone()]).await[0].text(), "hi");
    let outcome = run_all(vec![("b", openai, vec![])], vec![request]).await.remove(0);
    assert!(matches!(outcome.finish, FinishReason::Refused(Refusal::Input, text) if text.contains("top_k")));
}

#[tokio::test(start_paused = true)]
async fn behind_text_that_was_shown_another_upstream_goes_on_and_does_not_begin_anew() {
    let outcome = of_two(vec![streams(&[&says("one ")])], vec![good("two")]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("one two", &FinishReason::Stop));
    assert_eq!(outcome.requests[1]["messages"][1], json!({"role": "assistant", "content": "one "}));
}

#[tokio::test(start_paused = true)]
async fn one_that_failed_several_times_running_is_passed_over_while_it_rests() {
    let first = |pause| UpstreamConfig { circuit_failures: 2, circuit_pause_ms: pause, ..ranked(0) };
    let run = async |pause, scenes| {
        let upstreams = vec![("b", first(pause), scenes), ("a", ranked(1), vec![good("a"), good("a"), good("a")])];
        let outcomes = run_all(upstreams, vec![question(), question(), question()]).await;
        assert!(outcomes.iter().all(|outcome| outcome.text() == "a"));
    };
    run(1_000_000, vec![fails(), fails()]).await;
    // Behind its rest it is tried.
    run(0, vec![fails(), fails(), fails()]).await;
    // Where nobody else is there, it is asked all the same.
    let outcomes = run_all(
        vec![("b", UpstreamConfig { retries_max: 0, ..first(1_000_000) }, vec![fails(), fails(), good("b")])],
        vec![question(), question(), question()],
    );
    assert_eq!(outcomes.await[2].text(), "b");
}

#[test]
fn a_conversation_stays_with_its_upstream_and_one_upstream_less_moves_only_its_own() {
    let names = ["a", "b", "c"];
    let made = |name: &&str| Arc::new(upstream(name, &config(), |_| Some("sk-secret".to_owned())).unwrap());
    let all = Route {
        model: "m".to_owned(),
        capabilities: Capabilities::default(),
        upstreams: names.iter().map(made).collect(),
    };
    let fewer = Route { upstreams: all.upstreams[..2].to_vec(), ..all.clone() };
    let of = |route: &Route, conversation: u32| {
        let [system, first] =
            [(Role::System, "Be kind.".to_owned()), (Role::User, format!("Count to {conversation}."))]
                .map(|(role, text)| Message::text(role, text));
        let asked = |messages: &[Message]| Rounds::of(route, messages).next(monotonic()).unwrap().upstream.name.clone();
        let name = asked(&[system.clone(), first.clone()]);
        // The next turn, whoever keeps the transcript.
        let [answer, more] =
            [(Role::Assistant, "one"), (Role::User, "more")].map(|(role, text)| Message::text(role, text));
        assert_eq!(asked(&[system, first, answer, more]), name);
        name
    };
    let mut counts = [0; 3];
    for conversation in 0..300 {
        let name = of(&all, conversation);
        assert_eq!(of(&all, conversation), name);
        if name != "c" {
            assert_eq!(of(&fewer, conversation), name);
        }
        counts[names.iter().position(|other| *other == name).unwrap()] += 1;
    }
    assert!(counts.iter().all(|count| (60..140).contains(count)), "{counts:?}");
    // The rank comes first.
    let last = Arc::new(upstream("z", &ranked(1), |_| Some("sk-secret".to_owned())).unwrap());
    let ranked = Route { upstreams: vec![last, all.upstreams[0].clone()], ..all };
    assert!((0..50).all(|conversation| of(&ranked, conversation) == "a"));
}

fn claude() -> UpstreamConfig {
    UpstreamConfig { kind: Some(UpstreamKind::Anthropic), ..config() }
}

fn event(event: &Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
}

fn begins() -> String {
    let usage = json!({"input_tokens": 3, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 5});
    event(&json!({"type": "message_start", "message": {"usage": usage}}))
}

/// A block of this kind with one delta, without its end.
fn opens(block: &Value, delta: &Value) -> String {
    event(&json!({"type": "content_block_start", "index": 0, "content_block": block}))
        + &event(&json!({"type": "content_block_delta", "index": 0, "delta": delta}))
}

fn text(text: &str) -> String {
    opens(&json!({"type": "text", "text": ""}), &json!({"type": "text_delta", "text": text}))
}

fn closes() -> String {
    event(&json!({"type": "content_block_stop", "index": 0}))
}

fn stops(reason: &str) -> String {
    let delta = json!({"stop_reason": reason, "stop_sequence": null});
    event(&json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}}))
        + &event(&json!({"type": "message_stop"}))
}

#[tokio::test(start_paused = true)]
async fn a_message_is_told_with_its_thoughts_and_its_count() {
    let thinks =
        opens(&json!({"type": "thinking", "thinking": ""}), &json!({"type": "thinking_delta", "thinking": "hm"}));
    let signs = event(&json!({"type": "content_block_delta", "index": 0,
        "delta": {"type": "signature_delta", "signature": "sign"}}));
    let message = streams(&[&begins(), &thinks, &signs, &closes(), &text("hi"), &closes(), &stops("end_turn")]);
    let outcome = run_with(&claude(), question(), vec![message]).await;
    let thought = Piece::Thought {
        maker: "upstream-gpu-m".to_owned(),
        text: "hm".to_owned(),
        native: json!({"type": "thinking", "signature": "sign"}),
    };
    let counted = Counted { input_tokens: 28, cached_tokens: 20, output_tokens: 9, reasoning_tokens: 0 };
    let expected = [
        EngineEvent::Started { cached_tokens: 0 },
        EngineEvent::Piece(Piece::Reasoning("hm".to_owned())),
        EngineEvent::Piece(thought),
        EngineEvent::Piece(Piece::Text("hi".to_owned())),
        EngineEvent::Counted(counted),
    ];
    assert_eq!((&outcome.events[..], outcome.finish), (&expected[..], FinishReason::Stop));
    assert_eq!((&outcome.requests[0]["model"], &outcome.requests[0]["max_tokens"]), (&json!("m"), &json!(32_000)));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_breaks_off_is_gone_on_with_and_one_that_was_not_begun_asked_for_again() {
    let overloaded = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    let busy = answers("529 Overloaded", "retry-after: 3\r\n", &overloaded.to_string());
    let breaks = streams(&[&begins(), &text("one tw"), &event(&overloaded)]);
    let rest = streams(&[&begins(), &text("o"), &closes(), &stops("end_turn")]);
    let outcome = run_with(&claude(), question(), vec![busy, breaks, rest]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("one two", &FinishReason::Stop));
    assert!((3.25..=4.0).contains(&outcome.seconds()), "{outcome:?}");
    let messages = &outcome.requests[2]["messages"];
    assert_eq!(messages[1]["content"][0]["text"], "one tw");
    assert_eq!(messages[2]["role"], "user");
    // A stream that ends without an end has broken off.
    let silent = streams(&[&begins(), &text("one"), &closes()]);
    let outcome = run_with(&claude(), question(), vec![silent, streams(&[&text(" two"), &stops("max_tokens")])]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("one two", &FinishReason::Length));
}
