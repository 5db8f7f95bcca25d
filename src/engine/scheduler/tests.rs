//! The planner's promises, by table tests and by random runs.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::engine::kv::PoolConfig;

fn pool(blocks: usize) -> BlockPool {
    BlockPool::new(PoolConfig { blocks, model: "m".into(), kv_type: "f16".into() })
}

fn scheduler(blocks: usize) -> Scheduler {
    guessing(blocks, 0)
}

fn guessing(blocks: usize, guessed_tokens: usize) -> Scheduler {
    Scheduler::new(Limits { sequences: 8, step_tokens: 64, context_length: 4096, guessed_tokens }, pool(blocks))
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
        scheduler.add(SequenceId(id), prompt(id as u32, 10), 0).unwrap();
    }
    assert_eq!(
        shape(&step(&mut scheduler, 7)),
        [(1, 0, 10, true), (2, 0, 10, true), (3, 0, 10, true), (4, 0, 10, true)]
    );
    scheduler.add(SequenceId(5), prompt(5, 100), 0).unwrap();
    let decodes = [(1, 10, 1, true), (2, 10, 1, true), (3, 10, 1, true), (4, 10, 1, true)];
    let plan = step(&mut scheduler, 7);
    assert_eq!(shape(&plan)[..4], decodes);
    assert_eq!(shape(&plan)[4..], [(5, 0, 60, false)]);
    assert_eq!(shape(&step(&mut scheduler, 7))[4..], [(5, 60, 40, true)]);
}

#[test]
fn the_block_table_covers_every_planned_position() {
    let mut scheduler = scheduler(64);
    scheduler.add(SequenceId(1), prompt(1, 40), 0).unwrap();
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
    assert_eq!(scheduler.add(SequenceId(1), prompt(1, 64), 0), Err(TooLong));
    assert_eq!(scheduler.add(SequenceId(1), Vec::new(), 0), Err(TooLong));
    assert_eq!(scheduler.add(SequenceId(1), prompt(1, 63), 0), Ok(()));
}

#[test]
fn an_abort_takes_effect_at_the_next_step_and_frees_the_blocks() {
    let mut scheduler = scheduler(16);
    scheduler.add(SequenceId(1), prompt(1, 40), 0).unwrap();
    scheduler.add(SequenceId(2), prompt(2, 8), 0).unwrap();
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
    scheduler.add(SequenceId(1), prompt(1, 20), 0).unwrap();
    for token in 0..30 {
        step(&mut scheduler, token);
    }
    scheduler.abort(SequenceId(1));
    // 20 prompt tokens and 29 decoded ones have been run: three full blocks.
    let mut follower = prompt(1, 20);
    follower.extend(0..30);
    follower.extend([900, 901]);
    scheduler.add(SequenceId(2), follower, 0).unwrap();
    let plan = step(&mut scheduler, 7);
    assert_eq!(plan.removed, [SequenceId(1)]);
    assert_eq!(plan.started, [(SequenceId(2), 48)]);
    assert_eq!(shape(&plan), [(2, 48, 4, true)]);
}

#[test]
fn a_prompt_that_was_aborted_in_its_middle_is_gone_on_with_when_it_comes_again() {
    let mut scheduler = scheduler(16);
    scheduler.add(SequenceId(1), prompt(1, 150), 0).unwrap();
    assert_eq!(shape(&step(&mut scheduler, 7)), [(1, 0, 64, false)]);
    scheduler.abort(SequenceId(1));
    scheduler.add(SequenceId(2), prompt(1, 150), 0).unwrap();
    let plan = step(&mut scheduler, 7);
    assert_eq!((&plan.removed, &plan.started), (&vec![SequenceId(1)], &vec![(SequenceId(2), 64)]));
    assert_eq!(shape(&plan), [(2, 64, 64, false)]);
}

#[test]
fn a_later_prompt_waits_for_the_prefix_that_an_earlier_one_is_computing() {
    let mut scheduler = scheduler(64);
    scheduler.add(SequenceId(1), prompt(1, 100), 0).unwrap();
    scheduler.add(SequenceId(2), prompt(1, 101), 0).unwrap();
    assert_eq!(step(&mut scheduler, 7).chunks.len(), 1);
    let plan = step(&mut scheduler, 7);
    assert_eq!(plan.started, [(SequenceId(2), 64)]);
}

#[test]
fn a_sequence_whose_reader_lags_is_left_out_and_its_batch_mates_are_not() {
    let mut scheduler = scheduler(16);
    scheduler.add(SequenceId(1), prompt(1, 8), 0).unwrap();
    scheduler.add(SequenceId(2), prompt(2, 8), 0).unwrap();
    step(&mut scheduler, 7);
    let plan = scheduler.plan(|id| if id == SequenceId(1) { 0 } else { 100 });
    assert_eq!(shape(&plan), [(2, 8, 1, true)]);
    scheduler.complete([(SequenceId(2), Outcome::Next(vec![1]))]);
    assert_eq!(shape(&step(&mut scheduler, 7)), [(1, 8, 1, true), (2, 9, 1, true)]);
}

#[test]
fn when_blocks_run_out_the_youngest_gives_way_and_comes_back() {
    let mut scheduler = scheduler(4);
    scheduler.add(SequenceId(1), prompt(1, 30), 0).unwrap();
    scheduler.add(SequenceId(2), prompt(2, 30), 0).unwrap();
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
    scheduler.add(SequenceId(1), prompt(1, 60), 0).unwrap();
    step(&mut scheduler, 7);
    scheduler.add(SequenceId(2), prompt(2, 40), 0).unwrap();
    let plan = scheduler.plan(|id| if id == SequenceId(1) { 0 } else { 100 });
    assert_eq!(shape(&plan), [(2, 0, 40, true)]);
}

#[test]
fn a_failed_step_enters_nothing_into_the_index() {
    let mut scheduler = scheduler(8);
    scheduler.add(SequenceId(1), prompt(1, 40), 0).unwrap();
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
    scheduler.add(SequenceId(1), repeating(20), 0).unwrap();
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
    scheduler.add(SequenceId(2), follower, 0).unwrap();
    assert_eq!(step(&mut scheduler, 7).started, [(SequenceId(2), 16)]);
}

#[test]
fn nothing_is_guessed_beside_a_prompt_or_in_a_full_batch_or_for_a_reader_without_room() {
    let mut scheduler = guessing(64, 7);
    scheduler.add(SequenceId(1), repeating(20), 0).unwrap();
    step(&mut scheduler, 0);
    scheduler.add(SequenceId(2), prompt(2, 90), 0).unwrap();
    assert_eq!(scheduler.plan(all_ready).chunks[0].sampled, 1);
    scheduler.abort(SequenceId(2));
    scheduler.complete([(SequenceId(1), Outcome::Next(vec![1]))]);
    assert_eq!(scheduler.plan(|_| 2).chunks[0].sampled, 2);
    scheduler.complete([(SequenceId(1), Outcome::Next(vec![2, 3]))]);
    for id in 3..=6 {
        scheduler.add(SequenceId(id), prompt(id as u32, 10), 0).unwrap();
    }
    step(&mut scheduler, 4);
    assert_eq!(scheduler.plan(all_ready).chunks[0].sampled, 1);
}

#[test]
fn nobody_gives_way_to_a_guess_and_none_leaves_the_context() {
    // Two blocks: the second sequence holds the last.
    let mut scheduler = guessing(2, 7);
    scheduler.add(SequenceId(1), repeating(14), 0).unwrap();
    scheduler.add(SequenceId(2), prompt(2, 3), 0).unwrap();
    step(&mut scheduler, 4);
    let plan = scheduler.plan(all_ready);
    assert_eq!((plan.chunks[0].start, plan.chunks[0].sampled), (14, 2));
    assert_eq!(plan.chunks.len(), 2);
    assert_eq!(scheduler.preemptions(), 0);
    // One sequence at the context's end: position 31 is the last.
    let mut scheduler = guessing(2, 7);
    scheduler.add(SequenceId(1), repeating(29), 0).unwrap();
    step(&mut scheduler, 4);
    let plan = scheduler.plan(all_ready);
    assert_eq!((plan.chunks[0].start, plan.chunks[0].sampled), (29, 2));
}

#[derive(Clone, Debug)]
enum Act {
    Add { seed: u32, length: usize, answer: usize },
    Abort { choice: usize },
    Step { lagging: u64 },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (0_u32..3, 1_usize..120, 1_usize..40)
            .prop_map(|(seed, length, answer)| Act::Add { seed, length, answer }),
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
            Act::Add { seed, length, answer } => {
                let id = SequenceId(self.next);
                self.next += 1;
                let fits = *length < self.scheduler.context_length();
                assert_eq!(self.scheduler.add(id, prompt(*seed, *length), 0).is_ok(), fits);
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
        if let Some(oldest) = self.live.keys().find(|id| ready(**id)) {
            assert!(plan.chunks.iter().any(|chunk| chunk.sequence == *oldest), "the oldest stands still: {plan:?}");
        }
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
    fn blocks_never_leak_and_the_oldest_always_progresses(
        blocks in 2_usize..24,
        sequences in 1_usize..5,
        guessed_tokens in 0_usize..9,
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let limits = Limits { sequences, step_tokens: 48, context_length: 300, guessed_tokens };
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
