//! A chat answer as chunks, in the order and shape that OpenAI sends them, each with the index of its choice; and whole
//! calls and reasoning beside them, where that is asked for.

use std::collections::VecDeque;

use axum::response::Response as HttpResponse;
use axum::response::sse::Event;
use serde_json::{Map, Value};

use super::chat::{Shown, call, completion_id, finish_reason, in_fields, notes, tier_of, usage, whole};
use super::choices::Form;
use crate::api::frame::{DISPATCH, REASONING_DISPATCH};
use crate::api::object;
use crate::api::stream::data;
use crate::conversation::{
    self, CallKind, Event as Fact, ItemBody, ItemStatus, OutputItem, Response, custom_input_behind,
};
use crate::ids::{ItemId, ResponseId};
use crate::protocol::chat::{
    CallDelta, CallDispatch, Chunk, ChunkChoice, CustomDelta, Delta, DispatchedCall, FunctionDelta, ReasoningDispatch,
    Usage,
};
use crate::protocol::logprobs::{ChoiceLogprobs, Logprob};

/// How a chat is answered; what all chunks of a stream say.
pub(super) struct ChatForm {
    shown: Shown,
    /// The first choice's.
    id: Option<ResponseId>,
    /// Known from the first event on.
    created: Option<u64>,
    model: String,
    fingerprint: String,
    tier: Option<String>,
    /// What of the request was left out.
    notes: Option<Map<String, Value>>,
}

/// What is known of one choice.
pub(super) struct ChatChoice {
    index: u32,
    /// The chunk with its role was sent.
    opened: bool,
    /// How likely the tokens were that are not in a chunk yet.
    weighed: Vec<Logprob>,
}

impl ChatForm {
    pub(super) fn new(shown: Shown) -> Self {
        let (model, fingerprint) = (String::new(), String::new());
        Self { shown, id: None, created: None, model, fingerprint, tier: None, notes: None }
    }

    fn learn(&mut self, response: &Response) {
        if self.created.is_none() {
            self.created = Some(response.created_ms / 1000);
            self.model.clone_from(&response.config.model);
            self.fingerprint.clone_from(&response.config.fingerprint);
            self.tier = tier_of(response);
            self.notes = notes(response);
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> Chunk {
        let no_usage_yet: Option<Option<Usage>> = self.shown.usage.then_some(None);
        Chunk {
            id: self.id.map(completion_id).unwrap_or_default(),
            object: "chat.completion.chunk",
            created: self.created.unwrap_or_default(),
            model: self.model.clone(),
            service_tier: self.tier.clone(),
            system_fingerprint: self.fingerprint.clone(),
            choices,
            metadata: None,
            usage: no_usage_yet,
        }
    }

    fn push_delta(
        &self,
        choice: &mut ChatChoice,
        delta: Delta,
        finish_reason: Option<&'static str>,
        out: &mut VecDeque<Event>,
    ) {
        self.open(choice, out);
        self.push(choice, delta, finish_reason, out);
    }

    fn open(&self, choice: &mut ChatChoice, out: &mut VecDeque<Event>) {
        if !choice.opened {
            choice.opened = true;
            let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            let first = ChunkChoice { index: choice.index, delta, logprobs: None, finish_reason: None };
            out.push_back(data(&Chunk { metadata: self.notes.clone(), ..self.chunk(vec![first]) }));
        }
    }

    fn push(
        &self,
        choice: &mut ChatChoice,
        delta: Delta,
        finish_reason: Option<&'static str>,
        out: &mut VecDeque<Event>,
    ) {
        // Tokens that say nothing by themselves come with the next text, or with the end.
        let is_due = delta.content.is_some() || finish_reason.is_some();
        let weighed = if is_due { std::mem::take(&mut choice.weighed) } else { Vec::new() };
        let logprobs = (!weighed.is_empty()).then_some(ChoiceLogprobs { content: weighed, refusal: None });
        let choice = ChunkChoice { index: choice.index, delta, logprobs, finish_reason };
        out.push_back(data(&self.chunk(vec![choice])));
    }

    /// A part of a call, in the way that the request declares its tools. The older way has room for the first one.
    fn call(&self, response: &Response, item_id: ItemId, head: Option<(String, String)>, text: &str) -> Option<Delta> {
        let (_, OutputItem { item, .. }) = response.output_item(item_id)?;
        let ItemBody::FunctionCall { arguments, call_kind, .. } = &item.body else { return None };
        let index = call_index(response, item_id);
        let (id, name) = head.unzip();
        let is_head = id.is_some();
        let mut part = CallDelta { index, id, kind: None, function: None, custom: None };
        if *call_kind == CallKind::Custom {
            let input = custom_input_behind(arguments, text.len());
            if input.is_empty() && !is_head {
                return None;
            }
            (part.kind, part.custom) = (is_head.then_some("custom"), Some(CustomDelta { name, input }));
        } else {
            let function = FunctionDelta { name, arguments: text.to_owned() };
            if self.shown.functions {
                return (index == 0).then(|| Delta { function_call: Some(function), ..Delta::default() });
            }
            (part.kind, part.function) = (is_head.then_some("function"), Some(function));
        }
        Some(Delta { tool_calls: vec![part], ..Delta::default() })
    }

    fn text(&self, response: &Response, item_id: ItemId, text: &str) -> Option<Delta> {
        let (_, output) = response.output_item(item_id)?;
        match &output.item.body {
            ItemBody::Reasoning { .. } => {
                let (reasoning_content, reasoning) = in_fields(self.shown.reasoning, Some(text.to_owned()));
                Some(Delta { reasoning_content, reasoning, ..Delta::default() })
            }
            ItemBody::FunctionCall { .. } => self.call(response, item_id, None, text),
            _ => Some(Delta { content: Some(text.to_owned()), ..Delta::default() }),
        }
    }
}

impl Form for ChatForm {
    type Choice = ChatChoice;

    fn streams(&self) -> bool {
        self.shown.streams
    }

    fn choice(&mut self, index: u32, id: ResponseId) -> ChatChoice {
        self.id.get_or_insert(id);
        ChatChoice { index, opened: false, weighed: Vec::new() }
    }

    fn show(&mut self, choice: &mut ChatChoice, response: &Response, event: &Fact, out: &mut VecDeque<Event>) {
        self.learn(response);
        match event {
            Fact::ResponseInProgress { .. } => self.open(choice, out),
            Fact::OutputItemAdded { item, .. } => {
                if let ItemBody::FunctionCall { call_id, name, .. } = &item.body {
                    let head = Some((call_id.to_string(), name.clone()));
                    if let Some(delta) = self.call(response, item.id, head, "") {
                        self.push_delta(choice, delta, None, out);
                    }
                }
            }
            Fact::OutputDelta { item_id, text, logprobs, .. } => {
                if is_message(response, *item_id) {
                    choice.weighed.extend(object::logprobs(logprobs));
                }
                if let Some(delta) = self.text(response, *item_id, text).filter(|_| !text.is_empty()) {
                    self.push_delta(choice, delta, None, out);
                }
            }
            Fact::OutputItemDone { item_id, .. } if self.shown.dispatch => {
                out.extend(dispatched(choice.index, response, *item_id));
            }
            Fact::ResponseEnded { .. } => {
                self.push_delta(choice, Delta::default(), Some(finish_reason(response, self.shown)), out);
            }
            _ => {}
        }
    }

    fn close(&self, spent: &[(u32, conversation::Usage)]) -> Option<Event> {
        let spent: Vec<_> = spent.iter().map(|(_, usage)| *usage).collect();
        let usage = Some(Some(usage(&spent)));
        self.shown.usage.then(|| data(&Chunk { usage, ..self.chunk(Vec::new()) }))
    }

    fn sign_of_life(&self) -> Event {
        let delta = ChunkChoice { index: 0, delta: Delta::default(), logprobs: None, finish_reason: None };
        data(&self.chunk(vec![delta]))
    }

    fn whole(&self, choices: &[Response]) -> HttpResponse {
        whole(choices, self.shown)
    }
}

/// A whole call or a whole piece of reasoning, as an event of its own. A call that is no JSON cannot be made.
fn dispatched(choice_index: u32, response: &Response, item_id: ItemId) -> Option<Event> {
    let (_, OutputItem { item, .. }) = response.output_item(item_id)?;
    if item.status != ItemStatus::Completed {
        return None;
    }
    match &item.body {
        ItemBody::FunctionCall { arguments, .. } => {
            serde_json::from_str::<Value>(arguments).ok()?;
            let tool_call = DispatchedCall { index: call_index(response, item_id), call: call(item)? };
            Some(data(&CallDispatch { choice_index, tool_call }).event(DISPATCH))
        }
        ItemBody::Reasoning { text, .. } => {
            let dispatch = ReasoningDispatch { choice_index, reasoning_content: text.clone() };
            Some(data(&dispatch).event(REASONING_DISPATCH))
        }
        _ => None,
    }
}

/// Whether an item is text of the answer: of that, and of nothing else, it is told how likely its tokens were.
fn is_message(response: &Response, item_id: ItemId) -> bool {
    let output = response.output_item(item_id).map(|(_, output)| output);
    output.is_some_and(|output| matches!(output.item.body, ItemBody::Message { .. }))
}

/// Position among the answer's calls.
fn call_index(response: &Response, item_id: ItemId) -> u32 {
    let before = response.output.iter().take_while(|output| output.item.id != item_id);
    before.filter(|output| matches!(output.item.body, ItemBody::FunctionCall { .. })).count() as u32
}
