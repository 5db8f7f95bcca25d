//! An answer as Anthropic's events: each block is opened and closed once, under its own index, before the next one
//! begins.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use futures_util::{Stream, stream};
use tokio::time::timeout;

use super::answer::{self, Shown};
use super::errors::object;
use crate::actors::Reader;
use crate::api::admission::Permit;
use crate::api::errors::failed;
use crate::api::object::seal;
use crate::api::stream::{data, interrupted, sse};
use crate::conversation::{
    Ending, Event as Fact, Item, ItemBody, ItemStatus, Recorded, Reject, Response as Answered, State,
};
use crate::ids::{ItemId, ResponseId};
use crate::protocol::messages::{Block, Delta, StreamEvent};

/// Turns the events of a response into a stream.
pub(super) struct MessageStream {
    reader: Reader,
    encoder: Encoder,
    waiting: VecDeque<StreamEvent>,
    /// Nothing more is read.
    ended: bool,
    failure: Option<Reject>,
}

impl MessageStream {
    /// The events of this response, from a reader that stands before its first.
    pub(super) fn new(reader: Reader, id: ResponseId, shown: Shown) -> Self {
        let encoder = Encoder { id, shown, opened: false, block: None, next_index: 0 };
        Self { reader, encoder, waiting: VecDeque::new(), ended: false, failure: None }
    }

    /// Waits until the response shows a sign of life; one that fails before it is a refusal and not a stream. A client
    /// waits for the head of its answer no longer than for any other sign of life.
    pub(super) async fn begin(mut self, silence: Duration) -> Result<Self, Reject> {
        let _ = timeout(silence, async {
            while self.waiting.is_empty() && !self.ended {
                self.read().await;
            }
        })
        .await;
        match self.failure.take() {
            Some(reject) if !self.encoder.opened => Err(reject),
            _ => Ok(self),
        }
    }

    async fn read(&mut self) {
        let Some(recorded) = self.reader.next().await else { return self.break_off(interrupted()) };
        match self.encoder.encode(self.reader.state(), &recorded, &mut self.waiting) {
            Ok(ended) => self.ended = ended,
            Err(reject) => self.break_off(reject),
        }
    }

    fn break_off(&mut self, reject: Reject) {
        self.ended = true;
        self.waiting.push_back(StreamEvent::Error { error: object(reject.clone()) });
        self.failure = Some(reject);
    }

    /// The HTTP answer.
    pub(super) fn answer(self, silence: Duration, permit: Permit) -> Response {
        sse(self.events(), silence, sent(&StreamEvent::Ping), Some(permit))
    }

    fn events(self) -> impl Stream<Item = Event> + Send {
        stream::unfold(self, |mut stream| async move {
            while stream.waiting.is_empty() && !stream.ended {
                stream.read().await;
            }
            let event = stream.waiting.pop_front()?;
            Some((sent(&event), stream))
        })
    }
}

fn sent(event: &StreamEvent) -> Event {
    data(event).event(event.name())
}

/// The pure part: events of one response in, Anthropic's out.
struct Encoder {
    id: ResponseId,
    shown: Shown,
    /// The message was begun.
    opened: bool,
    /// The item whose block is open.
    block: Option<ItemId>,
    /// Of the next block.
    next_index: usize,
}

impl Encoder {
    /// Adds what one event means. Whether it was the last; or how the response failed.
    fn encode(&mut self, state: &State, recorded: &Recorded, out: &mut VecDeque<StreamEvent>) -> Result<bool, Reject> {
        let own = recorded.event.response_id() == Some(self.id);
        let Some(response) = state.response(self.id).filter(|_| own) else { return Ok(false) };
        match &recorded.event {
            Fact::ResponseInProgress { .. } => self.open(response, out),
            Fact::OutputItemAdded { item, .. } => {
                let is_told = match item.body {
                    ItemBody::FunctionCall { .. } => true,
                    ItemBody::Reasoning { .. } => self.shown.omits_thinking,
                    _ => false,
                };
                if is_told {
                    self.open_block(response, item, out);
                }
            }
            Fact::OutputDelta { item_id, text, .. } if !text.is_empty() => self.grow(response, *item_id, text, out),
            Fact::OutputItemDone { item_id, .. } | Fact::OutputItemDiscarded { item_id, .. } => {
                self.close_block(response, *item_id, out);
            }
            Fact::ResponseEnded { ending: Ending::Failed { error }, .. } => return Err(failed(error, self.id)),
            Fact::ResponseEnded { .. } => {
                self.open(response, out);
                let (delta, usage) = (answer::end(response), answer::usage(response, &self.shown));
                let context_management = self.shown.edits.clone();
                let delta = StreamEvent::MessageDelta { delta, usage, context_management };
                out.extend([delta, StreamEvent::MessageStop]);
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    fn open(&mut self, response: &Answered, out: &mut VecDeque<StreamEvent>) {
        if !std::mem::replace(&mut self.opened, true) {
            out.push_back(StreamEvent::MessageStart { message: Box::new(answer::opened(response, &self.shown)) });
        }
    }

    /// Opens the block of an item, unless it is open.
    fn open_block(&mut self, response: &Answered, item: &Item, out: &mut VecDeque<StreamEvent>) {
        if self.block == Some(item.id) {
            return;
        }
        self.open(response, out);
        self.block = Some(item.id);
        let content_block = match &item.body {
            ItemBody::Reasoning { .. } => Block::Thinking { thinking: String::new(), signature: String::new() },
            _ => answer::call(item, answer::input(""))
                .unwrap_or_else(|| Block::Text { text: String::new(), citations: None }),
        };
        out.push_back(StreamEvent::ContentBlockStart { index: self.next_index, content_block });
    }

    fn grow(&mut self, response: &Answered, item_id: ItemId, text: &str, out: &mut VecDeque<StreamEvent>) {
        let Some((_, output)) = response.output_item(item_id) else { return };
        self.open_block(response, &output.item, out);
        let text = text.to_owned();
        let delta = match &output.item.body {
            ItemBody::Reasoning { .. } if self.shown.omits_thinking => return,
            ItemBody::Reasoning { .. } => Delta::ThinkingDelta { thinking: text },
            ItemBody::FunctionCall { .. } => Delta::InputJsonDelta { partial_json: text },
            _ => Delta::TextDelta { text },
        };
        out.push_back(StreamEvent::ContentBlockDelta { index: self.next_index, delta });
    }

    fn close_block(&mut self, response: &Answered, item_id: ItemId, out: &mut VecDeque<StreamEvent>) {
        let Some((_, output)) = response.output_item(item_id).filter(|_| self.block == Some(item_id)) else { return };
        let index = self.next_index;
        if matches!(output.item.body, ItemBody::Reasoning { .. })
            && let Some(signature) = seal(response, output)
        {
            out.push_back(StreamEvent::ContentBlockDelta { index, delta: Delta::SignatureDelta { signature } });
        }
        out.push_back(StreamEvent::ContentBlockStop { index });
        (self.block, self.next_index) = (None, index + 1);
        if self.shown.dispatches
            && output.item.status == ItemStatus::Completed
            && let Some(Block::ToolUse { id, name, input }) =
                answer::call(&output.item, answer::input(&output.item.text()))
        {
            out.push_back(StreamEvent::ToolCallDispatch { index, id, name, input });
        }
    }
}
