//! An answer as Anthropic's events: each block is opened and closed once, under its own index, before the next one
//! begins.

use std::collections::VecDeque;

use axum::Json;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};

use super::answer::{self, Shown};
use super::errors::object;
use crate::api::object::seal;
use crate::api::openai::choices::Form;
use crate::api::stream::data;
use crate::conversation::{self, Event as Fact, Item, ItemBody, ItemStatus, Reject, Response as Answered};
use crate::ids::{ItemId, ResponseId};
use crate::protocol::messages::{Block, Delta, StreamEvent};

/// How a message is given.
pub(super) struct MessageForm {
    pub(super) streams: bool,
    pub(super) shown: Shown,
}

/// How far a message was told.
#[derive(Default)]
pub(super) struct Told {
    /// The message was begun.
    opened: bool,
    /// The item whose block is open.
    block: Option<ItemId>,
    /// Of the next block.
    next_index: usize,
}

impl Form for MessageForm {
    type Choice = Told;

    fn streams(&self) -> bool {
        self.streams
    }

    fn choice(&mut self, _: u32, _: ResponseId) -> Told {
        Told::default()
    }

    fn show(&mut self, told: &mut Told, response: &Answered, event: &Fact, out: &mut VecDeque<Event>) {
        let mut events = Vec::new();
        Encoder { shown: &self.shown, told }.encode(response, event, &mut events);
        out.extend(events.iter().map(sent));
    }

    fn close(&self, _: &[(u32, conversation::Usage)]) -> Option<Event> {
        None
    }

    fn last_word(&self) -> Option<Event> {
        Some(sent(&StreamEvent::MessageStop))
    }

    fn broken(&self, reject: Reject) -> Event {
        sent(&StreamEvent::Error { error: object(reject), request_id: self.shown.request_id.clone() })
    }

    fn sign_of_life(&self) -> Event {
        sent(&StreamEvent::Ping)
    }

    fn whole(&self, choices: &[Answered]) -> Response {
        Json(choices.first().map(|response| answer::message(response, &self.shown))).into_response()
    }
}

fn sent(event: &StreamEvent) -> Event {
    data(event).event(event.name())
}

/// The pure part: events of one response in, Anthropic's out.
struct Encoder<'a> {
    shown: &'a Shown,
    told: &'a mut Told,
}

impl Encoder<'_> {
    /// Adds what one event means; that the message is over, the last word says.
    fn encode(&mut self, response: &Answered, event: &Fact, out: &mut Vec<StreamEvent>) {
        match event {
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
            Fact::OutputItemDone { item_id, .. } => {
                // What was thought may say nothing, and is sealed all the same.
                let thought = response.output_item(*item_id).map(|(_, output)| &output.item);
                if let Some(item) = thought.filter(|item| matches!(item.body, ItemBody::Reasoning { .. })) {
                    self.open_block(response, item, out);
                }
                self.close_block(response, *item_id, out);
            }
            Fact::OutputItemDiscarded { item_id, .. } => self.close_block(response, *item_id, out),
            Fact::ResponseEnded { .. } => {
                self.open(response, out);
                let (delta, usage) = (answer::end(response), answer::usage(response, self.shown));
                let context_management = self.shown.edits.clone();
                out.push(StreamEvent::MessageDelta { delta, usage, context_management });
            }
            _ => {}
        }
    }

    fn open(&mut self, response: &Answered, out: &mut Vec<StreamEvent>) {
        if !std::mem::replace(&mut self.told.opened, true) {
            out.push(StreamEvent::MessageStart { message: Box::new(answer::opened(response, self.shown)) });
        }
    }

    /// Opens the block of an item, unless it is open.
    fn open_block(&mut self, response: &Answered, item: &Item, out: &mut Vec<StreamEvent>) {
        if self.told.block == Some(item.id) {
            return;
        }
        self.open(response, out);
        self.told.block = Some(item.id);
        let content_block = match &item.body {
            ItemBody::Reasoning { .. } => Block::Thinking { thinking: String::new(), signature: String::new() },
            _ => answer::call(item, answer::input(""))
                .unwrap_or_else(|| Block::Text { text: String::new(), citations: None }),
        };
        out.push(StreamEvent::ContentBlockStart { index: self.told.next_index, content_block });
    }

    fn grow(&mut self, response: &Answered, item_id: ItemId, text: &str, out: &mut Vec<StreamEvent>) {
        let Some((_, output)) = response.output_item(item_id) else { return };
        self.open_block(response, &output.item, out);
        let text = text.to_owned();
        let delta = match &output.item.body {
            ItemBody::Reasoning { .. } if self.shown.omits_thinking => return,
            ItemBody::Reasoning { .. } => Delta::ThinkingDelta { thinking: text },
            ItemBody::FunctionCall { .. } => Delta::InputJsonDelta { partial_json: text },
            _ => Delta::TextDelta { text },
        };
        out.push(StreamEvent::ContentBlockDelta { index: self.told.next_index, delta });
    }

    fn close_block(&mut self, response: &Answered, item_id: ItemId, out: &mut Vec<StreamEvent>) {
        let Some((_, output)) = response.output_item(item_id).filter(|_| self.told.block == Some(item_id)) else {
            return;
        };
        let index = self.told.next_index;
        if matches!(output.item.body, ItemBody::Reasoning { .. })
            && let Some(signature) = seal(response, output)
        {
            out.push(StreamEvent::ContentBlockDelta { index, delta: Delta::SignatureDelta { signature } });
        }
        out.push(StreamEvent::ContentBlockStop { index });
        (self.told.block, self.told.next_index) = (None, index + 1);
        if self.shown.dispatches
            && output.item.status == ItemStatus::Completed
            && let Some(Block::ToolUse { id, name, input }) =
                answer::call(&output.item, answer::input(&output.item.text()))
        {
            out.push(StreamEvent::ToolCallDispatch { index, id, name, input });
        }
    }
}
