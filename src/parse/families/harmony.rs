//! `<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>`: gpt-oss. The
//! analysis channel is reasoning, everything else that is no call is text.

use super::channels::{Channels, Form, Message};
use super::writing::{BARE_CALL, CallPart, Writing};
use super::{Family, Reads, Setup, StreamParser};

const CHANNEL: &str = "<|channel|>";
const OPENS: &[&str] = &["<|start|>", CHANNEL];
const BODIES: &[&str] = &["<|message|>"];
const ENDS: &[&str] = &["<|call|>", "<|end|>", "<|return|>", "<|start|>", CHANNEL];

static FORM: Form = Form { opens: OPENS, bodies: BODIES, ends: ENDS, message, begins };

pub(super) static FAMILY: Family = Family {
    name: "harmony",
    aliases: &["openai", "gpt_oss"],
    open: OPENS,
    inner: &["<|message|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>"],
    bare: &[],
    line_ends_before: 0,
    writes: Writing {
        begin: "<|channel|>commentary to=functions.",
        ways: &[&[
            CallPart::Name,
            CallPart::Text(" <|constrain|>json<|message|>"),
            CallPart::Object,
            CallPart::Text("<|call|>"),
        ]],
        unmarked: false,
        ..BARE_CALL
    },
    reads: Reads::Output(stream),
};

/// Reads all of an output.
pub(in crate::parse) fn stream(setup: Setup) -> Box<dyn StreamParser> {
    Box::new(Channels::new(&FORM, setup))
}

fn begins(header: &str) -> bool {
    header.starts_with(TO) || TO.starts_with(header)
}

const TO: &str = "to=";

fn message(header: &str) -> Message {
    let reasoning = word_behind(header, CHANNEL) == Some("analysis");
    let recipient = word_behind(header, TO).filter(|name| !["assistant", "user", "all"].contains(name));
    match recipient.map(|name| name.strip_prefix("functions.").unwrap_or(name)) {
        Some(name) if !name.is_empty() => Message::Call { name: Some(name.to_owned()), reasoning },
        _ if reasoning => Message::Reasoning,
        _ => Message::Text,
    }
}

/// The word behind a mark.
fn word_behind<'a>(header: &'a str, mark: &str) -> Option<&'a str> {
    let behind = &header[header.find(mark)? + mark.len()..];
    let end = behind.find(|character: char| character.is_whitespace() || character == '<').unwrap_or(behind.len());
    Some(&behind[..end])
}
