//! `[TOOL_CALLS]` with an array of call objects, or, from the tokenizer's version 11 on, with a name and its arguments:
//! `NAME{…}`, `NAME[ARGS]{…}`, `NAME[CALL_ID]ID[ARGS]{…}`.

use super::json_block::{self, JsonBlock};
use super::named::{NamedCall, Progress};
use super::writing::listed;
use super::{CallParser, Family, Reads, Step};
use crate::parse::calls::Calls;

const OPEN: &str = "[TOOL_CALLS]";
const CLOSE: &str = "[/TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";
const HEADER_BYTES_MAX: usize = 512;
const FORM: json_block::Form = json_block::Form { close: Some(CLOSE), separator: None, array: false };

pub(super) static FAMILY: Family = Family {
    name: "mistral",
    aliases: &["mistral_v11", "magistral", "devstral", "ministral"],
    open: &[OPEN],
    inner: &[CLOSE, ARGS, CALL_ID],
    bare: &[],
    line_ends_before: 1,
    writes: listed("[TOOL_CALLS][", "]"),
    reads: Reads::Calls(|_| Box::new(Mistral::Begins(Vec::new()))),
};

#[derive(Debug)]
enum Mistral {
    /// In front of what tells the forms apart: white space, or the header of a named call.
    Begins(Vec<u8>),
    Objects(JsonBlock),
    Named(NamedCall),
}

impl Mistral {
    fn begins(&mut self, byte: u8, calls: &mut Calls) -> Step {
        let Self::Begins(header) = self else {
            return Step::NotACall;
        };
        let empty = header.trim_ascii().is_empty();
        if empty && matches!(byte, b'[' | b'{') {
            let mut block = JsonBlock::new(FORM);
            let step = block.push(byte, calls);
            *self = Self::Objects(block);
            return step;
        }
        if byte == b'{' {
            let Some((name, id)) = std::str::from_utf8(header).ok().and_then(named) else {
                return Step::NotACall;
            };
            *self = Self::Named(NamedCall::new(name, id, &[OPEN]));
            return self.push(byte, calls);
        }
        header.push(byte);
        if header.len() > HEADER_BYTES_MAX || byte == b'\n' && !empty { Step::NotACall } else { Step::Held }
    }
}

impl CallParser for Mistral {
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step {
        match self {
            Self::Begins(_) => self.begins(byte, calls),
            Self::Objects(block) => block.push(byte, calls),
            Self::Named(call) => match call.push(byte, calls) {
                Progress::Complete => {
                    calls.done(true);
                    Step::Ended
                }
                // The arguments broke, and the next call begins.
                Progress::Closed(_) => {
                    *self = Self::Begins(Vec::new());
                    Step::Taken
                }
                progress => progress.into(),
            },
        }
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool {
        match self {
            Self::Objects(block) => block.finish(cut, calls),
            Self::Named(call) if calls.is_open() => {
                call.finish(calls);
                true
            }
            Self::Begins(_) | Self::Named(_) => false,
        }
    }
}

/// The name, and the id where there is one, by what stands in front of the arguments.
fn named(header: &str) -> Option<(String, Option<String>)> {
    let header = header.trim();
    let header = header.strip_suffix(ARGS).unwrap_or(header);
    let (name, id) = header.split_once(CALL_ID).map_or((header, None), |(name, id)| (name, Some(id)));
    let fits = |text: &str| {
        !text.is_empty() && !text.contains(|character: char| character.is_whitespace() || "[]".contains(character))
    };
    fits(name).then(|| (name.to_owned(), id.filter(|id| fits(id)).map(str::to_owned)))
}
