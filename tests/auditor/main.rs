//! The auditor, audited: good journals and histories pass, and each seeded bug is caught by the invariant meant.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail their test")]

#[path = "../support/audit/mod.rs"]
mod audit;
mod bugs;
mod scene;

use scene::Evidence;

fn violations(evidence: &Evidence) -> Vec<audit::Violation> {
    let run = audit::Run { settled: true, answers: Some(&scene::answer), reads_prompts: true };
    audit::audit(&audit::Journal::read(&evidence.dump()), &evidence.history, run)
}

#[test]
fn a_good_run_breaks_nothing() {
    let found = violations(&scene::good());
    assert!(found.is_empty(), "{}", audit::report(&found));
}

#[test]
fn a_good_run_whose_old_events_were_trimmed_breaks_nothing() {
    let evidence = scene::trimmed();
    assert!(evidence.lines.iter().any(|line| line.get("kept").is_some()), "nothing was trimmed");
    let found = violations(&evidence);
    assert!(found.is_empty(), "{}", audit::report(&found));
}

#[test]
fn every_seeded_bug_is_caught_by_the_invariant_meant() {
    let mut escaped = Vec::new();
    for bug in bugs::BUGS {
        let mut evidence = scene::good();
        (bug.plant)(&mut evidence);
        let found = violations(&evidence);
        if !found.iter().any(|violation| violation.invariant == bug.invariant) {
            escaped.push(format!("{} should break {}: {found:?}", bug.name, bug.invariant));
        }
    }
    assert!(escaped.is_empty(), "{escaped:#?}");
}
