//! The auditor: reads what was journaled (a dump's JSON lines) and what clients saw (a history), and says which
//! promises are broken. It knows the stored form only; it must never use the server's own types or its fold.
//!
//! A violation names the invariant of the protocol's list that is broken. Some of them a journal and a history show in
//! part, or not at all; what is missing here is shown elsewhere:
//!
//! - I4, that a cancelled sequence is out of the engine and that no block stays with it: `engine/local/tests.rs`.
//! - I10, that the sync comes before the answer: `tests/crash/order.rs`, by the system calls.
//! - I13, blocks of other tenants: not shown; `tests/crash/keys.rs` counts cached tokens.
//! - I15, memory and disk under many finished conversations: `tests/crash/retention.rs`, by what the process and its
//!   folder take. A journal holds what was kept, and neither what was to go nor what it costs.
//! - I17, tokens in another batch, chunking or thread count, and on another instruction set:
//!   `engine/backend/cpu/tests.rs` and `kernels/tests/`. Here only prompts that come twice are compared.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a journal of another form fails the test")]

mod effects;
mod forks;
mod history;
mod journal;
mod readers;
mod repeats;
mod story;
mod turn;

use std::fmt;

use serde_json::Value;

pub(crate) use history::History;
pub(crate) use journal::Journal;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Which invariant of the protocol's list; `form` for a journal that cannot be read, `number` for the numbers of
    /// a response's own stream.
    pub(crate) invariant: &'static str,
    /// Where.
    pub(crate) conversation: String,
    /// The event that breaks it, or the last one; 0 where there is none.
    pub(crate) seq: u64,
    /// What is wrong.
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} in {} at {}: {}", self.invariant, self.conversation, self.seq, self.what)
    }
}

/// The tokens of a model's whole answer to a text.
pub(crate) type Answers = dyn Fn(&str) -> Vec<u64>;

/// What is known about a run beside its journal and its history.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    /// Nothing has anything left to do.
    pub(crate) settled: bool,
    /// The tokens with which the model answers what was said last, where that is known.
    pub(crate) answers: Option<&'a Answers>,
    /// The model reads the prompts that are recorded, and nothing else.
    pub(crate) reads_prompts: bool,
}

/// Reads a journal and a history, and gives what is broken.
pub(crate) fn audit(journal: &Journal, history: &History, run: Run<'_>) -> Vec<Violation> {
    let mut found = journal.damage.clone();
    let stories: Vec<_> = journal
        .conversations
        .iter()
        .map(|(id, events)| story::Story::of(id, events, journal.oldest_seq(id), run.settled, &mut found))
        .collect();
    if let Some(answers) = run.answers {
        for story in &stories {
            story.check_answers(answers, &mut found);
        }
    }
    if run.reads_prompts {
        repeats::check(&stories, &mut found);
    }
    forks::check(&stories, &mut found);
    readers::check(journal, history, &mut found);
    effects::check(journal, &stories, history, &mut found);
    found
}

/// What was found, a line each.
pub(crate) fn report(found: &[Violation]) -> String {
    let lines: Vec<String> = found.iter().map(Violation::to_string).collect();
    lines.join("\n")
}

/// A field's text; empty where there is none.
fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// A field's elements; none where it is no array.
fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}
