//! What both journals promise.

use super::super::{
    Batch, Epoch, Error, Journal, KeyRecord, KeyRetention, KeyScope, MemoryJournal, Record, SledJournal, dump,
    expired_keys, keys, load,
};
use super::{Ids, batch, delta, key_record, with_records};
use crate::conversation::{Event, Extras, Item, NewResponse, ResponseConfig};
use crate::ids::{ConversationId, ItemId, ResponseId};
use crate::prompt::Role;

fn on_both(check: impl Fn(&dyn Journal)) {
    check(&MemoryJournal::new());
    let folder = tempfile::tempdir().unwrap();
    check(&SledJournal::open(folder.path()).unwrap());
}

#[test]
fn what_was_appended_is_read_back_from_any_cursor() {
    on_both(|journal| {
        let conversation = Ids::new().conversation();
        journal.append(&[batch(conversation, 1..=3), batch(conversation, 4..=9)]).unwrap();
        let all = batch(conversation, 1..=9).events;
        assert_eq!(journal.read(conversation, 0, 100).unwrap(), all);
        assert_eq!(journal.read(conversation, 4, 3).unwrap(), all[4..7]);
        assert_eq!(journal.read(conversation, 9, 100).unwrap(), []);
        assert_eq!(journal.read(conversation, u64::MAX, 100).unwrap(), []);
        assert_eq!(journal.last_seq(conversation).unwrap(), 9);
    });
}

#[test]
fn an_unknown_conversation_is_empty() {
    on_both(|journal| {
        let conversation = Ids::new().conversation();
        assert_eq!(journal.read(conversation, 0, 10).unwrap(), []);
        assert_eq!(journal.last_seq(conversation).unwrap(), 0);
    });
}

#[test]
fn neighbouring_conversations_do_not_mix() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let several: Vec<_> = (0..5).map(|_| ids.conversation()).collect();
        for conversation in &several {
            journal.append(&[batch(*conversation, 1..=20)]).unwrap();
        }
        for conversation in &several {
            assert_eq!(journal.read(*conversation, 0, 100).unwrap().len(), 20);
        }
    });
}

#[test]
fn a_batch_that_does_not_follow_is_refused_and_changes_nothing() {
    on_both(|journal| {
        let conversation = Ids::new().conversation();
        journal.append(&[batch(conversation, 1..=2)]).unwrap();
        for seqs in [vec![2], vec![4], vec![3, 5], vec![1]] {
            let found = *seqs.iter().find(|seq| ![3].contains(*seq)).unwrap();
            let expected = if seqs[0] == 3 { 4 } else { 3 };
            let refused = journal.append(&[batch(conversation, seqs)]).unwrap_err();
            assert_eq!(refused, Error::Conflict { conversation, expected, found });
        }
        assert_eq!(journal.last_seq(conversation).unwrap(), 2);
        journal.append(&[batch(conversation, [3])]).unwrap();
    });
}

#[test]
fn a_group_with_a_conflict_is_refused_whole() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let (good, bad) = (ids.conversation(), ids.conversation());
        journal.append(&[batch(good, 1..=2), batch(bad, [2])]).unwrap_err();
        assert_eq!(journal.last_seq(good).unwrap(), 0);
    });
}

#[test]
fn responses_interventions_and_keys_lead_to_their_conversation() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let (conversation, response, intervention) = (ids.conversation(), ids.response(), ids.intervention());
        let record = key_record(conversation, response, "a key of the client's");
        let records = vec![Record::Response(response), Record::Intervention(intervention), Record::Key(record.clone())];
        journal.append(&[with_records(batch(conversation, [1]), records)]).unwrap();
        assert_eq!(journal.conversation_of_response(response).unwrap(), Some(conversation));
        assert_eq!(journal.conversation_of_intervention(intervention).unwrap(), Some(conversation));
        assert_eq!(journal.key(&record.scope).unwrap(), Some(record.clone()));
        assert_eq!(journal.conversation_of_response(ids.response()).unwrap(), None);
        for other in [
            KeyScope { principal: "somebody else".into(), ..record.scope.clone() },
            KeyScope { conversation: None, ..record.scope.clone() },
            KeyScope { key: "another key".into(), ..record.scope.clone() },
        ] {
            assert_eq!(journal.key(&other).unwrap(), None, "{other:?}");
        }
    });
}

#[test]
fn old_keys_of_settled_conversations_are_forgotten() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let (settled, running, response) = (ids.conversation(), ids.conversation(), ids.response());
        let key = |conversation, name, at_ms| KeyRecord { at_ms, ..key_record(conversation, response, name) };
        let (old, new, busy) = (key(settled, "old", 9), key(settled, "new", 10), key(running, "busy", 9));
        for (conversation, records) in [
            (settled, vec![Record::Key(old.clone()), Record::Key(new.clone())]),
            (running, vec![Record::Key(busy.clone()), Record::Active(true)]),
        ] {
            journal.append(&[with_records(batch(conversation, [1]), records)]).unwrap();
        }
        let expired = expired_keys(journal, KeyRetention { before_ms: 10, records_max: None }).unwrap();
        journal.append(&expired).unwrap();
        assert_eq!(journal.key(&old.scope).unwrap(), None);
        assert_eq!(journal.key(&new.scope).unwrap(), Some(new));
        assert_eq!(journal.key(&busy.scope).unwrap(), Some(busy));
    });
}

#[test]
fn of_too_many_keys_the_oldest_settled_ones_are_forgotten() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let (settled, running, response) = (ids.conversation(), ids.conversation(), ids.response());
        let key = |conversation, name: &str, at_ms| {
            Record::Key(KeyRecord { at_ms, ..key_record(conversation, response, name) })
        };
        let all = vec![key(settled, "c", 30), key(settled, "a", 10), key(settled, "b", 20)];
        let busy = vec![key(running, "busy", 1), Record::Active(true)];
        for (conversation, records) in [(settled, all), (running, busy)] {
            journal.append(&[with_records(batch(conversation, [1]), records)]).unwrap();
        }
        let forgotten = |before_ms, records_max| {
            let expired = expired_keys(journal, KeyRetention { before_ms, records_max: Some(records_max) }).unwrap();
            let records = expired.into_iter().flat_map(|batch| batch.records);
            let scope = |record| match record {
                Record::ForgetKey(scope) => scope.key,
                other => panic!("{other:?}"),
            };
            records.map(scope).collect::<Vec<_>>()
        };
        assert!(forgotten(0, 4).is_empty());
        assert_eq!(forgotten(0, 3), ["a"]);
        assert_eq!(forgotten(0, 2), ["a", "b"]);
        assert_eq!(forgotten(0, 0), ["a", "b", "c"], "never those of one with outstanding work");
        assert_eq!(forgotten(21, 4), ["a", "b"], "nor longer than their time");
    });
}

#[test]
fn conversations_with_outstanding_work_are_found_without_reading_journals() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let (running, ended) = (ids.conversation(), ids.conversation());
        for conversation in [running, ended] {
            let active = vec![Record::Active(true)];
            journal.append(&[with_records(batch(conversation, [1]), active)]).unwrap();
        }
        let ended_batch = with_records(batch(ended, [2]), vec![Record::Active(false)]);
        journal.append(&[ended_batch]).unwrap();
        assert_eq!(journal.active().unwrap(), [running]);
    });
}

#[test]
fn conversations_are_listed_page_by_page() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let mut all: Vec<_> = (0..7).map(|_| ids.conversation()).collect();
        for conversation in &all {
            journal.append(&[batch(*conversation, [1])]).unwrap();
        }
        all.sort_unstable();
        let mut listed = Vec::new();
        while let Some(page) = Some(journal.conversations(listed.last().copied(), 3).unwrap())
            && !page.is_empty()
        {
            listed.extend(page);
        }
        assert_eq!(listed, all);
    });
}

#[test]
fn every_record_is_shown_with_its_conversation() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let (conversation, response) = (ids.conversation(), ids.response());
        let records = vec![
            Record::Response(response),
            Record::Intervention(ids.intervention()),
            Record::Active(true),
            Record::Key(key_record(conversation, response, "k")),
        ];
        journal.append(&[with_records(batch(conversation, [1]), records.clone())]).unwrap();
        let mut shown = Vec::new();
        journal
            .records(&mut |at, record| {
                assert_eq!(at, conversation);
                shown.push(record);
                Ok(())
            })
            .unwrap();
        assert_eq!(shown, records);
    });
}

#[test]
fn an_event_of_any_size_survives() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    let conversation = Ids::new().conversation();
    let sizes = [0, 1, 5_000, 6_000, 6_144, 12_288, 40_000, 1_000_000];
    let mut events = Vec::new();
    for (seq, size) in (1..).zip(sizes) {
        events.push(delta(seq, &"é".repeat(size / 2)));
    }
    let mut large = batch(conversation, []);
    large.events.clone_from(&events);
    journal.append(&[large]).unwrap();
    assert_eq!(journal.read(conversation, 0, 100).unwrap(), events);
    drop(journal);
    let journal = SledJournal::open(folder.path()).unwrap();
    assert_eq!(journal.read(conversation, 0, 100).unwrap(), events);
    assert_eq!(journal.read(conversation, 6, 1).unwrap(), events[6..7]);
    let blobs = std::fs::read_dir(folder.path().join("journal/blobs")).unwrap().count();
    assert_eq!(blobs, 0, "a leaf grew so large that sled wrote it to a file it does not sync");
}

#[test]
fn an_epoch_is_kept_as_the_event_or_the_record_that_begins_it_says() {
    on_both(|journal| {
        let conversation = Ids::new().conversation();
        journal.append(&[batch(conversation, 1..=3)]).unwrap();
        assert_eq!(journal.epoch(conversation).unwrap(), Epoch::default());
        let mut rewound = batch(conversation, [4]);
        rewound.events[0].event = Event::ConversationRewound { seq: 3, epoch: 1 };
        journal.append(&[rewound]).unwrap();
        assert_eq!(journal.epoch(conversation).unwrap(), Epoch { epoch: 1, rewound_seq: 3 });
        let cut = Epoch { epoch: 2, rewound_seq: 4 };
        journal.append(&[with_records(batch(conversation, []), vec![Record::Epoch(cut)])]).unwrap();
        assert_eq!(journal.epoch(conversation).unwrap(), cut);
        assert_eq!(journal.last_seq(conversation).unwrap(), 4);
    });
}

fn begun(conversation: ConversationId, ids: &mut Ids, chat_of: Option<&str>) -> (ResponseId, ItemId, Batch) {
    let (id, item_id) = (ids.response(), ids.item());
    let extras = Extras { chat_of: chat_of.map(str::to_owned), ..Extras::default() };
    let config = ResponseConfig { extras, ..ResponseConfig::new("m", "f") };
    let input = vec![Item::message(item_id, Role::User, "hi")];
    let new = NewResponse { id, previous: None, input, config, enqueued: false };
    let mut batch = batch(conversation, [1]);
    batch.events[0].event = Event::ResponseCreated(Box::new(new));
    (id, item_id, batch)
}

#[test]
fn items_and_kept_chats_lead_to_their_conversation_also_in_what_was_loaded_and_not_once_it_is_gone() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for journal in [&SledJournal::open(folder.path()).unwrap() as &dyn Journal, &MemoryJournal::new()] {
        let mut ids = Ids::new();
        let mut hers = Vec::new();
        for owner in [Some("ann"), Some("ann"), Some("bob"), Some("ann"), Some("ann"), None] {
            let conversation = ids.conversation();
            let (id, item, batch) = begun(conversation, &mut ids, owner);
            journal.append(&[batch]).unwrap();
            assert_eq!(journal.conversation_of_item(item).unwrap(), Some(conversation));
            if owner == Some("ann") {
                hers.push((id, conversation));
            }
        }
        hers.sort();
        assert_eq!(journal.conversation_of_item(ids.item()).unwrap(), None);
        let list = |journal: &dyn Journal, after, newest, limit| journal.chats("ann", after, newest, limit).unwrap();
        let reversed: Vec<_> = hers.iter().rev().copied().collect();
        assert_eq!(list(journal, None, false, 9), hers);
        assert_eq!(list(journal, None, true, 9), reversed);
        assert_eq!(list(journal, Some(hers[1].0), false, 1), hers[2..3]);
        assert_eq!(list(journal, Some(hers[1].0), true, 9), hers[..1]);
        assert_eq!(journal.chats("nobody", None, false, 9).unwrap(), []);

        let mut text = Vec::new();
        dump(journal, &mut text).unwrap();
        let loaded = MemoryJournal::new();
        load(&loaded, &mut text.as_slice()).unwrap();
        assert_eq!(list(&loaded, None, false, 9), hers);

        let gone = hers.remove(1).1;
        journal.append(&[Batch::deletion(gone)]).unwrap();
        assert_eq!(list(journal, None, false, 9), hers);
        while journal.purge().unwrap() {}
        assert_eq!(list(journal, None, true, 9).len(), hers.len());
    }
    let journal = SledJournal::open(folder.path()).unwrap();
    assert_eq!(journal.chats("ann", None, false, 9).unwrap().len(), 3, "behind another start");
    let rows = |kind: u8| journal.db.scan_prefix([kind]).count();
    assert_eq!((rows(keys::CHAT), rows(keys::ITEM)), (4, 5), "of the deleted one nothing is left");
    let mut text = Vec::new();
    dump(&journal, &mut text).unwrap();
    let copy = SledJournal::open(copy.path()).unwrap();
    load(&copy, &mut text.as_slice()).unwrap();
    assert_eq!(copy.chats("ann", None, false, 9).unwrap(), journal.chats("ann", None, false, 9).unwrap());
}
