//! Conversations whose process ends and starts again, on a tiny model: what is reused, what is run, and that no file,
//! however it is, changes an answer.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::super::shared::RENDERS_MAX;
use super::super::standing::CACHE_SALT;
use super::super::{ConversationHandle, Foresight, Open, Parts, RootHandle, Running, Unstored, start};
use super::*;
use crate::config::Config;
use crate::conversation::{Create, Input, Intervene, Item, Response, ResponseConfig};
use crate::engine::{Catalog, LoadOptions, LocalEngine, tiny::Tiny};
use crate::ids::{FreshIds, InterventionId, ItemId, ResponseId};
use crate::prompt::Role;
use crate::store::{Journal, MemoryJournal, Writer};

/// Nothing here takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_mins(1);
/// Tokens of a block of the cache.
const BLOCK_TOKENS: u32 = 16;
/// Most tokens of one sequence in one step: the last one, and those that are guessed behind it.
const STEP_TOKENS_MAX: u64 = 8;
/// Longer than any test: what rests is written only when it sleeps or stops.
const NEVER_MS: u64 = 3_600_000;

/// What outlives a process: the data folder and the journal.
struct Site {
    folder: TempDir,
    journal: Arc<MemoryJournal>,
}

/// A process.
struct Process {
    root: RootHandle,
    parts: Parts,
    engine: Arc<LocalEngine>,
}

/// What a turn said and cost.
#[derive(Debug, PartialEq)]
struct Turn {
    tokens: Vec<u32>,
    cached: u32,
    run: u64,
}

impl Site {
    fn new() -> Self {
        let site = Self { folder: TempDir::new().unwrap(), journal: Arc::new(MemoryJournal::new()) };
        fs::write(site.folder.path().join("tiny.gguf"), Tiny::default().file()).unwrap();
        fs::write(site.folder.path().join("other.gguf"), Tiny { seed: 2, ..Tiny::default() }.file()).unwrap();
        site
    }

    async fn start(&self) -> Process {
        self.start_with(Config { kv_file_idle_ms: NEVER_MS, ..Config::default() }, "tiny").await
    }

    async fn start_with(&self, config: Config, model: &str) -> Process {
        let options = LoadOptions { id: Some("tiny".into()), threads: Some(1), ..LoadOptions::default() };
        let path = self.folder.path().join(format!("{model}.gguf"));
        let engine = Arc::new(LocalEngine::load(&path, &options).unwrap());
        let journal: Arc<dyn Journal> = self.journal.clone();
        let parts = Parts {
            writer: Writer::start(journal.clone(), config.journal_queue_batches).unwrap(),
            journal,
            catalog: Arc::new(Catalog::new(vec![engine.clone()])),
            clock: Clock::System,
            kv: KvKeeper::new(self.files(), Duration::from_millis(config.kv_file_idle_ms), Clock::System),
            config: Arc::new(config),
            running: Running::default(),
            unstored: Unstored::default(),
            foresight: Foresight::default(),
        };
        Process { root: start(parts.clone()).await.unwrap(), parts, engine }
    }

    fn files(&self) -> KvFiles {
        KvFiles::open(self.folder.path(), 1 << 30).unwrap()
    }

    fn path(&self, conversation: ConversationId) -> PathBuf {
        self.folder.path().join("kv").join(format!("{conversation}.kv"))
    }

    fn file_count(&self) -> usize {
        fs::read_dir(self.folder.path().join("kv")).unwrap().count()
    }
}

fn create(text: &str, store: bool) -> Create {
    let fresh = &mut FreshIds::random();
    let sampling = json!({"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1});
    let config = json!({
        "model": "tiny", "fingerprint": "", "sampling": sampling, "max_output_tokens": 40, "store": store,
        "background": true,
    });
    let config: ResponseConfig = serde_json::from_value(config).unwrap();
    let input = vec![Item::message(ItemId::draw(fresh), Role::User, text)];
    Create::new(ResponseId::draw(fresh), input, config)
}

/// One that says whether what comes behind it is to be computed ahead.
fn foreseeing(create: Create, wanted: Option<bool>) -> Create {
    let mut config = create.config.clone();
    config.extras.speculative_prefill = wanted;
    Create { config, ..create }
}

/// More than ten blocks of this tokenizer's tokens.
fn long_question() -> String {
    "Tell me all that you know about the sea, the ships and the light. ".repeat(4)
}

async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.expect("this happens, or never will")
}

impl Process {
    async fn first_turn(&self) -> (ConversationHandle, Turn) {
        let create = create(&long_question(), true);
        let (id, before) = (create.response_id, self.engine.stats().tokens_run);
        let (handle, reader) = self.root.directory().create_in_new(Open::default(), create, None).await.unwrap();
        drop(reader);
        let turn = self.ended(&handle, id, before).await;
        (handle, turn)
    }

    async fn next_turn(&self, conversation: ConversationId) -> Turn {
        let handle = self.root.directory().conversation(conversation, "").await.unwrap();
        let create = create("And then?", true);
        let (id, before) = (create.response_id, self.engine.stats().tokens_run);
        drop(handle.create(create, None).await.unwrap());
        self.ended(&handle, id, before).await
    }

    async fn ended(&self, handle: &ConversationHandle, id: ResponseId, before: u64) -> Turn {
        let state = soon(handle.ended(id)).await.unwrap();
        let response: &Response = state.response(id).unwrap();
        let run = self.engine.stats().tokens_run - before;
        Turn { tokens: response.tokens(), cached: response.usage.cached_tokens, run }
    }

    /// As the server does in good order.
    async fn stop(self) {
        self.root.stop().await;
        soon(self.parts.kv.settled()).await;
    }
}

/// A conversation of one turn whose process has ended in good order, and its next turn as a live process gives it.
async fn stopped() -> (Site, ConversationId, Turn) {
    let site = Site::new();
    let live = site.start().await;
    let (twin, _) = live.first_turn().await;
    let expected = live.next_turn(twin.id()).await;
    live.stop().await;
    let process = site.start().await;
    let (handle, _) = process.first_turn().await;
    let conversation = handle.id();
    process.stop().await;
    (site, conversation, expected)
}

#[tokio::test]
async fn the_next_turn_after_a_restart_runs_as_few_tokens_as_in_a_live_process() {
    let (site, conversation, expected) = stopped().await;
    assert!(expected.cached >= 160, "{expected:?}");
    let process = site.start().await;
    assert_eq!(process.next_turn(conversation).await, expected);
}

#[tokio::test]
async fn without_its_file_the_next_turn_runs_everything_and_says_the_same() {
    let (site, conversation, expected) = stopped().await;
    fs::remove_file(site.path(conversation)).unwrap();
    let turn = site.start().await.next_turn(conversation).await;
    assert_eq!((turn.cached, turn.tokens), (0, expected.tokens));
    assert_eq!(turn.run, expected.run + u64::from(expected.cached));
}

#[tokio::test]
async fn a_conversation_that_rested_before_the_process_was_killed_finds_its_file() {
    let (site, _, expected) = stopped().await;
    let process = site.start_with(Config { kv_file_idle_ms: 1, ..Config::default() }, "tiny").await;
    let (handle, _) = process.first_turn().await;
    soon(async {
        while !site.path(handle.id()).exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    // No order to stop: what follows has only what is on disk.
    let after = site.start().await;
    assert_eq!(after.next_turn(handle.id()).await, expected);
}

#[tokio::test]
async fn a_conversation_that_falls_asleep_is_written() {
    let site = Site::new();
    let process =
        site.start_with(Config { idle_sleep_ms: 20, kv_file_idle_ms: NEVER_MS, ..Config::default() }, "tiny").await;
    let (handle, _) = process.first_turn().await;
    soon(async {
        while !site.path(handle.id()).exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// A process that finds these bytes for the conversation's file, while another conversation is running.
async fn start_on(site: &Site, conversation: ConversationId, bytes: &[u8]) -> (Turn, bool, Vec<u32>) {
    let other = Site { journal: Arc::new(copy(&site.journal, conversation)), folder: TempDir::new().unwrap() };
    fs::copy(site.folder.path().join("tiny.gguf"), other.folder.path().join("tiny.gguf")).unwrap();
    fs::create_dir(other.folder.path().join("kv")).unwrap();
    fs::write(other.path(conversation), bytes).unwrap();
    let process = other.start().await;
    let create = create("Something else entirely.", true);
    let id = create.response_id;
    let (bystander, reader) = process.root.directory().create_in_new(Open::default(), create, None).await.unwrap();
    let turn = process.next_turn(conversation).await;
    let state = soon(bystander.ended(id)).await.unwrap();
    drop(reader);
    (turn, other.path(conversation).exists(), state.response(id).unwrap().tokens())
}

#[tokio::test]
async fn a_damaged_file_is_no_reuse_is_removed_and_changes_no_answer_of_anybody() {
    let (site, conversation, expected) = stopped().await;
    let whole = fs::read(site.path(conversation)).unwrap();
    let (turn, _, beside) = start_on(&site, conversation, &whole).await;
    assert_eq!((turn.cached, &turn.tokens), (expected.cached, &expected.tokens));
    let damaged: [&[u8]; 4] =
        [&whole[..whole.len() - 1], &[whole.clone(), vec![0; 1 << 20]].concat(), &[], &[255; 999]];
    for bytes in damaged {
        let (turn, remains, bystander) = start_on(&site, conversation, bytes).await;
        assert_eq!((turn.cached, &turn.tokens, remains), (0, &expected.tokens, false));
        assert_eq!(bystander, beside);
    }
}

/// What every case of the property below begins with.
struct Prepared {
    site: Site,
    conversation: ConversationId,
    expected: Turn,
    whole: Vec<u8>,
    beside: Vec<u32>,
}

/// Made once.
fn prepared() -> &'static Prepared {
    static PREPARED: std::sync::OnceLock<Prepared> = std::sync::OnceLock::new();
    PREPARED.get_or_init(|| {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let (site, conversation, expected) = stopped().await;
            let whole = fs::read(site.path(conversation)).unwrap();
            let (_, _, beside) = start_on(&site, conversation, &whole).await;
            Prepared { site, conversation, expected, whole, beside }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn whatever_bytes_change_in_a_file_all_answers_stay_bit_identical(
        at in any::<usize>(), with in proptest::collection::vec(any::<u8>(), 1..64), cut in any::<bool>()
    ) {
        let Prepared { site, conversation, expected, whole, beside } = prepared();
        let mut bytes = whole.clone();
        let at = at % bytes.len();
        bytes.iter_mut().skip(at).zip(with).for_each(|(byte, with)| *byte = with);
        if cut {
            bytes.truncate(at);
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (turn, _, bystander) = runtime.block_on(start_on(site, *conversation, &bytes));
        // All or nothing: what changed may lie behind what the turn has use for.
        prop_assert!(turn.cached == 0 || !cut && turn.cached == expected.cached, "{}", turn.cached);
        prop_assert_eq!(&turn.tokens, &expected.tokens);
        prop_assert_eq!(&bystander, beside);
    }
}

/// A journal with what another has of one conversation.
fn copy(from: &MemoryJournal, conversation: ConversationId) -> MemoryJournal {
    use crate::store::{Batch, Durability};
    let events = from.read(conversation, 0, usize::MAX).unwrap();
    let journal = MemoryJournal::new();
    let batch = Batch { conversation, events, records: vec![], durability: Durability::Group };
    journal.append(&[batch]).unwrap();
    journal
}

#[tokio::test]
async fn a_file_of_another_model_or_salt_is_no_reuse() {
    let (site, conversation, expected) = stopped().await;
    let reader = site.files().read(conversation, 0).unwrap().unwrap();
    let (fingerprint, tokens) = (reader.fingerprint().to_owned(), reader.tokens().to_vec());
    let blocks = reader.blocks(usize::MAX).unwrap();
    let own = KvContent { fingerprint, salt: CACHE_SALT, tokens, blocks };
    let foreign = KvContent { fingerprint: "gguf-of-somebody".into(), ..own.clone() };
    let salted = KvContent { salt: CACHE_SALT + 1, ..own.clone() };
    let mut resized = own.clone();
    resized.blocks.iter_mut().for_each(|block| block.truncate(100));
    let mut regrouped = own;
    regrouped.tokens.truncate(regrouped.blocks.len() * 8);
    for content in [foreign, salted, resized, regrouped] {
        let again = Site { journal: Arc::new(copy(&site.journal, conversation)), folder: TempDir::new().unwrap() };
        fs::copy(site.folder.path().join("tiny.gguf"), again.folder.path().join("tiny.gguf")).unwrap();
        again.files().draft(conversation).write(&content, 0).unwrap();
        let turn = again.start().await.next_turn(conversation).await;
        assert_eq!((turn.cached, turn.tokens), (0, expected.tokens.clone()));
    }
    let config = Config { kv_file_idle_ms: NEVER_MS, ..Config::default() };
    let other_model = site.start_with(config, "other").await;
    assert_eq!(other_model.next_turn(conversation).await.cached, 0);
}

#[tokio::test]
async fn a_deleted_conversation_leaves_no_file_whether_it_was_written_or_was_to_be() {
    let site = Site::new();
    let process = site.start().await;
    let (deleted, _) = process.first_turn().await;
    let (kept, _) = process.first_turn().await;
    deleted.request(vec![Input::Delete], None, false).await.unwrap();
    process.stop().await;
    assert!(!site.path(deleted.id()).exists());
    assert!(site.path(kept.id()).exists());
    let process = site.start().await;
    let kept = process.root.directory().conversation(kept.id(), "").await.unwrap();
    kept.request(vec![Input::Delete], None, false).await.unwrap();
    soon(process.parts.kv.settled()).await;
    assert_eq!(site.file_count(), 0);
}

#[tokio::test]
async fn a_start_removes_the_files_of_conversations_that_are_gone() {
    let (site, conversation, _) = stopped().await;
    let process = site.start().await;
    let (deleted, _) = process.first_turn().await;
    process.stop().await;
    let whole = fs::read(site.path(deleted.id())).unwrap();
    let process = site.start().await;
    let again = process.root.directory().conversation(deleted.id(), "").await.unwrap();
    again.request(vec![Input::Delete], None, false).await.unwrap();
    process.stop().await;
    // As a kill between the deletion and the removal leaves it; and one that this journal never had.
    let unknown = ConversationId::draw(&mut FreshIds::random());
    fs::write(site.path(deleted.id()), &whole).unwrap();
    fs::write(site.path(unknown), &whole).unwrap();
    let process = site.start().await;
    process.parts.kv.sweep(&*site.journal);
    let left = [conversation, deleted.id(), unknown].map(|id| site.path(id).exists());
    assert_eq!(left, [true, false, false]);
}

#[tokio::test]
async fn a_conversation_that_is_not_stored_has_no_file() {
    let site = Site::new();
    let process = site.start().await;
    let create = create(&long_question(), false);
    let id = create.response_id;
    let (handle, reader) = process.root.directory().ephemeral(Open::default(), create, None).await.unwrap();
    soon(handle.ended(id)).await.unwrap();
    drop(reader);
    process.stop().await;
    assert_eq!(site.file_count(), 0);
}

#[tokio::test]
async fn turns_that_follow_each_other_write_nothing_in_between() {
    let site = Site::new();
    let process = site.start().await;
    let (handle, _) = process.first_turn().await;
    let second = process.next_turn(handle.id()).await;
    assert!(second.cached >= 160, "{second:?}");
    assert_eq!(site.file_count(), 0);
}

#[tokio::test]
async fn a_file_is_not_replaced_by_less_of_the_same() {
    let (site, conversation, _) = stopped().await;
    let before = fs::read(site.path(conversation)).unwrap();
    let process = site.start().await;
    process.first_turn().await;
    let tokens = site.files().read(conversation, 0).unwrap().unwrap().tokens().to_vec();
    // The cache holds the beginning only: the same first prompt of the other conversation.
    let (kv, engine): (_, Arc<dyn Engine>) = (Arc::new(ConversationKv::default()), process.engine.clone());
    let keeper = KvKeeper::new(site.files(), Duration::from_hours(1), Clock::System);
    let less: Arc<[u32]> = tokens[..64].into();
    drop(kv.begin(&keeper, conversation, &engine, (less, CACHE_SALT)).await);
    kv.save();
    soon(keeper.settled()).await;
    assert!(fs::read(site.path(conversation)).unwrap() == before, "the longer file stays");
}

#[tokio::test]
async fn what_a_steered_sequence_still_says_is_not_taken_for_its_successors() {
    let site = Site::new();
    let process = site.start().await;
    let (kv, engine): (_, Arc<dyn Engine>) = (Arc::new(ConversationKv::default()), process.engine.clone());
    let home = ConversationId::draw(&mut FreshIds::random());
    let steered = kv.begin(&process.parts.kv, home, &engine, ([1, 2].into(), CACHE_SALT)).await;
    let successor = kv.begin(&process.parts.kv, home, &engine, ([1, 2, 3].into(), CACHE_SALT)).await;
    steered.push(9);
    successor.push(4);
    drop(steered);
    successor.push(5);
    assert_eq!(kv.kept().last.as_ref().unwrap().tokens, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn what_is_computed_ahead_of_a_turn_is_not_run_again_in_it() {
    let mut seen = Vec::new();
    for wanted in [None, Some(true)] {
        // Where what is certain ends depends on where the last block begins: one of these lengths crosses it.
        for words in 0..8 {
            let process = Site::new().start().await;
            let create = foreseeing(create(&"sea ".repeat(20 + words), true), wanted);
            let id = create.response_id;
            let (handle, reader) = process.root.directory().create_in_new(Open::default(), create, None).await.unwrap();
            drop(reader);
            soon(handle.ended(id)).await.unwrap();
            // Whoever looks finds everything begun that the end asked for.
            handle.state().await.unwrap();
            soon(process.parts.foresight.idle()).await;
            let run = process.engine.stats().tokens_run;
            let next = process.next_turn(handle.id()).await;
            seen.push((run, next));
        }
    }
    let (plain, foreseen) = seen.split_at(8);
    let mut saved = 0;
    for ((run, plain), (run_ahead, foreseen)) in plain.iter().zip(foreseen) {
        assert_eq!(plain.tokens, foreseen.tokens, "the same answer");
        let (ahead, less) = (run_ahead - run, plain.run - foreseen.run);
        assert_eq!((u64::from(foreseen.cached - plain.cached), less % 16), (less, 0));
        // One token behind the last whole block is run, since something is to be sampled behind it.
        assert!(less <= ahead && ahead <= less + 1, "ahead {ahead}, less {less}: what was run ahead is not run again");
        saved += less;
    }
    assert!(saved > 0, "{foreseen:?}");
}

/// A first turn whose answer is letters only, and is not ended by the model.
fn spelling(max_output_tokens: u32) -> Create {
    let mut create = create(&long_question(), true);
    create.config.sampling.shaping.logit_bias = b"aeiou".iter().map(|letter| (u32::from(*letter), 100.0)).collect();
    create.config.max_output_tokens = Some(max_output_tokens);
    create
}

#[tokio::test]
async fn what_was_said_before_a_steer_is_not_run_again_live_or_after_a_restart() {
    let site = Site::new();
    // The engine goes no further ahead than that of what is told.
    let config = Config { kv_file_idle_ms: NEVER_MS, token_channel_capacity: 4, ..Config::default() };
    let process = site.start_with(config, "tiny").await;
    let create = spelling(600);
    let id = create.response_id;
    let (handle, mut reader) = process.root.directory().create_in_new(Open::default(), create, None).await.unwrap();
    while reader.state().response(id).is_none_or(|response| response.tokens().len() < 30) {
        soon(reader.next()).await.expect("it goes on");
    }
    drop(reader);
    let fresh = &mut FreshIds::random();
    let items = vec![Item::message(ItemId::draw(fresh), Role::User, "Stop. And then?")];
    let steer = Intervene::now(InterventionId::draw(fresh), id, items);
    let successor = handle.intervene(steer, None).await.unwrap().successor_id.unwrap();
    let state = soon(handle.ended(successor)).await.unwrap();
    let (steered, next) = (state.response(id).unwrap(), state.response(successor).unwrap());
    let kept = steered.kept_tokens().len() as u32;
    assert!((30..600).contains(&kept), "{kept}: it is cut in the middle");
    let held = steered.usage.input_tokens + kept;
    assert_eq!(next.prompt.as_ref().unwrap().kept, held, "the prompt and the answer so far, token for token");
    // Nobody knows whether the last token was run already.
    let whole = |tokens: u32| tokens / BLOCK_TOKENS * BLOCK_TOKENS;
    let cached = next.usage.cached_tokens;
    assert!((whole(held - 1)..=whole(held)).contains(&cached), "{cached} of {held}");
    // Everything was run once: two prompts but for what was cached, and two answers but for the last token of each.
    let stats = process.engine.stats();
    let new = steered.usage.input_tokens + next.usage.input_tokens - cached;
    let least = u64::from(new) + stats.tokens_sampled - 2;
    // The step that was under way when the steer came is for nothing.
    assert!((least..=least + STEP_TOKENS_MAX).contains(&stats.tokens_run), "{least} and no more, but {stats:?}");

    process.stop().await;
    let process = site.start().await;
    let turn = process.next_turn(handle.id()).await;
    let state = process.root.directory().conversation(handle.id(), "").await.unwrap().state().await.unwrap();
    let last = state.responses.last().unwrap();
    let held = next.usage.input_tokens + next.usage.output_tokens;
    assert_eq!(last.prompt.as_ref().unwrap().kept, held);
    assert_eq!(turn.cached, whole(held - 1), "the file has what the steer left");
    assert_eq!(turn.run, u64::from(last.usage.input_tokens - turn.cached + last.usage.output_tokens - 1));
}

#[tokio::test]
async fn a_cancel_waits_for_no_prompt_that_is_to_be_rendered() {
    let process = Site::new().start().await;
    let mut permits = Vec::new();
    for _ in 0..RENDERS_MAX {
        permits.push(process.parts.running.render_permit().await);
    }
    let create = create("And then?", true);
    let id = create.response_id;
    let (handle, _reader) = process.root.directory().create_in_new(Open::default(), create, None).await.unwrap();
    handle.cancel(Some(id), false, None).await.unwrap();
    let state = soon(handle.ended(id)).await.unwrap();
    assert_eq!(state.response(id).unwrap().status.as_str(), "cancelled");
    soon(process.parts.running.idle()).await;
    drop(permits);
    assert_eq!(process.engine.stats().tokens_run, 0);
}

#[tokio::test]
async fn a_cancel_waits_for_no_file_that_is_to_be_read() {
    let (site, conversation, _) = stopped().await;
    let process = site.start().await;
    let keeper = process.parts.kv.0.clone().unwrap();
    let permits = keeper.restores.clone().acquire_many_owned(RESTORES_MAX as u32).await.unwrap();
    let looked_at = || fs::metadata(site.path(conversation)).unwrap().modified().unwrap();
    let before = looked_at();
    let handle = process.root.directory().conversation(conversation, "").await.unwrap();
    let create = create("And then?", true);
    let id = create.response_id;
    drop(handle.create(create, None).await.unwrap());
    // Whoever looks into the file leaves the time on it.
    soon(async {
        while looked_at() == before {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    handle.cancel(Some(id), false, None).await.unwrap();
    let state = soon(handle.ended(id)).await.unwrap();
    assert_eq!(state.response(id).unwrap().status.as_str(), "cancelled");
    soon(process.parts.running.idle()).await;
    drop(permits);
    assert_eq!(process.engine.stats().tokens_run, 0);
}
