//! Repair: what is damaged is named with what it costs, and afterwards the rest is whole.

use std::collections::BTreeSet;
use std::path::Path;

use super::super::{Epoch, Error, Journal, KeyedAnswer, Record, SledJournal, find_damage, keys, load, repair};
use super::{Ids, batch, copy_folder};
use crate::conversation::Event;
use crate::ids::ConversationId;

/// The conversations that "First light" left: calls, a steer, a cancel, a fork, keys.
fn store(root: &Path) -> SledJournal {
    let journal = SledJournal::open(root).unwrap();
    load(&journal, &mut include_str!("../../../tests/golden/dumps/v1.jsonl").as_bytes()).unwrap();
    journal
}

/// The conversation with a steer, and the seqs of its responses' creation.
fn steered(journal: &SledJournal) -> (ConversationId, Vec<u64>) {
    let all = journal.conversations(None, usize::MAX).unwrap();
    let with_steer = all.into_iter().find_map(|id| {
        let events = journal.read(id, 0, usize::MAX).unwrap();
        let is_steer = |event: &Event| matches!(event, Event::InterventionAccepted { .. });
        let created = events.iter().filter(|recorded| matches!(recorded.event, Event::ResponseCreated(_)));
        let created = created.map(|recorded| recorded.seq).collect();
        events.iter().any(|recorded| is_steer(&recorded.event)).then_some((id, created))
    });
    with_steer.unwrap()
}

/// Everything that is looked up leads to something that is there.
fn assert_whole(journal: &SledJournal) {
    assert!(find_damage(journal).unwrap().is_empty());
    let mut known = BTreeSet::new();
    for id in journal.conversations(None, usize::MAX).unwrap() {
        for recorded in journal.read(id, 0, usize::MAX).unwrap() {
            match recorded.event {
                Event::ResponseCreated(new) => known.insert(new.id.to_string()),
                Event::InterventionAccepted { intervention_id, .. } => known.insert(intervention_id.to_string()),
                _ => false,
            };
        }
    }
    let mut found = BTreeSet::new();
    let damaged = journal.records(&mut |_, record| {
        match record {
            Record::Response(id) => drop(found.insert(id.to_string())),
            Record::Intervention(id) => drop(found.insert(id.to_string())),
            Record::Key(record) => match record.answer {
                KeyedAnswer::Opened { .. } | KeyedAnswer::Answered { .. } => {}
                KeyedAnswer::Created { response, .. }
                | KeyedAnswer::Cancelled { response, .. }
                | KeyedAnswer::Claimed { response, .. } => {
                    assert!(known.contains(&response.to_string()), "a key leads nowhere");
                }
                KeyedAnswer::Intervened { intervention, .. } => assert!(known.contains(&intervention.to_string())),
            },
            _ => {}
        }
        Ok(())
    });
    assert_eq!(damaged.unwrap(), 0);
    assert_eq!(found, known, "the index and the journals say different things");
}

#[test]
fn a_whole_store_has_no_damage_and_a_repair_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let journal = store(folder.path());
    assert_whole(&journal);
    let before: Vec<_> = journal.db.iter().map(Result::unwrap).collect();
    assert!(repair(&journal).unwrap().is_empty());
    assert_eq!(journal.db.iter().map(Result::unwrap).collect::<Vec<_>>(), before);
}

#[test]
fn a_damaged_conversation_is_named_and_cut_in_front_of_the_damage() {
    let folder = tempfile::tempdir().unwrap();
    let journal = store(folder.path());
    let (hurt, created) = steered(&journal);
    let (whole, last) = (journal.read(hurt, 0, usize::MAX).unwrap(), journal.last_seq(hurt).unwrap());
    // The creation of the successor is lost, and with it the response and the commit of the steer.
    let seq = created[1];
    journal.db.insert(keys::event(hurt, seq, 0), "torn").unwrap();
    let found = find_damage(&journal).unwrap();
    let [damage] = &found.conversations[..] else { panic!("{found:?}") };
    assert_eq!((damage.conversation, damage.seq, damage.last_seq), (hurt, seq, Some(last)));
    assert_eq!(damage.lost_responses.len(), 1);
    assert!(damage.why.contains("checksum"), "{}", damage.why);
    assert!(matches!(journal.read(hurt, 0, usize::MAX), Err(Error::Damaged { .. })), "finding changes nothing");
    assert_eq!(repair(&journal).unwrap(), found);
    assert_whole(&journal);
    assert_eq!(journal.read(hurt, 0, usize::MAX).unwrap(), whole[..seq as usize - 1]);
    assert_eq!(journal.epoch(hurt).unwrap(), Epoch { epoch: 1, rewound_seq: seq - 1 });
    assert_eq!(journal.conversation_of_response(damage.lost_responses[0]).unwrap(), None);
    // Nothing of the old events stands in the way of new ones, also after a restart.
    journal.append(&[batch(hurt, seq..seq + 200)]).unwrap();
    while journal.fold(hurt, seq + 200).unwrap() {}
    drop(journal);
    let journal = SledJournal::open(folder.path()).unwrap();
    assert_eq!(journal.read(hurt, seq - 1, usize::MAX).unwrap(), batch(hurt, seq..seq + 200).events);
    assert_eq!(journal.epoch(hurt).unwrap().epoch, 1);
}

#[test]
fn damage_in_the_middle_of_a_response_leaves_it_outstanding() {
    let folder = tempfile::tempdir().unwrap();
    let journal = store(folder.path());
    let (hurt, created) = steered(&journal);
    let last = journal.last_seq(hurt).unwrap();
    journal.db.remove(keys::event(hurt, last, 0)).unwrap();
    assert!(created[1] < last);
    assert!(!journal.active().unwrap().contains(&hurt));
    repair(&journal).unwrap();
    assert_whole(&journal);
    assert!(journal.active().unwrap().contains(&hurt), "the next start must go on with it");
}

#[test]
fn a_conversation_without_a_head_comes_back_and_one_without_a_beginning_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let journal = store(folder.path());
    let all = journal.conversations(None, usize::MAX).unwrap();
    let lasts: Vec<_> = all.iter().map(|id| journal.last_seq(*id).unwrap()).collect();
    let (torn, missing, beheaded) = (all[0], all[1], all[2]);
    journal.db.insert(keys::head(torn), "torn").unwrap();
    journal.db.remove(keys::head(missing)).unwrap();
    journal.db.remove(keys::event(beheaded, 1, 0)).unwrap();
    let found = repair(&journal).unwrap();
    let seqs: Vec<_> = found.conversations.iter().map(|damage| (damage.conversation, damage.seq)).collect();
    assert_eq!(seqs, [(torn, lasts[0] + 1), (missing, lasts[1] + 1), (beheaded, 1)]);
    assert_whole(&journal);
    for (id, last) in all[..2].iter().zip(&lasts) {
        assert_eq!(journal.last_seq(*id).unwrap(), *last);
        assert_eq!(journal.epoch(*id).unwrap(), Epoch { epoch: 1, rewound_seq: *last });
    }
    assert!(journal.is_deleted(beheaded).unwrap());
}

#[test]
fn damaged_records_are_written_anew_from_the_journals() {
    let folder = tempfile::tempdir().unwrap();
    let journal = store(folder.path());
    let (hurt, _) = steered(&journal);
    let mut rows = Vec::new();
    let mut key_scope = None;
    journal
        .records(&mut |at, record| {
            match record {
                Record::Response(id) if at == hurt => rows.push(keys::response(id)),
                Record::Intervention(id) => rows.push(keys::intervention(id)),
                Record::Active(_) => rows.push(keys::active(at)),
                Record::Key(record) => key_scope = Some(record.scope),
                _ => {}
            }
            Ok(())
        })
        .unwrap();
    let active = journal.active().unwrap();
    let scope = key_scope.unwrap();
    for row in rows.iter().chain([&keys::idempotency(&scope)]) {
        journal.db.insert(row.clone(), "torn").unwrap();
    }
    let found = repair(&journal).unwrap();
    assert_eq!((found.records_known, found.records_lost), (rows.len(), 1));
    assert_whole(&journal);
    assert_eq!(journal.active().unwrap(), active);
    assert_eq!(journal.key(&scope).unwrap(), None);
}

#[test]
fn a_repair_that_is_cut_short_is_done_again() {
    let folder = tempfile::tempdir().unwrap();
    let journal = store(folder.path());
    let hurt = Ids::new().conversation();
    journal.append(&[batch(hurt, 1..=1_400)]).unwrap();
    journal.db.insert(keys::event(hurt, 100, 0), "torn").unwrap();
    // As the first part of the cut leaves it.
    for seq in 100..600 {
        journal.db.remove(keys::event(hurt, seq, 0)).unwrap();
    }
    journal.flush().unwrap();
    let copy = tempfile::tempdir().unwrap();
    copy_folder(folder.path(), copy.path());
    let journal = SledJournal::open(copy.path()).unwrap();
    assert!(matches!(journal.read(hurt, 0, 200), Err(Error::Damaged { seq: 100, .. })));
    let found = repair(&journal).unwrap();
    assert_eq!((found.conversations[0].seq, found.conversations[0].last_seq), (100, Some(1_400)));
    drop(journal);
    let journal = SledJournal::open(copy.path()).unwrap();
    assert_whole(&journal);
    assert_eq!(journal.last_seq(hurt).unwrap(), 99);
}

#[test]
fn a_cut_begins_an_epoch_behind_those_of_the_events() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    let conversation = Ids::new().conversation();
    journal.append(&[batch(conversation, 1..=9)]).unwrap();
    let mut rewound = batch(conversation, [10]);
    rewound.events[0].event = Event::ConversationRewound { seq: 9, epoch: 7 };
    journal.append(&[rewound, batch(conversation, 11..=20)]).unwrap();
    journal.db.insert(keys::epoch(conversation), "torn").unwrap();
    journal.db.insert(keys::event(conversation, 15, 0), "torn").unwrap();
    repair(&journal).unwrap();
    assert_eq!(journal.epoch(conversation).unwrap(), Epoch { epoch: 8, rewound_seq: 14 });
    assert_eq!(journal.read(conversation, 0, usize::MAX).unwrap().len(), 14);
}
