//! Real processes: one is killed at any point, one writes until the disk is full. What they were told is durable
//! is there afterwards.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use super::super::{Journal, SledJournal, Writer, WriterStatus};
use super::{Ids, batch};
use crate::error::Code;

/// Tells the test binary, started as a child, where to write.
const CHILD: &str = "MIDSTREAM_TEST_STORE_CHILD";
const CONVERSATIONS: usize = 8;
const BATCH: u64 = 7;

/// The child: does nothing when it runs as an ordinary test.
#[test]
fn child_appends_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else {
        return;
    };
    let folder = Path::new(&folder);
    let journal = Arc::new(SledJournal::open(folder.join("data")).unwrap());
    let writer = Writer::start(journal.clone(), 64).unwrap();
    let acknowledged = std::fs::File::options().create(true).append(true).open(folder.join("acknowledged"));
    let acknowledged = Mutex::new(acknowledged.unwrap());
    let mut ids = Ids::new();
    std::thread::scope(|scope| {
        for index in 0..CONVERSATIONS {
            let conversation = ids.conversation();
            let (writer, journal, acknowledged) = (writer.clone(), journal.clone(), &acknowledged);
            scope.spawn(move || {
                let mut last = journal.last_seq(conversation).unwrap();
                loop {
                    writer.append_blocking(batch(conversation, last + 1..=last + BATCH)).unwrap();
                    last += BATCH;
                    writeln!(acknowledged.lock().unwrap(), "{index} {last}").unwrap();
                }
            });
        }
    });
}

/// Set as well: the child appends until it is refused.
const UNTIL_REFUSED: &str = "MIDSTREAM_TEST_STORE_UNTIL_REFUSED";

#[test]
fn child_appends_until_it_is_refused() {
    let (Some(folder), Some(_)) = (std::env::var_os(CHILD), std::env::var_os(UNTIL_REFUSED)) else {
        return;
    };
    let folder = Path::new(&folder);
    let journal = Arc::new(SledJournal::open(folder.join("data")).unwrap());
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
    std::fs::write(folder.join("acknowledged"), format!("0 {last}\n")).unwrap();
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
    let told = acknowledged(folder.path())[&0];
    assert!(told > 0);
    let journal = SledJournal::open(folder.path().join("data")).unwrap();
    let conversation = Ids::new().conversation();
    let events = journal.read(conversation, 0, usize::MAX).unwrap();
    let found = events.len() as u64;
    assert!(found >= told, "{found} of {told} acknowledged events");
    assert_eq!(events, batch(conversation, 1..=found).events);
    journal.append(&[batch(conversation, [found + 1])]).unwrap();
}

/// The last seq that the child was told is durable, by conversation.
fn acknowledged(folder: &Path) -> HashMap<usize, u64> {
    let text = std::fs::read_to_string(folder.join("acknowledged")).unwrap_or_default();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let pairs = complete.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(index, seq)| (index.parse().unwrap(), seq.parse().unwrap())).collect()
}

#[test]
fn a_killed_process_lost_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut ids = Ids::new();
    let conversations: Vec<_> = (0..CONVERSATIONS).map(|_| ids.conversation()).collect();
    for round in 0..6 {
        let before: u64 = acknowledged(folder.path()).values().sum();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::killed::child_appends_until_it_is_killed"])
            .env(CHILD, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Each round is killed at another distance from its first acknowledgement.
        while acknowledged(folder.path()).values().sum::<u64>() < before + 1 + round * 331 {
            assert_eq!(child.try_wait().unwrap(), None, "the child ended by itself");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let told = acknowledged(folder.path());
        let journal = SledJournal::open(folder.path().join("data")).unwrap();
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
