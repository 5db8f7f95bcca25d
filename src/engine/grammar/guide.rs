//! Follows one sequence: which tokens its constraint allows next. What it says must follow from the tokens so far and
//! from nothing else, or a resumed answer would go on otherwise.

use std::collections::VecDeque;
use std::sync::Arc;

use llguidance::Matcher;

use super::{TokenSet, readable};
use crate::engine::tokenizer::Tokenizer;
use crate::parse::{ReasoningFormat, ReasoningMarks, reasoning_marks};

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

/// Where the answer stands with its reasoning.
#[derive(Clone, Debug)]
pub(super) enum Thinking {
    /// It may begin with reasoning, by one of these tokens.
    MayBegin { openers: Vec<u32>, closers: Vec<String> },
    /// It reasons until one of these comes up; the text so far, as much of it as may be a part of one.
    Inside { closers: Vec<String>, tail: Vec<u8> },
    /// It has reasoned; line ends may come before what it has to say.
    Ended { gaps: Vec<u32> },
    /// The constraint holds.
    Over,
}

impl Thinking {
    pub(super) fn new(format: ReasoningFormat, starts_inside: Option<bool>, tokenizer: &Tokenizer) -> Self {
        let Some(ReasoningMarks { open, close, starts_inside: by_itself }) = reasoning_marks(format) else {
            return Self::Over;
        };
        let closers: Vec<String> = close.iter().map(|text| (*text).to_owned()).collect();
        match starts_inside {
            Some(true) => Self::Inside { closers, tail: Vec::new() },
            None if by_itself => Self::Inside { closers, tail: Vec::new() },
            Some(false) => Self::Over,
            None => {
                let openers = single_tokens(open, tokenizer);
                if openers.is_empty() { Self::Over } else { Self::MayBegin { openers, closers } }
            }
        }
    }
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
            Thinking::Inside { .. } => return Ok(Some(self.all_but_ends())),
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

    /// The answer may not end inside its reasoning: then it would have no form at all.
    fn all_but_ends(&self) -> TokenSet {
        let mut mask = TokenSet::alloc_ones(self.tokenizer.vocab_size());
        self.tokenizer.end_of_generation().iter().for_each(|end| mask.disallow_token(*end));
        mask
    }

    /// Takes the next token of the answer.
    pub fn accept(&mut self, token: u32) -> Result<(), Lost> {
        match &mut self.thinking {
            Thinking::MayBegin { openers, closers } if openers.contains(&token) => {
                self.thinking = Thinking::Inside { closers: std::mem::take(closers), tail: Vec::new() };
                return Ok(());
            }
            Thinking::Inside { closers, tail } => {
                match self.tokenizer.special_text(token) {
                    Some(text) => tail.extend_from_slice(text.as_bytes()),
                    None => tail.extend_from_slice(self.tokenizer.token_bytes(token)),
                }
                let is_closed = closers.iter().any(|closer| contains(tail, closer.as_bytes()));
                if is_closed {
                    let gaps = single_tokens(&["\n", "\n\n"], &self.tokenizer);
                    self.thinking = Thinking::Ended { gaps };
                } else {
                    let longest = closers.iter().map(String::len).max().unwrap_or(0);
                    tail.drain(..tail.len().saturating_sub(longest));
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
