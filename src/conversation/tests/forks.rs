//! Forks: the transcript is the parent's, its calls are closed or answered here, and nothing of the parent is touched.

use super::*;
use crate::error::Code;
use crate::ids::CallId;

pub(super) fn said(fresh: &mut FreshIds, text: &str) -> Item {
    Item::message(ItemId::draw(fresh), Role::User, text)
}

fn result(fresh: &mut FreshIds, call_id: &CallId, output: &str) -> Item {
    let (call_id, output) = (call_id.clone(), output.to_owned());
    let body = ItemBody::FunctionCallOutput {
        call_id,
        output,
        synthetic: false,
        is_error: false,
        call_kind: CallKind::Function,
    };
    Item { id: ItemId::draw(fresh), status: ItemStatus::Completed, body }
}

/// The conversation of a fork behind `from`, with its first response, as the shell makes it.
pub(super) fn forked(parent: &Talk, from: ResponseId, input: Vec<Item>) -> Result<Talk, Reject> {
    let mut fork =
        Talk { state: State::default(), log: vec![], effects: vec![], fresh: FreshIds::from_seed(99), now_ms: 9_000 };
    let mut create = Create::new(ResponseId::draw(&mut fork.fresh), input, config());
    create.config.metadata.insert("run".to_owned(), 7.into());
    let copy = super::super::fork(&parent.state, from, &create, &mut fork.fresh)?;
    let (id, principal, metadata) = (ConversationId::draw(&mut fork.fresh), "local".to_owned(), Map::new());
    let (items, defaults) = (vec![], Policies::default());
    fork.say(Input::Open { id, principal, tenant: None, metadata, items, fork: Some(Box::new(copy)), defaults })?;
    fork.say(Input::Create(Box::new(create)))?;
    Ok(fork)
}

/// What the model reads for the last response.
fn reads(talk: &Talk) -> Vec<(Role, String)> {
    let last = talk.state.responses.last().unwrap();
    messages(&talk.state, last).into_iter().map(|message| (message.role, message.content)).collect()
}

fn results(talk: &Talk) -> Vec<String> {
    reads(talk).into_iter().filter(|(role, _)| *role == Role::Tool).map(|(_, content)| content).collect()
}

/// A conversation whose first response ended with two open calls.
fn two_calls() -> (Talk, ResponseId, Vec<CallId>) {
    let (mut talk, id) = Talk::generating(&["Let me see."]);
    talk.generated(call(10, "weather", r#"{"city":"Oslo"}"#));
    talk.generated(call(20, "time", "{}"));
    talk.ended(GenerationEnd::Stop);
    let calls = talk.state.open_calls().map(|call| call.call_id.clone()).collect();
    (talk, id, calls)
}

fn answer(talk: &mut Talk, call_id: &CallId, output: &str) {
    let call = CallRef { response_id: None, call_id: call_id.clone(), attempt: None };
    talk.say(Input::AnswerCall { call, output: output.to_owned(), is_error: false }).unwrap();
}

#[test]
fn a_fork_has_the_parents_turns_with_their_tokens_and_its_own_input_behind_them() {
    let (mut parent, first) = Talk::generating(&["one", " two"]);
    let generation = parent.generation();
    let (outputs, end) = (vec![], GenerationEnd::Stop);
    parent.say(Input::GenerationEnded { generation, outputs, tail_tokens: vec![77], usage: None, end }).unwrap();
    let second = parent.create_as("more", |create| create.config.instructions = Some("Be brief.".into())).unwrap();
    parent.generated(vec![output(5, Piece::Text("three".to_owned()))]);
    parent.ended(GenerationEnd::Stop);
    parent.create("not copied").unwrap();
    let mut fresh = FreshIds::from_seed(5);
    let fork = forked(&parent, second, vec![said(&mut fresh, "elsewhere")]).unwrap();
    let expected = ["hello", "one two", "more", "three", "elsewhere"];
    assert_eq!(reads(&fork).into_iter().map(|(_, text)| text).collect::<Vec<_>>(), expected);
    for (copied, own) in fork.state.responses.iter().zip(&parent.state.responses).take(2) {
        assert_eq!((copied.id, copied.kept_tokens()), (own.id, own.kept_tokens()));
        assert_eq!((copied.created_ms, copied.ended_ms), (own.created_ms, own.ended_ms));
        assert_eq!((&copied.config.instructions, &copied.config.tools), (&own.config.instructions, &own.config.tools));
        assert!(copied.config.metadata.is_empty(), "what no prompt needs is left behind");
    }
    assert_eq!(fork.state.responses[0].kept_tokens(), [0, 1, 77]);
    assert_eq!(fork.state.responses[2].previous, Some(second));
    assert_eq!(fork.state.template_ms, parent.state.created_ms);
    let ids = |state: &State| state.responses.iter().flat_map(|it| &it.input).map(|item| item.id).collect::<Vec<_>>();
    assert!(ids(&fork.state).iter().all(|id| !ids(&parent.state).contains(id)), "its items are its own");
    assert_eq!(fork.state.response(first), None, "{first} is no response of this conversation");
}

#[test]
fn a_fork_is_its_events_folded() {
    let (mut parent, first, calls) = two_calls();
    answer(&mut parent, &calls[0], "rain");
    let mut fresh = FreshIds::from_seed(5);
    let fork = forked(&parent, first, vec![said(&mut fresh, "elsewhere")]).unwrap();
    let mut folded = State::default();
    fork.log.iter().for_each(|recorded| folded.apply(recorded));
    assert_eq!(folded, fork.state);
    let stored = serde_json::to_string(&fork.log).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Recorded>>(&stored).unwrap(), fork.log);
}

#[test]
fn the_settings_of_turns_are_written_once_where_they_do_not_change() {
    let (mut parent, _) = Talk::generating(&["one"]);
    parent.ended(GenerationEnd::Stop);
    let mut last = parent.create("two").unwrap();
    parent.ended(GenerationEnd::Stop);
    for instructions in [None, Some("Be brief.".to_owned())] {
        last = parent.create_as("more", |create| create.config.instructions = instructions).unwrap();
        parent.ended(GenerationEnd::Stop);
    }
    let mut fresh = FreshIds::from_seed(5);
    let fork = forked(&parent, last, vec![said(&mut fresh, "elsewhere")]).unwrap();
    let Event::TurnsCopied { turns } = &fork.log[1].event else { panic!("{:?}", fork.log[1]) };
    assert_eq!(turns.iter().map(|turn| turn.config.is_some()).collect::<Vec<_>>(), [true, false, false, true]);
    assert_eq!(fork.state.responses[2].config.instructions, None);
    assert_eq!(fork.state.responses[3].config.instructions.as_deref(), Some("Be brief."));
}

#[test]
fn a_long_transcript_is_copied_in_events_of_a_bounded_size_and_in_one_decision() {
    let (mut parent, mut last) = Talk::generating(&["one"]);
    parent.ended(GenerationEnd::Stop);
    for _ in 0..20 {
        last = parent.create(&"word ".repeat(10_000)).unwrap();
        parent.ended(GenerationEnd::Stop);
    }
    let mut fresh = FreshIds::from_seed(5);
    let fork = forked(&parent, last, vec![said(&mut fresh, "elsewhere")]).unwrap();
    let copies: Vec<_> =
        fork.log.iter().filter(|recorded| matches!(recorded.event, Event::TurnsCopied { .. })).collect();
    assert!(copies.len() > 3, "{}", copies.len());
    for copy in copies {
        assert!(serde_json::to_string(copy).unwrap().len() < 300 << 10);
    }
    assert_eq!(fork.state.responses.len(), 22);
}

/// What became of the two calls in the parent, what the fork's request brings, and what the model reads then.
#[test]
fn calls_of_the_last_turn_take_the_forks_result_else_the_parents_else_a_synthetic_one() {
    type Act = fn(&mut Talk, &[CallId]);
    let nothing: Act = |_, _| ();
    let one: Act = |talk, calls| answer(talk, &calls[0], "rain");
    let both: Act = |talk, calls| {
        answer(talk, &calls[0], "rain");
        answer(talk, &calls[1], "noon");
    };
    let claimed: Act = |talk, calls| {
        let call = CallRef { response_id: None, call_id: calls[1].clone(), attempt: None };
        talk.say(Input::ClaimCall { call, lease_ms: 60_000 }).unwrap();
    };
    let closed: Act = |talk, _| {
        talk.create("never mind").unwrap();
    };
    let closed_claimed: Act = |talk, calls| {
        let call = CallRef { response_id: None, call_id: calls[1].clone(), attempt: None };
        talk.say(Input::ClaimCall { call, lease_ms: 60_000 }).unwrap();
        talk.create("never mind").unwrap();
    };
    let (unknown, not_started) = ("outcome unknown, may have run", "not started");
    let table: [(Act, &[usize], [&str; 2]); 11] = [
        (nothing, &[], [not_started, not_started]),
        (nothing, &[0, 1], ["mine 0", "mine 1"]),
        (nothing, &[1], [not_started, "mine 1"]),
        (one, &[], ["rain", not_started]),
        (one, &[0], ["mine 0", not_started]),
        (one, &[1], ["rain", "mine 1"]),
        (both, &[], ["rain", "noon"]),
        (both, &[1, 0], ["mine 0", "mine 1"]),
        (claimed, &[], [not_started, unknown]),
        (closed, &[0], ["mine 0", not_started]),
        (closed_claimed, &[], [not_started, unknown]),
    ];
    for (place, (act, brings, expected)) in table.into_iter().enumerate() {
        let (mut parent, first, calls) = two_calls();
        act(&mut parent, &calls);
        let before = parent.state.clone();
        let mut fresh = FreshIds::from_seed(5);
        let mut input: Vec<Item> =
            brings.iter().map(|it| result(&mut fresh, &calls[*it], &format!("mine {it}"))).collect();
        input.push(said(&mut fresh, "elsewhere"));
        let fork = forked(&parent, first, input).unwrap();
        assert_eq!(results(&fork), expected, "case {place}");
        assert_eq!(fork.state.open_calls().count(), 0, "case {place}");
        assert_eq!(reads(&fork).last().unwrap().1, "elsewhere", "case {place}: behind all results");
        assert_eq!(parent.state, before, "case {place}: closed in the fork only");
    }
}

#[test]
fn results_that_earlier_turns_took_are_copied_with_them_and_cannot_be_given_again() {
    let (mut parent, _, calls) = two_calls();
    answer(&mut parent, &calls[0], "rain");
    answer(&mut parent, &calls[1], "noon");
    let second = parent.state.active().unwrap().id;
    parent.ended(GenerationEnd::Stop);
    let mut fresh = FreshIds::from_seed(5);
    let fork = forked(&parent, second, vec![said(&mut fresh, "elsewhere")]).unwrap();
    assert_eq!(results(&fork), ["rain", "noon"]);
    let late = vec![result(&mut fresh, &calls[0], "snow")];
    let refused = forked(&parent, second, late).err().unwrap();
    assert_eq!(refused.code, Code::ToolCallClosed);
    let strange = vec![result(&mut fresh, &CallId("callunknown".to_owned()), "snow")];
    assert_eq!(forked(&parent, second, strange).err().unwrap().code, Code::ToolCallNotFound);
}

#[test]
fn a_late_result_for_a_call_of_the_parent_is_told_apart_in_the_fork() {
    let (mut parent, first, calls) = two_calls();
    answer(&mut parent, &calls[0], "rain");
    let mut fresh = FreshIds::from_seed(5);
    let mut fork = forked(&parent, first, vec![said(&mut fresh, "elsewhere")]).unwrap();
    fork.ended(GenerationEnd::Stop);
    let give = |output: &str, call: &CallId| {
        let call = CallRef { response_id: None, call_id: call.clone(), attempt: None };
        let now = Now { unix_ms: 9_999, fresh: FreshIds::from_seed(1) };
        decide(&fork.state, Input::AnswerCall { call, output: output.to_owned(), is_error: false }, now)
    };
    let replayed = give("rain", &calls[0]).unwrap();
    assert!(matches!(replayed.answer, Answer::Answered { replayed: true, .. }), "{replayed:?}");
    assert_eq!(give("snow", &calls[0]).unwrap_err().code, Code::ToolResultConflict);
    let closed = give("noon", &calls[1]).unwrap().answer;
    assert!(matches!(closed, Answer::Refused(Reject { code: Code::ToolCallClosed, .. })), "{closed:?}");
}

#[test]
fn a_call_that_was_cut_stays_behind_and_the_tokens_up_to_it_are_kept() {
    let (mut parent, first) = Talk::generating(&["See: "]);
    parent.generated(vec![output(10, Piece::ToolCallStarted { index: 0, id: None, name: "weather".to_owned() })]);
    parent.steer(first, "Stop").unwrap();
    parent.ended(GenerationEnd::Stop);
    let mut fresh = FreshIds::from_seed(5);
    let fork = forked(&parent, first, vec![said(&mut fresh, "elsewhere")]).unwrap();
    let texts: Vec<_> = reads(&fork).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["hello", "See: ", "elsewhere"]);
    assert_eq!(fork.state.responses[0].kept_tokens(), parent.state.responses[0].kept_tokens());
}

#[test]
fn what_runs_or_is_no_turn_cannot_be_forked() {
    let (parent, first) = Talk::generating(&["one"]);
    assert_eq!(forked(&parent, first, vec![]).err().unwrap().code, Code::ConversationBusy);
    let unknown = ResponseId::draw(&mut FreshIds::from_seed(3));
    assert_eq!(forked(&parent, unknown, vec![]).err().unwrap().code, Code::ResponseNotFound);
}

#[test]
fn a_copied_response_can_be_neither_steered_nor_cancelled_nor_deleted_in_the_fork() {
    let (mut parent, first) = Talk::generating(&["one"]);
    parent.ended(GenerationEnd::Stop);
    let mut fresh = FreshIds::from_seed(5);
    let mut fork = forked(&parent, first, vec![said(&mut fresh, "elsewhere")]).unwrap();
    assert_eq!(fork.steer(first, "no").unwrap_err().code, Code::ResponseNotFound);
    let cancel = Input::Cancel { response_id: Some(first), cascade: false };
    assert_eq!(fork.say(cancel).unwrap_err().code, Code::ResponseNotFound);
    assert_eq!(fork.say(Input::DeleteResponse { response_id: first }).unwrap_err().code, Code::ResponseNotFound);
}
