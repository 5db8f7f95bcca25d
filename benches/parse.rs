//! How fast every family's output is parsed: megabytes per second of one call's arguments, in pieces of one byte, of a
//! token's size and as a whole, and how the time per byte grows from 64 KiB to 1 MiB.
//!
//! `cargo bench --bench parse`.
#![allow(clippy::print_stdout)] // its output is a table for people
#![allow(missing_docs)]

use std::time::Duration;

use midstream::clock::monotonic;
use midstream::parse::{Piece, Pipeline, PipelineConfig, ReasoningFormat, ToolFormat};

const SMALL: usize = 64 << 10;
const LARGE: usize = 1 << 20;
/// Bytes of a usual token.
const TOKEN: usize = 4;
/// The best of so many runs.
const RUNS: usize = 3;

/// What stands in front of the long value in each family's form, and behind it.
const FORMS: &[(&str, &str, &str)] = &[
    ("hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"", "\"}}</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"),
    ("nemotron_deci", "<TOOLCALL>[{\"name\":\"f\",\"arguments\":{\"a\":\"", "\"}}]</TOOLCALL>"),
    ("llama3_json", "<|python_tag|>{\"name\":\"f\",\"parameters\":{\"a\":\"", "\"}}"),
    ("mistral", "[TOOL_CALLS]f[ARGS]{\"a\":\"", "\"}"),
    ("phi4", "functools[{\"name\":\"f\",\"arguments\":{\"a\":\"", "\"}}]"),
    ("pythonic", "[f(a='", "')]"),
    ("lfm2", "<|tool_call_start|>[f(a='", "')]<|tool_call_end|>"),
    ("jamba", "<tool_calls>[{\"name\":\"f\",\"arguments\":{\"a\":\"", "\"}}]</tool_calls>"),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\":\"",
        "\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek_v3_1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":\"",
        "\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek_v3_2",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">",
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    (
        "deepseek_v4",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">",
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    ("glm47", "<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_value></tool_call>"),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\":\"",
        "\"}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "kimi_k3",
        "<|open|>tools<|sep|>\
         <|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>",
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    (
        "minimax_m2",
        "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">",
        "</parameter>\n</invoke>\n</minimax:tool_call>",
    ),
    (
        "minimax_m3",
        "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<a>",
        "]<]minimax[>[</a>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    ),
    ("gemma4", "<|tool_call>call:f{a:<|\"|>", "<|\"|>}<tool_call|>"),
    ("harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":\"", "\"}<|call|>"),
    (
        "inkling",
        "<|message_model|>f<|content_invoke_tool_json|>{\"name\":\"f\",\"args\":{\"a\":\"",
        "\"}}<|end_message|>",
    ),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("family          1 byte MB/s   {TOKEN} bytes MB/s   whole MB/s   time per byte, 1 MiB : 64 KiB");
    for format in ToolFormat::all().skip(1) {
        let (_, open, close) = FORMS
            .iter()
            .find(|(name, ..)| *name == format.name())
            .ok_or_else(|| format!("no form of the family {format} is written here"))?;
        row(format, open, close)?;
    }
    Ok(row(ToolFormat::NONE, "", "")?)
}

/// Measures one family; without one, plain text in a format that looks for calls.
fn row(format: ToolFormat, open: &str, close: &str) -> Result<(), String> {
    let (name, format) =
        if format == ToolFormat::NONE { ("text", ToolFormat::default()) } else { (format.name(), format) };
    let output = |bytes: usize| format!("{open}{}{close}", "All work and no play, a < b. ".repeat(bytes / 29));
    let (small, large) = (output(SMALL), output(LARGE));
    let speed = |chunk: usize| time(format, &large, chunk).map(|time| large.len() as f64 / time.as_secs_f64() / 1e6);
    let per_byte = |output: &str| time(format, output, TOKEN).map(|time| time.as_secs_f64() / output.len() as f64);
    let ratio = per_byte(&large)? / per_byte(&small)?;
    let (bytewise, tokens, whole) = (speed(1)?, speed(TOKEN)?, speed(LARGE * 2)?);
    println!("{name:<14}  {bytewise:>11.0}   {tokens:>12.0}   {whole:>10.0}   {ratio:>30.2}");
    Ok(())
}

/// The best time of several runs, each of which must find the call.
fn time(format: ToolFormat, output: &str, chunk: usize) -> Result<Duration, String> {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let reasoning = ReasoningFormat::NONE;
        let config = PipelineConfig { tool_format: format, reasoning, ..PipelineConfig::default() };
        let mut pipeline = Pipeline::new(config);
        let (mut pieces, mut calls, mut text) = (Vec::new(), 0, 0);
        let begun = monotonic();
        let mut take = |pieces: &mut Vec<Piece>| {
            for piece in pieces.drain(..) {
                match piece {
                    Piece::ToolCallDone { complete, .. } => calls += usize::from(complete),
                    Piece::Text(more) => text += more.len(),
                    _ => {}
                }
            }
        };
        for chunk in output.as_bytes().chunks(chunk) {
            pipeline.push(chunk, &mut pieces);
            take(&mut pieces);
        }
        pipeline.finish(&mut pieces, false);
        take(&mut pieces);
        best = best.min(begun.elapsed());
        if calls != 1 && text != output.len() {
            return Err(format!("{format} did not read {}…", &output[..output.len().min(100)]));
        }
    }
    Ok(best)
}
