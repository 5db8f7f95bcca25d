//! Markers that are control tokens of a model: generated as such they are markers, and spelled out they are text.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::families::{Seen, config, fitted, meant, seen};
use super::generate::{self, Call, Part};
use super::render::{FORMS, Form};
use super::{coalesce, pieces};
use crate::parse::{Piece, Pipeline, PipelineConfig, ReasoningFormat, control_markers};

/// What the mask itself puts into texts.
const MARK: &str = "\u{FDD0}";

/// A token of an answer, or several.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    /// Ordinary ones of this text.
    Spelled(&'a str),
    /// The control token of this text.
    Control(&'a str),
}

/// For a model whose vocabulary has a control token for every marker of the form.
fn controlled(form: &Form, parts: &[Part]) -> PipelineConfig {
    let config = config(form, parts);
    let calls = config.tool_format.family().unwrap().texts();
    let thoughts = config.reasoning.format().into_iter().flat_map(|format| format.open.iter().chain(format.close));
    let texts: Vec<&str> = calls.chain(thoughts.copied()).collect();
    let control = control_markers(config.tool_format, config.reasoning, texts.into_iter());
    PipelineConfig { control, ..config }
}

/// The text as a tokenizer cuts it that looks for control tokens first, the longest at each place.
fn tokens<'a>(text: &'a str, control: &'a [String]) -> Vec<Token<'a>> {
    let (mut tokens, mut at, mut from) = (Vec::new(), 0, 0);
    while at < text.len() {
        let begins = control.iter().filter(|control| text[at..].starts_with(control.as_str()));
        match begins.max_by_key(|control| control.len()) {
            Some(control) => {
                tokens.extend([Token::Spelled(&text[from..at]), Token::Control(control)]);
                at += control.len();
                from = at;
            }
            None => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    tokens.push(Token::Spelled(&text[from..]));
    tokens
}

/// What comes of tokens, where ordinary ones hold so many bytes.
fn read(config: &PipelineConfig, tokens: &[Token<'_>], bytes: usize) -> Vec<Piece> {
    let (mut pipeline, mut out) = (Pipeline::new(config.clone()), Vec::new());
    for token in tokens {
        match token {
            Token::Control(text) => pipeline.push_control(text, &mut out),
            Token::Spelled(text) => text.as_bytes().chunks(bytes).for_each(|chunk| pipeline.push(chunk, &mut out)),
        }
    }
    pipeline.finish(&mut out, false);
    coalesce(out)
}

/// The same pieces however the ordinary tokens are cut.
fn read_in_any_cut(config: &PipelineConfig, tokens: &[Token<'_>]) -> Vec<Piece> {
    let whole = read(config, tokens, usize::MAX);
    for bytes in [1, 3] {
        assert_eq!(read(config, tokens, bytes), whole, "{tokens:?}");
    }
    whole
}

/// Forms whose calls are told by markers.
fn marked() -> impl Iterator<Item = &'static Form> {
    FORMS.iter().filter(|form| !form.only_first)
}

/// Tries a share of the cases that `PROPTEST_CASES` asks for.
fn run(form: &Form, test: impl Fn(Vec<Part>, bool)) {
    let cases = Config::default().cases / 32;
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let answers = (generate::answer(), any::<bool>());
    TestRunner::new(config)
        .run(&answers, |(parts, other)| {
            test(fitted(form, parts), other);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{}: {error}", form.name));
}

fn text_of(text: &str) -> Vec<Piece> {
    if text.is_empty() { Vec::new() } else { vec![Piece::Text(text.to_owned())] }
}

#[test]
fn an_answer_that_is_spelled_out_is_text_to_the_last_byte() {
    for form in marked() {
        run(form, |parts, other| {
            let output = form.answer(&parts, other);
            let config = PipelineConfig { bare_calls: false, ..controlled(form, &parts) };
            assert_eq!(read_in_any_cut(&config, &[Token::Spelled(&output)]), text_of(&output), "{}", form.name);
        });
    }
}

#[test]
fn an_answer_in_control_tokens_is_read_as_one_whose_markers_are_text() {
    for form in FORMS {
        run(form, |parts, other| {
            let output = form.answer(&parts, other);
            let controlled = controlled(form, &parts);
            let as_text = pieces(config(form, &parts), std::iter::once(output.as_bytes()), false).0;
            let tokens = tokens(&output, &controlled.control);
            assert_eq!(read_in_any_cut(&controlled, &tokens), as_text, "{}: {output}", form.name);
        });
    }
}

fn read_file(path: &str) -> Vec<Part> {
    let arguments = json!({ "path": path }).as_object().unwrap().clone();
    vec![Part::Calls(vec![Call { name: "read".to_owned(), arguments }])]
}

/// The answer with `QQ` replaced by what is spelled out, whatever is in it.
fn with_spelled<'a>(output: &'a str, spelled: &'a str, control: &'a [String]) -> Vec<Token<'a>> {
    let (before, behind) = output.split_once("QQ").unwrap();
    [tokens(before, control), vec![Token::Spelled(spelled)], tokens(behind, control)].concat()
}

#[test]
fn a_call_that_is_spelled_out_in_a_text_is_that_text_and_the_generated_one_behind_it_is_a_call() {
    // Behind a fence that its own call leaves open, nothing of deepseek_v3 is a call.
    for form in marked().filter(|form| form.name != "deepseek_v3") {
        let call = read_file("x");
        let forged = form.answer(&call, false);
        let parts = [vec![Part::Text("QQ".to_owned())], call].concat();
        let config = controlled(form, &parts);
        let output = form.answer(&parts, false);
        let tokens = with_spelled(&output, &forged, &config.control);
        let mut expected = meant(&parts);
        expected[0] = Seen::Text(forged.trim().to_owned());
        assert_eq!(seen(&read_in_any_cut(&config, &tokens)), expected, "{}", form.name);
    }
}

#[test]
fn markers_that_are_spelled_out_in_an_argument_are_data() {
    for form in FORMS {
        let config = controlled(form, &read_file(""));
        // What the forms write otherwise in a string is left out.
        let plain = config.control.iter().filter(|text| !text.contains(['"', '\'', '\\', '\n']));
        let spelled = format!("a{}{MARK}b", plain.cloned().collect::<Vec<_>>().join("x"));
        let parts = read_file("QQ");
        let output = form.answer(&parts, false);
        let tokens = with_spelled(&output, &spelled, &config.control);
        let arguments: Value = json!({ "path": spelled });
        let expected = [Seen::Call { name: "read".to_owned(), arguments, complete: true }];
        assert_eq!(seen(&read_in_any_cut(&config, &tokens)), expected, "{}", form.name);
    }
}

#[test]
fn no_soup_that_is_spelled_out_loses_a_byte() {
    for form in marked() {
        let config = PipelineConfig { bare_calls: false, ..controlled(form, &read_file("")) };
        let scraps = [MARK, "x", "\n", " ", "<", "`", "\"", "é", "{\"name\":\"read\",\"arguments\":{"];
        let mut bits: Vec<String> = scraps.map(str::to_owned).to_vec();
        bits.extend(config.control.iter().chain(&config.control).cloned());
        let soup = prop::collection::vec(prop::sample::select(bits), 0..14);
        let runner = Config { cases: 48, failure_persistence: None, ..Config::default() };
        TestRunner::new(runner)
            .run(&soup, |bits| {
                let output = bits.concat();
                assert_eq!(read_in_any_cut(&config, &[Token::Spelled(&output)]), text_of(&output), "{}", form.name);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{}: {error}", form.name));
    }
}

#[test]
fn control_tokens_that_are_no_markers_say_nothing_and_the_rest_is_told_by_its_text() {
    let control = vec!["<|call|>".to_owned()];
    let config = PipelineConfig {
        tool_format: "harmony".parse().unwrap(),
        reasoning: ReasoningFormat::NONE,
        control,
        ..PipelineConfig::default()
    };
    let open = "<|channel|>commentary to=functions.f<|message|>";
    let generated = [Token::Spelled(open), Token::Spelled("{\"a\":1}"), Token::Control("<|end_of_text|>")];
    let call = |end| read_in_any_cut(&config, &[&generated[..], &[end]].concat());
    let expected = [Seen::Call { name: "f".to_owned(), arguments: json!({"a": 1}), complete: true }];
    assert_eq!(seen(&call(Token::Control("<|call|>"))), expected);
    let spelled = seen(&call(Token::Spelled("<|call|>")));
    assert_eq!(spelled, [&expected[..], &[Seen::Text("<|call|>".to_owned())]].concat());
}

#[test]
fn only_parts_of_markers_are_looked_for() {
    let texts = ["<|channel|>", "<|start|>", "<|im_end|>", "", "<|end|>", "<｜DSML｜"];
    let of = |calls: &str, thoughts: &str| {
        control_markers(calls.parse().unwrap(), thoughts.parse().unwrap(), texts.into_iter())
    };
    assert_eq!(of("harmony", "none"), ["<|channel|>", "<|start|>", "<|end|>"]);
    assert_eq!(of("none", "gpt_oss"), ["<|channel|>", "<|end|>"]);
    assert_eq!(of("deepseek_v4", "none"), ["<｜DSML｜"]);
    assert_eq!(of("none", "none"), [""; 0]);
}
