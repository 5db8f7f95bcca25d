//! Constrained decoding: which tokens may come next, so that an answer is what its request asked for.
//!
//! [`Grammars`] compiles a [`Constraint`] for one model's vocabulary, once per constraint; a [`Guide`] follows one
//! sequence. Like sampling it is a function of the tokens so far: a resumed answer goes on under the same constraint.

mod bounds;
mod guide;
mod rules;
mod vocabulary;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use sha2::{Digest, Sha256};

use super::settings::Constraint;
use super::tokenizer::Tokenizer;
use crate::parse::{ReasoningFormat, ToolFormat};
use crate::prompt::ToolDefinition;
use guide::Thinking;
pub use guide::{Guide, Lost};
pub use llguidance::toktrie::SimpleVob as TokenSet;
pub use rules::calls_are_bare;

/// Compiled constraints that are kept: agents ask for the same few again and again.
const KEPT_MAX: usize = 64;

/// What bounds a grammar: the work of compiling it, and of one mask. The defaults of the library are generous enough
/// for the largest schemas in use; the states of its lexer are what takes memory, 1 to 2 KiB each, in every sequence.
const LEXER_STATES_MAX: usize = 16_384;
/// Room for the library's recursion, as deep as `bounds` lets it become. Only what is used of it is memory.
const COMPILING_STACK_BYTES: usize = 256 << 20;

/// The constraint cannot be compiled, or no answer could ever satisfy it. The text is fit to be shown to a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Uncompilable(pub String);

/// What a constraint is compiled for, besides the model.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The declared tools.
    pub tools: &'a [ToolDefinition],
    /// How the model writes calls.
    pub tool_format: ToolFormat,
    /// How it marks its reasoning.
    pub reasoning: ReasoningFormat,
}

/// A compiled constraint.
#[derive(Clone)]
pub struct Compiled {
    matcher: Matcher,
    tokenizer: Arc<Tokenizer>,
    reasoning: ReasoningFormat,
}

impl Compiled {
    /// A guide at the beginning of an answer. `starts_in_reasoning` is what the prompt says of it, if anything.
    pub fn guide(&self, starts_in_reasoning: Option<bool>) -> Guide {
        let thinking = Thinking::new(self.reasoning, starts_in_reasoning, &self.tokenizer);
        // With a lexer of its own: what one sequence uses up is not missing to another.
        Guide::new(self.matcher.deep_clone(), thinking, Arc::clone(&self.tokenizer))
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Compiled").field("reasoning", &self.reasoning).finish_non_exhaustive()
    }
}

/// The compiler of one model's constraints.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    /// Made when it is first asked for: it sorts the whole vocabulary.
    factory: OnceLock<Result<ParserFactory, Uncompilable>>,
    /// The latest last.
    kept: Mutex<VecDeque<([u8; 32], Compiled)>>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Grammars")
    }
}

impl Grammars {
    /// A compiler for a tokenizer's vocabulary. Cheap: the work is done when it is first asked for.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, factory: OnceLock::new(), kept: Mutex::default() }
    }

    /// Compiles a constraint, or finds it among those that were. May take a core for a while: not for async threads.
    pub fn compile(&self, constraint: &Constraint, surroundings: &Surroundings<'_>) -> Result<Compiled, Uncompilable> {
        let grammar = rules::grammar(constraint, surroundings, &self.tokenizer)?;
        let key = key(&grammar, surroundings.reasoning);
        if let Some(found) = self.recall(key) {
            return Ok(found);
        }
        let matcher = self.compiled(grammar)?;
        let compiled = Compiled { matcher, tokenizer: Arc::clone(&self.tokenizer), reasoning: surroundings.reasoning };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request for the same may have been faster.
        kept.retain(|(known, _)| *known != key);
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((key, compiled.clone()));
        Ok(compiled)
    }

    fn recall(&self, key: [u8; 32]) -> Option<Compiled> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let position = kept.iter().position(|(known, _)| *known == key)?;
        let entry = kept.remove(position)?;
        let compiled = entry.1.clone();
        kept.push_back(entry);
        Some(compiled)
    }

    /// Compiles on a thread with a deep stack: the library follows rules and references by recursion.
    fn compiled(&self, grammar: TopLevelGrammar) -> Result<Matcher, Uncompilable> {
        let failed = |_| Uncompilable("the server failed while it compiled this".to_owned());
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("grammar".to_owned()).stack_size(COMPILING_STACK_BYTES);
            let thread = builder.spawn_scoped(scope, || self.matcher(grammar));
            let thread =
                thread.map_err(|error| Uncompilable(format!("there is no thread to compile this: {error}")))?;
            thread.join().map_err(failed)?
        })
    }

    fn matcher(&self, grammar: TopLevelGrammar) -> Result<Matcher, Uncompilable> {
        let factory = self.factory.get_or_init(|| factory(&self.tokenizer)).as_ref().map_err(Clone::clone)?;
        let mut matcher = Matcher::new(factory.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(Uncompilable(readable(&error)));
        }
        // A grammar that nothing satisfies is told now, and not in the middle of an answer.
        matcher.compute_mask().map_err(|error| Uncompilable(readable(&error.to_string())))?;
        Ok(matcher)
    }
}

fn factory(tokenizer: &Arc<Tokenizer>) -> Result<ParserFactory, Uncompilable> {
    let failed = |error: &dyn fmt::Display| Uncompilable(format!("this model's vocabulary cannot be used: {error}"));
    let vocabulary = vocabulary::environment(tokenizer);
    let capabilities = InferenceCapabilities { ff_tokens: true, ..Default::default() };
    let slices = SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&vocabulary, capabilities, &slices).map_err(|error| failed(&error))?;
    *factory.limits_mut() =
        ParserLimits { max_lexer_states: LEXER_STATES_MAX, verbose_errors: false, ..ParserLimits::default() };
    factory.quiet();
    Ok(factory)
}

/// What the library says, without what it adds for those who work on it.
fn readable(error: &str) -> String {
    error.split("\n<").next().unwrap_or_default().trim().to_owned()
}

fn key(grammar: &TopLevelGrammar, reasoning: ReasoningFormat) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in &grammar.grammars {
        for text in [part.name.clone(), part.lark_grammar.clone(), part.json_schema.as_ref().map(ToString::to_string)] {
            let text = text.unwrap_or_default();
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
    }
    digest.update(reasoning.name());
    digest.finalize().into()
}
