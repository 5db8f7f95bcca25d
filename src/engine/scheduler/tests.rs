//! The planner's promises, by table tests and by random runs.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::engine::kv::PoolConfig;

const MS: u64 = 1_000_000;

fn pool(blocks: usize) -> BlockPool {
    BlockPool::new(PoolConfig { blocks, model: "m".into(), kv_type: "f16".into(), pinned_blocks_max: 0 })
}

fn scheduler(blocks: usize) -> Scheduler {
    guessing(blocks, 0)
}

fn guessing(blocks: usize, guessed_tokens: usize) -> Scheduler {
    let limits = Limits { sequences: 8, step_tokens: 64, context_length: 4096, guessed_tokens, token_gap_ns: 100 * MS };
    Scheduler::new(limits, pool(blocks))
}

fn of(owner: u64, priority: i8) -> Standing {
    Standing { owner, priority }
}

/// A prompt that shares no block with one of another seed.
fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|index| seed * 10_000 + index).collect()
}

fn all_ready(_: SequenceId) -> usize {
    100
}

/// Runs one step: every chunk that samples goes on with `token`.
fn step(scheduler: &mut Scheduler, token: u32) -> Plan {
    let plan = scheduler.plan(all_ready);
    let results: Vec<_> = plan
        .chunks
        .iter()
        .map(|chunk| (chunk.sequence, if chunk.sampled > 0 { Outcome::Next(vec![token]) } else { Outcome::Prefilled }))
        .collect();
    scheduler.complete(results);
    plan
}

fn shape(plan: &Plan) -> Vec<(u64, usize, usize, bool)> {
    plan.chunks.iter().map(|chunk| (chunk.sequence.0, chunk.start, chunk.tokens.len(), chunk.sampled > 0)).collect()
}

#[test]
fn running_sequences_decode_together_while_a_prompt_is_run_in_chunks() {
    let mut scheduler = scheduler(64);
    for id in 1..=4 {
        scheduler.add(SequenceId(id), prompt(id as u32, 10), 0, Standing::default()).unwrap();
    }
    assert_eq!(
        shape(&step(&mut scheduler, 7)),
        [(1, 0, 10, true), (2, 0, 10, true), (3, 0, 10, true), (4, 0, 10, true)]
    );
    scheduler.add(SequenceId(5), prompt(5, 100), 0, Standing::default()).unwrap();
    let decodes = [(1, 10, 1, true), (2, 10, 1, true), (3, 10, 1, true), (4, 10, 1, true)];
    let plan = step(&mut scheduler, 7);
    assert_eq!(shape(&plan)[..4], decodes);
    assert_eq!(shape(&plan)[4..], [(5, 0, 60, false)]);
    assert_eq!(shape(&step(&mut scheduler, 7))[4..], [(5, 60, 40, true)]);
}

#[test]
fn the_block_table_covers_every_planned_position() {
    let mut scheduler = scheduler(64);
    scheduler.add(SequenceId(1), prompt(1, 40), 0, Standing::default()).unwrap();
    for _ in 0..40 {
        let plan = step(&mut scheduler, 7);
        let chunk = &plan.chunks[0];
        assert!(chunk.blocks.len() * BLOCK_TOKENS >= chunk.start + chunk.tokens.len());
        assert_eq!(chunk.blocks.iter().collect::<BTreeSet<_>>().len(), chunk.blocks.len());
    }
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let mut scheduler = scheduler(4);
    assert_eq!(scheduler.context_length(), 64);
    assert_eq!(scheduler.add(SequenceId(1), prompt(1, 64), 0, Standing::default()), Err(TooLong));
    assert_eq!(scheduler.add(SequenceId(1), Vec::new(), 0, Standing::default()), Err(TooLong));
    assert_eq!(scheduler.add(SequenceId(1), prompt(1, 63), 0, Standing::default()), Ok(()));
}

#[test]
fn an_abort_takes_effect_at_the_next_step_and_frees_the_blocks() {
    let mut scheduler = scheduler(16);
    scheduler.add(SequenceId(1), prompt(1, 40), 0, Standing::default()).unwrap();
    scheduler.add(SequenceId(2), prompt(2, 8), 0, Standing::default()).unwrap();
    step(&mut scheduler, 7);
    scheduler.abort(SequenceId(1));
    let plan = step(&mut scheduler, 7);
    assert_eq!(plan.removed, [SequenceId(1)]);
    assert_eq!(shape(&plan), [(2, 8, 1, true)]);
    assert_eq!(scheduler.pool.audit().iter().sum::<u32>(), 1);
    scheduler.abort(SequenceId(1));
    assert!(step(&mut scheduler, 7).removed.is_empty());
}

#[test]
fn a_successor_submitted_behind_an_abort_reuses_all_full_blocks_even_decoded_ones() {
    let mut scheduler = scheduler(16);
    scheduler.add(SequenceId(1), prompt(1, 20), 0, Standing::default()).unwrap();
    for token in 0..30 {
        step(&mut scheduler, token);
    }
    scheduler.abort(SequenceId(1));
    // 20 prompt tokens and 29 decoded ones have been run: three full blocks.
    let mut follower = prompt(1, 20);
    follower.extend(0..30);
    follower.extend([900, 901]);
    scheduler.add(SequenceId(2), follower, 0, Standing::default()).unwrap();
    let plan = step(&mut scheduler, 7);
    assert_eq!(plan.removed, [SequenceId(1)]);
    assert_eq!(plan.started, [(SequenceId(2), 48)]);
    assert_eq!(shape(&plan), [(2, 48, 4, true)]);
}

#[test]
fn a_prompt_that_was_aborted_in_its_middle_is_gone_on_with_when_it_comes_again() {
    let mut scheduler = scheduler(16);
    scheduler.add(SequenceId(1), prompt(1, 150), 0, Standing::default()).unwrap();
    assert_eq!(shape(&step(&mut scheduler, 7)), [(1, 0, 64, false)]);
    scheduler.abort(SequenceId(1));
    scheduler.add(SequenceId(2), prompt(1, 150), 0, Standing::default()).unwrap();
    let plan = step(&mut scheduler, 7);
    assert_eq!((&plan.removed, &plan.started), (&vec![SequenceId(1)], &vec![(SequenceId(2), 64)]));
    assert_eq!(shape(&plan), [(2, 64, 64, false)]);
}

#[test]
fn a_later_prompt_waits_for_the_prefix_that_an_earlier_one_is_computing() {
    let mut scheduler = scheduler(64);
    scheduler.add(SequenceId(1), prompt(1, 100), 0, Standing::default()).unwrap();
    scheduler.add(SequenceId(2), prompt(1, 101), 0, Standing::default()).unwrap();
    assert_eq!(shape(&step(&mut scheduler, 7)), [(1, 0, 64, false)]);
    assert_eq!(shape(&step(&mut scheduler, 7)), [(1, 64, 36, true)]);
    let plan = step(&mut scheduler, 7);
    assert_eq!(plan.started, [(SequenceId(2), 96)]);
    assert_eq!(shape(&plan), [(1, 100, 1, true), (2, 96, 5, true)]);
}

#[test]
fn a_prompt_that_waits_for_a_prefix_holds_nobody_up_behind_it() {
    let mut scheduler = scheduler(64);
    scheduler.add(SequenceId(1), prompt(1, 200), 0, Standing::default()).unwrap();
    scheduler.add(SequenceId(2), prompt(1, 201), 0, Standing::default()).unwrap();
    scheduler.add(SequenceId(3), prompt(3, 10), 0, Standing::default()).unwrap();
    // Nor does one wait for a prefix that may not be shared.
    scheduler.add(SequenceId(4), prompt(1, 12), 1, Standing::default()).unwrap();
    assert_eq!(shape(&step(&mut scheduler, 7)), [(1, 0, 42, false), (3, 0, 10, true), (4, 0, 12, true)]);
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one_and_the_long_one_keeps_half() {
    let mut scheduler = scheduler(256);
    scheduler.add(SequenceId(1), prompt(1, 640), 0, Standing::default()).unwrap();
    assert_eq!(shape(&step(&mut scheduler, 7)), [(1, 0, 64, false)]);
    let mut run = 64;
    for id in 2.. {
        scheduler.add(SequenceId(id), prompt(id as u32, 60), 0, of(id, 0)).unwrap();
        let plan = step(&mut scheduler, 7);
        let of_the_long_one = plan.chunks.iter().find(|chunk| chunk.sequence == SequenceId(1)).unwrap();
        run += of_the_long_one.tokens.len();
        if id == 2 {
            assert_eq!(shape(&plan), [(1, 64, 32, false), (2, 0, 32, false)]);
        }
        if of_the_long_one.sampled > 0 {
            break;
        }
        assert!(of_the_long_one.tokens.len() >= 24, "{plan:?}");
        assert!(id < 25, "after {run} tokens it is not done");
    }
}

/// Runs steps on a machine with 4 ms for a step and 1 ms for each token of a prompt, and gives what each took.
fn timed_step(scheduler: &mut Scheduler) -> (Plan, u64) {
    let plan = step(scheduler, 7);
    let took = (4 + plan.prompt_tokens as u64) * MS;
    scheduler.measured(&plan, took);
    (plan, took)
}

#[test]
fn an_answer_has_no_long_gap_while_a_long_prompt_is_run_and_alone_the_prompt_is_run_in_large_chunks() {
    let limits =
        Limits { sequences: 8, step_tokens: 512, context_length: 4096, guessed_tokens: 0, token_gap_ns: 100 * MS };
    let mut scheduler = Scheduler::new(limits, pool(512));
    scheduler.add(SequenceId(1), prompt(1, 1_000), 0, Standing::default()).unwrap();
    let mut chunks = Vec::new();
    while scheduler.sequences.values().any(|sequence| !sequence.is_decoding()) {
        chunks.push(timed_step(&mut scheduler).0.prompt_tokens);
    }
    assert!(chunks.iter().any(|tokens| *tokens >= 200), "alone: {chunks:?}");
    timed_step(&mut scheduler);
    scheduler.add(SequenceId(2), prompt(2, 3_000), 0, Standing::default()).unwrap();
    let mut steps = 0;
    while scheduler.sequences.values().any(|sequence| !sequence.is_decoding()) {
        let (plan, took) = timed_step(&mut scheduler);
        assert_eq!(plan.chunks[0].sequence, SequenceId(1), "the answer grows in every step");
        assert!(took < 100 * MS, "{} tokens of the prompt took {took} ns", plan.prompt_tokens);
        steps += 1;
    }
    assert!(steps < 3_000 / 40, "the prompt took {steps} steps");
}

#[test]
fn a_prompt_that_is_given_up_has_no_further_chunk_and_its_place_is_free() {
    let limits =
        Limits { sequences: 1, step_tokens: 64, context_length: 4096, guessed_tokens: 0, token_gap_ns: 100 * MS };
    let mut scheduler = Scheduler::new(limits, pool(200));
    scheduler.add(SequenceId(1), prompt(1, 3_000), 0, Standing::default()).unwrap();
    step(&mut scheduler, 7);
    scheduler.add(SequenceId(2), prompt(2, 3_000), 0, Standing::default()).unwrap();
    assert_eq!(shape(&scheduler.plan(all_ready)), [(1, 64, 64, false)], "there is one place");
    scheduler.abort(SequenceId(1));
    scheduler.complete([(SequenceId(1), Outcome::Prefilled)]);
    let plan = step(&mut scheduler, 7);
    assert_eq!(plan.removed, [SequenceId(1)]);
    assert_eq!(shape(&plan), [(2, 0, 64, false)]);
    assert_eq!(scheduler.pool.audit().iter().sum::<u32>(), blocks_for(3_000) as u32);
}

/// Adds a prompt of its own that is answered with one token.
fn add_short(scheduler: &mut Scheduler, id: u64, standing: Standing) {
    scheduler.add(SequenceId(id), prompt(id as u32, 20), 0, standing).unwrap();
}

/// Runs a step in which whoever samples ends, and gives who that is.
fn end_step(scheduler: &mut Scheduler) -> Vec<u64> {
    let plan = scheduler.plan(all_ready);
    let ended: Vec<_> = plan.chunks.iter().filter(|chunk| chunk.sampled > 0).map(|chunk| chunk.sequence).collect();
    scheduler.complete(
        plan.chunks.iter().map(|chunk| {
            (chunk.sequence, if chunk.sampled > 0 { Outcome::Ended(vec![7]) } else { Outcome::Prefilled })
        }),
    );
    ended.into_iter().map(|id| id.0).collect()
}

fn one_at_a_time() -> Scheduler {
    let limits =
        Limits { sequences: 1, step_tokens: 64, context_length: 4096, guessed_tokens: 0, token_gap_ns: 100 * MS };
    Scheduler::new(limits, pool(200))
}

#[test]
fn a_higher_priority_begins_first_however_many_wait() {
    let mut scheduler = one_at_a_time();
    for id in 0..100 {
        add_short(&mut scheduler, id, of(id, 0));
    }
    assert_eq!(end_step(&mut scheduler), [0]);
    add_short(&mut scheduler, 100, of(100, 10));
    add_short(&mut scheduler, 101, of(101, -1));
    assert_eq!(end_step(&mut scheduler), [100]);
    let rest: Vec<_> = std::iter::from_fn(|| end_step(&mut scheduler).pop()).collect();
    assert_eq!(rest[..99], (1..100).collect::<Vec<_>>());
    assert_eq!(rest[99..], [101]);
}

#[test]
fn a_low_priority_is_served_though_higher_ones_never_cease_to_come() {
    let mut scheduler = one_at_a_time();
    add_short(&mut scheduler, 0, of(0, -10));
    for id in 1..2_000 {
        add_short(&mut scheduler, id, of(id, 10));
        add_short(&mut scheduler, id + 2_000, of(id, 10));
        if end_step(&mut scheduler) == [0] {
            return;
        }
    }
    panic!("it waits still");
}

#[test]
fn one_owner_with_many_requests_holds_no_other_up() {
    let mut scheduler = one_at_a_time();
    for id in 0..50 {
        add_short(&mut scheduler, id, of(7, 0));
    }
    assert_eq!(end_step(&mut scheduler), [0]);
    add_short(&mut scheduler, 100, of(8, 0));
    add_short(&mut scheduler, 101, of(9, 0));
    let order: Vec<_> = (0..4).flat_map(|_| end_step(&mut scheduler)).collect();
    assert_eq!(order, [100, 101, 1, 2]);
}

#[test]
fn a_higher_priority_takes_the_blocks_that_it_needs_and_the_lower_one_goes_on_behind_it() {
    let mut scheduler = scheduler(4);
    scheduler.add(SequenceId(1), prompt(1, 40), 0, of(1, 0)).unwrap();
    step(&mut scheduler, 7);
    scheduler.add(SequenceId(2), prompt(2, 40), 0, of(2, 1)).unwrap();
    assert_eq!(shape(&step(&mut scheduler, 8)), [(2, 0, 40, true)]);
    assert_eq!(scheduler.preemptions(), 1);
    scheduler.plan(all_ready);
    scheduler.complete([(SequenceId(2), Outcome::Ended(vec![8]))]);
    let plan = step(&mut scheduler, 7);
    assert_eq!((plan.chunks[0].sequence, plan.chunks[0].sampled), (SequenceId(1), 1));
    assert_eq!(plan.chunks[0].start + plan.chunks[0].tokens.len(), 41);
}

#[test]
fn a_sequence_whose_reader_lags_is_left_out_and_its_batch_mates_are_not() {
    let mut scheduler = scheduler(16);
    scheduler.add(SequenceId(1), prompt(1, 8), 0, Standing::default()).unwrap();
    scheduler.add(SequenceId(2), prompt(2, 8), 0, Standing::default()).unwrap();
    step(&mut scheduler, 7);
    let plan = scheduler.plan(|id| if id == SequenceId(1) { 0 } else { 100 });
    assert_eq!(shape(&plan), [(2, 8, 1, true)]);
    scheduler.complete([(SequenceId(2), Outcome::Next(vec![1]))]);
    assert_eq!(shape(&step(&mut scheduler, 7)), [(1, 8, 1, true), (2, 9, 1, true)]);
}

#[test]
fn when_blocks_run_out_the_youngest_gives_way_and_comes_back() {
    let mut scheduler = scheduler(4);
    scheduler.add(SequenceId(1), prompt(1, 30), 0, Standing::default()).unwrap();
    scheduler.add(SequenceId(2), prompt(2, 30), 0, Standing::default()).unwrap();
    for _ in 0..3 {
        step(&mut scheduler, 7);
    }
    // Both have 33 tokens now and need a third block; four are not six.
    let plan = step(&mut scheduler, 7);
    assert_eq!(shape(&plan), [(1, 32, 1, true)]);
    assert_eq!(scheduler.preemptions(), 1);
    scheduler.plan(all_ready);
    scheduler.complete([(SequenceId(1), Outcome::Ended(vec![7]))]);
    let plan = step(&mut scheduler, 7);
    assert!(plan.started.is_empty(), "a sequence starts once");
    assert_eq!(plan.chunks[0].sequence, SequenceId(2));
    assert_eq!(plan.chunks[0].start + plan.chunks[0].tokens.len(), 33);
    assert_eq!(plan.chunks[0].sampled, 1);
}

#[test]
fn a_lagging_reader_does_not_hold_the_last_blocks() {
    let mut scheduler = scheduler(4);
    scheduler.add(SequenceId(1), prompt(1, 60), 0, Standing::default()).unwrap();
    step(&mut scheduler, 7);
    scheduler.add(SequenceId(2), prompt(2, 40), 0, Standing::default()).unwrap();
    let plan = scheduler.plan(|id| if id == SequenceId(1) { 0 } else { 100 });
    assert_eq!(shape(&plan), [(2, 0, 40, true)]);
}

#[test]
fn a_failed_step_enters_nothing_into_the_index() {
    let mut scheduler = scheduler(8);
    scheduler.add(SequenceId(1), prompt(1, 40), 0, Standing::default()).unwrap();
    scheduler.plan(all_ready);
    scheduler.complete([(SequenceId(1), Outcome::Failed)]);
    assert!(scheduler.is_empty());
    assert_eq!(scheduler.pool.probe(0, &prompt(1, 40)), (0, 0));
}

/// The first repeats itself every five tokens, so all that follows can be guessed.
fn repeating(length: usize) -> Vec<u32> {
    (0..length as u32).map(|index| index % 5).collect()
}

#[test]
fn right_guesses_are_kept_and_the_next_step_goes_on_behind_them() {
    let mut scheduler = guessing(16, 7);
    scheduler.add(SequenceId(1), repeating(20), 0, Standing::default()).unwrap();
    step(&mut scheduler, 0);
    let plan = scheduler.plan(all_ready);
    assert_eq!((plan.chunks[0].start, plan.chunks[0].tokens.as_slice()), (20, &[0, 1, 2, 3][..]));
    assert_eq!((plan.chunks[0].sampled, plan.chunks[0].guessed()), (4, &[1, 2, 3][..]));
    // Two of three are right.
    scheduler.complete([(SequenceId(1), Outcome::Next(vec![1, 2, 9]))]);
    let plan = scheduler.plan(all_ready);
    assert_eq!((plan.chunks[0].start, plan.chunks[0].tokens.as_slice()), (23, &[9][..]));
    scheduler.complete([(SequenceId(1), Outcome::Next(vec![0]))]);
    scheduler.abort(SequenceId(1));
    // What was kept is what a follower finds: 25 tokens, of which 24 were run.
    let mut follower = repeating(23);
    follower.extend([9, 0, 1]);
    scheduler.add(SequenceId(2), follower, 0, Standing::default()).unwrap();
    assert_eq!(step(&mut scheduler, 7).started, [(SequenceId(2), 16)]);
}

#[test]
fn nothing_is_guessed_beside_a_prompt_or_in_a_full_batch_or_for_a_reader_without_room() {
    let mut scheduler = guessing(64, 7);
    scheduler.add(SequenceId(1), repeating(20), 0, Standing::default()).unwrap();
    step(&mut scheduler, 0);
    scheduler.add(SequenceId(2), prompt(2, 90), 0, Standing::default()).unwrap();
    assert_eq!(scheduler.plan(all_ready).chunks[0].sampled, 1);
    scheduler.abort(SequenceId(2));
    scheduler.complete([(SequenceId(1), Outcome::Next(vec![1]))]);
    assert_eq!(scheduler.plan(|_| 2).chunks[0].sampled, 2);
    scheduler.complete([(SequenceId(1), Outcome::Next(vec![2, 3]))]);
    for id in 3..=6 {
        scheduler.add(SequenceId(id), prompt(id as u32, 10), 0, Standing::default()).unwrap();
    }
    step(&mut scheduler, 4);
    assert_eq!(scheduler.plan(all_ready).chunks[0].sampled, 1);
}

#[test]
fn nobody_gives_way_to_a_guess_and_none_leaves_the_context() {
    // Two blocks: the second sequence holds the last.
    let mut scheduler = guessing(2, 7);
    scheduler.add(SequenceId(1), repeating(14), 0, Standing::default()).unwrap();
    scheduler.add(SequenceId(2), prompt(2, 3), 0, Standing::default()).unwrap();
    step(&mut scheduler, 4);
    let plan = scheduler.plan(all_ready);
    assert_eq!((plan.chunks[0].start, plan.chunks[0].sampled), (14, 2));
    assert_eq!(plan.chunks.len(), 2);
    assert_eq!(scheduler.preemptions(), 0);
    // One sequence at the context's end: position 31 is the last.
    let mut scheduler = guessing(2, 7);
    scheduler.add(SequenceId(1), repeating(29), 0, Standing::default()).unwrap();
    step(&mut scheduler, 4);
    let plan = scheduler.plan(all_ready);
    assert_eq!((plan.chunks[0].start, plan.chunks[0].sampled), (29, 2));
}

#[derive(Clone, Debug)]
enum Act {
    Add { seed: u32, length: usize, answer: usize, standing: Standing },
    Abort { choice: usize },
    Step { lagging: u64 },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (0_u32..3, 1_usize..120, 1_usize..40, (0_u64..4, any::<i8>()))
            .prop_map(|(seed, length, answer, (owner, priority))| {
                Act::Add { seed, length, answer, standing: of(owner, priority) }
            }),
        1 => any::<usize>().prop_map(|choice| Act::Abort { choice }),
        6 => prop_oneof![Just(0), any::<u64>()].prop_map(|lagging| Act::Step { lagging }),
    ]
}

/// A scheduler beside what a run needs to know: which sequences live, and how many tokens they still get.
struct Run {
    scheduler: Scheduler,
    live: BTreeMap<SequenceId, usize>,
    aborted: BTreeSet<SequenceId>,
    next: u64,
}

impl Run {
    fn act(&mut self, act: &Act) {
        match act {
            Act::Add { seed, length, answer, standing } => {
                let id = SequenceId(self.next);
                self.next += 1;
                let fits = *length < self.scheduler.context_length();
                assert_eq!(self.scheduler.add(id, prompt(*seed, *length), 0, *standing).is_ok(), fits);
                if fits {
                    self.live.insert(id, *answer);
                }
            }
            Act::Abort { choice } => {
                if let Some(id) = self.live.keys().nth(choice % self.live.len().max(1)).copied() {
                    self.scheduler.abort(id);
                    self.aborted.insert(id);
                }
            }
            Act::Step { lagging } => self.step(*lagging),
        }
        self.check_blocks();
    }

    fn step(&mut self, lagging: u64) {
        let ready = |id: SequenceId| lagging >> (id.0 % 64) & 1 == 0;
        let plan = self.scheduler.plan(|id| if ready(id) { 1 + id.0 as usize % 9 } else { 0 });
        assert_eq!(plan.removed.iter().copied().collect::<BTreeSet<_>>(), std::mem::take(&mut self.aborted));
        for id in &plan.removed {
            self.live.remove(id);
        }
        let mut in_order = self.scheduler.sequences.values().map(|sequence| sequence.id);
        if let Some(first) = in_order.find(|id| ready(*id)) {
            assert!(plan.chunks.iter().any(|chunk| chunk.sequence == first), "the first stands still: {plan:?}");
        }
        self.check_budget(&plan);
        // Some machine: how long a step took is as good as random.
        self.scheduler.measured(&plan, (1 + u64::from(lagging.count_ones())) * (1 + plan.prompt_tokens as u64) * MS);
        assert!(plan.chunks.iter().all(|chunk| ready(chunk.sequence)));
        let writes: Vec<_> = plan
            .chunks
            .iter()
            .flat_map(|chunk| {
                (chunk.start..chunk.start + chunk.tokens.len()).map(|position| chunk.blocks[position / BLOCK_TOKENS])
            })
            .collect();
        let owners = self.scheduler.pool.audit();
        assert!(writes.iter().all(|block| owners[block.0 as usize] == 1), "a step writes into a shared block");
        let results: Vec<_> = plan.chunks.iter().map(|chunk| (chunk.sequence, self.outcome(chunk))).collect();
        self.scheduler.complete(results);
    }

    fn check_budget(&self, plan: &Plan) {
        let Limits { sequences, step_tokens, .. } = self.scheduler.limits;
        assert!(plan.chunks.len() <= sequences);
        let tokens = |chunk: &Chunk| chunk.tokens.len() - chunk.guessed().len();
        let decoded = plan.chunks.iter().map(tokens).sum::<usize>() - plan.prompt_tokens;
        let most = step_tokens.saturating_sub(decoded).max(BLOCK_TOKENS);
        assert!(plan.prompt_tokens <= most, "{plan:?}");
    }

    /// Answers are small numbers, so that there is something to guess; some guesses are taken for right.
    fn outcome(&mut self, chunk: &Chunk) -> Outcome {
        if chunk.sampled == 0 {
            return Outcome::Prefilled;
        }
        assert!(chunk.sampled <= 1 + chunk.sequence.0 as usize % 9, "more than the reader has room for");
        let total = chunk.start + chunk.tokens.len() - chunk.guessed().len();
        let left = self.live.get_mut(&chunk.sequence).unwrap();
        let mut sampled = Vec::new();
        for guessed in chunk.guessed().iter().map(Some).chain([None]) {
            *left -= 1;
            let is_right = !(*left + total).is_multiple_of(4);
            let token = guessed.copied().filter(|_| is_right).unwrap_or(*left as u32 % 2);
            sampled.push(token);
            if *left == 0 || total + sampled.len() >= self.scheduler.context_length() {
                self.live.remove(&chunk.sequence);
                // An abort that comes with the end has nothing left to remove.
                self.aborted.remove(&chunk.sequence);
                return Outcome::Ended(sampled);
            }
            if guessed != Some(&token) {
                break;
            }
        }
        Outcome::Next(sampled)
    }

    fn check_blocks(&self) {
        let mut expected = vec![0; self.scheduler.pool.total()];
        for sequence in self.scheduler.sequences.values() {
            for block in &sequence.blocks {
                expected[block.0 as usize] += 1;
            }
        }
        assert_eq!(self.scheduler.pool.audit(), expected, "holders and reference counts differ");
    }
}

proptest! {
    #[test]
    fn blocks_never_leak_nobody_starves_and_the_first_always_progresses(
        blocks in 2_usize..24,
        sequences in 1_usize..5,
        guessed_tokens in 0_usize..9,
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let token_gap_ns = 100 * MS;
        let limits = Limits { sequences, step_tokens: 48, context_length: 300, guessed_tokens, token_gap_ns };
        let mut run = Run {
            scheduler: Scheduler::new(limits, pool(blocks)),
            live: BTreeMap::new(),
            aborted: BTreeSet::new(),
            next: 0,
        };
        for act in &acts {
            run.act(act);
        }
        let mut steps = 0;
        while !run.scheduler.is_empty() {
            run.act(&Act::Step { lagging: 0 });
            steps += 1;
            prop_assert!(steps < 10_000, "the run does not end");
        }
        prop_assert!(run.live.is_empty());
        prop_assert_eq!(run.scheduler.pool.available(), blocks, "at idle every block is free or cached");
    }
}

#[test]
fn a_prompt_that_nobody_waits_for_gets_what_the_others_leave_however_short_it_is() {
    let mut scheduler = scheduler(256);
    let unawaited = Standing { priority: Standing::UNAWAITED, ..Standing::default() };
    scheduler.add(SequenceId(1), prompt(1, 20), 0, unawaited).unwrap();
    for id in [2, 3] {
        scheduler.add(SequenceId(id), prompt(id as u32, 100), 0, of(id, 0)).unwrap();
    }
    assert_eq!(shape(&step(&mut scheduler, 7)), [(2, 0, 64, false)]);
    assert_eq!(shape(&step(&mut scheduler, 7)), [(2, 64, 36, true), (3, 0, 28, false)]);
}
