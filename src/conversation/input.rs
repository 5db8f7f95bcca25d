//! Inputs: everything that can happen to a conversation from outside, and how it is answered.

use serde_json::{Map, Value};

use super::event::ResponseConfig;
use super::item::Item;
use crate::error::Code;
use crate::ids::{ConversationId, FreshIds, InterventionId, ResponseId};
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
        /// The client's own labels.
        metadata: Map<String, Value>,
        /// First items of the transcript.
        items: Vec<Item>,
        /// The response whose transcript `items` is a copy of.
        forked_from: Option<ResponseId>,
    },
    /// A client asks for a response.
    Create(Box<Create>),
    /// A client instructs a running response.
    Intervene(Intervene),
    /// A client cancels.
    Cancel {
        /// Which response; none means the active one.
        response_id: Option<ResponseId>,
    },
    /// The last reader of a response that does not outlive its readers is gone.
    Disconnected {
        /// Which response.
        response_id: ResponseId,
    },
    /// The engine took the sequence out of its queue.
    GenerationStarted {
        /// Which generation: the seq of the event that asked for it.
        generation: u64,
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Prompt tokens that came from the KV cache.
        cached_tokens: u32,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// What they say, in order.
    pub pieces: Vec<Piece>,
}

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GenerationEnd {
    /// The model stopped, or a stop string was reached.
    Stop,
    /// The token limit or the context's end.
    Length,
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

/// A request for a response.
#[derive(Clone, Debug)]
pub struct Create {
    /// The id it will have.
    pub response_id: ResponseId,
    /// Its input items. `function_call_output` items answer open calls.
    pub input: Vec<Item>,
    /// How it is generated.
    pub config: ResponseConfig,
    /// The response that the client believes to be the last.
    pub previous: Option<ResponseId>,
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
    /// The instruction was decided.
    Intervened(Receipt),
    /// The cancel was decided.
    Cancel {
        /// Which response.
        response_id: ResponseId,
        /// What came of it.
        outcome: CancelOutcome,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// Recorded: the response will end `cancelled`.
    Requested,
    /// The response had ended otherwise.
    TooLate {
        /// The active response that took its place, after a steer.
        successor_id: Option<ResponseId>,
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
