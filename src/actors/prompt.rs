//! The prompt of a response: the tokens of the turns before it, and what is new.
//!
//! A turn's prompt is a pure function of the transcript: rendering turn after turn, each on the tokens of the
//! one before, gives the same tokens in a running process and after a restart. What was built last is kept, so
//! that a running conversation renders only the new turn.

use std::sync::{Mutex, PoisonError};

use crate::conversation::{Response, State, messages, turns};
use crate::engine::ModelInfo;
use crate::ids::ResponseId;
use crate::prompt::{Built, Message, Rendering, build, starts_in_reasoning};

/// The prompt that was built last in this conversation.
#[derive(Default)]
pub(super) struct HeldPrompt(Mutex<Option<Held>>);

struct Held {
    response_id: ResponseId,
    model: String,
    tokens: Vec<u32>,
}

/// A prompt, ready for an engine.
pub(super) struct Rendered {
    pub(super) tokens: Vec<u32>,
    pub(super) messages: Vec<Message>,
    /// The answer begins inside reasoning.
    pub(super) starts_in_reasoning: bool,
}

impl HeldPrompt {
    /// Builds the prompt of a response. The error is the template's own, fit for the client.
    pub(super) fn render(&self, state: &State, id: ResponseId, model: &ModelInfo) -> Result<Rendered, String> {
        let turns: Vec<&Response> = turns(state, id).collect();
        let (mut held, first) = self.begin(&turns, model);
        let mut rendered = Err(format!("no response {id}"));
        for turn in &turns[first..] {
            let messages = messages(state, turn);
            let built = build_turn(state, turn, &messages, model, held.as_deref())?;
            let mut tokens = built.tokens.clone();
            tokens.extend(turn.kept_tokens());
            held = Some(tokens);
            let starts_in_reasoning = starts_in_reasoning(&built.text);
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
) -> Result<Built, String> {
    let rendering = Rendering {
        messages,
        tools: &turn.config.tools,
        add_generation_prompt: true,
        kwargs: &turn.config.template_kwargs,
        // The conversation's own time, so that a template that shows the date gives the same prompt every day.
        now_unix_ms: state.created_ms,
    };
    build(&model.template, &model.tokenizer, &rendering, held).map_err(|error| error.to_string())
}
