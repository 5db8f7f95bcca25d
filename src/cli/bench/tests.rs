//! Whole measurements of a small random model: every row is there, and what is written can be read.

use std::path::Path;

use clap::Parser;
use serde_json::Value;

use super::*;
use crate::engine::tiny::Tiny;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn arguments(line: &str) -> Arguments {
    Line::try_parse_from(["bench"].into_iter().chain(line.split_whitespace())).unwrap().arguments
}

fn refusal(line: &str, path: &Path) -> String {
    let mut arguments = arguments(line);
    arguments.model = path.to_str().unwrap().to_owned();
    run(&arguments).unwrap_err().to_string()
}

/// A folder with a small model of a name that XML must not take as it is.
fn model() -> (tempfile::TempDir, ModelFile) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny <&>.gguf");
    std::fs::write(&path, Tiny::default().file()).unwrap();
    (folder, ModelFile { id: "tiny <&>".to_owned(), path })
}

/// Checks that every element is closed, in order, and gives their names.
fn elements(xml: &str) -> Vec<String> {
    let (mut open, mut found): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let mut parts = xml.split('<');
    assert_eq!(parts.next(), Some(""), "nothing stands in front of the root");
    for part in parts {
        let (tag, text) = part.split_once('>').expect("a tag has an end");
        assert!(!text.contains('>'), "{text}");
        for entity in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;"].iter().any(|known| entity.starts_with(known)), "{entity}");
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
            continue;
        }
        let closed = tag.strip_suffix('/');
        let (name, attributes) = closed.unwrap_or(tag).split_once(' ').expect("every element has attributes");
        for (number, piece) in attributes.split('"').enumerate() {
            let outside = number % 2 == 0;
            assert!(!outside || piece.is_empty() || piece.ends_with('='), "{tag}");
        }
        assert_eq!(attributes.matches('"').count() % 2, 0, "{tag}");
        found.push(name.to_owned());
        if closed.is_none() {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty(), "{open:?} stay open");
    found
}

#[test]
fn every_part_has_its_rows_in_the_table_in_json_and_in_the_plot() {
    let (_folder, file) = model();
    let line = "--prompts 20,100 --sequences 1,2,5 --clients 3 --seconds 1 --rounds 1 --threads 2";
    let mut told = Vec::new();
    let report = measure(&arguments(line), &file, &mut |what| told.push(what.to_owned())).unwrap();
    let wanted = [
        "the machine's limits",
        "the model's start",
        "a prompt of 20 tokens",
        "a prompt of 100 tokens",
        "1 sequences together",
        "2 sequences together",
        "5 sequences together",
        "3 streaming clients",
    ];
    assert_eq!(told, wanted);

    let json: Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    let positive = |value: &Value| assert!(value.as_f64().is_some_and(|number| number > 0.0), "{value} in {json}");
    for limit in ["int8_operations_per_second", "read_bytes_per_second"] {
        positive(&json["machine"][limit]);
    }
    assert_eq!(json["model"]["work"]["kv_bytes_per_position"], 2 * 2 * 2 * 128);
    assert_eq!(json["prefill"].as_array().unwrap().len(), 2);
    for (row, tokens) in json["prefill"].as_array().unwrap().iter().zip([20, 100]) {
        assert_eq!(row["tokens"], tokens);
        // Whole blocks of 16 come from the cache, and one token at least is run.
        assert_eq!(row["cached_tokens"], (tokens - 1) / 16 * 16);
        for field in ["cold_seconds", "cached_seconds", "tokens_per_second", "int8_share"] {
            positive(&row[field]);
        }
    }
    assert_eq!(json["decode"].as_array().unwrap().len(), 3);
    for (row, sequences) in json["decode"].as_array().unwrap().iter().zip([1, 2, 5]) {
        assert_eq!(row["sequences"], sequences);
        for field in ["tokens_per_second", "read_share", "int8_share"] {
            positive(&row[field]);
        }
    }
    for field in ["tokens_per_second", "first_token_seconds_median", "first_token_seconds_p90", "seconds"] {
        positive(&json["clients"][field]);
    }

    let table = report::table(&report);
    let rows = |heading: &str| {
        let rows = table.lines().skip_while(|line| !line.contains(heading)).skip(1);
        rows.take_while(|line| !line.is_empty()).count()
    };
    assert_eq!((rows("prompt tokens"), rows("sequences"), rows("clients")), (2, 3, 1), "{table}");

    let svg = plot::svg(&report);
    let elements = elements(&svg);
    // A point for every measurement: 3 of decoding, 2 cold, 2 cached.
    assert_eq!(elements.iter().filter(|name| *name == "circle").count(), 7);
    assert!(svg.contains("tiny &lt;&amp;&gt;") && svg.contains("cold") && svg.contains("cached"), "{svg}");
}

#[test]
fn one_part_alone_is_measured_alone() {
    let (_folder, file) = model();
    let line = "prefill --prompts 20 --rounds 1 --threads 1";
    let report = measure(&arguments(line), &file, &mut |_| {}).unwrap();
    assert_eq!((report.prefill.len(), report.decode.len(), report.clients.is_none()), (1, 0, true));
    assert_eq!(elements(&plot::svg(&report)).iter().filter(|name| *name == "circle").count(), 2);
}

#[test]
fn what_cannot_be_measured_is_refused_before_it_is_tried() {
    let (folder, file) = model();
    let refused = |line: &str| refusal(line, &file.path);
    assert_eq!(refused("--rounds 0"), "--rounds must be at least 1");
    assert_eq!(refused("--seconds 0"), "--seconds must be at least 1");
    assert_eq!(refused("--clients 0"), "--clients must be between 1 and 256");
    assert_eq!(refused("--prompts 5,0"), "--prompts must be at least 1 token each");
    assert_eq!(refused("--sequences 1,65"), "--sequences must be between 1 and 64");
    assert!(refused("clients --svg a.svg").starts_with("--svg plots prefill and decode"));
    assert!(
        refused("--prompts 4000").contains("4000 tokens and an answer do not fit into the model's context of 2048")
    );
    assert!(refused("--svg /no/such/folder/a.svg").contains("creating /no/such/folder/a.svg"));
    let absent = folder.path().join("absent.gguf");
    assert!(refusal("", &absent).contains("absent.gguf"));
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, b"GGUF").unwrap();
    assert!(refusal("", &broken).contains("broken.gguf"));
    for line in ["--prompts many", "--sequences 1,,2", "latency"] {
        assert!(Line::try_parse_from(["bench"].into_iter().chain(line.split(' '))).is_err(), "{line}");
    }
}

#[test]
fn a_context_that_is_too_short_to_decode_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.gguf");
    let writer = Tiny { skip: Some("llama.context_length"), ..Tiny::default() }.writer();
    let context = crate::engine::gguf::Value::U32(200);
    std::fs::write(&path, writer.entry("llama.context_length", context).finish()).unwrap();
    let refused = refusal("decode", &path);
    assert!(refused.contains("context of 200 tokens is too short"), "{refused}");
    // The shorter of the usual prompts are measured all the same.
    assert_eq!(arguments("").prompts(200).unwrap(), [32, 128]);
}
