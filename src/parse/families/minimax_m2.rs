//! `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke></minimax:tool_call>`:
//! `MiniMax` M2.

use super::tagged::{Argument, Tagged, Tags, attribute};
use super::writing::{BARE_CALL, CallPart, Each, JSON_WORDS, Writing};
use super::{Family, Reads};

static TAGS: Tags = Tags {
    block_open: "<minimax:tool_call>",
    block_close: "</minimax:tool_call>",
    call_open: "<invoke",
    call_open_end: ">",
    call_close: "</invoke>",
    value_open: "<parameter",
    value_open_end: ">",
    value_close: "</parameter>",
    framed: false,
    name: |header| attribute(header, "name").map(str::to_owned),
    argument: |header| Some(Argument { name: attribute(header, "name")?.to_owned(), kinds: None }),
};

pub(super) static FAMILY: Family = Family {
    name: "minimax_m2",
    aliases: &["minimax_m2_5"],
    open: &["<minimax:tool_call>"],
    inner: &["</minimax:tool_call>"],
    bare: &[],
    line_ends_before: 1,
    writes: Writing {
        open: "<minimax:tool_call>\n",
        begin: "<invoke name=\"",
        ways: &[&[
            CallPart::Name,
            CallPart::Text("\">\n"),
            CallPart::Each(&Each {
                text: ["<parameter name=\"$key\">", "</parameter>\n"],
                is_raw: true,
                other: ["<parameter name=\"$key\">", "</parameter>\n"],
                words: JSON_WORDS,
                nests_json: true,
                between: "",
            }),
            CallPart::Text("</invoke>\n"),
        ]],
        close: "</minimax:tool_call>",
        several: true,
        unmarked: false,
        ..BARE_CALL
    },
    reads: Reads::Calls(|opening| Box::new(Tagged::new(&TAGS, opening))),
};
