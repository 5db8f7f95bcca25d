//! Prompts as they were run, recorded with the responses that began with them: whoever wakes a conversation reads them
//! back, and renders none of them again.
//!
//! A prompt mostly begins with the prompt before it and the answer to that, so only what is new is recorded.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::state::Response;

/// The tokens of a response's prompt, as far as they are not those of what was recorded before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedPrompt {
    /// So many tokens at its beginning are those of the prompt that was recorded last before it, and of the tokens of
    /// that response that stayed in the transcript.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kept: u32,
    /// The tokens behind them.
    pub tokens: Arc<[u32]>,
    /// The fingerprint of the model that ran it, where it is not the one that the response was created for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// So many messages behind the instructions at its head are not in it, since it would have been too long.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde calls it so
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl RecordedPrompt {
    /// The record of the prompt of `turn`, which the model with this fingerprint runs, behind the turns before it. It
    /// leaves nothing out.
    pub fn of(prompt: &[u32], turn: &Response, before: &[&Response], fingerprint: &str) -> Self {
        let held = held_behind(before).map(|held| held.tokens).unwrap_or_default();
        let kept = held.iter().zip(prompt).take_while(|(held, token)| held == token).count();
        Self {
            kept: kept as u32,
            tokens: prompt[kept..].into(),
            fingerprint: (fingerprint != turn.config.fingerprint).then(|| fingerprint.to_owned()),
            left_out: 0,
        }
    }
}

impl Response {
    /// Whether its prompt was run by the model with this fingerprint.
    fn was_run_by(&self, fingerprint: &str) -> bool {
        let own = &self.config.fingerprint;
        self.prompt.as_ref().is_some_and(|prompt| prompt.fingerprint.as_ref().unwrap_or(own) == fingerprint)
    }
}

/// Tokens that a conversation held behind one of its turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldTokens {
    /// The place of that turn.
    pub place: usize,
    /// Its prompt, and its answer as far as that stays in the transcript.
    pub tokens: Vec<u32>,
}

/// What was held behind the last of these turns whose prompt is recorded, if the model with this fingerprint ran it:
/// else the tokens mean nothing to it.
pub fn held_tokens(turns: &[&Response], fingerprint: &str) -> Option<HeldTokens> {
    held_behind(turns).filter(|held| turns[held.place].was_run_by(fingerprint))
}

/// The prompt of the last of these turns, if it is recorded and the model with this fingerprint ran it.
pub fn recorded_prompt(turns: &[&Response], fingerprint: &str) -> Option<Vec<u32>> {
    let (last, before) = turns.split_last()?;
    let prompt = last.prompt.as_ref().filter(|_| last.was_run_by(fingerprint))?;
    on(prompt, held_behind(before).map(|held| held.tokens))
}

fn held_behind(turns: &[&Response]) -> Option<HeldTokens> {
    let mut held: Option<HeldTokens> = None;
    for (place, turn) in turns.iter().enumerate() {
        let Some(prompt) = &turn.prompt else { continue };
        held = on(prompt, held.map(|held| held.tokens)).map(|mut tokens| {
            tokens.extend(turn.kept_tokens());
            HeldTokens { place, tokens }
        });
    }
    held
}

/// The prompt behind what was held before it. None where items were deleted since, and with them tokens that it kept.
fn on(prompt: &RecordedPrompt, held: Option<Vec<u32>>) -> Option<Vec<u32>> {
    let (kept, mut tokens) = (prompt.kept as usize, held.unwrap_or_default());
    if kept > tokens.len() {
        return None;
    }
    tokens.truncate(kept);
    tokens.extend_from_slice(&prompt.tokens);
    Some(tokens)
}
