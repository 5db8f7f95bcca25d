//! Anthropic's SDKs for Python and JavaScript, over all that they have for this server.

use std::path::Path;

use serde_json::{Value, json};

use crate::confined::{self, checks};

const PYTHON: &str = "anthropic==2.14.0";
const JAVASCRIPT: &str = "1.14.0";

/// What the scripted model says to what the checks ask.
fn replies() -> Value {
    let endless: Vec<String> = (0..10_000).map(|number| format!("{number} ")).collect();
    let call = r#"<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>"#;
    json!([
        {"match": "rain", "deltas": ["Take an umbrella."]},
        {"match": "weather", "deltas": ["<think>", "hm", "</think>", "Let me see. ", call]},
        {"match": "endless", "deltas": endless, "delay_ms": 5},
        {"match": "broken", "deltas": ["so ", "far"], "finish": "error"},
        {"deltas": ["Hello ", "there."]},
    ])
}

fn python(check: &str) {
    let command = |home: &Path| confined::python(PYTHON, include_str!("anthropic.py"), home);
    confined::check(&replies(), "", &command, check);
}

fn javascript(check: &str) {
    let packages = [("@anthropic-ai/sdk", JAVASCRIPT)];
    let command = |home: &Path| confined::javascript(&packages, include_str!("anthropic.mjs"), home);
    confined::check(&replies(), "", &command, check);
}

checks! {
    python_gets_texts_whole_and_streamed: python("texts");
    python_calls_tools_and_brings_thinking_back: python("tools");
    python_is_told_what_went_wrong: python("errors");
    python_lists_models: python("models");
    javascript_gets_texts_whole_and_streamed: javascript("texts");
    javascript_calls_tools_and_brings_thinking_back: javascript("tools");
    javascript_is_told_what_went_wrong: javascript("errors");
    javascript_lists_models: javascript("models");
}
