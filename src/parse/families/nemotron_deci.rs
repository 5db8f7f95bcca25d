//! `<TOOLCALL>[{"name": …, "arguments": …}]</TOOLCALL>`: Llama-Nemotron.

use super::json_block::{Form, JsonBlock};
use super::writing::listed;
use super::{Family, Reads};

const FORM: Form = Form { close: Some("</TOOLCALL>"), separator: None, array: false };

pub(super) static FAMILY: Family = Family {
    name: "nemotron_deci",
    aliases: &["nemotron", "llama_nemotron", "llama_nemotron_json"],
    open: &["<TOOLCALL>"],
    inner: &["</TOOLCALL>"],
    bare: &[],
    line_ends_before: 1,
    writes: listed("<TOOLCALL>[", "]</TOOLCALL>"),
    reads: Reads::Calls(|_| Box::new(JsonBlock::new(FORM))),
};
