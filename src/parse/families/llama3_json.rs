//! `{"name": …, "parameters": …}`, perhaps behind `<|python_tag|>`, several of them with `;` between: Llama 3.

use super::json_block::{Form, JsonBlock};
use super::writing::{BARE_CALL, CallPart, Writing, call_object};
use super::{Family, Reads};

const FORM: Form = Form { close: None, separator: Some(b';'), array: false };

pub(super) static FAMILY: Family = Family {
    name: "llama3_json",
    aliases: &["llama3", "llama_3", "llama3_1", "llama3_2", "llama4_json"],
    open: &["<|python_tag|>"],
    inner: &[],
    bare: b"{",
    line_ends_before: 1,
    writes: Writing { ways: &[call_object!("parameters", "")], ..BARE_CALL },
    // Without the marker only a declared name tells a call from an answer in JSON.
    reads: Reads::Calls(|opening| {
        Box::new(match opening.marker {
            "" => JsonBlock::of_tools(FORM, opening.tools.clone()),
            _ => JsonBlock::new(FORM),
        })
    }),
};
