//! A dump, taken apart: events by conversation, and records. Finds gaps and duplicates of seq; only what is kept of
//! trimmed events, in front of the others, has gaps.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Violation;

/// What a dump holds.
pub(crate) struct Journal {
    /// The stored text of each conversation's events.
    texts: BTreeMap<String, Vec<String>>,
    /// The stored events of each conversation, in order.
    pub(crate) conversations: BTreeMap<String, Vec<Value>>,
    /// The first event that can be read of conversations of which some were trimmed.
    oldest: BTreeMap<String, u64>,
    /// What can be looked up beside them, with its conversation.
    pub(crate) records: Vec<(String, Value)>,
    pub(super) damage: Vec<Violation>,
}

impl Journal {
    /// Reads a dump.
    pub(crate) fn read(dump: &str) -> Self {
        let (texts, conversations, oldest) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut journal = Self { texts, conversations, oldest, records: Vec::new(), damage: Vec::new() };
        let mut lines = dump.lines();
        let header: Value = serde_json::from_str(lines.next().unwrap_or_default()).unwrap_or_default();
        if header["midstream_dump"] != 1 {
            journal.damaged("form", "", 0, "the first line is no header of a dump".to_owned());
        }
        for text in lines {
            match serde_json::from_str::<Value>(text) {
                Ok(line) => journal.add(line),
                Err(error) => journal.damaged("form", "", 0, format!("{error}: {text}")),
            }
        }
        journal
    }

    fn add(&mut self, mut line: Value) {
        let conversation = super::text(&line, "conversation").to_owned();
        if line.get("record").is_some() {
            self.records.push((conversation, line["record"].take()));
            return;
        }
        let is_kept = line.get("kept").is_some();
        let event = line[if is_kept { "kept" } else { "event" }].take();
        let events = self.conversations.entry(conversation.clone()).or_default();
        let last = events.last().and_then(|event| event["seq"].as_u64()).unwrap_or_default();
        let seq = event["seq"].as_u64().unwrap_or_default();
        self.texts.entry(conversation.clone()).or_default().push(event.to_string());
        events.push(event);
        if is_kept && self.oldest_seq(&conversation) != last + 1 {
            self.damaged("form", &conversation, seq, "what is kept stands behind events".to_owned());
        }
        if seq <= last || seq > last + 1 && !is_kept {
            self.damaged("I1", &conversation, seq, format!("seq {seq} stands where {} belongs", last + 1));
        }
        if is_kept {
            self.oldest.insert(conversation, seq + 1);
        }
    }

    /// The first event that can be read.
    pub(super) fn oldest_seq(&self, conversation: &str) -> u64 {
        self.oldest.get(conversation).copied().unwrap_or(1)
    }

    fn damaged(&mut self, invariant: &'static str, conversation: &str, seq: u64, what: String) {
        self.damage.push(Violation { invariant, conversation: conversation.to_owned(), seq, what });
    }

    /// The stored event with this seq.
    pub(super) fn event(&self, conversation: &str, seq: u64) -> Option<&Value> {
        self.conversations.get(conversation)?.get(self.place(conversation, seq)?)
    }

    /// The stored text of the event with this seq.
    pub(super) fn event_text(&self, conversation: &str, seq: u64) -> Option<&str> {
        self.texts[conversation].get(self.place(conversation, seq)?).map(String::as_str)
    }

    fn place(&self, conversation: &str, seq: u64) -> Option<usize> {
        let events = self.conversations.get(conversation)?;
        events.binary_search_by_key(&seq, |event| event["seq"].as_u64().unwrap_or_default()).ok()
    }

    /// Every event of a kind, with its conversation.
    pub(super) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let all = self.conversations.iter().flat_map(|(id, events)| events.iter().map(move |it| (id.as_str(), it)));
        all.filter(move |(_, recorded)| recorded["event"]["type"] == kind)
    }
}
