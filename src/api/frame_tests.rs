//! Both encodings of a whole conversation, against golden files: clients rely on every byte of these shapes.

use crate::engine::settings::Shaping;
use serde_json::{Map, Value, json};

use super::frame::{frame, openai};
use crate::conversation::{
    CallKind, Create, GenerationEnd, Input, Intervene, Item, ItemBody, ItemStatus, Now, Output, Policies, Policy,
    Recorded, ResponseConfig, SamplingConfig, State, decide,
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
        let response_id = ResponseId::from_bytes([number; 16]);
        self.input(Input::Create(Box::new(Create::new(response_id, input, config()))));
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
        self.input(Input::GenerationEnded { generation, outputs: Vec::new(), tail_tokens: vec![0], end });
    }

    /// One line of JSON for each frame that `encode` gives.
    fn lines(&self, encode: impl Fn(&State, &Recorded) -> Option<Value>) -> String {
        let frames = self.log.iter().filter_map(|(state, recorded)| encode(state, recorded));
        frames.map(|frame| frame.to_string()).collect::<Vec<_>>().join("\n")
    }
}

fn config() -> ResponseConfig {
    ResponseConfig {
        model: "scripted".to_owned(),
        fingerprint: "f".to_owned(),
        instructions: Some("Answer.".to_owned()),
        tools: vec![ToolDefinition {
            name: "weather".to_owned(),
            description: None,
            parameters: json!({"type": "object"}),
        }],
        sampling: SamplingConfig {
            temperature: 0.7,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 1,
            shaping: Shaping::NONE,
        },
        max_output_tokens: Some(100),
        stop: Vec::new(),
        template_kwargs: Map::new(),
        background: false,
        store: true,
        metadata: Map::new(),
        echo: Map::from_iter([("tool_choice".to_owned(), json!("auto"))]),
        policy: Policy::default(),
        tool_policies: std::collections::BTreeMap::new(),
        max_parallel_tool_calls: None,
        thinking: None,
        strip_preamble: false,
        formats: None,
        logprobs: None,
        constraint: None,
        prompt_end: crate::prompt::PromptEnd::Answer,
        priority: None,
        choice: None,
        tool_shapes: std::collections::BTreeMap::new(),
        purpose: crate::conversation::Purpose::Answer,
        seal: None,
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
