//! `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Nemotron Nano.
//! Some of these models leave the block's tags out, some write Hermes' JSON between them, and models of the Hermes form
//! write this one: both are read for either.

use super::json_block::JsonBlock;
use super::tagged::{Argument, Tagged, Tags};
use super::writing::{OBJECT, XML, in_tool_call};
use super::{CallParser, Family, Opening, Reads, Step, hermes};
use crate::parse::calls::Calls;

/// White space that may stand in front of the call.
const SPACE_BYTES_MAX: usize = 64;

static TAGS: Tags = Tags {
    block_open: "<tool_call>",
    block_close: "</tool_call>",
    call_open: "<function=",
    call_open_end: ">",
    call_close: "</function>",
    value_open: "<parameter=",
    value_open_end: ">",
    value_close: "</parameter>",
    framed: true,
    name,
    argument: |header| Some(Argument { name: name(header)?, kinds: None }),
};

pub(super) static FAMILY: Family = Family {
    name: "qwen3_coder",
    aliases: &["qwen3_xml", "qwen3_5", "nemotron_nano", "nemotron_v3", "step3p5", "mimo"],
    open: &["<tool_call>", "<function="],
    inner: &["</tool_call>", "</function>", "<parameter=", "</parameter>"],
    bare: &[],
    line_ends_before: 1,
    writes: in_tool_call(&[XML, OBJECT]),
    reads: Reads::Calls(|opening| open(opening)),
};

/// What stands behind the equals sign.
fn name(header: &str) -> Option<String> {
    let header = header.trim();
    let name = header.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(header);
    let fits = !name.is_empty() && !name.contains(['<', '>', '\n']);
    fits.then(|| name.to_owned())
}

/// A block of calls in either form.
pub(super) fn open(opening: &Opening<'_>) -> Box<dyn CallParser> {
    let tagged = Tagged::new(&TAGS, opening);
    if opening.marker == TAGS.call_open {
        return Box::new(tagged);
    }
    Box::new(Mixed { space: 0, begun: false, json: None, tagged })
}

#[derive(Debug)]
struct Mixed {
    /// White space in front of the call.
    space: usize,
    begun: bool,
    /// Reads the block if it is JSON.
    json: Option<JsonBlock>,
    tagged: Tagged,
}

impl CallParser for Mixed {
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step {
        if !self.begun && byte.is_ascii_whitespace() && self.space < SPACE_BYTES_MAX {
            self.space += 1;
            return Step::Held;
        }
        if !std::mem::replace(&mut self.begun, true) && matches!(byte, b'{' | b'[') {
            self.json = Some(JsonBlock::new(hermes::FORM));
        }
        match &mut self.json {
            Some(block) => block.push(byte, calls),
            None => self.tagged.push(byte, calls),
        }
    }

    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool {
        match &mut self.json {
            Some(block) => block.finish(cut, calls),
            None => self.tagged.finish(cut, calls),
        }
    }
}
