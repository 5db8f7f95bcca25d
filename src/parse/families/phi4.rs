//! `functools[{"name": …, "arguments": …}]`: Phi-4.

use super::json_block::{Form, JsonBlock};
use super::writing::listed;
use super::{Family, Reads};

const FORM: Form = Form { close: None, separator: None, array: true };

pub(super) static FAMILY: Family = Family {
    name: "phi4",
    aliases: &["phi4_mini_json", "phi4mini", "phi_4", "functools"],
    open: &["functools"],
    inner: &[],
    bare: &[],
    line_ends_before: 1,
    writes: listed("functools[", "]"),
    reads: Reads::Calls(|_| Box::new(JsonBlock::new(FORM))),
};
