//! A store as JSON lines and back: the escape hatch, the way between schemas, and the form of fixtures.
//!
//! The first line is `{"midstream_dump": 1, "schema": n}`; then come `{"conversation": …, "event": …}`, each
//! conversation's events in order, then `{"conversation": …, "record": …}`. Where events were trimmed, what is kept of
//! them stands in front of the others as `{"conversation": …, "kept": …}`. A dump, loaded and dumped again, is the same
//! text.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::Error;
use super::journal::{Batch, Durability, Epoch, Journal, Kept, Record};
use super::migrate::{self, Lines};
use crate::conversation::Recorded;
use crate::ids::ConversationId;

/// The version of the lines themselves.
const DUMP_VERSION: u32 = 1;

/// Events read, or lines written, at a time.
const PAGE: usize = 512;

/// What a dump wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpSummary {
    /// Conversations of which at least one event was written.
    pub conversations: usize,
    /// Events written, and what is kept of trimmed ones.
    pub events: usize,
    /// Records written.
    pub records: usize,
    /// Records that cannot be read and are left out.
    pub damaged_records: usize,
    /// Conversations of which the rest could not be read.
    pub damaged: Vec<Error>,
}

/// What a load read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSummary {
    /// Conversations created.
    pub conversations: usize,
    /// Events appended, and what is kept of trimmed ones.
    pub events: usize,
    /// Records written.
    pub records: usize,
}

#[derive(Serialize, Deserialize)]
struct Header {
    midstream_dump: u32,
    schema: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    conversation: ConversationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept: Option<Recorded>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event: Option<Recorded>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    record: Option<Record>,
}

/// Writes everything that can be read to `out`. Damaged conversations are written up to the damage and named.
/// These begin a new epoch, so that whoever loads the dump tells their readers.
pub fn dump(journal: &dyn Journal, out: &mut dyn Write) -> Result<DumpSummary, Error> {
    dump_as(journal, migrate::SCHEMA, out)
}

/// As [`dump()`], of a journal with this schema.
pub(super) fn dump_as(journal: &dyn Journal, schema: u32, out: &mut dyn Write) -> Result<DumpSummary, Error> {
    let mut summary = DumpSummary::default();
    let header = Header { midstream_dump: DUMP_VERSION, schema };
    write_line(out, &header)?;
    let mut after = None;
    loop {
        let page = journal.conversations(after, PAGE)?;
        for conversation in &page {
            dump_conversation(journal, *conversation, out, &mut summary)?;
        }
        match page.last() {
            Some(last) => after = Some(*last),
            None => break,
        }
    }
    summary.damaged_records = journal.records(&mut |conversation, record| {
        summary.records += 1;
        write_line(out, &Line::record(conversation, record))
    })?;
    for error in &summary.damaged {
        if let Error::Damaged { conversation, seq: seq @ 2.., .. } = *error {
            let epoch = journal.epoch(conversation).unwrap_or_default().epoch + 1;
            let record = Record::Epoch(Epoch { epoch, rewound_seq: seq - 1 });
            write_line(out, &Line::record(conversation, record))?;
        }
    }
    out.flush().map_err(|error| unwritten(&error))?;
    Ok(summary)
}

impl Line {
    fn record(conversation: ConversationId, record: Record) -> Self {
        Self { conversation, kept: None, event: None, record: Some(record) }
    }
}

fn dump_conversation(
    journal: &dyn Journal,
    conversation: ConversationId,
    out: &mut dyn Write,
    summary: &mut DumpSummary,
) -> Result<(), Error> {
    let line = |kept, event| Line { conversation, kept, event, record: None };
    let read = |after, limit| journal.kept(conversation, after, limit);
    let mut after = dump_stretch(0, &read, &|kept| line(Some(kept), None), out, summary)?;
    // Where the oldest cannot be told, the damage is noted already.
    if journal.oldest_seq(conversation).is_ok_and(|oldest| after + 1 == oldest) {
        let read = |after, limit| journal.read(conversation, after, limit);
        after = dump_stretch(after, &read, &|event| line(None, Some(event)), out, summary)?;
    }
    summary.conversations += usize::from(after > 0);
    Ok(())
}

/// Writes what `read` gives behind `after`, up to its end or to the first damage. The seq of what it wrote last.
fn dump_stretch(
    mut after: u64,
    read: &dyn Fn(u64, usize) -> Result<Vec<Recorded>, Error>,
    line: &dyn Fn(Recorded) -> Line,
    out: &mut dyn Write,
    summary: &mut DumpSummary,
) -> Result<u64, Error> {
    let mut limit = PAGE;
    loop {
        let events = match read(after, limit) {
            Ok(events) => events,
            // What lies before the damage is one page at most.
            Err(Error::Damaged { .. }) if limit > 1 => {
                limit = 1;
                continue;
            }
            Err(error @ Error::Damaged { .. }) => {
                summary.damaged.push(error);
                return Ok(after);
            }
            Err(error) => return Err(error),
        };
        let Some(last) = events.last() else { return Ok(after) };
        after = last.seq;
        summary.events += events.len();
        for recorded in events {
            write_line(out, &line(recorded))?;
        }
    }
}

fn write_line(out: &mut dyn Write, line: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(line).map_err(|error| Error::Invalid(error.to_string()))?;
    writeln!(out, "{text}").map_err(|error| unwritten(&error))
}

fn unwritten(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Error::ReaderGone,
        _ => Error::file("cannot write the dump", error),
    }
}

/// Appends what a dump holds to `journal`, which must know none of its conversations. When it fails, what came
/// before the line it names is loaded.
pub fn load(journal: &dyn Journal, input: &mut dyn BufRead) -> Result<LoadSummary, Error> {
    let mut lines = (1..).zip(input.lines()).map(|(number, text)| parse_line(number, text));
    let first = lines.next().ok_or_else(|| Error::Invalid("the dump is empty".into()))?;
    let header: Header = first
        .and_then(|header| serde_json::from_value(header).map_err(|error| error.to_string()))
        .map_err(|why| Error::Invalid(format!("this is no dump of midstream's: {why}")))?;
    if header.midstream_dump != DUMP_VERSION {
        let found = header.midstream_dump;
        return Err(Error::Invalid(format!("dump version {found} is not known; use a newer midstream")));
    }
    let lines: Lines<'_> = migrate::upgrade(Box::new(lines), header.schema)?;
    let (kept, pending) = (Vec::new(), Vec::new());
    let mut loader = Loader { journal, kept, pending, lines: 0, summary: LoadSummary::default() };
    // Line 1 is the header.
    for (number, line) in (2..).zip(lines) {
        let line = line.map_err(Error::Invalid)?;
        let line = serde_json::from_value(line).map_err(|error| Error::Invalid(format!("line {number}: {error}")))?;
        loader.add(line).map_err(|error| match error {
            Error::Invalid(why) => Error::Invalid(format!("line {number}: {why}")),
            other => other,
        })?;
    }
    loader.write()?;
    Ok(loader.summary)
}

fn parse_line(number: u64, text: std::io::Result<String>) -> Result<Value, String> {
    let text = text.map_err(|error| format!("line {number}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("line {number}: {error}"))
}

/// Gathers lines into batches: a conversation's events that follow each other make one.
struct Loader<'a> {
    journal: &'a dyn Journal,
    /// What is kept of trimmed events: it goes before the batches.
    kept: Vec<Kept>,
    pending: Vec<Batch>,
    lines: usize,
    summary: LoadSummary,
}

impl Loader<'_> {
    fn add(&mut self, line: Line) -> Result<(), Error> {
        let Line { conversation, kept, event, record } = line;
        match (kept, event, record) {
            (Some(kept), None, None) => self.add_kept(conversation, kept)?,
            (None, Some(event), None) => {
                self.begin(conversation, event.seq)?;
                self.last_batch(conversation).events.push(event);
            }
            (None, None, Some(record)) => {
                self.summary.records += 1;
                self.pending.push(empty_batch(conversation));
                self.last_batch(conversation).records.push(record);
            }
            _ => return Err(Error::Invalid("a line has either an event or a record".into())),
        }
        self.lines += 1;
        if self.lines.is_multiple_of(PAGE) { self.write() } else { Ok(()) }
    }

    /// Counts an event; with the first a conversation begins, which must not be there yet.
    fn begin(&mut self, conversation: ConversationId, seq: u64) -> Result<(), Error> {
        if seq == 1 {
            if self.journal.last_seq(conversation)? > 0 {
                let why = format!("{conversation} exists already; load into an empty data folder");
                return Err(Error::Invalid(why));
            }
            self.summary.conversations += 1;
        }
        self.summary.events += 1;
        Ok(())
    }

    fn add_kept(&mut self, conversation: ConversationId, kept: Recorded) -> Result<(), Error> {
        self.begin(conversation, kept.seq)?;
        match self.kept.last_mut() {
            Some(last) if last.conversation == conversation => last.events.push(kept),
            _ => self.kept.push(Kept { conversation, events: vec![kept] }),
        }
        Ok(())
    }

    fn last_batch(&mut self, conversation: ConversationId) -> &mut Batch {
        let known = self.pending.last().is_some_and(|batch| batch.conversation == conversation);
        if !known {
            self.pending.push(empty_batch(conversation));
        }
        let last = self.pending.len() - 1;
        &mut self.pending[last]
    }

    fn write(&mut self) -> Result<(), Error> {
        let kept = std::mem::take(&mut self.kept);
        if !kept.is_empty() {
            self.journal.import_kept(&kept)?;
        }
        let batches = std::mem::take(&mut self.pending);
        self.journal.import(&batches)
    }
}

fn empty_batch(conversation: ConversationId) -> Batch {
    Batch { conversation, events: Vec::new(), records: Vec::new(), durability: Durability::Group }
}
