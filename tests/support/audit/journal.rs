//! A dump, taken apart: events by conversation, and records. Finds gaps and duplicates of seq.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Violation;

/// What a dump holds.
pub(crate) struct Journal {
    /// The stored text of each conversation's events.
    texts: BTreeMap<String, Vec<String>>,
    /// The stored events of each conversation, in order.
    pub(crate) conversations: BTreeMap<String, Vec<Value>>,
    /// What can be looked up beside them, with its conversation.
    pub(crate) records: Vec<(String, Value)>,
    pub(super) damage: Vec<Violation>,
}

impl Journal {
    /// Reads a dump.
    pub(crate) fn read(dump: &str) -> Self {
        let mut journal =
            Self { texts: BTreeMap::new(), conversations: BTreeMap::new(), records: Vec::new(), damage: Vec::new() };
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
        let event = line["event"].take();
        let events = self.conversations.entry(conversation.clone()).or_default();
        let (expected, seq) = (events.len() as u64 + 1, event["seq"].as_u64().unwrap_or_default());
        self.texts.entry(conversation.clone()).or_default().push(event.to_string());
        events.push(event);
        if seq != expected {
            self.damaged("I1", &conversation, seq, format!("seq {seq} stands where {expected} belongs"));
        }
    }

    fn damaged(&mut self, invariant: &'static str, conversation: &str, seq: u64, what: String) {
        self.damage.push(Violation { invariant, conversation: conversation.to_owned(), seq, what });
    }

    /// The stored event with this seq.
    pub(super) fn event(&self, conversation: &str, seq: u64) -> Option<&Value> {
        let events = self.conversations.get(conversation)?;
        let place = usize::try_from(seq.checked_sub(1)?).ok()?;
        events.get(place).filter(|event| event["seq"] == seq)
    }

    /// The stored text of the event with this seq.
    pub(super) fn event_text(&self, conversation: &str, seq: u64) -> Option<&str> {
        self.event(conversation, seq)?;
        self.texts[conversation].get(usize::try_from(seq - 1).ok()?).map(String::as_str)
    }

    /// Every event of a kind, with its conversation.
    pub(super) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let all = self.conversations.iter().flat_map(|(id, events)| events.iter().map(move |it| (id.as_str(), it)));
        all.filter(move |(_, recorded)| recorded["event"]["type"] == kind)
    }
}
