//! Calls that workers run: claimed for a time, answered once, timed, offered again only where that is safe.

use std::sync::Arc;

use super::*;
use crate::error::Code;
use crate::ids::CallId;

/// A conversation whose response made these calls and still streams; the tools have this policy.
fn calling(names: &[&str], policy: ToolPolicy) -> (Talk, ResponseId, Vec<CallId>) {
    let mut talk = Talk::new(7);
    let id = talk
        .create_as("hello", |create| {
            create.config.tool_policies = names.iter().map(|name| ((*name).to_owned(), policy)).collect();
            create.config.max_parallel_tool_calls = Some(2);
        })
        .unwrap();
    for (index, name) in (0_u32..).zip(names) {
        talk.generated(call(index * 3, name, "{}"));
    }
    let calls = talk.state.calls.iter().map(|call| call.call_id.clone()).collect();
    (talk, id, calls)
}

fn call_ref(call_id: &CallId) -> CallRef {
    CallRef { response_id: None, call_id: call_id.clone(), attempt: None }
}

fn claim(talk: &mut Talk, call_id: &CallId) -> Result<Vec<Event>, Reject> {
    talk.say(Input::ClaimCall { call: call_ref(call_id), lease_ms: 1_000 })
}

fn answer(talk: &mut Talk, call_id: &CallId, output: &str) -> Result<Vec<Event>, Reject> {
    talk.say(Input::AnswerCall { call: call_ref(call_id), output: output.to_owned(), is_error: false })
}

/// What the answer to a result says.
fn answered(talk: &Talk, call_id: &CallId, output: &str) -> Answer {
    let input = Input::AnswerCall { call: call_ref(call_id), output: output.to_owned(), is_error: false };
    decide(&talk.state, input, Now { unix_ms: talk.now_ms, fresh: FreshIds::from_seed(1) }).unwrap().answer
}

fn outputs(talk: &Talk) -> Vec<String> {
    talk.state.active().unwrap().input.iter().map(Item::text).collect()
}

#[test]
fn results_may_come_while_the_response_streams_and_the_turn_goes_on_when_all_are_there() {
    let (mut talk, id, calls) = calling(&["a", "b"], ToolPolicy::default());
    answer(&mut talk, &calls[1], "second").unwrap();
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.state.status(), "requires_action");
    let Answer::Answered { successor_id, open_calls, .. } = answered(&talk, &calls[0], "first") else { panic!() };
    assert!(successor_id.is_some() && open_calls.is_empty());
    answer(&mut talk, &calls[0], "first").unwrap();
    assert_eq!(outputs(&talk), ["first", "second"], "in the order of the calls");
    assert_eq!(talk.state.active().unwrap().previous, Some(id));
}

#[test]
fn a_stream_that_ends_with_all_results_there_goes_on_by_itself() {
    let (mut talk, _, calls) = calling(&["a"], ToolPolicy::default());
    answer(&mut talk, &calls[0], "first").unwrap();
    let events = talk.ended(GenerationEnd::Stop);
    assert_eq!(names(&events), ["response_ended", "response_created"]);
}

#[test]
fn the_same_result_again_is_the_same_answer_and_another_one_a_conflict() {
    let (mut talk, _, calls) = calling(&["a"], ToolPolicy::default());
    talk.ended(GenerationEnd::Stop);
    answer(&mut talk, &calls[0], "rain").unwrap();
    let log = talk.log.clone();
    let Answer::Answered { replayed, successor_id, .. } = answered(&talk, &calls[0], "rain") else { panic!() };
    assert!(replayed && successor_id == Some(talk.state.active().unwrap().id));
    assert_eq!(answer(&mut talk, &calls[0], "sun").unwrap_err().code, Code::ToolResultConflict);
    assert_eq!(talk.log, log);
}

#[test]
fn a_result_given_again_behind_the_clients_own_request_does_not_name_that_as_what_the_server_went_on_with() {
    let own = |talk: &Talk, call: &CallId| {
        let Answer::Answered { accepted_seq, open_calls, successor_id, replayed } = answered(talk, call, "rain") else {
            panic!("the result is there")
        };
        assert_eq!((accepted_seq, replayed, open_calls), (talk.state.call(call).unwrap().seq, true, vec![]));
        successor_id
    };
    // It closes the other call.
    let (mut talk, _, calls) = calling(&["a", "b"], ToolPolicy::default());
    talk.ended(GenerationEnd::Stop);
    answer(&mut talk, &calls[0], "rain").unwrap();
    talk.create("never mind").unwrap();
    assert_eq!(outputs(&talk), ["rain", "not started", "never mind"]);
    assert_eq!(own(&talk, &calls[0]), None);
    let Answer::Refused(late) = answered(&talk, &calls[1], "late") else { panic!("the other call is closed") };
    assert_eq!((late.code, &late.details["reason"]), (Code::ToolCallClosed, &"superseded".into()));
    // It brings the other result.
    let (mut talk, _, calls) = calling(&["a", "b"], ToolPolicy::default());
    talk.ended(GenerationEnd::Stop);
    answer(&mut talk, &calls[0], "rain").unwrap();
    let body = ItemBody::FunctionCallOutput {
        call_id: calls[1].clone(),
        output: "rain".into(),
        synthetic: false,
        is_error: false,
        call_kind: CallKind::Function,
    };
    let item = Item { id: ItemId::draw(&mut talk.fresh), status: ItemStatus::Completed, body };
    talk.create_with(vec![item], None).unwrap();
    assert_eq!([own(&talk, &calls[0]), own(&talk, &calls[1])], [None, None]);
    // Nobody goes on with an interrupted turn but the client.
    let (mut talk, id, calls) = calling(&["a"], ToolPolicy::default());
    talk.say(Input::Interrupt { response_id: id }).unwrap();
    answer(&mut talk, &calls[0], "rain").unwrap();
    talk.create("never mind").unwrap();
    assert_eq!(own(&talk, &calls[0]), None);
}

#[test]
fn a_late_result_is_recorded_once_and_never_reaches_the_model() {
    let (mut talk, id, calls) = calling(&["a"], ToolPolicy::default());
    talk.ended(GenerationEnd::Stop);
    talk.cancel(id);
    let Answer::Refused(reject) = answered(&talk, &calls[0], "late") else { panic!() };
    assert_eq!((reject.code, &reject.details["reason"]), (Code::ToolCallClosed, &"cancelled".into()));
    let events = answer(&mut talk, &calls[0], "late").unwrap();
    assert_eq!(names(&events), ["tool_result_discarded"]);
    assert_eq!(answer(&mut talk, &calls[0], "late").unwrap(), []);
    talk.create("go on").unwrap();
    assert_eq!(outputs(&talk), ["not started", "go on"]);
}

#[test]
fn an_unknown_call_is_not_found() {
    let (mut talk, _, _) = calling(&["a"], ToolPolicy::default());
    let unknown = CallId("callunknown".to_owned());
    assert_eq!(answer(&mut talk, &unknown, "x").unwrap_err().code, Code::ToolCallNotFound);
    assert_eq!(claim(&mut talk, &unknown).unwrap_err().code, Code::ToolCallNotFound);
}

#[test]
fn a_claimed_call_is_one_workers_until_its_lease_ends() {
    let (mut talk, _, calls) = calling(&["a", "b", "c"], ToolPolicy::default());
    claim(&mut talk, &calls[0]).unwrap();
    assert_eq!(claim(&mut talk, &calls[0]).unwrap_err().code, Code::ToolCallClaimed);
    claim(&mut talk, &calls[1]).unwrap();
    let reject = claim(&mut talk, &calls[2]).unwrap_err();
    assert!(reject.message.contains("no more may be at once"), "max_parallel_tool_calls: {reject:?}");
    answer(&mut talk, &calls[0], "done").unwrap();
    claim(&mut talk, &calls[2]).unwrap();
    assert_eq!(claim(&mut talk, &calls[0]).unwrap_err().code, Code::ToolCallClosed);
}

#[test]
fn a_lease_that_ends_closes_a_call_that_may_not_run_twice() {
    let (mut talk, _, calls) = calling(&["a"], ToolPolicy::default());
    claim(&mut talk, &calls[0]).unwrap();
    talk.ended(GenerationEnd::Stop);
    talk.now_ms = talk.state.next_due_ms().unwrap();
    let events = talk.say(Input::Tick).unwrap();
    assert_eq!(names(&events), ["tool_call_closed", "response_created"]);
    assert_eq!(outputs(&talk), ["outcome unknown, may have run"]);
    assert_eq!(talk.state.calls[0].status, CallStatus::Unknown);
}

#[test]
fn a_lease_that_ends_offers_an_idempotent_call_again_and_fences_the_first_worker() {
    let policy = ToolPolicy { idempotent: true, max_attempts: 2, ..ToolPolicy::default() };
    let (mut talk, _, calls) = calling(&["a"], policy);
    claim(&mut talk, &calls[0]).unwrap();
    talk.now_ms = talk.state.next_due_ms().unwrap();
    assert_eq!(names(&talk.say(Input::Tick).unwrap()), ["tool_call_requested"]);
    let stale = CallRef { attempt: Some(1), ..call_ref(&calls[0]) };
    let events = talk.say(Input::AnswerCall { call: stale, output: "old".to_owned(), is_error: false }).unwrap();
    assert_eq!(names(&events), ["tool_result_discarded"]);
    claim(&mut talk, &calls[0]).unwrap();
    // The last attempt is lost, too.
    talk.now_ms = talk.state.next_due_ms().unwrap();
    assert_eq!(names(&talk.say(Input::Tick).unwrap()), ["tool_call_closed"]);
}

#[test]
fn a_call_without_a_result_in_time_is_an_error_that_the_model_sees() {
    let policy = ToolPolicy { timeout_ms: Some(500), ..ToolPolicy::default() };
    let (mut talk, _, _) = calling(&["a"], policy);
    talk.ended(GenerationEnd::Stop);
    talk.now_ms = talk.state.next_due_ms().unwrap();
    talk.say(Input::Tick).unwrap();
    assert_eq!(outputs(&talk), ["tool_timeout: no result within 500 ms"]);
}

#[test]
fn a_restart_offers_a_claimed_call_again_only_if_it_may_run_twice() {
    for (idempotent, expected) in [(true, "tool_call_requested"), (false, "tool_call_closed")] {
        let (mut talk, _, calls) = calling(&["a"], ToolPolicy { idempotent, ..ToolPolicy::default() });
        talk.ended(GenerationEnd::Stop);
        claim(&mut talk, &calls[0]).unwrap();
        let events = talk.say(Input::Restarted { fingerprint: None }).unwrap();
        assert_eq!(names(&events)[0], expected);
    }
}

#[test]
fn a_stop_in_good_order_leaves_a_claim_to_its_worker() {
    let (mut talk, _, calls) = calling(&["a"], ToolPolicy::default());
    talk.ended(GenerationEnd::Stop);
    claim(&mut talk, &calls[0]).unwrap();
    assert_eq!(names(&talk.say(Input::Stopping).unwrap()), ["conversation_suspended"]);
    assert_eq!(names(&talk.say(Input::Restarted { fingerprint: None }).unwrap()), ["conversation_resumed"]);
    let mut crashed = talk.clone();
    answer(&mut talk, &calls[0], "done").unwrap();
    assert_eq!(outputs(&talk), ["done"]);
    // A crash behind a stop in good order is a crash.
    assert_eq!(names(&crashed.say(Input::Restarted { fingerprint: None }).unwrap())[0], "tool_call_closed");
}

#[test]
fn an_unclaimed_call_still_waits_after_a_restart() {
    let (mut talk, _, _) = calling(&["a"], ToolPolicy::default());
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.say(Input::Restarted { fingerprint: None }).unwrap(), []);
    assert_eq!(talk.state.status(), "requires_action");
}

#[test]
fn a_cancel_while_a_claimed_call_runs_says_that_it_may_have_run() {
    let (mut talk, id, calls) = calling(&["a"], ToolPolicy::default());
    claim(&mut talk, &calls[0]).unwrap();
    talk.cancel(id);
    talk.ended(GenerationEnd::Aborted);
    talk.create("go on").unwrap();
    assert_eq!(outputs(&talk), ["outcome unknown, may have run", "go on"]);
}

#[test]
fn nothing_goes_on_with_the_results_of_a_response_that_was_ended() {
    // Left by its readers, cancelled across a restart, failed by a restart, interrupted.
    let (mut talk, _, calls) = calling(&["a"], ToolPolicy::default());
    answer(&mut talk, &calls[0], "first").unwrap();
    let mut left = talk.clone();
    let policy = |talk: &mut Talk, change: fn(&mut Policy)| {
        let last = talk.state.responses.last_mut().unwrap();
        change(&mut std::sync::Arc::make_mut(last).config.policy);
    };
    policy(&mut left, |policy| (policy.on_disconnect, policy.grace_ms) = (OnDisconnect::Cancel, 10));
    left.say(Input::Attendance { present: false, fingerprint: None }).unwrap();
    left.now_ms += 100;
    assert_eq!(names(&left.say(Input::Tick).unwrap()), ["response_ended"]);

    let id = talk.state.active().unwrap().id;
    let mut cancelled = talk.clone();
    cancelled.cancel(id);
    assert_eq!(names(&cancelled.say(Input::Restarted { fingerprint: None }).unwrap()), ["response_ended"]);

    let mut failed = talk.clone();
    policy(&mut failed, |policy| policy.on_restart = OnRestart::Fail);
    assert_eq!(names(&failed.say(Input::Restarted { fingerprint: None }).unwrap()), ["response_ended"]);

    let timed = ToolPolicy { timeout_ms: Some(50), ..ToolPolicy::default() };
    let (mut interrupted, id, _) = calling(&["a"], timed);
    interrupted.say(Input::Interrupt { response_id: id }).unwrap();
    interrupted.now_ms += 100;
    assert_eq!(names(&interrupted.say(Input::Tick).unwrap()), ["tool_call_closed"]);
    for talk in [left, cancelled, failed, interrupted] {
        assert_eq!(talk.state.status(), "idle");
    }
}

#[test]
fn a_deleted_response_object_stops_no_tool_turn() {
    let (mut talk, id, calls) = calling(&["a"], ToolPolicy::default());
    talk.ended(GenerationEnd::Stop);
    talk.say(Input::DeleteResponse { response_id: id }).unwrap();
    answer(&mut talk, &calls[0], "first").unwrap();
    assert_eq!(outputs(&talk), ["first"]);
}

#[test]
fn a_deleted_call_holds_up_nobody() {
    let (mut talk, id, calls) = calling(&["a", "b"], ToolPolicy::default());
    talk.ended(GenerationEnd::Stop);
    let item = |talk: &Talk, call: usize| talk.state.response(id).unwrap().output[call].item.id;
    // What awaited it has its turn.
    let mut pending = talk.clone();
    pending.steer_as(id, "and Rome", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    for _ in 0..2 {
        let item_id = item(&pending, 0);
        pending.say(Input::DeleteItem { item_id }).unwrap();
    }
    assert_eq!(outputs(&pending), ["and Rome"]);
    // The turn goes on with the results that are there.
    answer(&mut talk, &calls[0], "first").unwrap();
    let item_id = item(&talk, 1);
    talk.say(Input::DeleteItem { item_id }).unwrap();
    assert_eq!(outputs(&talk), ["first"]);
}

#[test]
fn a_result_for_an_attempt_that_never_was_is_not_found_and_alternating_ones_are_recorded_once() {
    let policy = ToolPolicy { idempotent: true, ..ToolPolicy::default() };
    let (mut talk, id, calls) = calling(&["a"], policy);
    talk.ended(GenerationEnd::Stop);
    for _ in 0..2 {
        claim(&mut talk, &calls[0]).unwrap();
        talk.now_ms = talk.state.next_due_ms().unwrap();
        talk.say(Input::Tick).unwrap();
    }
    talk.cancel(id);
    let late = |talk: &mut Talk, attempt| {
        let call = CallRef { attempt: Some(attempt), ..call_ref(&calls[0]) };
        talk.say(Input::AnswerCall { call, output: "x".to_owned(), is_error: false })
    };
    assert_eq!(late(&mut talk, 4).unwrap_err().code, Code::ToolCallNotFound);
    let length = talk.log.len();
    for attempt in [1, 2, 1, 3, 2, 1, 3] {
        late(&mut talk, attempt).unwrap();
    }
    assert_eq!(talk.log.len(), length + 3);
}

#[test]
fn a_cancel_that_closes_a_call_leaves_the_conversation_idle_though_another_has_its_result() {
    let (mut talk, id, calls) = calling(&["a", "b"], ToolPolicy::default());
    answer(&mut talk, &calls[0], "first").unwrap();
    talk.ended(GenerationEnd::Stop);
    talk.cancel(id);
    for input in [Input::Tick, Input::Restarted { fingerprint: None }] {
        talk.say(input).unwrap();
        assert_eq!(talk.state.status(), "idle", "nobody asked for a turn");
    }
    talk.create("and now?").unwrap();
    assert_eq!(outputs(&talk), ["first", "not started", "and now?"]);
}

#[test]
fn of_results_that_come_together_each_that_is_late_is_recorded_and_none_is_taken() {
    let (mut talk, response_id, calls) =
        calling(&["a", "b", "c"], ToolPolicy { timeout_ms: Some(5), ..ToolPolicy::default() });
    answer(&mut talk, &calls[0], "first").unwrap();
    talk.now_ms += 5;
    talk.say(Input::Tick).unwrap();
    let mut results = Vec::new();
    for call_id in &calls {
        let body = ItemBody::FunctionCallOutput {
            call_id: call_id.clone(),
            output: "first".to_owned(),
            synthetic: false,
            is_error: false,
            call_kind: CallKind::Function,
        };
        results.push(Item { id: ItemId::draw(&mut talk.fresh), status: ItemStatus::Completed, body });
    }
    let events = talk.say(Input::AnswerCalls { response_id, results }).unwrap();
    assert_eq!(names(&events), ["tool_result_discarded", "tool_result_discarded"]);
}

#[test]
fn behind_open_calls_the_next_prompt_is_foreseen_unless_the_request_says_otherwise() {
    for (calls, wanted, foreseen) in
        [(&["a"][..], None, true), (&["a"], Some(false), false), (&[], None, false), (&[], Some(true), true)]
    {
        let (mut talk, response_id, _) = calling(calls, ToolPolicy::default());
        let active = talk.state.responses.last_mut().map(Arc::make_mut).unwrap();
        active.config.extras.speculative_prefill = wanted;
        talk.ended(GenerationEnd::Stop);
        let expected: &[Effect] = if foreseen { &[Effect::Foresee { response_id }] } else { &[] };
        let effects: Vec<_> =
            talk.effects.into_iter().filter(|effect| matches!(effect, Effect::Foresee { .. })).collect();
        assert_eq!(effects, expected, "{calls:?} {wanted:?}");
    }
}
