//! The state of a conversation: everything that decisions and readers need, folded from the journal.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::event::{Cut, Ending, ResponseConfig, Usage};
use super::item::{Item, ItemBody, ItemStatus};
use crate::ids::{CallId, ConversationId, InterventionId, ItemId, ResponseId};

/// A conversation. Cheap to clone: responses are shared until they change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Its id; absent before the first event.
    pub id: Option<ConversationId>,
    /// Who may see it.
    pub principal: String,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The client's own labels.
    pub metadata: Map<String, Value>,
    /// Seq of the last event; 0 before the first.
    pub last_seq: u64,
    /// Items that the next response takes as the beginning of its input.
    pub staged: Vec<Item>,
    /// All responses, in order of creation.
    pub responses: Vec<Arc<Response>>,
    /// Instructions, by id.
    pub interventions: BTreeMap<InterventionId, Intervention>,
    /// Calls that wait for a result, in order.
    pub open_calls: Vec<OpenCall>,
}

/// A call that waits for its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCall {
    /// The response that made it.
    pub response_id: ResponseId,
    /// Which call.
    pub call_id: CallId,
    /// The function's name.
    pub name: String,
    /// From 1.
    pub attempt: u32,
}

/// One turn of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// Its id.
    pub id: ResponseId,
    /// The response before it.
    pub previous: Option<ResponseId>,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Seq of its creation.
    pub created_seq: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// How it is generated.
    pub config: ResponseConfig,
    /// What joined the transcript since the response before it: staged items, then its own input.
    pub input: Vec<Item>,
    /// What was generated.
    pub output: Vec<OutputItem>,
    /// Where it stands.
    pub status: ResponseStatus,
    /// A cancel is recorded.
    pub cancel_requested: bool,
    /// The generation that is outstanding, named by the seq of the event that asked for it.
    pub generation: Option<u64>,
    /// Tokens so far.
    pub usage: Usage,
    /// Tokens generated behind the last shown text.
    pub tail_tokens: Vec<u32>,
    /// The next `sequence_number` of its OpenAI-shaped stream.
    pub next_number: u64,
    /// Seq of its terminal event.
    pub ended_seq: Option<u64>,
    /// Crashes since the last new token.
    pub attempts: u32,
    /// The server stopped in good order while it ran.
    pub suspended: bool,
    /// The response that answers a steer of this one.
    pub successor: Option<ResponseId>,
}

/// Where a response stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseStatus {
    /// Not begun.
    Queued,
    /// Being generated.
    InProgress,
    /// Ended.
    Ended(Ending),
}

impl ResponseStatus {
    /// The text on the wire.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Ended(Ending::Completed) => "completed",
            Self::Ended(Ending::Incomplete { .. }) => "incomplete",
            Self::Ended(Ending::Cancelled) => "cancelled",
            Self::Ended(Ending::Failed { .. }) => "failed",
        }
    }

    /// Whether nothing follows.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

/// An item of a response's output with the tokens it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputItem {
    /// The item.
    pub item: Item,
    /// Index of its first token in the response.
    pub first_token: u32,
    /// Its tokens, in order.
    pub tokens: Vec<u32>,
}

/// An instruction and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intervention {
    /// The response it was meant for.
    pub response_id: ResponseId,
    /// What it says.
    pub items: Vec<Item>,
    /// What became of it.
    pub status: InterventionStatus,
    /// Seq of the event that decided it last.
    pub seq: u64,
}

/// What became of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterventionStatus {
    /// Durable, not yet decided.
    Accepted,
    /// In the transcript.
    Committed {
        /// The response that answers it.
        successor_id: ResponseId,
        /// Where the old response was cut.
        cut: Option<Cut>,
    },
}

impl State {
    /// The response that is running, if one is: always the last.
    pub fn active(&self) -> Option<&Response> {
        self.responses.last().map(Arc::as_ref).filter(|response| !response.status.is_terminal())
    }

    /// The response with this id.
    pub fn response(&self, id: ResponseId) -> Option<&Response> {
        self.responses.iter().rev().find(|response| response.id == id).map(Arc::as_ref)
    }

    /// The conversation's status on the wire.
    pub fn status(&self) -> &'static str {
        match self.active() {
            Some(_) => "running",
            None if !self.open_calls.is_empty() => "requires_action",
            None => "idle",
        }
    }

    /// The response with this id, to be changed; copied first if a reader still holds it.
    pub(super) fn response_mut(&mut self, id: ResponseId) -> Option<&mut Response> {
        self.responses.iter_mut().rev().find(|response| response.id == id).map(Arc::make_mut)
    }
}

impl Response {
    /// Tokens generated so far, in order, shown or not.
    pub fn tokens(&self) -> Vec<u32> {
        self.output.iter().flat_map(|output| &output.tokens).chain(&self.tail_tokens).copied().collect()
    }

    /// Tokens that stay in the transcript: all but those of a call that was cut, and what follows them.
    pub fn kept_tokens(&self) -> Vec<u32> {
        if self.output.iter().all(OutputItem::is_kept) {
            return self.tokens();
        }
        self.output.iter().take_while(|output| output.is_kept()).flat_map(|output| &output.tokens).copied().collect()
    }

    /// The item that is still being generated.
    pub fn open_item(&self) -> Option<&OutputItem> {
        self.output.last().filter(|output| output.item.status == ItemStatus::InProgress)
    }

    /// The output item with this id and its index.
    pub fn output_item(&self, id: ItemId) -> Option<(usize, &OutputItem)> {
        self.output.iter().enumerate().rev().find(|(_, output)| output.item.id == id)
    }

    /// The tools it called, whole calls only.
    pub fn calls(&self) -> impl Iterator<Item = (&CallId, &str)> {
        self.output.iter().filter(|output| output.item.status == ItemStatus::Completed).filter_map(|output| {
            match &output.item.body {
                ItemBody::FunctionCall { call_id, name, .. } => Some((call_id, name.as_str())),
                _ => None,
            }
        })
    }
}
