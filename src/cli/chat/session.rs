//! What a chat does with a typed line, a frame of the server or an interrupt: decisions only, no I/O.
//!
//! Everything that is sent carries a key and is sent again after a reconnect until it is answered; everything that
//! is received carries its place in the journal, and what was seen before is dropped. So neither a restart of the
//! server nor a lost connection makes a gap or a duplicate.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::error::Code;
use crate::ids::FreshIds;

/// What the terminal or the connection has to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Output {
    /// Show more of the answer.
    Text(String),
    /// Show more of the reasoning.
    Reasoning(String),
    /// The answer, or this part of it, is at its end.
    EndOfAnswer,
    /// Show that the answer was cut here, and by what.
    Steered(String),
    /// Tell the person something that is no answer.
    Notice(String),
    /// Send this frame.
    Send(Value),
    /// Leave; the error is for the person.
    Quit(Result<(), String>),
}

/// How a response ended, as far as a chat cares.
enum End {
    Whole,
    /// Another response goes on with the conversation at once.
    Steered,
    Cancelled,
    Failed(String),
}

/// A frame that waits for its answer.
#[derive(Debug)]
struct Unanswered {
    key: String,
    frame: Value,
    /// What was typed, where the frame carries it.
    text: Option<String>,
}

/// One chat in one conversation.
#[derive(Debug)]
pub(super) struct Session {
    model: String,
    /// The most tokens of an answer, if there is a bound.
    max_tokens: Option<u32>,
    keys: FreshIds,
    /// The last event that was seen.
    cursor: u64,
    /// Events up to here happened before this chat joined; set by the first snapshot.
    joined_at: Option<u64>,
    /// The response that ran when this chat joined.
    joined: Option<String>,
    active: Option<String>,
    /// The last response that came to its end.
    ended: Option<String>,
    unanswered: Vec<Unanswered>,
    /// Typed while it is open whether they begin an answer or steer one.
    queued: VecDeque<String>,
    /// A steer that was accepted and whose cut is still to come: its id and its text.
    accepted: Option<(String, String)>,
    /// The answer is to be cancelled, and every successor of it.
    cancelling: bool,
    /// Leave when the answer is at its end.
    ending: bool,
    /// With what to leave then, whatever became of the answer.
    farewell: Option<Result<(), String>>,
}

impl Session {
    /// A chat that asks this model; with `ending` it leaves after one answer.
    pub(super) fn new(model: String, keys: FreshIds, ending: bool) -> Self {
        Self {
            model,
            max_tokens: None,
            keys,
            cursor: 0,
            joined_at: None,
            joined: None,
            active: None,
            ended: None,
            unanswered: Vec::new(),
            queued: VecDeque::new(),
            accepted: None,
            cancelling: false,
            ending,
            farewell: None,
        }
    }

    /// Answers have at most so many tokens.
    pub(super) fn limited(self, max_tokens: Option<u32>) -> Self {
        Self { max_tokens, ..self }
    }

    /// A connection was made: subscribe behind what was seen, and repeat what was not answered.
    pub(super) fn on_connected(&self) -> Vec<Output> {
        let subscribe = json!({"type": "conversation.subscribe", "after": self.cursor});
        let repeated = self.unanswered.iter().map(|unanswered| unanswered.frame.clone());
        [subscribe].into_iter().chain(repeated).map(Output::Send).collect()
    }

    /// A line was typed: it steers the running answer, or asks for one.
    pub(super) fn on_line(&mut self, line: &str) -> Vec<Output> {
        if !line.trim().is_empty() {
            self.queued.push_back(line.to_owned());
        }
        self.send_queued()
    }

    /// Nothing more will be typed.
    pub(super) fn on_end_of_input(&mut self) -> Vec<Output> {
        self.ending = true;
        if self.is_idle() { vec![Output::Quit(Ok(()))] } else { Vec::new() }
    }

    /// Ctrl-C: the first cancels the answer, another one leaves.
    pub(super) fn on_interrupt(&mut self) -> Vec<Output> {
        if self.cancelling || self.is_idle() {
            let outcome = if self.is_idle() { Ok(()) } else { Err("interrupted".to_owned()) };
            return vec![Output::Quit(outcome)];
        }
        let outputs = self.cancel();
        if self.is_idle() { vec![Output::Quit(Err("interrupted".to_owned()))] } else { outputs }
    }

    /// Nobody waits for the answer any more: cancel it, then leave with this outcome.
    pub(super) fn on_leave(&mut self, outcome: Result<(), String>) -> Vec<Output> {
        let outputs = if self.cancelling { Vec::new() } else { self.cancel() };
        if self.is_idle() {
            return vec![Output::Quit(outcome)];
        }
        self.ending = true;
        self.farewell.get_or_insert(outcome);
        outputs
    }

    /// Whether it leaves as soon as the cancel has taken, and with what it would leave at once.
    pub(super) fn farewell(&self) -> Option<&Result<(), String>> {
        self.farewell.as_ref()
    }

    /// Cancels the answer, now or as soon as it has an id. What was typed for it is dropped.
    fn cancel(&mut self) -> Vec<Output> {
        self.queued.clear();
        self.cancelling = !self.is_idle();
        let active = self.active.clone();
        active.map(|active| self.send_cancel(&active)).into_iter().collect()
    }

    fn send_cancel(&mut self, response: &str) -> Output {
        self.send(json!({"type": "response.cancel", "response_id": response}), None)
    }

    /// A frame came from the server.
    pub(super) fn on_frame(&mut self, frame: &Value) -> Vec<Output> {
        let kind = frame["type"].as_str().unwrap_or_default();
        let answered = self.take_answered(frame);
        match kind {
            "conversation.snapshot" => return self.on_snapshot(frame),
            "error" => return self.on_error(frame, answered),
            _ => {}
        }
        // An answer to a frame of ours lies outside the journal's order and says nothing about what was seen.
        let is_answer = frame.get("event_id").is_some() || frame["replayed"] == true;
        if let Some(seq) = frame["seq"].as_u64().filter(|_| !is_answer) {
            if seq <= self.cursor {
                return Vec::new();
            }
            self.cursor = seq;
        }
        let response = frame["response"]["id"].as_str().or(frame["response_id"].as_str()).unwrap_or_default();
        let is_history = frame["seq"].as_u64() <= self.joined_at && self.joined.as_deref() != Some(response);
        if is_history && frame.get("seq").is_some() {
            return Vec::new();
        }
        let delta = || frame["delta"].as_str().unwrap_or_default().to_owned();
        match kind {
            "response.created" => {
                self.unanswered.retain(|unanswered| unanswered.frame["type"] != "response.create");
                self.on_created(response)
            }
            "response.output_text.delta" => vec![Output::Text(delta())],
            "response.reasoning_text.delta" => vec![Output::Reasoning(delta())],
            "response.completed" => self.on_terminal(response, End::Whole),
            "response.incomplete" => self.on_terminal(response, incomplete(&frame["response"])),
            "response.failed" => self.on_terminal(response, End::Failed(message(&frame["response"]["error"]))),
            "intervention.accepted" => {
                self.accepted =
                    frame["intervention_id"].as_str().map(|id| (id.to_owned(), input_text(&frame["input"])));
                Vec::new()
            }
            "intervention.committed" => {
                let steer = self.accepted.take_if(|(id, _)| frame["intervention_id"] == **id);
                steer.map(|(_, text)| Output::Steered(text)).into_iter().collect()
            }
            "intervention.failed" => vec![Output::Notice(format!("not applied: {}", message(&frame["error"])))],
            "conversation.deleted" => vec![Output::Quit(Err("the conversation was deleted".to_owned()))],
            _ => Vec::new(),
        }
    }

    fn on_snapshot(&mut self, frame: &Value) -> Vec<Output> {
        if self.joined_at.is_none() {
            self.joined_at = Some(frame["last_seq"].as_u64().unwrap_or(0));
            self.joined = frame["active_response"].as_str().map(str::to_owned);
            self.active.clone_from(&self.joined);
        }
        self.send_queued()
    }

    fn on_created(&mut self, response: &str) -> Vec<Output> {
        // A repeated request may be answered after the events that it caused were all seen.
        let is_news = self.ended.as_deref() != Some(response) && self.active.as_deref() != Some(response);
        if !is_news {
            return self.send_queued();
        }
        self.active = Some(response.to_owned());
        if self.cancelling { vec![self.send_cancel(response)] } else { self.send_queued() }
    }

    fn on_terminal(&mut self, response: &str, end: End) -> Vec<Output> {
        if self.active.as_deref() != Some(response) {
            return Vec::new();
        }
        let mut outputs = vec![Output::EndOfAnswer];
        if matches!(end, End::Steered) {
            return outputs;
        }
        self.ended = self.active.take();
        self.cancelling = false;
        self.unanswered.retain(|unanswered| unanswered.frame["type"] != "response.cancel");
        let problem = match end {
            End::Whole | End::Steered => None,
            End::Cancelled => Some("the answer was cancelled".to_owned()),
            End::Failed(reason) => Some(format!("the answer failed: {reason}")),
        };
        outputs.extend(self.send_queued());
        if self.ending && self.is_idle() {
            outputs.push(Output::Quit(self.farewell.take().unwrap_or(problem.map_or(Ok(()), Err))));
        } else {
            outputs.extend(problem.map(Output::Notice));
        }
        outputs
    }

    fn on_error(&mut self, frame: &Value, answered: Option<Unanswered>) -> Vec<Output> {
        let code = frame["error"]["code"].as_str().and_then(Code::parse);
        let came_late = matches!(code, Some(Code::ResponseAlreadyCompleted | Code::ResponseNotActive));
        let is_answer_to = |kind: &str| answered.as_ref().is_some_and(|answered| answered.frame["type"] == kind);
        let is_needless_cancel = came_late && is_answer_to("response.cancel");
        // A subscription that a stopping server refuses or cuts is repeated once the server is back.
        let is_stopping = matches!(code, Some(Code::Draining | Code::Overloaded)) && answered.is_none();
        if is_needless_cancel || is_stopping {
            return Vec::new();
        }
        let is_steer = is_answer_to("conversation.intervene");
        if let Some(text) = answered.filter(|_| came_late && is_steer).and_then(|steer| steer.text) {
            if self.cancelling {
                return Vec::new();
            }
            // The answer ended while the line was typed: it is the next message.
            self.queued.push_front(text);
            return self.send_queued();
        }
        let reason = message(&frame["error"]);
        if self.ending && self.is_idle() {
            return vec![Output::Quit(self.farewell.take().unwrap_or(Err(reason)))];
        }
        if self.is_idle() {
            self.cancelling = false;
        }
        let mut outputs = vec![Output::Notice(reason)];
        outputs.extend(self.send_queued());
        outputs
    }

    /// The frame of ours that this one answers, no longer to be repeated.
    fn take_answered(&mut self, frame: &Value) -> Option<Unanswered> {
        let key = frame["event_id"].as_str()?;
        let place = self.unanswered.iter().position(|unanswered| unanswered.key == key)?;
        Some(self.unanswered.remove(place))
    }

    /// Sends what was typed, once it is known what it means.
    fn send_queued(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        while self.joined_at.is_some() && !self.is_asking() {
            let Some(text) = self.queued.pop_front() else { break };
            let frame = if let Some(active) = &self.active {
                json!({"type": "conversation.intervene", "response_id": active, "input": text, "when": "now"})
            } else {
                let most = self.max_tokens;
                json!({"type": "response.create", "model": self.model, "input": text, "max_output_tokens": most})
            };
            outputs.push(self.send(frame, Some(text)));
        }
        outputs
    }

    fn send(&mut self, mut frame: Value, text: Option<String>) -> Output {
        let key = format!("chat-{:016x}", self.keys.next_u64());
        frame["event_id"] = json!(key);
        self.unanswered.push(Unanswered { key, frame: frame.clone(), text });
        Output::Send(frame)
    }

    /// Whether an answer was asked for and has not begun.
    fn is_asking(&self) -> bool {
        self.active.is_none() && self.unanswered.iter().any(|unanswered| unanswered.frame["type"] == "response.create")
    }

    /// Whether nothing is running, asked for or still to be asked.
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_none() && !self.is_asking() && self.queued.is_empty()
    }
}

fn incomplete(response: &Value) -> End {
    match response["incomplete_details"]["reason"].as_str() {
        Some("steered") => End::Steered,
        _ if response["status"] == "cancelled" => End::Cancelled,
        Some("max_output_tokens") => End::Whole,
        reason => End::Failed(reason.unwrap_or("it is incomplete").to_owned()),
    }
}

/// The text of an error object for a person.
fn message(error: &Value) -> String {
    let text = error["message"].as_str().or(error["code"].as_str());
    text.unwrap_or("the server gave no reason").to_owned()
}

/// The text of an intervention's messages.
fn input_text(items: &Value) -> String {
    let parts = items.as_array().into_iter().flatten().filter_map(|item| item["content"].as_array()).flatten();
    parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join(" ")
}
