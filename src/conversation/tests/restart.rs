//! The process was killed at any point: what the journal holds decides how it goes on.

use super::*;
use crate::error::Code;

fn restarted(talk: &mut Talk, fingerprint: &str) -> Vec<Event> {
    talk.effects.clear();
    talk.say(Input::Restarted { fingerprint: Some(fingerprint.to_owned()) }).unwrap()
}

#[test]
fn a_queued_response_is_queued_again_under_the_same_id() {
    let mut talk = Talk::new(5);
    let id = talk.create("hello").unwrap();
    restarted(&mut talk, "f1");
    let generation = talk.generation();
    assert_eq!(talk.effects, [Effect::StartGeneration { generation, response_id: id }]);
}

#[test]
fn a_decoding_response_goes_on_behind_its_durable_tokens() {
    let (mut talk, id) = Talk::generating(&["The", " plan"]);
    let old = talk.generation();
    let events = restarted(&mut talk, "f1");
    assert_eq!(events, [Event::ResponseResumed { response_id: id, attempt: 1, exact: true }]);
    assert_ne!(talk.generation(), old, "results of the generation before the crash are fenced off");
    assert_eq!(talk.state.response(id).unwrap().tokens(), [0, 1]);
}

#[test]
fn another_build_or_device_resumes_inexactly() {
    let (mut talk, id) = Talk::generating(&["The"]);
    assert_eq!(restarted(&mut talk, "f2"), [Event::ResponseResumed { response_id: id, attempt: 1, exact: false }]);
}

#[test]
fn a_journaled_cancel_is_written_before_any_token_is_sampled() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.cancel(id);
    restarted(&mut talk, "f1");
    assert_eq!(talk.state.response(id).unwrap().status, ResponseStatus::Ended(Ending::Cancelled));
    assert_eq!(talk.effects, []);
}

#[test]
fn three_restarts_without_a_new_token_fail_the_response() {
    let (mut talk, id) = Talk::generating(&["The"]);
    for _ in 0..3 {
        restarted(&mut talk, "f1");
    }
    restarted(&mut talk, "f1");
    match &talk.state.response(id).unwrap().status {
        ResponseStatus::Ended(Ending::Failed { error }) => assert_eq!(error.code, Code::ServerRestarted),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stop_in_good_order_is_no_attempt() {
    let (mut talk, id) = Talk::generating(&["The"]);
    for _ in 0..10 {
        let events = talk.say(Input::Stopping).unwrap();
        assert_eq!(events, [Event::ResponseSuspended { response_id: id }]);
        let events = restarted(&mut talk, "f1");
        assert_eq!(events, [Event::ResponseResumed { response_id: id, attempt: 0, exact: true }]);
    }
    restarted(&mut talk, "f1");
    assert_eq!(talk.state.response(id).unwrap().attempts, 1, "a crash still is one");
}

#[test]
fn a_cancelled_response_is_not_suspended_but_ended_after_the_restart() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.cancel(id);
    assert_eq!(talk.say(Input::Stopping).unwrap(), []);
    restarted(&mut talk, "f1");
    assert_eq!(talk.state.response(id).unwrap().status, ResponseStatus::Ended(Ending::Cancelled));
}

#[test]
fn a_new_token_forgets_the_attempts() {
    let (mut talk, _) = Talk::generating(&["The"]);
    for token in 1..10 {
        restarted(&mut talk, "f1");
        talk.generated(vec![output(token, Piece::Text(" a".to_owned()))]);
    }
    assert!(talk.state.active().is_some());
}

#[test]
fn a_finished_conversation_has_nothing_to_do() {
    let (mut talk, _) = Talk::generating(&["The"]);
    talk.ended(GenerationEnd::Stop);
    assert_eq!(restarted(&mut talk, "f1"), []);
    assert_eq!(talk.effects, []);
}

#[test]
fn draining_leaves_the_response_to_the_restart() {
    let (mut talk, _) = Talk::generating(&["The"]);
    assert_eq!(talk.ended(GenerationEnd::Aborted), []);
    assert!(talk.state.active().is_some());
}
