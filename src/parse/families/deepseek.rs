//! `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>…<｜tool▁call▁end｜><｜tool▁calls▁end｜>`: `DeepSeek`. V3 and R1 write a
//! type, the name, and the arguments in a fence; V3.1 the name and the arguments.

use super::section::{Form, NameAndId, Section};
use super::writing::{BARE_CALL, CallPart, Writing};
use super::{Family, Reads};

const CALL_OPEN: &str = "<｜tool▁call▁begin｜>";
const OPEN: &[&str] = &["<｜tool▁calls▁begin｜>", CALL_OPEN];
const SEPARATOR: &str = "<｜tool▁sep｜>";
const TAILS: &[&str] = &["<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", CALL_OPEN];
const CLOSES: &[&str] = &["<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"];
const INNER: &[&str] = &["<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", SEPARATOR];

static V3_FORM: Form = form(true);
static V3_1_FORM: Form = form(false);

const fn form(fenced: bool) -> Form {
    Form { call_open: CALL_OPEN, separator: SEPARATOR, tails: TAILS, header: name, fenced }
}

/// What both write around their calls.
const WRITING: Writing = Writing {
    open: "<｜tool▁calls▁begin｜>",
    begin: CALL_OPEN,
    close: "<｜tool▁calls▁end｜>",
    several: true,
    unmarked: false,
    ..BARE_CALL
};

pub(super) static V3: Family = Family {
    name: "deepseek_v3",
    aliases: &["deepseekv3", "deepseek_r1", "deepseek_r1_0528"],
    open: OPEN,
    inner: INNER,
    bare: &[],
    line_ends_before: 1,
    writes: Writing {
        ways: &[&[
            CallPart::Text("function<｜tool▁sep｜>"),
            CallPart::Name,
            CallPart::Text("\n```json\n"),
            CallPart::Object,
            CallPart::Text("\n```<｜tool▁call▁end｜>"),
        ]],
        between: "\n",
        ..WRITING
    },
    reads: Reads::Sections { calls: |opening| Box::new(Section::new(&V3_FORM, opening)), closes: CLOSES },
};

pub(super) static V3_1: Family = Family {
    name: "deepseek_v3_1",
    aliases: &["deepseek_v31", "deepseekv31"],
    open: OPEN,
    inner: INNER,
    bare: &[],
    line_ends_before: 1,
    writes: Writing {
        ways: &[&[
            CallPart::Name,
            CallPart::Text("<｜tool▁sep｜>"),
            CallPart::Object,
            CallPart::Text("<｜tool▁call▁end｜>"),
        ]],
        ..WRITING
    },
    reads: Reads::Sections { calls: |opening| Box::new(Section::new(&V3_1_FORM, opening)), closes: CLOSES },
};

fn name(header: &str) -> Option<NameAndId> {
    Some((header.trim().to_owned(), None)).filter(|(name, _)| !name.contains(char::is_whitespace))
}
