//! Promises of every family that the answers of the grammar as a whole do not show: what becomes of a call that was
//! never announced, that numbers keep their digits, when a call is done, and what a stop string ends.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::families::{Seen, config, fitted, meant, run, seen};
use super::generate::{self, Call, Part};
use super::render::{FORMS, Form};
use super::{coalesce, pieces};
use crate::parse::{Piece, Pipeline, PipelineConfig};

fn one_call(name: &str, arguments: &Value) -> Part {
    Part::Calls(vec![Call { name: name.to_owned(), arguments: arguments.as_object().unwrap().clone() }])
}

fn said(pieces: &[Piece]) -> String {
    let said = pieces.iter().filter_map(|piece| match piece {
        Piece::Text(text) | Piece::Reasoning(text) => Some(text.as_str()),
        _ => None,
    });
    said.collect()
}

fn started(pieces: &[Piece]) -> usize {
    pieces.iter().filter(|piece| matches!(piece, Piece::ToolCallStarted { .. })).count()
}

fn done(pieces: &[Piece]) -> usize {
    pieces.iter().filter(|piece| matches!(piece, Piece::ToolCallDone { .. })).count()
}

#[test]
fn what_is_cut_before_its_call_is_announced_is_text_to_the_last_byte() {
    const BYTES_MAX: usize = 600;
    const MARK_BYTES_MAX: usize = 40;
    for form in FORMS {
        run(form, 16, |parts, other, _| {
            let call = generate::calls(&parts).next().cloned();
            let parts: Vec<Part> = call.into_iter().map(|call| Part::Calls(vec![call])).collect();
            let output = form.answer(&parts, other);
            for at in (0..=output.len().min(BYTES_MAX)).filter(|at| output.is_char_boundary(*at)) {
                let answer = &output[..at];
                let got = pieces(config(form, &parts), std::iter::once(answer.as_bytes()), true).0;
                let said = said(&got);
                if started(&got) == 0 {
                    prop_assert_eq!(said.trim(), answer.trim(), "{}", form.name);
                } else {
                    // Half of a closing mark, at most, is text.
                    let is_half = answer.trim().ends_with(said.trim()) && said.trim().len() < MARK_BYTES_MAX;
                    prop_assert!(is_half, "{}: {:?} of {}", form.name, said, answer);
                }
            }
            Ok(())
        });
    }
}

#[test]
fn numbers_keep_every_digit() {
    const PLACE: i64 = 987_654_321;
    let numbers = ["1.50", "-0.0", "1e2", "1E+30", "123456789012345678901234567890", "0.1000000000000000055511151"];
    for form in FORMS {
        for number in numbers {
            let parts = [one_call("f", &json!({"n": PLACE, "list": [PLACE], "text": "é"}))];
            let mut config = config(form, &parts);
            config.tools[0].parameters["properties"]["n"] = json!({"type": "number"});
            config.tools[0].parameters["properties"]["list"] = json!({"type": "array", "items": {"type": "number"}});
            for other in [false, true] {
                let output = form.answer(&parts, other).replace(&PLACE.to_string(), number);
                let got = pieces(config.clone(), output.as_bytes().chunks(1), false).0;
                let arguments = got.iter().find_map(|piece| match piece {
                    Piece::ToolCallDone { arguments, complete: true, .. } => Some(arguments.as_str()),
                    _ => None,
                });
                let arguments = arguments.unwrap_or_else(|| panic!("{}: {output}: {got:?}", form.name));
                assert_eq!(arguments.matches(number).count(), 2, "{}: {output}: {arguments}", form.name);
            }
        }
    }
}

#[test]
fn a_call_is_done_with_its_last_byte_and_not_when_the_answer_ends() {
    for form in FORMS {
        run(form, 8, |parts, other, _| {
            let output = form.answer(&parts, other);
            let (mut pipeline, mut got) = (Pipeline::new(config(form, &parts)), Vec::new());
            pipeline.push(output.as_bytes(), &mut got);
            let calls = meant(&parts).iter().filter(|seen| matches!(seen, Seen::Call { .. })).count();
            prop_assert_eq!(done(&got), calls, "{}: {}", form.name, &output);
            Ok(())
        });
    }
}

#[test]
fn a_stop_string_ends_text_and_nothing_else() {
    const STOP: &str = "STOP it";
    let said = |form: &Form, parts: &[Part], bytes: usize| {
        let config = PipelineConfig { stop: vec![STOP.to_owned(), "never".to_owned()], ..config(form, parts) };
        let output = form.answer(parts, false);
        coalesce(pieces(config, output.as_bytes().chunks(bytes), false).0)
    };
    for form in FORMS {
        let thought = Part::Reasoning(format!("Hm, {STOP} now."));
        let call = one_call("f", &json!({"path": STOP, "list": [STOP]}));
        let stopped = Part::Text(format!("So STOP, and {STOP} here."));
        let untouched = fitted(form, vec![thought.clone(), call.clone()]);
        for bytes in [1, 3, usize::MAX] {
            assert_eq!(seen(&said(form, &untouched, bytes)), meant(&untouched), "{}", form.name);
            let parts = if form.only_first {
                vec![thought.clone(), stopped.clone()]
            } else {
                vec![call.clone(), stopped.clone()]
            };
            let got = said(form, &parts, bytes);
            assert_eq!(got.last(), Some(&Piece::Stopped { stop: STOP.to_owned() }), "{}: {got:?}", form.name);
            let mut expected = meant(&parts);
            *expected.last_mut().unwrap() = Seen::Text("So STOP, and".to_owned());
            assert_eq!(seen(&got), expected, "{}", form.name);
        }
    }
}
