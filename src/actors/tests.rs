//! The shells against an engine that plays a script and a journal in memory: what must hold when an actor sleeps, the
//! journal refuses or the process starts again.
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::directory::DirectoryMsg;
use super::*;
use crate::clock::Clock;
use crate::config::Config;
use crate::conversation::{Create, Ending, Event, Item, Recorded, ResponseConfig, ResponseStatus, Thinking};
use crate::engine::{Catalog, Engine, EngineError, Generation, GenerationRequest, ModelInfo, ScriptedEngine};
use crate::error::Code;
use crate::ids::{ConversationId, FreshIds, ItemId, ResponseId};
use crate::prompt::Role;
use crate::store::{
    Batch, Durability, Failure, Journal, KeyRecord, KeyScope, KeyedAnswer, MemoryJournal, Operation, Record, Writer,
};

/// Nothing here takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn parts(journal: &Arc<MemoryJournal>, script: &Value, config: Config) -> Parts {
    let journal: Arc<dyn Journal> = journal.clone();
    let engine: Arc<dyn Engine> = Arc::new(ScriptedEngine::from_json(&script.to_string()).unwrap());
    Parts {
        writer: Writer::start(journal.clone(), config.journal_queue_batches).unwrap(),
        journal,
        catalog: Arc::new(Catalog::new(vec![engine])),
        clock: Clock::System,
        config: Arc::new(config),
        running: Running::default(),
        unstored: Unstored::default(),
        foresight: Foresight::default(),
        kv: KvKeeper::default(),
    }
}

fn slow() -> Value {
    json!([{"deltas": ["one ", "two ", "three ", "four"], "delay_ms": 30}])
}

pub(super) fn create(parts: &Parts, stop: &[&str]) -> Create {
    let fresh = &mut FreshIds::random();
    let model = parts.catalog.get(None).unwrap().model();
    let config = ResponseConfig {
        stop: stop.iter().map(|text| (*text).to_owned()).collect(),
        background: true,
        ..ResponseConfig::new(&model.id, &model.fingerprint)
    };
    let input = vec![Item::message(ItemId::draw(fresh), Role::User, "go")];
    Create::new(ResponseId::draw(fresh), input, config)
}

pub(super) async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.expect("this happens, or never will")
}

/// Waits until nothing runs, as far as the disk knows, without waking anybody.
async fn all_ended(journal: &MemoryJournal) {
    soon(async {
        while !journal.active().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The journal of a process that was killed behind these events.
pub(super) fn killed_behind(conversations: &[(ConversationId, Vec<Recorded>)]) -> Arc<MemoryJournal> {
    let journal = MemoryJournal::new();
    for (conversation, events) in conversations {
        let created = events.iter().filter_map(|recorded| match &recorded.event {
            Event::ResponseCreated(new) => Some(Record::Response(new.id)),
            _ => None,
        });
        let records = created.chain([Record::Active(true)]).collect();
        let (conversation, events) = (*conversation, events.clone());
        journal.append(&[Batch { conversation, events, records, durability: Durability::Group }]).unwrap();
    }
    Arc::new(journal)
}

#[tokio::test]
async fn a_response_that_began_while_its_conversation_fell_asleep_goes_on() {
    let journal = Arc::new(MemoryJournal::new());
    let parts = parts(&journal, &slow(), Config::default());
    let directory = start(parts.clone()).await.unwrap().directory();
    let (handle, reader) = directory.create_in_new(Open::default(), create(&parts, &[]), None).await.unwrap();
    drop(reader);
    // The conversation asked to sleep before the request came; the directory hears of it behind the request.
    directory.actor.cast(DirectoryMsg::Retire { id: handle.id() }).unwrap();
    all_ended(&journal).await;
}

#[tokio::test]
async fn who_waits_for_an_end_is_told_when_the_journal_refuses() {
    let journal = Arc::new(MemoryJournal::new());
    let parts = parts(&journal, &slow(), Config::default());
    let directory = start(parts.clone()).await.unwrap().directory();
    let create = create(&parts, &[]);
    let id = create.response_id;
    let (handle, mut reader) = directory.create_in_new(Open::default(), create, None).await.unwrap();
    journal.fail(Failure::Append);
    let reject = soon(handle.ended(id)).await.unwrap_err();
    assert!(matches!(reject.code, Code::Recovering | Code::StorageUnavailable), "{reject:?}");
    soon(async { while reader.next().await.is_some() {} }).await;
}

#[tokio::test]
async fn idle_conversations_make_room_for_new_ones_and_those_that_are_read_stay() {
    let journal = Arc::new(MemoryJournal::new());
    let script = json!([{"deltas": ["done"]}]);
    let parts = parts(&journal, &script, Config { conversations_live_max: 3, ..Config::default() });
    let directory = start(parts.clone()).await.unwrap().directory();
    let (read, mut reader) = directory.create_in_new(Open::default(), create(&parts, &[]), None).await.unwrap();
    for _ in 0..12 {
        let create = create(&parts, &[]);
        let id = create.response_id;
        let (handle, reader) = directory.create_in_new(Open::default(), create, None).await.unwrap();
        soon(handle.ended(id)).await.unwrap();
        drop(reader);
        // The actor hears that its reader is gone before it answers this.
        handle.state().await.unwrap();
    }
    let next = create(&parts, &[]);
    let id = next.response_id;
    drop(read.create(next, None).await.unwrap());
    let created = |recorded: Arc<Recorded>| matches!(&recorded.event, Event::ResponseCreated(new) if new.id == id);
    let seen = soon(async {
        while let Some(recorded) = reader.next().await {
            if created(recorded) {
                return true;
            }
        }
        false
    });
    assert!(seen.await, "the one that was read all the time was put to sleep");
}

/// An engine with a fault of its own.
struct Panicking(ScriptedEngine);

impl Engine for Panicking {
    fn model(&self) -> &ModelInfo {
        self.0.model()
    }

    fn submit(&self, _: GenerationRequest) -> Result<Generation, EngineError> {
        panic!("the planned panic")
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test]
async fn a_generation_that_panics_fails_its_response_and_nothing_else() {
    let journal = Arc::new(MemoryJournal::new());
    let engine: Arc<dyn Engine> = Arc::new(Panicking(ScriptedEngine::from_json(&slow().to_string()).unwrap()));
    let parts = Parts { catalog: Arc::new(Catalog::new(vec![engine])), ..parts(&journal, &slow(), Config::default()) };
    let directory = start(parts.clone()).await.unwrap().directory();
    let create = create(&parts, &[]);
    let id = create.response_id;
    let (handle, _reader) = directory.create_in_new(Open::default(), create, None).await.unwrap();
    let state = soon(handle.ended(id)).await.unwrap();
    let ResponseStatus::Ended(Ending::Failed { error }) = &state.response(id).unwrap().status else {
        panic!("it did not fail")
    };
    assert_eq!(error.code, Code::Internal);
    soon(parts.running.idle()).await;
}

#[tokio::test]
async fn an_answer_killed_behind_its_stop_string_ends_as_an_undisturbed_one() {
    let script = json!([{"deltas": ["all of ", "it STOP", " and more"]}]);
    let journal = Arc::new(MemoryJournal::new());
    let before = parts(&journal, &script, Config::default());
    let create = create(&before, &["STOP"]);
    let id = create.response_id;
    let directory = start(before).await.unwrap().directory();
    let (handle, _reader) = directory.create_in_new(Open::default(), create, None).await.unwrap();
    let undisturbed = soon(handle.ended(id)).await.unwrap();
    let mut events = journal.read(handle.id(), 0, usize::MAX).unwrap();
    let is_delta = |recorded: &Recorded| matches!(recorded.event, Event::OutputDelta { .. });
    events.truncate(events.iter().rposition(is_delta).unwrap() + 1);

    let after = parts(&killed_behind(&[(handle.id(), events)]), &script, Config::default());
    let root = start(after).await.unwrap();
    assert_eq!(root.recover().await.unwrap(), 1);
    let handle = root.directory().of_response(id, "").await.unwrap();
    let resumed = soon(handle.ended(id)).await.unwrap();
    let (undisturbed, resumed) = (undisturbed.response(id).unwrap(), resumed.response(id).unwrap());
    assert_eq!(resumed.status, undisturbed.status);
    assert_eq!((resumed.tokens(), resumed.usage), (undisturbed.tokens(), undisturbed.usage));
}

#[tokio::test]
async fn an_answer_of_a_model_that_is_not_served_any_more_fails_and_is_not_said_to_go_on() {
    let journal = Arc::new(MemoryJournal::new());
    let before = parts(&journal, &slow(), Config::default());
    let mut create = create(&before, &[]);
    create.config.model = "gone".to_owned();
    let id = create.response_id;
    let directory = start(before).await.unwrap().directory();
    let (handle, _reader) = directory.create_in_new(Open::default(), create, None).await.unwrap();
    let events = journal.read(handle.id(), 0, 2).unwrap();
    let root = start(parts(&killed_behind(&[(handle.id(), events)]), &slow(), Config::default())).await.unwrap();
    assert_eq!(root.recover().await.unwrap(), 0);
    let handle = root.directory().of_response(id, "").await.unwrap();
    let ended = soon(handle.ended(id)).await.unwrap();
    let ResponseStatus::Ended(Ending::Failed { error }) = &ended.response(id).unwrap().status else { panic!("no end") };
    assert_eq!(error.code, Code::ModelNotFound);
}

#[tokio::test]
async fn a_conversation_that_finds_no_room_at_the_start_does_not_keep_the_server_from_starting() {
    let journal = Arc::new(MemoryJournal::new());
    let before = parts(&journal, &slow(), Config::default());
    let directory = start(before.clone()).await.unwrap().directory();
    let mut conversations = Vec::new();
    for _ in 0..2 {
        let (handle, _reader) = directory.create_in_new(Open::default(), create(&before, &[]), None).await.unwrap();
        conversations.push((handle.id(), journal.read(handle.id(), 0, 2).unwrap()));
    }
    let config = Config { conversations_live_max: 1, ..Config::default() };
    let root = start(parts(&killed_behind(&conversations), &slow(), config)).await.unwrap();
    root.recover().await.unwrap();
}

#[test]
fn a_key_holds_as_long_as_its_record_is_there() {
    let journal = Arc::new(MemoryJournal::new());
    let conversation = ConversationId::draw(&mut FreshIds::random());
    let scope = KeyScope { principal: "p".into(), conversation: None, operation: Operation::Open, key: "k".into() };
    let answer = KeyedAnswer::Opened { conversation };
    let record = KeyRecord { scope: scope.clone(), fingerprint: [7; 32], at_ms: 0, answer: answer.clone() };
    let records = vec![Record::Key(record)];
    journal.append(&[Batch { conversation, events: vec![], records, durability: Durability::Group }]).unwrap();
    let claim = Keys::new(journal).claim(scope, [7; 32]).unwrap();
    assert!(matches!(claim, Claim::Replay(given) if given == answer));
}

#[tokio::test]
async fn closing_a_thought_makes_no_answer_longer_than_it_may_be() {
    let (open, close) = ("<think>", "</think>");
    let thought = format!("{open}{}{close}So.", "a".repeat(100));
    let script = json!({"reasoning": "qwen3", "replies": [{"deltas": [thought]}]});
    let parts = parts(&Arc::new(MemoryJournal::new()), &script, Config::default());
    let directory = start(parts.clone()).await.unwrap().directory();
    // Tokens are bytes: it has thought three when the mark and two more are read, and then eight close the thought.
    let closed_at = open.len() + 2;
    for most in 8..24 {
        for of_conversation in [false, true] {
            let mut create = create(&parts, &[]);
            create.config.thinking = Some(Thinking { budget_tokens: Some(3), effort: None });
            if of_conversation {
                create.policies.max_conversation_tokens = Some(most as u64);
            } else {
                create.config.max_output_tokens = Some(most as u32);
            }
            let id = create.response_id;
            let (handle, _reader) = directory.create_in_new(Open::default(), create, None).await.unwrap();
            let state = soon(handle.ended(id)).await.unwrap();
            let response = state.response(id).unwrap();
            let tokens = response.tokens();
            assert_eq!((tokens.len(), response.usage.output_tokens as usize), (most, most), "{of_conversation}");
            let said = tokens.get(closed_at..closed_at + close.len());
            let is_closed = said.is_some_and(|said| said.iter().copied().eq(close.bytes().map(u32::from)));
            assert_eq!(is_closed, most > closed_at + close.len(), "{most}");
            assert!(matches!(response.status, ResponseStatus::Ended(Ending::Incomplete { .. })), "{most}");
        }
    }
}
