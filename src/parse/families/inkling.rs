//! `<|message_model|>NAME<|content_invoke_tool_json|>{"name": …, "args": …}<|end_message|>`: Inkling, whose messages
//! say by their content marker what they are.

use super::channels::{Channels, Form, Message};
use super::writing::{BARE_CALL, CallPart, Writing};
use super::{Family, Reads, Setup, StreamParser};

const OPENS: &[&str] = &["<|message_model|>"];
const CALL: &str = "<|content_invoke_tool_json|>";
const REASONING: &str = "<|content_thinking|>";
const BODIES: &[&str] = &[CALL, REASONING, "<|content_text|>"];
const ENDS: &[&str] = &["<|end_message|>", "<|content_model_end_sampling|>", "<|message_model|>"];

static FORM: Form = Form { opens: OPENS, bodies: BODIES, ends: ENDS, message, begins };

pub(super) static FAMILY: Family = Family {
    name: "inkling",
    aliases: &["thinking_machines"],
    open: OPENS,
    inner: &[CALL, REASONING, "<|content_text|>", "<|end_message|>", "<|content_model_end_sampling|>"],
    bare: &[],
    line_ends_before: 0,
    writes: Writing {
        begin: "<|message_model|>",
        ways: &[&[
            CallPart::Name,
            CallPart::Text("<|content_invoke_tool_json|>{\"name\": "),
            CallPart::QuotedName,
            CallPart::Text(", \"args\": "),
            CallPart::Object,
            CallPart::Text("}<|end_message|>"),
        ]],
        several: true,
        unmarked: false,
        ..BARE_CALL
    },
    reads: Reads::Output(stream),
};

/// Reads all of an output.
pub(in crate::parse) fn stream(setup: Setup) -> Box<dyn StreamParser> {
    Box::new(Channels::new(&FORM, setup))
}

/// The prompt may end with the marker of the message: then the name comes first.
fn begins(header: &str) -> bool {
    let name = header.trim_start_matches(|character: char| character.is_alphanumeric() || "_-.".contains(character));
    BODIES.iter().any(|body| body.starts_with(name))
}

fn message(header: &str) -> Message {
    if header.ends_with(CALL) {
        Message::Call { name: None, reasoning: false }
    } else if header.ends_with(REASONING) {
        Message::Reasoning
    } else {
        Message::Text
    }
}
