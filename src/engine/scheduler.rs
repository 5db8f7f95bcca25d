//! Decides what the next step computes: a pure planner over sequences and KV blocks.
//!
//! [`Scheduler::add`] and [`Scheduler::abort`] note what is wanted, [`Scheduler::plan`] turns it into one step,
//! [`Scheduler::complete`] takes the step's results. No clock, no channels, no threads, no model: everything
//! here is tested without any of them.
//!
//! The rules: sequences stand in one order, by arrival, priority and owner ([`turn`]). In that order they are admitted,
//! and when blocks run out, sequences whose reader lags and then the last ones give theirs back and are run again
//! later; so the first one whose reader keeps up always makes progress. Every sequence that can decode does so in every
//! step, in one batch. Prompts are run in chunks, as many tokens of them as the step has time for ([`pace`]): half goes
//! to the first prompt, so that it is done in bounded time, the rest to those that have the least left, so that a short
//! one doesn't wait for a long one. What an earlier prompt is about to compute no later one computes as well. Where few
//! sequences decode and no prompt is run, the step has room for guesses at what comes next; those that prove right are
//! kept.

mod lookup;
mod pace;
mod turn;

use std::collections::{BTreeMap, HashMap};

use super::contract::{Load, SequenceId, Standing};
use super::kv::{BLOCK_TOKENS, BlockId, BlockKey, BlockPool, blocks_for};
use lookup::Lookup;
use pace::Pace;
use turn::{Turn, Turns};

/// Most guessed tokens of a step: with the sampled one they fit into one more block.
const GUESSED_MAX: usize = BLOCK_TOKENS - 1;

/// What bounds a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most sequences in one step.
    pub(crate) sequences: usize,
    /// Tokens of one step: decoded ones and prompt chunks together.
    pub(crate) step_tokens: usize,
    /// Most tokens of one sequence.
    pub(crate) context_length: usize,
    /// Guessed tokens of one step; 0 turns guessing off.
    pub(crate) guessed_tokens: usize,
    /// Nanoseconds that should lie at most between two tokens of an answer while prompts are run.
    pub(crate) token_gap_ns: u64,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What to run forward.
    pub(crate) chunks: Vec<Chunk>,
    /// Sequences that left the queue for the first time, and how many of their tokens came from the cache.
    pub(crate) started: Vec<(SequenceId, usize)>,
    /// Aborted sequences; they hold no block any more.
    pub(crate) removed: Vec<SequenceId>,
    /// Tokens of prompts in the chunks.
    pub(crate) prompt_tokens: usize,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Whose.
    pub(crate) sequence: SequenceId,
    /// Position of the first token.
    pub(crate) start: usize,
    /// The tokens. The last ones may be guessed: all but the first of those that are sampled behind.
    pub(crate) tokens: Vec<u32>,
    /// The sequence's block table: position p lies in block p / [`BLOCK_TOKENS`].
    pub(crate) blocks: Vec<BlockId>,
    /// Behind how many of the last tokens logits are wanted; 0 where the prompt goes on in another chunk.
    pub(crate) sampled: usize,
}

impl Chunk {
    /// The guessed tokens. Each is right if it is sampled behind the token in front of it.
    pub(crate) fn guessed(&self) -> &[u32] {
        &self.tokens[self.tokens.len() - self.sampled.saturating_sub(1)..]
    }
}

/// What a step did for one chunk. Tokens are those that were sampled: the guessed ones that were right, and one more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Part of the prompt was run.
    Prefilled,
    /// The sequence goes on with these tokens.
    Next(Vec<u32>),
    /// The sequence is complete with these tokens.
    Ended(Vec<u32>),
    /// The step failed for this sequence; what it computed is not to be trusted.
    Failed,
}

/// The sequence can never be run: it has more tokens than fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

#[derive(Debug)]
struct Sequence {
    id: SequenceId,
    owner: u64,
    priority: i8,
    salt: u64,
    tokens: Vec<u32>,
    /// Tokens whose keys and values lie in `blocks`.
    computed: usize,
    /// Tokens that the planned step computes, guesses not among them.
    planned: usize,
    /// Tokens that the planned step guesses.
    guessed: usize,
    lookup: Lookup,
    /// The tokens that will be sampled next, whatever the logits say, as far as that is known.
    certain: Vec<u32>,
    blocks: Vec<BlockId>,
    /// The keys of the first full blocks, as far as they are in the index.
    keys: Vec<BlockKey>,
    /// Another prefix has the key of one of our blocks: enter nothing more.
    unshareable: bool,
    phase: Phase,
    started: bool,
    aborted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// In the queue; holds no blocks.
    Waiting,
    /// In the batch.
    Running,
}

impl Sequence {
    fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    fn is_decoding(&self) -> bool {
        self.is_running() && self.pending() == 1
    }

    /// Whether `earlier` is about to compute blocks that this one could take from the index then.
    fn awaits(&self, earlier: &Self) -> bool {
        if self.salt != earlier.salt {
            return false;
        }
        let mine = &self.tokens[..self.tokens.len() - 1];
        let equal = mine.iter().zip(&earlier.tokens).take_while(|(mine, other)| mine == other).count();
        earlier.computed < equal / BLOCK_TOKENS * BLOCK_TOKENS
    }
}

/// The planner's state. Sequences are in the order of their turns.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    sequences: BTreeMap<Turn, Sequence>,
    turns_of: HashMap<SequenceId, Turn>,
    turns: Turns,
    pace: Pace,
    preemptions: u64,
}

impl Scheduler {
    /// A planner over `pool`. The context is cut down to what the pool can hold.
    pub(crate) fn new(mut limits: Limits, pool: BlockPool) -> Self {
        limits.context_length = limits.context_length.min(pool.total() * BLOCK_TOKENS);
        limits.guessed_tokens = limits.guessed_tokens.min(GUESSED_MAX);
        Self {
            limits,
            pool,
            sequences: BTreeMap::new(),
            turns_of: HashMap::new(),
            turns: Turns::default(),
            pace: Pace::new(limits.token_gap_ns),
            preemptions: 0,
        }
    }

    /// Most tokens one sequence can have.
    pub(crate) fn context_length(&self) -> usize {
        self.limits.context_length
    }

    /// The pool, for what is done between steps: copying indexed blocks out, and entering new ones.
    pub(crate) fn pool_mut(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    /// Queues a sequence. `tokens` must not be empty, and must leave room for one more.
    pub(crate) fn add(
        &mut self,
        id: SequenceId,
        tokens: Vec<u32>,
        salt: u64,
        standing: Standing,
    ) -> Result<(), TooLong> {
        if tokens.is_empty() || tokens.len() >= self.limits.context_length {
            return Err(TooLong);
        }
        let Standing { owner, priority } = standing;
        let own = self.sequences.iter().filter(|(_, sequence)| sequence.owner == owner).map(|(turn, _)| *turn);
        let turn = self.turns.next(priority, own.max_by_key(|turn| turn.level()));
        let sequence = Sequence {
            id,
            owner,
            priority,
            salt,
            tokens,
            computed: 0,
            planned: 0,
            guessed: 0,
            lookup: Lookup::default(),
            certain: Vec::new(),
            blocks: Vec::new(),
            keys: Vec::new(),
            unshareable: false,
            phase: Phase::Waiting,
            started: false,
            aborted: false,
        };
        self.turns_of.insert(id, turn);
        self.sequences.insert(turn, sequence);
        Ok(())
    }

    /// Marks a sequence; the next plan begins by removing it. One that has ended already is left alone.
    pub(crate) fn abort(&mut self, id: SequenceId) {
        if let Some(sequence) = self.turns_of.get(&id).and_then(|turn| self.sequences.get_mut(turn)) {
            sequence.aborted = true;
        }
    }

    /// Says which tokens will be sampled next, whatever the logits: they are run in one step with the last one.
    pub(crate) fn foresee(&mut self, id: SequenceId, certain: Vec<u32>) {
        if let Some(sequence) = self.turns_of.get(&id).and_then(|turn| self.sequences.get_mut(turn)) {
            sequence.certain = certain;
        }
    }

    /// Whether no sequence is left.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// How often a sequence had to give its blocks back.
    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// What is to be done.
    pub(crate) fn load(&self) -> Load {
        let running = self.sequences.values().filter(|sequence| sequence.is_running()).count();
        Load {
            running,
            waiting: self.sequences.len() - running,
            kv_blocks_held: self.pool.total() - self.pool.available(),
            kv_blocks: self.pool.total(),
            preemptions: self.preemptions,
        }
    }

    /// Plans the next step. `room` is how many tokens a sequence's reader can take; without any it is left out.
    pub(crate) fn plan(&mut self, room: impl Fn(SequenceId) -> usize) -> Plan {
        let ready = |id| room(id) > 0;
        // Removal comes first, so that a successor finds its predecessor's blocks in the index.
        let mut plan = Plan { removed: self.remove_aborted(), ..Plan::default() };
        let runnable: Vec<Turn> =
            self.sequences.iter().filter(|(_, sequence)| ready(sequence.id)).map(|(turn, _)| *turn).collect();
        let members = self.gather(&runnable, &ready, &mut plan);
        let (decoding, prompts): (Vec<Turn>, Vec<Turn>) =
            members.iter().copied().partition(|turn| self.sequences[turn].is_decoding());
        // Beside a prompt a guess would cost as much as any other token.
        let guesses = if decoding.len() == runnable.len() { self.guesses_each(decoding.len()) } else { 0 };
        let shares = self.shares(&prompts, decoding.len());
        for turn in members {
            let share = shares.get(&turn).copied();
            let wanted = share.unwrap_or(1);
            plan.prompt_tokens += share.unwrap_or(0);
            if wanted > 0 {
                let room = room(self.sequences[&turn].id) - 1;
                plan.chunks.push(self.chunk(turn, wanted, guesses, room));
            }
        }
        plan
    }

    /// Who takes part in the next step, in the order of their turns. Each has a block for its next token, and a prompt
    /// those for all of its tokens.
    fn gather(&mut self, runnable: &[Turn], ready: &impl Fn(SequenceId) -> bool, plan: &mut Plan) -> Vec<Turn> {
        let mut members: Vec<Turn> = Vec::new();
        let mut admitting = true;
        for turn in runnable.iter().copied() {
            if members.len() == self.limits.sequences {
                break;
            }
            let sequence = &self.sequences[&turn];
            if !sequence.is_running() {
                let awaits = |earlier: &Turn| sequence.awaits(&self.sequences[earlier]);
                if !admitting || members.iter().any(awaits) {
                    continue;
                }
                // Where one doesn't fit, no later one is let past: else a large one would wait for ever.
                admitting = self.admit(turn, ready, plan);
                if !admitting {
                    continue;
                }
            }
            if self.reserve(turn, ready) {
                members.push(turn);
            }
        }
        members
    }

    /// How many tokens of each prompt the step runs, beside so many decoding sequences.
    fn shares(&self, prompts: &[Turn], decoding: usize) -> BTreeMap<Turn, usize> {
        let most = self.limits.step_tokens.saturating_sub(decoding).max(BLOCK_TOKENS);
        let mut left = self.pace.prompt_tokens(decoding).min(most);
        let half = left.div_ceil(2);
        let mut shares: BTreeMap<Turn, usize> = BTreeMap::new();
        let mut give = |turn: &Turn, most: usize| {
            let share = shares.entry(*turn).or_default();
            let more = (self.sequences[turn].pending() - *share).min(most).min(left);
            *share += more;
            left -= more;
        };
        if let Some(first) = prompts.first() {
            give(first, half);
        }
        let mut shortest = prompts.to_vec();
        // What nobody waits for gets what no other prompt takes.
        let is_unawaited = |sequence: &Sequence| sequence.priority == Standing::UNAWAITED;
        shortest.sort_by_key(|turn| (is_unawaited(&self.sequences[turn]), self.sequences[turn].pending()));
        for turn in &shortest {
            give(turn, usize::MAX);
        }
        shares
    }

    /// How many tokens may be guessed for each of so many decoding sequences.
    fn guesses_each(&self, decoding: usize) -> usize {
        (self.limits.guessed_tokens + 1).saturating_sub(decoding).checked_div(decoding).unwrap_or(0)
    }

    /// Takes the results of the planned step, one per chunk.
    pub(crate) fn complete(&mut self, results: impl IntoIterator<Item = (SequenceId, Outcome)>) {
        for (id, outcome) in results {
            let Some(turn) = self.turns_of.get(&id).copied() else {
                continue;
            };
            match outcome {
                Outcome::Prefilled => self.advance(turn, &[]),
                Outcome::Next(tokens) => self.advance(turn, &tokens),
                Outcome::Ended(tokens) => {
                    self.advance(turn, &tokens);
                    self.remove(turn);
                }
                Outcome::Failed => self.remove(turn),
            }
        }
    }

    /// Learns how long a planned step took.
    pub(crate) fn measured(&mut self, plan: &Plan, took_ns: u64) {
        self.pace.measured(plan.prompt_tokens, took_ns);
    }

    fn remove_aborted(&mut self) -> Vec<SequenceId> {
        let aborted: Vec<(Turn, SequenceId)> = self
            .sequences
            .iter()
            .filter(|(_, sequence)| sequence.aborted)
            .map(|(turn, sequence)| (*turn, sequence.id))
            .collect();
        for (turn, _) in &aborted {
            self.remove(*turn);
        }
        aborted.into_iter().map(|(_, id)| id).collect()
    }

    fn remove(&mut self, turn: Turn) {
        if let Some(sequence) = self.sequences.remove(&turn) {
            self.turns_of.remove(&sequence.id);
            self.pool.release(sequence.blocks.into_iter());
        }
    }

    /// Brings a waiting sequence into the batch: adopts what the cache has of it and takes blocks for the rest.
    fn admit(&mut self, turn: Turn, ready: &impl Fn(SequenceId) -> bool, plan: &mut Plan) -> bool {
        let Some(sequence) = self.sequences.get(&turn) else {
            return false;
        };
        let needed = blocks_for(sequence.tokens.len());
        loop {
            let sequence = &self.sequences[&turn];
            let (found, unheld) = self.pool.probe(sequence.salt, &sequence.tokens);
            if self.pool.available().saturating_sub(unheld) >= needed - found {
                break;
            }
            if !self.preempt_for(turn, ready) {
                return false;
            }
        }
        let Some(sequence) = self.sequences.get_mut(&turn) else {
            return false;
        };
        for (block, key) in self.pool.adopt(sequence.salt, &sequence.tokens) {
            sequence.blocks.push(block);
            sequence.keys.push(key);
        }
        sequence.computed = sequence.blocks.len() * BLOCK_TOKENS;
        sequence.phase = Phase::Running;
        while sequence.blocks.len() < needed {
            // Counted above: there is one for each.
            let Some(block) = self.pool.allocate() else {
                break;
            };
            sequence.blocks.push(block);
        }
        if !sequence.started {
            sequence.started = true;
            plan.started.push((sequence.id, sequence.computed));
            self.turns.admitted(turn);
        }
        true
    }

    /// Makes sure that the sequence has a block for its next token.
    fn reserve(&mut self, turn: Turn, ready: &impl Fn(SequenceId) -> bool) -> bool {
        loop {
            let Some(sequence) = self.sequences.get_mut(&turn) else {
                return false;
            };
            if sequence.blocks.len() >= blocks_for(sequence.computed + 1) {
                return true;
            }
            if let Some(block) = self.pool.allocate() {
                sequence.blocks.push(block);
            } else if !self.preempt_for(turn, ready) {
                return false;
            }
        }
    }

    /// Takes the blocks of one other sequence: of one whose reader lags if there is one, else of the last one
    /// behind `turn`. Neither can be in the plan already. False when there is none.
    fn preempt_for(&mut self, turn: Turn, ready: &impl Fn(SequenceId) -> bool) -> bool {
        let holders = || self.sequences.iter().rev().filter(|(other, held)| **other != turn && held.is_running());
        let lagging = holders().find(|(_, held)| !ready(held.id));
        let victim = lagging.or_else(|| holders().find(|(other, _)| **other > turn)).map(|(other, _)| *other);
        let Some(sequence) = victim.and_then(|victim| self.sequences.get_mut(&victim)) else {
            return false;
        };
        self.pool.release(sequence.blocks.drain(..));
        sequence.keys.clear();
        sequence.computed = 0;
        sequence.phase = Phase::Waiting;
        self.preemptions += 1;
        true
    }

    /// The next `wanted` tokens, for which there are blocks, and as many guessed ones as there is room for: at most
    /// `guesses`, where they are not certain.
    fn chunk(&mut self, turn: Turn, wanted: usize, guesses: usize, room: usize) -> Chunk {
        let Some(sequence) = self.sequences.get_mut(&turn) else {
            unreachable!("only sequences that were just looked at are planned");
        };
        sequence.planned = wanted;
        let end = sequence.computed + wanted;
        let mut tokens = sequence.tokens[sequence.computed..end].to_vec();
        let is_whole = end == sequence.tokens.len();
        // Behind the last position nothing is sampled, so no guess needs it.
        let left = self.limits.context_length.saturating_sub(end + 1);
        let certain = if is_whole { std::mem::take(&mut sequence.certain) } else { Vec::new() };
        let is_certain = !certain.is_empty();
        let mut guess = match is_whole {
            true if is_certain => certain.into_iter().take(room.min(left).min(GUESSED_MAX)).collect(),
            true => sequence.lookup.guess(&sequence.tokens, guesses.min(room).min(left)),
            false => Vec::new(),
        };
        if sequence.blocks.len() < blocks_for(end + guess.len()) {
            // Nobody gives way to a guess.
            sequence.blocks.extend(self.pool.allocate());
            guess.truncate(sequence.blocks.len() * BLOCK_TOKENS - end);
        }
        // What was certain proves nothing about guessing.
        sequence.guessed = if is_certain { 0 } else { guess.len() };
        tokens.extend(&guess);
        Chunk {
            sequence: sequence.id,
            start: sequence.computed,
            tokens,
            blocks: sequence.blocks.clone(),
            sampled: if is_whole { 1 + guess.len() } else { 0 },
        }
    }

    /// Counts the planned tokens as computed, the guessed ones as far as they are among the sampled ones, and enters
    /// the blocks that became full into the index.
    fn advance(&mut self, turn: Turn, sampled: &[u32]) {
        let Some(sequence) = self.sequences.get_mut(&turn) else {
            return;
        };
        let right = sampled.len().saturating_sub(1);
        sequence.lookup.judge(std::mem::take(&mut sequence.guessed), right);
        sequence.computed += std::mem::take(&mut sequence.planned) + right;
        sequence.tokens.extend(sampled);
        while !sequence.unshareable && (sequence.keys.len() + 1) * BLOCK_TOKENS <= sequence.computed {
            let number = sequence.keys.len();
            let tokens = &sequence.tokens[number * BLOCK_TOKENS..(number + 1) * BLOCK_TOKENS];
            let parent = sequence.keys.last().copied();
            match self.pool.publish(sequence.blocks[number], sequence.salt, parent, tokens) {
                Some(key) => sequence.keys.push(key),
                None => sequence.unshareable = true,
            }
        }
    }
}

#[cfg(test)]
mod tests;
