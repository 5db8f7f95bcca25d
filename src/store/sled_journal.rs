//! The journal on disk: one sled tree, one atomic batch per group, one flush and one sync.
//!
//! sled shows a batch to readers as soon as it is applied, before it is flushed. So what a running append
//! changes is remembered with what was there before, and readers are given that.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use super::acknowledged::{Acknowledged, Losses, Tally};
use super::codec::{self, Head};
use super::error::Error;
use super::folder::{Folder, Lock};
use super::journal::{Batch, Epoch, Journal, Kept, KeyRecord, KeyScope, Record, Sequence};
use super::sled_access::Access;
use super::sled_purge::{Buried, Purge};
use super::sled_rows::Rows;
use super::writes::Writes;
use super::{inspect, keys, migrate, rebuild};
use crate::config::JOURNAL_KEPT_BYTES_MAX;
use crate::conversation::Recorded;
use crate::crash;
use crate::ids::{ConversationId, InterventionId, ItemId, ResponseId};

/// The most events that one read reserves room for.
const READ_AHEAD: usize = 1024;

/// Takes a row's key and value and says whether it wants more.
type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool, Error> + 'a;

/// Journals in a sled database.
pub struct SledJournal {
    pub(super) db: sled::Db,
    folder: Folder,
    /// One append or fold at a time.
    pub(super) writing: Mutex<()>,
    /// Held for reading by scans of a journal: they must not see a run half folded.
    pub(super) folding: RwLock<()>,
    /// Keys that the running append changes, with the durable value. They stay when it fails.
    in_flight: Mutex<HashMap<Vec<u8>, Option<sled::IVec>>>,
    /// An append failed: memory may hold what the disk does not.
    pub(super) failed: AtomicBool,
    tally: Mutex<Tally>,
    acknowledged: Acknowledged,
    /// Deleted conversations of which rows are left.
    pub(super) purge: Mutex<Purge>,
    /// Deleted conversations of which nothing is left.
    pub(super) buried: RwLock<Buried>,
    pub(super) access: Access,
    /// What is lost of what was acknowledged, where that is accepted.
    pub(super) lost: Option<String>,
    /// What the store was written with.
    pub(super) schema: u32,
}

impl fmt::Debug for SledJournal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // sled's own form prints every row.
        formatter.debug_struct("SledJournal").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl SledJournal {
    /// Opens the store in the data folder `root`, or makes a new one where there never was one. One of an older
    /// schema is brought to this build's, and kept aside. One that is damaged is refused, and kept as it was found, as
    /// far as the defaults of the settings say.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_keeping(root, JOURNAL_KEPT_BYTES_MAX)
    }

    /// As [`SledJournal::open`]: a damaged journal with more bytes than these is kept only where a copy takes none.
    pub fn open_keeping(root: impl AsRef<Path>, kept_bytes_max: u64) -> Result<Self, Error> {
        let root = root.as_ref();
        Self::open_locked(root, &Lock::take(root)?, kept_bytes_max)
    }

    /// As [`SledJournal::open_keeping`], for the holder of the folder's lock.
    pub(super) fn open_locked(root: &Path, lock: &Lock, kept_bytes_max: u64) -> Result<Self, Error> {
        inspect::keeping(root, kept_bytes_max, || Self::open_current(root, lock, Losses::Refuse))
    }

    /// As [`SledJournal::open_locked`], also where writes are lost.
    pub(super) fn open_accepting(root: &Path, lock: &Lock) -> Result<Self, Error> {
        Self::open_current(root, lock, Losses::Accept)
    }

    fn open_current(root: &Path, lock: &Lock, losses: Losses) -> Result<Self, Error> {
        let journal = Self::open_any(root, lock, losses)?;
        if journal.schema == migrate::SCHEMA {
            return Ok(journal);
        }
        let lost = journal.lost.clone();
        Ok(Self { lost, ..rebuild::migrate(journal, root, lock)? })
    }

    /// What is lost of what was acknowledged: then it is not known either which conversations had more events.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Opens a store of any schema that this build can read.
    pub(super) fn open_any(root: &Path, lock: &Lock, losses: Losses) -> Result<Self, Error> {
        let (folder, db) = Folder::open(root, lock)?;
        let mut journal = Self {
            db,
            folder,
            writing: Mutex::default(),
            folding: RwLock::default(),
            in_flight: Mutex::default(),
            failed: AtomicBool::new(false),
            tally: Mutex::default(),
            acknowledged: Acknowledged::open(root)?,
            purge: Mutex::default(),
            buried: RwLock::default(),
            access: Access::default(),
            lost: None,
            schema: migrate::SCHEMA,
        };
        match journal.stored_schema()? {
            Some(found) => journal.schema = migrate::check(found)?,
            None => journal.initialise()?,
        }
        let (tally, lost) =
            journal.acknowledged.check(&journal.db, &journal.access, losses, || journal.folder.sync())?;
        *journal.tally() = tally;
        journal.lost = lost;
        if !journal.folder.was_initialised() {
            journal.folder.mark_initialised()?;
        }
        journal.find_unpurged()?;
        Ok(journal)
    }

    fn stored_schema(&self) -> Result<Option<u32>, Error> {
        let Some(value) = self.get(keys::SCHEMA)? else {
            return Ok(None);
        };
        let body = codec::unseal(keys::SCHEMA, &value);
        match body.map(<[u8; 4]>::try_from) {
            Ok(Ok(schema)) => Ok(Some(u32::from_be_bytes(schema))),
            _ => Err(Error::StoreDamaged("the schema number cannot be read".into())),
        }
    }

    /// Writes the schema number into a store that never had one. A crash before that leaves no data behind, so
    /// an empty database without a marker may be begun anew; one with a marker has lost its content.
    fn initialise(&self) -> Result<(), Error> {
        if self.folder.was_initialised() || !self.db.is_empty() {
            return Err(Error::StoreDamaged("the folder held a journal, but its schema number is gone".into()));
        }
        let value = codec::seal(keys::SCHEMA, &migrate::SCHEMA.to_be_bytes());
        self.db.insert(keys::SCHEMA, value)?;
        self.db.flush()?;
        self.folder.sync()
    }

    /// The rows of a conversation's events between two seqs.
    pub(super) fn rows(&self, conversation: ConversationId, first: u64, last: u64) -> Rows<'_> {
        self.rows_of(keys::JOURNAL, conversation, first, last)
    }

    /// The rows of a kind between two seqs.
    pub(super) fn rows_of(&self, kind: u8, conversation: ConversationId, first: u64, last: u64) -> Rows<'_> {
        let range = keys::row(kind, conversation, first, 0)..=keys::row(kind, conversation, last, u16::MAX);
        Rows::new(self.db.range(range), conversation, &self.access)
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Option<sled::IVec>>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value under `key`, durable or not.
    pub(super) fn get(&self, key: impl AsRef<[u8]>) -> sled::Result<Option<sled::IVec>> {
        self.access.read(|| self.db.get(&key))
    }

    /// The durable value under `key`. The tree is asked first: if the append ends in between, what it wrote is
    /// durable.
    fn durable(&self, key: &[u8]) -> sled::Result<Option<sled::IVec>> {
        let value = self.get(key)?;
        Ok(match self.in_flight().get(key) {
            Some(before) => before.clone(),
            None => value,
        })
    }

    /// Whether a row of a scan is durable. A row that the running append removes may be missing.
    fn is_durable(&self, key: &[u8]) -> bool {
        !matches!(self.in_flight().get(key), Some(None))
    }

    /// Writes all of it in one atomic batch and makes it durable.
    pub(super) fn write(&self, mut writes: Writes, batches: usize) -> Result<(), Error> {
        let mut before = HashMap::new();
        for key in writes.index.keys() {
            before.insert(key.clone(), self.get(key)?);
        }
        let tally = self.tally().after(batches, &writes.index, &before);
        writes.put(keys::TALLY.to_vec(), &tally.encode());
        *self.in_flight() = before;
        self.access.apply(&self.db, &writes.into_batch())?;
        crash::point("batch_applied");
        self.db.flush()?;
        crash::point("batch_flushed");
        self.folder.sync()?;
        crash::point("batch_synced");
        *self.tally() = tally;
        self.acknowledged.write(tally);
        crash::point("batch_counted");
        self.in_flight().clear();
        Ok(())
    }

    /// Changes rows of the index of which readers see nothing. Durable with the next flush.
    pub(super) fn write_unseen(&self, mut writes: Writes) -> Result<(), Error> {
        let mut before = HashMap::new();
        for key in writes.index.keys() {
            before.insert(key.clone(), self.get(key)?);
        }
        let tally = self.tally().after(0, &writes.index, &before);
        writes.put(keys::TALLY.to_vec(), &tally.encode());
        self.access.apply(&self.db, &writes.into_batch())?;
        *self.tally() = tally;
        Ok(())
    }

    /// Counts writes from where another store stands, if that is further, and makes it durable.
    pub(super) fn count_from(&self, other: &Self) -> Result<(), Error> {
        let tally = self.tally().counted_from(*other.tally());
        self.db.insert(keys::TALLY, codec::seal(keys::TALLY, &tally.encode()))?;
        *self.tally() = tally;
        self.flush()
    }

    /// Makes durable what was written unseen.
    pub(super) fn flush(&self) -> Result<(), Error> {
        self.db.flush()?;
        self.folder.sync()
    }

    /// Notes whether an error allows no further write.
    pub(super) fn note_failure(&self, error: &Error) {
        if error.is_final() {
            self.failed.store(true, Ordering::SeqCst);
        }
    }

    pub(super) fn check_writable(&self) -> Result<(), Error> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(Error::Unavailable("an earlier write failed".into()));
        }
        Ok(())
    }

    /// A record that a conversation owns.
    fn owned(&self, conversation: ConversationId, key: &[u8]) -> Result<Option<sled::IVec>, Error> {
        self.durable(key).map_err(|error| Error::of_conversation(conversation, 0, error))
    }

    /// Whether a read met what the database cannot read.
    pub(super) fn is_unreadable(&self) -> bool {
        self.access.met_unreadable()
    }

    fn head(&self, conversation: ConversationId) -> Result<Head, Error> {
        let key = keys::head(conversation);
        let Some(value) = self.owned(conversation, &key)? else {
            return Ok(Head::default());
        };
        codec::unseal(&key, &value)
            .and_then(codec::decode_head)
            .map_err(|why| Error::damaged(conversation, 0, format!("its head record: {why}")))
    }

    fn conversation_at(&self, key: &[u8]) -> Result<Option<ConversationId>, Error> {
        let Some(value) = self.durable(key)? else {
            return Ok(None);
        };
        let conversation = codec::unseal(key, &value)
            .and_then(codec::decode_conversation)
            .map_err(|why| Error::StoreDamaged(format!("an index record: {why}")))?;
        Ok(if self.is_deleted(conversation)? { None } else { Some(conversation) })
    }

    /// Whether a record belongs to a conversation that was deleted.
    fn is_hidden(&self, conversation: ConversationId, record: &Record) -> Result<bool, Error> {
        Ok(self.is_deleted(conversation)?
            || match record {
                Record::Key(record) => record.is_of(|id| self.is_deleted(id).unwrap_or(true)),
                _ => false,
            })
    }

    fn append_writes(&self, batches: &[Batch], writes: fn(&[Batch]) -> Result<Writes, Error>) -> Result<(), Error> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        let mut sequence = Sequence::new(self);
        batches.iter().try_for_each(|batch| sequence.accept(batch))?;
        self.write(writes(batches)?, batches.len()).inspect_err(|error| self.note_failure(error))?;
        let deleted = batches.iter().filter(|batch| batch.deletes()).map(|batch| batch.conversation);
        self.purge.lock().unwrap_or_else(PoisonError::into_inner).pending.extend(deleted);
        Ok(())
    }

    fn ids(&self, kind: u8, from: Vec<u8>, limit: usize) -> Result<Vec<ConversationId>, Error> {
        let mut found = Vec::new();
        self.scan(from..vec![kind + 1], &mut |key, _| {
            if let Some(id) = keys::id(key).filter(|_| self.is_durable(key)) {
                found.push(ConversationId::from_bytes(id));
            }
            Ok(found.len() < limit)
        })?;
        Ok(found)
    }

    /// Shows rows of the index until `visit` says that it is enough, and leaves out what lies between the first and
    /// the last that cannot be read. Whether all could be read.
    pub(super) fn scan(&self, range: std::ops::Range<Vec<u8>>, visit: &mut Visit<'_>) -> Result<bool, Error> {
        let mut rows = self.db.range(range.clone());
        loop {
            match self.access.next(&mut rows) {
                Ok(None) => return Ok(true),
                Ok(Some((key, value))) => {
                    if !visit(&key, &value)? {
                        return Ok(true);
                    }
                }
                Err(sled::Error::Corruption { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let (mut rows, mut behind) = (self.db.range(range), Vec::new());
        while let Ok(Some(row)) = self.access.read(|| rows.next_back().transpose()) {
            behind.push(row);
        }
        for (key, value) in behind.iter().rev() {
            if !visit(key, value)? {
                break;
            }
        }
        Ok(false)
    }
}

impl Journal for SledJournal {
    fn append(&self, batches: &[Batch]) -> Result<(), Error> {
        self.append_writes(batches, Writes::of)
    }

    fn import(&self, batches: &[Batch]) -> Result<(), Error> {
        self.append_writes(batches, Writes::folded)
    }

    fn check_place(&self, batch: &Batch) -> Result<(), Error> {
        let Some(first) = batch.events.first() else { return Ok(()) };
        // They follow the conversation's last row: all lie in one leaf.
        let found = self.get(keys::event(batch.conversation, first.seq, 0));
        found.map(drop).map_err(|error| Error::of_conversation(batch.conversation, first.seq, error))
    }

    fn purge(&self) -> Result<bool, Error> {
        self.purge_part()
    }

    fn fold(&self, conversation: ConversationId, up_to: u64) -> Result<bool, Error> {
        self.fold_part(conversation, up_to)
    }

    fn trim(&self, conversation: ConversationId, oldest_seq: u64) -> Result<bool, Error> {
        self.trim_part(conversation, oldest_seq)
    }

    fn import_kept(&self, kept: &[Kept]) -> Result<(), Error> {
        self.load_kept(kept)
    }

    fn oldest_seq(&self, conversation: ConversationId) -> Result<u64, Error> {
        let key = keys::oldest(conversation);
        let Some(value) = self.owned(conversation, &key)? else {
            return Ok(1);
        };
        codec::unseal(&key, &value)
            .and_then(codec::decode_seq)
            .map_err(|why| Error::damaged(conversation, 0, format!("its record of the oldest event: {why}")))
    }

    fn kept(&self, conversation: ConversationId, after: u64, limit: usize) -> Result<Vec<Recorded>, Error> {
        self.read_kept(conversation, after, limit)
    }

    fn read(&self, conversation: ConversationId, after: u64, limit: usize) -> Result<Vec<Recorded>, Error> {
        // As long as it is held, nothing that was readable is removed.
        let _reading = self.folding.read().unwrap_or_else(PoisonError::into_inner);
        let oldest_seq = self.oldest_seq(conversation)?;
        if after.saturating_add(1) < oldest_seq {
            return Err(Error::Expired { conversation, oldest_seq });
        }
        // Read first: all up to here was in the tree before the scan begins, and is durable.
        let last = self.last_seq(conversation)?;
        let wanted = usize::try_from(last.saturating_sub(after)).unwrap_or(usize::MAX).min(limit);
        let mut events = Vec::with_capacity(wanted.min(READ_AHEAD));
        if wanted == 0 {
            return Ok(events);
        }
        let mut rows = self.rows(conversation, after + 1, last);
        while events.len() < wanted {
            let expected = after + 1 + events.len() as u64;
            let Some((_, found)) = rows.next_events(expected)? else {
                return Err(Error::damaged(conversation, expected, "the event is missing"));
            };
            // A folded run may begin before the cursor.
            let mut behind = found.into_iter().skip_while(|recorded| recorded.seq < expected).peekable();
            match behind.peek() {
                Some(first) if first.seq == expected => {}
                other => {
                    let seq = other.map_or(0, |recorded| recorded.seq);
                    return Err(Error::damaged(conversation, expected, format!("seq {seq} is in its place")));
                }
            }
            let missing = wanted - events.len();
            events.extend(behind.take(missing));
        }
        Ok(events)
    }

    fn last_seq(&self, conversation: ConversationId) -> Result<u64, Error> {
        Ok(self.head(conversation)?.seq)
    }

    fn last_at_ms(&self, conversation: ConversationId) -> Result<u64, Error> {
        Ok(self.head(conversation)?.at_ms)
    }

    fn event_bytes(&self, conversation: ConversationId, first: u64) -> Result<u64, Error> {
        let oldest = self.oldest_seq(conversation)?;
        let events = self.rows(conversation, first.max(oldest), self.last_seq(conversation)?);
        let kept = self.rows_of(keys::KEPT, conversation, first, oldest - 1);
        Ok(events.bytes(first)? + kept.bytes(first)?)
    }

    fn epoch(&self, conversation: ConversationId) -> Result<Epoch, Error> {
        let key = keys::epoch(conversation);
        let Some(value) = self.owned(conversation, &key)? else {
            return Ok(Epoch::default());
        };
        codec::unseal(&key, &value)
            .and_then(codec::decode_epoch)
            .map_err(|why| Error::damaged(conversation, 0, format!("its epoch record: {why}")))
    }

    fn is_deleted(&self, conversation: ConversationId) -> Result<bool, Error> {
        // In this order: a tombstone goes when its conversation is noted as buried.
        Ok(self.durable(&keys::deleted(conversation))?.is_some()
            || self.buried.read().unwrap_or_else(PoisonError::into_inner).contains(conversation))
    }

    fn conversation_of_response(&self, response: ResponseId) -> Result<Option<ConversationId>, Error> {
        self.conversation_at(&keys::response(response))
    }

    fn conversation_of_intervention(&self, intervention: InterventionId) -> Result<Option<ConversationId>, Error> {
        self.conversation_at(&keys::intervention(intervention))
    }

    fn conversation_of_item(&self, item: ItemId) -> Result<Option<ConversationId>, Error> {
        self.conversation_at(&keys::item(item))
    }

    fn chats(
        &self,
        principal: &str,
        after: Option<ResponseId>,
        newest_first: bool,
        limit: usize,
    ) -> Result<Vec<(ResponseId, ConversationId)>, Error> {
        let mut rows = self.db.range(keys::chats(principal, after, newest_first));
        let mut next = || {
            if newest_first { self.access.read(|| rows.next_back().transpose()) } else { self.access.next(&mut rows) }
        };
        let mut found = Vec::new();
        while found.len() < limit
            && let Some((key, _)) = next()?
        {
            found.extend(keys::chat_response(&key).zip(self.conversation_at(&key)?));
        }
        Ok(found)
    }

    fn key(&self, scope: &KeyScope) -> Result<Option<KeyRecord>, Error> {
        let key = keys::idempotency(scope);
        let Some(value) = self.durable(&key)? else {
            return Ok(None);
        };
        let (conversation, record) = codec::unseal(&key, &value)
            .and_then(codec::decode_key)
            .map_err(|why| Error::StoreDamaged(format!("an idempotency key: {why}")))?;
        let record = Record::Key(record);
        let is_hidden = self.is_hidden(conversation, &record)?;
        Ok(match record {
            Record::Key(record) if record.scope == *scope && !is_hidden => Some(record),
            _ => None,
        })
    }

    fn active(&self) -> Result<Vec<ConversationId>, Error> {
        self.ids(keys::ACTIVE, vec![keys::ACTIVE], usize::MAX)
    }

    fn conversations(&self, after: Option<ConversationId>, limit: usize) -> Result<Vec<ConversationId>, Error> {
        let from = after.map_or(vec![keys::HEAD], |id| [keys::head(id), vec![0]].concat());
        self.ids(keys::HEAD, from, limit)
    }

    fn records(&self, visit: &mut dyn FnMut(ConversationId, Record) -> Result<(), Error>) -> Result<usize, Error> {
        let (mut damaged, mut gaps) = (0, 0);
        for kind in [keys::RESPONSE, keys::INTERVENTION, keys::ACTIVE, keys::IDEMPOTENCY, keys::EPOCH] {
            let whole = self.scan(vec![kind]..vec![kind + 1], &mut |key, _| {
                let Some(value) = self.durable(key)? else {
                    return Ok(true);
                };
                match decode_record(kind, key, &value) {
                    Ok((conversation, record)) if self.is_hidden(conversation, &record)? => {}
                    Ok((conversation, record)) => visit(conversation, record)?,
                    Err(_) => damaged += 1,
                }
                Ok(true)
            })?;
            gaps += usize::from(!whole);
        }
        // Conversations are missing where their heads are.
        gaps += usize::from(!self.scan(vec![keys::HEAD]..vec![keys::HEAD + 1], &mut |_, _| Ok(true))?);
        Ok(damaged + gaps)
    }
}

pub(super) fn decode_record(kind: u8, key: &[u8], value: &[u8]) -> Result<(ConversationId, Record), String> {
    let body = codec::unseal(key, value)?;
    if kind == keys::IDEMPOTENCY {
        return codec::decode_key(body).map(|(conversation, record)| (conversation, Record::Key(record)));
    }
    let id = keys::id(key).ok_or("its key has no id")?;
    Ok(match kind {
        keys::RESPONSE => (codec::decode_conversation(body)?, Record::Response(ResponseId::from_bytes(id))),
        keys::INTERVENTION => (codec::decode_conversation(body)?, Record::Intervention(InterventionId::from_bytes(id))),
        keys::EPOCH => (ConversationId::from_bytes(id), Record::Epoch(codec::decode_epoch(body)?)),
        _ => (ConversationId::from_bytes(id), Record::Active(true)),
    })
}
