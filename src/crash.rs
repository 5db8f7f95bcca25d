//! Named points at which a test lets the process die, as a power cut would. Without `MIDSTREAM_CRASH` a point is one
//! load and one branch. `docs/decisions/0006-crash-points-are-always-built.md` says why they are always there.
//!
//! `MIDSTREAM_CRASH=name:n` ends the process at the n-th time that it comes to the point. `MIDSTREAM_CRASH_LOG=file`
//! adds a line to the file each time that it comes to any.

use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the environment asks for; nothing in every process that is not under test.
static PLAN: OnceLock<Option<Plan>> = OnceLock::new();

struct Plan {
    name: String,
    at: u64,
    hits: AtomicU64,
    log: Option<File>,
}

/// A place where the process may die. Nothing that runs behind it may be needed to keep a promise.
pub fn point(name: &str) {
    let Some(plan) = PLAN.get_or_init(plan) else { return };
    if let Some(mut log) = plan.log.as_ref() {
        // One write, so that threads do not share a line.
        let _ = log.write_all(format!("{name}\n").as_bytes());
    }
    if plan.name == name && plan.hits.fetch_add(1, Ordering::SeqCst) + 1 == plan.at {
        // Nothing unwinds, nothing is flushed, no destructor runs.
        std::process::abort();
    }
}

/// Refuses a plan that cannot be read: a test with a slip in it would run without its crash, and pass.
pub fn check() -> Result<(), String> {
    asked(&std::env::var("MIDSTREAM_CRASH").unwrap_or_default()).map(drop)
}

/// The point that is named, and at which of its times; none where nothing is asked for.
fn asked(text: &str) -> Result<Option<(&str, u64)>, String> {
    let planned = text.rsplit_once(':').and_then(|(name, at)| Some((name, at.parse().ok()?)));
    match planned {
        _ if text.is_empty() => Ok(None),
        Some((name, at)) if at > 0 && !name.is_empty() => Ok(Some((name, at))),
        _ => Err(format!("MIDSTREAM_CRASH={text:?} is no crash point; say name:n, where n counts from 1, or unset it")),
    }
}

fn plan() -> Option<Plan> {
    let text = std::env::var("MIDSTREAM_CRASH").unwrap_or_default();
    let (name, at) = asked(&text).ok().flatten().unwrap_or(("", 0));
    let log = std::env::var_os("MIDSTREAM_CRASH_LOG").and_then(|path| File::options().append(true).open(path).ok());
    let is_asked = at > 0 || log.is_some();
    is_asked.then(|| Plan { name: name.to_owned(), at, hits: AtomicU64::new(0), log })
}

#[cfg(test)]
mod tests {
    use super::asked;

    #[test]
    fn a_plan_that_cannot_be_read_is_refused_and_says_its_form() {
        assert_eq!(asked("").unwrap(), None);
        assert_eq!(asked("other_decided:2").unwrap(), Some(("other_decided", 2)));
        for text in ["other_decided", "other_decided:", "other_decided:0", "other_decided:x", ":1", "a:-1"] {
            assert!(asked(text).unwrap_err().contains("name:n"), "{text}");
        }
    }
}
