//! Both encodings of a whole conversation, against golden files: clients rely on every byte of these shapes.

use crate::engine::settings::{Sampling, Shaping};
use serde_json::{Map, Value, json};

use super::frame::{frame, openai};
use super::object;
use super::seal::Seal;
use crate::conversation::{
    CallKind, Create, GenerationEnd, Input, Intervene, Item, ItemBody, ItemStatus, Now, Output, Policies, Purpose,
    Recorded, ResponseConfig, State, Toolbox, decide,
};
use crate::error::Code;
use crate::ids::{CallId, ConversationId, FreshIds, InterventionId, ItemId, ResponseId};
use crate::parse::Piece;
use crate::prompt::{Role, ToolDefinition};

/// Plays inputs and keeps every event with the state behind it.
pub(super) struct Play {
    pub(super) state: State,
    fresh: FreshIds,
    pub(super) log: Vec<(State, Recorded)>,
}

impl Play {
    pub(super) fn begin() -> Self {
        let mut play = Self { state: State::default(), fresh: FreshIds::from_seed(7), log: Vec::new() };
        let items = vec![play.message(Role::System, "Be brief.")];
        play.input(Input::Open {
            id: ConversationId::from_bytes([1; 16]),
            principal: "local".to_owned(),
            tenant: None,
            metadata: Map::from_iter([("topic".to_owned(), json!("weather"))]),
            items,
            fork: None,
            defaults: Policies::default(),
        });
        play
    }

    pub(super) fn message(&mut self, role: Role, text: &str) -> Item {
        Item::message(ItemId::draw(&mut self.fresh), role, text)
    }

    pub(super) fn input(&mut self, input: Input) {
        let at = self.state.last_seq;
        let now = Now { unix_ms: 1_800_000_000_000 + at * 10, fresh: FreshIds::from_seed(1000 + u128::from(at)) };
        for recorded in decide(&self.state, input, now).unwrap().events {
            self.state.apply(&recorded);
            self.log.push((self.state.clone(), recorded));
        }
    }

    pub(super) fn create(&mut self, number: u8, input: Vec<Item>) -> ResponseId {
        self.create_with(number, input, config())
    }

    fn create_with(&mut self, number: u8, input: Vec<Item>, config: ResponseConfig) -> ResponseId {
        let response_id = ResponseId::from_bytes([number; 16]);
        self.input(Input::Create(Box::new(Create::new(response_id, input, config))));
        let generation = self.state.last_seq;
        self.input(Input::GenerationStarted { generation, prompt_tokens: 12, cached_tokens: 4, prompt: None });
        response_id
    }

    pub(super) fn generation(&self) -> u64 {
        self.state.active().and_then(|active| active.generation).unwrap()
    }

    pub(super) fn say(&mut self, tokens: &[u32], pieces: Vec<Piece>) {
        let outputs = vec![Output { tokens: tokens.to_vec(), pieces, logprobs: Vec::new() }];
        self.input(Input::Generated { generation: self.generation(), outputs });
    }

    pub(super) fn end(&mut self, end: GenerationEnd) {
        let generation = self.generation();
        self.input(Input::GenerationEnded { generation, outputs: Vec::new(), tail_tokens: vec![0], usage: None, end });
    }

    /// One line of JSON for each frame that `encode` gives.
    fn lines(&self, encode: impl Fn(&State, &Recorded) -> Option<Value>) -> String {
        let frames = self.log.iter().filter_map(|(state, recorded)| encode(state, recorded));
        frames.map(|frame| frame.to_string()).collect::<Vec<_>>().join("\n")
    }
}

fn config() -> ResponseConfig {
    ResponseConfig {
        instructions: Some("Answer.".to_owned()),
        tools: vec![ToolDefinition {
            name: "weather".to_owned(),
            description: None,
            parameters: json!({"type": "object"}),
        }],
        sampling: Sampling {
            choice: 0,
            temperature: 0.7,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 1,
            shaping: Shaping::NONE,
        },
        max_output_tokens: Some(100),
        echo: Map::from_iter([("tool_choice".to_owned(), json!("auto"))]),
        ..ResponseConfig::new("scripted", "f")
    }
}

/// A turn with reasoning, text and a call; its result; a steer in the second answer; a cancel; a failure.
fn whole_conversation() -> Play {
    let mut play = Play::begin();
    let question = play.message(Role::User, "Weather in Oslo?");
    play.create(2, vec![question]);
    play.say(&[1], vec![Piece::Reasoning("Look it".to_owned())]);
    play.say(&[2, 3], vec![Piece::Reasoning(" up.".to_owned()), Piece::Text("Let me see.".to_owned())]);
    play.say(&[4], vec![Piece::ToolCallStarted { index: 0, id: None, name: "weather".to_owned() }]);
    play.say(&[5], vec![Piece::ToolCallArguments { index: 0, fragment: r#"{"city":"Oslo"}"#.to_owned() }]);
    let arguments = r#"{"city":"Oslo"}"#.to_owned();
    play.say(&[6], vec![Piece::ToolCallDone { index: 0, id: None, arguments, complete: true }]);
    play.end(GenerationEnd::Stop);
    let call_id: CallId = play.state.calls[0].call_id.clone();
    let body = ItemBody::FunctionCallOutput {
        call_id,
        output: "rain".to_owned(),
        synthetic: false,
        is_error: false,
        call_kind: CallKind::Function,
    };
    let result = Item { id: ItemId::draw(&mut play.fresh), status: ItemStatus::Completed, body };
    let second = play.create(3, vec![result]);
    play.say(&[7], vec![Piece::Text("It rains".to_owned())]);
    let items = vec![play.message(Role::User, "In French")];
    let intervention_id = InterventionId::from_bytes([4; 16]);
    play.input(Input::Intervene(Intervene::now(intervention_id, second, items)));
    let generation = play.generation();
    play.input(Input::GenerationStarted { generation, prompt_tokens: 20, cached_tokens: 16, prompt: None });
    play.say(&[8], vec![Piece::Text("Il".to_owned())]);
    play.input(Input::Silence);
    play.input(Input::Restarted { fingerprint: Some("f".to_owned()) });
    play.input(Input::Cancel { response_id: None, cascade: false });
    play.end(GenerationEnd::Aborted);
    let again = play.message(Role::User, "Again");
    play.create(5, vec![again]);
    play.end(GenerationEnd::Failed { code: Code::EngineFailed, message: "the engine broke".to_owned() });
    play
}

fn assert_golden(name: &str, lines: &str) {
    insta::with_settings!({ snapshot_path => "../../tests/golden/frames", prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, lines);
    });
}

#[test]
fn every_event_is_one_frame_of_the_conversations_stream() {
    let play = whole_conversation();
    let lines = play.lines(|state, recorded| Some(frame(state, recorded)));
    let seqs: Vec<_> = play.log.iter().map(|(state, recorded)| frame(state, recorded)["seq"].as_u64()).collect();
    assert_eq!(seqs, (1..=play.state.last_seq).map(Some).collect::<Vec<_>>());
    assert!(!lines.contains("conversation.event"), "an event has no frame of its own:\n{lines}");
    assert_golden("conversation", &lines);
}

#[test]
fn openais_stream_of_each_response_is_numbered_from_zero_without_gaps() {
    let play = whole_conversation();
    for response in &play.state.responses {
        let of_it = |state: &State, recorded: &Recorded| {
            openai(state, recorded)
                .filter(|_| recorded.event.response_id() == Some(response.id))
                .map(|event| serde_json::to_value(event).unwrap())
        };
        let numbers: Vec<_> = play.log.iter().filter_map(|(state, recorded)| of_it(state, recorded)).collect();
        let numbers: Vec<_> = numbers.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..response.next_number).collect::<Vec<_>>());
    }
}

#[test]
fn openais_stream_has_openais_shapes() {
    let play = whole_conversation();
    assert_golden(
        "openai",
        &play.lines(|state, recorded| Some(serde_json::to_value(openai(state, recorded)?).unwrap())),
    );
}

#[test]
fn a_replayed_frame_has_the_bytes_of_the_live_one() {
    let play = whole_conversation();
    let live = play.lines(|state, recorded| Some(frame(state, recorded)));
    let mut state = State::default();
    let replayed: Vec<_> = play
        .log
        .iter()
        .map(|(_, recorded)| {
            let stored = serde_json::to_string(recorded).unwrap();
            let recorded: Recorded = serde_json::from_str(&stored).unwrap();
            state.apply(&recorded);
            frame(&state, &recorded).to_string()
        })
        .collect();
    assert_eq!(replayed.join("\n"), live);
}

/// One call of each kind, and a summary.
fn kinds() -> Play {
    let mut play = Play::begin();
    let mut toolbox = Toolbox::default();
    for (name, kind) in [
        ("look", CallKind::Function),
        ("patch", CallKind::Custom),
        ("tool_search", CallKind::ToolSearch),
        ("local_shell", CallKind::LocalShell),
    ] {
        toolbox.add(ToolDefinition { name: name.to_owned(), description: None, parameters: json!({}) }, None, kind);
    }
    let config = ResponseConfig { tools: toolbox.tools, tool_shapes: toolbox.shapes, ..config() };
    let asked = play.message(Role::User, "Do it all");
    play.create_with(2, vec![asked], config.clone());
    for (index, tool) in config.tools.iter().enumerate() {
        let (index, arguments) = (index as u32, r#"{"input":"a"}"#.to_owned());
        play.say(&[1], vec![Piece::ToolCallStarted { index, id: None, name: tool.name.clone() }]);
        play.say(&[2], vec![Piece::ToolCallArguments { index, fragment: arguments.clone() }]);
        play.say(&[3], vec![Piece::ToolCallDone { index, id: None, arguments, complete: true }]);
    }
    play.end(GenerationEnd::Stop);
    let asked = play.message(Role::User, "Sum up");
    play.create_with(3, vec![asked], ResponseConfig { purpose: Purpose::Summary, ..config });
    play.say(&[4], vec![Piece::Text("So far".to_owned())]);
    play.end(GenerationEnd::Stop);
    play
}

#[test]
fn calls_of_every_kind_and_summaries_have_frames_of_their_own_and_what_is_shown_whole_only_grows() {
    let play = kinds();
    let lines = play.lines(|state, recorded| Some(frame(state, recorded)));
    assert!(!lines.contains("conversation.event"), "an event has no frame of its own:\n{lines}");
    let told = |kind: &str| lines.matches(kind).count();
    assert!(told("response.output_item.growing") >= 3, "{lines}");
    assert_eq!(told("response.output_item.grown"), 3, "{lines}");
    assert!(!lines.contains("So far"), "a summary is sealed");
}

#[test]
fn what_a_successor_seals_is_opened_again_behind_a_steer_and_behind_results() {
    let seal = Seal::new([7; 32]);
    let mut play = Play::begin();
    let key = Some(seal.key(ResponseId::from_bytes([2; 16])));
    let asked = play.message(Role::User, "Think");
    let first = play.create_with(2, vec![asked], ResponseConfig { seal: key, ..config() });
    play.say(&[1], vec![Piece::Reasoning("hm".to_owned())]);
    let items = vec![play.message(Role::User, "In French")];
    play.input(Input::Intervene(Intervene::now(InterventionId::from_bytes([4; 16]), first, items)));
    let start = |play: &mut Play| {
        let generation = play.generation();
        play.input(Input::GenerationStarted { generation, prompt_tokens: 20, cached_tokens: 16, prompt: None });
    };
    start(&mut play);
    play.say(&[2], vec![Piece::Reasoning("bon".to_owned())]);
    play.say(&[3], vec![Piece::ToolCallStarted { index: 0, id: None, name: "weather".to_owned() }]);
    play.say(&[4], vec![Piece::ToolCallDone { index: 0, id: None, arguments: "{}".to_owned(), complete: true }]);
    play.end(GenerationEnd::Stop);
    let call = play.state.calls[0].clone();
    let output = Item {
        id: ItemId::draw(&mut play.fresh),
        status: ItemStatus::Completed,
        body: ItemBody::FunctionCallOutput {
            call_id: call.call_id.clone(),
            output: "rain".to_owned(),
            synthetic: false,
            is_error: false,
            call_kind: CallKind::Function,
        },
    };
    play.input(Input::AnswerCalls { response_id: call.response_id, results: vec![output] });
    start(&mut play);
    play.say(&[5], vec![Piece::Reasoning("alors".to_owned())]);
    play.end(GenerationEnd::Stop);
    let outputs = play.state.responses.iter().flat_map(|it| it.output.iter().map(move |output| (it, output)));
    let opened: Vec<_> = outputs
        .filter_map(|(response, output)| {
            let item = serde_json::to_value(object::output(response, output)).unwrap();
            Some(seal.open(item["encrypted_content"].as_str()?).expect("it opens").text)
        })
        .collect();
    assert_eq!(opened, ["hm", "bon", "alors"]);
}
