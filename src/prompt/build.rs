//! From a conversation to prompt tokens, going on behind tokens that are already held.

use super::guard::{Guard, delimiters};
use super::values::visit_texts;
use super::{ChatTemplate, Rendering, TemplateError};
use crate::engine::tokenizer::{Segment, Tokenizer};

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The prompt's ids.
    pub tokens: Vec<u32>,
    /// The rendered text.
    pub text: String,
    /// How many tokens at the beginning are those that were held.
    pub common_prefix_tokens: usize,
}

/// Renders and encodes a conversation. `held` are the tokens of the earlier prompt and of the answer to it, end token
/// included if one was sampled: as far as they spell the beginning of the rendered text they are kept as they are, so
/// our own output is never encoded again, and only what follows is encoded.
///
/// A pure function: the same conversation, tools, variables, time and held tokens give the same prompt on every run.
/// Control tokens come only from the template and from `held`; their texts inside messages are encoded as text.
pub fn build(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    rendering: &Rendering<'_>,
    held: Option<&[u32]>,
) -> Result<Built, TemplateError> {
    build_within(template, tokenizer, rendering, &Known { held, runs: &[] }, usize::MAX)
}

/// Tokens that are known already, and stay as they are as far as they spell the rendered text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Those that it begins with: see [`build`].
    pub held: Option<&'a [u32]>,
    /// Those of parts of earlier answers, which stand somewhere behind, in their order.
    pub runs: &'a [&'a [u32]],
}

/// As [`build`], but refuses a text that cannot have `tokens_max` tokens or fewer before it is encoded: to encode
/// megabytes takes seconds.
pub fn build_within(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    rendering: &Rendering<'_>,
    known: &Known<'_>,
    tokens_max: usize,
) -> Result<Built, TemplateError> {
    let delimiters = delimiters(tokenizer, template.source());
    let guard = Guard::new(tokenizer, &delimiters, texts(template, rendering).into_iter());
    let rendered = template.render_guarded(rendering, guard)?;
    let pieces = pieces(tokenizer, &rendered, guard);
    let tokens_min = tokens_min(tokenizer, &pieces);
    if tokens_min > tokens_max {
        return Err(TemplateError::TooLong { bytes: rendered.len(), tokens_min, tokens_max });
    }
    let text = guard.map_or_else(|| rendered.clone(), |guard| guard.strip(&rendered));
    let place = known.held.map_or(Place::default(), |held| agreement(tokenizer, &pieces, held));
    let mut tokens = known.held.map_or_else(Vec::new, |held| held[..place.tokens].to_vec());
    let mut at = place;
    for run in known.runs {
        if let Some((begin, end)) = find_run(tokenizer, &pieces, at, run) {
            encode(tokenizer, &pieces, at, begin, &mut tokens);
            tokens.extend_from_slice(run);
            at = end;
        }
    }
    encode(tokenizer, &pieces, at, Place { piece: pieces.len(), ..Place::default() }, &mut tokens);
    Ok(Built { tokens, text, common_prefix_tokens: place.tokens })
}

/// Encodes what lies between two places.
fn encode(tokenizer: &Tokenizer, pieces: &[Piece], from: Place, to: Place, tokens: &mut Vec<u32>) {
    for (index, piece) in pieces.iter().enumerate().take(to.piece + 1).skip(from.piece) {
        match piece {
            Piece::Control(id) if index < to.piece => tokens.push(*id),
            Piece::Control(_) => {}
            Piece::Text { spelled, prefixed, breaks } => {
                let begin = if index == from.piece { from.offset } else { 0 };
                let end = if index == to.piece { to.offset } else { spelled.len() };
                // The encoder sets the space in front itself when it stands behind a special token.
                let begin = if begin == 0 { usize::from(*prefixed) } else { begin };
                if begin < end {
                    let breaks: Vec<usize> = breaks.iter().filter_map(|place| place.checked_sub(begin)).collect();
                    tokenizer.append_text(&spelled[begin..end], &breaks, tokens);
                }
            }
        }
    }
}

/// A part of the rendered text as tokens spell it.
#[derive(Debug)]
enum Piece {
    Control(u32),
    Text {
        spelled: String,
        /// `spelled` begins with a space that is not in the text but in its tokens.
        prefixed: bool,
        /// Places in `spelled` across which no delimiter lies, whatever the text looks like.
        breaks: Vec<usize>,
    },
}

fn pieces(tokenizer: &Tokenizer, rendered: &str, guard: Option<Guard<'_>>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for segment in tokenizer.segments(rendered) {
        pieces.push(match segment {
            Segment::Control(id) => Piece::Control(id),
            Segment::Text(text) => {
                let prefixed = tokenizer.space_prefix();
                let text = if prefixed { format!(" {text}") } else { text.to_owned() };
                let (spelled, breaks) = match guard {
                    Some(guard) => guard.strip_with_breaks(&text),
                    None => (text, Vec::new()),
                };
                Piece::Text { spelled, prefixed, breaks }
            }
        });
    }
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.add_bos())
        && !matches!(pieces.first(), Some(Piece::Control(id)) if *id == bos)
    {
        pieces.insert(0, Piece::Control(bos));
    }
    pieces
}

/// Fewer tokens than this cannot spell the pieces, however their texts are cut.
fn tokens_min(tokenizer: &Tokenizer, pieces: &[Piece]) -> usize {
    let longest = tokenizer.longest_token_bytes().max(1);
    let of_piece = |piece: &Piece| match piece {
        Piece::Control(_) => 1,
        Piece::Text { spelled, .. } => spelled.len() / longest,
    };
    pieces.iter().map(of_piece).sum()
}

/// A border between tokens that is a border between characters too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// Held tokens before it.
    tokens: usize,
    /// The piece it lies in.
    piece: usize,
    /// Bytes of that piece before it.
    offset: usize,
}

/// How far the held tokens spell the pieces.
fn agreement(tokenizer: &Tokenizer, pieces: &[Piece], held: &[u32]) -> Place {
    let mut agreed = Place::default();
    let mut at = Place::default();
    for &token in held {
        let Some(next) = behind(tokenizer, pieces, at, token) else { break };
        at = next;
        if is_border(pieces, at) {
            agreed = at;
        }
    }
    agreed
}

/// Where the pieces go on behind this token, if it spells what comes next.
fn behind(tokenizer: &Tokenizer, pieces: &[Piece], at: Place, token: u32) -> Option<Place> {
    let tokens = at.tokens + 1;
    match pieces.get(at.piece)? {
        Piece::Control(id) if *id == token => Some(Place { tokens, piece: at.piece + 1, offset: 0 }),
        Piece::Text { spelled, .. } if !tokenizer.is_control(token) => {
            let bytes = tokenizer.token_bytes(token);
            if bytes.is_empty() || !spelled.as_bytes()[at.offset..].starts_with(bytes) {
                return None;
            }
            let offset = at.offset + bytes.len();
            let ends = offset == spelled.len();
            Some(Place { tokens, piece: at.piece + usize::from(ends), offset: if ends { 0 } else { offset } })
        }
        _ => None,
    }
}

/// Whether a character begins here.
fn is_border(pieces: &[Piece], at: Place) -> bool {
    match pieces.get(at.piece) {
        Some(Piece::Text { spelled, .. }) => spelled.is_char_boundary(at.offset),
        _ => true,
    }
}

/// The first place behind `from` that these tokens spell, and where they end.
fn find_run(tokenizer: &Tokenizer, pieces: &[Piece], from: Place, run: &[u32]) -> Option<(Place, Place)> {
    let first = *run.first()?;
    let whole = |piece: usize, offset: usize| {
        let begin = Place { tokens: 0, piece, offset };
        let end = run.iter().try_fold(begin, |at, token| behind(tokenizer, pieces, at, *token))?;
        (is_border(pieces, begin) && is_border(pieces, end)).then_some((begin, end))
    };
    for (index, piece) in pieces.iter().enumerate().skip(from.piece) {
        let mut offset = if index == from.piece { from.offset } else { 0 };
        let bytes = tokenizer.token_bytes(first);
        match piece {
            Piece::Control(_) => {
                if let Some(found) = whole(index, 0) {
                    return Some(found);
                }
            }
            Piece::Text { spelled, .. } if !bytes.is_empty() && !tokenizer.is_control(first) => {
                let place = |from: usize| spelled.as_bytes()[from..].windows(bytes.len()).position(|it| it == bytes);
                while let Some(found) = place(offset) {
                    if let Some(found) = whole(index, offset + found) {
                        return Some(found);
                    }
                    offset += found + 1;
                }
            }
            Piece::Text { .. } => {}
        }
    }
    None
}

/// Every text that goes into the rendering from outside, for the choice of the mark.
pub(super) fn texts<'a>(template: &'a ChatTemplate, rendering: &Rendering<'a>) -> Vec<&'a str> {
    let mut texts = vec![template.source()];
    for message in rendering.messages {
        texts.push(&message.content);
        let optional = [&message.reasoning_content, &message.tool_call_id, &message.name];
        texts.extend(optional.into_iter().flatten().map(String::as_str));
        for call in &message.tool_calls {
            texts.extend([call.id.as_str(), call.name.as_str(), call.arguments.as_str()]);
            texts.extend(call.native_id.as_deref());
        }
    }
    for tool in rendering.tools {
        texts.push(&tool.name);
        texts.extend(tool.description.as_deref());
        visit_texts(&tool.parameters, &mut |text| texts.push(text));
    }
    for value in rendering.kwargs.values() {
        visit_texts(value, &mut |text| texts.push(text));
    }
    texts
}
