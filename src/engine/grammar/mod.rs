//! Constrained decoding: which tokens may come next, so that an answer is what its request asked for.
//!
//! [`Grammars`] compiles a [`Constraint`] for one model's vocabulary, once per constraint; a [`Guide`] follows one
//! sequence. Like sampling it is a function of the tokens so far: a resumed answer goes on under the same constraint.

mod bounds;
mod calls;
mod guide;
mod kept;
mod rules;
mod vocabulary;
mod workshop;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use llguidance::Matcher;
use serde_json::Value;

use super::settings::Constraint;
use super::tokenizer::Tokenizer;
use crate::parse::{ReasoningFormat, ToolFormat};
use crate::prompt::ToolDefinition;
pub use calls::{may_be_unmarked, only_told};
pub use guide::{Guide, Lost};
use guide::{Marks, Thinking};
pub use llguidance::toktrie::SimpleVob as TokenSet;
use workshop::{Workshop, readable};

/// Changes whenever a constraint may allow other tokens than before: the library's version, and the number of our own
/// changes since.
pub(super) const FORMS_VERSION: &str = "1.9.1.3";

/// Longest that a request waits until its constraint is compiled, and as long again for its turn.
const COMPILING_MAX: Duration = Duration::from_secs(1);

/// The constraint cannot be compiled, or no answer could ever satisfy it. The text is fit to be shown to a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Uncompilable(pub String);

/// What is wrong with a schema by itself, as far as that is seen without compiling it; its place is in the text.
pub fn fault(schema: &Value) -> Option<Uncompilable> {
    bounds::schema(schema).err()
}

/// Why a constraint is not compiled for a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It never is.
    #[error(transparent)]
    Uncompilable(#[from] Uncompilable),
    /// Others are at it.
    #[error("the forms of other answers are being compiled; retry later")]
    Busy,
}

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
    marks: Option<Marks>,
}

impl Compiled {
    /// A guide at the beginning of an answer. `starts_in_reasoning` is what the prompt says of it, if anything.
    pub fn guide(&self, starts_in_reasoning: Option<bool>) -> Guide {
        let thinking = Thinking::new(self.marks.as_ref(), starts_in_reasoning, &self.tokenizer);
        // With a lexer of its own: what one sequence uses up is not missing to another.
        Guide::new(self.matcher.deep_clone(), thinking, Arc::clone(&self.tokenizer))
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Compiled").field("marks", &self.marks).finish_non_exhaustive()
    }
}

/// The compiler of one model's constraints.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    workshop: Arc<Workshop>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Grammars")
    }
}

impl Grammars {
    /// A compiler for a tokenizer's vocabulary. Cheap: the work is done when it is first asked for.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer: Arc::clone(&tokenizer), workshop: Arc::new(Workshop::new(tokenizer)) }
    }

    /// Compiles a constraint that is asked for now, or finds it among those that were; refuses one that takes long. May
    /// take a core for a while: not for async threads.
    pub fn compile_soon(&self, constraint: &Constraint, surroundings: &Surroundings<'_>) -> Result<Compiled, Refused> {
        self.check_told(constraint, surroundings, Some(COMPILING_MAX))?;
        self.compile_within(constraint, surroundings, Some(COMPILING_MAX))
    }

    /// Refuses a grammar that is only told to the model, where it is none.
    fn check_told(
        &self,
        constraint: &Constraint,
        surroundings: &Surroundings<'_>,
        most: Option<Duration>,
    ) -> Result<(), Refused> {
        let Some(calls) = &constraint.calls else { return Ok(()) };
        for (_, grammar) in only_told(surroundings.tool_format.writing(), calls, surroundings.tools) {
            self.workshop.compile(rules::lark(grammar)?, most)?;
        }
        Ok(())
    }

    /// The same for a constraint that was taken once: what is slow now is compiled all the same, however long it takes.
    pub fn compile(&self, constraint: &Constraint, surroundings: &Surroundings<'_>) -> Result<Compiled, Uncompilable> {
        self.compile_within(constraint, surroundings, None).map_err(|refused| match refused {
            Refused::Uncompilable(error) => error,
            Refused::Busy => Uncompilable(refused.to_string()),
        })
    }

    fn compile_within(
        &self,
        constraint: &Constraint,
        surroundings: &Surroundings<'_>,
        most: Option<Duration>,
    ) -> Result<Compiled, Refused> {
        let grammar = rules::grammar(constraint, surroundings, &self.tokenizer)?;
        let matcher = self.workshop.compile(grammar, most)?;
        let marks = Marks::new(surroundings, &self.tokenizer);
        Ok(Compiled { matcher, tokenizer: Arc::clone(&self.tokenizer), marks })
    }
}
