//! Real processes: one is killed at any point, one writes until the disk is full. What they were told is durable
//! is there afterwards.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::super::{Batch, Error, Journal, SledJournal, Writer, WriterStatus, compact};
use super::{Ids, batch};
use crate::error::Code;

/// Tells the test binary, started as a child, where to write.
const CHILD: &str = "MIDSTREAM_TEST_STORE_CHILD";
/// Set as well: the child appends until it is refused.
const UNTIL_REFUSED: &str = "MIDSTREAM_TEST_STORE_UNTIL_REFUSED";
/// Set as well: the child deletes and compacts; the number of its first conversation.
const DELETING_FROM: &str = "MIDSTREAM_TEST_STORE_DELETING_FROM";
const CONVERSATIONS: usize = 8;
const BATCH: u64 = 7;
const DELETED_EVENTS: u64 = 150;

/// The child: does nothing when it runs as an ordinary test.
#[test]
fn child_appends_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else {
        return;
    };
    let journal = Arc::new(SledJournal::open(folder).unwrap());
    let writer = Writer::start(journal.clone(), 64).unwrap();
    let mut ids = Ids::new();
    std::thread::scope(|scope| {
        for index in 0..CONVERSATIONS {
            let conversation = ids.conversation();
            let (writer, journal) = (writer.clone(), journal.clone());
            scope.spawn(move || {
                let mut last = journal.last_seq(conversation).unwrap();
                loop {
                    writer.append_blocking(batch(conversation, last + 1..=last + BATCH)).unwrap();
                    last += BATCH;
                    tell(index, last);
                }
            });
        }
    });
}

/// Tells the parent what is acknowledged. The parent may be gone.
fn tell(index: usize, last: u64) {
    let _ = writeln!(std::io::stdout(), "acknowledged {index} {last}");
}

/// Adds what a line of the child's tells.
fn listen(line: &str, told: &mut HashMap<usize, u64>) {
    // The test runner's own words may stand before it.
    let Some((index, last)) = line.rsplit_once("acknowledged ").and_then(|(_, words)| words.split_once(' ')) else {
        return;
    };
    told.insert(index.parse().unwrap(), last.parse().unwrap());
}

#[test]
fn a_killed_process_lost_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut ids = Ids::new();
    let conversations: Vec<_> = (0..CONVERSATIONS).map(|_| ids.conversation()).collect();
    let mut told = HashMap::new();
    for round in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::killed::child_appends_until_it_is_killed"])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Each round is killed at another distance from its first acknowledgement.
        let before: u64 = told.values().sum();
        while told.values().sum::<u64>() < before + 1 + round * 331 {
            listen(&lines.next().expect("the child ended by itself"), &mut told);
        }
        child.kill().unwrap();
        // The line it died in may be cut.
        let rest: Vec<_> = lines.collect();
        for line in &rest[..rest.len().saturating_sub(1)] {
            listen(line, &mut told);
        }
        child.wait().unwrap();
        let journal = SledJournal::open(folder.path()).unwrap();
        for (index, conversation) in conversations.iter().enumerate() {
            let events = journal.read(*conversation, 0, usize::MAX).unwrap();
            let found = events.len() as u64;
            let told = told.get(&index).copied().unwrap_or(0);
            assert!(found >= told, "round {round}: {found} of {told} acknowledged events");
            assert_eq!(found % BATCH, 0, "a batch was cut");
            assert_eq!(events, batch(*conversation, 1..=found).events);
        }
    }
}

/// The child of the next test: conversations come and go, and after every twentieth it compacts.
#[test]
fn child_deletes_and_compacts_until_it_is_killed() {
    let (Some(folder), Some(first)) = (std::env::var_os(CHILD), std::env::var_os(DELETING_FROM)) else {
        return;
    };
    let folder = Path::new(&folder);
    let first = first.into_string().unwrap().parse().unwrap();
    let mut ids = Ids::new();
    let mut conversations = (0..).map(|index| (index, ids.conversation())).skip(first);
    loop {
        let journal = Arc::new(SledJournal::open(folder).unwrap());
        let writer = Writer::start(journal.clone(), 64).unwrap();
        for (index, conversation) in conversations.by_ref().take(20) {
            writer.append_blocking(batch(conversation, 1..=DELETED_EVENTS)).unwrap();
            tell(index, DELETED_EVENTS);
            if index % 3 == 0 {
                writer.append_blocking(Batch::deletion(conversation)).unwrap();
                tell(index, 0);
            }
        }
        drop((writer, journal));
        // The writer's thread lets go of the folder when it has ended.
        while matches!(compact(folder, u64::MAX), Err(Error::InUse(_))) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_process_killed_while_it_deletes_and_compacts_keeps_what_it_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut told = HashMap::new();
    for round in 0..8_usize {
        // One more may be written and not told.
        let first = told.keys().max().map_or(0, |last| last + 2);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::killed::child_deletes_and_compacts_until_it_is_killed"])
            .env(CHILD, folder.path())
            .env(DELETING_FROM, first.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        for _ in 0..=round {
            listen(&lines.next().expect("the child ended by itself"), &mut told);
        }
        // In most rounds the kill comes in a compaction: while it builds, and at a step of the swap.
        let step = [None, Some("rebuilding/journal/db"), Some("journal.next"), Some("journal.old")][round % 4];
        while step.is_some_and(|name| !folder.path().join(name).exists()) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        let rest: Vec<_> = lines.collect();
        for line in &rest[..rest.len().saturating_sub(1)] {
            listen(line, &mut told);
        }
        child.wait().unwrap();
        let journal = SledJournal::open(folder.path()).unwrap();
        let mut ids = Ids::new();
        for index in 0..told.keys().max().map_or(0, |last| last + 1) {
            let conversation = ids.conversation();
            let found = journal.read(conversation, 0, usize::MAX).unwrap();
            match told.get(&index) {
                Some(0) => assert_eq!(found, [], "round {round}: a deleted conversation is back"),
                // Written or deleted, but not yet told.
                None | Some(_) if found.is_empty() && (index % 3 == 0 || !told.contains_key(&index)) => {}
                None | Some(_) => assert_eq!(found, batch(conversation, 1..=DELETED_EVENTS).events),
            }
        }
    }
}

#[test]
fn child_appends_until_it_is_refused() {
    let (Some(folder), Some(_)) = (std::env::var_os(CHILD), std::env::var_os(UNTIL_REFUSED)) else {
        return;
    };
    let journal = Arc::new(SledJournal::open(Path::new(&folder)).unwrap());
    let writer = Writer::start(journal.clone(), 64).unwrap();
    let conversation = Ids::new().conversation();
    let mut last = 0;
    let refused = loop {
        match writer.append_blocking(batch(conversation, last + 1..=last + BATCH)) {
            Ok(()) => last += BATCH,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), Code::StorageUnavailable, "{refused}");
    let later = writer.append_blocking(batch(conversation, [last + 1])).unwrap_err();
    assert_eq!(later.code(), Code::StorageUnavailable, "{later}");
    assert_ne!(writer.status(), WriterStatus::Running);
    assert_eq!(journal.last_seq(conversation).unwrap(), last, "what is not durable is shown");
    tell(0, last);
}

/// A limit on the size of files stands for the full disk: the write fails in the same place.
#[test]
fn a_full_disk_refuses_appends_and_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let child = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 6144; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::killed::child_appends_until_it_is_refused"])
        .env(CHILD, folder.path())
        .env(UNTIL_REFUSED, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{text}");
    let mut told = HashMap::new();
    for line in text.lines() {
        listen(line, &mut told);
    }
    let told = told[&0];
    assert!(told > 0);
    let journal = SledJournal::open(folder.path()).unwrap();
    let conversation = Ids::new().conversation();
    let events = journal.read(conversation, 0, usize::MAX).unwrap();
    let found = events.len() as u64;
    assert!(found >= told, "{found} of {told} acknowledged events");
    assert_eq!(events, batch(conversation, 1..=found).events);
    journal.append(&[batch(conversation, [found + 1])]).unwrap();
}
