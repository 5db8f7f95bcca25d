//! A good run, recorded: two principals' conversations that are answered, steered, cancelled and asked for tools,
//! and what their clients saw. Made by the core itself, so that it is always in the form that is stored today.
use std::sync::Arc;

use midstream::conversation::{
    Answer, CallKind, CancelOutcome, Create, Effect, Event, Fork, GenerationEnd, Input, Intervene, Item, ItemBody,
    ItemStatus, Now, Output, Policies, RecordedPrompt, Reject, ResponseConfig, State, decide, fork, held_tokens,
    messages, turns,
};
use midstream::ids::{CallId, ConversationId, FreshIds, InterventionId, ItemId, ResponseId};
use midstream::parse::Piece;
use midstream::prompt::Role;
use midstream::store::{
    Batch, Durability, EventRetention, ExpiredEvents, Journal as _, KeyRecord, KeyScope, KeyedAnswer, MemoryJournal,
    Operation, Record, dump, expired_events,
};
use serde_json::{Map, Value, json};

use crate::audit::History;

/// A journal, line by line, and a history.
pub(crate) struct Evidence {
    pub(crate) lines: Vec<Value>,
    pub(crate) history: History,
}

impl Evidence {
    /// The journal as a dump.
    pub(crate) fn dump(&self) -> String {
        let lines: Vec<String> = self.lines.iter().map(Value::to_string).collect();
        lines.join("\n")
    }
}

/// One conversation under the hand of its client.
struct Talk<'a> {
    id: ConversationId,
    principal: &'static str,
    state: State,
    world: &'a mut World,
}

struct World {
    journal: Arc<MemoryJournal>,
    history: History,
    fresh: FreshIds,
    opened: u8,
    requests: u64,
    tokens: u32,
}

/// A good run.
pub(crate) fn good() -> Evidence {
    record(false)
}

/// A good run whose old events were trimmed in the end.
pub(crate) fn trimmed() -> Evidence {
    record(true)
}

fn record(trims: bool) -> Evidence {
    let journal = Arc::new(MemoryJournal::new());
    let fresh = FreshIds::from_seed(1);
    let mut world = World { journal, history: History::default(), fresh, opened: 0, requests: 0, tokens: 0 };
    steered_and_cancelled(&mut world);
    let (parent, from) = with_tools(&mut world);
    forked(&mut world, &parent, from);
    asked_again(&mut world);
    if trims {
        let all = EventRetention { before_ms: u64::MAX, bytes_max: None };
        for ExpiredEvents { conversation, oldest_seq } in
            expired_events(&*world.journal, all, None, u64::MAX).unwrap().0
        {
            world.journal.trim(conversation, oldest_seq).unwrap();
            let conversation = conversation.to_string();
            let trimmed = json!({"kind": "trimmed", "conversation": conversation, "oldest_seq": oldest_seq});
            world.history.note(trimmed);
        }
    }
    let mut text = Vec::new();
    dump(&*world.journal, &mut text).unwrap();
    let lines = String::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Evidence { lines, history: world.history }
}

fn steered_and_cancelled(world: &mut World) {
    let mut talk = Talk::open(world, "ann");
    let first = talk.create("hello", "c1");
    talk.started();
    talk.says("one ");
    talk.says("two ");
    talk.create_refused("while it runs");
    let successor = talk.steer(first, "change", "s1");
    talk.repeat_create("hello", "c1", first);
    talk.started();
    talk.says("as you wish");
    talk.cancel(successor, "x1");
    talk.end(GenerationEnd::Aborted);
    talk.create("once more", "c2");
    talk.started();
    talk.says("done");
    talk.end(GenerationEnd::Stop);
    talk.read_all();
}

fn with_tools(world: &mut World) -> (State, ResponseId) {
    let mut talk = Talk::open(world, "bob");
    let first = talk.create("the weather?", "c1");
    talk.started();
    let call = talk.calls();
    talk.end(GenerationEnd::Stop);
    talk.answer(&call, "rain");
    talk.started();
    talk.says("it rains");
    talk.calls();
    talk.end(GenerationEnd::Stop);
    let last = talk.state.responses.last().unwrap().id;
    talk.steer(last, "never mind", "s1");
    talk.started();
    talk.says("fine");
    talk.end(GenerationEnd::Length);
    talk.read_all();
    (talk.state, first)
}

/// Goes on behind the call, whose result came later.
fn forked(world: &mut World, parent: &State, from: ResponseId) {
    let input = vec![Item::message(ItemId::draw(&mut world.fresh), Role::User, "elsewhere")];
    let create = Create::new(ResponseId::draw(&mut world.fresh), input, config());
    let copy = fork(parent, from, &create, &mut world.fresh).unwrap();
    let mut talk = Talk::open_with(world, "bob", Some(copy));
    talk.create("elsewhere", "f1");
    talk.started();
    talk.says("here");
    talk.end(GenerationEnd::Stop);
    talk.read_all();
}

/// Asks what another one asked who did not hear the end.
fn asked_again(world: &mut World) {
    let mut talk = Talk::open(world, "cat");
    talk.create("hello", "c1");
    talk.started();
    for text in ["one ", "two ", "three"] {
        talk.says(text);
    }
    talk.end(GenerationEnd::Stop);
    talk.read_all();
}

impl<'a> Talk<'a> {
    fn open(world: &'a mut World, principal: &'static str) -> Self {
        Self::open_with(world, principal, None)
    }

    fn open_with(world: &'a mut World, principal: &'static str, fork: Option<Fork>) -> Self {
        // In the order of opening, which is the order of the dump.
        world.opened += 1;
        let id = ConversationId::from_bytes([world.opened; 16]);
        let mut talk = Self { id, principal, state: State::default(), world };
        let (principal, metadata, defaults) = (principal.to_owned(), Map::new(), Policies::default());
        let input =
            Input::Open { id, principal, tenant: None, metadata, items: vec![], fork: fork.map(Box::new), defaults };
        let request = talk.ask(&json!({"operation": "open"}));
        talk.decide(input, None).unwrap();
        talk.told(request, &json!({}));
        talk
    }

    /// One decision, journaled as the server does.
    fn decide(&mut self, input: Input, key: Option<(Operation, &str)>) -> Result<Answer, Reject> {
        let fresh = FreshIds::from_seed(u128::from(self.world.fresh.next_u64()));
        let step = decide(&self.state, input, Now { unix_ms: 1_000, fresh })?;
        step.events.iter().for_each(|recorded| self.state.apply(recorded));
        let mut records: Vec<Record> = step
            .events
            .iter()
            .filter_map(|recorded| match &recorded.event {
                Event::ResponseCreated(new) => Some(Record::Response(new.id)),
                Event::InterventionAccepted { intervention_id, .. } => Some(Record::Intervention(*intervention_id)),
                _ => None,
            })
            .collect();
        if let Some((operation, key)) = key {
            let principal = self.principal.to_owned();
            let scope = KeyScope { principal, conversation: Some(self.id), operation, key: key.to_owned() };
            let answer = KeyedAnswer::Opened { conversation: self.id };
            records.push(Record::Key(KeyRecord { scope, fingerprint: [0; 32], at_ms: 1_000, answer }));
        }
        let (conversation, durability) = (self.id, Durability::Group);
        self.world.journal.append(&[Batch { conversation, events: step.events, records, durability }]).unwrap();
        for effect in step.effects {
            if let Effect::StartGeneration { response_id, .. } = effect {
                let messages = messages(&self.state, self.state.response(response_id).unwrap());
                let messages: Vec<Value> = messages.iter().map(shown).collect();
                self.world.history.note(json!({"kind": "model_input", "messages": messages}));
            }
        }
        Ok(step.answer)
    }

    fn ask(&mut self, fields: &Value) -> u64 {
        self.world.requests += 1;
        let request = self.world.requests;
        let mut observation = json!({
            "kind": "request",
            "request": request,
            "principal": self.principal,
            "conversation": self.id.to_string(),
        });
        observation.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.world.history.note(observation);
        request
    }

    fn told(&mut self, request: u64, fields: &Value) {
        let mut answer = json!({"conversation": self.id.to_string()});
        answer.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.world.history.note(json!({"kind": "answer", "request": request, "answer": answer}));
    }

    fn create_of(&mut self, text: &str) -> Create {
        let input = vec![Item::message(ItemId::draw(&mut self.world.fresh), Role::User, text)];
        Create::new(ResponseId::draw(&mut self.world.fresh), input, config())
    }

    fn create(&mut self, text: &str, key: &str) -> ResponseId {
        let create = self.create_of(text);
        let id = create.response_id;
        let request = self.ask(&json!({"operation": "create", "key": key, "input": text}));
        self.decide(Input::Create(Box::new(create)), Some((Operation::Create, key))).unwrap();
        self.told(request, &json!({"response": id.to_string()}));
        id
    }

    /// A repeated request is answered as the first was.
    fn repeat_create(&mut self, text: &str, key: &str, response: ResponseId) {
        let request = self.ask(&json!({"operation": "create", "key": key, "input": text}));
        self.told(request, &json!({"response": response.to_string()}));
    }

    fn create_refused(&mut self, text: &str) {
        let create = self.create_of(text);
        let request = self.ask(&json!({"operation": "create", "key": "busy", "input": text}));
        let reject = self.decide(Input::Create(Box::new(create)), None).unwrap_err();
        let code = reject.code.as_str();
        self.world.history.note(json!({"kind": "refused", "request": request, "status": 409, "code": code}));
    }

    fn steer(&mut self, response_id: ResponseId, text: &str, key: &str) -> ResponseId {
        let intervention_id = InterventionId::draw(&mut self.world.fresh);
        let items = vec![Item::message(ItemId::draw(&mut self.world.fresh), Role::User, text)];
        let request = self.ask(&json!({"operation": "intervene", "key": key, "input": text}));
        let intervene = Intervene::now(intervention_id, response_id, items);
        let answer = self.decide(Input::Intervene(intervene), Some((Operation::Intervene, key))).unwrap();
        let Answer::Intervened(receipt) = answer else { panic!("{answer:?}") };
        let successor = receipt.successor_id.unwrap();
        let fields = json!({
            "intervention": intervention_id.to_string(),
            "successor": successor.to_string(),
            "seq": receipt.seq,
        });
        self.told(request, &fields);
        successor
    }

    fn cancel(&mut self, response_id: ResponseId, key: &str) {
        let request = self.ask(&json!({"operation": "cancel", "key": key}));
        let input = Input::Cancel { response_id: Some(response_id), cascade: false };
        let answer = self.decide(input, Some((Operation::Cancel, key))).unwrap();
        assert!(matches!(answer, Answer::Cancel { outcome: CancelOutcome::Requested, .. }), "{answer:?}");
        self.told(request, &json!({"response": response_id.to_string(), "outcome": "requested"}));
    }

    /// Gives a call its result in the next request.
    fn answer(&mut self, call_id: &CallId, result: &str) {
        let mut create = self.create_of("thanks");
        let (call_id, output) = (call_id.clone(), result.to_owned());
        let body = ItemBody::FunctionCallOutput {
            call_id,
            output,
            synthetic: false,
            is_error: false,
            call_kind: CallKind::Function,
        };
        let item = Item { id: ItemId::draw(&mut self.world.fresh), status: ItemStatus::Completed, body };
        create.input.insert(0, item);
        let id = create.response_id;
        let request = self.ask(&json!({"operation": "create", "key": "c2", "input": "thanks"}));
        self.decide(Input::Create(Box::new(create)), Some((Operation::Create, "c2"))).unwrap();
        self.told(request, &json!({"response": id.to_string()}));
    }

    fn generation(&self) -> u64 {
        self.state.active().unwrap().generation.unwrap()
    }

    fn started(&mut self) {
        self.world.tokens = 0;
        let generation = self.generation();
        let id = self.state.active().unwrap().id;
        let all: Vec<_> = turns(&self.state, id).collect();
        let (own, before) = all.split_last().unwrap();
        let fingerprint = &own.config.fingerprint;
        let held = held_tokens(before, fingerprint).map(|held| held.tokens).unwrap_or_default();
        let said = own.input.iter().flat_map(|item| item.text().into_bytes()).map(|byte| 600 + u32::from(byte));
        let prompt: Vec<u32> = held.into_iter().chain(said).chain(900..909).collect();
        let (prompt_tokens, record) = (prompt.len() as u32, RecordedPrompt::of(&prompt, own, before, fingerprint));
        let prompt = Some(record);
        self.decide(Input::GenerationStarted { generation, prompt_tokens, cached_tokens: 0, prompt }, None).unwrap();
    }

    fn output(&mut self, piece: Piece) -> Output {
        self.world.tokens += 1;
        Output { tokens: vec![self.world.tokens], pieces: vec![piece], logprobs: Vec::new() }
    }

    fn says(&mut self, text: &str) {
        let outputs = vec![self.output(Piece::Text(text.to_owned()))];
        self.decide(Input::Generated { generation: self.generation(), outputs }, None).unwrap();
    }

    /// The model makes a call.
    fn calls(&mut self) -> CallId {
        let arguments = "{}".to_owned();
        let outputs = vec![
            self.output(Piece::ToolCallStarted { index: 0, id: None, name: "look".to_owned() }),
            self.output(Piece::ToolCallArguments { index: 0, fragment: arguments.clone() }),
            self.output(Piece::ToolCallDone { index: 0, id: None, arguments, complete: true }),
        ];
        self.decide(Input::Generated { generation: self.generation(), outputs }, None).unwrap();
        self.state.open_calls().last().unwrap().call_id.clone()
    }

    fn end(&mut self, end: GenerationEnd) {
        let (generation, outputs, tail_tokens) = (self.generation(), vec![], vec![2]);
        self.decide(Input::GenerationEnded { generation, outputs, tail_tokens, usage: None, end }, None).unwrap();
    }

    /// Two readers, one from the beginning and one from the middle.
    fn read_all(&mut self) {
        let events = self.world.journal.read(self.id, 0, usize::MAX).unwrap();
        for after in [0, events.len() / 2] {
            self.world.requests += 1;
            let stream = self.world.requests;
            self.world.history.note(json!({
                "kind": "attach",
                "stream": stream,
                "principal": self.principal,
                "conversation": self.id.to_string(),
                "after": after,
            }));
            for recorded in &events[after..] {
                let text = serde_json::to_string(recorded).unwrap();
                let seen = json!({"kind": "event", "stream": stream, "seq": recorded.seq, "text": text});
                self.world.history.note(seen);
            }
        }
    }
}

/// What the scene's model says to what was said last: its tokens are numbers from 1, and 2 ends it.
pub(crate) fn answer(said: &str) -> Vec<u64> {
    match said {
        "hello" | "the weather?" => vec![1, 2, 3, 2],
        "thanks" => vec![1, 2, 3, 4, 2],
        _ => vec![1, 2],
    }
}

/// A message as an observation.
fn shown(message: &midstream::prompt::Message) -> Value {
    let role = serde_json::to_value(message.role).unwrap();
    let calls = message.tool_calls.iter().map(|call| json!({"id": call.id, "arguments": call.arguments}));
    json!({
        "role": role,
        "content": message.content,
        "reasoning_content": message.reasoning_content,
        "tool_calls": calls.collect::<Vec<_>>(),
        "tool_call_id": message.tool_call_id,
    })
}

fn config() -> ResponseConfig {
    ResponseConfig { background: true, ..ResponseConfig::new("scripted", "f1") }
}
