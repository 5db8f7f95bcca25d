//! Dump, load, and the way between schemas.

use serde_json::{Value, json};

use super::super::migrate::{self, Lines, Migration};
use super::super::{DumpSummary, Error, Journal, LoadSummary, MemoryJournal, Record, SledJournal, dump, keys, load};
use super::{Ids, batch, key_record, with_records};

fn dumped(journal: &dyn Journal) -> (String, DumpSummary) {
    let mut text = Vec::new();
    let summary = dump(journal, &mut text).unwrap();
    (String::from_utf8(text).unwrap(), summary)
}

fn fill(journal: &dyn Journal) {
    let mut ids = Ids::new();
    for number in 0..3 {
        let (conversation, response) = (ids.conversation(), ids.response());
        let records = vec![
            Record::Response(response),
            Record::Intervention(ids.intervention()),
            Record::Active(number == 1),
            Record::Key(key_record(conversation, response, "k")),
        ];
        journal.append(&[with_records(batch(conversation, 1..=1200), records)]).unwrap();
    }
}

#[test]
fn a_dump_loaded_into_an_empty_store_dumps_the_same() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = SledJournal::open(from.path()).unwrap();
    fill(&from);
    let (text, summary) = dumped(&from);
    assert_eq!(summary, DumpSummary { conversations: 3, events: 3600, records: 10, ..DumpSummary::default() });
    for to in [&SledJournal::open(to.path()).unwrap() as &dyn Journal, &MemoryJournal::new()] {
        let loaded = load(to, &mut text.as_bytes()).unwrap();
        assert_eq!(loaded, LoadSummary { conversations: 3, events: 3600, records: 10 });
        assert!(dumped(to).0 == text, "the second dump differs");
        assert_eq!(to.active().unwrap(), from.active().unwrap());
    }
}

#[test]
fn a_damaged_conversation_is_dumped_up_to_the_damage_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    fill(&journal);
    let hurt = journal.conversations(None, 1).unwrap()[0];
    journal.db.insert(keys::event(hurt, 700, 0), "torn").unwrap();
    journal.db.insert(keys::response(Ids::new().response()), "torn").unwrap();
    let (text, summary) = dumped(&journal);
    assert_eq!((summary.events, summary.damaged_records), (699 + 2400, 1));
    assert!(matches!(summary.damaged[..], [Error::Damaged { conversation, seq: 700, .. }] if conversation == hurt));
    load(&MemoryJournal::new(), &mut text.as_bytes()).unwrap();
}

#[test]
fn a_dump_is_not_loaded_over_conversations_that_exist() {
    let journal = MemoryJournal::new();
    fill(&journal);
    let (text, _) = dumped(&journal);
    let refused = load(&journal, &mut text.as_bytes()).unwrap_err();
    assert!(refused.to_string().contains("exists already"), "{refused}");
}

#[test]
fn what_is_no_dump_is_refused_with_the_line() {
    let header = r#"{"midstream_dump":1,"schema":1}"#;
    for (text, expected) in [
        (String::new(), "empty"),
        ("hello".into(), "no dump"),
        ("{}".into(), "no dump"),
        (r#"{"midstream_dump":2,"schema":1}"#.into(), "version 2"),
        (r#"{"midstream_dump":1,"schema":99}"#.into(), "schema 99"),
        (format!("{header}\n{{\n"), "line 2"),
        (format!("{header}\n{{\"conversation\":\"conv_1\"}}"), "line 2"),
        (format!("{header}\n{{\"conversation\":\"conv_{:032x}\"}}", 1), "either an event or a record"),
    ] {
        let refused = load(&MemoryJournal::new(), &mut text.as_bytes()).unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
    }
}

fn rename(lines: Lines<'_>) -> Lines<'_> {
    Box::new(lines.map(|line| {
        let mut line = line?;
        line["new"] = line["old"].take();
        Ok(line)
    }))
}

fn double(lines: Lines<'_>) -> Lines<'_> {
    Box::new(lines.map(|line| Ok(json!(line?["new"].as_u64().ok_or("not a number")? * 2))))
}

#[test]
fn migrations_run_in_order_and_only_those_that_are_needed() {
    let steps =
        [Migration { from: 2, name: "double", run: double }, Migration { from: 1, name: "rename", run: rename }];
    let run = |lines: Vec<Value>, found, known| {
        let lines: Lines<'_> = Box::new(lines.into_iter().map(Ok));
        migrate::chain(lines, found, known, &steps).map(|lines| lines.collect::<Result<Vec<_>, _>>().unwrap())
    };
    assert_eq!(run(vec![json!({"old": 4})], 1, 3).unwrap(), [json!(8)]);
    assert_eq!(run(vec![json!({"new": 4})], 2, 3).unwrap(), [json!(8)]);
    assert_eq!(run(vec![json!(8)], 3, 3).unwrap(), [json!(8)]);
    assert!(matches!(run(vec![], 0, 3), Err(Error::Invalid(_))));
    assert!(matches!(run(vec![], 4, 3), Err(Error::NewerSchema { found: 4, known: 3 })));
}
