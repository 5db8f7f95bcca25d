//! A chat answer as chunks, in the order and shape that OpenAI sends them. Choices come as they are generated, each
//! chunk with the index of one.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use futures_util::future::select_all;
use futures_util::{Stream, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::chat::{Asked, completion_id, finish_reason, usage};
use crate::actors::Reader;
use crate::api::errors::{failed, object};
use crate::api::object;
use crate::api::stream::{data, interrupted, sse};
use crate::conversation::{self, Ending, Event as Fact, ItemBody, Recorded, Reject, State};
use crate::ids::{ItemId, ResponseId};
use crate::protocol::chat::{CallDelta, Chunk, ChunkChoice, Delta, FunctionDelta, Usage};
use crate::protocol::error::ErrorBody;
use crate::protocol::logprobs::{ChoiceLogprobs, Logprob};

/// Turns the events of a request's choices into chunks.
pub(super) struct ChatStream {
    /// The choices that have not ended. The one that was read last stands last, so that all get on.
    open: Vec<OpenChoice>,
    head: Head,
    /// Tokens of those that have ended.
    spent: Vec<conversation::Usage>,
    waiting: VecDeque<Event>,
    /// How a choice failed.
    failure: Option<Reject>,
}

struct OpenChoice {
    reader: Reader,
    encoder: Encoder,
}

impl ChatStream {
    /// Chunks of these choices, one at least, in their order.
    pub(super) fn new(asked: Vec<Asked>, with_usage: bool) -> Self {
        let mut head = Head { with_usage, ..Head::default() };
        let open = (0..).zip(asked).map(|(index, Asked { id, reader, .. })| {
            head.id.get_or_insert(id);
            OpenChoice { reader, encoder: Encoder { id, index, opened: false, weighed: Vec::new() } }
        });
        Self { open: open.collect(), head, spent: Vec::new(), waiting: VecDeque::new(), failure: None }
    }

    /// Waits until a choice shows a sign of life; one that fails before it is a refusal and not a stream. A client
    /// waits for the head of its answer no longer than for any other sign of life.
    pub(super) async fn begin(mut self, silence: Duration) -> Result<Self, Reject> {
        let _ = timeout(silence, async {
            while self.waiting.is_empty() && !self.open.is_empty() {
                self.read().await;
            }
        })
        .await;
        match self.failure.take() {
            Some(reject) if !self.head.opened => Err(reject),
            _ => Ok(self),
        }
    }

    /// Takes in the next event of whichever open choice has one; there is one at least.
    async fn read(&mut self) {
        let events = self.open.iter_mut().map(|choice| Box::pin(choice.reader.next()));
        let (recorded, place, _) = select_all(events).await;
        let Some(recorded) = recorded else {
            self.break_off(interrupted());
            return;
        };
        let mut choice = self.open.remove(place);
        match choice.encoder.encode(&mut self.head, choice.reader.state(), &recorded, &mut self.waiting) {
            None => self.open.push(choice),
            Some(Err(reject)) => self.break_off(reject),
            Some(Ok(usage)) => self.spent.push(usage),
        }
        if self.open.is_empty() && self.failure.is_none() {
            self.close();
        }
    }

    /// All is said.
    fn close(&mut self) {
        if self.head.with_usage {
            let usage = Some(Some(usage(&self.spent)));
            self.waiting.push_back(data(&Chunk { usage, ..self.head.chunk(Vec::new()) }));
        }
        self.waiting.push_back(Event::default().data("[DONE]"));
    }

    /// A choice cannot be given, so the others are not wanted any more.
    fn break_off(&mut self, reject: Reject) {
        self.open.clear();
        self.waiting.push_back(data(&ErrorBody { error: object(reject.clone()) }));
        self.failure = Some(reject);
    }

    /// The HTTP answer.
    pub(super) fn answer(self, silence: Duration, permit: OwnedSemaphorePermit) -> Response {
        let delta = ChunkChoice { index: 0, delta: Delta::default(), logprobs: None, finish_reason: None };
        let sign_of_life = data(&self.head.chunk(vec![delta]));
        sse(self.events(), silence, sign_of_life, Some(permit))
    }

    fn events(self) -> impl Stream<Item = Event> + Send {
        stream::unfold(self, |mut stream| async move {
            while stream.waiting.is_empty() && !stream.open.is_empty() {
                stream.read().await;
            }
            let event = stream.waiting.pop_front()?;
            Some((event, stream))
        })
    }
}

/// What all chunks of a stream say.
#[derive(Default)]
struct Head {
    /// The first choice's.
    id: Option<ResponseId>,
    with_usage: bool,
    /// A chunk with a role was sent.
    opened: bool,
    /// Known from the first event on.
    created: Option<u64>,
    model: String,
    fingerprint: String,
}

impl Head {
    fn learn(&mut self, response: &conversation::Response) {
        if self.created.is_none() {
            self.created = Some(response.created_ms / 1000);
            self.model.clone_from(&response.config.model);
            self.fingerprint.clone_from(&response.config.fingerprint);
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> Chunk {
        let no_usage_yet: Option<Option<Usage>> = self.with_usage.then_some(None);
        Chunk {
            id: self.id.map(completion_id).unwrap_or_default(),
            object: "chat.completion.chunk",
            created: self.created.unwrap_or_default(),
            model: self.model.clone(),
            system_fingerprint: self.fingerprint.clone(),
            choices,
            usage: no_usage_yet,
        }
    }
}

/// The pure part: events of one choice in, chunks out.
struct Encoder {
    id: ResponseId,
    index: u32,
    /// The chunk with its role was sent.
    opened: bool,
    /// How likely the tokens were that are not in a chunk yet.
    weighed: Vec<Logprob>,
}

impl Encoder {
    /// Adds the chunks of one event. Gives, with the last one, what the choice took, or how it failed.
    fn encode(
        &mut self,
        head: &mut Head,
        state: &State,
        recorded: &Recorded,
        out: &mut VecDeque<Event>,
    ) -> Option<Result<conversation::Usage, Reject>> {
        if recorded.event.response_id() != Some(self.id) {
            return None;
        }
        let response = state.response(self.id)?;
        head.learn(response);
        match &recorded.event {
            Fact::ResponseInProgress { .. } => self.open(head, out),
            Fact::OutputItemAdded { item, .. } => {
                if let ItemBody::FunctionCall { call_id, name, .. } = &item.body {
                    let delta = CallDelta {
                        index: call_index(response, item.id),
                        id: Some(call_id.to_string()),
                        kind: Some("function"),
                        function: FunctionDelta { name: Some(name.clone()), arguments: String::new() },
                    };
                    self.push_delta(head, call_delta(delta), None, out);
                }
            }
            Fact::OutputDelta { item_id, text, logprobs, .. } => {
                if is_message(response, *item_id) {
                    self.weighed.extend(object::logprobs(logprobs));
                }
                if let Some(delta) = text_delta(response, *item_id, text).filter(|_| !text.is_empty()) {
                    self.push_delta(head, delta, None, out);
                }
            }
            Fact::ResponseEnded { ending: Ending::Failed { error }, .. } => return Some(Err(failed(error, self.id))),
            Fact::ResponseEnded { .. } => {
                self.push_delta(head, Delta::default(), Some(finish_reason(response)), out);
                return Some(Ok(response.usage));
            }
            _ => {}
        }
        None
    }

    fn open(&mut self, head: &mut Head, out: &mut VecDeque<Event>) {
        if !self.opened {
            (self.opened, head.opened) = (true, true);
            let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            self.push(head, delta, None, out);
        }
    }

    fn push_delta(
        &mut self,
        head: &mut Head,
        delta: Delta,
        finish_reason: Option<&'static str>,
        out: &mut VecDeque<Event>,
    ) {
        self.open(head, out);
        self.push(head, delta, finish_reason, out);
    }

    fn push(&mut self, head: &Head, delta: Delta, finish_reason: Option<&'static str>, out: &mut VecDeque<Event>) {
        // Tokens that say nothing by themselves come with the next text, or with the end.
        let is_due = delta.content.is_some() || finish_reason.is_some();
        let weighed = if is_due { std::mem::take(&mut self.weighed) } else { Vec::new() };
        let logprobs = (!weighed.is_empty()).then_some(ChoiceLogprobs { content: weighed, refusal: None });
        let choice = ChunkChoice { index: self.index, delta, logprobs, finish_reason };
        out.push_back(data(&head.chunk(vec![choice])));
    }
}

/// Whether an item is text of the answer: of that, and of nothing else, it is told how likely its tokens were.
fn is_message(response: &conversation::Response, item_id: ItemId) -> bool {
    let output = response.output_item(item_id).map(|(_, output)| output);
    output.is_some_and(|output| matches!(output.item.body, ItemBody::Message { .. }))
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
