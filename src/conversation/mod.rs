//! The pure core: what a conversation is and how it changes.
//!
//! A conversation is a fold over its journal. [`decide`] looks at a [`State`] and an [`Input`] and says which
//! [`Event`]s happened and which [`Effect`]s follow; [`State::apply`] folds an event in. A restart is an input
//! too, [`Input::Restarted`]: its decision says what goes on. The shell around it keeps one order: decide,
//! journal, apply, publish, perform effects.
//!
//! **Invariant:** nothing here reads a clock, draws a random number, does I/O or waits. Time and ids come in
//! with [`Now`].

mod apply;
mod budget;
mod calls;
mod cancel;
mod create;
mod decide;
mod delete;
mod effect;
mod event;
mod extras;
mod fork;
mod generation;
mod input;
mod item;
mod output;
mod policy;
mod prompts;
mod purpose;
mod response_config;
mod restart;
mod seal_key;
mod state;
mod steer;
mod terminal;
mod title;
mod tool_calls;
mod tools;
mod transcript;
mod trim;

#[cfg(test)]
mod tests;

pub use create::imagined;
pub use decide::decide;
pub use effect::{Effect, Step};
pub use event::{Cut, EVENT_VERSION, Ending, Event, NewResponse, Recorded, ResponseError, TokenLogprob, Usage};
pub use extras::Extras;
pub use fork::{CopiedCall, CopiedOutput, CopiedTurn, Fork, fork};
pub use input::{
    Answer, CallRef, CancelOutcome, Create, GenerationEnd, Input, Intervene, Now, Output, Receipt, Reject,
};
pub use item::{Content, Item, ItemBody, ItemStatus, Made};
pub use policy::{
    FlushPolicy, IfBusy, OnDisconnect, OnLate, OnMultiple, OnRestart, Policies, Policy, Thinking, ToolPolicy,
    ToolsOnSteer, When,
};
pub use prompts::{HeldTokens, RecordedPrompt, held_tokens, recorded_prompt};
pub use purpose::{Purpose, ToolsAllowed};
pub use response_config::{ChoiceOf, Formats, ResponseConfig};
pub use seal_key::SealKey;
pub use state::{
    Call, CallStatus, Intervention, InterventionStatus, OutputItem, Response, ResponseStatus, State, Unattended,
};
pub use title::title;
pub use tools::{
    CUSTOM_ARGUMENT, CallKind, Hold, ToolShape, ToolShapes, Toolbox, brought, custom_arguments, custom_input,
    custom_input_behind, visible_name,
};
pub use transcript::{known_runs, messages, messages_with_answer, messages_within, turns};
pub use trim::{Border, Survey, begins_turn, reduce};
