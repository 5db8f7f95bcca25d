//! How an answer's tokens are read: control tokens of the model as markers and their text, spelled out, as text.

use std::sync::Arc;

use serde_json::json;

use super::reading::Reading;
use super::teller::{BEHIND_BYTES, Teller, tokenizer};
use super::tests::{create, killed_behind, parts, soon};
use super::{Open, Parts, start};
use crate::config::Config;
use crate::conversation::{Event, Formats, ItemBody, Purpose, Recorded, ResponseConfig, State};
use crate::engine::ModelInfo;
use crate::ids::{ConversationId, ResponseId};
use crate::store::MemoryJournal;

const CONTROL: [&str; 5] = ["<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|end|>"];

/// What the model spells out to its user.
const SPELLED: &str = "Write <|channel|>commentary to=functions.f<|message|>{}<|call|> so.";

/// A text, with control tokens written as `{0}`.
fn tokens(text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = match behind {
            [digit @ b'0'..=b'4', b'}', behind @ ..] if *first == b'{' => {
                tokens.push(BEHIND_BYTES + u32::from(digit - b'0'));
                behind
            }
            _ => {
                tokens.push(u32::from(*first));
                behind
            }
        };
    }
    tokens
}

/// An answer of a thought, a text that holds markers as text, and a call.
fn answer() -> Vec<u32> {
    tokens(&format!(
        "{{1}}analysis{{2}}Hm.{{4}}{{0}}assistant{{1}}final{{2}}{SPELLED}{{4}}\
         {{0}}assistant{{1}}commentary to=functions.f{{2}}{{\"a\":1}}{{3}}"
    ))
}

/// What the response said: reasoning, texts and calls, in order.
fn said(state: &State, id: ResponseId) -> Vec<String> {
    let said = |body: &ItemBody, text: String| match body {
        ItemBody::Reasoning { .. } => format!("R:{text}"),
        ItemBody::FunctionCall { name, .. } => format!("C:{name}({text})"),
        _ => format!("T:{text}"),
    };
    let outputs = state.response(id).unwrap().output.iter();
    outputs.map(|output| said(&output.item.body, output.item.text())).collect()
}

fn expected() -> [String; 3] {
    ["R:Hm.".to_owned(), format!("T:{SPELLED}"), "C:f({\"a\":1})".to_owned()]
}

/// Serves a model that reads these formats over the journal.
fn serve(journal: &Arc<MemoryJournal>, tool_format: &str, reasoning: &str) -> Parts {
    let mut parts = parts(journal, &json!([{"deltas": ["unused"]}]), Config::default());
    let model = parts.catalog.get(None).unwrap().model().clone();
    let tokenizer = Arc::new(tokenizer(&CONTROL, &[]));
    let (tool_format, reasoning) = (tool_format.parse().unwrap(), reasoning.parse().unwrap());
    Teller::serve(&mut parts, ModelInfo { tokenizer, tool_format, reasoning, ..model }, vec![answer()]);
    parts
}

/// A conversation with one answer: its events, and the response.
async fn answered() -> (ConversationId, Vec<Recorded>, ResponseId) {
    let journal = Arc::new(MemoryJournal::new());
    let parts = serve(&journal, "harmony", "gpt_oss");
    let directory = start(parts.clone()).await.unwrap().directory();
    let mut create = create(&parts, &[]);
    create.config.formats =
        Some(Formats { tool: "harmony".to_owned(), reasoning: "gpt_oss".to_owned(), bare_calls: true });
    let id = create.response_id;
    let (handle, _reader) = directory.create_in_new(Open::default(), create, None).await.unwrap();
    let state = soon(handle.ended(id)).await.unwrap();
    assert_eq!(said(&state, id), expected());
    let mut all = handle.attach_all().await.unwrap();
    let mut events = Vec::new();
    while events.len() < state.last_seq as usize {
        events.push(Recorded::clone(&*soon(all.next()).await.unwrap()));
    }
    (handle.id(), events, id)
}

/// The events up to so many bytes of the item of this number.
fn cut(events: &[Recorded], item: usize, bytes: usize) -> Vec<Recorded> {
    let begins = |recorded: &Recorded| matches!(recorded.event, Event::OutputItemAdded { .. });
    let (begin, _) = events.iter().enumerate().filter(|(_, recorded)| begins(recorded)).nth(item).unwrap();
    let deltas = events[begin + 1..].iter().take_while(|recorded| !begins(recorded));
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let mut first = None;
    for recorded in deltas {
        if let Event::OutputDelta { text: more, tokens: more_tokens, .. } = &recorded.event {
            text.push_str(more);
            tokens.extend(more_tokens);
            first.get_or_insert(recorded);
        }
    }
    // In front of the text's bytes, which are tokens, stand those of the header.
    let (header, first) = (tokens.len() - text.len(), first.unwrap());
    text.truncate(bytes);
    tokens.truncate(header + bytes);
    let mut delta = first.clone();
    if let Event::OutputDelta { text: shown, tokens: of_it, .. } = &mut delta.event {
        (*shown, *of_it) = (text, tokens);
    }
    let before = events.iter().take_while(|recorded| recorded.seq < first.seq).cloned();
    before.chain([delta]).collect()
}

/// What the response comes to when a server that reads these formats goes on behind the events.
async fn resumed(
    (conversation, events, id): (ConversationId, Vec<Recorded>, ResponseId),
    (tool_format, reasoning): (&str, &str),
) -> Vec<String> {
    let journal = killed_behind(&[(conversation, events)]);
    let root = start(serve(&journal, tool_format, reasoning)).await.unwrap();
    root.recover().await.unwrap();
    let handle = root.directory().conversation(conversation, "").await.unwrap();
    said(&soon(handle.ended(id)).await.unwrap(), id)
}

#[tokio::test]
async fn spelled_markers_are_text_and_generated_ones_are_markers_wherever_a_restart_cuts_the_answer() {
    let (conversation, events, id) = answered().await;
    let behind_marker = SPELLED.find("commentary").unwrap();
    for (item, bytes) in [(0, 1), (0, 3), (1, 1), (1, "Write ".len()), (1, behind_marker), (1, SPELLED.len())] {
        let events = cut(&events, item, bytes);
        let come_to = resumed((conversation, events, id), ("harmony", "gpt_oss")).await;
        assert_eq!(come_to, expected(), "behind {bytes} bytes of item {item}");
    }
}

#[tokio::test]
async fn an_answer_is_read_to_its_end_as_it_was_begun_whatever_the_server_is_set_to_meanwhile() {
    let (conversation, events, id) = answered().await;
    for (tool_format, reasoning) in [("none", "none"), ("hermes", "qwen3"), ("none", "gpt_oss")] {
        for (item, bytes) in [(0, 1), (0, 3), (1, 1), (1, SPELLED.len())] {
            let events = cut(&events, item, bytes);
            let come_to = resumed((conversation, events, id), (tool_format, reasoning)).await;
            assert_eq!(come_to, expected(), "{tool_format}, behind {bytes} bytes of item {item}");
        }
    }
}

#[test]
fn what_a_response_does_not_say_or_in_an_unknown_word_is_as_for_the_model() {
    let journal = Arc::new(MemoryJournal::new());
    let parts = serve(&journal, "harmony", "gpt_oss");
    let model = ModelInfo { bare_calls: false, ..parts.catalog.get(None).unwrap().model().clone() };
    let read = |formats: Option<(&str, &str)>| {
        let formats = formats.map(|(tool, reasoning)| Formats {
            tool: tool.to_owned(),
            reasoning: reasoning.to_owned(),
            bare_calls: true,
        });
        let Reading { tool_format, reasoning, bare_calls } =
            Reading::of(&ResponseConfig { formats, ..create(&parts, &[]).config }, &model);
        (tool_format.name(), reasoning.name(), bare_calls)
    };
    assert_eq!(read(None), ("harmony", "gpt_oss", false));
    assert_eq!(read(Some(("hermes", "none"))), ("hermes", "none", true));
    assert_eq!(read(Some(("spoken", "think"))), ("harmony", "qwen3", true));
    let summary = ResponseConfig { purpose: Purpose::Summary, ..create(&parts, &[]).config };
    let Reading { tool_format, reasoning, .. } = Reading::of(&summary, &model);
    assert_eq!((tool_format.name(), reasoning.name()), ("none", "gpt_oss"), "whatever it writes is the summary");
}
