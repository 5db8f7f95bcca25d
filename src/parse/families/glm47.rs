//! `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM-4.5 and later.

use super::tagged::{Argument, Tagged, Tags};
use super::writing::{BARE_CALL, CallPart, Each, JSON_WORDS, Writing};
use super::{Family, Reads};

static TAGS: Tags = Tags {
    block_open: "<tool_call>",
    block_close: "</tool_call>",
    call_open: "",
    call_open_end: "",
    call_close: "",
    value_open: "<arg_key>",
    value_open_end: "<arg_value>",
    value_close: "</arg_value>",
    framed: false,
    name: |header| (!header.contains(['{', '[', '"', '>'])).then(|| header.to_owned()),
    argument: |header| {
        let name = header.trim_end().strip_suffix("</arg_key>")?.trim();
        Some(Argument { name: name.to_owned(), kinds: None })
    },
};

pub(super) static FAMILY: Family = Family {
    name: "glm47",
    aliases: &["glm", "glm45", "glm4", "glm4_moe", "glm5"],
    open: &["<tool_call>"],
    inner: &["</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    bare: &[],
    line_ends_before: 1,
    writes: Writing {
        begin: "<tool_call>",
        ways: &[&[
            CallPart::Name,
            CallPart::Text("\n"),
            CallPart::Each(&Each {
                text: ["<arg_key>$key</arg_key>\n<arg_value>", "</arg_value>\n"],
                is_raw: true,
                other: ["<arg_key>$key</arg_key>\n<arg_value>", "</arg_value>\n"],
                words: JSON_WORDS,
                nests_json: true,
                between: "",
            }),
            CallPart::Text("</tool_call>"),
        ]],
        between: "\n",
        several: true,
        unmarked: false,
        ..BARE_CALL
    },
    reads: Reads::Calls(|opening| Box::new(Tagged::new(&TAGS, opening))),
};
