//! A conversation that is too long for its model, made shorter where its request allows it: whole turns are left out of
//! the prompt, the oldest first, and no call without its result. Instructions at the head and the newest turn stay.
//!
//! Pure: what is left out follows from the messages and the model, and is recorded with the prompt.

use std::collections::HashMap;

use super::prompt::Unrendered;
use crate::prompt::{Built, Message, Role};

/// What is left out grows by as many bytes at least as this part of a prompt may have tokens.
const STEPS: usize = 4;

/// An answer that sets itself no bound, or a higher one, is given room for this part of the context.
const ANSWER_PART: u32 = 4;

/// Tokens that a prompt may have for its answer to have room as well.
pub(super) fn prompt_tokens_max(context_length: u32, max_output_tokens: Option<u32>) -> usize {
    let room = max_output_tokens.unwrap_or(u32::MAX).min(context_length / ANSWER_PART).max(1);
    context_length.saturating_sub(room) as usize
}

/// The prompt of fewest messages left out that has at most `tokens_max` tokens, and how many are left out; if there is
/// none, the one of the newest turn alone, which may still fit into the context. `build` makes a prompt of messages.
///
/// Turns go several at once: the prompts of the next few turns then begin at the same place, and their KV is found
/// again.
pub(super) fn shortened(
    messages: &[Message],
    tokens_max: usize,
    build: impl Fn(&[Message]) -> Result<Built, Unrendered>,
) -> Result<(usize, Built), Unrendered> {
    let with = |left_out: usize| {
        let mut messages = messages.to_vec();
        leave_out(&mut messages, left_out);
        build(&messages)
    };
    let fits = |built: &Result<Built, Unrendered>| built.as_ref().is_ok_and(|built| built.tokens.len() <= tokens_max);
    let whole = build(messages);
    let cuts = coarse(cuts(messages), messages, tokens_max / STEPS);
    // What a template refuses does not become right by being shorter.
    let Some(last) = cuts.last().filter(|_| !fits(&whole) && !matches!(whole, Err(Unrendered::Template(_)))) else {
        return whole.map(|built| (0, built));
    };
    let (mut least, mut most, mut best) = (0, cuts.len(), None);
    while least < most {
        let middle = usize::midpoint(least, most);
        let built = with(cuts[middle]);
        if fits(&built) {
            (most, best) = (middle, built.ok().map(|built| (cuts[middle], built)));
        } else {
            least = middle + 1;
        }
    }
    best.map_or_else(|| with(*last).map(|built| (*last, built)), Ok)
}

/// Takes so many messages out from behind the instructions at the head.
pub(super) fn leave_out(messages: &mut Vec<Message>, count: usize) {
    let head = head(messages);
    messages.drain(head..(head + count).min(messages.len()));
}

fn head(messages: &[Message]) -> usize {
    let instructs = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
    messages.iter().take_while(instructs).count()
}

/// How many messages can be left out from behind the head: as many as stand in front of a user's, between no call and
/// its result. The fewest first.
fn cuts(messages: &[Message]) -> Vec<usize> {
    let mut nearest: HashMap<&str, usize> = HashMap::new();
    let mut results: Vec<usize> = Vec::with_capacity(messages.len());
    for (place, message) in messages.iter().enumerate().rev() {
        nearest.extend(message.tool_call_id.as_deref().map(|id| (id, place)));
        let results_of_it = message.tool_calls.iter().filter_map(|call| nearest.get(call.id.as_str()));
        results.push(results_of_it.max().copied().unwrap_or(0));
    }
    let head = head(messages);
    let (mut cuts, mut answered_at) = (Vec::new(), 0);
    for ((place, message), result) in messages.iter().enumerate().zip(results.into_iter().rev()) {
        if message.role == Role::User && place > head.max(answered_at) {
            cuts.push(place - head);
        }
        answered_at = answered_at.max(result);
    }
    cuts
}

/// Of these cuts the first one behind each so many bytes that are left out, and the last one.
fn coarse(cuts: Vec<usize>, messages: &[Message], step_bytes: usize) -> Vec<usize> {
    let head = head(messages);
    let last = cuts.last().copied();
    let (mut place, mut bytes, mut steps) = (0, 0, 0);
    let mut coarse = cuts;
    coarse.retain(|cut| {
        bytes += messages[head + place..head + cut].iter().map(|message| message.content.len()).sum::<usize>();
        place = *cut;
        let is_next = bytes / step_bytes.max(1) > steps;
        if is_next {
            steps = bytes / step_bytes.max(1);
        }
        is_next || last == Some(*cut)
    });
    coarse
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::ToolCall;

    /// Messages by a letter each: `s`ystem, `d`eveloper, `u`ser, `a`ssistant; a digit calls, and in brackets is the
    /// result of that call.
    fn talk(letters: &str) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut is_result = false;
        for letter in letters.chars() {
            let role = match letter {
                '(' | ')' => {
                    is_result = letter == '(';
                    continue;
                }
                's' => Role::System,
                'd' => Role::Developer,
                'u' => Role::User,
                _ if is_result => Role::Tool,
                _ => Role::Assistant,
            };
            let mut message = Message::text(role, letter);
            let id = letter.to_string();
            if role == Role::Tool {
                message.tool_call_id = Some(id);
            } else if letter.is_ascii_digit() {
                let (name, arguments) = ("look".to_owned(), "{}".to_owned());
                message.tool_calls.push(ToolCall { id, native_id: None, name, arguments });
            }
            messages.push(message);
        }
        messages
    }

    /// A prompt of a token for each message.
    #[allow(clippy::unnecessary_wraps, reason = "as building a prompt has it")]
    fn count(messages: &[Message]) -> Result<Built, Unrendered> {
        Ok(Built { tokens: vec![0; messages.len()], text: String::new(), common_prefix_tokens: 0 })
    }

    #[test]
    fn the_oldest_turns_go_whole_and_the_head_and_the_newest_stay() {
        for (letters, expected) in [
            ("", &[][..]),
            ("u", &[]),
            ("sdu", &[]),
            ("uauau", &[2, 4]),
            ("sduauasu", &[2, 5]),
            // Several messages of a user are several turns.
            ("suuau", &[1, 3]),
            // What an assistant began goes up to the first question.
            ("saua", &[1]),
            // No call without its result, wherever that stands.
            ("u1(1)au2(2)(3)u", &[4, 8]),
            ("u1u(1)au", &[5]),
            // An id that comes again, as some clients count from 0 in every turn.
            ("u1(1)u1(1)u", &[3, 6]),
            // A call that nobody answered has nothing to be kept with.
            ("u1uau", &[2, 4]),
        ] {
            assert_eq!(cuts(&talk(letters)), expected, "{letters}");
        }
    }

    #[test]
    fn no_more_is_left_out_than_must_be() {
        let messages = talk("suauauau");
        for (tokens_max, left_out) in [(8, 0), (7, 2), (6, 2), (5, 4), (3, 6), (2, 6), (1, 6)] {
            let (count, built) = shortened(&messages, tokens_max, count).unwrap();
            assert_eq!((count, built.tokens.len()), (left_out, 8 - left_out), "{tokens_max}");
        }
        let mut rest = messages;
        leave_out(&mut rest, 6);
        assert_eq!(rest.iter().map(|message| message.content.as_str()).collect::<String>(), "su");
    }

    #[test]
    fn several_turns_go_at_once_and_the_same_ones_for_a_while() {
        let whole = "sua".to_owned() + &"ua".repeat(40) + "u";
        let mut left_out = Vec::new();
        for turns in 21..41 {
            // A message has a byte, and of 40 tokens a step is 10 bytes.
            let (count, built) = shortened(&talk(&whole[..=2 * turns]), 40, count).unwrap();
            assert!(built.tokens.len() <= 40);
            left_out.push(count);
        }
        left_out.dedup();
        assert_eq!(left_out, [10, 20, 30, 40, 50]);
    }

    #[test]
    fn what_is_hopelessly_long_counts_as_too_long_and_a_refusal_is_passed_on() {
        let messages = talk("uauau");
        let hopeless = |messages: &[Message]| {
            if messages.len() > 3 { Err(Unrendered::TooLong(String::new())) } else { count(messages) }
        };
        assert_eq!(shortened(&messages, 3, hopeless).unwrap().0, 2);
        let never = |_: &[Message]| Err(Unrendered::TooLong("so long".to_owned()));
        assert_eq!(shortened(&messages, 3, never).unwrap_err(), Unrendered::TooLong("so long".to_owned()));
        let refusing = |_: &[Message]| Err(Unrendered::Template("not so".to_owned()));
        assert_eq!(shortened(&messages, 3, refusing).unwrap_err(), Unrendered::Template("not so".to_owned()));
    }

    #[test]
    fn an_answer_has_the_room_that_it_may_take_up_to_a_quarter_of_the_context() {
        for (max_output_tokens, tokens_max) in [(Some(10), 90), (Some(4096), 75), (None, 75)] {
            assert_eq!(prompt_tokens_max(100, max_output_tokens), tokens_max);
        }
    }
}
