//! How often each row of the protocol's tables was met: races (§4a) and restarts (§9).

use std::collections::BTreeMap;

use midstream::conversation::{Event, State};
use midstream::ids::ConversationId;
use midstream::store::{Batch, Journal};
use serde_json::Value;

use crate::audit::{History, Journal as Dump};
use crate::disk::Disk;

/// Rows that the simulation meets.
pub(crate) const ROWS: &[&str] = &[
    "4a steer after the end",
    "4a steer after completed with open calls: cancel",
    "4a cancel recorded, not yet effective",
    "4a cancel recorded: a second one joins",
    "4a cancel after a steer's commit",
    "4a cancel of a completed response with open calls",
    "4a create with function_call_output",
    "4a create with a result for a closed call",
    "4a create while the stream runs",
    "4a create with a user message while calls are open",
    "4a two creates on one previous_response_id",
    "4a fork",
    "9 before the accept was flushed",
    "9 accepted, queued, or in prefill",
    "9 decoding",
    "9 given up after attempts without a token",
    "9 cancel journaled, not yet effective",
    "9 call requested, not claimed",
    "9 terminal journaled, not delivered",
    "9 append or flush failed",
    "9 a damaged conversation",
    "2 an unfinished call is cut back",
    "3 a slow reader is dropped and resumes",
    "8 a key is replayed",
    "8 a key is in progress",
];

/// Rows that cannot be met yet: what they are about is not there.
pub(crate) const NOT_REACHABLE_YET: &[&str] = &[
    "4a steer accepted, then natural end",
    "4a steer after completed with open calls: await",
    "4a now with await in mid-stream",
    "4a mixed when",
    "4a engine failure with pending steers",
    "4a reasoning alone, the span already closed",
    "4a disconnect policy cancel",
    "4a pause",
    "4a DELETE of an active conversation",
    "4a items added or deleted while running",
    "4a timers across a restart",
    "9 steer accepted or pending",
    "9 call claimed, no result",
    "9 result journaled, next turn not started",
    "9 KV file",
];

/// Counts by row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage(pub(crate) BTreeMap<&'static str, u64>);

impl Coverage {
    fn hit(&mut self, row: &'static str) {
        assert!(ROWS.contains(&row), "{row} is not in the table");
        *self.0.entry(row).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (row, count) in &other.0 {
            *self.0.entry(row).or_default() += count;
        }
    }

    /// The table, and the rows that were never met.
    pub(crate) fn table(&self) -> (String, Vec<&'static str>) {
        let count = |row: &&'static str| self.0.get(row).copied().unwrap_or_default();
        let lines: Vec<String> = ROWS.iter().map(|row| format!("{:>8}  {row}", count(row))).collect();
        (lines.join("\n"), ROWS.iter().filter(|row| count(row) == 0).copied().collect())
    }

    /// Where a process stood when it ended.
    pub(crate) fn count_crash(&mut self, disk: &Disk, lost: &[Batch], streams: &BTreeMap<u64, (ConversationId, u64)>) {
        let is_accept = |event: &Event| matches!(event, Event::ResponseCreated(_) | Event::InterventionAccepted { .. });
        for batch in lost {
            if batch.events.iter().any(|recorded| is_accept(&recorded.event)) {
                self.hit("9 before the accept was flushed");
            }
        }
        let journal = &disk.durable;
        for id in journal.conversations(None, usize::MAX).unwrap() {
            let mut state = State::default();
            journal.read(id, 0, usize::MAX).unwrap().iter().for_each(|recorded| state.apply(recorded));
            match state.active() {
                Some(active) if active.cancel_requested => self.hit("9 cancel journaled, not yet effective"),
                Some(active) if active.tokens().is_empty() => self.hit("9 accepted, queued, or in prefill"),
                Some(_) => self.hit("9 decoding"),
                None if !state.open_calls.is_empty() => self.hit("9 call requested, not claimed"),
                None => {}
            }
            let mut ended = state.responses.iter().rev().filter_map(|response| response.ended_seq);
            let last_end = ended.next().unwrap_or_default();
            if streams.values().any(|(stream, seen)| *stream == id && *seen < last_end) {
                self.hit("9 terminal journaled, not delivered");
            }
        }
    }

    /// What the journal and the history tell.
    pub(crate) fn count_evidence(&mut self, journal: &Dump, history: &History) {
        for recorded in journal.conversations.values().flatten() {
            self.count_event(&recorded["event"]);
        }
        let mut operations: BTreeMap<u64, (&str, &str)> = BTreeMap::new();
        let mut answered: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for seen in &history.observations {
            let text = |field: &str| seen[field].as_str().unwrap_or_default();
            let request = seen["request"].as_u64().unwrap_or_default();
            match text("kind") {
                "request" => {
                    operations.insert(request, (text("operation"), text("key")));
                }
                "answer" => {
                    let (operation, key) = operations[&request];
                    self.count_answer(operation, &seen["answer"]);
                    let times = answered.entry((operation, key)).or_default();
                    *times += 1;
                    if !key.is_empty() && *times > 1 {
                        self.hit("8 a key is replayed");
                    }
                }
                "refused" => self.count_refusal(operations[&request].0, text("code")),
                "dropped_reader" => self.hit("3 a slow reader is dropped and resumes"),
                "cancel_behind_a_steer" => self.hit("4a cancel after a steer's commit"),
                "lost_the_end" => self.hit("4a two creates on one previous_response_id"),
                _ => {}
            }
        }
    }

    fn count_event(&mut self, event: &Value) {
        let result = |item: &Value| item["body"]["kind"] == "function_call_output";
        match event["type"].as_str().unwrap_or_default() {
            "conversation_created" if !event["forked_from"].is_null() => self.hit("4a fork"),
            "response_created" if event["input"].as_array().unwrap().iter().any(result) => {
                self.hit("4a create with function_call_output");
            }
            "intervention_committed" if event["cut"].is_null() => {
                self.hit("4a steer after completed with open calls: cancel");
            }
            "cancel_requested" => self.hit("4a cancel recorded, not yet effective"),
            "tool_call_closed" => match event["reason"].as_str().unwrap_or_default() {
                "superseded" => self.hit("4a create with a user message while calls are open"),
                "cancelled" => self.hit("4a cancel of a completed response with open calls"),
                _ => {}
            },
            "response_ended" if event["ending"]["error"]["code"] == "server_restarted" => {
                self.hit("9 given up after attempts without a token");
            }
            "output_item_done" if event["status"] == "incomplete" => self.hit("2 an unfinished call is cut back"),
            _ => {}
        }
    }

    fn count_answer(&mut self, operation: &str, answer: &Value) {
        if operation == "cancel" && answer["outcome"] == "already_cancelled" {
            self.hit("4a cancel recorded: a second one joins");
        }
    }

    fn count_refusal(&mut self, operation: &str, code: &str) {
        match (operation, code) {
            ("intervene", "response_already_completed") => self.hit("4a steer after the end"),
            ("create", "tool_call_closed") => self.hit("4a create with a result for a closed call"),
            ("create", "conversation_busy") => self.hit("4a create while the stream runs"),
            (_, "storage_unavailable") => self.hit("9 append or flush failed"),
            (_, "conversation_damaged") => self.hit("9 a damaged conversation"),
            (_, "idempotency_in_progress") => self.hit("8 a key is in progress"),
            _ => {}
        }
    }
}
