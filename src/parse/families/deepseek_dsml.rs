//! `<｜DSML｜function_calls><｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">VALUE…`: `DeepSeek` V3.2;
//! V4 calls the block `tool_calls`. A parameter says itself whether it is text.

use super::tagged::{Argument, Tagged, Tags, attribute};
use super::writing::{BARE_CALL, CallPart, Each, JSON_WORDS, Writing};
use super::{Family, Reads};
use crate::parse::values::Kinds;

const fn tags(block_open: &'static str, block_close: &'static str) -> Tags {
    Tags {
        block_open,
        block_close,
        call_open: "<｜DSML｜invoke",
        call_open_end: ">",
        call_close: "</｜DSML｜invoke>",
        value_open: "<｜DSML｜parameter",
        value_open_end: ">",
        value_close: "</｜DSML｜parameter>",
        framed: false,
        name: |header| attribute(header, "name").map(str::to_owned),
        argument,
    }
}

static V3_2: Tags = tags("<｜DSML｜function_calls>", "</｜DSML｜function_calls>");
static V4: Tags = tags("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>");

/// What both write in their blocks.
const WRITING: Writing = Writing {
    begin: "<｜DSML｜invoke name=\"",
    ways: &[&[
        CallPart::Name,
        CallPart::Text("\">\n"),
        CallPart::Each(&Each {
            text: ["<｜DSML｜parameter name=\"$key\" string=\"true\">", "</｜DSML｜parameter>\n"],
            is_raw: true,
            other: ["<｜DSML｜parameter name=\"$key\" string=\"false\">", "</｜DSML｜parameter>\n"],
            words: JSON_WORDS,
            nests_json: true,
            between: "",
        }),
        CallPart::Text("</｜DSML｜invoke>\n"),
    ]],
    several: true,
    unmarked: false,
    ..BARE_CALL
};

pub(super) static DEEPSEEK_V3_2: Family = Family {
    name: "deepseek_v3_2",
    aliases: &["deepseek_v32", "deepseekv32"],
    open: &["<｜DSML｜function_calls>"],
    inner: &["</｜DSML｜function_calls>", "<｜DSML｜invoke", "<｜DSML｜parameter"],
    bare: &[],
    line_ends_before: 2,
    writes: Writing { open: "<｜DSML｜function_calls>\n", close: "</｜DSML｜function_calls>", ..WRITING },
    reads: Reads::Calls(|opening| Box::new(Tagged::new(&V3_2, opening))),
};

pub(super) static DEEPSEEK_V4: Family = Family {
    name: "deepseek_v4",
    aliases: &["deepseekv4"],
    open: &["<｜DSML｜tool_calls>"],
    inner: &["</｜DSML｜tool_calls>", "<｜DSML｜invoke", "<｜DSML｜parameter"],
    bare: &[],
    line_ends_before: 2,
    writes: Writing { open: "<｜DSML｜tool_calls>\n", close: "</｜DSML｜tool_calls>", ..WRITING },
    reads: Reads::Calls(|opening| Box::new(Tagged::new(&V4, opening))),
};

fn argument(header: &str) -> Option<Argument> {
    let kinds = match attribute(header, "string") {
        Some("true") => Some(Kinds::STRING),
        Some("false") => Some(Kinds::NOT_TEXT),
        _ => None,
    };
    Some(Argument { name: attribute(header, "name")?.to_owned(), kinds })
}
