//! Steers, cancels and ends that meet: journal order decides, and the answer names the winner.

use super::*;
use crate::error::Code;

#[test]
fn a_steer_commits_in_one_batch() {
    let (mut talk, id) = Talk::generating(&["The", " plan"]);
    let events = talk.steer(id, "shorter").unwrap();
    assert_eq!(
        names(&events),
        [
            "intervention_accepted",
            "output_done",
            "content_part_done",
            "output_item_done",
            "intervention_committed",
            "response_ended",
            "response_created",
        ]
    );
    let old = talk.state.response(id).unwrap();
    assert_eq!(old.status, ResponseStatus::Ended(Ending::Incomplete { reason: "steered".to_owned() }));
    assert_eq!(old.output[0].item.text(), "The plan");
    let successor = talk.state.active().unwrap();
    assert_eq!((old.successor, successor.previous), (Some(successor.id), Some(id)));
    assert_eq!(successor.input[0].text(), "shorter");
}

#[test]
fn a_steer_aborts_the_old_generation_before_it_starts_the_new() {
    let (mut talk, id) = Talk::generating(&["The"]);
    let old = talk.generation();
    talk.effects.clear();
    talk.steer(id, "shorter").unwrap();
    let (generation, response_id) = (talk.generation(), talk.state.active().unwrap().id);
    assert_eq!(
        talk.effects,
        [Effect::AbortGeneration { generation: old }, Effect::StartGeneration { generation, response_id },]
    );
}

#[test]
fn tokens_sampled_after_the_cut_are_never_shown() {
    let (mut talk, id) = Talk::generating(&["The"]);
    let old = talk.generation();
    talk.steer(id, "shorter").unwrap();
    let late = vec![output(9, Piece::Text(" late".to_owned()))];
    let events = talk.say(Input::Generated { generation: old, outputs: late.clone() }).unwrap();
    assert_eq!(events, []);
    let (tail_tokens, end) = (vec![], GenerationEnd::Stop);
    let events =
        talk.say(Input::GenerationEnded { generation: old, outputs: late, tail_tokens, usage: None, end }).unwrap();
    assert_eq!(events, []);
}

#[test]
fn a_steer_in_the_queue_is_accepted_and_cuts_nothing() {
    let mut talk = Talk::new(3);
    let id = talk.create("hello").unwrap();
    let events = talk.steer(id, "in French").unwrap();
    assert_eq!(
        names(&events),
        ["intervention_accepted", "intervention_committed", "response_ended", "response_created"]
    );
    let texts: Vec<_> =
        messages(&talk.state, talk.state.active().unwrap()).into_iter().map(|message| message.content).collect();
    assert_eq!(texts, ["hello", "in French"]);
}

#[test]
fn a_steer_after_the_end_is_refused_and_gives_the_input_back() {
    let (mut talk, id) = Talk::generating(&["done"]);
    talk.ended(GenerationEnd::Stop);
    let before = talk.log.clone();
    let reject = talk.steer(id, "more").unwrap_err();
    assert_eq!(reject.code, Code::ResponseAlreadyCompleted);
    assert_eq!(reject.details["final_status"], "completed");
    assert_eq!(reject.details["final_seq"], before.last().unwrap().seq);
    assert_eq!(reject.details["input"][0], "more");
    assert_eq!(talk.log, before);
}

#[test]
fn a_second_steer_of_a_steered_response_is_told_the_successor() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.steer(id, "first").unwrap();
    let reject = talk.steer(id, "second").unwrap_err();
    assert_eq!(reject.code, Code::ResponseNotActive);
    assert_eq!(reject.details["active_id"], talk.state.active().unwrap().id.to_string());
    talk.ended(GenerationEnd::Stop);
    let reject = talk.steer(id, "third").unwrap_err();
    assert_eq!(reject.code, Code::ResponseAlreadyCompleted);
    assert_eq!(reject.details["successor_id"], talk.state.responses[1].id.to_string());
}

#[test]
fn a_steer_after_a_recorded_cancel_is_too_late() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.cancel(id);
    let reject = talk.steer(id, "more").unwrap_err();
    assert_eq!((reject.code, &reject.details["final_status"]), (Code::ResponseAlreadyCompleted, &"cancelled".into()));
}

#[test]
fn a_steer_of_an_unknown_response_is_not_found() {
    let (mut talk, _) = Talk::generating(&["The"]);
    let unknown = ResponseId::draw(&mut FreshIds::from_seed(99));
    assert_eq!(talk.steer(unknown, "more").unwrap_err().code, Code::ResponseNotFound);
}

#[test]
fn a_cancel_recorded_before_the_end_yields_cancelled_always() {
    for end in [
        GenerationEnd::Stop,
        GenerationEnd::Length,
        GenerationEnd::Aborted,
        GenerationEnd::Failed { code: Code::EngineFailed, message: "x".to_owned() },
    ] {
        let (mut talk, id) = Talk::generating(&["The"]);
        assert_eq!(talk.cancel(id), CancelOutcome::Requested);
        talk.generated(vec![output(9, Piece::Text(" late".to_owned()))]);
        talk.ended(end);
        let response = talk.state.response(id).unwrap();
        assert_eq!(response.status, ResponseStatus::Ended(Ending::Cancelled));
        assert_eq!(response.output[0].item.text(), "The");
    }
}

#[test]
fn a_second_cancel_joins_the_first() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.cancel(id);
    let before = talk.log.clone();
    assert_eq!(talk.cancel(id), CancelOutcome::Requested);
    assert_eq!(talk.log, before);
    talk.ended(GenerationEnd::Aborted);
    assert_eq!(talk.cancel(id), CancelOutcome::AlreadyCancelled);
}

#[test]
fn a_cancel_after_the_end_is_too_late_and_names_the_successor() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.steer(id, "shorter").unwrap();
    let successor_id = Some(talk.state.active().unwrap().id);
    assert_eq!(talk.cancel(id), CancelOutcome::TooLate { successor_id, closed_calls: vec![] });
    assert!(talk.state.active().is_some(), "the successor goes on");
}

#[test]
fn a_cancel_without_an_id_means_the_active_one() {
    let (mut talk, id) = Talk::generating(&["The"]);
    talk.say(Input::Cancel { response_id: None, cascade: false }).unwrap();
    assert!(talk.state.response(id).unwrap().cancel_requested);
    talk.ended(GenerationEnd::Aborted);
    assert_eq!(
        talk.say(Input::Cancel { response_id: None, cascade: false }).unwrap_err().code,
        Code::ResponseNotActive
    );
}

#[test]
fn a_create_on_a_running_conversation_names_the_active_one() {
    let (mut talk, id) = Talk::generating(&["The"]);
    let reject = talk.create("more").unwrap_err();
    assert_eq!((reject.code, &reject.details["active_id"]), (Code::ConversationBusy, &id.to_string().into()));
}

#[test]
fn a_create_behind_an_older_response_is_sent_to_a_fork() {
    let (mut talk, first) = Talk::generating(&["The"]);
    talk.ended(GenerationEnd::Stop);
    talk.create("more").unwrap();
    talk.ended(GenerationEnd::Stop);
    let item = Item::message(ItemId::draw(&mut talk.fresh), Role::User, "again");
    assert_eq!(talk.create_with(vec![item], Some(first)).unwrap_err().code, Code::ResponseNotActive);
}

/// A response with an open call, a steer that awaits its result, and a turn that was enqueued behind it.
fn waiting_behind_a_call() -> (Talk, ResponseId, ResponseId, crate::ids::CallId) {
    let (mut talk, first) = Talk::generating(&["Let me see. "]);
    talk.generated(call(10, "weather", "{}"));
    let queued = talk.create_as("queued", |create| create.policies.if_busy = Some(IfBusy::Enqueue)).unwrap();
    talk.steer_as(first, "and then", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    let call = talk.state.open_calls().next().unwrap().call_id.clone();
    assert_eq!(talk.state.status(), "requires_action");
    (talk, first, queued, call)
}

#[test]
fn a_create_while_calls_are_open_has_its_turn_behind_those_that_came_before_it() {
    let (mut talk, _, queued, _) = waiting_behind_a_call();
    let late = talk.create("late").unwrap();
    assert_eq!(talk.state.open_calls().count(), 0, "it closes them, as a user message does");
    let mut order = Vec::new();
    while let Some(active) = talk.state.active().map(|active| active.id) {
        order.push(active);
        talk.ended(GenerationEnd::Stop);
    }
    assert_eq!(order.len(), 3, "the steer's successor, then the two turns");
    assert_eq!(order[1..], [queued, late]);
}

#[test]
fn a_create_with_the_results_that_a_steer_awaits_takes_it_along_at_once() {
    let (mut talk, _, _, call_id) = waiting_behind_a_call();
    let body = ItemBody::FunctionCallOutput {
        call_id,
        output: "rain".into(),
        synthetic: false,
        is_error: false,
        call_kind: CallKind::Function,
    };
    let result = Item { id: ItemId::draw(&mut talk.fresh), status: ItemStatus::Completed, body };
    let id = talk.create_with(vec![result], None).unwrap();
    assert_eq!(talk.state.active().unwrap().id, id);
}

#[test]
fn a_steer_that_cut_and_waited_says_where_it_cut_when_it_is_committed() {
    let (mut talk, first, _, _) = waiting_behind_a_call();
    talk.create("late").unwrap();
    let committed = talk.log.iter().find_map(|recorded| match &recorded.event {
        Event::InterventionCommitted { response_id, cut, .. } if *response_id == first => Some(*cut),
        _ => None,
    });
    assert_eq!(committed, Some(Some(Cut { item_id: None, token_index: 4 })), "behind the whole call");
}

#[test]
fn a_steer_that_cut_a_message_and_waited_names_the_message() {
    let (mut talk, first) = Talk::generating(&[]);
    talk.generated(call(10, "weather", "{}"));
    talk.generated(vec![output(20, Piece::Text("And".to_owned()))]);
    talk.steer_as(first, "stop", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    let item_id = talk.state.response(first).unwrap().output.last().map(|output| output.item.id);
    talk.create("late").unwrap();
    let cut = talk.state.interventions.values().find_map(|steer| match steer.status {
        InterventionStatus::Committed { cut, .. } => cut,
        _ => None,
    });
    assert_eq!(cut, Some(Cut { item_id, token_index: 4 }));
}

#[test]
fn the_stop_string_that_ended_a_response_is_recorded_with_its_end() {
    let (mut talk, id) = Talk::generating(&["so "]);
    let events = talk.ended(GenerationEnd::StopString("\n\n".to_owned()));
    assert!(matches!(&events[..], [.., Event::ResponseEnded { stop_string: Some(stop), .. }] if stop == "\n\n"));
    let response = talk.state.response(id).unwrap();
    assert_eq!(response.status, ResponseStatus::Ended(Ending::Completed));
    assert_eq!(response.stop_string.as_deref(), Some("\n\n"));
    let (mut talk, id) = Talk::generating(&["so "]);
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.state.response(id).unwrap().stop_string, None);
}
