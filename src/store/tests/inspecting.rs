//! Looking changes nothing; mending keeps what was there; what cannot be read holds up nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::super::{Batch, Error, Journal, SledJournal, compact, dump, find_damage, inspect, mend};
use super::lost::flip;
use super::{Ids, batch, copy_folder};
use crate::ids::ConversationId;

/// Every file below, with its bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()).into_iter().map(|(name, bytes)| (entry.path().join(name), bytes)));
        } else {
            found.insert(entry.path().strip_prefix(folder).unwrap().to_owned(), std::fs::read(entry.path()).unwrap());
        }
    }
    found
}

fn contents(folder: &Path) -> Vec<Vec<u8>> {
    files(folder).into_values().collect()
}

fn written(folder: &Path, conversations: usize, events: u64) -> Vec<ConversationId> {
    let journal = SledJournal::open(folder).unwrap();
    let mut ids = Ids::new();
    let conversations: Vec<_> = std::iter::repeat_with(|| ids.conversation()).take(conversations).collect();
    for conversation in &conversations {
        journal.append(&[batch(*conversation, 1..=events)]).unwrap();
    }
    conversations
}

#[test]
fn looking_at_a_damaged_journal_changes_no_byte_and_tells_the_loss() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 20, 10);
    flip(folder.path(), 500);
    let before = files(folder.path());
    for _ in 0..2 {
        let found = inspect(folder.path(), find_damage).unwrap().unwrap();
        assert!(found.lost.as_ref().is_some_and(|lost| lost.contains("of 20 acknowledged writes")), "{found:?}");
        assert!(files(folder.path()) == before, "a look changed the folder");
    }
}

#[test]
fn a_start_that_is_refused_keeps_the_journal_as_it_was_found_once() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 20, 10);
    flip(folder.path(), 500);
    let before = contents(&folder.path().join("journal"));
    for _ in 0..2 {
        let refused = SledJournal::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("is kept as") && refused.contains("journal.damaged;"), "{refused}");
        assert!(contents(&folder.path().join("journal.damaged")) == before, "what is kept is not what was there");
    }
    assert!(!folder.path().join("journal.damaged.2").exists() && !folder.path().join("inspecting").exists());
}

/// A filesystem that shares the bytes of copied files keeps a journal whatever its size.
#[test]
fn a_journal_that_is_too_large_to_be_copied_at_each_start_is_refused_all_the_same_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 20, 10);
    flip(folder.path(), 500);
    let before = contents(&folder.path().join("journal"));
    let damaged = folder.path().join("journal.damaged");
    let refused = SledJournal::open_keeping(folder.path(), 1_000).unwrap_err().to_string();
    if damaged.exists() {
        assert!(refused.contains("is kept as") && contents(&damaged) == before, "{refused}");
    } else {
        assert!(refused.contains("is not kept: it has") && refused.contains("journal_kept_bytes_max"), "{refused}");
    }
    assert!(!folder.path().join("inspecting").exists());
}

#[test]
fn a_compaction_of_a_damaged_journal_keeps_it_as_it_was_found() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 20, 10);
    flip(folder.path(), 500);
    let before = contents(&folder.path().join("journal"));
    let refused = compact(folder.path(), u64::MAX).unwrap_err().to_string();
    assert!(refused.contains("journal.damaged;"), "{refused}");
    assert!(contents(&folder.path().join("journal.damaged")) == before, "what is kept is not what was there");
}

#[test]
fn mending_a_cut_log_keeps_the_journal_as_it_was_and_rewinds_what_is_left() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 20, 10);
    flip(folder.path(), 500);
    let before = contents(&folder.path().join("journal"));
    let mended = mend(folder.path()).unwrap();
    assert!(mended.found.lost.is_some());
    let kept = mended.kept.unwrap();
    assert_eq!(kept, folder.path().join("journal.before-repair"));
    assert!(contents(&kept) == before, "what is kept is not what was there");
    let journal = SledJournal::open(folder.path()).unwrap();
    let left = journal.conversations(None, 100).unwrap();
    assert!(!left.is_empty() && left.len() < 20, "{} are left", left.len());
    for conversation in left {
        let epoch = journal.epoch(conversation).unwrap();
        assert_eq!((epoch.epoch, epoch.rewound_seq), (1, journal.last_seq(conversation).unwrap()));
    }
    drop(journal);
    assert_eq!(mend(folder.path()).unwrap().kept, None, "a mended folder is mended again");
}

#[test]
fn mending_behind_a_refused_start_names_the_journal_as_the_start_found_it() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 20, 10);
    flip(folder.path(), 500);
    let before = contents(&folder.path().join("journal"));
    SledJournal::open_keeping(folder.path(), u64::MAX).unwrap_err();
    let kept = mend(folder.path()).unwrap().kept.unwrap();
    assert!(contents(&kept) == before, "{} is not what was there", kept.display());
    assert!(!folder.path().join("journal.damaged").exists());
}

/// Places of a file in per mille, neighbours far apart. How much of a journal's file is in use differs from run to run
/// with the database's own threads: a test goes on until it has hit something, not until it has tried some places.
fn places() -> impl Iterator<Item = usize> {
    (0..850).map(|nth| 50 + nth * 233 % 850)
}

/// The conversations that cannot be read, if they are read in this order from a copy of the folder as it is.
fn unreadable<'a>(
    folder: &Path,
    conversations: impl Iterator<Item = &'a ConversationId>,
) -> Option<BTreeSet<ConversationId>> {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(folder, copy.path());
    let journal = SledJournal::open(copy.path()).ok()?;
    Some(conversations.filter(|id| journal.read(**id, 0, 1000).is_err()).copied().collect())
}

/// sled moves pages while it reads and writes others: one that it cannot move is nobody's damage but its own.
#[test]
fn what_cannot_be_read_is_the_same_whatever_was_read_before_and_all_else_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let conversations = written(folder.path(), 60, 60);
    drop(SledJournal::open(folder.path()).unwrap());
    let mut seen = 0;
    for per_mille in places() {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(folder.path(), copy.path());
        flip(copy.path(), per_mille);
        let forwards = unreadable(copy.path(), conversations.iter());
        let backwards = unreadable(copy.path(), conversations.iter().rev());
        assert_eq!(forwards, backwards, "at {per_mille}");
        let Some(hurt) = forwards.filter(|hurt| !hurt.is_empty()) else { continue };
        seen += 1;
        let journal = SledJournal::open(copy.path()).unwrap();
        let mut refused = 0;
        for conversation in conversations.iter().filter(|id| !hurt.contains(id)) {
            match journal.append(&[batch(*conversation, 61..80)]) {
                Ok(()) => assert_eq!(journal.read(*conversation, 60, 100).unwrap().len(), 19),
                // Its next event has its place beside events that cannot be read.
                Err(Error::Damaged { conversation: beside, seq: 61, .. }) if beside == *conversation => refused += 1,
                Err(error) => panic!("at {per_mille}: {error}"),
            }
        }
        assert!(refused <= hurt.len(), "{refused} conversations lie beside {}", hurt.len());
        journal.check_writable().unwrap();
        if seen == 3 {
            return;
        }
    }
    panic!("only {seen} places were unreadable");
}

/// Whether one conversation of the journal cannot be read by the database while the folder opens.
fn hurt(folder: &Path, conversations: &[ConversationId]) -> Option<ConversationId> {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(folder, copy.path());
    let journal = SledJournal::open(copy.path()).ok()?;
    let hurt = conversations.iter().find(|id| journal.read(**id, 0, 1000).is_err()).copied();
    hurt.filter(|_| journal.is_unreadable())
}

#[test]
fn what_the_database_cannot_read_is_damage_of_its_conversation_only() {
    let folder = tempfile::tempdir().unwrap();
    let conversations = written(folder.path(), 60, 60);
    // With a snapshot, recovery reads only what lies behind it.
    drop(SledJournal::open(folder.path()).unwrap());
    let mut seen = 0;
    for per_mille in places() {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(folder.path(), copy.path());
        flip(copy.path(), per_mille);
        let Some(hurt) = hurt(copy.path(), &conversations) else { continue };
        seen += 1;
        let deleting = tempfile::tempdir().unwrap();
        copy_folder(copy.path(), deleting.path());
        let journal = SledJournal::open(deleting.path()).unwrap();
        match journal.read(hurt, 0, 1000).unwrap_err() {
            Error::Damaged { conversation, why, .. } => {
                assert_eq!(conversation, hurt);
                assert!(!why.contains("backtrace"), "{why}");
            }
            error => panic!("{error}"),
        }
        let whole = conversations.iter().filter(|id| journal.read(**id, 0, 1000).is_ok()).count();
        assert!(whole > 30, "only {whole} can be read");
        let dumped = dump(&journal, &mut std::io::sink()).unwrap();
        assert!(dumped.damaged.len() + dumped.damaged_records > 0 && dumped.conversations >= whole, "{dumped:?}");
        // It goes, and the others can still be written.
        journal.append(&[Batch::deletion(hurt)]).unwrap();
        while journal.purge().unwrap() {}
        assert!(journal.is_deleted(hurt).unwrap());
        let other = *conversations.iter().rfind(|id| journal.last_seq(**id) == Ok(60) && **id != hurt).unwrap();
        let written = journal.append(&[batch(other, [61])]);
        assert!(matches!(written, Ok(()) | Err(Error::Damaged { seq: 61, .. })), "{written:?}");
        journal.check_writable().unwrap();
        drop(journal);

        let mended = mend(copy.path()).unwrap();
        assert!(mended.found.is_unreadable && mended.kept.is_some(), "{:?}", mended.found);
        let journal = SledJournal::open(copy.path()).unwrap();
        let left = journal.conversations(None, 100).unwrap();
        assert!(left.len() + 1 >= whole, "{} of {whole} are left", left.len());
        for conversation in left {
            journal.read(conversation, 0, 1000).unwrap();
        }
        if seen == 3 {
            return;
        }
    }
    panic!("only {seen} places were unreadable");
}
