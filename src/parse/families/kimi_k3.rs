//! `<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>…`:
//! Kimi K3's markup, in which an argument says its type.

use super::tagged::{Argument, Tagged, Tags, attribute};
use super::writing::{BARE_CALL, CallPart, Each, JSON_WORDS, Writing};
use super::{Family, Reads};
use crate::parse::values::Kinds;

const CLOSE: &str = "<|close|>tools<|sep|>";
/// What stands around the text of an answer.
const FRAME: &[&str] =
    &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"];

static TAGS: Tags = Tags {
    block_open: "<|open|>tools<|sep|>",
    block_close: CLOSE,
    call_open: "<|open|>call",
    call_open_end: "<|sep|>",
    call_close: "<|close|>call<|sep|>",
    value_open: "<|open|>argument",
    value_open_end: "<|sep|>",
    value_close: "<|close|>argument<|sep|>",
    framed: false,
    name: |header| attribute(header, "tool").map(unescaped),
    argument,
};

pub(super) static FAMILY: Family = Family {
    name: "kimi_k3",
    aliases: &[],
    open: &[
        "<|open|>tools<|sep|>",
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ],
    inner: &["<|open|>call", "<|open|>argument", "<|close|>argument<|sep|>", "<|close|>call<|sep|>", CLOSE],
    bare: &[],
    line_ends_before: 1,
    writes: Writing {
        open: "<|open|>tools<|sep|>",
        begin: "<|open|>call tool=\"",
        ways: &[&[
            CallPart::Name,
            CallPart::Text("\" index=\""),
            CallPart::Number,
            CallPart::Text("\"<|sep|>"),
            CallPart::Each(&Each {
                text: ["<|open|>argument key=\"$key\" type=\"string\"<|sep|>", "<|close|>argument<|sep|>"],
                is_raw: true,
                other: ["<|open|>argument key=\"$key\" type=\"$kind\"<|sep|>", "<|close|>argument<|sep|>"],
                words: JSON_WORDS,
                nests_json: true,
                between: "",
            }),
            CallPart::Text("<|close|>call<|sep|>"),
        ]],
        close: CLOSE,
        several: true,
        unmarked: false,
        ..BARE_CALL
    },
    reads: Reads::Framed { calls: |opening| Box::new(Tagged::new(&TAGS, opening)), frame: FRAME },
};

fn argument(header: &str) -> Option<Argument> {
    let kinds = match attribute(header, "type") {
        Some("string") => Some(Kinds::STRING),
        Some("number") => Some(Kinds::INTEGER | Kinds::FRACTION),
        Some("integer") => Some(Kinds::INTEGER),
        Some("boolean") => Some(Kinds::BOOLEAN),
        Some("null") => Some(Kinds::NULL),
        Some("object") => Some(Kinds::OBJECT),
        Some("array") => Some(Kinds::ARRAY),
        _ => None,
    };
    Some(Argument { name: unescaped(attribute(header, "key")?), kinds })
}

/// An attribute's text: in attributes, and only there, this markup escapes.
fn unescaped(text: &str) -> String {
    text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}
