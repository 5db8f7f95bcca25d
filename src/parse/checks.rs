//! What must be true of any output whatever, in any format: the fuzzer of `fuzz/` looks for one of which it is not,
//! and a test tries the outputs that are kept there.
//!
//! Asserts, and nothing else: no part of the server is built with it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::families::Reads;
use super::{DeclaredTool, Piece, Pipeline, PipelineConfig, ReasoningFormat, ToolFormat, control_markers};

/// Steps that each byte may take, and the steps that any output may.
const WORK_PER_BYTE: usize = 16;
const WORK: usize = 64;
/// An output that is to be repeated becomes about so long.
const REPEATED_BYTES: usize = 1 << 16;
/// In front of a control token's text: it is spelled out with ordinary tokens.
const SPELLED: u8 = 1;
const STOP: &str = "STOP";

/// An output, and how it is read.
struct Case<'a> {
    config: PipelineConfig,
    cut: bool,
    repeated: bool,
    output: &'a [u8],
}

/// Reads an input. Its first line names the format of calls, that of reasoning, and what else is asked for: `cut`,
/// `inside`, `outside`, `marked` (no bare calls), `control` (marks are control tokens), `stop`, `repeated`. A name
/// that is none stands for one that its letters choose. What follows is the output.
fn case(input: &[u8]) -> Case<'_> {
    let end = input.iter().position(|&byte| byte == b'\n').unwrap_or(input.len());
    let head = String::from_utf8_lossy(&input[..end]);
    let mut words = head.split(' ');
    let (calls, thoughts) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let chosen = |word: &str, of: usize| word.bytes().map(usize::from).sum::<usize>() % of;
    let tool_format = calls.parse().unwrap_or_else(|_| {
        let all: Vec<_> = ToolFormat::all().collect();
        all[chosen(calls, all.len())]
    });
    let reasoning = thoughts.parse().unwrap_or_else(|_| {
        let all: Vec<_> = ReasoningFormat::all().collect();
        all[chosen(thoughts, all.len())]
    });
    let asked: BTreeSet<&str> = words.collect();
    let inside = asked.contains("inside").then_some(true);
    let config = PipelineConfig {
        tool_format,
        reasoning,
        starts_in_reasoning: inside.or(asked.contains("outside").then_some(false)),
        stop: asked.contains("stop").then(|| STOP.to_owned()).into_iter().collect(),
        tools: tools(),
        bare_calls: !asked.contains("marked"),
        control: Vec::new(),
    };
    let control = if asked.contains("control") {
        control_markers(tool_format, reasoning, marks_of(&config).into_iter())
    } else {
        Vec::new()
    };
    Case {
        config: PipelineConfig { control, ..config },
        cut: asked.contains("cut"),
        repeated: asked.contains("repeated"),
        output: input.get(end + 1..).unwrap_or_default(),
    }
}

/// One tool whose schema names every kind of value, and one that says nothing.
fn tools() -> Vec<DeclaredTool> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "integer"},
            "c": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "number"}}}},
            "d": {"type": ["boolean", "null"]},
            "e": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "object"}]},
            "g": {"enum": ["x", 1, null]},
        },
        "required": ["a"],
    });
    let tool = |name: &str, parameters| DeclaredTool { name: name.to_owned(), parameters };
    vec![tool("f", parameters), tool("read", Value::Null)]
}

/// Every mark of the formats that the input is read in; for whoever makes inputs.
pub fn marks(input: &[u8]) -> Vec<&'static str> {
    marks_of(&case(input).config)
}

fn marks_of(config: &PipelineConfig) -> Vec<&'static str> {
    let family = config.tool_format.family();
    let calls = family.into_iter().flat_map(|family| family.texts().chain(family.closes().iter().copied()));
    let thoughts = config.reasoning.format().into_iter();
    calls.chain(thoughts.flat_map(|format| format.open.iter().chain(format.close).copied())).collect()
}

/// Reads the input in several cuts, and fails where a promise does not hold.
pub fn check(input: &[u8]) {
    let case = case(input);
    let repeated;
    let output = if case.repeated && !case.output.is_empty() {
        repeated = case.output.repeat(REPEATED_BYTES.div_ceil(case.output.len()));
        repeated.as_slice()
    } else {
        case.output
    };
    let (whole, _) = read(&case, output, usize::MAX);
    let bytes_at_once = [1, 2 + output.len() % 7];
    for bytes in bytes_at_once {
        let (pieces, pipeline) = read(&case, output, bytes);
        assert_eq!(pieces, whole, "in pieces of {bytes} bytes");
        let most = WORK + output.len() * WORK_PER_BYTE;
        assert!(pipeline.work() <= most, "{} steps for {} bytes", pipeline.work(), output.len());
    }
    is_well_formed(&whole);
    nothing_is_lost(&case.config, &String::from_utf8_lossy(output), &whole);
}

/// The pieces of an output, neighbours of a kind joined; ordinary tokens hold so many bytes.
fn read(case: &Case<'_>, output: &[u8], bytes: usize) -> (Vec<Piece>, Pipeline) {
    let (mut pipeline, mut pieces) = (Pipeline::new(case.config.clone()), Vec::new());
    let mut rest = output;
    while !rest.is_empty() {
        let control = next_control(&case.config.control, rest);
        let (spelled, text) = control.map_or((rest, ""), |(at, text)| (&rest[..at], text));
        for chunk in spelled.chunks(bytes) {
            pipeline.push(chunk, &mut pieces);
        }
        if !text.is_empty() {
            pipeline.push_control(text, &mut pieces);
        }
        rest = &rest[spelled.len() + text.len()..];
    }
    pipeline.finish(&mut pieces, case.cut);
    (coalesce(pieces), pipeline)
}

/// The first control token that is not spelled out, the longest at its place.
fn next_control<'a>(control: &'a [String], output: &[u8]) -> Option<(usize, &'a str)> {
    let at_place = |at: usize| {
        let begins = control.iter().filter(|text| output[at..].starts_with(text.as_bytes()));
        let longest = begins.max_by_key(|text| text.len())?;
        Some((at, longest.as_str())).filter(|_| at == 0 || output[at - 1] != SPELLED)
    };
    if control.is_empty() { None } else { (0..output.len()).find_map(at_place) }
}

/// The pieces with neighbours of a kind joined.
pub(super) fn coalesce(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(Piece::Text(last)), Piece::Text(more)) | (Some(Piece::Reasoning(last)), Piece::Reasoning(more)) => {
                last.push_str(&more);
            }
            (
                Some(Piece::ToolCallArguments { index: last_index, fragment: last }),
                Piece::ToolCallArguments { index, fragment },
            ) if *last_index == index => last.push_str(&fragment),
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

/// Every call has a name, a number of its own, fragments that are its arguments, and an end before anything else; one
/// that is complete has an object of arguments, and nothing comes behind a stop string.
fn is_well_formed(pieces: &[Piece]) {
    let (mut open, mut count) = (None::<String>, 0);
    for (at, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Text(text) | Piece::Reasoning(text) => assert!(open.is_none() && !text.is_empty(), "{pieces:?}"),
            Piece::Thought { .. } => assert!(pieces.is_empty(), "no parser says so: {pieces:?}"),
            Piece::Stopped { .. } => assert!(open.is_none() && at + 1 == pieces.len(), "{pieces:?}"),
            Piece::ToolCallStarted { index, name, .. } => {
                assert!(open.is_none() && *index == count && !name.is_empty(), "{pieces:?}");
                (open, count) = (Some(String::new()), count + 1);
            }
            Piece::ToolCallArguments { index, fragment } => {
                assert_eq!(*index + 1, count, "{pieces:?}");
                let fragments = open.as_mut();
                assert!(
                    fragments.is_some_and(|all| {
                        all.push_str(fragment);
                        true
                    }),
                    "{pieces:?}"
                );
            }
            Piece::ToolCallDone { index, arguments, complete, .. } => {
                assert_eq!((*index + 1, open.take().as_ref()), (count, Some(arguments)), "{pieces:?}");
                let is_object = || serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object());
                assert!(!complete || is_object(), "{arguments}");
            }
        }
    }
    assert!(open.is_none(), "{pieces:?}");
}

/// Longer outputs are not searched for what was lost: every way to read them counts.
const SEARCHED_BYTES: usize = 4096;

/// What is shown is the output, in its order. Where no call and no channel was found, nothing but marks and white
/// space lies between.
fn nothing_is_lost(config: &PipelineConfig, output: &str, pieces: &[Piece]) {
    let has_calls = pieces.iter().any(|piece| matches!(piece, Piece::ToolCallStarted { .. }));
    let stopped = pieces.iter().any(|piece| matches!(piece, Piece::Stopped { .. }));
    let shown: String = pieces.iter().filter_map(said).collect();
    let has_channels = config.tool_format.family().is_some_and(|family| matches!(family.reads, Reads::Output(_)))
        || config.reasoning.format().is_some_and(|format| format.stream.is_some());
    if has_calls || stopped || has_channels || output.len() > SEARCHED_BYTES {
        let mut letters = output.chars();
        let in_order = shown.chars().all(|letter| letters.any(|other| other == letter));
        assert!(in_order, "{shown:?} is not in the order of {output:?}");
    } else {
        assert!(makes_up(&marks_of(config), output, &shown), "{shown:?} is not all of {output:?}");
    }
}

fn said(piece: &Piece) -> Option<&str> {
    match piece {
        Piece::Text(text) | Piece::Reasoning(text) => Some(text),
        _ => None,
    }
}

/// Whether the output is what was shown with nothing but marks and white space in between. Every way to read it
/// counts, since a mark may hold what is shown.
fn makes_up(marks: &[&str], output: &str, shown: &str) -> bool {
    // For every place in the output: how much of what is shown may have been said before it.
    let mut said = vec![BTreeSet::new(); output.len() + 1];
    said[0].insert(0);
    for (at, next) in output.char_indices() {
        for before in std::mem::take(&mut said[at]) {
            let rest = &output[at..];
            for mark in marks.iter().filter(|mark| rest.starts_with(**mark)) {
                said[at + mark.len()].insert(before);
            }
            let behind = at + next.len_utf8();
            if next.is_ascii_whitespace() {
                said[behind].insert(before);
            }
            if shown[before..].starts_with(next) {
                said[behind].insert(before + next.len_utf8());
            }
        }
    }
    said[output.len()].contains(&shown.len())
}
