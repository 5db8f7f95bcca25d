//! Instructions that wait: for an item, for results, for their turn; and those that come late or are taken back.

use super::*;
use crate::error::Code;
use crate::ids::CallId;

fn status(talk: &Talk, number: usize) -> &'static str {
    let mut all: Vec<_> = talk.state.interventions.values().collect();
    all.sort_by_key(|intervention| intervention.accepted_seq);
    all[number].status.as_str()
}

/// The text of everything that the running response answers, last turn only.
fn asked(talk: &Talk) -> Vec<String> {
    talk.state.active().unwrap().input.iter().map(Item::text).collect()
}

/// A response that has ended with one open call.
fn with_open_call() -> (Talk, ResponseId, CallId) {
    let (mut talk, id) = Talk::generating(&["Looking."]);
    talk.generated(call(10, "weather", "{}"));
    talk.ended(GenerationEnd::Stop);
    let call_id = talk.state.open_calls().next().unwrap().call_id.clone();
    (talk, id, call_id)
}

fn answer(talk: &mut Talk, call_id: &CallId, output: &str) -> Vec<Event> {
    let call = CallRef { response_id: None, call_id: call_id.clone(), attempt: None };
    talk.say(Input::AnswerCall { call, output: output.to_owned(), is_error: false }).unwrap()
}

#[test]
fn a_steer_for_the_item_waits_until_it_ends_and_drops_what_comes_behind() {
    let (mut talk, id) = Talk::generating(&[]);
    talk.generated(vec![output(1, Piece::Reasoning("hm".to_owned()))]);
    let events = talk.steer_as(id, "in French", |steer| steer.when = When::Item).unwrap();
    assert_eq!(names(&events), ["intervention_accepted"]);
    talk.generated(vec![output(2, Piece::Reasoning(" so".to_owned()))]);
    let events = talk.generated(vec![output(3, Piece::Text("The".to_owned()))]);
    assert_eq!(
        names(&events),
        [
            "output_done",
            "content_part_done",
            "output_item_done",
            "intervention_committed",
            "response_ended",
            "response_created",
        ]
    );
    let old = talk.state.response(id).unwrap();
    assert_eq!((old.tokens(), old.output[0].item.status), (vec![1, 2], ItemStatus::Completed));
    assert_eq!(asked(&talk), ["in French"]);
}

#[test]
fn a_steer_for_the_item_that_finds_none_open_cuts_at_once() {
    let (mut talk, id) = Talk::generating(&[]);
    talk.steer_as(id, "in French", |steer| steer.when = When::Item).unwrap();
    assert_eq!(status(&talk, 0), "committed");
}

#[test]
fn a_steer_accepted_before_a_natural_end_is_never_late() {
    for (end, status) in [(GenerationEnd::Stop, "completed"), (GenerationEnd::Length, "incomplete")] {
        let (mut talk, id) = Talk::generating(&["The"]);
        talk.steer_as(id, "in French", |steer| steer.when = When::Item).unwrap();
        let events = talk.ended(end);
        assert_eq!(names(&events)[3..], ["intervention_committed", "response_ended", "response_created"]);
        assert_eq!(talk.state.response(id).unwrap().status.as_str(), status);
        assert_eq!(asked(&talk), ["in French"]);
    }
}

#[test]
fn the_first_boundary_commits_all_but_those_that_are_turns_of_their_own() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.steer_as(id, "later", |steer| steer.when = When::After).unwrap();
    talk.steer_as(id, "first", |steer| steer.when = When::Item).unwrap();
    talk.steer(id, "second").unwrap();
    assert_eq!(asked(&talk), ["first", "second"]);
    assert_eq!(status(&talk, 0), "accepted");
    talk.ended(GenerationEnd::Stop);
    assert_eq!((asked(&talk), status(&talk, 0)), (vec!["later".to_owned()], "committed"));
}

#[test]
fn a_replacing_steer_gives_the_earlier_ones_back() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.steer_as(id, "first", |steer| steer.when = When::Item).unwrap();
    talk.steer_as(id, "second", |steer| (steer.when, steer.on_multiple) = (When::Item, OnMultiple::Replace)).unwrap();
    assert_eq!((status(&talk, 0), status(&talk, 1)), ("superseded", "accepted"));
    talk.ended(GenerationEnd::Stop);
    assert_eq!(asked(&talk), ["second"]);
}

#[test]
fn an_enqueued_late_steer_becomes_the_next_turn() {
    let (mut talk, id) = Talk::generating(&["done"]);
    talk.ended(GenerationEnd::Stop);
    talk.steer_as(id, "more", |steer| steer.on_late = OnLate::Enqueue).unwrap();
    assert_eq!(asked(&talk), ["more"]);
    // Another response runs now: it waits behind that one.
    talk.steer_as(id, "even more", |steer| steer.on_late = OnLate::Enqueue).unwrap();
    assert_eq!(status(&talk, 1), "accepted");
    talk.ended(GenerationEnd::Stop);
    assert_eq!(asked(&talk), ["even more"]);
}

#[test]
fn a_steer_that_awaits_calls_is_committed_behind_their_results_in_order() {
    let (mut talk, id, call_id) = with_open_call();
    let events = talk.steer_as(id, "and Rome", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    assert_eq!(names(&events), ["intervention_accepted", "intervention_pending"]);
    talk.steer_as(id, "and Paris", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    let events = answer(&mut talk, &call_id, "rain");
    assert_eq!(
        names(&events),
        ["tool_result_accepted", "intervention_committed", "intervention_committed", "response_created"]
    );
    assert_eq!(asked(&talk), ["rain", "and Rome", "and Paris"]);
}

#[test]
fn a_pending_steer_joins_the_create_that_brings_the_results() {
    let (mut talk, id, call_id) = with_open_call();
    talk.steer_as(id, "and Rome", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    let body = ItemBody::FunctionCallOutput {
        call_id,
        output: "rain".to_owned(),
        synthetic: false,
        is_error: false,
        call_kind: CallKind::Function,
    };
    let result = Item { id: ItemId::draw(&mut talk.fresh), status: ItemStatus::Completed, body };
    talk.create_with(vec![result], None).unwrap();
    assert_eq!((asked(&talk), status(&talk, 0)), (vec!["rain".to_owned(), "and Rome".to_owned()], "committed"));
}

#[test]
fn a_steer_now_that_awaits_cuts_first_and_commits_later() {
    let (mut talk, id) = Talk::generating(&[]);
    talk.generated(call(10, "weather", "{}"));
    talk.generated(vec![output(13, Piece::Text("And".to_owned()))]);
    let events = talk.steer_as(id, "and Rome", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    assert_eq!(names(&events)[4..], ["intervention_pending", "response_ended"]);
    assert_eq!((talk.state.status(), talk.state.open_calls().count()), ("requires_action", 1));
    let call_id = talk.state.calls[0].call_id.clone();
    answer(&mut talk, &call_id, "rain");
    assert_eq!(asked(&talk), ["rain", "and Rome"]);
}

#[test]
fn a_natural_end_with_open_calls_leaves_an_awaiting_steer_pending() {
    let (mut talk, id) = Talk::generating(&["Looking."]);
    let fields = |steer: &mut Intervene| (steer.when, steer.tools) = (When::After, ToolsOnSteer::Await);
    talk.steer_as(id, "later", fields).unwrap();
    talk.generated(call(10, "weather", "{}"));
    talk.generated(vec![output(13, Piece::Text("And".to_owned()))]);
    let fields = |steer: &mut Intervene| (steer.when, steer.tools) = (When::Item, ToolsOnSteer::Await);
    talk.steer_as(id, "and Rome", fields).unwrap();
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.state.response(id).unwrap().status.as_str(), "completed");
    assert_eq!((status(&talk, 0), status(&talk, 1)), ("accepted", "pending"));
    let call_id = talk.state.calls[0].call_id.clone();
    answer(&mut talk, &call_id, "rain");
    assert_eq!(asked(&talk), ["rain", "and Rome"]);
    talk.ended(GenerationEnd::Stop);
    assert_eq!(asked(&talk), ["later"]);
}

#[test]
fn a_cancel_gives_every_waiting_steer_back_before_the_terminal() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.steer_as(id, "for the item", |steer| steer.when = When::Item).unwrap();
    talk.steer_as(id, "for later", |steer| steer.when = When::After).unwrap();
    talk.cancel(id);
    assert_eq!((status(&talk, 0), status(&talk, 1)), ("failed", "failed"));
    for steer in talk.state.interventions.values() {
        let InterventionStatus::Failed { error } = &steer.status else { panic!("{steer:?}") };
        assert_eq!(error.code, Code::ResponseCancelled);
    }
    talk.ended(GenerationEnd::Aborted);
    assert_eq!(talk.state.status(), "idle");
}

#[test]
fn a_cancel_of_a_completed_response_fails_what_awaited_its_calls() {
    let (mut talk, id, _) = with_open_call();
    talk.steer_as(id, "and Rome", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    talk.cancel(id);
    assert_eq!((status(&talk, 0), talk.state.status()), ("failed", "idle"));
}

#[test]
fn an_engine_failure_fails_waiting_steers_and_closes_calls() {
    let (mut talk, id) = Talk::generating(&[]);
    talk.generated(call(10, "weather", "{}"));
    talk.generated(vec![output(13, Piece::Text("And".to_owned()))]);
    talk.steer_as(id, "more", |steer| steer.when = When::Item).unwrap();
    talk.ended(GenerationEnd::Failed { code: Code::EngineFailed, message: "x".to_owned() });
    assert_eq!((status(&talk, 0), talk.state.status()), ("failed", "idle"));
    assert_eq!(talk.state.response(id).unwrap().status.as_str(), "failed");
}

#[test]
fn an_undecided_steer_can_be_taken_back_and_a_decided_one_cannot() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.steer_as(id, "for later", |steer| steer.when = When::After).unwrap();
    let intervention_id = *talk.state.interventions.keys().next().unwrap();
    talk.say(Input::Withdraw { intervention_id }).unwrap();
    assert_eq!(status(&talk, 0), "withdrawn");
    let reject = talk.say(Input::Withdraw { intervention_id }).unwrap_err();
    assert_eq!((reject.code, &reject.details["status"]), (Code::InterventionDecided, &"withdrawn".into()));
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.state.status(), "idle");
    let intervention_id = InterventionId::draw(&mut FreshIds::from_seed(5));
    assert_eq!(talk.say(Input::Withdraw { intervention_id }).unwrap_err().code, Code::InterventionNotFound);
}

#[test]
fn only_so_many_and_so_large_instructions_wait() {
    let (mut talk, id) = Talk::generating(&["The"]);
    let waits = |steer: &mut Intervene| steer.when = When::After;
    for _ in 0..16 {
        talk.steer_as(id, "x", waits).unwrap();
    }
    let reject = talk.steer_as(id, "one more", waits).unwrap_err();
    assert_eq!((reject.code, &reject.details["input"][0]), (Code::TooManyPendingSteers, &"one more".into()));
    let replaces = |steer: &mut Intervene| (steer.when, steer.on_multiple) = (When::After, OnMultiple::Replace);
    talk.steer_as(id, "instead of all", replaces).unwrap();
    assert_eq!(talk.state.undecided().len(), 1);
    let large = "x".repeat(65 << 10);
    assert_eq!(talk.steer_as(id, &large, waits).unwrap_err().code, Code::TooManyPendingSteers);
    // What never waits is bounded by the request alone.
    talk.steer(id, &large).unwrap();
}

#[test]
fn a_busy_conversation_enqueues_a_create_when_asked_to() {
    let (mut talk, first) = Talk::generating(&["The"]);
    let enqueue = |create: &mut Create| create.policies.if_busy = Some(IfBusy::Enqueue);
    let second = talk.create_as("second", enqueue).unwrap();
    let third = talk.create_as("third", enqueue).unwrap();
    assert_eq!(talk.state.response(second).unwrap().status, ResponseStatus::Queued);
    assert_eq!(talk.state.active().unwrap().id, first);
    // A steer of the one that runs goes first; one that waits can be cancelled at once.
    talk.steer(first, "shorter").unwrap();
    assert_eq!(talk.cancel(second), CancelOutcome::Requested);
    assert_eq!(talk.state.response(second).unwrap().status, ResponseStatus::Ended(Ending::Cancelled));
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.state.active().unwrap().id, third);
    let texts: Vec<_> = messages(&talk.state, talk.state.active().unwrap())
        .into_iter()
        .filter(|message| message.role == Role::User)
        .map(|message| message.content)
        .collect();
    assert_eq!(texts, ["hello", "shorter", "third"]);
}

#[test]
fn a_busy_conversation_is_steered_by_a_create_when_asked_to() {
    let (mut talk, first) = Talk::generating(&["The"]);
    let second = talk
        .create_as("instead", |create| {
            create.policies.if_busy = Some(IfBusy::Steer);
            create.config.max_output_tokens = Some(3);
        })
        .unwrap();
    let active = talk.state.active().unwrap();
    assert_eq!((active.id, active.config.max_output_tokens), (second, Some(3)));
    assert_eq!(talk.state.response(first).unwrap().successor, Some(second));
    assert_eq!(asked(&talk), ["instead"]);
}

#[test]
fn results_never_wait_behind_a_running_response() {
    let (mut talk, _, call_id) = with_open_call();
    talk.create("never mind").unwrap();
    let body = ItemBody::FunctionCallOutput {
        call_id,
        output: "x".to_owned(),
        synthetic: false,
        is_error: false,
        call_kind: CallKind::Function,
    };
    let result = Item { id: ItemId::draw(&mut talk.fresh), status: ItemStatus::Completed, body };
    let enqueue = |create: &mut Create| create.policies.if_busy = Some(IfBusy::Enqueue);
    assert_eq!(talk.create_from(vec![result], enqueue).unwrap_err().code, Code::ConversationBusy);
}

#[test]
fn a_cascading_cancel_reaches_the_successor_that_runs() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.steer(id, "shorter").unwrap();
    let second = talk.state.active().unwrap().id;
    talk.steer(second, "shorter still").unwrap();
    let third = talk.state.active().unwrap().id;
    talk.say(Input::Cancel { response_id: Some(id), cascade: true }).unwrap();
    assert!(talk.state.response(third).unwrap().cancel_requested);
    talk.ended(GenerationEnd::Aborted);
    assert_eq!(talk.state.status(), "idle");
}

#[test]
fn a_cascading_cancel_leaves_a_turn_that_begins_because_of_it() {
    let (mut talk, id, _) = with_open_call();
    talk.steer_as(id, "later", |steer| (steer.when, steer.tools) = (When::After, ToolsOnSteer::Await)).unwrap();
    assert!(talk.state.active().is_none(), "it waits for the calls");
    talk.say(Input::Cancel { response_id: Some(id), cascade: true }).unwrap();
    assert!(talk.state.active().is_none_or(|turn| !turn.cancel_requested));
}

#[test]
fn an_interrupt_keeps_finished_items_and_throws_the_open_one_away() {
    let (mut talk, id) = Talk::generating(&[]);
    talk.generated(vec![output(1, Piece::Reasoning("hm".to_owned()))]);
    talk.generated(vec![output(2, Piece::Text("The pl".to_owned()))]);
    let events = talk.say(Input::Interrupt { response_id: id }).unwrap();
    assert_eq!(names(&events), ["output_item_discarded", "response_ended"]);
    let old = talk.state.response(id).unwrap();
    assert_eq!(old.status, ResponseStatus::Ended(Ending::Incomplete { reason: "interrupted".to_owned() }));
    assert_eq!(old.kept_tokens(), [1]);
    talk.create("go on").unwrap();
    let said = messages(&talk.state, talk.state.active().unwrap());
    assert!(said.iter().all(|message| !message.content.contains("The pl")), "{said:?}");
    assert_eq!(talk.say(Input::Interrupt { response_id: id }).unwrap_err().code, Code::ResponseAlreadyCompleted);
}

#[test]
fn a_deleted_conversation_ends_everything_and_then_says_so() {
    let (mut talk, id) = Talk::generating(&["The"]);
    let waiting = talk.create_as("x", |create| create.policies.if_busy = Some(IfBusy::Enqueue)).unwrap();
    talk.steer_as(id, "for later", |steer| steer.when = When::After).unwrap();
    let events = talk.say(Input::Delete).unwrap();
    assert_eq!(names(&events).last().unwrap(), "conversation_deleted");
    assert_eq!(status(&talk, 0), "failed");
    assert!([id, waiting].iter().all(|id| talk.state.response(*id).unwrap().status.is_terminal()));
    assert_eq!(talk.create("again").unwrap_err().code, Code::ConversationNotFound);
}

#[test]
fn a_running_response_cannot_be_deleted_and_a_finished_one_leaves_the_transcript() {
    let (mut talk, id) = Talk::generating(&["The"]);
    assert_eq!(talk.say(Input::DeleteResponse { response_id: id }).unwrap_err().code, Code::ConversationBusy);
    talk.ended(GenerationEnd::Stop);
    talk.say(Input::DeleteResponse { response_id: id }).unwrap();
    assert!(talk.state.response(id).is_none());
    assert_eq!(talk.steer(id, "x").unwrap_err().code, Code::ResponseNotFound);
    talk.create("go on").unwrap();
    let said: Vec<_> =
        messages(&talk.state, talk.state.active().unwrap()).into_iter().map(|message| message.content).collect();
    assert_eq!(said, ["hello", "The", "go on"]);
}

#[test]
fn items_change_between_turns_only_and_a_call_goes_with_its_result() {
    let (mut talk, _, call_id) = with_open_call();
    answer(&mut talk, &call_id, "rain");
    let items = vec![Item::message(ItemId::draw(&mut talk.fresh), Role::User, "note")];
    assert_eq!(talk.say(Input::AddItems { items: items.clone() }).unwrap_err().code, Code::ConversationBusy);
    talk.ended(GenerationEnd::Stop);
    let call_item = talk.state.responses[0].output[1].item.id;
    talk.say(Input::AddItems { items }).unwrap();
    talk.say(Input::DeleteItem { item_id: call_item }).unwrap();
    talk.create("go on").unwrap();
    let said = messages(&talk.state, talk.state.active().unwrap());
    assert!(said.iter().all(|message| message.role != Role::Tool && message.tool_calls.is_empty()), "{said:?}");
    assert_eq!(asked(&talk), ["note", "go on"]);
    let gone = Input::DeleteItem { item_id: call_item };
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.say(gone).unwrap_err().code, Code::NotFound);
}

#[test]
fn thinking_alone_changes_the_response_that_runs_and_cuts_nothing() {
    let (mut talk, id) = Talk::generating(&[]);
    talk.generated(vec![output(1, Piece::Reasoning("hm".to_owned()))]);
    let (generation, budget_tokens) = (talk.generation(), Some(64));
    talk.effects.clear();
    let intervention_id = InterventionId::draw(&mut talk.fresh);
    let thinking = Some(Thinking { budget_tokens, effort: None });
    let change = Intervene { thinking, ..Intervene::now(intervention_id, id, vec![]) };
    let events = talk.say(Input::Intervene(change.clone())).unwrap();
    assert_eq!(names(&events), ["intervention_accepted", "intervention_committed"]);
    assert_eq!(talk.effects, [Effect::LimitThinking { generation, budget_tokens }]);
    let active = talk.state.active().unwrap();
    assert_eq!((active.id, active.config.thinking.as_ref().unwrap().budget_tokens), (id, budget_tokens));

    talk.generated(vec![output(2, Piece::Text("So".to_owned()))]);
    let intervention_id = InterventionId::draw(&mut talk.fresh);
    talk.say(Input::Intervene(Intervene { intervention_id, ..change.clone() })).unwrap();
    let InterventionStatus::Failed { error } = &talk.state.interventions[&intervention_id].status else { panic!() };
    assert_eq!(error.code, Code::ReasoningAlreadyEnded);
    talk.ended(GenerationEnd::Stop);
    let late = talk.say(Input::Intervene(change)).unwrap_err();
    assert_eq!(late.code, Code::ResponseAlreadyCompleted);
}

#[test]
fn thinking_with_an_instruction_is_the_successors() {
    let (mut talk, id) = Talk::generating(&["The"]);
    let thinking = Thinking { budget_tokens: Some(0), effort: Some("none".to_owned()) };
    talk.steer_as(id, "quickly", |steer| steer.thinking = Some(thinking.clone())).unwrap();
    assert_eq!(talk.state.active().unwrap().config.thinking, Some(thinking));
    assert_eq!(talk.state.response(id).unwrap().config.thinking, None);
}

#[test]
fn a_response_that_waits_for_its_turn_cannot_be_steered() {
    let (mut talk, first) = Talk::generating(&[]);
    let waiting = talk.create_as("second", |create| create.policies.if_busy = Some(IfBusy::Enqueue)).unwrap();
    let reject = talk.steer(waiting, "x").unwrap_err();
    assert_eq!((reject.code, &reject.details["active_id"]), (Code::ResponseNotActive, &first.to_string().into()));
    // Behind open calls that a steer awaits nothing runs, and it waits all the same.
    talk.generated(call(10, "weather", "{}"));
    talk.steer_as(first, "and Rome", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    assert!(talk.state.active().is_none());
    let reject = talk.steer(waiting, "x").unwrap_err();
    assert_eq!((reject.code, &reject.details["active_id"]), (Code::ResponseNotActive, &serde_json::Value::Null));
    let call_id = talk.state.calls[0].call_id.clone();
    answer(&mut talk, &call_id, "rain");
    assert_eq!(asked(&talk), ["rain", "and Rome"]);
    talk.ended(GenerationEnd::Stop);
    assert_eq!((talk.state.active().unwrap().id, asked(&talk)), (waiting, vec!["second".to_owned()]));
}

#[test]
fn a_steer_for_later_closes_the_calls_that_a_response_has_ended_with_or_waits_for_them() {
    let (mut talk, id, _) = with_open_call();
    let mut waits = talk.clone();
    talk.steer_as(id, "later", |steer| steer.when = When::After).unwrap();
    assert_eq!(asked(&talk), ["not started", "later"]);
    waits.steer_as(id, "later", |steer| (steer.when, steer.tools) = (When::After, ToolsOnSteer::Await)).unwrap();
    assert_eq!(status(&waits, 0), "accepted");
    let call_id = waits.state.calls[0].call_id.clone();
    answer(&mut waits, &call_id, "rain");
    assert_eq!(asked(&waits), ["rain"]);
    waits.ended(GenerationEnd::Stop);
    assert_eq!(asked(&waits), ["later"]);
}

#[test]
fn a_steer_that_awaits_results_of_an_interrupted_response_is_committed_with_them_before_later_turns() {
    let (mut talk, id) = Talk::generating(&[]);
    talk.generated(call(10, "weather", "{}"));
    talk.say(Input::Interrupt { response_id: id }).unwrap();
    talk.steer_as(id, "later", |steer| (steer.when, steer.tools) = (When::After, ToolsOnSteer::Await)).unwrap();
    talk.steer_as(id, "and Rome", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    let call_id = talk.state.calls[0].call_id.clone();
    answer(&mut talk, &call_id, "rain");
    assert_eq!((asked(&talk), status(&talk, 0)), (vec!["rain".to_owned(), "and Rome".to_owned()], "accepted"));
    talk.ended(GenerationEnd::Stop);
    assert_eq!(asked(&talk), ["later"]);
}
