//! The state of a conversation: everything that decisions and readers need, folded from the journal.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::event::{Cut, Ending, NewResponse, Recorded, ResponseError, TokenLogprob, Usage};
use super::item::{Item, ItemBody, ItemStatus};
use super::policy::{FlushPolicy, OnDisconnect, Policies, Thinking, ToolPolicy, ToolsOnSteer, When};
use super::prompts::RecordedPrompt;
use super::response_config::ResponseConfig;
use super::tools::{CallKind, visible_name};
use crate::ids::{CallId, ConversationId, InterventionId, ItemId, ResponseId};

/// A conversation. Cheap to clone: responses are shared until they change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Its id; absent before the first event.
    pub id: Option<ConversationId>,
    /// Who may see it.
    pub principal: String,
    /// With whom its prompts share keys and values.
    pub tenant: Option<String>,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The time that templates see, in milliseconds since the Unix epoch: when the transcript began.
    pub template_ms: u64,
    /// The client's own labels.
    pub metadata: Map<String, Value>,
    /// What its responses inherit.
    pub defaults: Policies,
    /// Seq of the last event; 0 before the first.
    pub last_seq: u64,
    /// Rewinds so far, in order: the epoch each began, and the last seq that kept its meaning.
    pub rewinds: Vec<(u64, u64)>,
    /// It is gone.
    pub deleted: bool,
    /// The server stopped in good order while something was outstanding.
    pub suspended: bool,
    /// Items that the next response takes as the beginning of its input.
    pub staged: Vec<Item>,
    /// All responses whose turn has come, in the transcript's order. Only the last can be running.
    pub responses: Vec<Arc<Response>>,
    /// Responses that wait for their turn, in order.
    pub queue: Vec<Arc<Response>>,
    /// Responses that ended before their turn came: they are no part of the transcript.
    pub unbegun: Vec<Arc<Response>>,
    /// Instructions, by id.
    pub interventions: BTreeMap<InterventionId, Arc<Intervention>>,
    /// All calls that the model made, in order.
    pub calls: Vec<Call>,
    /// Tokens that all answers have together. What a fork took over was its parent's.
    pub generated_tokens: u64,
    /// The last bound of these tokens of which it was said that little is left.
    pub warned_of_budget: Option<u64>,
}

/// A call that the model made for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The response that made it.
    pub response_id: ResponseId,
    /// Which call.
    pub call_id: CallId,
    /// The function's name.
    pub name: String,
    /// From 1.
    pub attempt: u32,
    /// Where it stands.
    pub status: CallStatus,
    /// How it is watched over.
    pub policy: ToolPolicy,
    /// When its result must be there, in milliseconds since the Unix epoch.
    pub due_ms: Option<u64>,
    /// The result, until the next response takes it.
    pub output: Option<Item>,
    /// The seq of the event that decided it last.
    pub seq: u64,
    /// Why it was closed without a result.
    pub closed: Option<String>,
    /// The last attempt whose late result was recorded.
    pub discarded_attempt: u32,
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// It waits for somebody to run it.
    Requested,
    /// A worker has it.
    Claimed {
        /// Until then, in milliseconds since the Unix epoch.
        lease_until_ms: u64,
    },
    /// It has its result, and the caller knows it by the request it was given in.
    Completed,
    /// It has its result, from outside of a request for a response.
    Answered,
    /// It was closed; nobody had begun to run it.
    Cancelled,
    /// It was closed, and may have run.
    Unknown,
}

impl CallStatus {
    /// Whether it takes a result.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Requested | Self::Claimed { .. })
    }
}

/// One turn of the model.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools)] // facts that are recorded independently of each other
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
    /// The prompt that it began with, where that is recorded.
    pub prompt: Option<RecordedPrompt>,
    /// Where it stands.
    pub status: ResponseStatus,
    /// The stop string that ended it, where one did.
    pub stop_string: Option<String>,
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
    /// It stands until somebody reads again.
    pub paused: bool,
    /// Nobody reads it, and its policy minds.
    pub unattended: Option<Unattended>,
    /// Its object is gone.
    pub deleted: bool,
    /// The response that answers a steer of this one.
    pub successor: Option<ResponseId>,
}

/// A response that nobody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unattended {
    /// When its policy acts, in milliseconds since the Unix epoch.
    pub until_ms: Option<u64>,
    /// Its tokens when it was left.
    pub since_token: u32,
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
#[derive(Clone, Debug, PartialEq)]
pub struct OutputItem {
    /// The item.
    pub item: Item,
    /// Index of its first token in the response.
    pub first_token: u32,
    /// Its tokens, in order.
    pub tokens: Vec<u32>,
    /// How likely they were, one for each, where the response asks for it; else none.
    pub logprobs: Vec<TokenLogprob>,
    /// An interrupt threw it away.
    pub discarded: bool,
}

/// An instruction and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intervention {
    /// The response it was meant for.
    pub response_id: ResponseId,
    /// What it says.
    pub items: Vec<Item>,
    /// Where it cuts the response.
    pub when: When,
    /// What it does to open calls.
    pub tools: ToolsOnSteer,
    /// It came late and waits as a turn of its own.
    pub enqueued: bool,
    /// How long its answer may think; without items, how long the response itself may.
    pub thinking: Option<Thinking>,
    /// Seq of its acceptance: its place among the others.
    pub accepted_seq: u64,
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
    /// It waits until the calls have their results.
    Pending,
    /// It never joins the transcript.
    Failed {
        /// Why.
        error: ResponseError,
    },
    /// A later one took its place.
    Superseded {
        /// The later one.
        by: InterventionId,
    },
    /// The client took it back.
    Withdrawn,
    /// In the transcript.
    Committed {
        /// The response that answers it.
        successor_id: ResponseId,
        /// Where the old response was cut.
        cut: Option<Cut>,
    },
}

impl InterventionStatus {
    /// Whether it still waits for its outcome.
    pub fn is_undecided(&self) -> bool {
        matches!(self, Self::Accepted | Self::Pending)
    }

    /// The text on the wire.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Pending => "pending",
            Self::Committed { .. } => "committed",
            Self::Failed { .. } => "failed",
            Self::Superseded { .. } => "superseded",
            Self::Withdrawn => "withdrawn",
        }
    }
}

impl State {
    /// The response that is running, if one is: always the last.
    pub fn active(&self) -> Option<&Response> {
        self.responses.last().map(Arc::as_ref).filter(|response| !response.status.is_terminal())
    }

    /// The response with this id, unless its object was deleted.
    pub fn response(&self, id: ResponseId) -> Option<&Response> {
        self.response_even_deleted(id).filter(|response| !response.deleted)
    }

    /// As [`Self::response`], whether its object was deleted or not: its calls and its place in the transcript stay.
    pub fn response_even_deleted(&self, id: ResponseId) -> Option<&Response> {
        let all = self.responses.iter().rev().chain(&self.queue).chain(&self.unbegun);
        all.map(Arc::as_ref).find(|response| response.id == id)
    }

    /// The conversation's status on the wire.
    pub fn status(&self) -> &'static str {
        match self.active() {
            _ if self.deleted => "deleted",
            Some(_) => "running",
            None if self.open_calls().next().is_some() => "requires_action",
            None => "idle",
        }
    }

    /// What a running conversation does.
    pub fn phase(&self) -> Option<&'static str> {
        self.active().map(|active| match active.status {
            _ if active.paused => "paused",
            ResponseStatus::Queued => "queued",
            _ if active.usage.output_tokens == 0 => "prefill",
            _ => "decoding",
        })
    }

    /// Calls that wait for a result, in order.
    pub fn open_calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|call| call.status.is_open())
    }

    /// The last call of the model with this id.
    pub fn call(&self, call_id: &CallId) -> Option<&Call> {
        self.calls.iter().rev().find(|call| call.call_id == *call_id)
    }

    /// What kind of tool the last call with this id was for, made by the model or brought by a client.
    pub fn call_kind(&self, call_id: &CallId) -> CallKind {
        let made = |response: &Arc<Response>| {
            let outputs = response.output.iter().map(|output| &output.item);
            response.input.iter().chain(outputs).rev().find_map(|item| item.call_kind_of(call_id))
        };
        let staged = self.staged.iter().rev().find_map(|item| item.call_kind_of(call_id));
        staged.or_else(|| self.responses.iter().rev().find_map(made)).unwrap_or_default()
    }

    /// What the next response takes before its own input: results in the order of their calls, then staged items.
    pub fn next_input(&self) -> Vec<Item> {
        let outputs = self.calls.iter().filter_map(|call| call.output.clone());
        outputs.chain(self.staged.iter().cloned()).collect()
    }

    /// Instructions without an outcome, in the order in which they were accepted.
    pub fn undecided(&self) -> Vec<(InterventionId, &Intervention)> {
        let all = self.interventions.iter().map(|(id, intervention)| (*id, intervention.as_ref()));
        let mut undecided: Vec<_> = all.filter(|(_, intervention)| intervention.status.is_undecided()).collect();
        undecided.sort_by_key(|(_, intervention)| intervention.accepted_seq);
        undecided
    }

    /// Counts the rewinds; a cursor of an older epoch may lie behind its time.
    pub fn epoch(&self) -> u64 {
        self.rewinds.last().map_or(0, |(epoch, _)| *epoch)
    }

    /// Where a reader goes on whose cursor is `after` in `epoch`.
    pub fn resume_point(&self, epoch: u64, after: u64) -> u64 {
        let later = self.rewinds.iter().filter(|(began, _)| *began > epoch);
        later.map(|(_, seq)| *seq).fold(after, u64::min)
    }

    /// Whether something goes on, is to happen at some time without anybody asking, or was accepted and waits.
    pub fn is_outstanding(&self) -> bool {
        let waits = self.interventions.values().any(|intervention| intervention.status.is_undecided());
        self.active().is_some() || !self.queue.is_empty() || waits || self.next_due_ms().is_some()
    }

    /// When the next timer ends, in milliseconds since the Unix epoch.
    pub fn next_due_ms(&self) -> Option<u64> {
        let calls = self.open_calls().flat_map(|call| {
            let lease = match call.status {
                CallStatus::Claimed { lease_until_ms } => Some(lease_until_ms),
                _ => None,
            };
            [call.due_ms, lease]
        });
        let active = self.active().filter(|active| !active.paused && !active.cancel_requested);
        let left = active.and_then(|active| active.unattended);
        calls.flatten().chain(left.and_then(|left| left.until_ms)).min()
    }

    /// Whether events of pure growth may be shown before they are flushed.
    pub fn is_relaxed(&self) -> bool {
        self.active().is_some_and(|active| active.config.policy.durability == FlushPolicy::Relaxed)
    }

    /// The response with this id, to be changed; copied first if a reader still holds it.
    pub(super) fn response_mut(&mut self, id: ResponseId) -> Option<&mut Response> {
        let mut all = self.responses.iter_mut().rev().chain(&mut self.queue).chain(&mut self.unbegun);
        all.find(|response| response.id == id).map(Arc::make_mut)
    }
}

impl Response {
    /// A response that was asked for, with its own input.
    pub(super) fn new(new: &NewResponse, recorded: &Recorded) -> Self {
        Self {
            id: new.id,
            previous: new.previous,
            created_ms: recorded.at_ms,
            created_seq: recorded.seq,
            ended_ms: None,
            config: new.config.clone(),
            input: new.input.clone(),
            output: Vec::new(),
            prompt: None,
            status: ResponseStatus::Queued,
            stop_string: None,
            cancel_requested: false,
            generation: None,
            usage: Usage::default(),
            tail_tokens: Vec::new(),
            next_number: 0,
            ended_seq: None,
            attempts: 0,
            suspended: false,
            paused: false,
            unattended: None,
            deleted: false,
            successor: None,
        }
    }

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

    /// Whether it has begun to say something that is no reasoning, or has closed its reasoning.
    pub fn has_thought(&self) -> bool {
        self.output.last().is_some_and(|output| {
            !matches!(output.item.body, ItemBody::Reasoning { .. }) || output.item.status != ItemStatus::InProgress
        })
    }

    /// Whether results of its calls continue it: it ended by itself, or a steer cut it that waits for them. What was
    /// ended otherwise is not gone on with, and an interrupt leaves that to the client.
    pub fn awaits_results(&self) -> bool {
        match &self.status {
            ResponseStatus::Ended(Ending::Completed) => true,
            ResponseStatus::Ended(Ending::Incomplete { reason }) => {
                reason == "max_output_tokens" || reason == "steered"
            }
            _ => false,
        }
    }

    /// Whether it ends when nobody reads it, and does so at once.
    pub fn dies_with_its_readers(&self) -> bool {
        let policy = &self.config.policy;
        policy.on_disconnect == OnDisconnect::Cancel && policy.grace_ms == 0
    }

    /// The item that is still being generated.
    pub fn open_item(&self) -> Option<&OutputItem> {
        self.output.last().filter(|output| output.item.status == ItemStatus::InProgress)
    }

    /// The output item with this id and its index.
    pub fn output_item(&self, id: ItemId) -> Option<(usize, &OutputItem)> {
        self.output.iter().enumerate().rev().find(|(_, output)| output.item.id == id)
    }

    /// The name by which the model knows the tool that this call is of.
    pub(super) fn visible_name_of(&self, call: &CallId) -> Option<String> {
        self.output.iter().find_map(|output| match &output.item.body {
            ItemBody::FunctionCall { call_id, name, namespace, .. } if call_id == call => {
                Some(visible_name(namespace.as_deref(), name))
            }
            _ => None,
        })
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
