//! A chat answer as chunks, in the order and shape that OpenAI sends them.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use futures_util::{Stream, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::chat::{completion_id, finish_reason, usage};
use crate::actors::Reader;
use crate::api::errors::{failed, object};
use crate::api::object;
use crate::api::stream::{data, interrupted, sse};
use crate::conversation::{self, Ending, Event as Fact, ItemBody, Recorded, Reject, State};
use crate::ids::{ItemId, ResponseId};
use crate::protocol::chat::{CallDelta, Chunk, ChunkChoice, Delta, FunctionDelta, Usage};
use crate::protocol::error::ErrorBody;
use crate::protocol::logprobs::{ChoiceLogprobs, Logprob};

/// Turns one response's events into chunks.
pub(super) struct ChatStream {
    reader: Reader,
    encoder: Encoder,
    waiting: VecDeque<Event>,
    ended: bool,
}

impl ChatStream {
    /// Chunks of this response, from a reader that stands before its first event.
    pub(super) fn new(reader: Reader, id: ResponseId, with_usage: bool) -> Self {
        Self { reader, encoder: Encoder::new(id, with_usage), waiting: VecDeque::new(), ended: false }
    }

    /// Waits until the response shows a sign of life; one that fails before it is a refusal and not a stream. A
    /// client waits for the head of its answer no longer than for any other sign of life.
    pub(super) async fn begin(mut self, silence: Duration) -> Result<Self, Reject> {
        let _ = timeout(silence, async {
            while self.waiting.is_empty() && !self.ended {
                self.read().await;
            }
        })
        .await;
        match (self.encoder.opened, self.encoder.failure.take()) {
            (false, Some(reject)) => Err(reject),
            _ => Ok(self),
        }
    }

    async fn read(&mut self) {
        let Some(recorded) = self.reader.next().await else {
            self.ended = true;
            let error = object(interrupted());
            self.waiting.push_back(data(&ErrorBody { error }));
            return;
        };
        if recorded.event.response_id() == Some(self.encoder.id) {
            self.ended = self.encoder.encode(self.reader.state(), &recorded, &mut self.waiting);
        }
    }

    /// The HTTP answer.
    pub(super) fn answer(self, silence: Duration, permit: OwnedSemaphorePermit) -> Response {
        let sign_of_life = data(&self.encoder.chunk(self.reader.state(), Delta::default(), None));
        sse(self.events(), silence, sign_of_life, Some(permit))
    }

    fn events(self) -> impl Stream<Item = Event> + Send {
        stream::unfold(self, |mut stream| async move {
            while stream.waiting.is_empty() && !stream.ended {
                stream.read().await;
            }
            let event = stream.waiting.pop_front()?;
            Some((event, stream))
        })
    }
}

/// The pure part: events in, chunks out.
struct Encoder {
    id: ResponseId,
    with_usage: bool,
    /// The chunk with the role was sent.
    opened: bool,
    /// How the response failed.
    failure: Option<Reject>,
    /// How likely the tokens were that are not in a chunk yet.
    weighed: Vec<Logprob>,
}

impl Encoder {
    fn new(id: ResponseId, with_usage: bool) -> Self {
        Self { id, with_usage, opened: false, failure: None, weighed: Vec::new() }
    }

    /// Adds the chunks of one event; true after the last.
    fn encode(&mut self, state: &State, recorded: &Recorded, out: &mut VecDeque<Event>) -> bool {
        let Some(response) = state.response(self.id) else {
            return false;
        };
        match &recorded.event {
            Fact::ResponseInProgress { .. } => self.open(state, out),
            Fact::OutputItemAdded { item, .. } => {
                if let ItemBody::FunctionCall { call_id, name, .. } = &item.body {
                    let delta = CallDelta {
                        index: call_index(response, item.id),
                        id: Some(call_id.to_string()),
                        kind: Some("function"),
                        function: FunctionDelta { name: Some(name.clone()), arguments: String::new() },
                    };
                    self.push_delta(state, call_delta(delta), out);
                }
            }
            Fact::OutputDelta { item_id, text, logprobs, .. } => {
                self.weighed.extend(object::logprobs(logprobs));
                if let Some(delta) = text_delta(response, *item_id, text).filter(|_| !text.is_empty()) {
                    self.push_delta(state, delta, out);
                }
            }
            Fact::ResponseEnded { ending, .. } => {
                self.close(state, response, ending, out);
                return true;
            }
            _ => {}
        }
        false
    }

    fn open(&mut self, state: &State, out: &mut VecDeque<Event>) {
        if !self.opened {
            self.opened = true;
            let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            out.push_back(data(&self.chunk(state, delta, None)));
        }
    }

    fn push_delta(&mut self, state: &State, delta: Delta, out: &mut VecDeque<Event>) {
        self.open(state, out);
        let is_text = delta.content.is_some();
        let mut chunk = self.chunk(state, delta, None);
        // Of the text only, as the whole answer has them. Tokens that said nothing yet come with those behind them.
        let weighed = std::mem::take(&mut self.weighed);
        if is_text && !weighed.is_empty() {
            chunk.choices[0].logprobs = Some(ChoiceLogprobs { content: weighed, refusal: None });
        }
        out.push_back(data(&chunk));
    }

    fn close(&mut self, state: &State, response: &conversation::Response, ending: &Ending, out: &mut VecDeque<Event>) {
        if let Ending::Failed { error } = ending {
            self.failure = Some(failed(error, self.id));
            let error = object(failed(error, self.id));
            out.push_back(data(&ErrorBody { error }));
            return;
        }
        self.open(state, out);
        out.push_back(data(&self.chunk(state, Delta::default(), Some(finish_reason(response)))));
        if self.with_usage {
            let mut chunk = self.chunk(state, Delta::default(), None);
            chunk.choices.clear();
            chunk.usage = Some(Some(usage(&response.usage)));
            out.push_back(data(&chunk));
        }
        out.push_back(Event::default().data("[DONE]"));
    }

    fn chunk(&self, state: &State, delta: Delta, finish_reason: Option<&'static str>) -> Chunk {
        let response = state.response(self.id);
        let no_usage_yet: Option<Option<Usage>> = self.with_usage.then_some(None);
        Chunk {
            id: completion_id(self.id),
            object: "chat.completion.chunk",
            created: response.map_or(0, |response| response.created_ms / 1000),
            model: response.map(|response| response.config.model.clone()).unwrap_or_default(),
            system_fingerprint: response.map(|response| response.config.fingerprint.clone()).unwrap_or_default(),
            choices: vec![ChunkChoice { index: 0, delta, logprobs: None, finish_reason }],
            usage: no_usage_yet,
        }
    }
}

fn text_delta(response: &conversation::Response, item_id: ItemId, text: &str) -> Option<Delta> {
    let (_, output) = response.output_item(item_id)?;
    let text = text.to_owned();
    Some(match &output.item.body {
        ItemBody::Reasoning { .. } => Delta { reasoning_content: Some(text), ..Delta::default() },
        ItemBody::FunctionCall { .. } => call_delta(CallDelta {
            index: call_index(response, item_id),
            id: None,
            kind: None,
            function: FunctionDelta { name: None, arguments: text },
        }),
        _ => Delta { content: Some(text), ..Delta::default() },
    })
}

fn call_delta(delta: CallDelta) -> Delta {
    Delta { tool_calls: vec![delta], ..Delta::default() }
}

/// Position among the answer's calls.
fn call_index(response: &conversation::Response, item_id: ItemId) -> u32 {
    let before = response.output.iter().take_while(|output| output.item.id != item_id);
    before.filter(|output| matches!(output.item.body, ItemBody::FunctionCall { .. })).count() as u32
}
