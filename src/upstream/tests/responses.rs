//! Upstreams that speak OpenAI's Responses.

use super::*;

fn thinker() -> UpstreamConfig {
    UpstreamConfig { kind: Some(UpstreamKind::Openai), responses: true, ..config() }
}

fn event(event: &Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
}

/// The beginning of a message with this text.
fn text(text: &str) -> String {
    let added = json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}});
    event(&added) + &event(&json!({"type": "response.output_text.delta", "output_index": 0, "delta": text}))
}

fn stops(status: &str) -> String {
    let usage = json!({"input_tokens": 8, "output_tokens": 5});
    let response = json!({"object": "response", "status": status, "error": null, "usage": usage,
        "incomplete_details": {"reason": "max_output_tokens"}});
    event(&json!({"type": format!("response.{status}"), "response": response}))
}

fn fails(code: &str) -> String {
    let error = json!({"code": code, "message": "no"});
    event(&json!({"type": "response.failed", "response": {"status": "failed", "error": error}}))
}

#[tokio::test(start_paused = true)]
async fn a_response_that_breaks_off_is_gone_on_with_and_one_that_was_not_begun_asked_for_again() {
    let busy = streams(&[&fails("rate_limit_exceeded")]);
    let breaks = streams(&[&text("one tw"), &fails("server_error")]);
    let rest = streams(&[&text("o"), &stops("completed")]);
    let outcome = run_with(&thinker(), question(), vec![busy, breaks, rest]).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("one two", &FinishReason::Stop));
    let input = &outcome.requests[2]["input"];
    assert_eq!((&input[1]["content"][0]["text"], &input[2]["role"]), (&json!("one tw"), &json!("user")));
    // What is in front of the break was counted as its prompt.
    let counted = Counted { input_tokens: 7, output_tokens: 6, ..Counted::default() };
    assert_eq!(outcome.events.last(), Some(&EngineEvent::Counted(counted)));
    // A stream that ends without an end has broken off, and an error is one wherever it stands.
    let error = event(&json!({"type": "error", "code": "server_error", "message": "no"}));
    let scenes = vec![streams(&[&text("one")]), streams(&[&error]), streams(&[&text(" two"), &stops("incomplete")])];
    let outcome = run_with(&thinker(), question(), scenes).await;
    assert_eq!((outcome.text().as_str(), &outcome.finish), ("one two", &FinishReason::Length));
}

#[tokio::test(start_paused = true)]
async fn what_a_response_is_refused_for_is_told_as_our_codes() {
    let outcome = run_with(&thinker(), question(), vec![streams(&[&fails("context_length_exceeded")])]).await;
    assert!(matches!(outcome.finish, FinishReason::Refused(Refusal::ContextLength, _)), "{outcome:?}");
    let outcome = run_with(&thinker(), question(), vec![streams(&[&fails("invalid_prompt")])]).await;
    assert!(matches!(outcome.finish, FinishReason::Refused(Refusal::Input, _)), "{outcome:?}");
}
