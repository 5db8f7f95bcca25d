//! Effects: what the shell does once a decision is durable.

use super::event::Recorded;
use super::input::Answer;
use crate::ids::ResponseId;

/// Work for the shell. An effect is named by its generation, the seq of the event that asked for it; results of
/// a generation that is not outstanding are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Render the transcript up to this response and generate.
    StartGeneration {
        /// Names the generation.
        generation: u64,
        /// The response to generate.
        response_id: ResponseId,
    },
    /// The response may think this long from now on.
    LimitThinking {
        /// Names the generation.
        generation: u64,
        /// Tokens of reasoning; none sets no bound.
        budget_tokens: Option<u32>,
    },
    /// Compute what is certain of the prompt behind this response while nobody waits for it. Nothing comes of it but
    /// that the next prompt is computed sooner.
    Foresee {
        /// The response that ended.
        response_id: ResponseId,
    },
    /// Take the sequence out of the engine; the confirmation is an input.
    AbortGeneration {
        /// Names the generation.
        generation: u64,
    },
}

/// One decision: what happened, what follows, what is answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The events with their places; journaled as one batch.
    pub events: Vec<Recorded>,
    /// What to do once they are durable.
    pub effects: Vec<Effect>,
    /// What the asker is told once they are durable.
    pub answer: Answer,
}
