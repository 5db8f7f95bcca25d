//! Events: facts in the past tense, the only type that is journaled.
//!
//! One event is one frame of the conversation's stream. The stored form is JSON with a version; golden files
//! under `tests/golden/events` guard every version. Change it only by adding optional fields or variants;
//! anything else is a migration.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fork::CopiedTurn;
use super::item::{Item, ItemStatus, Made};
use super::policy::{Policies, Thinking, ToolsOnSteer, When};
use super::prompts::RecordedPrompt;
use super::response_config::ResponseConfig;
use crate::engine::settings::Price;
use crate::error::Code;
use crate::ids::{CallId, ConversationId, InterventionId, ItemId, ResponseId};

/// The version written into every stored record.
pub const EVENT_VERSION: u16 = 1;

/// An event with its place in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Position in the conversation, contiguous from 1.
    pub seq: u64,
    /// Position in the response's OpenAI-shaped stream, contiguous from 0; absent where that stream omits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// When it was decided, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What happened.
    pub event: Event,
}

/// What can happen to a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The conversation came to be; always the first event.
    ConversationCreated {
        /// Its id.
        id: ConversationId,
        /// Who may see it.
        principal: String,
        /// With whom its prompts share keys and values. Absent, with everybody for whom it is absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<String>,
        /// The client's own labels.
        #[serde(default)]
        metadata: Map<String, Value>,
        /// The response whose transcript was copied, for a fork.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forked_from: Option<ResponseId>,
        /// What its responses inherit.
        #[serde(default, skip_serializing_if = "Policies::is_empty")]
        defaults: Policies,
        /// The time that templates see, for a fork: its parent's. Absent, it is the conversation's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        template_ms: Option<u64>,
    },
    /// The client's labels were replaced.
    ConversationUpdated {
        /// All labels from here on.
        metadata: Map<String, Value>,
    },
    /// Events that clients may have seen are not in the journal: seqs behind `seq` are given anew.
    ConversationRewound {
        /// The last seq that still means what it meant.
        seq: u64,
        /// Counts rewinds; cursors carry it.
        epoch: u64,
    },
    /// The conversation is gone, for every interface; always the last event.
    ConversationDeleted {},
    /// The server stopped in good order while calls were claimed or timed.
    ConversationSuspended {},
    /// The server started again after it had stopped in good order: what was claimed or timed goes on.
    ConversationResumed {},
    /// Items joined the transcript outside of a response: given at creation, or added. They become part of the next
    /// response's input.
    ItemsAdded {
        /// The items, in order.
        items: Vec<Item>,
    },
    /// Turns of another conversation are the beginning of this one's transcript: a fork's, right behind its creation.
    TurnsCopied {
        /// The turns, in order.
        turns: Vec<CopiedTurn>,
    },
    /// An item left the transcript; a call and its result leave together.
    ItemDeleted {
        /// Which item.
        item_id: ItemId,
    },
    /// A finished response's object is gone; the transcript stays.
    ResponseDeleted {
        /// Which response.
        response_id: ResponseId,
    },
    /// A response was created with what it needs to be generated. It takes all items added since the last one.
    ResponseCreated(Box<NewResponse>),
    /// Its turn has come: it was enqueued behind other turns.
    ResponseDequeued {
        /// Which response.
        response_id: ResponseId,
    },
    /// A sign of life while it waits for the engine.
    ResponseQueued {
        /// Which response.
        response_id: ResponseId,
    },
    /// Nobody reads it any more, and its policy minds.
    ResponseUnattended {
        /// Which response.
        response_id: ResponseId,
        /// When its policy acts, in milliseconds since the Unix epoch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_ms: Option<u64>,
    },
    /// Somebody reads it again.
    ResponseAttended {
        /// Which response.
        response_id: ResponseId,
    },
    /// Nobody read it for its grace: it stands at a token until somebody does.
    ResponsePaused {
        /// Which response.
        response_id: ResponseId,
    },
    /// Little is left of the tokens that all answers of the conversation may have together; told once for each bound.
    ConversationBudgetLow {
        /// The response that is about to spend them.
        response_id: ResponseId,
        /// The bound.
        max_conversation_tokens: u64,
        /// What is left of it.
        left_tokens: u64,
    },
    /// The engine began: the prompt is rendered and its length known. Also a sign of life after silence.
    ResponseInProgress {
        /// Which response.
        response_id: ResponseId,
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Prompt tokens that came from the KV cache.
        cached_tokens: u32,
        /// The prompt itself, where the response begins with this event and is stored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<RecordedPrompt>,
    },
    /// The server stops in good order: the response goes on after the restart, and that is no attempt.
    ResponseSuspended {
        /// Which response.
        response_id: ResponseId,
    },
    /// After a restart the response goes on.
    ResponseResumed {
        /// Which response.
        response_id: ResponseId,
        /// Crashes without a new token in between; 0 behind a stop in good order.
        attempt: u32,
        /// Whether the same tokens as without the restart are guaranteed.
        exact: bool,
    },
    /// An output item began.
    OutputItemAdded {
        /// Which response.
        response_id: ResponseId,
        /// The item, empty and in progress.
        item: Item,
        /// Index of the item's first token in the response.
        first_token: u32,
    },
    /// The text part of a message or reasoning item began.
    ContentPartAdded {
        /// Which response.
        response_id: ResponseId,
        /// Which item.
        item_id: ItemId,
    },
    /// Text, reasoning or argument text was generated: which, the item says.
    OutputDelta {
        /// Which response.
        response_id: ResponseId,
        /// Which item.
        item_id: ItemId,
        /// What was shown.
        text: String,
        /// The tokens it was made from; a token is in exactly one event.
        tokens: Vec<u32>,
        /// How likely they were, one for each, where the response asks for it; else none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<TokenLogprob>,
    },
    /// The text of a message, reasoning or argument text is whole, or cut for good.
    OutputDone {
        /// Which response.
        response_id: ResponseId,
        /// Which item.
        item_id: ItemId,
    },
    /// The part ended.
    ContentPartDone {
        /// Which response.
        response_id: ResponseId,
        /// Which item.
        item_id: ItemId,
    },
    /// The item ended.
    OutputItemDone {
        /// Which response.
        response_id: ResponseId,
        /// Which item.
        item_id: ItemId,
        /// Whole or cut.
        status: ItemStatus,
        /// The id that the model itself gave the call, where it wrote it behind the arguments.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        native_id: Option<String>,
        /// What the reasoning's maker wants to read again with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        made: Option<Made>,
    },
    /// A partial item was thrown away by an interrupt.
    OutputItemDiscarded {
        /// Which response.
        response_id: ResponseId,
        /// Which item.
        item_id: ItemId,
    },
    /// A whole tool call waits for its result.
    ToolCallRequested {
        /// The response that made it.
        response_id: ResponseId,
        /// Which call.
        call_id: CallId,
        /// From 1.
        attempt: u32,
    },
    /// A worker took the call until the lease ends.
    ToolCallClaimed {
        /// The response that made it.
        response_id: ResponseId,
        /// Which call.
        call_id: CallId,
        /// From 1.
        attempt: u32,
        /// When the lease ends, in milliseconds since the Unix epoch.
        lease_until_ms: u64,
    },
    /// A result joined the conversation.
    ToolResultAccepted {
        /// The response that made the call.
        response_id: ResponseId,
        /// Which call.
        call_id: CallId,
        /// From 1.
        attempt: u32,
        /// The result as it joins the transcript.
        output: Item,
    },
    /// A result came for a call that takes none; it never reaches the model.
    ToolResultDiscarded {
        /// The response that made the call.
        response_id: ResponseId,
        /// Which call.
        call_id: CallId,
        /// The attempt it was for.
        attempt: u32,
        /// Why the call takes none.
        reason: String,
        /// The seq of the event that closed the call.
        by_seq: u64,
    },
    /// A call takes no result any more; the model sees `output` in its place.
    ToolCallClosed {
        /// The response that made it.
        response_id: ResponseId,
        /// Which call.
        call_id: CallId,
        /// From 1.
        attempt: u32,
        /// `cancelled`, `steered`, `superseded`, `disconnected`, `failed`, `timeout`, `lease_ended`, `restarted`.
        reason: String,
        /// The synthetic result as it joins the transcript.
        output: Item,
    },
    /// A cancel is recorded: from here on the response ends `cancelled`, whatever else happens.
    CancelRequested {
        /// Which response.
        response_id: ResponseId,
    },
    /// The response ended; written once.
    ResponseEnded {
        /// Which response.
        response_id: ResponseId,
        /// How.
        ending: Ending,
        /// Tokens behind the last shown text: the stop token, closing tags.
        #[serde(default)]
        tail_tokens: Vec<u32>,
        /// The stop string that ended it, where one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_string: Option<String>,
        /// What the engine counted, where it alone can: it takes the place of what was counted on the way.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
    /// An instruction for a running response was accepted.
    InterventionAccepted {
        /// Its id.
        intervention_id: InterventionId,
        /// The response it was meant for.
        response_id: ResponseId,
        /// What it says.
        items: Vec<Item>,
        /// Where the response is cut.
        #[serde(default, skip_serializing_if = "When::is_default")]
        when: When,
        /// What becomes of open calls.
        #[serde(default, skip_serializing_if = "ToolsOnSteer::is_default")]
        tools: ToolsOnSteer,
        /// It came late and waits as a turn of its own.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        enqueued: bool,
        /// How long its answer may think; without items, how long the response itself may.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        thinking: Option<Thinking>,
    },
    /// The instruction waits until the calls have their results.
    InterventionPending {
        /// Its id.
        intervention_id: InterventionId,
        /// The response it was meant for.
        response_id: ResponseId,
    },
    /// The instruction never joins the transcript; its input goes back to the client.
    InterventionFailed {
        /// Its id.
        intervention_id: InterventionId,
        /// The response it was meant for.
        response_id: ResponseId,
        /// Why.
        error: ResponseError,
    },
    /// A later instruction took the place of this one.
    InterventionSuperseded {
        /// Its id.
        intervention_id: InterventionId,
        /// The response it was meant for.
        response_id: ResponseId,
        /// The later one.
        by: InterventionId,
    },
    /// The client took the instruction back.
    InterventionWithdrawn {
        /// Its id.
        intervention_id: InterventionId,
        /// The response it was meant for.
        response_id: ResponseId,
    },
    /// The instruction is in the transcript and a successor answers it.
    InterventionCommitted {
        /// Its id.
        intervention_id: InterventionId,
        /// The response it was meant for.
        response_id: ResponseId,
        /// The response that answers it; the same one, where only its thinking changes.
        successor_id: ResponseId,
        /// Where the old response was cut; absent when it ended by itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut: Option<Cut>,
    },
}

/// What a response is created with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewResponse {
    /// Its id.
    pub id: ResponseId,
    /// The response before it in this conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<ResponseId>,
    /// Its own input, behind what the conversation already holds.
    pub input: Vec<Item>,
    /// How it is generated.
    pub config: ResponseConfig,
    /// It waits behind the turn that runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enqueued: bool,
}

/// How likely a token was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// What the token says; bytes, since it may be a part of a character.
    pub bytes: Vec<u8>,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The likeliest tokens in its place with theirs, the likeliest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<(Vec<u8>, f32)>,
}

/// How a response ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Ending {
    /// By itself: the model stopped, or its calls wait for results.
    Completed,
    /// Cut: `max_output_tokens`, `max_unattended_tokens`, `max_conversation_tokens`, `steered`, `interrupted`,
    /// `disconnected`, `conversation_deleted`.
    Incomplete {
        /// Why.
        reason: String,
    },
    /// By a cancel.
    Cancelled,
    /// By a fault.
    Failed {
        /// What happened.
        error: ResponseError,
    },
}

/// Why a response failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseError {
    /// The stable code.
    pub code: Code,
    /// For people.
    pub message: String,
}

/// Tokens of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Prompt tokens that came from the KV cache.
    pub cached_tokens: u32,
    /// Tokens generated, the stop token included.
    pub output_tokens: u32,
    /// Generated tokens that were reasoning.
    pub reasoning_tokens: u32,
    /// What they cost in the end, in billionths, where there is a price. It follows from that, and is not stored.
    #[serde(skip)]
    pub cost_nanos: Option<u64>,
}

impl Usage {
    /// What the tokens cost at this price, in billionths.
    pub(super) fn nanos_at(&self, price: Price) -> u64 {
        price.nanos(self.input_tokens, self.cached_tokens, self.output_tokens)
    }
}

/// Where a response was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// The item that was open, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<ItemId>,
    /// Tokens of the response that are kept.
    pub token_index: u32,
}
