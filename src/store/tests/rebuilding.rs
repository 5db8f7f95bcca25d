//! Compaction and the way from older schemas: the same content, and no step at which a crash loses it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::acknowledged::Losses;
use super::super::folder::Lock;
use super::super::writes::Writes;
use super::super::{
    Batch, Epoch, Error, EventRetention, ExpiredEvents, Journal, MemoryJournal, Record, SledJournal, codec, compact,
    dump, expired_events, keys, load,
};
use super::super::{migrate, rebuild, swap};
use super::{Ids, batch, copy_folder, key_record, with_records};
use crate::conversation::State;

fn dumped(journal: &dyn Journal) -> String {
    let mut text = Vec::new();
    dump(journal, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Eight conversations with so many hundred events, of which every second is deleted.
fn fill(journal: &SledJournal, hundreds: u64) {
    let mut ids = Ids::new();
    for number in 0..8 {
        let (conversation, response) = (ids.conversation(), ids.response());
        let records = vec![
            Record::Response(response),
            Record::Intervention(ids.intervention()),
            Record::Active(number == 3),
            Record::Key(key_record(conversation, response, "k")),
            Record::Epoch(Epoch { epoch: number, rewound_seq: 2 * number }),
        ];
        for first in (0..hundreds).map(|hundred| 100 * hundred + 1) {
            journal.append(&[batch(conversation, first..first + 100)]).unwrap();
        }
        journal.append(&[with_records(batch(conversation, []), records)]).unwrap();
        if number % 2 == 0 {
            journal.append(&[Batch::deletion(conversation)]).unwrap();
        }
    }
}

#[test]
fn a_compacted_store_is_smaller_and_holds_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    fill(&journal, 15);
    let before = dumped(&journal);
    drop(journal);
    let done = compact(folder.path(), u64::MAX).unwrap();
    assert_eq!((done.conversations, done.events), (4, 4 * 1_500));
    assert!(done.bytes_after < done.bytes_before, "{done:?}");
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    let journal = SledJournal::open(folder.path()).unwrap();
    assert!(dumped(&journal) == before, "the content differs");
    // It is written to, counted and read as before.
    let conversation = journal.conversations(None, 1).unwrap()[0];
    journal.append(&[batch(conversation, [1_501])]).unwrap();
    drop(journal);
    let journal = SledJournal::open(folder.path()).unwrap();
    assert_eq!(journal.last_seq(conversation).unwrap(), 1_501);
    assert_eq!(journal.db.scan_prefix([keys::DELETED]).count(), 0);
}

#[test]
fn a_compaction_is_refused_while_somebody_has_the_folder_and_while_something_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    fill(&journal, 15);
    assert_eq!(compact(folder.path(), u64::MAX).unwrap_err(), Error::InUse(folder.path().to_owned()));
    let hurt = journal.conversations(None, 1).unwrap()[0];
    let key = keys::event(hurt, 700, 0);
    let good = journal.db.insert(&key, "torn").unwrap().unwrap();
    journal.flush().unwrap();
    drop(journal);
    let refused = compact(folder.path(), u64::MAX).unwrap_err().to_string();
    assert!(refused.contains("1 conversations") && refused.contains("repair"), "{refused}");
    assert!(!swap::rebuilding(folder.path()).exists());
    let journal = SledJournal::open(folder.path()).unwrap();
    journal.db.insert(key, good).unwrap();
    drop(journal);
    compact(folder.path(), u64::MAX).unwrap();
}

#[test]
fn a_loss_behind_a_compaction_is_still_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    fill(&journal, 15);
    drop(journal);
    compact(folder.path(), u64::MAX).unwrap();
    let path = folder.path().join("journal/db");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end / 2] ^= 1;
    fs::write(path, bytes).unwrap();
    assert!(matches!(SledJournal::open(folder.path()), Err(Error::Lost { .. } | Error::StoreDamaged(_))));
}

/// Opens what a crash behind each step leaves.
fn crash_behind_each_step(folder: &Path, aside: Option<&str>, check: impl Fn(usize, &Path)) {
    let count = swap::steps(folder, None).len().max(swap::steps(folder, Some(folder)).len());
    for done in 0..=count {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(folder, copy.path());
        let aside = aside.map(|name| copy.path().join(name));
        let steps = swap::steps(copy.path(), aside.as_deref());
        for step in &steps[..done.min(steps.len())] {
            step.run().unwrap();
        }
        check(done, copy.path());
        assert!(!swap::rebuilding(copy.path()).exists(), "step {done} leaves half a journal behind");
    }
}

#[test]
fn a_crash_in_a_compaction_leaves_the_old_store_or_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    fill(&journal, 3);
    let before = dumped(&journal);
    rebuild::build(&journal, folder.path(), migrate::SCHEMA).unwrap();
    drop(journal);
    // One that dies while it builds.
    let torn = tempfile::tempdir().unwrap();
    copy_folder(folder.path(), torn.path());
    fs::write(torn.path().join("rebuilding/journal/db"), "torn").unwrap();
    assert!(dumped(&SledJournal::open(torn.path()).unwrap()) == before);
    crash_behind_each_step(folder.path(), None, |done, root| {
        let journal = SledJournal::open(root).unwrap();
        assert!(dumped(&journal) == before, "behind step {done}");
        drop(journal);
        assert_eq!(compact(root, u64::MAX).unwrap().events, 4 * 300, "behind step {done}");
    });
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/dumps").join(name)
}

/// What a conversation's state came to, in words that stay the same when the type grows.
fn states(journal: &dyn Journal) -> String {
    let mut text = String::new();
    for id in journal.conversations(None, usize::MAX).unwrap() {
        let mut state = State::default();
        journal.kept(id, 0, usize::MAX).unwrap().iter().for_each(|recorded| state.apply(recorded));
        journal.read(id, state.last_seq, usize::MAX).unwrap().iter().for_each(|recorded| state.apply(recorded));
        let State { principal, last_seq, created_ms, .. } = &state;
        writeln!(text, "{id} {} {principal} last_seq={last_seq} created_ms={created_ms}", state.status()).unwrap();
        for call in state.open_calls() {
            writeln!(text, "  open {} {} attempt={}", call.call_id.0, call.name, call.attempt).unwrap();
        }
        for response in &state.responses {
            let (status, usage, number) = (response.status.as_str(), response.usage, response.next_number);
            // What it cost is not in the old formats, nor in what was written down of them.
            let usage = format!("{usage:?}").replace(", cost_nanos: None", "");
            writeln!(text, "  {} {status} {usage} next_number={number}", response.id).unwrap();
            for item in response.input.iter().chain(response.output.iter().map(|output| &output.item)) {
                writeln!(text, "    {}", serde_json::to_string(item).unwrap()).unwrap();
            }
            writeln!(text, "    tokens={:?} kept={}", response.tokens(), response.kept_tokens().len()).unwrap();
        }
        for (id, intervention) in &state.interventions {
            let (response, seq) = (intervention.response_id, intervention.seq);
            writeln!(text, "  {id} of {response} seq={seq}").unwrap();
        }
    }
    text
}

#[test]
fn a_dump_of_every_released_schema_loads_to_the_state_it_had() {
    let expected = fs::read_to_string(golden("v1.states.txt")).unwrap_or_default();
    for schema in 1..=migrate::SCHEMA {
        let folder = tempfile::tempdir().unwrap();
        let text = fs::read_to_string(golden(&format!("v{schema}.jsonl"))).unwrap();
        for journal in [&SledJournal::open(folder.path()).unwrap() as &dyn Journal, &MemoryJournal::new()] {
            load(journal, &mut text.as_bytes()).unwrap();
            if schema == 1 {
                assert_eq!(states(journal), expected);
            }
            if schema == migrate::SCHEMA {
                assert!(dumped(journal) == text, "today's dump is written in another way");
            }
        }
    }
}

#[test]
fn a_dump_with_trimmed_events_loads_to_the_state_of_the_whole_one() {
    let (whole, trimmed) = (MemoryJournal::new(), MemoryJournal::new());
    load(&whole, &mut fs::read(golden("v2.jsonl")).unwrap().as_slice()).unwrap();
    let expected = states(&whole);
    if std::env::var_os("MIDSTREAM_UPDATE_GOLDEN").is_some() {
        let all = EventRetention { before_ms: u64::MAX, bytes_max: None };
        for ExpiredEvents { conversation, oldest_seq } in expired_events(&whole, all, None, u64::MAX).unwrap().0 {
            whole.trim(conversation, oldest_seq).unwrap();
        }
        fs::write(golden("v2.trimmed.jsonl"), dumped(&whole)).unwrap();
    }
    let text = fs::read_to_string(golden("v2.trimmed.jsonl")).unwrap();
    assert!(text.contains("\"kept\""));
    let folder = tempfile::tempdir().unwrap();
    for journal in [&SledJournal::open(folder.path()).unwrap() as &dyn Journal, &trimmed] {
        load(journal, &mut text.as_bytes()).unwrap();
        assert_eq!(states(journal), expected);
        assert!(dumped(journal) == text, "today's dump is written in another way");
    }
}

/// A folder as "First light" left it: its heads have the seq only, and it says schema 1.
fn first_light(root: &Path) {
    let journal = SledJournal::open(root).unwrap();
    let text = fs::read_to_string(golden("v1.jsonl")).unwrap();
    load(&journal, &mut text.as_bytes()).unwrap();
    let mut heads = Writes::default();
    for id in journal.conversations(None, usize::MAX).unwrap() {
        heads.put(keys::head(id), &codec::encode_seq(journal.last_seq(id).unwrap()));
    }
    journal.write_unseen(heads).unwrap();
    let value = codec::seal(keys::SCHEMA, &1_u32.to_be_bytes());
    journal.db.insert(keys::SCHEMA, value).unwrap();
    journal.flush().unwrap();
}

#[test]
fn a_store_of_schema_1_is_opened_as_it_is_and_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    first_light(folder.path());
    for opened in 0..2 {
        let journal = SledJournal::open(folder.path()).unwrap();
        assert_eq!(states(&journal), fs::read_to_string(golden("v1.states.txt")).unwrap());
        for id in journal.conversations(None, usize::MAX).unwrap() {
            let last = journal.read(id, journal.last_seq(id).unwrap() - 1, 1).unwrap().remove(0);
            assert_eq!(journal.last_at_ms(id).unwrap(), last.at_ms, "heads know when the last event was");
        }
        assert!(folder.path().join("journal.schema-1/db").exists());
        assert!(!folder.path().join("journal.schema-1.2").exists(), "start {opened} migrates again");
    }
}

#[test]
fn a_crash_in_a_migration_leaves_a_store_that_opens_and_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    first_light(folder.path());
    let expected = fs::read_to_string(golden("v1.states.txt")).unwrap();
    {
        let lock = Lock::take(folder.path()).unwrap();
        let old = SledJournal::open_any(folder.path(), &lock, Losses::Refuse).unwrap();
        rebuild::build(&old, folder.path(), 1).unwrap();
    }
    crash_behind_each_step(folder.path(), Some("journal.schema-1"), |done, root| {
        assert_eq!(states(&SledJournal::open(root).unwrap()), expected, "behind step {done}");
        assert!(root.join("journal.schema-1/db").exists(), "behind step {done}");
    });
}

#[test]
fn what_lies_before_damage_is_migrated_and_begins_a_new_epoch() {
    let folder = tempfile::tempdir().unwrap();
    first_light(folder.path());
    let hurt = {
        let lock = Lock::take(folder.path()).unwrap();
        let old = SledJournal::open_any(folder.path(), &lock, Losses::Refuse).unwrap();
        let hurt = old.conversations(None, 1).unwrap()[0];
        old.db.insert(keys::event(hurt, 4, 0), "torn").unwrap();
        hurt
    };
    let journal = SledJournal::open(folder.path()).unwrap();
    assert_eq!(journal.read(hurt, 0, usize::MAX).unwrap().len(), 3);
    assert_eq!(journal.epoch(hurt).unwrap(), Epoch { epoch: 1, rewound_seq: 3 });
    assert_eq!(journal.conversations(None, usize::MAX).unwrap().len(), 6);
}
