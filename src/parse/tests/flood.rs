//! Output that is one character again and again, without end: all of it comes out, and no byte costs more than
//! the one before.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::families::config;
use super::generate::{Call, Part};
use super::pieces;
use super::render::FORMS;
use crate::parse::{Piece, PipelineConfig, ReasoningFormat, ToolFormat};

const MEGABYTE: usize = 1 << 20;
/// Of each character that opens something in each family; what is not linear shows here, too.
const SOME: usize = 1 << 14;
/// What a tokenizer makes one token of at most.
const TOKEN_BYTES: usize = 16;
const WORK_PER_BYTE: usize = 16;

/// All that is shown, and the arguments of calls.
fn shown(pieces: &[Piece]) -> String {
    let texts = pieces.iter().filter_map(|piece| match piece {
        Piece::Text(text) | Piece::Reasoning(text) | Piece::ToolCallArguments { fragment: text, .. } => {
            Some(text.as_str())
        }
        _ => None,
    });
    texts.collect()
}

fn first(text: &str) -> Option<char> {
    text.chars().next()
}

/// Characters with which something may begin in these formats.
fn openings(calls: ToolFormat, thoughts: ReasoningFormat) -> BTreeSet<char> {
    let family = calls.family().into_iter();
    let marks = family.clone().flat_map(|family| family.texts().chain(family.closes().iter().copied()));
    let thoughts = thoughts.format().into_iter().flat_map(|format| format.open.iter().chain(format.close).copied());
    let bare = family.flat_map(|family| family.bare).map(|byte| char::from(*byte));
    marks.chain(thoughts).filter_map(first).chain(bare).chain(['<', '{', '[']).collect()
}

#[track_caller]
fn all_comes_out(config: &PipelineConfig, prefix: &str, character: char, bytes: usize) {
    let flood = String::from(character).repeat(bytes / character.len_utf8());
    let output = format!("{prefix}{flood}");
    let (got, pipeline) = pieces(config.clone(), output.as_bytes().chunks(TOKEN_BYTES), true);
    let name = config.tool_format;
    let most = 64 + output.len() * WORK_PER_BYTE;
    assert!(pipeline.work() <= most, "{name} {prefix:?} {character:?}: {} steps", pipeline.work());
    let shown = shown(&got);
    if prefix.is_empty() {
        assert!(shown == flood, "{name} {character:?}: {} of {} bytes", shown.len(), flood.len());
    } else {
        // A bracket is escaped in no form; other characters may be, as in a JSON string.
        let count = |text: &str| text.matches(character).count();
        assert!(count(&shown) >= count(&flood), "{name} {prefix:?} {character:?}: {} bytes", shown.len());
    }
}

#[test]
fn a_flood_of_what_opens_something_is_text_in_every_family() {
    for form in FORMS {
        let formats = (form.name.parse().unwrap(), form.reasoning().parse().unwrap());
        for character in openings(formats.0, formats.1) {
            let (tool_format, reasoning) = formats;
            let config = PipelineConfig { tool_format, reasoning, ..config(form, &[]) };
            all_comes_out(&config, "", character, SOME);
        }
    }
}

#[test]
fn a_megabyte_of_one_character_is_text() {
    for character in ['<', '{', '['] {
        all_comes_out(&PipelineConfig::default(), "", character, MEGABYTE);
    }
}

/// In the middle of a call: in its name, between its parts, and inside an argument.
#[test]
fn a_flood_anywhere_in_a_call_is_lost_nowhere() {
    const BYTES: usize = 1 << 12;
    const ARGUMENT: &str = "Zq7";
    for form in FORMS {
        let arguments: Map<String, Value> = [("text".to_owned(), Value::from(ARGUMENT))].into_iter().collect();
        let parts = [Part::Calls(vec![Call { name: "f".to_owned(), arguments }])];
        let output = form.answer(&parts, false);
        let config = config(form, &parts);
        let behind_argument = output.find(ARGUMENT).unwrap() + ARGUMENT.len();
        for at in [behind_argument - ARGUMENT.len() - 6, behind_argument, output.trim_end().len() - 1] {
            let at = output.floor_char_boundary(at);
            for character in openings(config.tool_format, config.reasoning) {
                all_comes_out(&config, &output[..at], character, BYTES);
            }
        }
    }
}
