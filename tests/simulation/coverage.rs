//! How often each row of the protocol's tables was met: races (§4a) and restarts (§9).

use std::collections::{BTreeMap, BTreeSet};

use midstream::conversation::{CallStatus, Event, State};
use midstream::ids::ConversationId;
use midstream::store::{Batch, Journal};
use serde_json::Value;

use crate::audit::{History, Journal as Dump};
use crate::client::other_than;
use crate::disk::{Disk, fold};

/// Rows that the simulation meets.
pub(crate) const ROWS: &[&str] = &[
    "4a steer accepted, then natural end",
    "4a steer after the end",
    "4a steer after the end: enqueued",
    "4a steer after completed with open calls: cancel",
    "4a steer after completed with open calls: await",
    "4a now with await in mid-stream",
    "4a mixed when",
    "4a cancel recorded, not yet effective",
    "4a cancel recorded: a second one joins",
    "4a cancel after a steer's commit",
    "4a cancel after a steer's commit: cascade",
    "4a cancel of a completed response with open calls",
    "4a engine failure with pending steers",
    "4a reasoning alone",
    "4a reasoning alone, the span already closed",
    "4a create with function_call_output",
    "4a create with a result for a closed call",
    "4a create while the stream runs",
    "4a create while the stream runs: enqueue",
    "4a create with a user message while calls are open",
    "4a two creates on one previous_response_id",
    "4a fork",
    "4a fork: calls with the parent's results",
    "4a fork: calls without a result, or answered anew",
    "4a disconnect policy cancel",
    "4a pause",
    "4a pause: a steer cuts a paused response",
    "4a DELETE of an active conversation",
    "4a DELETE of an active response",
    "4a items added or deleted while running",
    "4a timers across a restart",
    "6 a result for a closed call is discarded",
    "6 another result conflicts",
    "6 results injected together",
    "6 a call times out",
    "6 a lease ends",
    "7 max_unattended_tokens",
    "7 max_conversation_tokens",
    "7 max_conversation_tokens: a warning",
    "9 before the accept was flushed",
    "9 accepted, queued, or in prefill",
    "9 decoding",
    "9 given up after attempts without a token",
    "9 on_restart: fail",
    "9 cancel journaled, not yet effective",
    "9 steer accepted or pending",
    "9 call requested, not claimed",
    "9 call claimed, no result: offered again",
    "9 call claimed, no result: unknown",
    "9 result journaled, next turn not started",
    "9 terminal journaled, not delivered",
    "9 append or flush failed",
    "9 a damaged conversation",
    "2 an unfinished call is cut back",
    "2 relaxed, and rewound after a crash",
    "3 a slow reader is dropped and resumes",
    "3 events are trimmed",
    "3 after below oldest_seq",
    "3 a reader is cut by a trim",
    "4 a steer replaces others",
    "4 a steer is withdrawn",
    "8 a key is replayed",
    "8 a key is in progress",
    "8 a key that is another principal's too",
    "11 another principal's conversation is not there",
];

/// Rows that cannot be met here, and why.
pub(crate) const NOT_REACHABLE: &[&str] = &["9 KV file: this engine has none; tests/crash/ restarts with files"];

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
            let state = fold(&disk.all(id));
            self.count_stop(&state);
            let mut ended = state.responses.iter().rev().filter_map(|response| response.ended_seq);
            let last_end = ended.next().unwrap_or_default();
            if streams.values().any(|(stream, seen)| *stream == id && *seen < last_end) {
                self.hit("9 terminal journaled, not delivered");
            }
        }
    }

    /// Where a conversation stood when its process ended.
    fn count_stop(&mut self, state: &State) {
        match state.active() {
            Some(active) if active.cancel_requested => self.hit("9 cancel journaled, not yet effective"),
            Some(active) if active.tokens().is_empty() => self.hit("9 accepted, queued, or in prefill"),
            Some(_) => self.hit("9 decoding"),
            None if state.open_calls().next().is_some() => {
                self.hit("9 call requested, not claimed");
                if state.calls.iter().any(|call| call.status == CallStatus::Answered && call.output.is_some()) {
                    self.hit("9 result journaled, next turn not started");
                }
            }
            None => {}
        }
        if !state.undecided().is_empty() {
            self.hit("9 steer accepted or pending");
        }
        if state.next_due_ms().is_some() {
            self.hit("4a timers across a restart");
        }
    }

    /// What the journal and the history tell.
    pub(crate) fn count_evidence(&mut self, journal: &Dump, history: &History) {
        for events in journal.conversations.values() {
            let mut before = Before::default();
            for recorded in events {
                self.count_event(&recorded["event"], &mut before);
                before.closed = closed_why(&recorded["event"]);
            }
        }
        let mut operations: BTreeMap<u64, (&str, &str, &str)> = BTreeMap::new();
        let mut answered: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
        for seen in &history.observations {
            let text = |field: &str| seen[field].as_str().unwrap_or_default();
            let request = seen["request"].as_u64().unwrap_or_default();
            match text("kind") {
                "request" => {
                    operations.insert(request, (text("operation"), text("key"), text("principal")));
                }
                "answer" => {
                    let (operation, key, principal) = operations[&request];
                    self.count_answer(operation, &seen["answer"]);
                    if !key.is_empty() && answered.contains_key(&(operation, key, other_than(principal))) {
                        self.hit("8 a key that is another principal's too");
                    }
                    let times = answered.entry((operation, key, principal)).or_default();
                    *times += 1;
                    if !key.is_empty() && *times > 1 {
                        self.hit("8 a key is replayed");
                    }
                }
                "refused" => self.count_refusal(operations[&request].0, text("code")),
                "dropped_reader" => self.hit("3 a slow reader is dropped and resumes"),
                "trimmed" => self.hit("3 events are trimmed"),
                "cursor_expired" => self.hit("3 after below oldest_seq"),
                "cut_reader" => self.hit("3 a reader is cut by a trim"),
                "hidden" => self.hit("11 another principal's conversation is not there"),
                "cascaded" => self.hit("4a cancel after a steer's commit: cascade"),
                "cancel_behind_a_steer" => self.hit("4a cancel after a steer's commit"),
                "lost_the_end" => self.hit("4a two creates on one previous_response_id"),
                _ => {}
            }
        }
    }

    fn count_event(&mut self, event: &Value, before: &mut Before) {
        let result = |item: &Value| item["body"]["kind"] == "function_call_output";
        let text = |field: &str| event[field].as_str().unwrap_or_default();
        match text("type") {
            "conversation_created" if !event["forked_from"].is_null() => self.hit("4a fork"),
            "turns_copied" => self.count_copy(event),
            "conversation_rewound" => self.hit("2 relaxed, and rewound after a crash"),
            "response_created" if event["enqueued"] == true => self.hit("4a create while the stream runs: enqueue"),
            "response_created" if event["input"].as_array().unwrap().iter().any(result) => {
                self.hit("4a create with function_call_output");
            }
            "response_created" if before.closed == "superseded" => {
                self.hit("4a create with a user message while calls are open");
            }
            "response_paused" => {
                before.paused.insert(event["response_id"].to_string());
                self.hit("4a pause");
            }
            "response_resumed" => {
                before.paused.remove(&event["response_id"].to_string());
            }
            "conversation_budget_low" => self.hit("7 max_conversation_tokens: a warning"),
            "cancel_requested" => self.hit("4a cancel recorded, not yet effective"),
            "tool_result_discarded" => self.hit("6 a result for a closed call is discarded"),
            "tool_call_requested" if event["attempt"].as_u64() > Some(1) => {
                self.hit("9 call claimed, no result: offered again");
            }
            "tool_call_closed" => match text("reason") {
                // A cancel of a running response closes its calls in front of its end.
                "cancelled" if before.ended.contains(&event["response_id"].to_string()) => {
                    self.hit("4a cancel of a completed response with open calls");
                }
                "timeout" => self.hit("6 a call times out"),
                "lease_ended" => self.hit("6 a lease ends"),
                "restarted" => self.hit("9 call claimed, no result: unknown"),
                _ => {}
            },
            "output_item_done" if event["status"] == "incomplete" => self.hit("2 an unfinished call is cut back"),
            "response_ended" => self.count_end(event, before),
            kind if kind.starts_with("intervention_") => self.count_steer(event, before),
            _ => {}
        }
    }

    fn count_copy(&mut self, event: &Value) {
        let turns = event["turns"].as_array().unwrap();
        let calls = turns.iter().filter_map(|turn| turn["calls"].as_array()).flatten();
        for call in calls {
            if !call["output"].is_null() {
                self.hit("4a fork: calls with the parent's results");
            } else if call["status"] == "requested" || call["status"].get("claimed").is_some() {
                self.hit("4a fork: calls without a result, or answered anew");
            }
        }
    }

    fn count_end(&mut self, event: &Value, before: &mut Before) {
        before.ended.insert(event["response_id"].to_string());
        let ending = &event["ending"];
        match ending["reason"].as_str().unwrap_or_default() {
            "disconnected" => self.hit("4a disconnect policy cancel"),
            "max_unattended_tokens" => self.hit("7 max_unattended_tokens"),
            "max_conversation_tokens" => self.hit("7 max_conversation_tokens"),
            "conversation_deleted" => self.hit("4a DELETE of an active conversation"),
            _ => {}
        }
        if ending["error"]["code"] == "server_restarted" {
            let is_asked = ending["error"]["message"].as_str().unwrap_or_default().contains("was not to go on");
            self.hit(if is_asked { "9 on_restart: fail" } else { "9 given up after attempts without a token" });
        }
    }

    fn count_steer(&mut self, event: &Value, before: &mut Before) {
        let (id, has_ended) = (event["intervention_id"].to_string(), &event["response_id"].to_string());
        let has_ended = before.ended.contains(has_ended);
        let when = before.accepted.get(&id).cloned().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "intervention_accepted" => {
                before.accepted.insert(id.clone(), event["when"].as_str().unwrap_or("now").to_owned());
                if event["enqueued"] == true {
                    before.enqueued.insert(id);
                    self.hit("4a steer after the end: enqueued");
                }
            }
            "intervention_pending" if has_ended => self.hit("4a steer after completed with open calls: await"),
            "intervention_pending" if when == "now" => self.hit("4a now with await in mid-stream"),
            "intervention_failed" if event["error"]["code"] == "response_failed" => {
                self.hit("4a engine failure with pending steers");
            }
            "intervention_failed" if event["error"]["code"] == "reasoning_already_ended" => {
                self.hit("4a reasoning alone, the span already closed");
            }
            "intervention_committed" if event["successor_id"] == event["response_id"] => {
                self.hit("4a reasoning alone");
            }
            "intervention_superseded" => self.hit("4 a steer replaces others"),
            "intervention_withdrawn" => self.hit("4 a steer is withdrawn"),
            "intervention_committed" => {
                if !event["cut"].is_null() && before.paused.contains(&event["response_id"].to_string()) {
                    self.hit("4a pause: a steer cuts a paused response");
                }
                let successor = event["successor_id"].to_string();
                let merged = before.committed.replace((successor.clone(), when.clone()));
                if merged.is_some_and(|(with, other)| with == successor && other != when) {
                    self.hit("4a mixed when");
                }
                if event["cut"].is_null() && !has_ended {
                    self.hit("4a steer accepted, then natural end");
                } else if event["cut"].is_null() && before.cancels_calls(&id, &when) {
                    self.hit("4a steer after completed with open calls: cancel");
                }
            }
            _ => {}
        }
    }

    fn count_answer(&mut self, operation: &str, answer: &Value) {
        if operation == "cancel" && answer["outcome"] == "already_cancelled" {
            self.hit("4a cancel recorded: a second one joins");
        }
        if operation == "answer_calls" && answer["calls"].as_array().is_some_and(|calls| calls.len() > 1) {
            self.hit("6 results injected together");
        }
    }

    fn count_refusal(&mut self, operation: &str, code: &str) {
        match (operation, code) {
            ("intervene", "response_already_completed") => self.hit("4a steer after the end"),
            ("create", "tool_call_closed") => self.hit("4a create with a result for a closed call"),
            ("create", "conversation_busy") => self.hit("4a create while the stream runs"),
            ("items", "conversation_busy") => self.hit("4a items added or deleted while running"),
            ("delete_response", "conversation_busy") => self.hit("4a DELETE of an active response"),
            (_, "tool_result_conflict") => self.hit("6 another result conflicts"),
            (_, "storage_unavailable") => self.hit("9 append or flush failed"),
            (_, "conversation_damaged") => self.hit("9 a damaged conversation"),
            (_, "idempotency_in_progress") => self.hit("8 a key is in progress"),
            _ => {}
        }
    }
}

/// Why this event closes a call; empty where it closes none.
fn closed_why(event: &Value) -> String {
    let closes = event["type"] == "tool_call_closed";
    event["reason"].as_str().filter(|_| closes).unwrap_or_default().to_owned()
}

/// What happened before in a conversation.
#[derive(Default)]
struct Before {
    ended: BTreeSet<String>,
    /// Responses that were paused and have not gone on.
    paused: BTreeSet<String>,
    /// Instructions, and where they cut.
    accepted: BTreeMap<String, String>,
    /// Those that came late, and wait as turns of their own.
    enqueued: BTreeSet<String>,
    /// Why the last event closed a call, if it did.
    closed: String,
    /// The last commit: to which successor, and where it cut.
    committed: Option<(String, String)>,
}

impl Before {
    /// Whether a commit that comes next is that of an instruction which closed the calls of an ended response.
    fn cancels_calls(&self, id: &str, when: &str) -> bool {
        self.closed == "steered" && when != "after" && !self.enqueued.contains(id)
    }
}
