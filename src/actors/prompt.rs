//! The prompt of a response: the tokens of the turns before it, and what is new.
//!
//! A turn's prompt is a pure function of the transcript: rendering turn after turn, each on the tokens of the
//! one before, gives the same tokens in a running process and after a restart. What was built last is kept, so
//! that a running conversation renders only the new turn.

use std::sync::{Mutex, PoisonError};

use crate::conversation::{Response, State, messages, turns};
use crate::engine::ModelInfo;
use crate::ids::ResponseId;
use crate::parse::ends_in_reasoning;
use crate::prompt::{Built, Message, Rendering, build};

/// The prompt that was built last in this conversation.
#[derive(Default)]
pub(super) struct HeldPrompt(Mutex<Option<Held>>);

struct Held {
    response_id: ResponseId,
    model: String,
    tokens: Vec<u32>,
}

/// Why there is no prompt; the texts are fit for the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unrendered {
    /// The template refuses the conversation.
    Template(String),
    /// It cannot fit into the model's context, however it is cut into tokens.
    TooLong(String),
}

/// A prompt, ready for an engine.
pub(super) struct Rendered {
    pub(super) tokens: Vec<u32>,
    pub(super) messages: Vec<Message>,
    /// Whether the answer begins inside reasoning, if the prompt's end says.
    pub(super) starts_in_reasoning: Option<bool>,
}

impl HeldPrompt {
    /// Builds the prompt of a response.
    pub(super) fn render(&self, state: &State, id: ResponseId, model: &ModelInfo) -> Result<Rendered, Unrendered> {
        let turns: Vec<&Response> = turns(state, id).collect();
        let (mut held, first) = self.begin(&turns, model);
        let mut rendered = Err(Unrendered::Template(format!("no response {id}")));
        for turn in &turns[first..] {
            let messages = messages(state, turn);
            refuse_hopeless(&messages, model)?;
            let built = build_turn(state, turn, &messages, model, held.as_deref())?;
            let mut tokens = built.tokens.clone();
            tokens.extend(turn.kept_tokens());
            held = Some(tokens);
            let starts_in_reasoning = ends_in_reasoning(model.reasoning, &built.text);
            rendered = Ok(Rendered { tokens: built.tokens, messages, starts_in_reasoning });
        }
        if let Ok(Rendered { tokens, .. }) = &rendered {
            let held = Held { response_id: id, model: model.id.clone(), tokens: tokens.clone() };
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
        }
        rendered
    }

    /// The tokens of the last turn that was built, with its answer, and the turn to go on with.
    fn begin(&self, turns: &[&Response], model: &ModelInfo) -> (Option<Vec<u32>>, usize) {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(held) = held.as_ref().filter(|held| held.model == model.id) else { return (None, 0) };
        let Some(place) = turns.iter().position(|turn| turn.id == held.response_id) else { return (None, 0) };
        if place + 1 >= turns.len() {
            return (None, 0);
        }
        let mut tokens = held.tokens.clone();
        tokens.extend(turns[place].kept_tokens());
        (Some(tokens), place + 1)
    }
}

fn build_turn(
    state: &State,
    turn: &Response,
    messages: &[Message],
    model: &ModelInfo,
    held: Option<&[u32]>,
) -> Result<Built, Unrendered> {
    let rendering = Rendering {
        messages,
        tools: &turn.config.tools,
        add_generation_prompt: true,
        kwargs: &turn.config.template_kwargs,
        // The conversation's own time, so that a template that shows the date gives the same prompt every day.
        now_unix_ms: state.created_ms,
        strip_preamble: false,
    };
    build(&model.template, &model.tokenizer, &rendering, held).map_err(|error| Unrendered::Template(error.to_string()))
}

/// Refuses what is certain to be too long before it is tokenised: megabytes of text take seconds, and more memory
/// than they are worth.
fn refuse_hopeless(messages: &[Message], model: &ModelInfo) -> Result<(), Unrendered> {
    let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
    let tokens_min = bytes / model.tokenizer.longest_token_bytes().max(1);
    let context = model.context_length as usize;
    if tokens_min <= context {
        return Ok(());
    }
    Err(Unrendered::TooLong(format!(
        "the prompt has {bytes} bytes, at least {tokens_min} tokens, but the model's context holds {context}; \
         shorten the input"
    )))
}
