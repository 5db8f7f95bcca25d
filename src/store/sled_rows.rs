//! A conversation's rows, put together: entries out of their chunks, events out of entries.

use super::codec::{self, Entry, PartialEntry};
use super::error::Error;
use super::keys;
use super::sled_access::Access;
use crate::conversation::Recorded;
use crate::ids::ConversationId;

/// Puts a conversation's chunks together again.
pub(super) struct Rows<'a> {
    iter: sled::Iter,
    conversation: ConversationId,
    access: &'a Access,
}

impl<'a> Rows<'a> {
    /// Puts together what `iter` gives of the conversation.
    pub(super) fn new(iter: sled::Iter, conversation: ConversationId, access: &'a Access) -> Self {
        Self { iter, conversation, access }
    }

    /// How many bytes the rows take that are left.
    pub(super) fn bytes(mut self, first: u64) -> Result<u64, Error> {
        let mut bytes = 0;
        loop {
            let row = self.access.next(&mut self.iter);
            match row.map_err(|error| Error::of_conversation(self.conversation, first, error))? {
                Some((key, value)) => bytes += (key.len() + value.len()) as u64,
                None => return Ok(bytes),
            }
        }
    }

    /// The next entry and the events in it, the last of which has the seq of its key.
    pub(super) fn next_events(&mut self, expected: u64) -> Result<Option<(Entry, Vec<Recorded>)>, Error> {
        let Some((seq, entry)) = self.next_entry(expected)? else {
            return Ok(None);
        };
        let events = entry.decode().map_err(|why| Error::damaged(self.conversation, expected, why))?;
        match events.last() {
            Some(last) if last.seq == seq => Ok(Some((entry, events))),
            _ => Err(Error::damaged(self.conversation, expected, format!("it says another seq than {seq}"))),
        }
    }

    /// The next kept event, which must follow the kept event `before`.
    pub(super) fn next_kept(&mut self, before: u64) -> Result<Recorded, Error> {
        let conversation = self.conversation;
        let damaged = |why: String| Error::damaged(conversation, before + 1, why);
        let found = self.next_entry(before + 1)?;
        let (seq, entry) = found.ok_or_else(|| damaged("what is kept of the event is missing".into()))?;
        let recorded = entry.decode_kept(before).map_err(damaged)?;
        if recorded.seq == seq { Ok(recorded) } else { Err(damaged(format!("it says another seq than {seq}"))) }
    }

    /// The next entry and its seq. `expected` is where damage is reported.
    fn next_entry(&mut self, expected: u64) -> Result<Option<(u64, Entry)>, Error> {
        let conversation = self.conversation;
        let damaged = |why: String| Error::damaged(conversation, expected, why);
        let Some((seq, chunk, body)) = self.next_row(expected)? else {
            return Ok(None);
        };
        if chunk != 0 {
            return Err(damaged("its first part is missing".into()));
        }
        let mut partial: PartialEntry = Entry::begin(&body).map_err(damaged)?;
        for next in 1..=u16::MAX {
            if !partial.is_partial() {
                break;
            }
            match self.next_row(expected)? {
                Some((row_seq, chunk, body)) if row_seq == seq && chunk == next => partial.push(&body),
                _ => return Err(damaged(format!("part {next} is missing"))),
            }
        }
        Ok(Some((seq, partial.finish().map_err(damaged)?)))
    }

    fn next_row(&mut self, expected: u64) -> Result<Option<(u64, u16, Vec<u8>)>, Error> {
        let read = self.access.next(&mut self.iter);
        let Some((key, value)) = read.map_err(|error| Error::of_conversation(self.conversation, expected, error))?
        else {
            return Ok(None);
        };
        let damaged = |why: String| Error::damaged(self.conversation, expected, why);
        let (seq, chunk) = keys::event_parts(&key).ok_or_else(|| damaged("its key is malformed".into()))?;
        let body = codec::unseal(&key, &value).map_err(damaged)?;
        Ok(Some((seq, chunk, body.to_vec())))
    }
}
