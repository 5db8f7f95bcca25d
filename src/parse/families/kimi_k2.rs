//! `<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{…}<|tool_call_end|>
//! <|tool_calls_section_end|>`: Kimi K2, which gives its calls ids.

use super::section::{Form, NameAndId, Section};
use super::writing::{BARE_CALL, CallPart, Writing};
use super::{Family, Reads};

const CALL_OPEN: &str = "<|tool_call_begin|>";
const OPEN: &[&str] = &["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", CALL_OPEN];
const SEPARATOR: &str = "<|tool_call_argument_begin|>";
const TAILS: &[&str] = &["<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>", CALL_OPEN];
const CLOSES: &[&str] = &["<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>"];
const INNER: &[&str] = &["<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>", SEPARATOR];

static FORM: Form = Form { call_open: CALL_OPEN, separator: SEPARATOR, tails: TAILS, header: named, fenced: false };

pub(super) static FAMILY: Family = Family {
    name: "kimi_k2",
    aliases: &["kimi", "kimi_k25", "kimi_k2_5"],
    open: OPEN,
    inner: INNER,
    bare: &[],
    line_ends_before: 1,
    writes: Writing {
        open: "<|tool_calls_section_begin|>",
        begin: CALL_OPEN,
        ways: &[&[
            CallPart::Text("functions."),
            CallPart::Name,
            CallPart::Text(":"),
            CallPart::Number,
            CallPart::Text(SEPARATOR),
            CallPart::Object,
            CallPart::Text("<|tool_call_end|>"),
        ]],
        close: "<|tool_calls_section_end|>",
        several: true,
        unmarked: false,
        ..BARE_CALL
    },
    reads: Reads::Sections { calls: |opening| Box::new(Section::new(&FORM, opening)), closes: CLOSES },
};

/// The name inside the id: `functions.NAME:INDEX`; a header of another form is the name alone.
fn named(header: &str) -> Option<NameAndId> {
    let header = header.trim();
    let Some((path, _)) = header.rsplit_once(':').filter(|(_, index)| is_number(index)) else {
        let name = header.strip_prefix("functions.").unwrap_or(header);
        return Some((name.to_owned(), None)).filter(|_| !header.contains(char::is_whitespace));
    };
    let name = path.strip_prefix("functions.").unwrap_or(path);
    Some((name.to_owned(), Some(header.to_owned())))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
