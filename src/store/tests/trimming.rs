//! Trimming: old events are unreadable at once, what is kept of them folds as they did, and nothing in between is seen.
use std::path::Path;
use std::sync::Arc;

use super::super::{
    Batch, Error, EventRetention, ExpiredEvents, Journal, Kept, MemoryJournal, Record, SledJournal, Writer, compact,
    dump, expired_events, find_damage, keys, load, repair,
};
use super::{Ids, batch, copy_folder, key_record, with_records};
use crate::conversation::{Ending, Event, Item, NewResponse, Policies, Recorded, ResponseConfig, State, reduce};
use crate::ids::{ConversationId, ItemId, ResponseId};
use crate::prompt::Role;

/// Events of one turn.
const TURN: u64 = 60;

fn config() -> ResponseConfig {
    ResponseConfig { background: true, ..ResponseConfig::new("m", "f") }
}

/// A conversation of whole turns; the first event of turn `n`, from 0, has the seq `1 + n * TURN`, but for the first,
/// which is the conversation's.
pub(crate) fn talk(conversation: ConversationId, turns: u64) -> Vec<Recorded> {
    let (mut state, mut events) = (State::default(), Vec::new());
    let mut push = |event: Event| {
        let recorded = state.number(event, 1_000 * (state.last_seq + 1));
        state.apply(&recorded);
        events.push(recorded);
    };
    push(Event::ConversationCreated {
        id: conversation,
        principal: "somebody".into(),
        tenant: None,
        metadata: serde_json::Map::new(),
        forked_from: None,
        defaults: Policies::default(),
        template_ms: None,
    });
    for turn in 0..turns {
        let response_id = response(turn);
        let item_id = ItemId::from_bytes([turn as u8 + 1; 16]);
        let said = Item::message(ItemId::from_bytes([100 + turn as u8; 16]), Role::User, format!("question {turn}"));
        let (input, config) = (vec![said], config());
        push(Event::ResponseCreated(Box::new(NewResponse {
            id: response_id,
            previous: None,
            input,
            config,
            enqueued: false,
        })));
        push(Event::ResponseInProgress { response_id, prompt_tokens: 5, cached_tokens: 0, prompt: None });
        let mut item = Item::message(item_id, Role::Assistant, "");
        item.status = crate::conversation::ItemStatus::InProgress;
        push(Event::OutputItemAdded { response_id, item, first_token: 0 });
        push(Event::ContentPartAdded { response_id, item_id });
        for index in 0..TURN - 8 - u64::from(turn == 0) {
            let text = format!("word {index} ");
            push(Event::OutputDelta { response_id, item_id, text, tokens: vec![index as u32], logprobs: Vec::new() });
        }
        push(Event::OutputDone { response_id, item_id });
        push(Event::ContentPartDone { response_id, item_id });
        let status = crate::conversation::ItemStatus::Completed;
        push(Event::OutputItemDone { response_id, item_id, status, native_id: None, made: None });
        push(Event::ResponseEnded {
            response_id,
            ending: Ending::Completed,
            tail_tokens: vec![2],
            stop_string: None,
            usage: None,
        });
    }
    events
}

fn response(turn: u64) -> ResponseId {
    ResponseId::from_bytes([turn as u8 + 1; 16])
}

fn begin_of(turn: u64) -> u64 {
    1 + turn * TURN
}

/// A conversation of ten turns with what can be looked up in it.
fn fill(journal: &dyn Journal) -> (ConversationId, Vec<Recorded>) {
    let conversation = Ids::new().conversation();
    let events = talk(conversation, 10);
    assert!((1..10).all(|turn| {
        let first = &events[begin_of(turn) as usize - 1];
        matches!(&first.event, Event::ResponseCreated(_)) && first.seq == begin_of(turn)
    }));
    let records = vec![Record::Response(response(0)), Record::Key(key_record(conversation, response(0), "k"))];
    let whole = Batch { events: events.clone(), ..batch(conversation, []) };
    journal.append(&[with_records(whole, records)]).unwrap();
    (conversation, events)
}

fn trim(journal: &dyn Journal, conversation: ConversationId, oldest_seq: u64) {
    while journal.trim(conversation, oldest_seq).unwrap() {}
}

fn purge(journal: &dyn Journal) {
    while journal.purge().unwrap() {}
}

fn fold(events: &[Recorded]) -> State {
    let mut state = State::default();
    for recorded in events {
        state.apply(recorded);
    }
    state
}

/// All of it: what is kept, page by page, then the events.
fn whole(journal: &dyn Journal, conversation: ConversationId) -> State {
    let mut state = State::default();
    loop {
        let page = journal.kept(conversation, state.last_seq, 3).unwrap();
        if page.is_empty() {
            break;
        }
        for recorded in &page {
            state.apply(recorded);
        }
    }
    for recorded in journal.read(conversation, state.last_seq, usize::MAX).unwrap() {
        state.apply(&recorded);
    }
    state
}

/// It begins at `oldest_seq`, and is else what it was.
fn assert_trimmed(journal: &dyn Journal, conversation: ConversationId, events: &[Recorded], oldest_seq: u64) {
    assert_eq!(journal.oldest_seq(conversation).unwrap(), oldest_seq);
    let oldest = usize::try_from(oldest_seq).unwrap() - 1;
    assert_eq!(journal.read(conversation, oldest_seq - 1, usize::MAX).unwrap(), events[oldest..]);
    for after in (0..oldest_seq - 1).step_by(7) {
        let refused = journal.read(conversation, after, 5).unwrap_err();
        assert_eq!(refused, Error::Expired { conversation, oldest_seq });
    }
    assert_eq!(whole(journal, conversation), fold(events), "the state is another one");
    let last = events.last().unwrap();
    assert_eq!(
        (journal.last_seq(conversation).unwrap(), journal.last_at_ms(conversation).unwrap()),
        (last.seq, last.at_ms)
    );
    assert_eq!(journal.conversation_of_response(response(0)).unwrap(), Some(conversation));
    assert!(journal.key(&key_record(conversation, response(0), "k").scope).unwrap().is_some());
}

fn on_both(check: impl Fn(&dyn Journal)) {
    let folder = tempfile::tempdir().unwrap();
    check(&SledJournal::open(folder.path()).unwrap());
    check(&MemoryJournal::new());
}

fn rows(journal: &SledJournal, kind: u8) -> usize {
    journal.db.scan_prefix([kind]).count()
}

#[test]
fn trimmed_events_are_unreadable_at_once_and_nothing_else_changes() {
    on_both(|journal| {
        let (conversation, events) = fill(journal);
        let bytes = journal.event_bytes(conversation, 1).unwrap();
        assert_eq!(journal.kept(conversation, 0, 9).unwrap(), []);
        trim(journal, conversation, begin_of(4));
        assert_trimmed(journal, conversation, &events, begin_of(4));
        let kept = journal.kept(conversation, 0, usize::MAX).unwrap();
        assert!(kept.len() < 30, "{} events are kept of {}", kept.len(), begin_of(4) - 1);
        purge(journal);
        assert_trimmed(journal, conversation, &events, begin_of(4));
        // Once more, and never back.
        for oldest in [begin_of(9), begin_of(2), begin_of(9)] {
            trim(journal, conversation, oldest);
            assert_trimmed(journal, conversation, &events, begin_of(9));
        }
        assert!(journal.event_bytes(conversation, 1).unwrap() < bytes);
        assert!(
            journal.event_bytes(conversation, begin_of(9)).unwrap() < journal.event_bytes(conversation, 1).unwrap()
        );
        let refused = journal.trim(conversation, begin_of(10)).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "its last turn stays: {refused}");
        let next = batch(conversation, [begin_of(10)]);
        journal.append(&[next]).unwrap();
        assert_eq!(journal.last_seq(conversation).unwrap(), begin_of(10));
    });
}

#[test]
fn both_journals_keep_what_folds_to_the_same() {
    on_both(|journal| {
        let (conversation, events) = fill(journal);
        trim(journal, conversation, begin_of(2));
        let kept = journal.kept(conversation, 0, usize::MAX).unwrap();
        assert_eq!(kept, reduce(&events[..begin_of(2) as usize - 1]));
    });
}

#[test]
fn the_bytes_of_trimmed_events_go_and_a_restart_goes_on_with_that() {
    let (folder, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let journal = SledJournal::open(folder.path()).unwrap();
    let (conversation, events) = fill(&journal);
    trim(&journal, conversation, begin_of(9));
    assert_eq!(rows(&journal, keys::JOURNAL), events.len());
    copy_folder(folder.path(), crashed.path());
    drop(journal);
    let journal = SledJournal::open(crashed.path()).unwrap();
    assert_trimmed(&journal, conversation, &events, begin_of(9));
    purge(&journal);
    assert_eq!(rows(&journal, keys::JOURNAL), TURN as usize);
    assert_trimmed(&journal, conversation, &events, begin_of(9));
    while journal.fold(conversation, 10_000).unwrap() {}
    assert_trimmed(&journal, conversation, &events, begin_of(9));
}

#[test]
fn a_trim_cut_off_at_any_part_is_not_seen_and_can_be_done_again_with_another_border() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    let (conversation, events) = fill(&journal);
    while journal.fold(conversation, begin_of(3)).unwrap() {}
    let mut parts = 0;
    while journal.trim(conversation, begin_of(8)).unwrap() {
        parts += 1;
        let crashed = tempfile::tempdir().unwrap();
        copy_folder(folder.path(), crashed.path());
        for oldest in [begin_of(2), begin_of(9)] {
            let again = tempfile::tempdir().unwrap();
            copy_folder(crashed.path(), again.path());
            let journal = SledJournal::open(again.path()).unwrap();
            assert_trimmed(&journal, conversation, &events, 1);
            trim(&journal, conversation, oldest);
            purge(&journal);
            assert_trimmed(&journal, conversation, &events, oldest);
            trim(&journal, conversation, begin_of(9));
            assert_trimmed(&journal, conversation, &events, begin_of(9));
        }
    }
    assert!(parts >= 2, "it was done in {parts} parts");
    assert_trimmed(&journal, conversation, &events, begin_of(8));
}

#[test]
fn a_dump_of_a_trimmed_conversation_loads_into_the_same() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = SledJournal::open(from.path()).unwrap();
    let (conversation, events) = fill(&from);
    trim(&from, conversation, begin_of(4));
    // Prepared further than it came: that is not in a dump.
    from.trim(conversation, begin_of(7)).unwrap();
    let text = |journal: &dyn Journal| {
        let mut text = Vec::new();
        dump(journal, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let dumped = text(&from);
    assert!(dumped.contains(r#""kept":{"seq":1,"#), "{dumped}");
    for to in [&SledJournal::open(to.path()).unwrap() as &dyn Journal, &MemoryJournal::new()] {
        load(to, &mut dumped.as_bytes()).unwrap();
        assert_trimmed(to, conversation, &events, begin_of(4));
        assert!(text(to) == dumped, "the second dump differs");
        trim(to, conversation, begin_of(6));
        assert_trimmed(to, conversation, &events, begin_of(6));
        let again = load(to, &mut dumped.as_bytes()).unwrap_err();
        assert!(again.to_string().contains("exists already"), "{again}");
    }
}

#[test]
fn kept_events_behind_events_or_out_of_order_are_refused() {
    let lines = |seqs: &[(&str, u64)]| {
        let conversation = Ids::new().conversation();
        let events = talk(conversation, 2);
        let line = |(what, seq): &(&str, u64)| {
            let event = serde_json::to_string(&events[*seq as usize - 1]).unwrap();
            format!("{{\"conversation\":\"{conversation}\",{what:?}:{event}}}\n")
        };
        let header = "{\"midstream_dump\":1,\"schema\":2}\n".to_owned();
        header + &seqs.iter().map(line).collect::<String>()
    };
    let loads = |seqs: &[(&str, u64)]| load(&MemoryJournal::new(), &mut lines(seqs).as_bytes());
    assert!(loads(&[("kept", 1), ("kept", 4), ("event", 5)]).is_ok());
    assert!(loads(&[("kept", 1), ("kept", 4), ("event", 6)]).is_err(), "a gap behind what is kept");
    assert!(loads(&[("kept", 4), ("kept", 1)]).is_err());
    assert!(loads(&[("event", 1), ("kept", 4)]).is_err());
}

#[test]
fn compacting_keeps_a_trimmed_conversation_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    let (conversation, events) = fill(&journal);
    trim(&journal, conversation, begin_of(8));
    drop(journal);
    compact(folder.path(), u64::MAX).unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    assert_trimmed(&journal, conversation, &events, begin_of(8));
    assert!(rows(&journal, keys::JOURNAL) < 2 * TURN as usize);
}

#[test]
fn a_deleted_conversation_leaves_nothing_of_what_was_kept() {
    on_both(|journal| {
        let (conversation, _) = fill(journal);
        trim(journal, conversation, begin_of(8));
        journal.append(&[Batch::deletion(conversation)]).unwrap();
        assert_eq!(journal.kept(conversation, 0, 9).unwrap(), []);
        assert_eq!((journal.oldest_seq(conversation).unwrap(), journal.last_seq(conversation).unwrap()), (1, 0));
        assert!(!journal.trim(conversation, begin_of(9)).unwrap());
        purge(journal);
    });
    let folder = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(folder.path()).unwrap();
    let (conversation, _) = fill(&journal);
    trim(&journal, conversation, begin_of(8));
    journal.append(&[Batch::deletion(conversation)]).unwrap();
    purge(&journal);
    assert_eq!([keys::JOURNAL, keys::KEPT, keys::OLDEST].map(|kind| rows(&journal, kind)), [0, 0, 0]);
}

fn trimmed(folder: &Path) -> (SledJournal, ConversationId, Vec<Recorded>) {
    let journal = SledJournal::open(folder).unwrap();
    let (conversation, events) = fill(&journal);
    trim(&journal, conversation, begin_of(4));
    purge(&journal);
    (journal, conversation, events)
}

#[test]
fn a_kept_event_that_is_missing_or_torn_is_damage_and_the_repair_cuts_in_front_of_it() {
    for torn in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (journal, conversation, _) = trimmed(folder.path());
        let kept = journal.kept(conversation, 0, usize::MAX).unwrap();
        let (before, hurt) = (&kept[..9], keys::kept(conversation, kept[9].seq, 0));
        let torn = torn.then_some(sled::IVec::from("torn"));
        match torn {
            Some(torn) => drop(journal.db.insert(&hurt, torn).unwrap()),
            None => drop(journal.db.remove(&hurt).unwrap()),
        }
        let refused = journal.kept(conversation, 0, usize::MAX).unwrap_err();
        let cut = before[8].seq;
        assert!(matches!(refused, Error::Damaged { seq, .. } if seq == cut + 1), "{refused}");
        assert_eq!(find_damage(&journal).unwrap().conversations[0].seq, cut + 1);
        repair(&journal).unwrap();
        assert!(find_damage(&journal).unwrap().is_empty());
        assert_eq!(
            (journal.last_seq(conversation).unwrap(), journal.oldest_seq(conversation).unwrap()),
            (cut, cut + 1)
        );
        assert_eq!(whole(&journal, conversation), fold(before));
        assert_eq!(journal.epoch(conversation).unwrap().rewound_seq, cut);
        let mut text = Vec::new();
        dump(&journal, &mut text).unwrap();
        let loaded = MemoryJournal::new();
        load(&loaded, &mut text.as_slice()).unwrap();
        assert_eq!(whole(&loaded, conversation), fold(before));
        for journal in [&journal as &dyn Journal, &loaded] {
            journal.append(&[batch(conversation, [cut + 1])]).unwrap();
        }
    }
}

#[test]
fn damage_behind_the_oldest_event_is_cut_as_ever_and_what_was_prepared_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, conversation, events) = trimmed(folder.path());
    journal.trim(conversation, begin_of(9)).unwrap();
    let hurt = begin_of(6) + 5;
    journal.db.insert(keys::event(conversation, hurt, 0), "torn").unwrap();
    repair(&journal).unwrap();
    assert_eq!(
        (journal.last_seq(conversation).unwrap(), journal.oldest_seq(conversation).unwrap()),
        (hurt - 1, begin_of(4))
    );
    assert_eq!(whole(&journal, conversation), fold(&events[..hurt as usize - 1]));
    let again: Vec<Recorded> = events[hurt as usize - 1..].to_vec();
    journal.append(&[Batch { events: again, ..batch(conversation, []) }]).unwrap();
    trim(&journal, conversation, begin_of(8));
    assert_trimmed(&journal, conversation, &events, begin_of(8));
}

#[test]
fn an_unreadable_record_of_the_oldest_event_is_damage_that_a_repair_mends() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, conversation, events) = trimmed(folder.path());
    journal.db.insert(keys::oldest(conversation), "torn").unwrap();
    assert!(matches!(journal.read(conversation, 0, 1), Err(Error::Damaged { .. })));
    repair(&journal).unwrap();
    assert_trimmed(&journal, conversation, &events, begin_of(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_events_as_they_were_or_that_they_are_gone_while_the_writer_trims() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(SledJournal::open(folder.path()).unwrap());
    let (conversation, events) = fill(&*journal);
    let writer = Writer::start(journal.clone(), 16).unwrap();
    let reader = {
        let (journal, events) = (journal.clone(), events.clone());
        std::thread::spawn(move || {
            while journal.oldest_seq(conversation).unwrap() < begin_of(9) {
                let oldest = journal.oldest_seq(conversation).unwrap();
                match journal.read(conversation, oldest - 1, usize::MAX) {
                    Ok(found) => assert_eq!(found, events[oldest as usize - 1..]),
                    Err(error) => assert!(matches!(error, Error::Expired { .. }), "{error}"),
                }
            }
        })
    };
    for turn in 1..=9 {
        writer.trim(conversation, begin_of(turn)).await.unwrap();
    }
    reader.join().unwrap();
    writer.stop().await;
    assert_trimmed(&*journal, conversation, &events, begin_of(9));
}

#[test]
fn where_a_conversation_begins_is_told_from_what_is_kept_and_never_inside_a_turn() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, conversation, events) = trimmed(folder.path());
    while journal.fold(conversation, begin_of(9)).unwrap() {}
    // Prepared to somewhere in a later turn.
    journal.trim(conversation, begin_of(9)).unwrap();
    let border = begin_of(8);
    assert!(((border + 1)..begin_of(9) - 1).contains(&journal.kept_to(conversation).unwrap()));
    journal.db.insert(keys::oldest(conversation), "torn").unwrap();
    repair(&journal).unwrap();
    assert_trimmed(&journal, conversation, &events, border);
}

#[test]
fn a_dump_names_a_conversation_once_whose_beginning_is_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, conversation, _) = trimmed(folder.path());
    journal.db.insert(keys::oldest(conversation), "torn").unwrap();
    let summary = dump(&journal, &mut Vec::new()).unwrap();
    assert_eq!((summary.damaged.len(), summary.conversations), (1, 0), "{:?}", summary.damaged);
}

#[test]
fn what_a_dump_kept_of_many_conversations_is_loaded_as_one() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let of = |conversation| Kept { conversation, events: reduce(&talk(conversation, 1)) };
        let all: Vec<Kept> = (0..5).map(|_| of(ids.conversation())).collect();
        let mut broken = all.clone();
        broken[4].events.reverse();
        assert!(matches!(journal.import_kept(&broken), Err(Error::Invalid(_))));
        assert_eq!(journal.conversations(None, 9).unwrap(), []);
        journal.import_kept(&all).unwrap();
        for Kept { conversation, events } in all {
            assert_eq!(journal.kept(conversation, 0, usize::MAX).unwrap(), events);
        }
    });
}

#[test]
fn while_what_is_kept_is_read_the_purge_of_a_deletion_waits() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(SledJournal::open(folder.path()).unwrap());
    let mut ids = Ids::new();
    for _ in 0..20 {
        let conversation = ids.conversation();
        journal.append(&[Batch { events: talk(conversation, 10), ..batch(conversation, []) }]).unwrap();
        trim(&*journal, conversation, begin_of(9));
        let (begun, has_begun) = std::sync::mpsc::channel();
        let reader = {
            let journal = journal.clone();
            std::thread::spawn(move || {
                loop {
                    // All of it, or nothing.
                    let kept = journal.kept(conversation, 0, usize::MAX).unwrap();
                    let _ = begun.send(());
                    if kept.is_empty() {
                        break;
                    }
                }
            })
        };
        has_begun.recv().unwrap();
        journal.append(&[Batch::deletion(conversation)]).unwrap();
        purge(&*journal);
        reader.join().unwrap();
    }
}

fn expired(journal: &dyn Journal, before_ms: u64, bytes_max: Option<u64>) -> Vec<u64> {
    let (expired, next) = expired_events(journal, EventRetention { before_ms, bytes_max }, None, u64::MAX).unwrap();
    assert_eq!(next, None);
    expired.into_iter().map(|expired| expired.oldest_seq).collect()
}

#[test]
fn events_are_let_go_by_age_turn_by_turn_and_never_the_last_turn() {
    on_both(|journal| {
        let (conversation, _) = fill(journal);
        let at = |turn| 1_000 * begin_of(turn);
        for (before_ms, oldest) in
            [(0, None), (1, None), (at(1), Some(1)), (at(4) - 1_000, Some(3)), (u64::MAX, Some(9))]
        {
            assert_eq!(expired(journal, before_ms, None), oldest.map(begin_of).as_slice(), "{before_ms}");
        }
        trim(journal, conversation, begin_of(9));
        assert!(expired(journal, u64::MAX, None).is_empty());
    });
}

#[test]
fn events_are_let_go_by_size_until_the_others_fit() {
    on_both(|journal| {
        let (conversation, _) = fill(journal);
        let bytes = |turn| journal.event_bytes(conversation, begin_of(turn)).unwrap();
        assert!(expired(journal, 0, Some(bytes(0))).is_empty());
        assert_eq!(expired(journal, 0, Some(bytes(0) - 1)), [begin_of(1)]);
        assert_eq!(expired(journal, 0, Some(bytes(5))), [begin_of(5)]);
        assert_eq!(expired(journal, 0, Some(1)), [begin_of(9)]);
        assert_eq!(expired(journal, 1_000 * begin_of(8), Some(bytes(5))), [begin_of(8)], "both");
        trim(journal, conversation, begin_of(5));
        assert!(expired(journal, 0, Some(bytes(5))).is_empty());
        assert_eq!(expired(journal, 0, Some(bytes(7))), [begin_of(7)], "what is kept folds in front of it");
    });
}

#[test]
fn a_pass_does_not_count_conversations_of_which_nothing_can_go() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let mut all: Vec<_> = (0..5).map(|_| ids.conversation()).collect();
        all.sort_unstable();
        for (place, conversation) in all.iter().enumerate() {
            let turns = if place == 1 { 1 } else { 3 };
            journal.append(&[Batch { events: talk(*conversation, turns), ..batch(*conversation, []) }]).unwrap();
        }
        for conversation in [all[0], all[2], all[3]] {
            trim(journal, conversation, begin_of(2));
        }
        let retention = EventRetention { before_ms: u64::MAX, bytes_max: Some(1) };
        let found = expired_events(journal, retention, None, 1).unwrap();
        assert_eq!(found.0, [ExpiredEvents { conversation: all[4], oldest_seq: begin_of(2) }]);
    });
}

#[test]
fn a_pass_looks_at_so_many_events_and_the_next_goes_on_behind_them() {
    on_both(|journal| {
        let mut ids = Ids::new();
        let mut all: Vec<_> = (0..5).map(|_| ids.conversation()).collect();
        for conversation in &all {
            journal.append(&[Batch { events: talk(*conversation, 2), ..batch(*conversation, []) }]).unwrap();
        }
        let retention = EventRetention { before_ms: u64::MAX, bytes_max: None };
        let (mut found, mut after, mut passes) = (Vec::new(), None, 0);
        loop {
            let (expired, next) = expired_events(journal, retention, after, TURN * 3).unwrap();
            found.extend(expired.iter().map(|ExpiredEvents { conversation, .. }| *conversation));
            (after, passes) = (next, passes + 1);
            if after.is_none() {
                break;
            }
        }
        all.sort_unstable();
        assert_eq!((found, passes), (all, 3), "by id");
    });
}
