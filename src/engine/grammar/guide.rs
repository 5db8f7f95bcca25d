//! Follows one sequence: which tokens its constraint allows next. What it says must follow from the tokens so far and
//! from nothing else, or a resumed answer would go on otherwise.

use std::collections::VecDeque;
use std::sync::Arc;

use llguidance::Matcher;

use super::{Surroundings, TokenSet, readable};
use crate::engine::tokenizer::Tokenizer;
use crate::parse::{ReasoningMarks, reasoning_marks};

/// Tokens of what is certain that are told at once: as many as fit into a step.
const FORESEEN_MAX: usize = 16;

/// The constraint failed while it was followed: it came to need more than it may. The text is fit to be shown to a
/// client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this cannot be followed to the answer's end, make it smaller: {0}")]
pub struct Lost(String);

/// A constraint on its way along a sequence. It holds behind the reasoning.
#[derive(Clone)]
pub struct Guide {
    matcher: Matcher,
    thinking: Thinking,
    tokenizer: Arc<Tokenizer>,
    /// The next tokens, as far as they are certain: reckoned once for a text of the grammar, not at each of its tokens.
    certain: VecDeque<u32>,
    /// Tokens taken since the last mask.
    unmasked: usize,
}

/// Tokens that may be taken before the matcher is asked for a mask: what it may work is counted anew at each.
const UNMASKED_MAX: usize = 32;

/// How a model's reasoning is marked, and what must not stand in it.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    open: &'static [&'static str],
    close: &'static [&'static str],
    starts_inside: bool,
    /// What opens a call, where one ends reasoning: such a call would be held to nothing, so that none begins before
    /// the reasoning is closed.
    calls: &'static [&'static str],
    /// Tokens that reasoning never has: they open a call, or say more behind what closes the reasoning, which nobody
    /// would hold to the constraint.
    never: Arc<[u32]>,
}

impl Marks {
    /// The marks of a model, if it marks its reasoning. Looks at the whole vocabulary.
    pub(super) fn new(surroundings: &Surroundings<'_>, tokenizer: &Tokenizer) -> Option<Self> {
        let ReasoningMarks { open, close, starts_inside, ends_at_call } = reasoning_marks(surroundings.reasoning)?;
        let calls: &'static [&'static str] = if ends_at_call { surroundings.tool_format.openings() } else { &[] };
        let is_part = |text: &str, marks: &[&str]| marks.iter().any(|mark| mark.contains(text));
        // Of a mark of several tokens the model is better kept from the first than from the last.
        let is_of_calls = |text: &str| !text.is_empty() && is_part(text, calls) && !is_part(text, close);
        let is_whole = |text: &[u8]| {
            let ends = |mark: &&str| text.len() > mark.len() && contains(text, mark.as_bytes());
            calls.iter().any(|mark| contains(text, mark.as_bytes())) || close.iter().any(ends)
        };
        let is_never = |token: &u32| {
            tokenizer.special_text(*token).is_some_and(is_of_calls) || is_whole(text_of(*token, tokenizer))
        };
        let never = (0..tokenizer.vocab_size() as u32).filter(is_never).collect();
        Some(Self { open, close, starts_inside, calls, never })
    }

    /// The length of the longest mark.
    fn longest(&self) -> usize {
        self.close.iter().chain(self.calls).map(|mark| mark.len()).max().unwrap_or(0)
    }
}

/// What is missing of those of these marks that this text may end with a part of.
fn missing(marks: &[&'static str], tail: &[u8]) -> Vec<&'static [u8]> {
    let mut missing = Vec::new();
    for mark in marks.iter().map(|mark| mark.as_bytes()) {
        for at in (1..mark.len()).filter(|at| tail.ends_with(&mark[..*at])) {
            missing.push(&mark[at..]);
        }
    }
    missing
}

/// Where the answer stands with its reasoning.
#[derive(Clone, Debug)]
pub(super) enum Thinking {
    /// It may begin with reasoning, by one of these tokens.
    MayBegin { openers: Vec<u32>, marks: Marks },
    /// It reasons until it is closed; the text so far, as much of it as may be a part of a mark.
    Inside { marks: Marks, tail: Vec<u8> },
    /// It has reasoned; line ends may come before what it has to say.
    Ended { gaps: Vec<u32> },
    /// The constraint holds.
    Over,
}

impl Thinking {
    pub(super) fn new(marks: Option<&Marks>, starts_inside: Option<bool>, tokenizer: &Tokenizer) -> Self {
        let Some(marks) = marks else { return Self::Over };
        if starts_inside.unwrap_or(marks.starts_inside) {
            return Self::Inside { marks: marks.clone(), tail: Vec::new() };
        }
        let openers = single_tokens(marks.open, tokenizer);
        // The prompt may say that it is over.
        if starts_inside.is_some() || openers.is_empty() {
            return Self::Over;
        }
        Self::MayBegin { openers, marks: marks.clone() }
    }
}

/// The text of a token, of a control token as well.
fn text_of(token: u32, tokenizer: &Tokenizer) -> &[u8] {
    tokenizer.special_text(token).map_or_else(|| tokenizer.token_bytes(token), str::as_bytes)
}

/// Those of the texts that are one token.
fn single_tokens(texts: &[&str], tokenizer: &Tokenizer) -> Vec<u32> {
    let encoded = texts.iter().map(|text| tokenizer.encode(text, true));
    encoded.filter_map(|tokens| <[u32; 1]>::try_from(tokens).ok()).map(|[token]| token).collect()
}

impl Guide {
    pub(super) fn new(matcher: Matcher, thinking: Thinking, tokenizer: Arc<Tokenizer>) -> Self {
        Self { matcher, thinking, tokenizer, certain: VecDeque::new(), unmasked: 0 }
    }

    /// The tokens that may come next; absent where all may.
    pub fn mask(&mut self) -> Result<Option<TokenSet>, Lost> {
        let besides: &[u32] = match &self.thinking {
            Thinking::Inside { marks, tail } => return Ok(Some(self.in_reasoning(marks, tail))),
            Thinking::MayBegin { openers, .. } => openers,
            Thinking::Ended { gaps } => gaps,
            Thinking::Over => &[],
        };
        if let Some(token) = self.certain.front() {
            let mut mask = TokenSet::alloc(self.tokenizer.vocab_size());
            mask.allow_token(*token);
            return Ok(Some(mask));
        }
        self.unmasked = 0;
        let mut mask = self.matcher.compute_mask_or_eos().map_err(|error| Lost(readable(&error.to_string())))?;
        for token in besides {
            mask.allow_token(*token);
        }
        Ok(Some(mask))
    }

    /// The tokens that must come next, as far as that is known without asking the model.
    pub fn forced(&mut self) -> Vec<u32> {
        if matches!(self.thinking, Thinking::Over) && self.certain.is_empty() {
            self.certain = self.matcher.compute_ff_tokens().into();
        }
        self.certain.iter().take(FORESEEN_MAX).copied().collect()
    }

    /// What may come in reasoning behind this text. The answer may not end there, and no call begin: then it would have
    /// no form at all.
    fn in_reasoning(&self, marks: &Marks, tail: &[u8]) -> TokenSet {
        let mut mask = TokenSet::alloc_ones(self.tokenizer.vocab_size());
        let ends = self.tokenizer.end_of_generation();
        ends.iter().chain(marks.never.iter()).for_each(|token| mask.disallow_token(*token));
        let (calls, closes) = (missing(marks.calls, tail), missing(marks.close, tail));
        if calls.is_empty() && closes.is_empty() {
            return mask;
        }
        for token in 0..self.tokenizer.vocab_size() as u32 {
            let text = text_of(token, &self.tokenizer);
            let opens = calls.iter().any(|rest| text.starts_with(rest));
            if opens || closes.iter().any(|rest| text.len() > rest.len() && text.starts_with(rest)) {
                mask.disallow_token(token);
            }
        }
        mask
    }

    /// Takes the next token of the answer.
    pub fn accept(&mut self, token: u32) -> Result<(), Lost> {
        match &mut self.thinking {
            Thinking::MayBegin { openers, marks } if openers.contains(&token) => {
                self.thinking = Thinking::Inside { marks: marks.clone(), tail: Vec::new() };
                return Ok(());
            }
            Thinking::Inside { marks, tail } => {
                tail.extend_from_slice(text_of(token, &self.tokenizer));
                let is_closed = marks.close.iter().any(|closer| contains(tail, closer.as_bytes()));
                if is_closed {
                    let gaps = single_tokens(&["\n", "\n\n"], &self.tokenizer);
                    self.thinking = Thinking::Ended { gaps };
                } else {
                    tail.drain(..tail.len().saturating_sub(marks.longest()));
                }
                return Ok(());
            }
            Thinking::Ended { gaps } if gaps.contains(&token) => {
                self.thinking = Thinking::Over;
                return Ok(());
            }
            Thinking::MayBegin { .. } | Thinking::Ended { .. } | Thinking::Over => self.thinking = Thinking::Over,
        }
        if self.matcher.is_stopped() {
            // Behind its end only an end of generation is allowed, which ends the sequence.
            return Ok(());
        }
        match self.certain.pop_front() {
            Some(certain) if certain == token => {}
            _ => self.certain.clear(),
        }
        self.unmasked += 1;
        if self.unmasked > UNMASKED_MAX {
            self.unmasked = 0;
            self.matcher.compute_mask_or_eos().map_err(|error| Lost(readable(&error.to_string())))?;
        }
        self.matcher.consume_token(token).map_err(|error| Lost(readable(&error.to_string())))
    }
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Guide").field("thinking", &self.thinking).finish_non_exhaustive()
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len().max(1)).any(|window| window == part)
}
