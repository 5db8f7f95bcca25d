//! Tool calls: whole ones wait for their result, cut ones never existed for the model.

use serde_json::json;

use super::*;
use crate::engine::settings::{CallRule, Callable, Constraint, TextRule};
use crate::error::Code;
use crate::ids::CallId;
use crate::prompt::ToolDefinition;

fn result(fresh: &mut FreshIds, call_id: &CallId, output: &str) -> Item {
    let body = ItemBody::FunctionCallOutput {
        call_id: call_id.clone(),
        output: output.to_owned(),
        synthetic: false,
        is_error: false,
        call_kind: CallKind::Function,
    };
    Item { id: ItemId::draw(fresh), status: ItemStatus::Completed, body }
}

/// A conversation whose response ended with two open calls.
fn two_calls() -> (Talk, ResponseId, Vec<CallId>) {
    let (mut talk, id) = Talk::generating(&[]);
    talk.generated(call(1, "weather", r#"{"city":"Oslo"}"#));
    talk.generated(call(4, "time", "{}"));
    talk.ended(GenerationEnd::Stop);
    let calls = talk.state.open_calls().map(|call| call.call_id.clone()).collect();
    (talk, id, calls)
}

#[test]
fn a_response_that_ends_with_calls_is_completed_and_the_conversation_requires_action() {
    let (talk, id, calls) = two_calls();
    assert_eq!(talk.state.response(id).unwrap().status, ResponseStatus::Ended(Ending::Completed));
    assert_eq!((talk.state.status(), calls.len()), ("requires_action", 2));
    assert_eq!(talk.state.response(id).unwrap().tokens(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_conversation_that_rested_forgets_reasoning_only_where_it_may_and_a_user_goes_on() {
    let (mut talk, _) = Talk::generating(&[]);
    talk.generated(vec![output(1, Piece::Reasoning("hm".into())), output(2, Piece::Text("a".into()))]);
    talk.ended(GenerationEnd::Stop);
    let thoughts = |talk: &Talk, rest_ms: u64| {
        let seen = messages_within(&talk.state, talk.state.active().unwrap(), rest_ms);
        seen.iter().filter(|message| message.reasoning_content.is_some()).count()
    };
    talk.now_ms += 5_000;
    talk.create("go on").unwrap();
    assert_eq!([0, 1_000, 60_000].map(|rest_ms| thoughts(&talk, rest_ms)), [1, 0, 1]);
    let generation = talk.generation();
    talk.say(Input::GenerationStarted { generation, prompt_tokens: 1, cached_tokens: 0, prompt: None }).unwrap();
    talk.generated([vec![output(3, Piece::Reasoning("so".into()))], call(4, "time", "{}")].concat());
    talk.ended(GenerationEnd::Stop);
    let calls: Vec<_> = talk.state.open_calls().map(|call| call.call_id.clone()).collect();
    talk.now_ms += 5_000;
    let answer = result(&mut talk.fresh, &calls[0], "12:00");
    talk.create_with(vec![answer], None).unwrap();
    // The tool took its time: that is no rest, and what led to its call is still there.
    assert_eq!([0, 1_000].map(|rest_ms| thoughts(&talk, rest_ms)), [2, 1]);
}

#[test]
fn results_continue_the_conversation_and_the_model_sees_each_once() {
    let (mut talk, _, calls) = two_calls();
    let results = calls.iter().map(|call| result(&mut talk.fresh, call, "ok")).collect();
    talk.create_with(results, None).unwrap();
    let roles: Vec<_> =
        messages(&talk.state, talk.state.active().unwrap()).iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::Tool]);
    assert_eq!(talk.state.open_calls().count(), 0);
}

#[test]
fn the_id_that_the_model_gave_a_call_goes_back_to_its_template_and_results_come_by_our_own() {
    let (mut talk, _) = Talk::generating(&[]);
    let own = "functions.weather:0";
    talk.generated(call_as(1, "weather", "{}", [Some(own), Some(own)]));
    talk.generated(call_as(4, "time", "{}", [None, Some("behind001")]));
    talk.generated(call(7, "time", "{}"));
    talk.ended(GenerationEnd::Stop);
    let calls: Vec<_> = talk.state.open_calls().map(|call| call.call_id.clone()).collect();
    let results = calls.iter().map(|call| result(&mut talk.fresh, call, "ok")).collect();
    talk.create_with(results, None).unwrap();
    let seen = messages(&talk.state, talk.state.active().unwrap());
    let shown: Vec<_> = seen[1].tool_calls.iter().map(|call| (&call.id, call.native_id.as_deref())).collect();
    let ours: Vec<_> = calls.iter().map(|call| &call.0).collect();
    assert_eq!(shown, [(ours[0], Some(own)), (ours[1], Some("behind001")), (ours[2], None)]);
    assert_eq!(seen[2..].iter().map(|message| message.tool_call_id.as_ref().unwrap()).collect::<Vec<_>>(), ours);
    let mut folded = State::default();
    talk.log.iter().for_each(|recorded| folded.apply_next(recorded));
    assert_eq!(folded, talk.state);
}

#[test]
fn calls_that_a_create_leaves_out_are_closed_with_a_synthetic_result() {
    let (mut talk, _, calls) = two_calls();
    let answer = result(&mut talk.fresh, &calls[1], "12:00");
    talk.create_with(vec![answer], None).unwrap();
    let results: Vec<_> = messages(&talk.state, talk.state.active().unwrap())
        .into_iter()
        .filter(|message| message.role == Role::Tool)
        .map(|message| (message.name.unwrap(), message.content))
        .collect();
    let expected = [("weather", "not started"), ("time", "12:00")];
    assert_eq!(results, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
}

#[test]
fn a_result_of_a_closed_call_is_refused_and_of_an_unknown_call_not_found() {
    let (mut talk, _, calls) = two_calls();
    talk.create("never mind").unwrap();
    talk.ended(GenerationEnd::Stop);
    let late = result(&mut talk.fresh, &calls[0], "late");
    assert_eq!(talk.create_with(vec![late], None).unwrap_err().code, Code::ToolCallClosed);
    let unknown = result(&mut talk.fresh, &CallId("callunknown".to_owned()), "x");
    assert_eq!(talk.create_with(vec![unknown], None).unwrap_err().code, Code::ToolCallNotFound);
}

#[test]
fn a_call_cannot_be_answered_twice_in_one_input() {
    let (mut talk, _, calls) = two_calls();
    let mut give = |call: usize, output: &str| result(&mut talk.fresh, &calls[call], output);
    let twice = vec![give(1, "a"), give(0, "b"), give(1, "a")];
    let refused = talk.create_with(twice, None).unwrap_err();
    assert_eq!((refused.code, refused.param.as_deref()), (Code::InvalidInput, Some("input")));
    let named = format!("the call {} has two results, the items 0 and 2 of the input", calls[1]);
    assert!(refused.message.starts_with(&named), "{}", refused.message);
    assert_eq!(talk.state.open_calls().count(), 2, "nothing changed");
}

/// A call as a client brings it along in its own transcript.
fn brought(fresh: &mut FreshIds, call_id: &str) -> Item {
    let (call_id, name, arguments) = (CallId(call_id.to_owned()), "f".into(), "{}".into());
    let body = ItemBody::FunctionCall {
        call_id,
        native_id: None,
        name,
        arguments,
        call_kind: CallKind::Function,
        namespace: None,
    };
    Item { id: ItemId::draw(fresh), status: ItemStatus::Completed, body }
}

/// A conversation that a client opened with these items.
fn opened_with(items: impl FnOnce(&mut FreshIds) -> Vec<Item>) -> Talk {
    let mut talk = Talk { state: State::default(), ..Talk::new(3) };
    let (id, principal) = (ConversationId::draw(&mut talk.fresh), "local".to_owned());
    let items = items(&mut talk.fresh);
    talk.say(Input::Open {
        id,
        principal,
        tenant: None,
        metadata: Map::new(),
        items,
        fork: None,
        defaults: Policies::default(),
    })
    .unwrap();
    talk
}

/// What the model sees: roles, and the text of results.
fn seen(talk: &Talk) -> Vec<(Role, String)> {
    let transcript = messages(&talk.state, talk.state.active().unwrap());
    let text = |role, content: String| if role == Role::Tool { content } else { String::new() };
    transcript.into_iter().map(|message| (message.role, text(message.role, message.content))).collect()
}

fn expected(roles: &[(Role, &str)]) -> Vec<(Role, String)> {
    roles.iter().map(|(role, text)| (*role, (*text).to_owned())).collect()
}

#[test]
fn a_brought_call_with_its_result_takes_no_second_one() {
    let call = CallId("c1".to_owned());
    let mut talk = opened_with(|fresh| vec![brought(fresh, "c1"), result(fresh, &call, "first")]);
    let second = result(&mut talk.fresh, &call, "second");
    assert_eq!(talk.create_with(vec![second], None).unwrap_err().code, Code::ToolCallClosed);
    talk.create("go on").unwrap();
    assert_eq!(seen(&talk), expected(&[(Role::Assistant, ""), (Role::Tool, "first"), (Role::User, "")]));
}

#[test]
fn a_brought_call_without_a_result_gets_a_synthetic_one_in_its_place() {
    let mut talk = opened_with(|fresh| vec![brought(fresh, "c1")]);
    let user = Item::message(ItemId::draw(&mut talk.fresh), Role::User, "never mind");
    let fresh = &mut talk.fresh;
    let input = vec![
        brought(fresh, "c2"),
        brought(fresh, "c3"),
        result(fresh, &CallId("c3".to_owned()), "ok"),
        user,
        brought(fresh, "c4"),
    ];
    talk.create_with(input, None).unwrap();
    let calls = [
        (Role::Assistant, ""),
        (Role::Tool, "not started"),
        (Role::Assistant, ""),
        (Role::Tool, "ok"),
        (Role::Tool, "not started"),
        (Role::User, ""),
        (Role::Assistant, ""),
        (Role::Tool, "not started"),
    ];
    assert_eq!(seen(&talk), expected(&calls));
}

#[test]
fn an_unfinished_call_is_cut_back_to_its_first_token() {
    let (mut talk, id) = Talk::generating(&["Let me look."]);
    talk.generated(call(1, "weather", r#"{"ci"#)[..2].to_vec());
    let events = talk.steer(id, "do not").unwrap();
    let cut = events.iter().find_map(|event| match event {
        Event::InterventionCommitted { cut, .. } => *cut,
        _ => None,
    });
    assert_eq!(cut.unwrap().token_index, 1);
    assert_eq!(talk.state.response(id).unwrap().kept_tokens(), [0]);
    assert_eq!(talk.state.open_calls().count(), 0);
    let transcript = messages(&talk.state, talk.state.active().unwrap());
    assert!(transcript.iter().all(|message| message.tool_calls.is_empty()));
}

#[test]
fn a_call_that_the_limit_cut_is_never_requested() {
    let (mut talk, id) = Talk::generating(&[]);
    talk.generated(call(1, "weather", r#"{"ci"#)[..2].to_vec());
    let outputs = vec![Output {
        tokens: vec![],
        logprobs: vec![],
        pieces: vec![Piece::ToolCallDone { index: 0, id: None, arguments: r#"{"ci"#.to_owned(), complete: false }],
    }];
    let (generation, tail_tokens, end) = (talk.generation(), vec![], GenerationEnd::Length);
    talk.say(Input::GenerationEnded { generation, outputs, tail_tokens, usage: None, end }).unwrap();
    assert_eq!(talk.state.open_calls().count(), 0);
    assert_eq!(talk.state.response(id).unwrap().output[0].item.status, ItemStatus::Incomplete);
}

#[test]
fn a_steer_closes_finished_calls_of_the_response_it_cuts() {
    let (mut talk, id) = Talk::generating(&[]);
    talk.generated(call(1, "weather", "{}"));
    let events = talk.steer(id, "do not").unwrap();
    assert!(names(&events).contains(&"tool_call_closed".to_owned()), "{events:?}");
    let roles: Vec<_> =
        messages(&talk.state, talk.state.active().unwrap()).iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::User]);
}

#[test]
fn a_steer_after_completed_with_open_calls_closes_them_and_commits() {
    let (mut talk, id, _) = two_calls();
    let events = talk.steer(id, "do not").unwrap();
    assert_eq!(
        names(&events),
        ["intervention_accepted", "tool_call_closed", "tool_call_closed", "intervention_committed", "response_created",]
    );
}

#[test]
fn a_cancel_of_a_completed_response_closes_its_calls() {
    let (mut talk, id, closed_calls) = two_calls();
    assert_eq!(talk.cancel(id), CancelOutcome::TooLate { successor_id: None, closed_calls });
    assert_eq!(talk.state.status(), "idle");
    assert_eq!(talk.log.iter().filter(|recorded| matches!(recorded.event, Event::ResponseEnded { .. })).count(), 1);
}

#[test]
fn reasoning_and_text_around_calls_keep_their_order() {
    let (mut talk, _) = Talk::generating(&[]);
    talk.generated(vec![output(1, Piece::Reasoning("first".to_owned()))]);
    talk.generated(call(2, "weather", "{}"));
    talk.generated(vec![output(5, Piece::Reasoning("second".to_owned()))]);
    talk.generated(call(6, "time", "{}"));
    talk.ended(GenerationEnd::Stop);
    talk.create("go on").unwrap();
    let transcript = messages(&talk.state, talk.state.active().unwrap());
    let calls: Vec<_> = transcript
        .iter()
        .filter(|message| message.role == Role::Assistant)
        .map(|message| (message.reasoning_content.clone().unwrap(), message.tool_calls[0].name.clone()))
        .collect();
    let expected = [("first", "weather"), ("second", "time")];
    assert_eq!(calls, expected.map(|(text, name)| (text.to_owned(), name.to_owned())));
}

#[test]
fn items_between_turns_hold_no_result_without_a_call_and_no_call_that_is_left_behind() {
    let call = CallId("c1".to_owned());
    let mut talk = Talk::new(3);
    let stray = vec![result(&mut talk.fresh, &call, "stray")];
    assert_eq!(talk.say(Input::AddItems { items: stray }).unwrap_err().code, Code::ToolCallNotFound);
    let items = vec![brought(&mut talk.fresh, "c1"), result(&mut talk.fresh, &call, "first")];
    talk.say(Input::AddItems { items }).unwrap();
    let twice = vec![result(&mut talk.fresh, &call, "second")];
    assert_eq!(talk.say(Input::AddItems { items: twice }).unwrap_err().code, Code::ToolCallClosed);
    let items = vec![brought(&mut talk.fresh, "c2")];
    talk.say(Input::AddItems { items }).unwrap();
    let items = vec![Item::message(ItemId::draw(&mut talk.fresh), Role::User, "and")];
    talk.say(Input::AddItems { items }).unwrap();
    let mut opened = opened_with(|fresh| {
        vec![brought(fresh, "c4"), Item::message(ItemId::draw(fresh), Role::User, "so"), brought(fresh, "c5")]
    });
    opened.create("go on").unwrap();
    let (assistant, tool, user) = ((Role::Assistant, ""), (Role::Tool, "not started"), (Role::User, ""));
    assert_eq!(seen(&opened), expected(&[assistant, tool, user, assistant, tool, user]));
    talk.create("go on").unwrap();
    let first = (Role::Tool, "first");
    assert_eq!(seen(&talk), expected(&[assistant, first, assistant, tool, user, user]));
}

#[test]
fn a_call_that_a_client_sends_again_beside_its_result_is_in_the_transcript_once() {
    let (mut talk, _, calls) = two_calls();
    let again = brought(&mut talk.fresh, &calls[0].0);
    let answer = result(&mut talk.fresh, &calls[0], "ok");
    let second = result(&mut talk.fresh, &calls[0], "other");
    let twice = vec![again.clone(), answer.clone(), second];
    assert_eq!(talk.create_with(twice, None).unwrap_err().code, Code::InvalidInput);
    talk.create_with(vec![again, answer], None).unwrap();
    let calls = [(Role::User, ""), (Role::Assistant, ""), (Role::Tool, "ok"), (Role::Tool, "not started")];
    assert_eq!(seen(&talk), expected(&calls));
}

#[test]
fn a_call_that_was_added_between_turns_is_answered_before_the_server_goes_on_by_itself() {
    let (mut talk, id, calls) = two_calls();
    let added = vec![brought(&mut talk.fresh, "c9")];
    talk.say(Input::AddItems { items: added }).unwrap();
    let mut steered = talk.clone();
    for call_id in calls {
        let call = CallRef { response_id: None, call_id, attempt: None };
        talk.say(Input::AnswerCall { call, output: "ok".to_owned(), is_error: false }).unwrap();
    }
    steered.steer(id, "stop").unwrap();
    for talk in [talk, steered] {
        let said = seen(&talk);
        let results = said.iter().filter(|(role, _)| *role == Role::Tool).count();
        assert_eq!(results, 3, "{said:?}");
    }
}

fn with_tools(fresh: &mut FreshIds, toolbox: &Toolbox, found: bool) -> Item {
    let body = ItemBody::AdditionalTools { toolbox: toolbox.clone(), found };
    Item { id: ItemId::draw(fresh), status: ItemStatus::Completed, body }
}

fn plain(name: &str) -> ToolDefinition {
    ToolDefinition { name: name.to_owned(), description: None, parameters: json!({"type": "object"}) }
}

#[test]
fn brought_tools_can_be_called_where_all_tools_can_and_have_their_shapes_with_them() {
    let fresh = &mut FreshIds::from_seed(1);
    let mut toolbox = Toolbox::default();
    toolbox.add(plain("own"), None, CallKind::Custom);
    toolbox.add(plain("new"), Some("a"), CallKind::Custom);
    for found in [false, true] {
        for (tools_allowed, names) in [
            (ToolsAllowed::All, &["own", "a__new"][..]),
            (ToolsAllowed::Named, &["own"]),
            (ToolsAllowed::None, &["own"]),
        ] {
            let tools = vec![Callable { name: "own".to_owned(), by_schema: true, input: None }];
            let calls = Some(CallRule { tools, several: true });
            let constraint = Some(Constraint { text: TextRule::Any, calls, at: None });
            let mut config = ResponseConfig { tools: vec![plain("own")], tools_allowed, constraint, ..config() };
            config.take_tools([with_tools(fresh, &toolbox, found)].iter());
            let rule = config.constraint.clone().and_then(|constraint| constraint.calls).unwrap();
            assert_eq!(rule.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), names);
            let shaped = if tools_allowed == ToolsAllowed::None { vec![] } else { vec!["a__new"] };
            assert_eq!(config.tool_shapes.keys().collect::<Vec<_>>(), shaped, "a plain function stays one");
            let has = |tools: &[ToolDefinition]| tools.iter().any(|tool| tool.name == "a__new");
            let is_brought = tools_allowed != ToolsAllowed::None;
            assert_eq!(has(&config.tools), is_brought && !found, "{tools_allowed:?}, found: {found}: the head stays");
            assert_eq!(has(&config.known_tools()), is_brought, "{tools_allowed:?}, found: {found}");
        }
    }
}

fn computes_only(create: &mut Create) {
    create.config.purpose = Purpose::Prefill;
}

#[test]
fn a_prompt_is_not_computed_where_calls_or_instructions_wait_and_nothing_changes_by_it() {
    let (mut talk, id, calls) = two_calls();
    let before = talk.state.clone();
    assert_eq!(talk.create_as("hello", computes_only).unwrap_err().code, Code::ConversationBusy);
    talk.steer_as(id, "wait", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    let waiting = talk.state.undecided().len();
    let answers = calls.iter().map(|call| result(&mut talk.fresh, call, "x")).collect::<Vec<_>>();
    let refused = talk.create_from(answers, computes_only).unwrap_err();
    assert_eq!((refused.code, waiting), (Code::ConversationBusy, 1));
    assert_eq!(talk.state.open_calls().count(), before.open_calls().count());
    assert_eq!(talk.state.undecided().len(), waiting);
}

#[test]
fn a_prompt_that_answers_every_open_call_is_computed() {
    let (mut talk, _, calls) = two_calls();
    let answers = calls.iter().map(|call| result(&mut talk.fresh, call, "x")).collect::<Vec<_>>();
    talk.create_from(answers, computes_only).unwrap();
    assert_eq!(talk.create_as("more", computes_only).unwrap_err().code, Code::ConversationBusy, "it runs");
}

#[test]
fn an_answer_that_only_reasons_is_no_summary() {
    let (mut talk, id) = (Talk::new(7), |talk: &mut Talk| {
        talk.create_as("sum up", |create| create.config.purpose = Purpose::Summary).unwrap()
    });
    for (pieces, ending) in [
        (vec![], "failed"),
        (vec![Piece::Reasoning("hm".into())], "failed"),
        (vec![Piece::Reasoning("hm".into()), Piece::Text(" \n".into())], "failed"),
        (vec![Piece::Reasoning("hm".into()), Piece::Text("a".into())], "completed"),
    ] {
        let id = id(&mut talk);
        let generation = talk.generation();
        talk.say(Input::GenerationStarted { generation, prompt_tokens: 1, cached_tokens: 0, prompt: None }).unwrap();
        talk.generated(pieces.into_iter().map(|piece| output(1, piece)).collect());
        talk.ended(GenerationEnd::Stop);
        assert_eq!(talk.state.response(id).unwrap().status.as_str(), ending);
    }
}
