//! What a scripted engine promises, against the engine contract.

use super::*;
use crate::prompt::{Message, Role};

fn request(text: &str) -> GenerationRequest {
    GenerationRequest {
        messages: Arc::new([Message::text(Role::User, text)]),
        channel_capacity: 4,
        ..GenerationRequest::greedy(text.bytes().map(u32::from).collect(), 1_000)
    }
}

/// Reads a generation to its end: the tokens' text (the end-of-turn token as `.`) and the finish.
fn read(generation: Generation) -> (String, FinishReason) {
    let Generation { mut events, abort: _abort } = generation;
    assert_eq!(events.blocking_recv(), Some(EngineEvent::Started { cached_tokens: 0 }));
    let mut text = String::new();
    loop {
        match events.blocking_recv() {
            Some(EngineEvent::Token(token)) => text.push(u8::try_from(token).map_or('.', char::from)),
            Some(EngineEvent::Finished(finish)) => {
                assert_eq!(events.blocking_recv(), None, "nothing follows Finished");
                return (text, finish);
            }
            other => panic!("unexpected {other:?} behind {text:?}"),
        }
    }
}

fn play(json: &str, request: GenerationRequest) -> (String, FinishReason) {
    read(ScriptedEngine::from_json(json).unwrap().submit(request).unwrap())
}

#[test]
fn a_reply_ends_with_the_end_of_turn_token_and_stop() {
    let json = r#"[{"match": "hi", "deltas": ["Hel", "lo"], "delay_ms": 1}]"#;
    let engine = ScriptedEngine::from_json(json).unwrap();
    assert_eq!(engine.model().id, "scripted");
    assert_eq!(engine.health(), Ok(()));
    assert_eq!(read(engine.submit(request("oh hi")).unwrap()), ("Hello.".to_owned(), FinishReason::Stop));
}

#[test]
fn replies_end_as_the_script_says() {
    let length = r#"[{"deltas": ["ab"], "finish": "length"}]"#;
    assert_eq!(play(length, request("")), ("ab".to_owned(), FinishReason::Length));
    let error = r#"[{"deltas": ["ab"], "finish": "error"}]"#;
    let (text, finish) = play(error, request(""));
    assert_eq!(text, "ab");
    assert!(matches!(finish, FinishReason::Failed(_)));
    let (_, finish) = play(r#"[{"match": "x", "deltas": []}]"#, request("hello"));
    assert!(matches!(finish, FinishReason::Failed(text) if text.contains("no scripted reply matches")));
}

#[test]
fn max_tokens_counts_the_resumed_ones_too() {
    let json = r#"[{"deltas": ["abcdef"]}]"#;
    assert_eq!(
        play(json, GenerationRequest { max_tokens: 4, ..request("") }),
        ("abcd".to_owned(), FinishReason::Length)
    );
    let resumed: Arc<[u32]> = Arc::from([97, 98, 99]);
    let resume = GenerationRequest { max_tokens: 4, resumed, ..request("") };
    assert_eq!(play(json, resume), ("d".to_owned(), FinishReason::Length));
}

#[test]
fn a_resume_goes_on_inside_the_reply_at_every_token() {
    let json = r#"[{"deltas": ["ab", "", "cde"]}]"#;
    let tokens: Vec<u32> = "abcde".bytes().map(u32::from).collect();
    for cut in 0..=tokens.len() {
        let resume = GenerationRequest { resumed: tokens[..cut].into(), ..request("") };
        assert_eq!(play(json, resume), (format!("{}.", &"abcde"[cut..]), FinishReason::Stop));
    }
}

#[test]
fn an_abort_ends_a_delay_at_once() {
    let engine = ScriptedEngine::from_json(r#"[{"deltas": ["a"], "delay_ms": 3600000}]"#).unwrap();
    let generation = engine.submit(request("")).unwrap();
    generation.abort.abort();
    generation.abort.abort();
    let mut events = generation.events;
    let mut last = None;
    while let Some(event) = events.blocking_recv() {
        last = Some(event);
    }
    assert_eq!(last, Some(EngineEvent::Finished(FinishReason::Aborted)));
}

#[test]
fn a_reply_goes_on_when_its_abort_handle_is_dropped() {
    let engine = ScriptedEngine::from_json(r#"[{"deltas": ["a"], "delay_ms": 20}]"#).unwrap();
    let mut events = engine.submit(request("")).unwrap().events;
    let mut seen = Vec::new();
    while let Some(event) = events.blocking_recv() {
        seen.push(event);
    }
    assert_eq!(seen.last(), Some(&EngineEvent::Finished(FinishReason::Stop)));
}

#[test]
fn a_reader_that_does_not_read_holds_up_nobody_else() {
    let engine = ScriptedEngine::from_json(r#"[{"deltas": ["a long reply"]}]"#).unwrap();
    let _unread = engine.submit(request("")).unwrap();
    assert_eq!(read(engine.submit(request("")).unwrap()).1, FinishReason::Stop);
}

#[test]
fn dropping_the_engine_ends_replies_without_a_finish() {
    let engine = ScriptedEngine::from_json(r#"[{"deltas": ["a"], "delay_ms": 3600000}]"#).unwrap();
    let mut events = engine.submit(request("")).unwrap().events;
    drop(engine);
    let mut seen = Vec::new();
    while let Some(event) = events.blocking_recv() {
        seen.push(event);
    }
    assert!(!seen.iter().any(|event| matches!(event, EngineEvent::Finished(_))), "{seen:?}");
}

#[test]
fn a_prompt_longer_than_the_context_is_refused() {
    let engine = ScriptedEngine::from_json("[]").unwrap();
    let prompt = vec![0; CONTEXT_LENGTH as usize].into();
    let refused = engine.submit(GenerationRequest { prompt, ..request("") });
    assert!(matches!(refused, Err(EngineError::ContextLengthExceeded { .. })));
}

#[test]
fn an_unreadable_file_is_named() {
    let text = ScriptedEngine::from_file(Path::new("/no/such/script.json")).unwrap_err().to_string();
    assert!(text.contains("/no/such/script.json"), "{text}");
}
