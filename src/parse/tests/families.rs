//! What every family promises, on answers from a grammar: nothing is lost, no cut changes anything, what is whole is
//! called whole and nothing else is.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::Value;

use super::generate::{self, Part};
use super::render::{FORMS, Form};
use super::{coalesce, pieces};
use crate::parse::families::FAMILIES;
use crate::parse::json_scanner::{JsonScanner, Scan};
use crate::parse::{DeclaredTool, Piece, Pipeline, PipelineConfig, ToolFormat};

/// A stretch of an answer as a client sees it; white space at its borders may be framing.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Seen {
    Reasoning(String),
    Text(String),
    Call { name: String, arguments: Value, complete: bool },
}

pub(super) fn seen(pieces: &[Piece]) -> Vec<Seen> {
    let mut names = Vec::new();
    let mut seen = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => seen.push(Seen::Reasoning(text.trim().to_owned())),
            Piece::Text(text) if text.trim().is_empty() => {}
            Piece::Text(text) => seen.push(Seen::Text(text.trim().to_owned())),
            Piece::ToolCallStarted { index, name, .. } => {
                assert_eq!(*index as usize, names.len());
                names.push(name.clone());
            }
            Piece::ToolCallDone { index, arguments, complete, .. } => {
                let arguments = match serde_json::from_str(arguments) {
                    Ok(arguments) => arguments,
                    Err(_) if !complete => Value::from(arguments.as_str()),
                    Err(error) => panic!("{error}: {arguments}"),
                };
                seen.push(Seen::Call { name: names[*index as usize].clone(), arguments, complete: *complete });
            }
            Piece::ToolCallArguments { .. } | Piece::Thought { .. } | Piece::Stopped { .. } => {}
        }
    }
    seen
}

pub(super) fn meant(parts: &[Part]) -> Vec<Seen> {
    let mut meant = Vec::new();
    for part in parts {
        match part {
            Part::Reasoning(text) => meant.push(Seen::Reasoning(text.clone())),
            Part::Text(text) => meant.push(Seen::Text(text.clone())),
            Part::Calls(calls) => meant.extend(calls.iter().map(|call| Seen::Call {
                name: call.name.clone(),
                arguments: Value::Object(call.arguments.clone()),
                complete: true,
            })),
        }
    }
    meant
}

pub(super) fn config(form: &Form, parts: &[Part]) -> PipelineConfig {
    PipelineConfig {
        tool_format: form.name.parse().unwrap(),
        reasoning: form.reasoning().parse().unwrap(),
        starts_in_reasoning: Some(false),
        tools: generate::tools(parts),
        ..PipelineConfig::default()
    }
}

fn forms() -> impl Iterator<Item = &'static Form> {
    FORMS.iter()
}

#[test]
fn every_family_is_tried() {
    let names = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    let known = ToolFormat::all().filter(|format| *format != ToolFormat::NONE).map(ToolFormat::name);
    assert_eq!(names(forms().map(|form| form.name).collect()), names(known.collect()));
}

/// The answer as this family can give it.
pub(super) fn fitted(form: &Form, parts: Vec<Part>) -> Vec<Part> {
    let mut parts = generate::fit(parts);
    if form.only_first && parts.iter().any(|part| matches!(part, Part::Calls(_))) {
        let first = parts.iter().find(|part| matches!(part, Part::Calls(_))).cloned();
        parts.truncate(usize::from(matches!(parts[0], Part::Reasoning(_))));
        parts.extend(first);
    }
    for part in &mut parts {
        if let Part::Text(text) = part
            && form.has_sections()
        {
            *text = text.replace("<|", "<");
        }
    }
    parts
}

/// Tries a share of the cases that `PROPTEST_CASES` asks for.
pub(super) fn run(
    form: &Form,
    share: u32,
    test: impl Fn(Vec<Part>, bool, &[prop::sample::Index]) -> Result<(), TestCaseError>,
) {
    let cuts = prop::collection::vec(any::<prop::sample::Index>(), 1..6);
    let result = TestRunner::new(Config {
        cases: Config::default().cases / share,
        failure_persistence: None,
        ..Config::default()
    })
    .run(&(generate::answer(), any::<bool>(), cuts), |(parts, other, cuts)| test(fitted(form, parts), other, &cuts));
    if let Err(error) = result {
        panic!("{}: {error}", form.name);
    }
}

#[test]
fn every_answer_is_read_as_it_was_meant_however_it_is_cut() {
    let counts = std::cell::RefCell::new(BTreeMap::<(&str, &str), usize>::new());
    for form in forms() {
        run(form, 4, |parts, other, cuts| {
            let output = form.answer(&parts, other);
            let config = config(form, &parts);
            let whole = pieces(config.clone(), std::iter::once(output.as_bytes()), false).0;
            prop_assert_eq!(seen(&whole), meant(&parts), "{}", &output);
            let bytewise = pieces(config.clone(), output.as_bytes().chunks(1), false).0;
            prop_assert_eq!(&bytewise, &whole, "{}", &output);
            let mut borders: Vec<usize> = cuts.iter().map(|cut| cut.index(output.len() + 1)).collect();
            borders.extend([0, output.len()]);
            borders.sort_unstable();
            let chunks = borders.windows(2).map(|pair| &output.as_bytes()[pair[0]..pair[1]]);
            prop_assert_eq!(&pieces(config, chunks, false).0, &whole, "{}", &output);
            for kind in generate::kinds(&parts) {
                *counts.borrow_mut().entry((form.name, kind)).or_default() += 1;
            }
            Ok(())
        });
    }
    table(&counts.into_inner());
}

/// How often each kind of case was tried with each family; shown with `--no-capture`.
fn table(counts: &BTreeMap<(&str, &str), usize>) {
    println!("| family | {} |\n|---|{}", generate::KINDS.join(" | "), "---|".repeat(generate::KINDS.len()));
    for form in forms() {
        let row = generate::KINDS.map(|kind| counts.get(&(form.name, kind)).copied().unwrap_or(0).to_string());
        println!("| {} | {} |", form.name, row.join(" | "));
    }
}

#[test]
fn an_answer_cut_anywhere_completes_no_call_that_was_not_whole_and_streams_json() {
    for form in forms() {
        run(form, 8, |parts, other, cuts| {
            let output = form.answer(&parts, other);
            let at = cuts[0].index(output.len() + 1);
            let mut pipeline = Pipeline::new(config(form, &parts));
            let (mut all, mut scanner) = (Vec::new(), JsonScanner::new());
            for chunk in output.as_bytes()[..at].chunks(1) {
                let before = all.len();
                pipeline.push(chunk, &mut all);
                for piece in &all[before..] {
                    match piece {
                        Piece::ToolCallStarted { .. } => scanner = JsonScanner::new(),
                        Piece::ToolCallArguments { fragment, .. } => {
                            let fits = fragment.bytes().all(|byte| scanner.push(byte) != Scan::Invalid);
                            prop_assert!(fits, "{:?} in {}", fragment, &output[..output.floor_char_boundary(at)]);
                        }
                        _ => {}
                    }
                }
            }
            pipeline.finish(&mut all, true);
            let calls = |seen: Vec<Seen>| {
                let calls = seen.into_iter().filter(|seen| matches!(seen, Seen::Call { .. }));
                calls.collect::<Vec<_>>()
            };
            let (got, meant) = (calls(seen(&coalesce(all))), calls(meant(&parts)));
            prop_assert!(got.len() <= meant.len(), "{:?}", got);
            for (at, (got_call, meant_call)) in got.iter().zip(&meant).enumerate() {
                let (Seen::Call { name, complete, .. }, Seen::Call { name: meant_name, .. }) = (got_call, meant_call)
                else {
                    continue;
                };
                prop_assert_eq!(name, meant_name);
                prop_assert!(*complete && got_call == meant_call || !complete && at + 1 == got.len(), "{:?}", got);
            }
            Ok(())
        });
    }
}

/// Whether a text ends inside an opening tag, far enough for it to be no closing one.
fn ends_in_opening_tag(text: &str) -> bool {
    let tail = text.rfind('<').map_or("", |at| &text[at + 1..]);
    tail.starts_with(char::is_alphabetic) && !tail.contains('>')
}

#[test]
fn an_answer_that_ends_anywhere_completes_no_call_inside_the_tag_of_its_next_argument() {
    const BYTES_MAX: usize = 500;
    for form in forms() {
        run(form, 32, |parts, other, cuts| {
            let output = form.answer(&parts, other);
            let all = (0..=output.len()).take(if output.len() <= BYTES_MAX { BYTES_MAX + 1 } else { 0 });
            let some = cuts.iter().map(|cut| cut.index(output.len() + 1));
            let meant = meant(&parts).into_iter().filter(|seen| matches!(seen, Seen::Call { .. })).collect::<Vec<_>>();
            for at in all.chain(some).filter(|at| output.is_char_boundary(*at)) {
                let answer = &output[..at];
                let got = seen(&pieces(config(form, &parts), std::iter::once(answer.as_bytes()), false).0);
                let got = got.into_iter().filter(|seen| matches!(seen, Seen::Call { .. })).collect::<Vec<_>>();
                prop_assert!(got.len() <= meant.len(), "{:?} of {}", got, answer);
                for (got, meant) in got.iter().zip(&meant) {
                    let (
                        Seen::Call { name, arguments: Value::Object(given), complete: true },
                        Seen::Call { name: meant_name, arguments: Value::Object(meant), .. },
                    ) = (got, meant)
                    else {
                        continue;
                    };
                    prop_assert_eq!(name, meant_name);
                    prop_assert!(given.keys().all(|key| meant.contains_key(key)), "{:?} of {}", given, answer);
                    let whole = given.len() == meant.len();
                    prop_assert!(whole || !ends_in_opening_tag(answer), "{:?} of {}", given, answer);
                }
            }
            Ok(())
        });
    }
}

#[test]
fn damaged_answers_are_read_the_same_however_they_are_cut() {
    for form in forms() {
        run(form, 8, |parts, other, cuts| {
            let output = form.answer(&parts, other);
            let config = config(form, &parts);
            let mut at: Vec<usize> =
                cuts.iter().map(|cut| output.floor_char_boundary(cut.index(output.len() + 1))).collect();
            at.resize(3, 0);
            at.sort_unstable();
            let (start, middle, end) = (&output[..at[0]], &output[at[0]..at[1]], &output[at[2].max(at[1])..]);
            for damaged in [format!("{start}{end}"), format!("{start}{middle}{middle}{end}"), format!("{start}<{end}")]
            {
                let whole = pieces(config.clone(), std::iter::once(damaged.as_bytes()), false).0;
                let bytewise = pieces(config.clone(), damaged.as_bytes().chunks(1), false).0;
                prop_assert_eq!(&bytewise, &whole, "{}", &damaged);
                seen(&whole);
            }
            Ok(())
        });
    }
}

#[test]
fn any_soup_of_marks_is_read_the_same_however_it_is_cut() {
    const BITS: [&str; 22] = [
        "f", "read", " ", "\n", "{", "}", "\"", "\"name\"", ":", ",", "[", "]", "(", ")", "a=", "'", "é", "<", ">",
        "|", "1", "\\",
    ];
    for family in FAMILIES {
        let mut bits: Vec<&str> = BITS.to_vec();
        bits.extend(family.texts().chain(family.texts()).chain(family.texts()));
        bits.extend(["<function=f>", "<parameter=a>", "</parameter>", "</function>", "<arg_key>a</arg_key>"]);
        bits.extend(["<invoke name=\"f\">", "<parameter name=\"a\">", "]<]minimax[>[<a>", "]<]minimax[>[</a>"]);
        bits.extend([
            "<｜DSML｜invoke name=\"f\">",
            "<｜DSML｜parameter name=\"a\" string=\"false\">",
            "</｜DSML｜parameter>",
        ]);
        bits.extend([
            "{\"name\": \"f\", \"arguments\": {\"a\": ",
            "call:f{a:",
            "f(a='",
            "<think>",
            "</think>",
            "<|sep|>",
        ]);
        let soup = (prop::collection::vec(prop::sample::select(bits), 0..24), any::<bool>());
        let cases = Config::default().cases / 2;
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        let result = runner.run(&soup, |(bits, cut)| {
            let output = bits.concat();
            let tools = vec![DeclaredTool { name: "f".to_owned(), parameters: Value::Null }];
            let config =
                PipelineConfig { tool_format: family.name.parse().unwrap(), tools, ..PipelineConfig::default() };
            let whole = pieces(config.clone(), std::iter::once(output.as_bytes()), cut).0;
            let (bytewise, pipeline) = pieces(config, output.as_bytes().chunks(1), cut);
            prop_assert_eq!(&bytewise, &whole, "{}", &output);
            prop_assert!(pipeline.work() <= (output.len() + 8) * 16);
            super::short(&whole);
            seen(&whole);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{}: {error}", family.name);
        }
    }
}

#[test]
fn a_word_put_anywhere_but_into_a_tag_is_shown() {
    const WORD: &str = "Zq7";
    // In these forms all that stands outside tags is text, a name, or part of an argument.
    let tagged = ["qwen3_coder", "glm47", "minimax_m2", "deepseek_v3_2", "deepseek_v4"];
    for form in forms().filter(|form| tagged.contains(&form.name) || ["gemma4", "lfm2"].contains(&form.name)) {
        run(form, 4, |parts, other, cuts| {
            let output = form.answer(&parts, other);
            let at = output.floor_char_boundary(cuts[0].index(output.len() + 1));
            let (before, behind) = output.split_at(at);
            let in_tag = before.rfind('<').map_or(0, |at| at + 1) > before.rfind('>').map_or(0, |at| at + 1);
            if tagged.contains(&form.name) && in_tag {
                return Ok(());
            }
            let output = format!("{before}{WORD}{behind}");
            let whole = pieces(config(form, &parts), std::iter::once(output.as_bytes()), false).0;
            let mut shown = String::new();
            for piece in &whole {
                match piece {
                    Piece::Reasoning(text) | Piece::Text(text) => shown.push_str(text),
                    Piece::ToolCallStarted { name, .. } => shown.push_str(name),
                    Piece::ToolCallDone { arguments, .. } => shown.push_str(arguments),
                    Piece::ToolCallArguments { .. } | Piece::Thought { .. } | Piece::Stopped { .. } => {}
                }
            }
            prop_assert_eq!(shown.matches(WORD).count(), 1, "{} gives {:?}", &output, &whole);
            Ok(())
        });
    }
}

#[test]
fn long_arguments_stream_in_every_family() {
    for form in forms() {
        let long = "All work and no play.\n".repeat(500);
        let arguments = [("content".to_owned(), Value::from(long))].into_iter().collect();
        let parts = [Part::Calls(vec![generate::Call { name: "write".to_owned(), arguments }])];
        let output = form.answer(&parts, false);
        let mut pipeline = Pipeline::new(config(form, &parts));
        let mut out = Vec::new();
        pipeline.push(&output.as_bytes()[..output.len() / 2], &mut out);
        let streamed: usize = out
            .iter()
            .map(|piece| match piece {
                Piece::ToolCallArguments { fragment, .. } => fragment.len(),
                _ => 0,
            })
            .sum();
        assert!(streamed > output.len() / 3, "{}: {streamed} of {}", form.name, output.len());
    }
}

#[test]
fn work_is_linear_in_every_family() {
    const BYTES: usize = 1 << 13;
    for form in forms() {
        let format: ToolFormat = form.name.parse().unwrap();
        let call = generate::Call { name: "f".to_owned(), arguments: serde_json::Map::new() };
        let units = format.family().unwrap().open.iter().map(|marker| (*marker).to_owned());
        let parts = [Part::Calls(vec![call])];
        for unit in units.chain(["<".to_owned(), "[".to_owned(), "\n".to_owned(), form.answer(&parts, false)]) {
            let output = unit.repeat(BYTES / unit.len());
            let (_, pipeline) = pieces(config(form, &parts), output.as_bytes().chunks(1), false);
            assert!(pipeline.work() < output.len() * 16, "{}: {unit}: {}", form.name, pipeline.work());
        }
    }
}
