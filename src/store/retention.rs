//! What is no longer kept: idempotency keys whose outcome is settled and that are old, or too many; conversations that
//! are old, or the oldest where there is no room for all; and the events of finished turns that are old, or the oldest
//! of a conversation that has too many.

use std::collections::HashSet;

use super::error::Error;
use super::journal::{Batch, Durability, Journal, Record};
use crate::conversation::{Border, Event, Survey, begins_turn};
use crate::ids::ConversationId;

/// Conversations looked at before the next page is read.
const PAGE: usize = 512;

/// How long conversations are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Those whose last event was decided before this are let go, in milliseconds since the Unix epoch.
    pub before_ms: u64,
    /// The most bytes that the events of all may take; the oldest are let go first. None is no bound.
    pub bytes_max: Option<u64>,
}

/// A conversation that is no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Which one.
    pub conversation: ConversationId,
    /// Its last event when that was decided: one that has gone on since is kept.
    pub last_seq: u64,
}

/// How long idempotency keys are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRetention {
    /// Those recorded before this are forgotten, in milliseconds since the Unix epoch.
    pub before_ms: u64,
    /// The most keys; the oldest are forgotten first. None is no bound.
    pub records_max: Option<usize>,
}

/// Batches that forget keys, for the writer to append. Keys of conversations with outstanding work are kept: their
/// outcome is not terminal. It reads all records, so it is no work for an async thread.
pub fn expired_keys(journal: &dyn Journal, retention: KeyRetention) -> Result<Vec<Batch>, Error> {
    let KeyRetention { before_ms, records_max } = retention;
    let active: HashSet<_> = journal.active()?.into_iter().collect();
    let (mut count, mut settled) = (0, Vec::new());
    journal.records(&mut |conversation, record| {
        if let Record::Key(record) = record {
            count += 1;
            if !active.contains(&conversation) && (record.at_ms < before_ms || records_max.is_some()) {
                settled.push((record.at_ms, conversation, record.scope));
            }
        }
        Ok(())
    })?;
    settled.sort_unstable_by_key(|(at_ms, ..)| *at_ms);
    let too_many = records_max.map_or(0, |records_max| usize::saturating_sub(count, records_max));
    let expired = settled.into_iter().enumerate();
    let expired = expired.take_while(|(place, (at_ms, ..))| *at_ms < before_ms || *place < too_many);
    let forgotten = |(_, (_, conversation, scope))| Batch {
        conversation,
        events: Vec::new(),
        records: vec![Record::ForgetKey(scope)],
        durability: Durability::Group,
    };
    Ok(expired.map(forgotten).collect())
}

/// The conversations to be deleted, oldest first: never one with outstanding work, and never a damaged one, which
/// somebody may want to repair. Whether somebody reads one, the store does not know. With a bound of bytes it reads
/// all journals, so it is no work for an async thread.
pub fn expired_conversations(journal: &dyn Journal, retention: Retention) -> Result<Vec<Expired>, Error> {
    let active: HashSet<_> = journal.active()?.into_iter().collect();
    let mut idle = Vec::new();
    let mut bytes = 0;
    let mut after = None;
    loop {
        let page = journal.conversations(after, PAGE)?;
        for conversation in &page {
            let (last_seq, at_ms) = match (journal.last_seq(*conversation), journal.last_at_ms(*conversation)) {
                (Ok(last_seq), Ok(at_ms)) => (last_seq, at_ms),
                (Err(Error::Damaged { .. }), _) | (_, Err(Error::Damaged { .. })) => continue,
                (Err(error), _) | (_, Err(error)) => return Err(error),
            };
            let size = if retention.bytes_max.is_some() { journal.event_bytes(*conversation, 1)? } else { 0 };
            bytes += size;
            // Deleted since the page was read.
            if last_seq > 0 && !active.contains(conversation) {
                idle.push((at_ms, size, Expired { conversation: *conversation, last_seq }));
            }
        }
        match page.last() {
            Some(last) => after = Some(*last),
            None => break,
        }
    }
    idle.sort_unstable_by_key(|(at_ms, _, expired)| (*at_ms, expired.conversation));
    let bytes_max = retention.bytes_max.unwrap_or(u64::MAX);
    let let_go = idle.into_iter().take_while(|(at_ms, size, _)| {
        let is_over = *at_ms < retention.before_ms || bytes > bytes_max;
        bytes -= if is_over { *size } else { 0 };
        is_over
    });
    Ok(let_go.map(|(.., expired)| expired).collect())
}

/// How long the events of a conversation can be read that goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventRetention {
    /// Those decided before this are let go, in milliseconds since the Unix epoch.
    pub before_ms: u64,
    /// The most bytes that one conversation's events may take; the oldest are let go first. None is no bound.
    pub bytes_max: Option<u64>,
}

/// Events that need not be readable any more: those in front of `oldest_seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiredEvents {
    /// Whose.
    pub conversation: ConversationId,
    /// The first event that stays.
    pub oldest_seq: u64,
}

/// The events to be trimmed among the conversations behind `after`, by id, until `events_max` were looked at; and where
/// to go on, if there is more. Only finished turns go, and never a conversation's last one, nor events of a damaged
/// conversation. It reads journals, so it is no work for an async thread.
pub fn expired_events(
    journal: &dyn Journal,
    retention: EventRetention,
    mut after: Option<ConversationId>,
    events_max: u64,
) -> Result<(Vec<ExpiredEvents>, Option<ConversationId>), Error> {
    let (mut expired, mut seen) = (Vec::new(), 0);
    loop {
        let page = journal.conversations(after, PAGE)?;
        if page.is_empty() {
            return Ok((expired, None));
        }
        for conversation in page {
            if seen >= events_max {
                return Ok((expired, after));
            }
            match oldest_to_keep(journal, conversation, retention, &mut seen) {
                Ok(found) => expired.extend(found.map(|oldest_seq| ExpiredEvents { conversation, oldest_seq })),
                // Damaged, or trimmed or deleted meanwhile.
                Err(Error::Damaged { .. } | Error::Expired { .. } | Error::Deleted(_)) => {}
                Err(error) => return Err(error),
            }
            after = Some(conversation);
        }
    }
}

/// Where the conversation is to begin, unless it begins there.
fn oldest_to_keep(
    journal: &dyn Journal,
    conversation: ConversationId,
    retention: EventRetention,
    seen: &mut u64,
) -> Result<Option<u64>, Error> {
    let oldest = journal.oldest_seq(conversation)?;
    let Some(first) = journal.read(conversation, oldest - 1, 1)?.pop() else { return Ok(None) };
    let is_over = |from: u64| match retention.bytes_max {
        Some(bytes_max) => journal.event_bytes(conversation, from).map(|bytes| bytes > bytes_max),
        None => Ok(false),
    };
    if first.at_ms >= retention.before_ms && !is_over(oldest)? {
        return Ok(None);
    }
    if !has_another_turn(journal, conversation, oldest)? {
        return Ok(None);
    }
    let borders = borders(journal, conversation, oldest, seen)?;
    let of_age = borders.iter().rev().find(|border| border.newest_ms < retention.before_ms);
    // The first border behind which there is room, else the last one.
    let (mut low, mut high) = (0, borders.len());
    while low < high && retention.bytes_max.is_some() {
        let middle = low.midpoint(high);
        if is_over(borders[middle].seq)? { low = middle + 1 } else { high = middle }
    }
    let needs_room = is_over(oldest)?;
    let of_size = borders.get(low).or(borders.last()).filter(|_| needs_room);
    Ok(of_age.into_iter().chain(of_size).map(|border| border.seq).max())
}

/// Whether another turn begins behind the one at `oldest`. Where none does nothing can go, and it is not worth a
/// survey in every round.
fn has_another_turn(journal: &dyn Journal, conversation: ConversationId, oldest: u64) -> Result<bool, Error> {
    let (mut has_one, mut after) = (oldest > 1, oldest - 1);
    loop {
        let page = journal.read(conversation, after, PAGE)?;
        let Some(last) = page.last() else { return Ok(false) };
        after = last.seq;
        for recorded in page.iter().filter(|recorded| recorded.seq > oldest) {
            let begins = begins_turn(&recorded.event);
            if begins && has_one {
                return Ok(true);
            }
            has_one |= begins || matches!(recorded.event, Event::TurnsCopied { .. });
        }
    }
}

/// The borders behind `oldest`.
fn borders(
    journal: &dyn Journal,
    conversation: ConversationId,
    oldest: u64,
    seen: &mut u64,
) -> Result<Vec<Border>, Error> {
    let (mut survey, mut after) = (Survey::default(), 0);
    loop {
        let is_kept = after + 1 < oldest;
        let page =
            if is_kept { journal.kept(conversation, after, PAGE) } else { journal.read(conversation, after, PAGE) };
        let page = page?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        *seen += page.len() as u64;
        for recorded in &page {
            survey.observe(recorded);
        }
    }
    let mut borders = survey.borders();
    borders.retain(|border| border.seq > oldest);
    Ok(borders)
}
