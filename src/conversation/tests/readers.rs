//! Responses that nobody reads: what their policies do, and when.

use super::*;

/// A response with these policies, generating, left by its readers.
fn left(fields: impl FnOnce(&mut Create)) -> (Talk, ResponseId, Vec<Event>) {
    let mut talk = Talk::new(7);
    let id = talk.create_as("hello", fields).unwrap();
    talk.generated(vec![output(1, Piece::Text("The".to_owned()))]);
    talk.effects.clear();
    let events = read(&mut talk, false);
    (talk, id, events)
}

fn read(talk: &mut Talk, present: bool) -> Vec<Event> {
    talk.say(Input::Attendance { present, fingerprint: Some("f1".to_owned()) }).unwrap()
}

fn ended_as(reason: &str) -> ResponseStatus {
    ResponseStatus::Ended(Ending::Incomplete { reason: reason.to_owned() })
}

fn policy(on_disconnect: OnDisconnect, grace_ms: u64) -> impl FnOnce(&mut Create) {
    move |create| {
        create.policies.on_disconnect = Some(on_disconnect);
        create.policies.grace_ms = Some(grace_ms);
    }
}

#[test]
fn a_response_of_a_conversation_goes_on_unread() {
    let (mut talk, id, events) = left(|_| ());
    assert_eq!((events, talk.state.next_due_ms()), (vec![], None));
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.state.response(id).unwrap().status.as_str(), "completed");
}

#[test]
fn a_foreground_response_without_a_conversation_ends_after_thirty_seconds_unread() {
    let (mut talk, id, _) = left(|create| create.in_conversation = false);
    let generation = talk.generation();
    assert_eq!(talk.state.next_due_ms(), Some(talk.now_ms + 30_000));
    talk.now_ms += 29_000;
    assert_eq!(talk.say(Input::Tick).unwrap(), []);
    talk.now_ms += 1_000;
    talk.say(Input::Tick).unwrap();
    assert_eq!(talk.state.response(id).unwrap().status, ended_as("disconnected"));
    assert_eq!(talk.effects, [Effect::AbortGeneration { generation }]);
}

#[test]
fn a_request_that_is_not_stored_ends_at_once() {
    let (talk, id, _) = left(|create| (create.in_conversation, create.config.store) = (false, false));
    assert_eq!(talk.state.response(id).unwrap().status, ended_as("disconnected"));
}

#[test]
fn a_reader_that_comes_back_in_time_wins() {
    let (mut talk, id, _) = left(policy(OnDisconnect::Cancel, 100));
    assert_eq!(names(&read(&mut talk, true)), ["response_attended"]);
    talk.now_ms += 1_000;
    assert_eq!(talk.say(Input::Tick).unwrap(), []);
    assert_eq!(talk.state.response(id).unwrap().status.as_str(), "queued");
}

#[test]
fn a_waiting_steer_of_a_response_that_nobody_reads_fails_with_it() {
    let (mut talk, id, _) = left(policy(OnDisconnect::Cancel, 100));
    talk.steer_as(id, "later", |steer| steer.when = When::After).unwrap();
    talk.now_ms += 100;
    talk.say(Input::Tick).unwrap();
    let steer = talk.state.interventions.values().next().unwrap();
    let InterventionStatus::Failed { error } = &steer.status else { panic!("{steer:?}") };
    assert_eq!(error.code, crate::error::Code::Disconnected);
}

#[test]
fn a_paused_response_stands_at_a_token_and_goes_on_for_the_next_reader() {
    let (mut talk, id, _) = left(policy(OnDisconnect::Pause, 100));
    let generation = talk.generation();
    talk.now_ms += 100;
    assert_eq!(names(&talk.say(Input::Tick).unwrap()), ["response_paused"]);
    assert_eq!(talk.effects, [Effect::AbortGeneration { generation }]);
    assert_eq!((talk.state.status(), talk.state.phase()), ("running", Some("paused")));
    // What was in flight is dropped; a restart keeps it as it is.
    let late = vec![output(9, Piece::Text(" late".to_owned()))];
    assert_eq!(talk.say(Input::Generated { generation, outputs: late }).unwrap(), []);
    assert_eq!(talk.say(Input::Restarted { fingerprint: None }).unwrap(), []);
    assert_eq!(talk.state.phase(), Some("paused"));
    assert_eq!(names(&read(&mut talk, true)), ["response_attended", "response_resumed"]);
    assert_eq!(talk.state.response(id).unwrap().tokens(), [1]);
    talk.generated(vec![output(2, Piece::Text(" end".to_owned()))]);
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.state.response(id).unwrap().output[0].item.text(), "The end");
}

#[test]
fn steer_and_cancel_act_at_once_on_a_paused_response() {
    let paused = || {
        let (mut talk, id, _) = left(policy(OnDisconnect::Pause, 0));
        talk.say(Input::Tick).unwrap();
        (talk, id)
    };
    let (mut talk, id) = paused();
    talk.cancel(id);
    assert_eq!(talk.state.response(id).unwrap().status, ResponseStatus::Ended(Ending::Cancelled));
    // The item that is open would never end, so a steer does not wait for its end.
    for when in [When::Now, When::Item] {
        let (mut talk, id) = paused();
        talk.steer_as(id, "shorter", |steer| steer.when = when).unwrap();
        assert_eq!(talk.state.response(id).unwrap().status, ended_as("steered"));
        assert_eq!(talk.effects.len(), 2, "the successor runs: {:?}", talk.effects);
    }
}

#[test]
fn a_steer_that_waits_for_an_item_cuts_a_response_instead_of_its_pause() {
    let (mut talk, id, _) = left(policy(OnDisconnect::Pause, 100));
    talk.steer_as(id, "shorter", |steer| steer.when = When::Item).unwrap();
    talk.now_ms += 100;
    talk.say(Input::Tick).unwrap();
    assert_eq!(talk.state.response(id).unwrap().status, ended_as("steered"));
    assert_eq!(talk.state.phase(), Some("queued"), "the successor is to run");
}

#[test]
fn an_unread_response_generates_only_so_many_tokens() {
    let (mut talk, id, events) = left(|create| create.policies.max_unattended_tokens = Some(3));
    assert_eq!(names(&events), ["response_unattended"]);
    talk.generated(vec![output(2, Piece::Text(" a".to_owned())), output(3, Piece::Text(" b".to_owned()))]);
    assert!(!talk.state.response(id).unwrap().status.is_terminal());
    talk.generated(vec![output(4, Piece::Text(" c".to_owned()))]);
    assert_eq!(talk.state.response(id).unwrap().status, ended_as("max_unattended_tokens"));
}

#[test]
fn after_a_restart_the_grace_counts_anew() {
    let (mut talk, _, _) = left(policy(OnDisconnect::Cancel, 100));
    talk.now_ms += 5_000;
    let events = talk.say(Input::Restarted { fingerprint: None }).unwrap();
    assert_eq!(names(&events), ["response_unattended", "response_resumed"]);
    assert_eq!(talk.state.next_due_ms(), Some(talk.now_ms + 100));
}

#[test]
fn a_response_that_is_not_to_survive_a_restart_fails_with_it() {
    let (mut talk, id, _) = left(|create| create.policies.on_restart = Some(OnRestart::Fail));
    talk.say(Input::Restarted { fingerprint: Some("f1".to_owned()) }).unwrap();
    let ResponseStatus::Ended(Ending::Failed { error }) = &talk.state.response(id).unwrap().status else { panic!() };
    assert_eq!(error.code, crate::error::Code::ServerRestarted);
}

#[test]
fn a_crash_of_a_relaxed_response_begins_a_new_epoch_and_older_cursors_go_back() {
    let (mut talk, _, _) = left(|create| create.policies.durability = Some(FlushPolicy::Relaxed));
    let last = talk.state.last_seq;
    let events = talk.say(Input::Restarted { fingerprint: Some("f1".to_owned()) }).unwrap();
    assert_eq!(names(&events), ["conversation_rewound", "response_resumed"]);
    assert_eq!(talk.state.epoch(), 1);
    assert_eq!((talk.state.resume_point(0, last + 40), talk.state.resume_point(0, 3)), (last, 3));
    assert_eq!(talk.state.resume_point(1, last + 1), last + 1);
}

#[test]
fn what_a_conversation_was_opened_with_holds_for_its_responses() {
    let mut talk = Talk { state: State::default(), ..Talk::new(3) };
    let defaults = Policies { on_disconnect: Some(OnDisconnect::Pause), grace_ms: Some(7), ..Policies::default() };
    let (id, principal) = (ConversationId::draw(&mut talk.fresh), "local".to_owned());
    talk.say(Input::Open { id, principal, tenant: None, metadata: Map::new(), items: vec![], fork: None, defaults })
        .unwrap();
    talk.create_as("a", |create| create.policies.grace_ms = Some(9)).unwrap();
    let policy = talk.state.active().unwrap().config.policy;
    assert_eq!((policy.on_disconnect, policy.grace_ms), (OnDisconnect::Pause, 9));
}
