//! Random work on the store on disk against a plain list of events.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::super::{Batch, Journal, SledJournal, keys};
use super::{Ids, batch};

const CONVERSATIONS: usize = 5;

#[derive(Clone, Debug)]
enum Step {
    Append { conversation: usize, events: u64 },
    Fold { conversation: usize, up_to: u64 },
    Read { conversation: usize, after: u64, limit: usize },
    Delete { conversation: usize },
    Purge,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let conversation = 0..CONVERSATIONS;
    prop_oneof![
        8 => (conversation.clone(), 1..120_u64)
            .prop_map(|(conversation, events)| Step::Append { conversation, events }),
        4 => (conversation.clone(), 0..2_000_u64).prop_map(|(conversation, up_to)| Step::Fold { conversation, up_to }),
        4 => (conversation.clone(), 0..2_000_u64, 1..300_usize)
            .prop_map(|(conversation, after, limit)| Step::Read { conversation, after, limit }),
        1 => conversation.prop_map(|conversation| Step::Delete { conversation }),
        3 => Just(Step::Purge),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8,
        rng_seed: RngSeed::Fixed(20_261_129),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn reads_are_what_was_appended_whatever_else_was_done(steps in proptest::collection::vec(step(), 60)) {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Some(SledJournal::open(folder.path()).unwrap());
        let mut ids = Ids::new();
        let mut conversations: Vec<_> = (0..CONVERSATIONS).map(|_| ids.conversation()).collect();
        let mut last = [0; CONVERSATIONS];
        let mut deleted = Vec::new();
        for step in steps.into_iter().chain([Step::Reopen]) {
            let open = journal.as_ref().unwrap();
            match step {
                Step::Append { conversation, events } => {
                    let seqs = last[conversation] + 1..=last[conversation] + events;
                    open.append(&[batch(conversations[conversation], seqs)]).unwrap();
                    last[conversation] += events;
                }
                Step::Fold { conversation, up_to } => {
                    open.fold(conversations[conversation], up_to).unwrap();
                }
                Step::Read { conversation, after, limit } => {
                    let until = last[conversation].min(after + limit as u64);
                    let expected = batch(conversations[conversation], after + 1..=until).events;
                    prop_assert_eq!(open.read(conversations[conversation], after, limit).unwrap(), expected);
                }
                Step::Delete { conversation } => {
                    let gone = conversations[conversation];
                    open.append(&[Batch::deletion(gone)]).unwrap();
                    prop_assert_eq!(open.read(gone, 0, usize::MAX).unwrap(), []);
                    deleted.push(gone);
                    conversations[conversation] = ids.conversation();
                    last[conversation] = 0;
                }
                Step::Purge => drop(open.purge().unwrap()),
                Step::Reopen => {
                    journal.take();
                    journal = Some(SledJournal::open(folder.path()).unwrap());
                }
            }
        }
        for (conversation, last) in conversations.into_iter().zip(last) {
            let events = journal.as_ref().unwrap().read(conversation, 0, usize::MAX).unwrap();
            prop_assert_eq!(events, batch(conversation, 1..=last).events);
        }
        while journal.as_ref().unwrap().purge().unwrap() {}
        journal.take();
        let journal = SledJournal::open(folder.path()).unwrap();
        for gone in deleted {
            prop_assert_eq!(journal.last_seq(gone).unwrap(), 0);
            let rows = keys::event(gone, 0, 0)..=keys::event(gone, u64::MAX, u16::MAX);
            prop_assert_eq!(journal.db.range(rows).count(), 0);
        }
    }
}
