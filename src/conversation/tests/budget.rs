//! Conversations whose answers may have so many tokens together.

use super::*;

const SPENT: &str = "max_conversation_tokens";

/// A conversation with this bound whose first response is being generated.
fn bounded(most: u64) -> (Talk, ResponseId) {
    let mut talk = Talk::new(7);
    let id = talk.create_as("hello", |create| create.policies.max_conversation_tokens = Some(most)).unwrap();
    (talk, id)
}

/// So many tokens of text.
fn says(count: u32) -> Vec<Output> {
    (0..count).map(|token| output(token, Piece::Text("a".to_owned()))).collect()
}

fn reason(talk: &Talk, id: ResponseId) -> Option<String> {
    match &talk.state.response(id).unwrap().status {
        ResponseStatus::Ended(Ending::Incomplete { reason }) => Some(reason.clone()),
        _ => None,
    }
}

fn warnings(talk: &Talk) -> Vec<(u64, u64)> {
    let told = talk.log.iter().filter_map(|recorded| match recorded.event {
        Event::ConversationBudgetLow { max_conversation_tokens, left_tokens, .. } => {
            Some((max_conversation_tokens, left_tokens))
        }
        _ => None,
    });
    told.collect()
}

fn ends_at_its_length(talk: &mut Talk, tail_tokens: Vec<u32>) -> Vec<Event> {
    let (generation, outputs) = (talk.generation(), vec![]);
    talk.say(Input::GenerationEnded { generation, outputs, tail_tokens, usage: None, end: GenerationEnd::Length })
        .unwrap()
}

#[test]
fn a_warning_comes_once_before_the_tokens_are_spent_and_the_end_says_why() {
    let (mut talk, id) = bounded(20);
    talk.generated(says(17));
    assert_eq!(warnings(&talk), []);
    assert_eq!(names(&talk.generated(says(1))), ["output_delta", "conversation_budget_low"]);
    talk.generated(says(1));
    assert_eq!(warnings(&talk), [(20, 2)]);
    ends_at_its_length(&mut talk, vec![9]);
    assert_eq!(reason(&talk, id).as_deref(), Some(SPENT));
    assert_eq!((talk.state.generated_tokens, talk.state.status()), (20, "idle"));
}

#[test]
fn the_warning_stands_in_front_of_the_end_even_where_both_come_at_once() {
    let (mut talk, id) = bounded(1);
    let events = ends_at_its_length(&mut talk, vec![9]);
    assert_eq!(names(&events), ["conversation_budget_low", "response_ended"]);
    assert_eq!((warnings(&talk), reason(&talk, id).as_deref()), (vec![(1, 0)], Some(SPENT)));
}

#[test]
fn an_answer_is_given_what_the_others_left_and_no_more_than_its_own_bound() {
    let (mut talk, first) = bounded(20);
    let most = |talk: &Talk, id: ResponseId| talk.state.tokens_max(talk.state.response(id).unwrap());
    talk.generated(says(5));
    assert_eq!(most(&talk, first), Some(20), "what it has itself counts for it");
    talk.ended(GenerationEnd::Stop);
    let asks = |create: &mut Create| create.policies.max_conversation_tokens = Some(20);
    let second = talk.create_as("more", asks).unwrap();
    assert_eq!(most(&talk, second), Some(15));
    talk.generated(says(3));
    talk.ended(GenerationEnd::Stop);
    let third = talk.create_as("more", |create| {
        asks(create);
        create.config.max_output_tokens = Some(4);
    });
    let third = third.unwrap();
    assert_eq!(most(&talk, third), Some(4));
    talk.generated(says(4));
    talk.ended(GenerationEnd::Length);
    assert_eq!(reason(&talk, third).as_deref(), Some("max_output_tokens"));
    let unbounded = talk.create("more").unwrap();
    assert_eq!(most(&talk, unbounded), None);
}

#[test]
fn at_an_answers_end_the_engines_own_count_says_what_is_left() {
    let ends = |most: u64, output_tokens: u32| {
        let (mut talk, id) = bounded(most);
        talk.generated(says(3));
        let usage = Some(Usage { output_tokens, ..Usage::default() });
        let (generation, end) = (talk.generation(), GenerationEnd::Length);
        talk.say(Input::GenerationEnded { generation, outputs: vec![], tail_tokens: vec![], usage, end }).unwrap();
        (warnings(&talk), reason(&talk, id).unwrap(), talk.state.generated_tokens)
    };
    assert_eq!(ends(20, 20), (vec![(20, 0)], SPENT.to_owned(), 20));
    assert_eq!(ends(20, 18), (vec![(20, 2)], "max_output_tokens".to_owned(), 18));
    assert_eq!(ends(20, 1), (vec![], "max_output_tokens".to_owned(), 1), "it counted less than its pieces");
}

/// A conversation of which nothing is left.
fn spent() -> (Talk, ResponseId) {
    let (mut talk, id) = bounded(3);
    talk.generated(says(3));
    ends_at_its_length(&mut talk, vec![]);
    assert_eq!(reason(&talk, id).as_deref(), Some(SPENT));
    talk.effects.clear();
    (talk, id)
}

#[test]
fn where_nothing_is_left_an_answer_ends_before_it_begins_and_a_greater_bound_goes_on() {
    let (mut talk, _) = spent();
    let next = talk.create_as("more", |create| create.policies.max_conversation_tokens = Some(3)).unwrap();
    assert_eq!((reason(&talk, next).as_deref(), talk.effects.len()), (Some(SPENT), 0));
    assert_eq!(warnings(&talk).len(), 1, "it was said already");
    let greater = talk.create_as("more", |create| create.policies.max_conversation_tokens = Some(5)).unwrap();
    assert_eq!((reason(&talk, greater), talk.effects.len()), (None, 1));
    let events = talk.generated(says(2));
    assert_eq!(names(&events).last().map(String::as_str), Some("conversation_budget_low"), "of the new bound");
    assert_eq!(warnings(&talk).last(), Some(&(5, 0)));
}

#[test]
fn what_waits_and_what_goes_on_by_itself_ends_as_well() {
    // A turn that waits, behind the one that spends all.
    let (mut talk, _) = bounded(3);
    let waits = talk.create_as("next", |create| {
        create.policies =
            Policies { if_busy: Some(IfBusy::Enqueue), max_conversation_tokens: Some(3), ..Policies::default() };
    });
    talk.generated(says(3));
    ends_at_its_length(&mut talk, vec![]);
    assert_eq!((reason(&talk, waits.unwrap()).as_deref(), talk.state.status()), (Some(SPENT), "idle"));

    // The successor of a steer.
    let (mut talk, id) = bounded(3);
    talk.generated(says(3));
    talk.steer(id, "shorter").unwrap();
    let successor = talk.state.responses.last().unwrap().id;
    assert_ne!(successor, id);
    assert_eq!((reason(&talk, successor).as_deref(), talk.state.status()), (Some(SPENT), "idle"));

    // The turn behind the results of calls.
    let (mut talk, _) = bounded(3);
    talk.generated(call(1, "look", "{}"));
    talk.ended(GenerationEnd::Stop);
    let called = talk.state.open_calls().next().unwrap().call_id.clone();
    let call = CallRef { response_id: None, call_id: called, attempt: None };
    talk.say(Input::AnswerCall { call, output: "blue".to_owned(), is_error: false }).unwrap();
    let last = talk.state.responses.last().unwrap().id;
    assert_eq!((reason(&talk, last).as_deref(), talk.state.status()), (Some(SPENT), "idle"));
    assert_eq!(talk.state.responses.last().unwrap().input.len(), 1, "the result is in the transcript");
}

#[test]
fn results_do_not_go_on_from_an_answer_that_spent_all() {
    let (mut talk, id) = bounded(4);
    talk.generated(call(1, "look", "{}"));
    ends_at_its_length(&mut talk, vec![9]);
    assert_eq!(reason(&talk, id).as_deref(), Some(SPENT));
    let called = talk.state.open_calls().next().unwrap().call_id.clone();
    let call = CallRef { response_id: None, call_id: called, attempt: None };
    talk.say(Input::AnswerCall { call, output: "blue".to_owned(), is_error: false }).unwrap();
    assert_eq!(talk.state.responses.last().unwrap().id, id, "the client says how it goes on");
    let next = talk.create("go on").unwrap();
    assert_eq!(talk.state.response(next).unwrap().input.len(), 2);
}

#[test]
fn a_restart_counts_what_was_durable_and_says_nothing_twice() {
    let (mut talk, id) = bounded(10);
    talk.generated(says(9));
    let mut folded = State::default();
    talk.log.iter().for_each(|recorded| folded.apply(recorded));
    assert_eq!(folded, talk.state);
    assert_eq!(names(&talk.say(Input::Restarted { fingerprint: None }).unwrap()), ["response_resumed"]);
    assert_eq!(talk.state.tokens_max(talk.state.response(id).unwrap()), Some(10));
    talk.generated(says(1));
    talk.ended(GenerationEnd::Length);
    assert_eq!((warnings(&talk).len(), reason(&talk, id).as_deref()), (1, Some(SPENT)));
}

#[test]
fn an_answer_that_ends_by_itself_with_its_last_token_is_whole() {
    let (mut talk, id) = bounded(3);
    talk.generated(says(3));
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.state.response(id).unwrap().status, ResponseStatus::Ended(Ending::Completed));
}

#[test]
fn a_fork_has_spent_nothing() {
    let (mut talk, id) = spent();
    let response_id = ResponseId::draw(&mut talk.fresh);
    let input = vec![Item::message(ItemId::draw(&mut talk.fresh), Role::User, "again")];
    let create = Create::new(response_id, input, config());
    let fork = fork(&talk.state, id, &create, &mut talk.fresh).unwrap();
    let mut copy = Talk { state: State::default(), log: vec![], effects: vec![], ..talk };
    let (fork, defaults) = (Some(Box::new(fork)), Policies::default());
    let (id, principal) = (ConversationId::draw(&mut copy.fresh), "local".to_owned());
    copy.say(Input::Open { id, principal, tenant: None, metadata: Map::new(), items: vec![], fork, defaults }).unwrap();
    assert_eq!(copy.state.generated_tokens, 0);
}

#[test]
fn a_prompt_is_computed_also_where_no_tokens_are_left() {
    let (mut talk, id) = bounded(2);
    talk.generated(says(2));
    talk.ended(GenerationEnd::Length);
    assert_eq!(reason(&talk, id).as_deref(), Some(SPENT));
    let computed = talk.create_as("next", |create| {
        (create.policies.max_conversation_tokens, create.config.purpose) = (Some(2), Purpose::Prefill);
    });
    let next = computed.unwrap();
    assert_eq!(talk.state.active().map(|active| active.id), Some(next));
}
