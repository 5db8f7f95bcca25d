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

fn plan() -> Option<Plan> {
    let asked = std::env::var("MIDSTREAM_CRASH").unwrap_or_default();
    let (name, at) = asked.rsplit_once(':').and_then(|(name, at)| Some((name, at.parse().ok()?))).unwrap_or(("", 0));
    let log = std::env::var_os("MIDSTREAM_CRASH_LOG").and_then(|path| File::options().append(true).open(path).ok());
    let is_asked = at > 0 || log.is_some();
    is_asked.then(|| Plan { name: name.to_owned(), at, hits: AtomicU64::new(0), log })
}
