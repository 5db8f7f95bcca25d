//! Inputs: everything that can happen to a conversation from outside, and how it is answered.

use std::fmt::Display;

use serde_json::{Map, Value};

use super::event::{TokenLogprob, Usage};
use super::fork::Fork;
use super::item::Item;
use super::policy::{OnLate, OnMultiple, Policies, Thinking, ToolsOnSteer, When};
use super::prompts::RecordedPrompt;
use super::response_config::ResponseConfig;
use crate::error::Code;
use crate::ids::{CallId, ConversationId, FreshIds, InterventionId, ItemId, ResponseId};
use crate::parse::Piece;

/// Time and identity for one decision.
#[derive(Clone, Debug)]
pub struct Now {
    /// Milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Ids drawn by this decision follow from it.
    pub fresh: FreshIds,
}

/// What can happen to a conversation.
#[derive(Clone, Debug)]
pub enum Input {
    /// The conversation is to exist.
    Open {
        /// Its id.
        id: ConversationId,
        /// Who may see it.
        principal: String,
        /// With whom its prompts share keys and values.
        tenant: Option<String>,
        /// The client's own labels.
        metadata: Map<String, Value>,
        /// First items of the transcript.
        items: Vec<Item>,
        /// The transcript that it goes on with, for a fork.
        fork: Option<Box<Fork>>,
        /// What its responses inherit.
        defaults: Policies,
    },
    /// A client replaces the labels.
    Update {
        /// All labels from here on.
        metadata: Map<String, Value>,
    },
    /// A client adds items to the transcript.
    AddItems {
        /// The items, in order.
        items: Vec<Item>,
    },
    /// A client takes an item out of the transcript.
    DeleteItem {
        /// Which item.
        item_id: ItemId,
    },
    /// A client deletes a finished response's object.
    DeleteResponse {
        /// Which response.
        response_id: ResponseId,
    },
    /// A client deletes the conversation.
    Delete,
    /// A client asks for a response.
    Create(Box<Create>),
    /// A client instructs a running response.
    Intervene(Intervene),
    /// A client takes an undecided instruction back.
    Withdraw {
        /// Which instruction.
        intervention_id: InterventionId,
    },
    /// A client cancels.
    Cancel {
        /// Which response; none means the active one.
        response_id: Option<ResponseId>,
        /// Whether the response that took its place is cancelled instead.
        cascade: bool,
    },
    /// A client ends a response without the item that is open, and says itself how it goes on.
    Interrupt {
        /// Which response.
        response_id: ResponseId,
    },
    /// A worker takes a call.
    ClaimCall {
        /// Which call.
        call: CallRef,
        /// How long it is the worker's, in milliseconds.
        lease_ms: u64,
    },
    /// A call's result.
    AnswerCall {
        /// Which call.
        call: CallRef,
        /// What the model sees.
        output: String,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// Results of several calls of one response, taken all or none.
    AnswerCalls {
        /// The response that made the calls.
        response_id: ResponseId,
        /// The results: function call outputs.
        results: Vec<Item>,
    },
    /// Whether somebody reads has changed, or is to be told anew.
    Attendance {
        /// Somebody reads.
        present: bool,
        /// The fingerprint of the engine that serves the model of the active response now.
        fingerprint: Option<String>,
    },
    /// A timer ended.
    Tick,
    /// Events that clients may have seen are not in the journal.
    Rewound {
        /// The epoch that begins with it.
        epoch: u64,
    },
    /// The engine took the sequence out of its queue.
    GenerationStarted {
        /// Which generation: the seq of the event that asked for it.
        generation: u64,
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Prompt tokens that came from the KV cache.
        cached_tokens: u32,
        /// The prompt itself, where it is to be recorded.
        prompt: Option<RecordedPrompt>,
    },
    /// Whole tokens were generated, and all their text can be shown.
    Generated {
        /// Which generation.
        generation: u64,
        /// In order of generation.
        outputs: Vec<Output>,
    },
    /// The sequence is out of the engine.
    GenerationEnded {
        /// Which generation.
        generation: u64,
        /// The last outputs.
        outputs: Vec<Output>,
        /// Tokens that show no text.
        tail_tokens: Vec<u32>,
        /// What the engine counted of the whole answer, where nobody else can.
        usage: Option<Usage>,
        /// Why.
        end: GenerationEnd,
    },
    /// The server stops in good order.
    Stopping,
    /// The process started and replayed the journal: what was running is to go on.
    Restarted {
        /// The fingerprint of the engine that serves the model of the active response now.
        fingerprint: Option<String>,
    },
    /// Nothing was said to the readers of the active response for a while.
    Silence,
}

/// A group of whole tokens and the pieces they became. Nothing of it is held back.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// How likely they were, one for each, where the response asks for it; else none.
    pub logprobs: Vec<TokenLogprob>,
    /// What they say, in order.
    pub pieces: Vec<Piece>,
}

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GenerationEnd {
    /// The model stopped.
    Stop,
    /// This stop string was reached.
    StopString(String),
    /// The token limit or the context's end.
    Length,
    /// A filter of whoever answers ended it.
    Filtered,
    /// It was aborted, as asked.
    Aborted,
    /// It could not be done.
    Failed {
        /// The stable code.
        code: Code,
        /// For people.
        message: String,
    },
}

impl GenerationEnd {
    /// Whether nothing of the answer was cut off.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Stop | Self::StopString(_))
    }
}

/// A request for a response.
#[derive(Clone, Debug)]
pub struct Create {
    /// The id it will have.
    pub response_id: ResponseId,
    /// Its input items. `function_call_output` items answer open calls.
    pub input: Vec<Item>,
    /// How it is generated; its policy is decided here.
    pub config: ResponseConfig,
    /// The response that the client believes to be the last.
    pub previous: Option<ResponseId>,
    /// What the client asked for beyond the answer.
    pub policies: Policies,
    /// The client named the conversation, and can find the response there.
    pub in_conversation: bool,
}

impl Create {
    /// A request with nothing but what it needs: a turn of its own, that its readers do not outlive.
    pub fn new(response_id: ResponseId, input: Vec<Item>, config: ResponseConfig) -> Self {
        let policies = Policies::default();
        Self { response_id, input, config, previous: None, policies, in_conversation: false }
    }
}

/// Names a call as a client does.
#[derive(Clone, Debug)]
pub struct CallRef {
    /// The response that made it; none leaves it to the id.
    pub response_id: Option<ResponseId>,
    /// Which call.
    pub call_id: CallId,
    /// Which attempt; none means the current one.
    pub attempt: Option<u32>,
}

/// An instruction for a running response.
#[derive(Clone, Debug)]
pub struct Intervene {
    /// The id it will have.
    pub intervention_id: InterventionId,
    /// The response it is meant for: a compare-and-set.
    pub response_id: ResponseId,
    /// What it says.
    pub items: Vec<Item>,
    /// Where it cuts the response.
    pub when: When,
    /// What it does to those before it.
    pub on_multiple: OnMultiple,
    /// What becomes of it if the response has ended.
    pub on_late: OnLate,
    /// What it does to open calls.
    pub tools: ToolsOnSteer,
    /// How long its answer may think; without items, how long the response itself may.
    pub thinking: Option<Thinking>,
}

impl Intervene {
    /// An instruction that cuts the response at its next token.
    pub fn now(intervention_id: InterventionId, response_id: ResponseId, items: Vec<Item>) -> Self {
        Self {
            intervention_id,
            response_id,
            items,
            when: When::default(),
            on_multiple: OnMultiple::default(),
            on_late: OnLate::default(),
            tools: ToolsOnSteer::default(),
            thinking: None,
        }
    }
}

/// What a decision answers to the one who asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Nothing is to be said.
    None,
    /// The conversation exists.
    Opened,
    /// The response was created.
    Created(ResponseId),
    /// It was recorded, and is refused.
    Refused(Reject),
    /// What was asked for is done.
    Done,
    /// The instruction was accepted, or decided.
    Intervened(Receipt),
    /// The call is the worker's.
    Claimed {
        /// The response that made it.
        response_id: ResponseId,
        /// From 1.
        attempt: u32,
        /// When the lease ends, in milliseconds since the Unix epoch.
        lease_until_ms: u64,
    },
    /// The result is in.
    Answered {
        /// The seq of its acceptance.
        accepted_seq: u64,
        /// Calls that still wait.
        open_calls: Vec<CallId>,
        /// The response that goes on with the results, if all are there.
        successor_id: Option<ResponseId>,
        /// It had been given before.
        replayed: bool,
    },
    /// The cancel was decided.
    Cancel {
        /// Which response.
        response_id: ResponseId,
        /// What came of it.
        outcome: CancelOutcome,
        /// The response that was cancelled in its place.
        cascaded: Option<ResponseId>,
    },
}

/// The answer to an intervention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Its id.
    pub intervention_id: InterventionId,
    /// The response it was meant for.
    pub response_id: ResponseId,
    /// The response that answers it.
    pub successor_id: Option<ResponseId>,
    /// The seq of the event that decided it.
    pub seq: u64,
}

/// What came of a cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// Recorded: the response will end `cancelled`.
    Requested,
    /// The response had ended otherwise.
    TooLate {
        /// The active response that took its place, after a steer.
        successor_id: Option<ResponseId>,
        /// Its calls that still waited, and are closed now.
        closed_calls: Vec<CallId>,
    },
    /// The response had been cancelled before.
    AlreadyCancelled,
}

/// A refusal: nothing changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Reject {
    /// The stable code.
    pub code: Code,
    /// What was wrong and what to do.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    /// Further fields of the error: the winner of a lost race, the input given back.
    pub details: Map<String, Value>,
}

impl Reject {
    /// A refusal without further fields.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), param: None, details: Map::new() }
    }

    /// There is no such conversation, as far as the client can see.
    pub fn no_conversation(id: impl Display) -> Self {
        Self::unknown(Code::ConversationNotFound, "conversation", &id)
    }

    /// There is no such response, as far as the client can see.
    pub fn no_response(id: impl Display) -> Self {
        Self::unknown(Code::ResponseNotFound, "response", &id)
    }

    /// There is no such intervention, as far as the client can see.
    pub fn no_intervention(id: impl Display) -> Self {
        Self::unknown(Code::InterventionNotFound, "intervention", &id)
    }

    fn unknown(code: Code, what: &str, id: &dyn Display) -> Self {
        Self::new(code, format!("there is no {what} {id}; check the id, unless what it named was deleted"))
    }

    /// Names the field at fault.
    #[must_use]
    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Adds a field.
    #[must_use]
    pub fn detail(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }
}
