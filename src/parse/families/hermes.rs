//! `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen2.5, Qwen3, and whoever gets our tool prompt.

use super::json_block::Form;
use super::writing::{OBJECT, XML, in_tool_call};
use super::{Family, Reads, qwen3_coder};

pub(super) const FORM: Form = Form { close: Some("</tool_call>"), separator: None, array: false };

pub(super) static FAMILY: Family = Family {
    name: "hermes",
    aliases: &["qwen25", "qwen", "qwen2_5", "qwen3"],
    open: &["<tool_call>"],
    inner: &["</tool_call>"],
    bare: &[],
    line_ends_before: 1,
    writes: in_tool_call(&[OBJECT, XML]),
    reads: Reads::Calls(qwen3_coder::open),
};
