//! KV out and in: what it saves is counted in tokens run forward, and nothing of it changes a token.

use proptest::prelude::*;

use super::super::super::backend::cpu::CpuBackend;
use super::super::super::contract::{Engine, GenerationRequest, SequenceId, Standing};
use super::super::super::model::tiny::Tiny;
use super::super::super::scheduler::{Chunk, Outcome, Plan};
use super::super::tests::{KV_TOKEN_BYTES, engine, engine_of, generate, parts, prompt, request};
use super::super::{LoadOptions, LocalEngine};
use super::*;

/// A prompt of 100 tokens, and 41 of its answer, of which the last is not run forward: 8 full blocks.
const PROMPT: u32 = 100;
const ANSWER: u32 = 41;
const FULL: usize = 128;

fn fresh() -> LocalEngine {
    engine(&LoadOptions::default())
}

/// Prompt and answer of a first turn.
fn first_turn(engine: &LocalEngine) -> Arc<[u32]> {
    let answer = generate(engine, request(prompt(1, PROMPT), ANSWER)).tokens;
    prompt(1, PROMPT).iter().copied().chain(answer).collect()
}

fn followed_by(tokens: &[u32], more: &[u32]) -> Arc<[u32]> {
    tokens.iter().chain(more).copied().collect()
}

fn saved(engine: &LocalEngine, tokens: &Arc<[u32]>) -> KvImage {
    engine.save_kv(tokens.clone(), 0).blocking_recv().unwrap()
}

/// How many tokens the engine ran forward for `work`.
fn tokens_run<T>(engine: &LocalEngine, work: impl FnOnce() -> T) -> (u64, T) {
    let before = engine.stats().tokens_run;
    let done = work();
    (engine.stats().tokens_run - before, done)
}

#[test]
fn the_next_turn_runs_its_own_tokens_only_live_and_from_an_image_and_everything_without() {
    let engine = fresh();
    let history = first_turn(&engine);
    let next = request(followed_by(&history, &[7, 8, 9]), 5);
    let prompt_tokens = history.len() as u64 + 3;
    let (live, in_live) = tokens_run(&engine, || generate(&engine, next.clone()));
    // Behind the full blocks, and the answer without its last token.
    assert_eq!((live, in_live.cached), (prompt_tokens - FULL as u64 + 4, Some(FULL as u32)));

    let image = saved(&engine, &history);
    assert_eq!(image.tokens[..], history[..FULL]);
    let restarted = fresh();
    assert_eq!(restarted.restore_kv(image).blocking_recv().unwrap(), Ok(FULL));
    let (with, from_image) = tokens_run(&restarted, || generate(&restarted, next.clone()));
    assert_eq!((with, from_image.cached), (live, Some(FULL as u32)));

    let cold = fresh();
    let (without, from_nothing) = tokens_run(&cold, || generate(&cold, next.clone()));
    assert_eq!((without, from_nothing.cached), (prompt_tokens + 4, Some(0)));
    assert_eq!(in_live.tokens, from_nothing.tokens);
    assert_eq!(from_image.tokens, from_nothing.tokens, "bit-identical to a fresh run");
}

#[test]
fn a_successor_after_a_steer_runs_only_what_lies_behind_the_full_blocks_of_what_was_run() {
    let engine = fresh();
    let first = engine.submit(request(prompt(1, 40), 1000)).unwrap();
    let mut events = first.events;
    let mut answer = Vec::new();
    while answer.len() < 30 {
        if let crate::engine::EngineEvent::Token(token) = events.blocking_recv().unwrap() {
            answer.push(token);
        }
    }
    first.abort.abort();
    while events.blocking_recv().is_some() {}
    let steered = followed_by(&followed_by(&prompt(1, 40), &answer), &[5, 6, 7]);
    let (run, successor) = tokens_run(&engine, || generate(&engine, request(steered.clone(), 5)));
    // 69 tokens at least were run: four full blocks.
    assert_eq!((run, successor.cached), (73 - 64 + 4, Some(64)));
    assert_eq!(successor.tokens, generate(&fresh(), request(steered, 5)).tokens);
}

#[test]
fn a_fork_runs_nothing_of_the_common_prefix_and_shares_its_blocks_with_the_running_parent() {
    // Memory for one whole sequence and a half: without sharing, two would not run side by side.
    let options = LoadOptions { kv_bytes: 240 * KV_TOKEN_BYTES, ..LoadOptions::default() };
    let engine = engine(&options);
    let history = first_turn(&engine);
    let parent = engine.submit(request(followed_by(&history, &[1; 3]), 30)).unwrap();
    let fork = request(followed_by(&history[..FULL], &[2; 20]), 30);
    let forked = generate(&engine, fork.clone());
    let mut events = parent.events;
    while events.blocking_recv().is_some() {}
    assert_eq!(forked.cached, Some(FULL as u32));
    assert_eq!(engine.stats().preemptions, 0, "there was room for both");
    let run = u64::from(PROMPT + ANSWER - 1) + (141 + 3 - FULL as u64 + 29) + (20 + 29);
    assert_eq!(engine.stats().tokens_run, run);
    assert_eq!(forked.tokens, generate(&fresh(), fork).tokens);
}

#[test]
fn what_short_convolutions_remember_travels_with_the_blocks() {
    let fresh = || engine_of(Tiny { architecture: "lfm2", layers: 4, ..Tiny::default() }, &LoadOptions::default());
    let live = fresh();
    let history = first_turn(&live);
    let restarted = fresh();
    assert_eq!(restarted.restore_kv(saved(&live, &history)).blocking_recv().unwrap(), Ok(FULL));
    // The next turn, a fork at a border of blocks, and what follows a cut inside a block.
    for (kept, cached) in [(history.len(), FULL), (64, 64), (77, 64)] {
        let next = request(followed_by(&history[..kept], &[7, 8, 9]), 20);
        let cold = generate(&fresh(), next.clone());
        for engine in [&live, &restarted] {
            let warm = generate(engine, next.clone());
            assert_eq!((warm.cached, &warm.tokens), (Some(cached as u32), &cold.tokens));
        }
    }
}

#[test]
fn an_image_serves_every_prefix_of_it_and_its_own_salt_only() {
    let source = fresh();
    let history = first_turn(&source);
    let image = saved(&source, &history);
    let engine = fresh();
    engine.restore_kv(image).blocking_recv().unwrap().unwrap();
    let cached = |tokens: &[u32], salt| engine.cached_kv(tokens.into(), salt).blocking_recv().unwrap();
    assert_eq!(cached(&history, 0), FULL);
    assert_eq!(cached(&history[..70], 0), 64);
    assert_eq!(cached(&history, 1), 0);
    let other = GenerationRequest { cache_salt: 1, ..request(history.clone(), 3) };
    assert_eq!(generate(&engine, other).cached, Some(0));
    assert!(source.save_kv(history, 1).blocking_recv().is_err(), "nothing is there under another salt");
}

#[test]
fn what_the_cache_has_already_is_not_taken_in_twice() {
    let engine = fresh();
    let history = first_turn(&engine);
    let image = saved(&engine, &history);
    for _ in 0..3 {
        assert_eq!(engine.restore_kv(image.clone()).blocking_recv().unwrap(), Ok(FULL));
    }
    let next = generate(&engine, request(followed_by(&history, &[7]), 2));
    assert_eq!(next.cached, Some(FULL as u32));
}

#[test]
fn an_engine_that_is_dropped_answers_no_order() {
    let engine = fresh();
    let history = first_turn(&engine);
    let image = saved(&engine, &history);
    let orders: Vec<_> = (0..40).map(|_| engine.restore_kv(image.clone())).collect();
    drop(engine);
    // Some were done, the others close: nobody waits for ever.
    let answered = orders.into_iter().filter_map(|order| order.blocking_recv().ok()).count();
    assert!(answered <= 40);
}

/// A planner and a backend without a thread, so that their insides can be looked at.
struct Bench {
    scheduler: Scheduler,
    backend: CpuBackend,
    fingerprint: String,
}

impl Bench {
    fn new(blocks: usize) -> Self {
        let options = LoadOptions { kv_bytes: blocks * BLOCK_TOKENS * KV_TOKEN_BYTES, ..LoadOptions::default() };
        let (model, scheduler, backend) = parts(&options);
        Self { scheduler, backend, fingerprint: model.fingerprint }
    }

    /// Runs one step; every chunk that samples goes on with a token made of its position.
    fn step(&mut self) -> Plan {
        let plan = self.scheduler.plan(|_| 1);
        self.backend.forward(&plan.chunks).unwrap();
        let outcome = |chunk: &Chunk| match chunk.sampled {
            0 => Outcome::Prefilled,
            _ => Outcome::Next(vec![chunk.start as u32 % 200]),
        };
        self.scheduler.complete(plan.chunks.iter().map(|chunk| (chunk.sequence, outcome(chunk))));
        plan
    }

    /// Runs a sequence until this many tokens are computed.
    fn run(&mut self, id: u64, tokens: &[u32], steps: usize) {
        self.scheduler.add(SequenceId(id), tokens.to_vec(), 0, Standing::default()).unwrap();
        for _ in 0..steps {
            self.step();
        }
    }

    fn end(&mut self, id: u64) {
        self.scheduler.abort(SequenceId(id));
        self.step();
    }

    /// A whole image of `tokens`, computed here and now.
    fn image(&mut self, tokens: &[u32]) -> KvImage {
        self.run(999, tokens, 1 + tokens.len() / 64);
        self.end(999);
        let (reply, mut answer) = oneshot::channel();
        let mut save = Save { tokens: tokens.into(), salt: 0, parent: None, blocks: Vec::new(), reply };
        while save.advance(self.scheduler.pool_mut(), &self.backend, 2) == Progress::Open {}
        save.finish(&self.fingerprint);
        answer.try_recv().unwrap()
    }

    fn restore(&mut self, image: KvImage) -> Restoring {
        let (reply, answer) = oneshot::channel();
        Restoring { restore: Restore::begin(image, reply, self.scheduler.pool_mut()), answer }
    }

    /// Two blocks more.
    fn advance(&mut self, restoring: &mut Restoring) -> Progress {
        restoring.restore.advance(self.scheduler.pool_mut(), &mut self.backend, 2)
    }

    fn finish(&mut self, mut restoring: Restoring) -> usize {
        restoring.restore.finish(self.scheduler.pool_mut());
        restoring.answer.try_recv().unwrap().unwrap()
    }

    fn holders(&mut self) -> Vec<u32> {
        self.scheduler.pool_mut().audit()
    }

    fn all_blocks(&mut self) -> Vec<Vec<u8>> {
        (0..self.holders().len()).map(|number| self.backend.read_block(BlockId(number as u32))).collect()
    }
}

struct Restoring {
    restore: Restore,
    answer: oneshot::Receiver<Result<usize, KvRefused>>,
}

#[test]
fn an_image_gets_only_blocks_that_nobody_holds_and_stops_where_there_are_none() {
    let image = Bench::new(64).image(&prompt(1, 160));
    let mut bench = Bench::new(12);
    bench.run(1, &prompt(2, 70), 2);
    let held: Vec<usize> =
        bench.holders().iter().enumerate().filter(|(_, holders)| **holders > 0).map(|(number, _)| number).collect();
    let before = bench.all_blocks();
    let mut restoring = bench.restore(image);
    while bench.advance(&mut restoring) == Progress::Open {}
    let count = bench.finish(restoring);
    // The sequence has five blocks of the twelve.
    assert_eq!(count, 7 * BLOCK_TOKENS);
    let after = bench.all_blocks();
    for number in held {
        assert_eq!(after[number], before[number], "a held block was written");
    }
    assert_eq!(bench.holders().iter().sum::<u32>(), 5);
}

#[test]
fn an_image_makes_room_among_unused_prefixes_and_never_pushes_itself_out() {
    let image = Bench::new(64).image(&prompt(1, 160));
    let mut bench = Bench::new(12);
    // The first part of it is cached, then came another prefix.
    bench.run(1, &prompt(1, 50), 2);
    bench.end(1);
    bench.run(2, &prompt(2, 100), 3);
    bench.end(2);
    let mut restoring = bench.restore(image);
    while bench.advance(&mut restoring) == Progress::Open {}
    assert_eq!(bench.finish(restoring), 160);
    assert_eq!(bench.scheduler.pool_mut().probe(0, &prompt(1, 161)).0, 10);
    assert_eq!(bench.holders().iter().sum::<u32>(), 0);
}

#[test]
fn sequences_run_between_the_parts_of_an_image_and_it_gives_way_to_them() {
    let image = Bench::new(64).image(&prompt(1, 160));
    let mut bench = Bench::new(12);
    let mut restoring = bench.restore(image);
    bench.run(1, &prompt(2, 40), 1);
    while bench.advance(&mut restoring) == Progress::Open {
        let plan = bench.step();
        assert_eq!(plan.chunks.len(), 1, "a step between two parts");
    }
    let count = bench.finish(restoring);
    assert!((96..=160).contains(&count), "{count}");
    for _ in 0..100 {
        assert_eq!(bench.step().chunks.len(), 1, "the sequence has all the room it needs");
    }
}

#[test]
fn an_image_that_nobody_waits_for_any_more_holds_nothing() {
    let image = Bench::new(64).image(&prompt(1, 160));
    let mut bench = Bench::new(12);
    let mut restoring = bench.restore(image);
    assert!(bench.advance(&mut restoring) == Progress::Open);
    let Restoring { mut restore, answer } = restoring;
    drop(answer);
    assert!(restore.advance(bench.scheduler.pool_mut(), &mut bench.backend, 2) == Progress::Done);
    restore.finish(bench.scheduler.pool_mut());
    assert_eq!(bench.holders().iter().sum::<u32>(), 0);
}

/// Spoils one thing of an image.
fn spoilt(mut image: KvImage, what: usize, at: usize) -> KvImage {
    let block = at % image.blocks.len();
    let mut tokens = image.tokens.to_vec();
    match what {
        0 => image.fingerprint.push('x'),
        1 => image.fingerprint.clear(),
        2 => drop(image.blocks.remove(block)),
        3 => image.blocks.push(image.blocks[block].clone()),
        4 => drop(image.blocks[block].pop()),
        5 => image.blocks[block].push(0),
        6 => image.blocks[block].clear(),
        7 => drop(tokens.pop()),
        8 => tokens.extend([1; BLOCK_TOKENS]),
        9 => {
            let place = at % tokens.len();
            tokens[place] = u32::MAX - at as u32;
        }
        10 => tokens.clear(),
        _ => image.blocks.clear(),
    }
    image.tokens = tokens.into();
    image
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn an_image_that_does_not_fit_changes_no_byte_and_no_index(what in 0..12_usize, at in any::<usize>()) {
        let mut bench = Bench::new(40);
        let image = spoilt(bench.image(&prompt(1, 96)), what, at);
        bench.run(1, &prompt(2, 70), 2);
        let (before, holders) = (bench.all_blocks(), bench.holders());
        let (sender, orders) = mpsc::channel(1);
        let mut work = KvWork::new(bench.fingerprint.clone(), orders, Clock::System);
        let (reply, mut answer) = oneshot::channel();
        sender.try_send(KvOrder::Restore { image, reply }).ok().unwrap();
        while work.advance(&mut bench.scheduler, &mut bench.backend) {}
        let refused = answer.try_recv().unwrap();
        prop_assert!(refused.is_err(), "{refused:?}");
        prop_assert!(work.is_idle());
        prop_assert_eq!(bench.holders(), holders);
        prop_assert_eq!(bench.all_blocks(), before);
        prop_assert_eq!(bench.scheduler.pool_mut().probe(0, &prompt(1, 97)).0, 6);
    }
}
