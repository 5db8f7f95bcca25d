//! The ids that models give their calls: kept as they are by every family that writes some, and made up by none.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::families::{config, fitted, run};
use super::generate::{self, Call, Part};
use super::pieces;
use super::render::{FORMS, Form};
use crate::parse::Piece;

/// How a family writes calls with ids.
struct Writes {
    family: &'static str,
    /// The id of a call, by a number.
    id: fn(&Call, u32) -> String,
    /// A call with its id, which stands behind the arguments where the flag says so and the family can.
    call: fn(&Call, &str, bool) -> String,
    /// In front of the calls, between them, behind them.
    around: [&'static str; 3],
    /// Whether the id can stand behind the arguments.
    behind: bool,
}

const fn objects(family: &'static str, around: [&'static str; 3]) -> Writes {
    Writes { family, id: odd, call: object, around, behind: true }
}

const WRITES: [Writes; 11] = [
    objects("hermes", ["<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"]),
    objects("qwen3_coder", ["<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"]),
    objects("nemotron_deci", ["<TOOLCALL>[", ", ", "]</TOOLCALL>"]),
    objects("llama3_json", ["", "; ", ""]),
    objects("mistral", ["[TOOL_CALLS][", ", ", "]"]),
    objects("phi4", ["functools[", ", ", "]"]),
    objects("jamba", ["<tool_calls>[", ", ", "]</tool_calls>"]),
    objects("lfm2", ["<|tool_call_start|>[", ", ", "]<|tool_call_end|>"]),
    Writes {
        family: "inkling",
        id: odd,
        call: |call, id, behind| {
            let object = object(call, id, behind);
            format!("<|message_model|>{}<|content_invoke_tool_json|>{object}<|end_message|>", call.name)
        },
        around: ["", "", ""],
        behind: true,
    },
    Writes {
        family: "mistral",
        id: |_, number| format!("a{number:08}"),
        call: |call, id, _| format!("[TOOL_CALLS]{}[CALL_ID]{id}[ARGS]{}", call.name, json!(call.arguments)),
        around: ["", "", ""],
        behind: false,
    },
    Writes {
        family: "kimi_k2",
        id: |call, number| format!("functions.{}:{number}", call.name),
        call: |call, id, _| {
            let arguments = json!(call.arguments);
            format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>")
        },
        around: ["<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"],
        behind: false,
    },
];

/// Families in whose forms there is no place for an id.
const WITHOUT: [&str; 11] = [
    "deepseek_v3",
    "deepseek_v3_1",
    "deepseek_v3_2",
    "deepseek_v4",
    "gemma4",
    "glm47",
    "harmony",
    "kimi_k3",
    "minimax_m2",
    "minimax_m3",
    "pythonic",
];

/// An id with whatever a JSON string may hold.
fn odd(_: &Call, number: u32) -> String {
    format!("<|\"{number}\"|> é🦀\n\\ </tool_call>")
}

fn object(call: &Call, id: &str, behind: bool) -> String {
    let (name, id, arguments) = (json!(call.name), json!(id), Value::Object(call.arguments.clone()));
    if behind {
        format!("{{\"name\": {name}, \"arguments\": {arguments}, \"id\": {id}}}")
    } else {
        format!("{{\"id\": {id}, \"name\": {name}, \"arguments\": {arguments}}}")
    }
}

/// The ids of an answer's calls: as they were announced, and at the end.
fn ids(pieces: &[Piece]) -> Vec<[Option<String>; 2]> {
    let mut ids: Vec<[Option<String>; 2]> = Vec::new();
    for piece in pieces {
        match piece {
            Piece::ToolCallStarted { id, .. } => ids.push([id.clone(), None]),
            Piece::ToolCallDone { index, id, .. } => ids[*index as usize][1].clone_from(id),
            _ => {}
        }
    }
    ids
}

fn form(name: &str) -> &'static Form {
    FORMS.iter().find(|form| form.name == name).unwrap()
}

#[test]
fn every_family_either_has_ids_or_has_none() {
    let with: BTreeSet<&str> = WRITES.iter().map(|writes| writes.family).collect();
    let all: BTreeSet<&str> = FORMS.iter().map(|form| form.name).collect();
    assert_eq!(with.into_iter().chain(WITHOUT).collect::<Vec<_>>().len(), all.len());
    assert!(WITHOUT.iter().chain(WRITES.iter().map(|writes| &writes.family)).all(|name| all.contains(name)));
}

#[test]
fn an_id_that_the_model_gives_a_call_is_kept_as_it_is_and_for_one_call_only() {
    const CALLS_MAX: usize = 16;
    for writes in WRITES {
        let form = form(writes.family);
        let cases = Config::default().cases / 16;
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        // Few numbers, so that some come again.
        let numbers = prop::collection::vec(0..8_u32, CALLS_MAX);
        let cuts = prop::collection::vec(any::<prop::sample::Index>(), 1..6);
        let answers = (generate::answer(), numbers, any::<bool>(), cuts);
        let result = runner.run(&answers, |(parts, numbers, behind, cuts)| {
            let behind = behind && writes.behind;
            let parts = fitted(form, parts);
            let calls: Vec<&Call> = generate::calls(&parts).take(CALLS_MAX).collect();
            if calls.is_empty() {
                return Ok(());
            }
            let wanted: Vec<String> =
                calls.iter().zip(numbers).map(|(call, number)| (writes.id)(call, number)).collect();
            let written: Vec<String> =
                calls.iter().zip(&wanted).map(|(call, id)| (writes.call)(call, id, behind)).collect();
            let [open, between, close] = writes.around;
            let output = format!("{open}{}{close}", written.join(between));
            let expected: Vec<[Option<String>; 2]> = wanted
                .iter()
                .enumerate()
                .map(|(at, id)| {
                    let id = Some(id).filter(|id| !wanted[..at].contains(id)).cloned();
                    [id.clone().filter(|_| !behind), id]
                })
                .collect();
            let config = config(form, &parts);
            let mut borders: Vec<usize> = cuts.iter().map(|cut| cut.index(output.len() + 1)).collect();
            borders.extend([0, output.len()]);
            borders.sort_unstable();
            let chunks = borders.windows(2).map(|pair| &output.as_bytes()[pair[0]..pair[1]]);
            for got in [
                pieces(config.clone(), std::iter::once(output.as_bytes()), false).0,
                pieces(config.clone(), output.as_bytes().chunks(1), false).0,
                pieces(config.clone(), chunks, false).0,
            ] {
                prop_assert_eq!(ids(&got), expected.clone(), "{}", &output);
            }
            Ok(())
        });
        if let Err(error) = result {
            panic!("{}: {error}", writes.family);
        }
    }
}

#[test]
fn a_call_that_the_model_gives_no_id_has_none() {
    for form in FORMS.iter().filter(|form| form.name != "kimi_k2") {
        run(form, 16, |parts: Vec<Part>, other, _| {
            let output = form.answer(&parts, other);
            let got = pieces(config(form, &parts), std::iter::once(output.as_bytes()), false).0;
            prop_assert!(ids(&got).iter().flatten().all(Option::is_none), "{}", &output);
            Ok(())
        });
    }
}
