//! Why a prompt does not begin with the tokens that are already held: where the two part, in which message, and the
//! likely cause.
//!
//! Compares two lists of tokens and what they were made from. Pure; it guesses at causes, never at places.

use serde::Serialize;

use super::preamble::BILLING;
use super::{Capabilities, Message, Role, ToolDefinition};
use crate::engine::tokenizer::Tokenizer;

/// Most bytes of an excerpt on each side of the place.
const EXCERPT_BYTES: usize = 160;

/// A list of tokens and what it was made from.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// The messages that they spell.
    pub messages: &'a [Message],
    /// The tools that they name.
    pub tools: &'a [ToolDefinition],
}

/// What two prompts have in common, and where they part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PrefixReport {
    /// Tokens that were held: the earlier prompt and the answer to it.
    pub held_tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens at the beginning that both have.
    pub common_tokens: usize,
    /// Whether the prompt begins with everything that was held.
    pub complete: bool,
    /// Where they part, if they do.
    pub difference: Option<Difference>,
}

/// The place at which two prompts part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Index of the first token that differs.
    pub token: usize,
    /// Byte of the text at which the texts differ; absent where only the cut into tokens does.
    pub byte: Option<usize>,
    /// Index of the message in the new prompt in which it lies, as far as it can be told.
    pub message: Option<usize>,
    /// Who speaks there.
    pub role: Option<Role>,
    /// The held text around the place.
    pub held: String,
    /// The prompt's text around the place.
    pub prompt: String,
    /// The likely cause.
    pub cause: Cause,
    /// The cause in words, with what can be done.
    pub explanation: String,
}

/// Why prompts part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A date or a time changed.
    Timestamp,
    /// The billing line of Claude Code changed.
    BillingLine,
    /// The same tools come in another order.
    ToolsReordered,
    /// Other tools are offered.
    ToolsChanged,
    /// The system text changed.
    SystemChanged,
    /// The client changed or left out reasoning.
    ReasoningChanged,
    /// The template leaves out earlier reasoning.
    ReasoningDropped,
    /// The template has no place for reasoning between calls.
    InterleavedReasoning,
    /// Earlier messages were changed or removed.
    HistoryChanged,
    /// The template writes the answer in another way than the model did.
    AnswerRewritten,
    /// The same text, cut into other tokens.
    Tokenization,
}

/// Compares what is held with a new prompt.
pub fn compare(tokenizer: &Tokenizer, can: &Capabilities, held: Side<'_>, prompt: Side<'_>) -> PrefixReport {
    let common_tokens = held.tokens.iter().zip(prompt.tokens).take_while(|(left, right)| left == right).count();
    let complete = common_tokens == held.tokens.len();
    let mut report = PrefixReport {
        held_tokens: held.tokens.len(),
        prompt_tokens: prompt.tokens.len(),
        common_tokens,
        complete,
        difference: None,
    };
    if complete {
        return report;
    }
    let texts = Texts { held: spell(tokenizer, held.tokens), prompt: spell(tokenizer, prompt.tokens) };
    let byte = texts.parting();
    let message = byte.and_then(|byte| message_at(&texts.prompt, prompt.messages, byte));
    let cause = byte.map_or(Cause::Tokenization, |byte| cause(&texts, byte, message, can, held, prompt));
    // The tools stand in no message.
    let message = message.filter(|_| !matches!(cause, Cause::ToolsReordered | Cause::ToolsChanged));
    let shown = byte.unwrap_or_else(|| spell(tokenizer, &held.tokens[..common_tokens]).len());
    report.difference = Some(Difference {
        token: common_tokens,
        byte,
        message,
        role: message.and_then(|index| prompt.messages.get(index)).map(|message| message.role),
        held: excerpt(&texts.held, shown),
        prompt: excerpt(&texts.prompt, shown),
        cause,
        explanation: cause.explanation(held.tools, prompt.tools).to_owned(),
    });
    report
}

impl Cause {
    fn explanation(self, held: &[ToolDefinition], prompt: &[ToolDefinition]) -> &'static str {
        match self {
            Self::Timestamp => {
                "a date or time in the prompt has changed; put it behind the conversation, or leave it out"
            }
            Self::BillingLine => {
                "the client's billing line has changed; with strip_preamble it does not come into the prompt"
            }
            Self::ToolsReordered => "the same tools come in another order; send them in one order always",
            Self::ToolsChanged if prompt.is_empty() => {
                "the tools that were offered before are left out, and they stand at the beginning; keep them for a \
                 conversation"
            }
            Self::ToolsChanged if held.is_empty() => {
                "tools are offered and before there were none, and they stand at the beginning; offer them from the \
                 first request of a conversation on"
            }
            Self::ToolsChanged => {
                "other tools are offered than before, and they stand at the beginning; keep them for a conversation"
            }
            Self::SystemChanged => "the system text has changed; put what changes into a message at the end",
            Self::ReasoningChanged => {
                "the reasoning of an earlier answer was changed or left out; send it back as it was given"
            }
            Self::ReasoningDropped => {
                "the model's template leaves out the reasoning of finished turns, and takes no variable to keep it"
            }
            Self::InterleavedReasoning => {
                "the model's template has one place for reasoning in front of all calls, none between them"
            }
            Self::HistoryChanged => "earlier messages were changed or removed; only adding keeps the cache",
            Self::AnswerRewritten => {
                "the model's template writes the answer in another way than the model did, such as with other spaces"
            }
            Self::Tokenization => "the same text is cut into other tokens, so only what lies before it is kept",
        }
    }
}

struct Texts {
    held: String,
    prompt: String,
}

impl Texts {
    /// The first byte, at the border of a character, at which the texts differ. One that only ends does not differ.
    fn parting(&self) -> Option<usize> {
        let pairs = self.held.char_indices().zip(self.prompt.chars());
        let differs = pairs.into_iter().find(|((_, held), prompt)| held != prompt).map(|((place, _), _)| place);
        differs.or_else(|| (self.prompt.len() < self.held.len()).then_some(self.prompt.len()))
    }
}

/// All text of the tokens, control tokens included.
fn spell(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let bytes = tokens.iter().flat_map(|&id| match tokenizer.special_text(id) {
        Some(text) => text.as_bytes(),
        None => tokenizer.token_bytes(id),
    });
    String::from_utf8_lossy(&bytes.copied().collect::<Vec<u8>>()).into_owned()
}

fn excerpt(text: &str, place: usize) -> String {
    let begin = text.floor_char_boundary(place.saturating_sub(EXCERPT_BYTES / 2));
    let end = text.floor_char_boundary(place.saturating_add(EXCERPT_BYTES).min(text.len()));
    text.get(begin..end).unwrap_or_default().to_owned()
}

/// The message whose text, or the frame in front of it, holds the byte.
fn message_at(text: &str, messages: &[Message], byte: usize) -> Option<usize> {
    let mut from = 0;
    let mut last = None;
    for (index, message) in messages.iter().enumerate() {
        let Some(end) = end_of(&text[from..], message).map(|end| from + end) else { continue };
        if end > byte {
            return Some(index);
        }
        (from, last) = (end, Some(index));
    }
    // Behind all that was found: what follows the last of them, if anything does.
    last.map(|last| (last + 1).min(messages.len() - 1))
}

/// Where the message's text ends, if it is found.
fn end_of(text: &str, message: &Message) -> Option<usize> {
    let reasoning = message.reasoning_content.as_deref();
    let calls = message.tool_calls.iter().flat_map(|call| [call.name.as_str(), call.arguments.as_str()]);
    let parts = reasoning.into_iter().chain([message.content.as_str()]).chain(calls);
    let mut end = None;
    for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
        let from = end.unwrap_or(0);
        if let Some(place) = text[from..].find(part) {
            end = Some(from + place + part.len());
        }
    }
    end
}

fn cause(
    texts: &Texts,
    byte: usize,
    message: Option<usize>,
    can: &Capabilities,
    held: Side<'_>,
    prompt: Side<'_>,
) -> Cause {
    let lines = [line_at(&texts.held, byte), line_at(&texts.prompt, byte)];
    if lines.iter().any(|line| line.contains(BILLING)) {
        return Cause::BillingLine;
    }
    let changed = held.messages.iter().zip(prompt.messages).position(|(held, prompt)| held != prompt);
    let of_tools = held.tools != prompt.tools && changed.is_none_or(|changed| message.is_none_or(|at| at <= changed));
    let pair = changed.map(|changed| (&held.messages[changed], &prompt.messages[changed]));
    let system_changed = pair.is_some_and(|(held, prompt)| {
        held.role == Role::System && prompt.role == Role::System && in_text(&prompt.content, &texts.prompt, byte)
    });
    if (!of_tools || system_changed) && dates_differ(&texts.held, &texts.prompt, byte) {
        return Cause::Timestamp;
    }
    if of_tools && !system_changed {
        return if same_in_another_order(held.tools, prompt.tools) {
            Cause::ToolsReordered
        } else {
            Cause::ToolsChanged
        };
    }
    match pair {
        Some((held, prompt)) if message.is_none_or(|at| Some(at) >= changed) => {
            if held.role == Role::System || prompt.role == Role::System {
                Cause::SystemChanged
            } else if held.role == prompt.role && held.content == prompt.content && held.tool_calls == prompt.tool_calls
            {
                Cause::ReasoningChanged
            } else {
                Cause::HistoryChanged
            }
        }
        _ if prompt.messages.len() < held.messages.len() => Cause::HistoryChanged,
        _ => of_template(texts, byte, can, prompt.messages),
    }
}

/// The messages are the same, so the template writes them otherwise.
fn of_template(texts: &Texts, byte: usize, can: &Capabilities, messages: &[Message]) -> Cause {
    let thought = |text: &str| {
        let thoughts = messages.iter().filter_map(|message| message.reasoning_content.as_deref());
        thoughts.map(str::trim).filter(|thought| !thought.is_empty()).any(|thought| text.contains(thought))
    };
    let calls = |message: &Message| !message.tool_calls.is_empty();
    let interleaved = messages
        .windows(2)
        .any(|pair| pair.iter().all(calls) && pair[1].reasoning_content.is_some() && !can.reasoning_segments);
    let held = &texts.held[texts.held.floor_char_boundary(byte.saturating_sub(EXCERPT_BYTES))..];
    let prompt = &texts.prompt[texts.prompt.floor_char_boundary(byte.saturating_sub(EXCERPT_BYTES))..];
    let opens = texts.held[texts.held.floor_char_boundary(byte)..].trim_start().starts_with("<think>");
    if interleaved && thought(held) {
        Cause::InterleavedReasoning
    } else if thought(held) && !thought(prompt) || opens {
        Cause::ReasoningDropped
    } else {
        Cause::AnswerRewritten
    }
}

fn same_in_another_order(left: &[ToolDefinition], right: &[ToolDefinition]) -> bool {
    left.len() == right.len() && left.iter().all(|tool| right.contains(tool))
}

/// Whether the byte lies in this part of the text.
fn in_text(part: &str, text: &str, byte: usize) -> bool {
    text.find(part.trim()).is_some_and(|begin| (begin..=begin + part.len()).contains(&byte))
}

fn line_at(text: &str, byte: usize) -> &str {
    let byte = text.floor_char_boundary(byte.min(text.len()));
    let begin = text[..byte].rfind('\n').map_or(0, |place| place + 1);
    let end = text[byte..].find('\n').map_or(text.len(), |place| byte + place);
    &text[begin..end]
}

/// Whether both texts have a date or a time at the place.
fn dates_differ(held: &str, prompt: &str, byte: usize) -> bool {
    [held, prompt].into_iter().all(|text| {
        let byte = text.floor_char_boundary(byte.min(text.len()));
        let of_date =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, ':' | '-' | '/' | '.' | ',' | ' ' | '+');
        let before = text[..byte].chars().rev().take(32).take_while(|letter| of_date(*letter)).map(char::len_utf8);
        let begin = byte - before.sum::<usize>();
        let behind = text[byte..].chars().take(32).take_while(|letter| of_date(*letter)).map(char::len_utf8);
        let end = byte + behind.sum::<usize>();
        // The words that touch the place, and one on each side.
        let near = &text[begin..end];
        is_date(near)
    })
}

/// Whether a text holds a date or a time: a clock, three numbers joined as those of a date, or the name of a month.
fn is_date(text: &str) -> bool {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let clock = text
        .as_bytes()
        .windows(3)
        .any(|window| window[0].is_ascii_digit() && window[1] == b':' && window[2].is_ascii_digit());
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    // A single sign stands in versions and ranges too.
    let date = text
        .split(|letter: char| !letter.is_ascii_digit() && !matches!(letter, '-' | '/'))
        .any(|word| ['-', '/'].into_iter().any(|sign| word.split(sign).count() == 3 && word.split(sign).all(number)));
    digits >= 3 && (clock || date || MONTHS.iter().any(|month| text.contains(month)))
}
