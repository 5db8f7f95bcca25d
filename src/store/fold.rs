//! Folding: the deltas of an ended response, one record instead of hundreds.
//!
//! A run of deltas of one item becomes: the ids once, all text in one piece, all tokens in one piece, and per
//! event its number, time, text length and token count as variable-length integers. Every event is rebuilt byte
//! for byte; a run that would not be is left as it is.
//!
//! **Invariant:** pure; bytes that are no folded run are an error, never a panic and never a large allocation.

use crate::conversation::{Event, Recorded};
use crate::ids::{ItemId, ResponseId};

/// No number; the number after the event before; a number of its own.
const NO_NUMBER: u64 = 0;
const NEXT_NUMBER: u64 = 1;
const OWN_NUMBER: u64 = 2;

/// Whether two events may stand next to each other in a run.
pub(super) fn is_run(first: &Recorded, second: &Recorded) -> bool {
    first.seq.checked_add(1) == Some(second.seq)
        && match (delta(first), delta(second)) {
            (Some(first), Some(second)) => first.response == second.response && first.item == second.item,
            _ => false,
        }
}

/// The run as bytes, or none if it is no run, or if it would not come out of [`unfold`] as it is.
pub(super) fn fold(run: &[Recorded]) -> Option<Vec<u8>> {
    let first = delta(run.first()?)?;
    if !run.windows(2).all(|pair| is_run(&pair[0], &pair[1])) {
        return None;
    }
    let deltas: Vec<_> = run.iter().filter_map(delta).collect();
    let text: String = deltas.iter().map(|delta| delta.text).collect();
    let tokens: Vec<u32> = deltas.iter().flat_map(|delta| delta.tokens).copied().collect();
    let mut out = Vec::with_capacity(64 + text.len() + 3 * tokens.len() + 6 * run.len());
    out.extend_from_slice(&first.response.to_bytes());
    out.extend_from_slice(&first.item.to_bytes());
    put(&mut out, run[0].seq);
    put(&mut out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
    put(&mut out, tokens.len() as u64);
    for token in tokens {
        put(&mut out, u64::from(token));
    }
    put(&mut out, run.len() as u64);
    let mut before = (0_u64, 0_u64);
    for (recorded, delta) in run.iter().zip(&deltas) {
        match recorded.number {
            None => put(&mut out, NO_NUMBER),
            Some(number) if number == before.0 => put(&mut out, NEXT_NUMBER),
            Some(number) => {
                put(&mut out, OWN_NUMBER);
                put(&mut out, number);
            }
        }
        put(&mut out, zigzag(recorded.at_ms.wrapping_sub(before.1) as i64));
        put(&mut out, delta.text.len() as u64);
        put(&mut out, delta.tokens.len() as u64);
        before = (recorded.number.map_or(before.0, |number| number.wrapping_add(1)), recorded.at_ms);
    }
    (unfold(&out).as_deref() == Ok(run)).then_some(out)
}

/// The events of a folded run.
pub(super) fn unfold(bytes: &[u8]) -> Result<Vec<Recorded>, String> {
    read(bytes).ok_or_else(|| "the folded deltas cannot be read".into())
}

struct Delta<'a> {
    response: ResponseId,
    item: ItemId,
    text: &'a str,
    tokens: &'a [u32],
}

fn delta(recorded: &Recorded) -> Option<Delta<'_>> {
    match &recorded.event {
        // How likely tokens were is seldom asked for, and not folded.
        Event::OutputDelta { response_id, item_id, text, tokens, logprobs } if logprobs.is_empty() => {
            Some(Delta { response: *response_id, item: *item_id, text, tokens })
        }
        _ => None,
    }
}

fn read(mut bytes: &[u8]) -> Option<Vec<Recorded>> {
    let input = &mut bytes;
    let response_id = ResponseId::from_bytes(take(input, 16)?.try_into().ok()?);
    let item_id = ItemId::from_bytes(take(input, 16)?.try_into().ok()?);
    let first_seq = get(input)?;
    let text_length = get(input)?;
    let mut text = std::str::from_utf8(take(input, text_length)?).ok()?;
    let mut tokens = Vec::new();
    for _ in 0..get(input)? {
        tokens.push(u32::try_from(get(input)?).ok()?);
    }
    let mut tokens = tokens.as_slice();
    let mut run = Vec::new();
    let mut before = (0_u64, 0_u64);
    for index in 0..get(input)? {
        let number = match get(input)? {
            NO_NUMBER => None,
            NEXT_NUMBER => Some(before.0),
            OWN_NUMBER => Some(get(input)?),
            _ => return None,
        };
        let at_ms = before.1.wrapping_add(unzigzag(get(input)?) as u64);
        let (own_text, rest) = text.split_at_checked(usize::try_from(get(input)?).ok()?)?;
        let (own_tokens, rest_tokens) = tokens.split_at_checked(usize::try_from(get(input)?).ok()?)?;
        (text, tokens) = (rest, rest_tokens);
        run.push(Recorded {
            seq: first_seq.checked_add(index)?,
            number,
            at_ms,
            event: Event::OutputDelta {
                response_id,
                item_id,
                text: own_text.to_owned(),
                tokens: own_tokens.to_vec(),
                logprobs: Vec::new(),
            },
        });
        before = (number.map_or(before.0, |number| number.wrapping_add(1)), at_ms);
    }
    (bytes.is_empty() && text.is_empty() && tokens.is_empty() && !run.is_empty()).then_some(run)
}

fn take<'a>(input: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(usize::try_from(length).ok()?)?;
    *input = rest;
    Some(taken)
}

/// LEB128: seven bits a byte, low ones first.
fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn get(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Small numbers of either sign become small unsigned ones.
fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
