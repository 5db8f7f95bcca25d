//! Finding damage and cutting journals in front of it. For an operator; no server has the store meanwhile.
//!
//! Records of the index that cannot be read are written anew where a journal says what they were.
//!
//! **Invariant:** what cannot be read is removed first and the head set last, so that a conversation is damaged until
//! its repair is whole.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::PoisonError;

use super::codec::{self, Head};
use super::error::Error;
use super::journal::{Batch, Epoch, Journal, KeyedAnswer, Record};
use super::keys;
use super::sled_journal::{SledJournal, decode_record};
use super::writes::Writes;
use crate::conversation::{Event, Recorded, State, Survey};
use crate::ids::{ConversationId, InterventionId, ResponseId};

/// Rows removed in one part.
const PART_ROWS: usize = 512;

/// A conversation that cannot be read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Which one.
    pub conversation: ConversationId,
    /// The first event that cannot be read; the repair cuts in front of it.
    pub seq: u64,
    /// The last event there was, as far as that is known.
    pub last_seq: Option<u64>,
    /// What is wrong.
    pub why: String,
    /// Responses that the cut loses.
    pub lost_responses: Vec<ResponseId>,
    /// Interventions that the cut loses.
    pub lost_interventions: Vec<InterventionId>,
}

/// What is damaged in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageReport {
    /// Conversations, by id.
    pub conversations: Vec<Damage>,
    /// Records of the index that are written anew from a journal.
    pub records_known: usize,
    /// Records that nobody can tell any more: idempotency keys, and what a lost event created.
    pub records_lost: usize,
    /// What is lost of what was acknowledged, when recovery left out a part of the log.
    pub lost: Option<String>,
    /// Some of it cannot be read at all, so that it cannot be removed either.
    pub is_unreadable: bool,
}

impl DamageReport {
    /// Whether there is nothing to repair.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Reads everything and says what is damaged, and what a repair would lose. Changes nothing.
pub fn find_damage(journal: &SledJournal) -> Result<DamageReport, Error> {
    Ok(examine(journal)?.report(journal))
}

/// Cuts the journal of each damaged conversation in front of its damage, deletes those of which nothing is left, and
/// writes anew what it can of damaged records. Whoever opens a cut conversation next finds its new [`Epoch`]. Says
/// what was done.
pub fn repair(journal: &SledJournal) -> Result<DamageReport, Error> {
    let found = examine(journal)?;
    // First, since with it the loss counts as accepted.
    if journal.lost.is_some() {
        journal.rewind_all(&found)?;
    }
    for (damage, whole) in &found.conversations {
        journal.cut(damage, whole)?;
    }
    journal.mend_index(&found.records)?;
    Ok(found.report(journal))
}

/// What can be read of a conversation.
#[derive(Debug, Default)]
struct Whole {
    head: Head,
    /// The first event that can be read.
    oldest: u64,
    state: State,
    responses: HashSet<ResponseId>,
    interventions: HashSet<InterventionId>,
}

#[derive(Debug, Default)]
struct Found {
    conversations: Vec<(Damage, Whole)>,
    /// Rows of the index that cannot be read, with what they said if a journal tells it.
    records: HashMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Found {
    fn report(self, journal: &SledJournal) -> DamageReport {
        let known = self.records.values().flatten().count();
        DamageReport {
            conversations: self.conversations.into_iter().map(|(damage, _)| damage).collect(),
            records_known: known,
            records_lost: self.records.len() - known,
            lost: journal.lost.clone(),
            is_unreadable: journal.is_unreadable(),
        }
    }
}

fn examine(journal: &SledJournal) -> Result<Found, Error> {
    let mut found = Found { records: journal.unreadable_records()?, ..Found::default() };
    for conversation in journal.all_conversations()? {
        let (whole, why) = journal.read_whole(conversation)?;
        for id in &whole.responses {
            if let Some(body) = found.records.get_mut(&keys::response(*id)) {
                *body = Some(conversation.to_bytes().to_vec());
            }
        }
        for id in &whole.interventions {
            if let Some(body) = found.records.get_mut(&keys::intervention(*id)) {
                *body = Some(conversation.to_bytes().to_vec());
            }
        }
        if let Some(why) = why {
            let damage = journal.damage(conversation, &whole, why)?;
            found.conversations.push((damage, whole));
        }
    }
    Ok(found)
}

impl SledJournal {
    /// Conversations with a head or with events, unless they are deleted.
    fn all_conversations(&self) -> Result<BTreeSet<ConversationId>, Error> {
        let mut all: BTreeSet<_> = self.conversations(None, usize::MAX)?.into_iter().collect();
        for kind in [keys::JOURNAL, keys::KEPT] {
            let mut from = vec![kind];
            loop {
                let mut first = None;
                self.scan(from.clone()..vec![kind + 1], &mut |key, _| {
                    first = Some(key.to_vec());
                    Ok(false)
                })?;
                let Some(key) = first else { break };
                let Some(id) = keys::id(&key).map(ConversationId::from_bytes) else {
                    return Err(Error::StoreDamaged("an event's key is malformed".into()));
                };
                all.insert(id);
                from = [keys::row(kind, id, u64::MAX, u16::MAX), vec![0]].concat();
            }
        }
        let mut kept = BTreeSet::new();
        for id in all {
            if !self.is_deleted(id)? {
                kept.insert(id);
            }
        }
        Ok(kept)
    }

    /// What can be read from the beginning, and what is wrong with the conversation, if anything is.
    fn read_whole(&self, conversation: ConversationId) -> Result<(Whole, Option<String>), Error> {
        let told = |error: Error| match error {
            Error::Damaged { why, .. } => Ok(why),
            error => Err(error),
        };
        let last = match self.last_seq(conversation) {
            Ok(0) => Err("its head record is missing".to_owned()),
            Ok(last) => Ok(last),
            Err(error) => Err(told(error)?),
        };
        let mut whole = Whole::default();
        let mut why = last.as_ref().err().cloned();
        match self.oldest_seq(conversation) {
            Ok(oldest) => whole.oldest = oldest,
            Err(error) => {
                why = Some(told(error)?);
                whole.oldest = self.oldest_of_kept(conversation, last.as_ref().copied().unwrap_or(u64::MAX))?;
            }
        }
        let (oldest, upto) = (whole.oldest, last.as_ref().copied().unwrap_or(u64::MAX));
        match self.read_all(conversation, oldest, upto, &mut |recorded| whole.add(recorded)) {
            Ok(()) if last.as_ref().is_ok_and(|last| whole.head.seq < *last) => {
                why = Some("the event is missing".to_owned());
            }
            Ok(()) => {}
            Err(error) => why = Some(told(error)?),
        }
        if let Err(error) = self.epoch(conversation) {
            why = Some(told(error)?);
        }
        Ok((whole, why))
    }

    /// Where a conversation begins whose record of that is lost: at the last turn in front of which all is kept. What
    /// was prepared for a trim that has not come may end inside a turn.
    fn oldest_of_kept(&self, conversation: ConversationId, last: u64) -> Result<u64, Error> {
        let kept_to = self.kept_to(conversation).unwrap_or_default();
        let mut first = self.rows(conversation, 1, last);
        // In front of the first row that is left nothing can be read.
        let readable = match first.next_events(1) {
            Ok(Some((_, events))) => events[0].seq,
            _ => kept_to + 1,
        };
        let mut survey = Survey::default();
        match self.read_all(conversation, kept_to + 1, last, &mut |recorded| survey.observe(recorded)) {
            // The cut is in front of the damage.
            Ok(()) | Err(Error::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut borders = survey.borders().into_iter().map(|border| border.seq);
        Ok(borders.rfind(|seq| (readable..=kept_to + 1).contains(seq)).unwrap_or(kept_to + 1))
    }

    /// Shows what is kept of the events in front of `oldest`, then the events up to `last`, as far as they can be read.
    fn read_all(
        &self,
        conversation: ConversationId,
        oldest: u64,
        last: u64,
        visit: &mut dyn FnMut(&Recorded),
    ) -> Result<(), Error> {
        let mut seen = 0;
        let mut kept = self.rows_of(keys::KEPT, conversation, 1, oldest - 1);
        while seen + 1 < oldest {
            let recorded = kept.next_kept(seen)?;
            seen = recorded.seq;
            visit(&recorded);
        }
        let mut rows = self.rows(conversation, oldest, last);
        loop {
            let expected = seen + 1;
            match rows.next_events(expected)? {
                Some((_, events)) => {
                    // A folded run may begin in front of what was prepared.
                    for recorded in events.iter().skip_while(|recorded| recorded.seq < expected) {
                        if recorded.seq != seen + 1 {
                            return Err(Error::damaged(conversation, expected, "the event is missing"));
                        }
                        seen = recorded.seq;
                        visit(recorded);
                    }
                }
                None => return Ok(()),
            }
        }
    }

    fn damage(&self, conversation: ConversationId, whole: &Whole, why: String) -> Result<Damage, Error> {
        let (mut lost_responses, mut lost_interventions) = (Vec::new(), Vec::new());
        self.records(&mut |at, record| {
            match record {
                Record::Response(id) if at == conversation && !whole.responses.contains(&id) => lost_responses.push(id),
                Record::Intervention(id) if at == conversation && !whole.interventions.contains(&id) => {
                    lost_interventions.push(id);
                }
                _ => {}
            }
            Ok(())
        })?;
        let last_seq = self.last_seq(conversation).ok().filter(|last| *last > 0);
        Ok(Damage { conversation, seq: whole.head.seq + 1, last_seq, why, lost_responses, lost_interventions })
    }

    /// Begins a new epoch of every whole conversation where writes are lost: nobody knows which had more events. One
    /// batch, so that a crash leaves the loss to be repaired or all of them rewound.
    fn rewind_all(&self, found: &Found) -> Result<(), Error> {
        let damaged: HashSet<_> = found.conversations.iter().map(|(damage, _)| damage.conversation).collect();
        let mut writes = Writes::default();
        for conversation in self.all_conversations()?.difference(&damaged.into_iter().collect()) {
            let epoch = self.epoch(*conversation)?.epoch + 1;
            let rewound_seq = self.last_seq(*conversation)?;
            writes.put(keys::epoch(*conversation), &codec::encode_epoch(Epoch { epoch, rewound_seq }));
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(writes, 1).inspect_err(|error| self.note_failure(error))
    }

    /// Keeps what can be read.
    fn cut(&self, damage: &Damage, whole: &Whole) -> Result<(), Error> {
        let conversation = damage.conversation;
        if whole.head.seq == 0 {
            self.append(&[Batch::deletion(conversation)])?;
            while self.purge()? {}
            return Ok(());
        }
        let mut writes = Writes::default();
        writes.journal.push((keys::folded(conversation), None));
        writes.put(keys::head(conversation), &codec::encode_head(whole.head));
        // The cut may lie among what is kept of trimmed events.
        let oldest = whole.oldest.min(whole.head.seq + 1);
        if oldest > 1 {
            writes.put(keys::oldest(conversation), &codec::encode_seq(oldest));
        }
        let epoch = self.epoch(conversation).unwrap_or_default().epoch.max(whole.state.epoch()) + 1;
        writes.put(keys::epoch(conversation), &codec::encode_epoch(Epoch { epoch, rewound_seq: whole.head.seq }));
        if whole.state.is_outstanding() {
            writes.put(keys::active(conversation), &[]);
        } else {
            writes.remove(keys::active(conversation));
        }
        for id in &damage.lost_responses {
            writes.remove(keys::response(*id));
        }
        for id in &damage.lost_interventions {
            writes.remove(keys::intervention(*id));
        }
        self.records(&mut |at, record| {
            if let Record::Key(record) = record
                && at == conversation
                && !whole.holds(&record.answer)
            {
                writes.remove(keys::idempotency(&record.scope));
            }
            Ok(())
        })?;
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        while self.remove_rows(keys::JOURNAL, conversation, damage.seq)? {}
        // What was prepared for a trim that has not come goes as well.
        while self.remove_rows(keys::KEPT, conversation, oldest)? {}
        self.write(writes, 1).inspect_err(|error| self.note_failure(error))
    }

    /// Removes a part of the events from `first` on. Whether there were any.
    fn remove_rows(&self, kind: u8, conversation: ConversationId, first: u64) -> Result<bool, Error> {
        let mut batch = sled::Batch::default();
        let last = keys::row(kind, conversation, u64::MAX, u16::MAX);
        let mut rows = self.db.range(keys::row(kind, conversation, first, 0)..=last);
        let mut count = 0;
        while count < PART_ROWS
            && let Some((key, _)) = self.access.next(&mut rows)?
        {
            batch.remove(key);
            count += 1;
        }
        self.access.apply(&self.db, &batch)?;
        Ok(count > 0)
    }

    /// Rows of the index that cannot be read. A mark of outstanding work says all in its key.
    fn unreadable_records(&self) -> Result<HashMap<Vec<u8>, Option<Vec<u8>>>, Error> {
        let mut unreadable = HashMap::new();
        for kind in [keys::RESPONSE, keys::INTERVENTION, keys::ACTIVE, keys::IDEMPOTENCY] {
            self.scan(vec![kind]..vec![kind + 1], &mut |key, value| {
                if decode_record(kind, key, value).is_err() {
                    unreadable.insert(key.to_vec(), (kind == keys::ACTIVE).then(Vec::new));
                }
                Ok(true)
            })?;
        }
        Ok(unreadable)
    }

    fn mend_index(&self, records: &HashMap<Vec<u8>, Option<Vec<u8>>>) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        let mut writes = Writes::default();
        for (key, body) in records {
            match body {
                Some(body) => writes.put(key.clone(), body),
                None => writes.remove(key.clone()),
            }
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(writes, 1).inspect_err(|error| self.note_failure(error))
    }
}

impl Whole {
    fn add(&mut self, recorded: &Recorded) {
        self.head = Head { seq: recorded.seq, at_ms: recorded.at_ms };
        self.state.apply(recorded);
        match &recorded.event {
            Event::ResponseCreated(new) => {
                self.responses.insert(new.id);
            }
            Event::InterventionAccepted { intervention_id, .. } => {
                self.interventions.insert(*intervention_id);
            }
            _ => {}
        }
    }

    /// Whether what was answered is still there.
    fn holds(&self, answer: &KeyedAnswer) -> bool {
        match answer {
            KeyedAnswer::Opened { .. } => true,
            KeyedAnswer::Created { response, .. } => self.responses.contains(response),
            // They do not say which event it was; who asks again is answered anew.
            KeyedAnswer::Cancelled { .. } | KeyedAnswer::Claimed { .. } => false,
            KeyedAnswer::Answered { accepted_seq, .. } => *accepted_seq <= self.head.seq,
            KeyedAnswer::Intervened { intervention, .. } => self.interventions.contains(intervention),
        }
    }
}
