//! The page for users says what there is, and its examples are read as it says.

use serde_json::{Value, json};

use super::pieces;
use crate::parse::{DeclaredTool, Piece, PipelineConfig, ReasoningFormat, ToolFormat};

const PAGE: &str = include_str!("../../../docs/parsers.md");

/// The section of a form.
fn section(name: &str) -> &'static str {
    let begins = format!("\n### {name}\n");
    let (_, rest) = PAGE.split_once(&begins).unwrap_or_else(|| panic!("docs/parsers.md has no section {name}"));
    rest.split("\n##").next().unwrap()
}

/// What stands in the section's fence.
fn example(section: &'static str) -> &'static str {
    let at = section.find("```").unwrap();
    let fence = &section[at..at + section[at..].find("text").unwrap()];
    let (_, rest) = section.split_once("text\n").unwrap();
    rest.split_once(&format!("\n{fence}\n")).or_else(|| rest.split_once(&format!("\n{fence}"))).unwrap().0
}

#[test]
fn the_page_shows_every_form_with_an_example_that_works() {
    let parameters = json!({"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    for format in ToolFormat::all().filter(|format| *format != ToolFormat::NONE) {
        let section = section(format.name());
        for alias in format.aliases() {
            assert!(section.contains(&format!("`{alias}`")), "{}: {alias} is missing", format.name());
        }
        let tools = vec![DeclaredTool { name: "get_weather".to_owned(), parameters: parameters.clone() }];
        let reasoning = match format.name() {
            "harmony" => "gpt_oss",
            "inkling" => "inkling",
            _ => "qwen3",
        };
        let reasoning = reasoning.parse().unwrap();
        let config = PipelineConfig { tool_format: format, reasoning, tools, ..PipelineConfig::default() };
        let pieces = pieces(config, std::iter::once(example(section).as_bytes()), false).0;
        let [Piece::ToolCallStarted { name, .. }, .., Piece::ToolCallDone { arguments, complete, .. }] = &pieces[..]
        else {
            panic!("{}: {pieces:?}", format.name());
        };
        assert_eq!((name.as_str(), *complete), ("get_weather", true), "{}", format.name());
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert_eq!(arguments, json!({"city": "Oslo", "days": 3}), "{}", format.name());
    }
}

#[test]
fn the_page_names_every_way_of_marking_reasoning() {
    let (_, table) = PAGE.split_once("\n## Reasoning\n").unwrap();
    for format in ReasoningFormat::all().filter(|format| *format != ReasoningFormat::NONE) {
        for name in std::iter::once(&format.name()).chain(format.aliases()) {
            assert!(table.contains(&format!("`{name}`")), "{name} is missing");
        }
    }
}
