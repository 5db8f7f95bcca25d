//! Tests of the core: decisions as tables, and properties over random histories.

mod budget;
mod calls;
mod forks;
mod prompts;
mod properties;
mod races;
mod readers;
mod reference;
mod restart;
mod state_machine;
mod steers;
mod thoughts;
mod tools;
mod trim;
use serde_json::Map;

use super::*;
use crate::ids::{ConversationId, FreshIds, InterventionId, ItemId, ResponseId};
use crate::parse::Piece;
use crate::prompt::{Message, PromptEnd, Role};

/// A conversation under test: decides, records, applies, as the shell does.
#[derive(Clone)]
struct Talk {
    state: State,
    log: Vec<Recorded>,
    effects: Vec<Effect>,
    fresh: FreshIds,
    now_ms: u64,
}

impl Talk {
    /// An open conversation.
    fn new(seed: u128) -> Self {
        let fresh = FreshIds::from_seed(seed);
        let mut talk = Self { state: State::default(), log: vec![], effects: vec![], fresh, now_ms: 1_000 };
        let id = ConversationId::draw(&mut talk.fresh);
        let principal = "local".to_owned();
        talk.say(Input::Open {
            id,
            principal,
            tenant: None,
            metadata: Map::new(),
            items: vec![],
            fork: None,
            defaults: Policies::default(),
        })
        .unwrap();
        talk
    }

    /// A conversation whose first response is being generated and has shown `words`.
    fn generating(words: &[&str]) -> (Self, ResponseId) {
        let mut talk = Self::new(7);
        let id = talk.create("hello").unwrap();
        talk.say(Input::GenerationStarted {
            generation: talk.generation(),
            prompt_tokens: 5,
            cached_tokens: 0,
            prompt: None,
        })
        .unwrap();
        for (index, word) in words.iter().enumerate() {
            talk.generated(vec![output(index as u32, Piece::Text((*word).to_owned()))]);
        }
        (talk, id)
    }

    /// One decision; gives its events.
    fn say(&mut self, input: Input) -> Result<Vec<Event>, Reject> {
        self.now_ms += 1;
        let now = Now { unix_ms: self.now_ms, fresh: FreshIds::from_seed(u128::from(self.fresh.next_u64())) };
        let step = decide(&self.state, input, now)?;
        for recorded in &step.events {
            self.state.apply(recorded);
            self.log.push(recorded.clone());
        }
        self.effects.extend(step.effects);
        Ok(step.events.into_iter().map(|recorded| recorded.event).collect())
    }

    fn create(&mut self, text: &str) -> Result<ResponseId, Reject> {
        let item = Item::message(ItemId::draw(&mut self.fresh), Role::User, text);
        self.create_with(vec![item], None)
    }

    fn create_with(&mut self, input: Vec<Item>, previous: Option<ResponseId>) -> Result<ResponseId, Reject> {
        self.create_from(input, |create| create.previous = previous)
    }

    /// Creates with other fields than the default.
    fn create_as(&mut self, text: &str, fields: impl FnOnce(&mut Create)) -> Result<ResponseId, Reject> {
        let item = Item::message(ItemId::draw(&mut self.fresh), Role::User, text);
        self.create_from(vec![item], fields)
    }

    fn create_from(&mut self, input: Vec<Item>, fields: impl FnOnce(&mut Create)) -> Result<ResponseId, Reject> {
        let response_id = ResponseId::draw(&mut self.fresh);
        let mut create = Create { in_conversation: true, ..Create::new(response_id, input, config()) };
        fields(&mut create);
        self.say(Input::Create(Box::new(create)))?;
        Ok(response_id)
    }

    fn steer(&mut self, response_id: ResponseId, text: &str) -> Result<Vec<Event>, Reject> {
        self.steer_as(response_id, text, |_| ())
    }

    /// Steers with other fields than the default.
    fn steer_as(
        &mut self,
        response_id: ResponseId,
        text: &str,
        fields: impl FnOnce(&mut Intervene),
    ) -> Result<Vec<Event>, Reject> {
        let intervention_id = InterventionId::draw(&mut self.fresh);
        let items = vec![Item::message(ItemId::draw(&mut self.fresh), Role::User, text)];
        let mut intervene = Intervene::now(intervention_id, response_id, items);
        fields(&mut intervene);
        self.say(Input::Intervene(intervene))
    }

    fn cancel(&mut self, id: ResponseId) -> CancelOutcome {
        let now = Now { unix_ms: self.now_ms, fresh: self.fresh.clone() };
        let step = decide(&self.state, Input::Cancel { response_id: Some(id), cascade: false }, now).unwrap();
        self.say(Input::Cancel { response_id: Some(id), cascade: false }).unwrap();
        match step.answer {
            Answer::Cancel { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        }
    }

    /// The generation that is outstanding.
    fn generation(&self) -> u64 {
        self.state.active().unwrap().generation.unwrap()
    }

    fn generated(&mut self, outputs: Vec<Output>) -> Vec<Event> {
        self.say(Input::Generated { generation: self.generation(), outputs }).unwrap()
    }

    fn ended(&mut self, end: GenerationEnd) -> Vec<Event> {
        let generation = self.generation();
        self.say(Input::GenerationEnded { generation, outputs: vec![], tail_tokens: vec![], usage: None, end }).unwrap()
    }
}

fn config() -> ResponseConfig {
    ResponseConfig::new("test", "f1")
}

fn output(token: u32, piece: Piece) -> Output {
    Output { tokens: vec![token], pieces: vec![piece], logprobs: Vec::new() }
}

/// The pieces of a whole call, a token each.
fn call(first_token: u32, name: &str, arguments: &str) -> Vec<Output> {
    call_as(first_token, name, arguments, [None, None])
}

/// The same, with the id that the model itself gave the call: where it begins, and where it ends.
fn call_as(first_token: u32, name: &str, arguments: &str, ids: [Option<&str>; 2]) -> Vec<Output> {
    let (name, arguments) = (name.to_owned(), arguments.to_owned());
    let [begun, id] = ids.map(|id| id.map(str::to_owned));
    vec![
        output(first_token, Piece::ToolCallStarted { index: 0, id: begun, name }),
        output(first_token + 1, Piece::ToolCallArguments { index: 0, fragment: arguments.clone() }),
        output(first_token + 2, Piece::ToolCallDone { index: 0, id, arguments, complete: true }),
    ]
}

/// The events' names, as they are stored.
fn names(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| serde_json::to_value(event).unwrap()["type"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_answer_is_created_shown_and_ended_in_openais_order() {
    let (mut talk, _) = Talk::generating(&["Hi", " there"]);
    talk.ended(GenerationEnd::Stop);
    let events: Vec<Event> = talk.log.iter().map(|recorded| recorded.event.clone()).collect();
    assert_eq!(
        names(&events),
        [
            "conversation_created",
            "response_created",
            "response_in_progress",
            "output_item_added",
            "content_part_added",
            "output_delta",
            "output_delta",
            "output_done",
            "content_part_done",
            "output_item_done",
            "response_ended",
        ]
    );
    let numbers: Vec<_> = talk.log.iter().filter_map(|recorded| recorded.number).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    assert_eq!(talk.state.status(), "idle");
}

#[test]
fn deltas_of_one_batch_become_one_event_with_all_tokens() {
    let (mut talk, id) = Talk::generating(&[]);
    let words = ["a", "b", "c"];
    let outputs = words.iter().enumerate().map(|(index, word)| output(index as u32, Piece::Text((*word).to_owned())));
    let events = talk.generated(outputs.collect());
    assert_eq!(names(&events), ["output_item_added", "content_part_added", "output_delta"]);
    assert_eq!(talk.state.response(id).unwrap().tokens(), [0, 1, 2]);
    assert_eq!(talk.state.response(id).unwrap().output[0].item.text(), "abc");
}

#[test]
fn reasoning_and_text_are_items_of_their_own_and_reasoning_tokens_are_counted() {
    let (mut talk, id) = Talk::generating(&[]);
    talk.generated(vec![output(1, Piece::Reasoning("hm".to_owned())), output(2, Piece::Text("yes".to_owned()))]);
    talk.ended(GenerationEnd::Stop);
    let response = talk.state.response(id).unwrap();
    let kinds: Vec<_> = response.output.iter().map(|output| output.item.id_prefix()).collect();
    assert_eq!(kinds, ["rs", "msg"]);
    assert_eq!((response.usage.reasoning_tokens, response.usage.output_tokens), (1, 2));
}

#[test]
fn an_answer_cut_by_the_limit_is_incomplete() {
    let (mut talk, id) = Talk::generating(&["one"]);
    talk.ended(GenerationEnd::Length);
    let response = talk.state.response(id).unwrap();
    assert_eq!(response.status, ResponseStatus::Ended(Ending::Incomplete { reason: "max_output_tokens".to_owned() }));
    assert_eq!(response.output[0].item.status, ItemStatus::Incomplete);
}

#[test]
fn an_answer_that_goes_on_with_the_last_message_is_one_with_it_and_its_successor_begins_anew() {
    let said = |talk: &Talk| -> Vec<(Role, String)> {
        let last = talk.state.responses.last().unwrap();
        messages(&talk.state, last).into_iter().map(|message| (message.role, message.content)).collect()
    };
    let mut talk = Talk::new(1);
    let items = [(Role::User, "a"), (Role::Assistant, "So")];
    let items = items.map(|(role, text)| Item::message(ItemId::draw(&mut talk.fresh), role, text)).to_vec();
    let id = talk.create_from(items, |create| create.config.prompt_end = PromptEnd::Message).unwrap();
    assert_eq!(said(&talk), [(Role::User, "a".to_owned()), (Role::Assistant, "So".to_owned())]);
    let generation = talk.generation();
    talk.say(Input::GenerationStarted { generation, prompt_tokens: 1, cached_tokens: 0, prompt: None }).unwrap();
    talk.generated(vec![output(1, Piece::Text(" it is".into()))]);
    talk.steer(id, "no").unwrap();
    let successor = talk.state.active().unwrap();
    assert_eq!(successor.config.prompt_end, PromptEnd::Answer);
    let expected = [(Role::User, "a"), (Role::Assistant, "So it is"), (Role::User, "no")];
    assert_eq!(said(&talk), expected.map(|(role, text)| (role, text.to_owned())));
}

#[test]
fn behind_a_whole_summary_stands_what_was_said_and_the_summary_and_nothing_that_it_stands_for() {
    let mut talk = Talk::new(1);
    let mut answer = |input: &str, purpose: Purpose, text: &str, end: GenerationEnd| {
        let item = Item::message(ItemId::draw(&mut talk.fresh), Role::User, input);
        talk.create_from(vec![item], |create| create.config.purpose = purpose).unwrap();
        let generation = talk.generation();
        talk.say(Input::GenerationStarted { generation, prompt_tokens: 1, cached_tokens: 0, prompt: None }).unwrap();
        talk.generated(vec![output(1, Piece::Reasoning("hm".into())), output(2, Piece::Text(text.into()))]);
        talk.ended(end);
        let last = talk.state.responses.last().unwrap();
        let texts = |messages: Vec<Message>| messages.into_iter().map(|message| message.content).collect::<Vec<_>>();
        (texts(messages(&talk.state, last)), texts(messages_with_answer(&talk.state, last, 0)))
    };
    answer("a", Purpose::Answer, "A", GenerationEnd::Stop);
    let (asked, told) = answer("sum up", Purpose::Summary, "short", GenerationEnd::Stop);
    assert_eq!(asked, ["a", "A", "sum up"], "it is written of the whole");
    let summary = told.last().unwrap();
    assert!(summary.ends_with("\n\nshort"), "{summary}");
    assert_eq!(told, ["a", summary]);
    let (asked, _) = answer("b", Purpose::Answer, "B", GenerationEnd::Stop);
    assert_eq!(asked, ["a", summary, "b"]);
    // What is cut stands for nothing.
    answer("again", Purpose::Summary, "sho", GenerationEnd::Length);
    let (asked, _) = answer("c", Purpose::Answer, "C", GenerationEnd::Stop);
    assert_eq!(asked, ["a", summary, "b", "B", "c"], "nobody said what asked for it");
    let (_, told) = answer("at last", Purpose::Summary, "shorter", GenerationEnd::Stop);
    assert_eq!(told[..3], ["a", "b", "c"]);
    assert!(told.len() == 4 && told[3].ends_with("\n\nshorter"));
}

#[test]
fn an_empty_input_is_refused() {
    let mut talk = Talk::new(1);
    assert_eq!(talk.create_with(vec![], None).unwrap_err().code, crate::error::Code::InvalidInput);
}

#[test]
fn a_reader_that_copies_the_state_does_not_see_later_changes() {
    let (mut talk, id) = Talk::generating(&["one"]);
    let before = talk.state.clone();
    talk.generated(vec![output(9, Piece::Text(" two".to_owned()))]);
    assert_eq!(before.response(id).unwrap().output[0].item.text(), "one");
    assert_eq!(talk.state.response(id).unwrap().output[0].item.text(), "one two");
}
