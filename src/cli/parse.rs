//! `midstream parse`: a model's output through the parsers, as JSON lines.
//!
//! Reads standard input and a file of tools; knows no model.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use crate::parse::{DeclaredTool, Piece, Pipeline, PipelineConfig, ReasoningFormat, ToolFormat};

/// How it is used.
const EXAMPLES: &str = "\
Examples:
  echo '<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>' | midstream parse --tool-format hermes
  midstream parse --tool-format hermes --reasoning think --tools tools.json < output.txt";

/// What is set on the command line.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent switches
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// How the model writes tool calls; without it they are not looked for
    #[arg(long, value_name = "NAME")]
    tool_format: Option<ToolFormat>,
    /// How the model marks reasoning; without it reasoning is not looked for
    #[arg(long, value_name = "NAME")]
    reasoning: Option<ReasoningFormat>,
    /// The tools that were declared, as the list of a chat completion: their schemas give arguments their types
    #[arg(long, value_name = "FILE.json")]
    tools: Option<PathBuf>,
    /// Feed so many bytes at a time [default: all at once]
    #[arg(long, value_name = "N")]
    chunk: Option<std::num::NonZeroUsize>,
    /// The prompt ended inside reasoning
    #[arg(long)]
    start_in_reasoning: bool,
    /// The output was cut off by the token limit
    #[arg(long)]
    cut: bool,
    /// Only marked calls are calls, not an answer that is nothing but one
    #[arg(long)]
    no_bare_calls: bool,
    /// Print the events as they come, and do not join them
    #[arg(long)]
    raw_events: bool,
}

/// Reads an output and prints its events.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let tools = arguments.tools.as_deref().map(read_tools).transpose()?.unwrap_or_default();
    let mut output = Vec::new();
    io::stdin().lock().read_to_end(&mut output).context("reading standard input")?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for event in events(arguments, tools, &output) {
        writeln!(out, "{event}")?;
    }
    Ok(out.flush()?)
}

fn events(arguments: &Arguments, tools: Vec<DeclaredTool>, output: &[u8]) -> Vec<Value> {
    let mut pipeline = Pipeline::new(PipelineConfig {
        tool_format: arguments.tool_format.unwrap_or(ToolFormat::NONE),
        reasoning: arguments.reasoning.unwrap_or(ReasoningFormat::NONE),
        starts_in_reasoning: arguments.start_in_reasoning.then_some(true),
        stop: Vec::new(),
        tools,
        bare_calls: !arguments.no_bare_calls,
        // Text is all there is.
        control: Vec::new(),
    });
    let mut pieces = Vec::new();
    for chunk in output.chunks(arguments.chunk.map_or(output.len().max(1), std::num::NonZeroUsize::get)) {
        let mut more = Vec::new();
        pipeline.push(chunk, &mut more);
        pieces.extend(more);
    }
    pipeline.finish(&mut pieces, arguments.cut);
    if arguments.raw_events { pieces.iter().map(raw).collect() } else { joined(pieces) }
}

fn raw(piece: &Piece) -> Value {
    match piece {
        Piece::Reasoning(text) => json!({"type": "reasoning", "text": text}),
        Piece::Text(text) => json!({"type": "text", "text": text}),
        Piece::ToolCallStarted { index, id, name } => {
            json!({"type": "tool_call_started", "index": index, "id": call_id(*index, id.as_deref()), "name": name})
        }
        Piece::ToolCallArguments { index, fragment } => {
            json!({"type": "tool_call_arguments", "index": index, "fragment": fragment})
        }
        Piece::ToolCallDone { index, id, arguments, complete } => json!({
            "type": "tool_call_done", "index": index, "id": call_id(*index, id.as_deref()),
            "arguments": arguments, "complete": complete,
        }),
        Piece::Thought { .. } => json!({"type": "thought"}),
        Piece::Stopped { stop } => json!({"type": "stopped", "stop": stop}),
    }
}

/// The model's own id, or one by the call's place.
fn call_id(index: u32, id: Option<&str>) -> String {
    id.map_or_else(|| format!("call_{index}"), str::to_owned)
}

/// One event for each stretch of text or reasoning, and one for each call, where it ends.
fn joined(pieces: Vec<Piece>) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    let mut stretch: Option<(&str, String)> = None;
    let mut called = String::new();
    for piece in pieces {
        let (kind, text) = match piece {
            Piece::Reasoning(text) => ("reasoning", text),
            Piece::Text(text) => ("text", text),
            other => {
                events.extend(stretch.take().map(|(kind, text)| json!({"type": kind, "text": text})));
                match other {
                    Piece::ToolCallStarted { name, .. } => called = name,
                    Piece::ToolCallDone { index, id, arguments, complete } => {
                        let (id, name) = (call_id(index, id.as_deref()), std::mem::take(&mut called));
                        events.push(json!({
                            "type": "tool_call", "index": index, "id": id, "name": name,
                            "arguments": arguments, "complete": complete,
                        }));
                    }
                    _ => {}
                }
                continue;
            }
        };
        match &mut stretch {
            Some((last, joined)) if *last == kind => joined.push_str(&text),
            _ => {
                let before = stretch.replace((kind, text));
                events.extend(before.map(|(kind, text)| json!({"type": kind, "text": text})));
            }
        }
    }
    events.extend(stretch.map(|(kind, text)| json!({"type": kind, "text": text})));
    events
}

fn read_tools(path: &Path) -> anyhow::Result<Vec<DeclaredTool>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let list: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    declared(&list)
        .with_context(|| format!("{} is no list of tools: write [{{\"type\": \"function\", …}}]", path.display()))
}

/// The functions of a list of tools, of all APIs; tools of other types are left out.
fn declared(list: &Value) -> Option<Vec<DeclaredTool>> {
    let tool = |tool: &Value| {
        let function = tool.get("function").unwrap_or(tool);
        let schema = function.get("parameters").or_else(|| function.get("input_schema"));
        let name = function.get("name")?.as_str()?.to_owned();
        Some(DeclaredTool { name, parameters: schema.cloned().unwrap_or_default() })
    };
    Some(list.as_array()?.iter().filter_map(tool).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn said(flags: &str, output: &str) -> Vec<String> {
        let line = Line::parse_from(std::iter::once("parse").chain(flags.split_whitespace()));
        events(&line.arguments, Vec::new(), output.as_bytes()).iter().map(Value::to_string).collect()
    }

    const OUTPUT: &str =
        "<think>\nwhy\n</think>\n\nSo:\n<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>";

    #[test]
    fn stretches_and_calls_are_one_event_each() {
        let expected = [
            r#"{"type":"reasoning","text":"why"}"#,
            r#"{"type":"text","text":"So:"}"#,
            r#"{"type":"tool_call","index":0,"id":"call_0","name":"f","arguments":"{\"a\":1}","complete":true}"#,
        ];
        for flags in ["", "--chunk 1", "--chunk 7"] {
            assert_eq!(said(&format!("--tool-format hermes --reasoning basic {flags}"), OUTPUT), expected);
        }
        let cut = said("--tool-format hermes --cut", "<tool_call>{\"name\":\"f\",\"arguments\":{}}");
        assert!(cut[0].ends_with("\"complete\":false}"), "{cut:?}");
    }

    #[test]
    fn what_is_not_asked_for_is_not_looked_for() {
        assert_eq!(said("", OUTPUT), [json!({"type": "text", "text": OUTPUT}).to_string()]);
        assert_eq!(said("--reasoning qwen3 --start-in-reasoning", "a</think>b").len(), 2);
        assert!(said("--tool-format qwen25", OUTPUT)[0].contains("<think>"));
        assert_eq!(said("", ""), [""; 0]);
    }

    #[test]
    fn raw_events_come_as_they_are_found() {
        let events = said("--tool-format hermes --reasoning qwen3 --raw-events --chunk 1", OUTPUT);
        assert!(events.len() > 8 && events.contains(&r#"{"type":"text","text":"S"}"#.to_owned()), "{events:?}");
        assert!(events.last().unwrap().contains("tool_call_done"));
    }

    #[test]
    fn tools_are_read_as_every_api_writes_them() {
        let list = json!([
            {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}},
            {"type": "web_search"},
            {"name": "b", "input_schema": {}},
        ]);
        let names: Vec<String> = declared(&list).unwrap().into_iter().map(|tool| tool.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(declared(&json!({})), None);
    }
}
