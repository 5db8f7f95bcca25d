//! Arbitrary bytes, rich in what the formats are made of, through every pair of formats: nothing panics, no cut changes
//! anything, and what is read again stays linear. Where no format is looked for, nothing is lost; that of the others is
//! for the tests of answers from the grammar.

use proptest::prelude::*;

use super::{coalesce, pieces, short};
use crate::parse::{DeclaredTool, Piece, PipelineConfig, ReasoningFormat, ToolFormat};

/// What else matters to the parsers.
const SCRAPS: [&str; 26] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ":",
    ",",
    ";",
    "=",
    "(",
    ")",
    "<",
    ">",
    "\n",
    " ",
    "```",
    "`",
    "f",
    "name",
    "{\"name\":\"f\",\"arguments\":{\"a\":",
    "\"a\"",
    "null",
    "-1",
    "é🦀",
    "/",
];

fn formats() -> impl Strategy<Value = (ToolFormat, ReasoningFormat)> {
    let calls: Vec<_> = ToolFormat::all().collect();
    let thoughts: Vec<_> = ReasoningFormat::all().collect();
    (prop::sample::select(calls), prop::sample::select(thoughts))
}

/// Bytes for these formats: their own markers, whole and broken, scraps, and anything.
fn output((calls, thoughts): (ToolFormat, ReasoningFormat)) -> impl Strategy<Value = Vec<u8>> {
    let texts = calls.family().into_iter().flat_map(crate::parse::families::Family::texts);
    let marks = thoughts.format().into_iter().flat_map(|format| format.open.iter().chain(format.close).copied());
    let own: Vec<&str> = texts.chain(marks).chain(SCRAPS).collect();
    let part = prop_oneof![
        6 => prop::sample::select(own.clone()).prop_map(|text| text.as_bytes().to_vec()),
        2 => (prop::sample::select(own), any::<prop::sample::Index>())
            .prop_map(|(text, at)| text.as_bytes()[..at.index(text.len() + 1)].to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_the_same_however_they_are_cut(
        ((tool_format, reasoning), output) in formats().prop_flat_map(|formats| (Just(formats), output(formats))),
        cut in any::<bool>(),
        inside in prop::option::of(any::<bool>()),
    ) {
        let tools = vec![DeclaredTool { name: "f".to_owned(), parameters: serde_json::Value::Null }];
        let config = PipelineConfig {
            tool_format, reasoning, starts_in_reasoning: inside, tools, ..PipelineConfig::default()
        };
        let (whole, _) = pieces(config.clone(), std::iter::once(output.as_slice()), cut);
        let (bytewise, pipeline) = pieces(config, output.chunks(1), cut);
        prop_assert_eq!(&whole, &bytewise, "{} {}", tool_format, reasoning);
        prop_assert!(pipeline.work() <= 64 + output.len() * 16, "{}", pipeline.work());
        short(&coalesce(whole.clone()));
        // Where nothing is a marker of anything, everything is shown.
        if tool_format == ToolFormat::NONE && reasoning == ReasoningFormat::NONE {
            let shown: String = whole.iter().map(|piece| match piece {
                Piece::Text(text) => text.as_str(),
                _ => "",
            }).collect();
            prop_assert_eq!(shown, String::from_utf8_lossy(&output));
        }
    }
}

#[test]
fn nothing_but_beginnings_of_markers_is_text() {
    for format in ToolFormat::all() {
        let opens = format.family().map_or(&[][..], |family| family.open);
        for unit in opens.iter().map(|marker| &marker[..1]).filter(|unit| unit.is_ascii()).chain(["<"]).take(2) {
            let output = unit.repeat(1 << 14);
            let config = PipelineConfig { tool_format: format, ..PipelineConfig::default() };
            let (pieces, _) = pieces(config, output.as_bytes().chunks(4), false);
            assert_eq!(short(&pieces), [format!("T:{output}")], "{format}");
        }
    }
}
