//! One seed: lives of a server with clients, each ended by a crash, a stop or a failed sync, until all is settled.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use midstream::actors::{Foresight, Keys, KvKeeper, Parts, RootHandle, Running, Unstored, start};
use midstream::clock::Clock;
use midstream::config::Config;
use midstream::conversation::Recorded;
use midstream::engine::{Catalog, Engine};
use midstream::ids::{ConversationId, FreshIds};
use midstream::store::{Failure, Journal, ManualWriter, WriterHandle, WriterStatus, dump};

use serde_json::Value;

use crate::client::Client;
use crate::commands::command;
use crate::coverage::Coverage;
use crate::dice::Dice;
use crate::disk::write;
use crate::engine::SimEngine;
use crate::world::World;

/// Commands of a seed, at least.
const COMMANDS: u64 = 200;
/// Steps of the wall clock.
const TICK_MS: u64 = 200;
/// Seconds without an event after which nothing happens any more: longer than any timer, even one whose clock jumped.
const QUIET_SECS: u64 = 700;

/// What a seed left behind.
pub(crate) struct Run {
    /// The dump, with every event that was trimmed or deleted.
    pub(crate) dump: String,
    /// The dump as the server has it, and what was deleted.
    pub(crate) stored: String,
    pub(crate) world: Arc<World>,
    pub(crate) coverage: Coverage,
    pub(crate) commands: u64,
    pub(crate) crashes: u64,
}

impl Run {
    /// One number for all that was seen and stored: the same seed gives the same.
    pub(crate) fn trace(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for observation in &self.world.clients.lock().unwrap().history.observations {
            observation.to_string().hash(&mut hasher);
        }
        self.dump.hash(&mut hasher);
        hasher.finish()
    }
}

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Killed, so many milliseconds behind its last command; without commands, in its recovery.
    Killed(u64),
    /// Told to stop.
    Stopped,
    /// Once nothing has anything left to do.
    Settled,
}

/// A process and its clients.
struct Life {
    world: Arc<World>,
    dice: Dice,
    root: RootHandle,
    client: Client,
    writer: WriterHandle,
}

/// Runs a seed.
pub(crate) fn run(seed: u64) -> Run {
    FreshIds::simulate(seed);
    let mut dice = Dice::new(seed);
    let world = World::new();
    let coverage = Coverage::default();
    let mut run =
        Run { dump: String::new(), stored: String::new(), world: world.clone(), coverage, commands: 0, crashes: 0 };
    let wanted = COMMANDS + dice.below(40);
    let lives = 2 + dice.below(3);
    while run.commands < wanted {
        let commands = (wanted / lives + dice.below(20)).min(wanted - run.commands);
        // The first is killed: no seed is without a crash.
        let stops = run.crashes > 0 && dice.chance(15);
        let end = if stops { End::Stopped } else { End::Killed(dice.below(40)) };
        run.commands += live(&world, &mut dice, commands, end);
        run.ended(&mut dice, end);
        let in_recovery = if dice.chance(30) { 1 + dice.below(3) } else { 0 };
        for _ in 0..in_recovery {
            let end = End::Killed(dice.below(9));
            live(&world, &mut dice, 0, end);
            run.ended(&mut dice, end);
        }
    }
    live(&world, &mut dice, 0, End::Settled);
    let mut text = Vec::new();
    dump(&world.disk.durable, &mut text).unwrap();
    let deleted: String =
        world.disk.deleted().iter().map(|(conversation, events)| lines(*conversation, events)).collect();
    run.stored = String::from_utf8(text).unwrap() + &deleted;
    run.dump = untrimmed(&run.stored, &world.disk.trimmed.lock().unwrap());
    run
}

/// Events as a dump has them.
fn lines(conversation: ConversationId, events: &[Recorded]) -> String {
    let mut lines = String::new();
    for recorded in events {
        let (id, event) = (conversation.to_string(), serde_json::to_string(recorded).unwrap());
        writeln!(lines, "{{\"conversation\":{id:?},\"event\":{event}}}").unwrap();
    }
    lines
}

/// A dump with the events themselves where it has what is kept of them.
fn untrimmed(dump: &str, trimmed: &BTreeMap<ConversationId, Vec<Recorded>>) -> String {
    let mut whole = String::new();
    for line in dump.lines() {
        let parsed: Value = serde_json::from_str(line).unwrap();
        let Some(kept) = parsed.get("kept") else {
            writeln!(whole, "{line}").unwrap();
            continue;
        };
        if kept["seq"] == 1 {
            let id: ConversationId = parsed["conversation"].as_str().unwrap().parse().unwrap();
            whole += &lines(id, &trimmed[&id]);
        }
    }
    whole
}

impl Run {
    /// A process is gone. One that stopped in good order has crashed nothing, and leaves nothing half done.
    fn ended(&mut self, dice: &mut Dice, end: End) {
        let lost = self.world.disk.crash(dice);
        if end != End::Stopped {
            self.crashes += 1;
            let streams = self.world.clients.lock().unwrap().streams.clone();
            self.coverage.count_crash(&self.world.disk, &lost, &streams);
        }
        self.world.clients.lock().unwrap().streams.clear();
    }
}

/// One process, from its start to its end; gives how many commands were sent.
fn live(world: &Arc<World>, dice: &mut Dice, commands: u64, end: End) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let dice = dice.fork();
    // Whatever still runs is dropped with the runtime, wherever it is: that is the crash.
    runtime.block_on(async {
        let mut life = begin(world, dice, end == End::Settled).await;
        if let End::Killed(after_ms) = end
            && commands == 0
        {
            let _ = tokio::time::timeout(Duration::from_millis(after_ms), life.root.recover()).await;
            return 0;
        }
        // One that cannot be read is set aside; the others go on.
        life.root.recover().await.unwrap();
        let sent = life.commands(commands).await;
        match end {
            End::Killed(after_ms) => tokio::time::sleep(Duration::from_millis(after_ms)).await,
            End::Stopped => drop(tokio::time::timeout(Duration::from_secs(QUIET_SECS), life.root.stop()).await),
            End::Settled => life.settle().await,
        }
        sent
    })
}

async fn begin(world: &Arc<World>, mut dice: Dice, calm: bool) -> Life {
    let journal: Arc<dyn Journal> = world.disk.clone();
    let config = Config {
        reader_queue_events: 4 + dice.place(12),
        idle_sleep_ms: 1_500,
        conversations_live_max: if !calm && dice.chance(20) { 3 } else { 64 },
        token_channel_capacity: 4,
        conversation_events_bytes_max: if dice.chance(50) { 6_000 } else { 0 },
        ..Config::default()
    };
    let (writer, by_hand) = ManualWriter::new(journal.clone(), 64);
    tokio::spawn(write(by_hand, world.disk.clone(), dice.fork()));
    tokio::spawn(tick(world.clone()));
    let engine: Arc<dyn Engine> = Arc::new(SimEngine::new(world.clone(), dice.fork(), calm));
    let model = (engine.model().id.clone(), engine.model().fingerprint.clone());
    let parts = Parts {
        journal: journal.clone(),
        writer: writer.clone(),
        catalog: Arc::new(Catalog::new(vec![engine])),
        clock: Clock::Manual(world.now_ms.clone()),
        config: Arc::new(config),
        running: Running::default(),
        unstored: Unstored::default(),
        foresight: Foresight::default(),
        kv: KvKeeper::default(),
    };
    let root = start(parts).await.unwrap();
    let (directory, keys) = (root.directory(), Keys::new(journal));
    let client = Client { world: world.clone(), directory, keys, writer: writer.clone(), model };
    Life { world: world.clone(), dice, root, client, writer }
}

/// The wall clock goes on while the process lives.
async fn tick(world: Arc<World>) {
    loop {
        tokio::time::sleep(Duration::from_millis(TICK_MS)).await;
        world.set_clock(|now_ms| now_ms + TICK_MS);
    }
}

impl Life {
    /// Sends commands, unless the process must exit before the last.
    async fn commands(&mut self, count: u64) -> u64 {
        let fault_at = self.dice.chance(25).then(|| self.dice.below(count.max(1) * 2));
        for sent in 0..count {
            if fault_at == Some(sent) {
                let faults = [Failure::Append, Failure::Flush, Failure::Sync];
                self.world.disk.fail(faults[self.dice.place(faults.len())]);
            }
            let pause_ms = match self.dice.below(10) {
                0..4 => 0,
                4..9 => self.dice.below(20),
                _ => self.dice.below(4_000),
            };
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            if matches!(self.writer.status(), WriterStatus::Fatal(_)) {
                return sent;
            }
            command(&self.client, &mut self.dice);
        }
        count
    }

    /// Waits until nothing runs any more, then reads everything once more.
    async fn settle(&self) {
        let journal = &self.world.disk.durable;
        // Readers bring back what was paused because nobody read.
        let conversations = journal.conversations(None, usize::MAX).unwrap();
        let mut readers: Vec<_> = conversations.iter().map(|id| tokio::spawn(self.client.clone().stay(*id))).collect();
        let length = |id: &ConversationId| journal.last_seq(*id).unwrap();
        let (mut before, mut quiet_secs) = (Vec::new(), 0);
        // What waits for the results of calls that nobody answers waits for ever.
        while !journal.active().unwrap().is_empty() && quiet_secs < QUIET_SECS {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now: Vec<u64> = conversations.iter().map(length).collect();
            quiet_secs = if now == before { quiet_secs + 1 } else { 0 };
            before = now;
        }
        readers.drain(..).for_each(|reader| reader.abort());
        for id in conversations {
            self.client.replay(id).await;
        }
    }
}
