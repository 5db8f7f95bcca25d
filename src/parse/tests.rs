//! The pipeline's promises, checked on tables and on arbitrary cuts of arbitrary output.

mod control;
mod corpus;
mod families;
mod flood;
mod fuzz;
mod generate;
mod ids;
mod json;
mod page;
mod render;
mod rules;
mod tagged;

use std::collections::BTreeSet;

use proptest::prelude::*;

use serde_json::Value;

use super::checks::coalesce;
use super::{DeclaredTool, Piece, Pipeline, PipelineConfig, ReasoningFormat};

fn config() -> PipelineConfig {
    let read = DeclaredTool { name: "read".to_owned(), parameters: Value::Null };
    PipelineConfig { tools: vec![read], ..PipelineConfig::default() }
}

/// The pieces of an output in chunks of bytes, neighbours of a kind joined.
fn pieces<'a>(config: PipelineConfig, chunks: impl Iterator<Item = &'a [u8]>, cut: bool) -> (Vec<Piece>, Pipeline) {
    let mut pipeline = Pipeline::new(config);
    let mut out = Vec::new();
    for chunk in chunks {
        pipeline.push(chunk, &mut out);
    }
    pipeline.finish(&mut out, cut);
    (coalesce(out), pipeline)
}

/// Pieces in short: `T:`, `R:`, `C:name(arguments)`, `C!` for an incomplete call, `S:` for a stop. Checks that a
/// call's fragments are its arguments and that its parts come together.
fn short(pieces: &[Piece]) -> Vec<String> {
    let mut short = Vec::new();
    let mut open: Option<(u32, String, String)> = None;
    for piece in pieces {
        match piece {
            Piece::Text(text) => short.push(format!("T:{text}")),
            Piece::Reasoning(text) => short.push(format!("R:{text}")),
            Piece::Stopped { stop } => short.push(format!("S:{stop}")),
            Piece::Thought { .. } => unreachable!("no parser says so"),
            Piece::ToolCallStarted { index, name, .. } => open = Some((*index, name.clone(), String::new())),
            Piece::ToolCallArguments { index, fragment } => {
                let (open_index, _, arguments) = open.as_mut().expect("arguments need a started call");
                assert_eq!(open_index, index);
                arguments.push_str(fragment);
            }
            Piece::ToolCallDone { index, arguments, complete, .. } => {
                let (open_index, name, fragments) = open.take().expect("only a started call ends");
                assert_eq!((open_index, &fragments), (*index, arguments));
                let parsed = serde_json::from_str::<serde_json::Value>(arguments);
                assert!(!complete || parsed.is_ok(), "{arguments}");
                short.push(format!("C{}:{name}({arguments})", if *complete { "" } else { "!" }));
            }
        }
        assert!(open.is_none() || !matches!(piece, Piece::Text(_) | Piece::Reasoning(_)));
    }
    assert!(open.is_none(), "every call ends");
    short
}

fn run(config: &PipelineConfig, output: &str, cut: bool) -> Vec<String> {
    let whole = pieces(config.clone(), std::iter::once(output.as_bytes()), cut).0;
    let bytewise = pieces(config.clone(), output.as_bytes().chunks(1), cut).0;
    assert_eq!(whole, bytewise, "{output:?}");
    short(&whole)
}

#[track_caller]
fn check(output: &str, expected: &[&str]) {
    assert_eq!(run(&config(), output, false), expected, "{output:?}");
}

#[track_caller]
fn check_cut(output: &str, expected: &[&str]) {
    assert_eq!(run(&config(), output, true), expected, "{output:?}");
}

const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

#[test]
fn reasoning_calls_and_text_keep_their_order() {
    check("Hello\n\nworld\n", &["T:Hello\n\nworld\n"]);
    check(CALL, &["C:f({\"a\": 1})"]);
    check(&format!("Sure.\n{CALL}\n{CALL}\n"), &["T:Sure.", "C:f({\"a\": 1})", "C:f({\"a\": 1})"]);
    check(
        &format!("<think>\nwhy\n</think>\n\n{CALL}\n<think>\nand\n</think>\n\n{CALL}\nDone."),
        &["R:why", "C:f({\"a\": 1})", "R:and", "C:f({\"a\": 1})", "T:\nDone."],
    );
    check("<think>\n\n</think>\n\nHi", &["T:Hi"]);
    check("<think>never closed", &["R:never closed"]);
    check("<think><", &["R:<"]);
    check("\n \n", &["T:\n \n"]);
    check("", &[]);
}

#[test]
fn an_answer_that_begins_in_reasoning_stays_there_until_the_marker() {
    let inside = PipelineConfig { starts_in_reasoning: Some(true), ..config() };
    assert_eq!(run(&inside, "a <think> b\n</think>\n\nc", false), ["R:a <think> b", "T:c"]);
    assert_eq!(run(&inside, "only thoughts", false), ["R:only thoughts"]);
    assert_eq!(run(&inside, &format!("a {CALL}"), false), [format!("R:a {CALL}")]);
}

#[test]
fn a_call_may_be_written_in_several_ways() {
    check("<tool_call>{\"arguments\":{\"b\":[]},\"name\":\"f\"}</tool_call>", &["C:f({\"b\":[]})"]);
    check("<tool_call>{\"name\":\"f\",\"parameters\":{}}</tool_call>", &["C:f({})"]);
    check("<tool_call>{\"id\":[1,\"x\"],\"name\":\"f\",\"arguments\":{}, \"n\":1}</tool_call>", &["C:f({})"]);
    check("<tool_call>{\"name\":\"f\"}</tool_call>", &["C:f({})"]);
    check("<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>", &["C:f({})"]);
    check("<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>", &["C:f({\"a\":1})"]);
    check("<tool_call>{\"name\":\"\\u0066\\u00fc\",\"arguments\":{}}</tool_call>", &["C:fü({})"]);
    check("<tool_call>{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"g\"}\n</tool_call>", &["C:f({})", "C:g({})"]);
    check("<tool_call>{\"name\":\"f\",\"arguments\":{}}", &["C:f({})"]);
    check("<tool_call>{\"name\":\"f\",\"arguments\":{}</tool_call>", &["C:f({})"]);
}

#[test]
fn a_bare_object_that_is_the_whole_answer_is_a_call_of_a_declared_tool() {
    let object = "{\"name\": \"read\", \"arguments\": {\"a\": 1}}";
    check(object, &["C:read({\"a\": 1})"]);
    check(&format!("\n```json\n{object}\n```\n"), &["C:read({\"a\": 1})"]);
    check(&format!("```JSON\n{object}\n```"), &["C:read({\"a\": 1})"]);
    check(&format!("<think>\n\n</think>\n\n{object} is it."), &[&format!("T:{object} is it.")]);
    check(&format!("{object} is it."), &[&format!("T:{object} is it.")]);
    check("{\"name\": \"Ann\", \"arguments\": {}}", &["T:{\"name\": \"Ann\", \"arguments\": {}}"]);
    check("{\"a\": 1}", &["T:{\"a\": 1}"]);
    check("```rust\nfn f() {}\n```", &["T:```rust\nfn f() {}\n```"]);
    check_cut(object, &[&format!("T:{object}")]);
}

#[test]
fn an_answer_in_json_is_shown_while_it_is_written() {
    let long = format!("{{\"type\": \"{}", "x".repeat(300));
    let arguments = format!("{{\"arguments\": [\"{}", "x".repeat(1 << 18));
    for format in ["hermes", "llama3_json"] {
        for answer in ["{\"title\": ", "{\"name\": \"read\", \"age\": ", &long, &arguments] {
            let mut pipeline = Pipeline::new(PipelineConfig { tool_format: format.parse().unwrap(), ..config() });
            let mut out = Vec::new();
            pipeline.push(answer.as_bytes(), &mut out);
            assert!(!pipeline.in_call() && !pipeline.held(), "{format}: {answer}");
            assert_eq!(short(&coalesce(out)), [format!("T:{answer}")]);
        }
    }
    check("{\"id\": \"1\", \"arguments\": {\"a\": 1}, \"name\": \"read\"}", &["C:read({\"a\": 1})"]);
}

#[test]
fn markers_that_are_not_followed_by_a_call_are_text() {
    check("Use <tool_call> to call.", &["T:Use <tool_call> to call."]);
    check(&format!("Use <tool_call>, as in {CALL}"), &["T:Use <tool_call>, as in ", "C:f({\"a\": 1})"]);
    check("a </tool_call> b <think> c", &["T:a </tool_call> b <think> c"]);
    check("<<tool_call", &["T:<<tool_call"]);
    check("x\n<tool_call>\n[]", &["T:x\n<tool_call>\n[]"]);
    check("<tool_call>{\"arguments\":{}}</tool_call>", &["T:<tool_call>{\"arguments\":{}}</tool_call>"]);
    check("<tool_call>{\"name\":\"\"}", &["T:<tool_call>{\"name\":\"\"}"]);
    check(&format!("<tool_call>{{\"name {CALL}"), &["T:<tool_call>{\"name ", "C:f({\"a\": 1})"]);
    check("<tool_call>é", &["T:<tool_call>é"]);
}

#[test]
fn markers_inside_values_are_data() {
    let arguments = "{\"a\":\"</tool_call> <tool_call>{} <think>\"}";
    check(
        &format!("<tool_call>{{\"name\":\"f\",\"arguments\":{arguments}}}</tool_call>"),
        &[&format!("C:f({arguments})")],
    );
    let spaces = "{ \"a\" :\t\"  x\\n \" , \"b\": 1.50e2, \"c\": \"null\" }";
    check(&format!("<tool_call>{{\"name\":\"f\",\"arguments\":{spaces}}}</tool_call>"), &[&format!("C:f({spaces})")]);
}

#[test]
fn a_call_that_ends_early_or_breaks_is_incomplete() {
    check("<tool_call>{\"name\":\"f\",\"arguments\":{\"a", &["C!:f({\"a)"]);
    check_cut("<tool_call>{\"name\":\"f\",\"arguments\":{}}", &["C!:f({})"]);
    check_cut("<tool_call>{\"name\":\"f\",\"argu", &["T:<tool_call>{\"name\":\"f\",\"argu"]);
    check("<tool_call>{\"name\":\"f\",\"arguments\":{", &["T:<tool_call>{\"name\":\"f\",\"arguments\":{"]);
    check(
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":oops</t}}</tool_call>\nText",
        &["C!:f({\"a\":oops</t}})", "T:\nText"],
    );
    check("<tool_call>{\"name\":\"f\",\"arguments\":{}} and so on", &["C:f({})", "T: and so on"]);
}

#[test]
fn raw_line_ends_in_strings_are_escaped() {
    check("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x\ny\"}}</tool_call>", &["C:f({\"a\":\"x\\u000ay\"})"]);
}

#[test]
fn stop_strings_end_the_text_only() {
    let stopping = PipelineConfig { stop: vec!["STOP".to_owned(), "\"a\"".to_owned()], ..config() };
    assert_eq!(run(&stopping, "go STOP on", false), ["T:go ", "S:STOP"]);
    assert_eq!(run(&stopping, "<think>\nSTOP\n</think>\n\nSTO\nP", false), ["R:STOP", "T:STO\nP"]);
    assert_eq!(run(&stopping, &format!("ST{CALL}OP"), false), ["T:ST", "C:f({\"a\": 1})", "T:OP"]);
    let mut out = Vec::new();
    let mut pipeline = Pipeline::new(stopping);
    pipeline.push(b"STOP", &mut out);
    pipeline.push(CALL.as_bytes(), &mut out);
    pipeline.finish(&mut out, false);
    assert!(pipeline.stopped() && !pipeline.held());
    assert_eq!(out, [Piece::Stopped { stop: "STOP".to_owned() }]);
}

#[test]
fn nothing_is_held_longer_than_needed() {
    let mut pipeline = Pipeline::new(PipelineConfig { stop: vec!["END".to_owned()], ..config() });
    let mut out = Vec::new();
    let mut held = |text: &str| {
        pipeline.push(text.as_bytes(), &mut out);
        pipeline.held()
    };
    assert!(!held("Hi"));
    assert!(held(" <tool_"));
    assert!(!held("box> "));
    assert!(held("EN"));
    assert!(!held("T"));
    assert!(held("\n"));
    assert!(held("<tool_call>{\"name\": \"f\", "));
    assert!(held("\"arguments\": {"));
    assert!(!held("\"a\""));
    assert!(!held(": \"x"));
    assert!(!held("\"}"));
    assert!(!held("}"));
    assert!(held("</tool"));
    assert!(!held("_call>"));
    pipeline.push("é".as_bytes().split_at(1).0, &mut out);
    assert!(pipeline.held());
    pipeline.push("é".as_bytes().split_at(1).1, &mut out);
    assert!(!pipeline.held());
}

#[test]
fn arguments_stream_as_they_are_generated() {
    let mut pipeline = Pipeline::new(config());
    let mut out = Vec::new();
    pipeline.push(b"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x", &mut out);
    assert_eq!(
        out,
        [
            Piece::ToolCallStarted { index: 0, id: None, name: "f".to_owned() },
            Piece::ToolCallArguments { index: 0, fragment: "{\"a\":\"x".to_owned() },
        ]
    );
    assert!(pipeline.in_call() && !pipeline.in_reasoning());
}

#[test]
fn work_is_linear_even_for_hostile_output() {
    const BYTES: usize = 1 << 15;
    let opening = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"";
    for unit in
        ["<tool_call>", "<", "<tool_call>{\"", "<tool_call>{\"arguments\":[", "\n", "<tool_call>{\"x\":\"", CALL]
    {
        for prefix in ["", opening, "<think>", "x", "{\"arguments\":["] {
            let output = format!("{prefix}{}", unit.repeat(BYTES / unit.len()));
            let (_, pipeline) = pieces(config(), output.as_bytes().chunks(1), false);
            assert!(pipeline.work() < output.len() * 16, "{prefix}{unit}: {}", pipeline.work());
        }
    }
    let long = format!("{opening}{}\"}}}}</tool_call>", "y".repeat(1 << 18));
    let (pieces, _) = pieces(config(), long.as_bytes().chunks(1), false);
    assert_eq!(short(&pieces)[0].len(), (1 << 18) + "C:f({\"a\":\"\"})".len());
}

/// Output made of what matters to the parsers.
fn output() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just(CALL.to_owned()),
        prop::sample::select(vec![
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            "\n",
            "<",
            "{",
            "}",
            "\"",
            "\"name\"",
            ":",
            "\"read\"",
            ",",
            "\"arguments\"",
            "{\"a\": \"é\"}",
            "```",
            "json",
            "x y",
            "STOP",
            "🦀",
            "\\",
            "1",
            "{\"name\":\"read\",\"arguments\":{",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(part, 0..14).prop_map(|parts| parts.concat())
}

/// Whether the output is what was shown, in order, with nothing but framing in between: every way to read it counts,
/// since a marker may hold what is shown. Around calls anything may lie.
fn makes_up(output: &str, shown: &str, has_calls: bool) -> bool {
    const FRAMING: [&str; 5] = ["<think>", "</think>", " ", "\n", "\t"];
    // For every place in the output: how much of what is shown may have been said before it.
    let mut said = vec![BTreeSet::from([0])];
    said.resize(output.len() + 1, BTreeSet::new());
    for at in 0..output.len() {
        for before in std::mem::take(&mut said[at]) {
            let rest = &output[at..];
            for framing in FRAMING.iter().filter(|framing| rest.starts_with(**framing)) {
                said[at + framing.len()].insert(before);
            }
            let next = rest.chars().next().unwrap();
            let behind = at + next.len_utf8();
            if shown[before..].starts_with(next) {
                said[behind].insert(before + next.len_utf8());
            }
            if has_calls {
                said[behind].insert(before);
            }
        }
    }
    said[output.len()].contains(&shown.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn any_cut_gives_the_pieces_of_the_whole(
        output in output(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        cut in any::<bool>(),
        inside in any::<bool>(),
        stops in any::<bool>(),
    ) {
        let stop = if stops { vec!["STOP".to_owned(), "x y".to_owned()] } else { Vec::new() };
        let config = PipelineConfig { starts_in_reasoning: Some(inside), stop, ..config() };
        let mut borders: Vec<usize> = cuts.iter().map(|index| index.index(output.len() + 1)).collect();
        borders.extend([0, output.len()]);
        borders.sort_unstable();
        let chunks = borders.windows(2).map(|pair| &output.as_bytes()[pair[0]..pair[1]]);
        let (pieces, _) = pieces(config.clone(), chunks, cut);
        prop_assert_eq!(short(&pieces), run(&config, &output, cut));
    }

    #[test]
    fn every_byte_comes_out_once_and_in_order(output in output()) {
        let (pieces, _) = pieces(config(), std::iter::once(output.as_bytes()), false);
        let has_calls = pieces.iter().any(|piece| matches!(piece, Piece::ToolCallStarted { .. }));
        let shown = pieces.iter().filter_map(|piece| match piece {
            Piece::Text(text) | Piece::Reasoning(text) => Some(text.as_str()),
            // Arguments that were left out are shown as empty ones.
            Piece::ToolCallArguments { fragment, .. } => Some(fragment.as_str()).filter(|text| *text != "{}"),
            _ => None,
        });
        let shown: String = shown.collect();
        prop_assert!(makes_up(&output, &shown, has_calls), "{:?} is not all of {:?}", shown, output);
    }

    #[test]
    fn without_formats_text_passes_unchanged(output in output()) {
        let (tool_format, reasoning) = (super::ToolFormat::NONE, ReasoningFormat::NONE);
        let config = PipelineConfig { tool_format, reasoning, ..config() };
        let shown = Some(output.as_str()).filter(|text| !text.is_empty());
        let expected: Vec<String> = shown.map(|text| format!("T:{text}")).into_iter().collect();
        prop_assert_eq!(run(&config, &output, false), expected);
    }
}
