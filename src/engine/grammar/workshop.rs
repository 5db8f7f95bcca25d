//! Where grammars are compiled: one at a time, on a thread with a deep stack, since the library follows rules and
//! references by recursion. A request waits for a bounded time, and finds what was done later when it asks again; an
//! answer whose constraint was taken once waits however long it takes.

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};

use super::kept::{Kept, key};
use super::{Refused, Uncompilable, vocabulary};
use crate::engine::tokenizer::Tokenizer;

/// What bounds a grammar: the work of compiling it, and of one mask. The defaults of the library are generous enough
/// for the largest schemas in use; the states of its lexer are what takes memory, 1 to 2 KiB each, in every sequence.
const LEXER_STATES_MAX: usize = 16_384;
/// Work of one mask: Earley items and lexer fuel. A grammar that needs more for its first is refused, one that comes to
/// need more fails its answer; the steps of all others wait for a mask.
const STEP_ITEMS_MAX: usize = 10_000;
const STEP_FUEL_MAX: u64 = 100_000;
/// Room for the library's recursion, as deep as `bounds` lets it become. Only what is used of it is memory.
const STACK_BYTES: usize = 256 << 20;

/// Compiles for one vocabulary.
pub(super) struct Workshop {
    tokenizer: Arc<Tokenizer>,
    /// Made when it is first asked for: it sorts the whole vocabulary.
    factory: OnceLock<Result<ParserFactory, Uncompilable>>,
    /// Whether somebody compiles: each may take a core and much memory for a while.
    is_taken: Mutex<bool>,
    free: Condvar,
    pub(super) kept: Kept,
}

/// Nobody else compiles while it is held.
pub(super) struct Turn(Arc<Workshop>);

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.is_taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.free.notify_one();
    }
}

impl Workshop {
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            factory: OnceLock::new(),
            is_taken: Mutex::new(false),
            free: Condvar::new(),
            kept: Kept::default(),
        }
    }

    /// Compiles, where a bound is given within it, or finds what was compiled before. What takes longer goes on to its
    /// end, which the bounds of its size bring about, and is kept; until then it is nobody else's turn.
    pub(super) fn compile(
        self: &Arc<Self>,
        grammar: TopLevelGrammar,
        most: Option<Duration>,
    ) -> Result<Matcher, Refused> {
        let key = key(&grammar);
        if let Some(found) = self.kept.find(key) {
            return Ok(found);
        }
        let turn = self.turn(most);
        // Those whose turn it was may have asked for the same.
        if let Some(found) = self.kept.find(key) {
            return Ok(found);
        }
        let turn = turn.ok_or(Refused::Busy)?;
        let (done, compiled) = sync_channel(1);
        // The vocabulary is sorted once and for everybody, on nobody's account.
        let (begun, ready) = sync_channel(1);
        let work = move || {
            let factory = turn.0.factory();
            let _ = begun.send(());
            let compiled = factory.and_then(|factory| matcher(factory, grammar));
            if let Ok(matcher) = &compiled {
                turn.0.kept.add(key, matcher.clone());
            }
            let _ = done.send(compiled);
        };
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES).spawn(work);
        thread.map_err(|error| Uncompilable(format!("there is no thread to compile this: {error}")))?;
        let _ = ready.recv();
        let received = match most {
            Some(most) => compiled.recv_timeout(most),
            None => compiled.recv().map_err(RecvTimeoutError::from),
        };
        let compiled = received.unwrap_or_else(|error| {
            Err(Uncompilable(match error {
                RecvTimeoutError::Timeout => "compiling it takes too long; make it smaller, or retry later".to_owned(),
                RecvTimeoutError::Disconnected => "the server failed while it compiled this".to_owned(),
            }))
        });
        Ok(compiled?)
    }

    /// Waits for its turn, where a bound is given only so long.
    pub(super) fn turn(self: &Arc<Self>, most: Option<Duration>) -> Option<Turn> {
        let is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_taken = match most {
            None => self.free.wait_while(is_taken, |is_taken| *is_taken).unwrap_or_else(PoisonError::into_inner),
            Some(most) => {
                let waited = self.free.wait_timeout_while(is_taken, most, |is_taken| *is_taken);
                let (is_taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                if waited.timed_out() {
                    return None;
                }
                is_taken
            }
        };
        *is_taken = true;
        Some(Turn(Arc::clone(self)))
    }

    fn factory(&self) -> Result<&ParserFactory, Uncompilable> {
        self.factory.get_or_init(|| factory(&self.tokenizer)).as_ref().map_err(Clone::clone)
    }
}

fn matcher(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, Uncompilable> {
    let mut matcher = Matcher::new(factory.create_parser(grammar));
    if let Some(error) = matcher.get_error() {
        return Err(Uncompilable(readable(&error)));
    }
    // A grammar that nothing satisfies, or that begins with too much, is told now and not in an answer's middle.
    matcher.compute_ff_tokens();
    matcher.compute_mask().map_err(|error| Uncompilable(readable(&error.to_string())))?;
    Ok(matcher)
}

fn factory(tokenizer: &Arc<Tokenizer>) -> Result<ParserFactory, Uncompilable> {
    let failed = |error: &dyn fmt::Display| Uncompilable(format!("this model's vocabulary cannot be used: {error}"));
    let vocabulary = vocabulary::environment(tokenizer);
    let capabilities = InferenceCapabilities { ff_tokens: true, ..Default::default() };
    let slices = SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&vocabulary, capabilities, &slices).map_err(|error| failed(&error))?;
    *factory.limits_mut() = ParserLimits {
        max_lexer_states: LEXER_STATES_MAX,
        step_max_items: STEP_ITEMS_MAX,
        step_lexer_fuel: STEP_FUEL_MAX,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    factory.quiet();
    Ok(factory)
}

/// What the library says, without what it adds for those who work on it.
pub(super) fn readable(error: &str) -> String {
    if error.starts_with("oneOf constraints are not supported") {
        // No grammar can say "and none of the others": it takes branches that no value can satisfy two of.
        return "[\"oneOf\"] has branches that cannot be told apart; give each a required property with a constant of \
                its own, or say anyOf"
            .to_owned();
    }
    error.split("\n<").next().unwrap_or_default().trim().to_owned()
}
