//! The stored form of events: every version ever written must decode, and today's must encode the same bytes.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Map, json};

use crate::conversation::{
    Content, Cut, EVENT_VERSION, Ending, Event, Item, ItemBody, ItemStatus, NewResponse, Recorded, ResponseConfig,
    ResponseError, SamplingConfig,
};
use crate::error::Code;
use crate::ids::{CallId, ConversationId, InterventionId, ItemId, ResponseId};
use crate::prompt::{Role, ToolDefinition};

/// The variant's name as it is stored. A new variant does not compile until it has one, and then the golden file
/// must show it.
fn name(event: &Event) -> &'static str {
    match event {
        Event::ConversationCreated { .. } => "conversation_created",
        Event::ItemsAdded { .. } => "items_added",
        Event::ResponseCreated(_) => "response_created",
        Event::ResponseInProgress { .. } => "response_in_progress",
        Event::ResponseSuspended { .. } => "response_suspended",
        Event::ResponseResumed { .. } => "response_resumed",
        Event::OutputItemAdded { .. } => "output_item_added",
        Event::ContentPartAdded { .. } => "content_part_added",
        Event::OutputDelta { .. } => "output_delta",
        Event::OutputDone { .. } => "output_done",
        Event::ContentPartDone { .. } => "content_part_done",
        Event::OutputItemDone { .. } => "output_item_done",
        Event::ToolCallRequested { .. } => "tool_call_requested",
        Event::ToolCallClosed { .. } => "tool_call_closed",
        Event::CancelRequested { .. } => "cancel_requested",
        Event::ResponseEnded { .. } => "response_ended",
        Event::InterventionAccepted { .. } => "intervention_accepted",
        Event::InterventionCommitted { .. } => "intervention_committed",
    }
}

/// How many names there are above.
const VARIANTS: usize = 18;

fn golden_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/events/v{EVENT_VERSION}.jsonl"))
}

fn golden() -> Vec<String> {
    let text = std::fs::read_to_string(golden_path()).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn stored_events_decode_and_encode_to_the_same_bytes() {
    for line in golden() {
        let recorded: Recorded = serde_json::from_str(&line).unwrap();
        assert_eq!(serde_json::to_string(&recorded).unwrap(), line);
    }
}

#[test]
fn every_event_has_a_golden_record() {
    let names: BTreeSet<_> =
        golden().iter().map(|line| name(&serde_json::from_str::<Recorded>(line).unwrap().event)).collect();
    assert_eq!(names.len(), VARIANTS, "{names:?}");
    for (line, name) in golden().iter().filter_map(|line| {
        let recorded: Recorded = serde_json::from_str(line).ok()?;
        Some((line.clone(), name(&recorded.event)))
    }) {
        assert!(line.contains(&format!(r#""event":{{"type":"{name}""#)), "{line}");
    }
}

/// Guards the other direction: what is written today is what the golden file says.
#[test]
fn todays_events_are_written_as_the_golden_file_says() {
    let written: Vec<_> = (1..)
        .zip(samples())
        .map(|(seq, event)| {
            let number = matches!(event, Event::OutputDelta { .. }).then_some(4);
            let recorded = Recorded { seq, number, at_ms: 1_764_000_000_000 + seq, event };
            serde_json::to_string(&recorded).unwrap()
        })
        .collect();
    let golden = golden();
    assert_eq!(written.len(), golden.len());
    for (written, golden) in written.iter().zip(&golden) {
        assert_eq!(written, golden);
    }
}

fn response(n: u8) -> ResponseId {
    ResponseId::from_bytes([n; 16])
}

fn item_id(n: u8) -> ItemId {
    ItemId::from_bytes([n; 16])
}

fn object(value: &serde_json::Value) -> Map<String, serde_json::Value> {
    value.as_object().unwrap().clone()
}

fn config() -> ResponseConfig {
    ResponseConfig {
        model: "scripted".into(),
        fingerprint: "scripted/1".into(),
        instructions: Some("Be brief.".into()),
        tools: vec![ToolDefinition {
            name: "weather".into(),
            description: Some("Tells the weather.".into()),
            parameters: json!({"type": "object", "properties": {"city": {"type": "string"}}}),
        }],
        sampling: SamplingConfig { temperature: 0.7, top_k: 40, top_p: 0.95, min_p: 0.05, seed: u64::MAX },
        max_output_tokens: Some(256),
        stop: vec!["\n\n".into()],
        template_kwargs: object(&json!({"enable_thinking": true})),
        background: true,
        store: true,
        metadata: object(&json!({"run": "7"})),
        echo: object(&json!({"truncation": "disabled"})),
    }
}

fn items() -> Vec<Item> {
    let bodies = [
        ItemBody::Message {
            role: Role::User,
            content: vec![Content::Text { text: "Grüße \u{1F44B} \"quoted\"\n".into() }],
        },
        ItemBody::Reasoning { text: "The user greets.".into() },
        ItemBody::FunctionCall {
            call_id: CallId("call0123456789abcdefghijklmn".into()),
            name: "weather".into(),
            arguments: r#"{"city":"Bern"}"#.into(),
        },
        ItemBody::FunctionCallOutput {
            call_id: CallId("call0123456789abcdefghijklmn".into()),
            output: "not started".into(),
            synthetic: true,
        },
    ];
    let statuses = [ItemStatus::Completed, ItemStatus::Incomplete, ItemStatus::InProgress, ItemStatus::Completed];
    (1..)
        .zip(bodies.into_iter().zip(statuses))
        .map(|(n, (body, status))| Item { id: item_id(n), status, body })
        .collect()
}

fn samples() -> Vec<Event> {
    let mut events = beginnings();
    events.extend(outputs());
    events.extend(endings());
    events
}

fn beginnings() -> Vec<Event> {
    let sparse = ResponseConfig {
        instructions: None,
        tools: Vec::new(),
        max_output_tokens: None,
        stop: Vec::new(),
        template_kwargs: Map::new(),
        background: false,
        metadata: Map::new(),
        echo: Map::new(),
        ..config()
    };
    vec![
        Event::ConversationCreated {
            id: ConversationId::from_bytes([3; 16]),
            principal: "anonymous".into(),
            metadata: object(&json!({"topic": "demo"})),
            forked_from: Some(response(9)),
        },
        Event::ConversationCreated {
            id: ConversationId::from_bytes([3; 16]),
            principal: String::new(),
            metadata: Map::new(),
            forked_from: None,
        },
        Event::ItemsAdded { items: items() },
        Event::ResponseCreated(Box::new(NewResponse {
            id: response(1),
            previous: Some(response(9)),
            input: vec![Item::message(item_id(5), Role::User, "Hello")],
            config: config(),
        })),
        Event::ResponseCreated(Box::new(NewResponse {
            id: response(2),
            previous: None,
            input: Vec::new(),
            config: sparse,
        })),
        Event::ResponseInProgress { response_id: response(1), prompt_tokens: 40, cached_tokens: 32 },
        Event::ResponseResumed { response_id: response(1), attempt: 2, exact: true },
    ]
}

fn outputs() -> Vec<Event> {
    let (response_id, item_id) = (response(1), item_id(6));
    let call_id = CallId("call0123456789abcdefghijklmn".into());
    vec![
        Event::OutputItemAdded {
            response_id,
            item: Item {
                id: item_id,
                status: ItemStatus::InProgress,
                body: ItemBody::Message { role: Role::Assistant, content: Vec::new() },
            },
            first_token: 3,
        },
        Event::ContentPartAdded { response_id, item_id },
        Event::OutputDelta { response_id, item_id, text: "Hel\u{0}lo \u{1F600}".into(), tokens: vec![0, 17, u32::MAX] },
        Event::OutputDone { response_id, item_id },
        Event::ContentPartDone { response_id, item_id },
        Event::OutputItemDone { response_id, item_id, status: ItemStatus::Incomplete },
        Event::ToolCallRequested { response_id, call_id: call_id.clone(), attempt: 1 },
        Event::ToolCallClosed { response_id, call_id, attempt: 1, reason: "steered".into(), output: items().remove(3) },
    ]
}

fn endings() -> Vec<Event> {
    let response_id = response(1);
    let intervention_id = InterventionId::from_bytes([4; 16]);
    let ended = |ending| Event::ResponseEnded { response_id, ending, tail_tokens: vec![2] };
    vec![
        Event::CancelRequested { response_id },
        ended(Ending::Completed),
        ended(Ending::Incomplete { reason: "steered".into() }),
        ended(Ending::Cancelled),
        ended(Ending::Failed {
            error: ResponseError { code: Code::EngineFailed, message: "the engine failed".into() },
        }),
        Event::InterventionAccepted {
            intervention_id,
            response_id,
            items: vec![Item::message(item_id(7), Role::User, "Shorter, please.")],
        },
        Event::InterventionCommitted {
            intervention_id,
            response_id,
            successor_id: response(2),
            cut: Some(Cut { item_id: Some(item_id(6)), token_index: 3 }),
        },
        Event::InterventionCommitted { intervention_id, response_id, successor_id: response(2), cut: None },
        Event::ResponseSuspended { response_id },
    ]
}
