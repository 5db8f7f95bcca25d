//! The stored form of events: every version ever written must decode, and today's must encode the same bytes.

mod samples;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Map, json};

use crate::conversation::{
    CallKind, CallStatus, ChoiceOf, Content, CopiedCall, CopiedOutput, CopiedTurn, Cut, Ending, Event, Extras,
    FlushPolicy, Formats, Hold, Item, ItemBody, ItemStatus, Made, NewResponse, OnDisconnect, OnRestart, Policies,
    Policy, Purpose, Recorded, RecordedPrompt, ResponseConfig, ResponseError, SealKey, Thinking, TokenLogprob,
    ToolPolicy, ToolShape, Toolbox, ToolsAllowed, ToolsOnSteer, Usage, When,
};
use crate::engine::settings::{Sampling, Shaping};
use crate::error::Code;
use crate::ids::{CallId, ConversationId, InterventionId, ItemId, ResponseId};
use crate::prompt::{PromptEnd, Role, ToolDefinition};
use samples::{
    beginnings, bounded, copies, counted, endings, going_on, kept, kinds, native_ids, of_a_tenant, outputs, priced,
    prompts, shaped, shortened, signed, stopped, with_extras, with_formats, with_found_tools, with_standing,
};

/// The variant's name as it is stored. A new variant does not compile until it has one, and then the golden file
/// must show it.
fn name(event: &Event) -> &'static str {
    match event {
        Event::ConversationCreated { .. } => "conversation_created",
        Event::ItemsAdded { .. } => "items_added",
        Event::TurnsCopied { .. } => "turns_copied",
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
        Event::ConversationUpdated { .. } => "conversation_updated",
        Event::ConversationRewound { .. } => "conversation_rewound",
        Event::ConversationDeleted {} => "conversation_deleted",
        Event::ConversationSuspended {} => "conversation_suspended",
        Event::ConversationResumed {} => "conversation_resumed",
        Event::ItemDeleted { .. } => "item_deleted",
        Event::ResponseDeleted { .. } => "response_deleted",
        Event::ResponseDequeued { .. } => "response_dequeued",
        Event::ResponseQueued { .. } => "response_queued",
        Event::ResponseUnattended { .. } => "response_unattended",
        Event::ResponseAttended { .. } => "response_attended",
        Event::ResponsePaused { .. } => "response_paused",
        Event::OutputItemDiscarded { .. } => "output_item_discarded",
        Event::ToolCallClaimed { .. } => "tool_call_claimed",
        Event::ToolResultAccepted { .. } => "tool_result_accepted",
        Event::ToolResultDiscarded { .. } => "tool_result_discarded",
        Event::InterventionPending { .. } => "intervention_pending",
        Event::InterventionFailed { .. } => "intervention_failed",
        Event::InterventionSuperseded { .. } => "intervention_superseded",
        Event::InterventionWithdrawn { .. } => "intervention_withdrawn",
        Event::ConversationBudgetLow { .. } => "conversation_budget_low",
    }
}

/// How many names there are above.
const VARIANTS: usize = 40;

/// The releases whose events are kept; the last is today's.
const RELEASES: [&str; 2] = ["v1", "v2"];

fn golden_path(release: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/events/{release}.jsonl"))
}

fn golden_of(release: &str) -> Vec<String> {
    let text = std::fs::read_to_string(golden_path(release)).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn golden() -> Vec<String> {
    golden_of(RELEASES[RELEASES.len() - 1])
}

#[test]
fn stored_events_of_every_release_decode_and_encode_to_the_same_bytes() {
    for line in RELEASES.into_iter().flat_map(golden_of) {
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
    if std::env::var_os("MIDSTREAM_UPDATE_GOLDEN").is_some() {
        std::fs::write(golden_path(RELEASES[RELEASES.len() - 1]), written.join("\n") + "\n").unwrap();
    }
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
        instructions: Some("Be brief.".into()),
        tools: vec![ToolDefinition {
            name: "weather".into(),
            description: Some("Tells the weather.".into()),
            parameters: json!({"type": "object", "properties": {"city": {"type": "string"}}}),
        }],
        sampling: Sampling {
            choice: 0,
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            seed: u64::MAX,
            shaping: Shaping::NONE,
        },
        max_output_tokens: Some(256),
        stop: vec!["\n\n".into()],
        template_kwargs: object(&json!({"enable_thinking": true})),
        background: true,
        metadata: object(&json!({"run": "7"})),
        echo: object(&json!({"truncation": "disabled"})),
        policy: Policy {
            durability: FlushPolicy::Sync,
            on_disconnect: OnDisconnect::Pause,
            grace_ms: 5_000,
            on_restart: OnRestart::Fail,
            max_unattended_tokens: Some(64),
            max_conversation_tokens: None,
        },
        tool_policies: [(
            "weather".to_owned(),
            ToolPolicy { timeout_ms: Some(2_000), max_attempts: 2, idempotent: true },
        )]
        .into(),
        max_parallel_tool_calls: Some(4),
        thinking: Some(Thinking { budget_tokens: Some(1024), effort: Some("low".into()) }),
        ..ResponseConfig::new("scripted", "scripted/1")
    }
}

fn items() -> Vec<Item> {
    let bodies = [
        ItemBody::Message {
            role: Role::User,
            content: vec![Content::Text { text: "Grüße \u{1F44B} \"quoted\"\n".into() }],
        },
        ItemBody::Reasoning { text: "The user greets.".into(), made: None },
        ItemBody::FunctionCall {
            call_id: CallId("call0123456789abcdefghijklmn".into()),
            native_id: None,
            name: "weather".into(),
            arguments: r#"{"city":"Bern"}"#.into(),
            call_kind: CallKind::Function,
            namespace: None,
        },
        ItemBody::FunctionCallOutput {
            call_id: CallId("call0123456789abcdefghijklmn".into()),
            output: "not started".into(),
            synthetic: true,
            is_error: false,
            call_kind: CallKind::Function,
        },
    ];
    let statuses = [ItemStatus::Completed, ItemStatus::Incomplete, ItemStatus::InProgress, ItemStatus::Completed];
    (1..)
        .zip(bodies.into_iter().zip(statuses))
        .map(|(n, (body, status))| Item { id: item_id(n), status, body })
        .collect()
}

/// The result of a tool that failed.
fn failed_output() -> Item {
    let mut item = items().remove(3);
    if let ItemBody::FunctionCallOutput { is_error, synthetic, .. } = &mut item.body {
        (*is_error, *synthetic) = (true, false);
    }
    item
}

fn samples() -> Vec<Event> {
    let mut events = beginnings();
    events.extend(outputs());
    events.extend(endings());
    events.extend(copies());
    events.extend(native_ids());
    events.push(with_formats());
    events.push(with_standing());
    events.extend(prompts());
    events.extend(shaped());
    events.push(going_on());
    events.extend(bounded());
    events.extend(kinds());
    events.push(with_extras());
    events.push(stopped());
    events.push(counted());
    events.push(of_a_tenant());
    events.extend(shortened());
    events.push(signed());
    events.push(priced());
    events.push(kept());
    events.push(with_found_tools());
    events
}
