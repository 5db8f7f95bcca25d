//! `<tool_calls>[{"name": …, "arguments": …}]</tool_calls>`: Jamba.

use super::json_block::{Form, JsonBlock};
use super::writing::listed;
use super::{Family, Reads};

const FORM: Form = Form { close: Some("</tool_calls>"), separator: None, array: false };

pub(super) static FAMILY: Family = Family {
    name: "jamba",
    aliases: &["jamba_json", "hunyuan_a13b"],
    open: &["<tool_calls>"],
    inner: &["</tool_calls>"],
    bare: &[],
    line_ends_before: 1,
    writes: listed("<tool_calls>[", "]</tool_calls>"),
    reads: Reads::Calls(|_| Box::new(JsonBlock::new(FORM))),
};
