//! How fast a reader comes back: the time from the request to the first event behind its cursor, on one conversation
//! of 100,000 events, at several places; in a process that wrote them, and in one that was started on its folder.
//!
//! `cargo bench --bench attach`; it writes into the target folder, so that is the disk it measures.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]
#![allow(missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use midstream::actors::{self, Cursor, Foresight, KvKeeper, Parts, RootHandle, Running, Unstored};
use midstream::clock::{Clock, monotonic};
use midstream::config::Config;
use midstream::conversation::{
    Ending, Event, Item, ItemBody, ItemStatus, NewResponse, Recorded, ResponseConfig, State,
};
use midstream::engine::{Catalog, Engine, ScriptedEngine};
use midstream::ids::{ConversationId, FreshIds, ItemId, ResponseId};
use midstream::prompt::Role;
use midstream::store::{Batch, Durability, Journal, Record, SledJournal, Writer};
use serde_json::{Map, json};

const EVENTS: u64 = 101_000;
/// Events of one answer; a conversation of agents has many of moderate length.
const EVENTS_PER_RESPONSE: u64 = 5_000;
const ROUNDS: usize = 20;
const PRINCIPAL: &str = "local";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let id = ConversationId::draw(&mut FreshIds::random());
    write(folder.path(), id).await?;
    let begun = monotonic();
    let (root, parts) = start(folder.path()).await?;
    let handle = root.directory().conversation(id, PRINCIPAL).await.map_err(|reject| reject.message)?;
    handle.state().await.map_err(|reject| reject.message)?;
    println!("{EVENTS} events: the conversation woke in {:.0} ms", begun.elapsed().as_secs_f64() * 1e3);
    println!("cursor at                     median ms    p90 ms    max ms");
    for seq in [0, 1_000, 50_000, 99_999, 100_000] {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begun = monotonic();
            let cursor = Cursor { epoch: None, seq };
            let mut reader = handle.attach(cursor).await.map_err(|reject| reject.message)?;
            let first = reader.next().await.ok_or("no event")?;
            assert_eq!(first.seq, seq + 1);
            times.push(begun.elapsed());
        }
        report(seq, times);
    }
    root.stop().await;
    parts.writer.stop().await;
    Ok(())
}

fn report(seq: u64, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
    println!("{seq:<26} {:>12.1} {:>9.1} {:>9.1}", at(50), at(90), at(100));
}

async fn start(folder: &Path) -> Outcome<(RootHandle, Parts)> {
    let journal: Arc<dyn Journal> = Arc::new(SledJournal::open(folder)?);
    let config = Config::default();
    let writer = Writer::start(journal.clone(), config.journal_queue_batches)?;
    let engine: Arc<dyn Engine> = Arc::new(ScriptedEngine::from_json("[]")?);
    let parts = Parts {
        journal,
        writer,
        catalog: Arc::new(Catalog::new(vec![engine])),
        clock: Clock::System,
        config: Arc::new(config),
        running: Running::default(),
        unstored: Unstored::default(),
        foresight: Foresight::default(),
        kv: KvKeeper::default(),
    };
    Ok((actors::start(parts.clone()).await?, parts))
}

/// A conversation of long answers, as the actor would have journaled it.
async fn write(folder: &Path, id: ConversationId) -> Outcome<()> {
    let journal: Arc<dyn Journal> = Arc::new(SledJournal::open(folder)?);
    let writer = Writer::start(journal, 256)?;
    let mut log = Log { state: State::default(), events: Vec::new() };
    let fresh = &mut FreshIds::random();
    let (principal, metadata, defaults) =
        (PRINCIPAL.to_owned(), Map::new(), midstream::conversation::Policies::default());
    log.add(Event::ConversationCreated {
        id,
        principal,
        tenant: None,
        metadata,
        forked_from: None,
        defaults,
        template_ms: None,
    });
    while log.state.last_seq < EVENTS {
        let response_id = ResponseId::draw(fresh);
        let input = vec![Item::message(ItemId::draw(fresh), Role::User, "go on")];
        let previous = log.state.responses.last().map(|last| last.id);
        let new = NewResponse { id: response_id, previous, input, config: config()?, enqueued: false };
        log.add(Event::ResponseCreated(Box::new(new)));
        log.add(Event::ResponseInProgress { response_id, prompt_tokens: 9, cached_tokens: 0, prompt: None });
        let body = ItemBody::Message { role: Role::Assistant, content: Vec::new() };
        let item = Item { id: ItemId::draw(fresh), status: ItemStatus::InProgress, body };
        let item_id = item.id;
        log.add(Event::OutputItemAdded { response_id, item, first_token: 0 });
        log.add(Event::ContentPartAdded { response_id, item_id });
        for token in 0..EVENTS_PER_RESPONSE as u32 {
            log.add(Event::OutputDelta {
                response_id,
                item_id,
                text: " word".to_owned(),
                tokens: vec![token],
                logprobs: Vec::new(),
            });
        }
        log.add(Event::OutputDone { response_id, item_id });
        log.add(Event::ContentPartDone { response_id, item_id });
        let status = ItemStatus::Completed;
        log.add(Event::OutputItemDone { response_id, item_id, status, native_id: None, made: None });
        log.add(Event::ResponseEnded {
            response_id,
            ending: Ending::Completed,
            tail_tokens: vec![2],
            stop_string: None,
            usage: None,
        });
        let records = vec![Record::Response(response_id)];
        let events = std::mem::take(&mut log.events);
        writer.append(Batch { conversation: id, events, records, durability: Durability::Group }).await?;
    }
    writer.stop().await;
    Ok(())
}

fn config() -> Outcome<ResponseConfig> {
    let sampling = json!({"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1});
    Ok(serde_json::from_value(json!({"model": "scripted", "fingerprint": "", "sampling": sampling, "store": true}))?)
}

struct Log {
    state: State,
    events: Vec<Recorded>,
}

impl Log {
    fn add(&mut self, event: Event) {
        let recorded = self.state.number(event, 1_764_000_000_000);
        self.state.apply(&recorded);
        self.events.push(recorded);
    }
}
