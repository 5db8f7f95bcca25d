//! OpenAI's SDKs for Python and JavaScript, over all that they have for this server.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::confined::{self, checks};
use crate::server::Site;

pub(crate) const PYTHON: &str = "openai[realtime]==3.57.0";
/// The last one that runs on the oldest Node.js that is still maintained.
pub(crate) const JAVASCRIPT: &str = "6.49.0";
/// What that one speaks on sockets with.
const WS: &str = "8.21.0";

/// What the scripted model says to what the checks ask.
fn replies() -> Value {
    let counted: Vec<String> = (1..=30).map(|number| format!("{number} ")).collect();
    let endless: Vec<String> = (0..10_000).map(|number| format!("{number} ")).collect();
    let mused = [vec!["<think>".to_owned()], counted.clone(), vec!["</think>".to_owned()], counted.clone()].concat();
    let call = r#"<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>"#;
    json!([
        {"match": "rain", "deltas": ["Take an umbrella."]},
        {"match": "weather", "deltas": ["Let me see. ", call]},
        {"match": "muse", "deltas": mused, "delay_ms": 20},
        {"match": "count", "deltas": counted, "delay_ms": 20},
        {"match": "endless", "deltas": endless, "delay_ms": 5},
        {"match": "think", "deltas": ["<think>", "hm, ", "well", "</think>", "so ", "it is"]},
        {"match": "once more", "deltas": ["Hi ", "again."]},
        {"deltas": ["Hello ", "there."]},
    ])
}

fn python(check: &str) {
    confined::check(&replies(), "/v1", &python_command, check);
}

fn javascript(check: &str) {
    confined::check(&replies(), "/v1", &javascript_command, check);
}

/// On a server that has room for one request at a time.
fn crowded_python(check: &str) {
    confined::check_at(&crowded(), "/v1", &python_command, check);
}

fn crowded_javascript(check: &str) {
    confined::check_at(&crowded(), "/v1", &javascript_command, check);
}

fn python_command(home: &Path) -> Command {
    confined::python(PYTHON, include_str!("sdk.py"), home)
}

fn javascript_command(home: &Path) -> Command {
    confined::javascript(&[("openai", JAVASCRIPT), ("ws", WS)], include_str!("sdk.mjs"), home)
}

fn crowded() -> Site {
    Site::new(&replies()).with(&[("MIDSTREAM_REQUESTS_IN_FLIGHT_MAX", "1")])
}

checks! {
    python_creates_streams_continues_compacts_and_deletes_responses: python("responses");
    python_resumes_and_cancels_background_responses: python("background");
    python_keeps_conversations_and_their_items: python("conversations");
    python_chats_whole_streamed_and_with_tools: python("chat");
    python_completes_texts_and_lists_models: python("completions");
    python_steers_and_continues_over_a_socket: python("sockets");
    python_asks_for_several_at_once_and_leaves: python("asynchronous");
    python_tries_again_when_the_server_has_room: crowded_python("retries");
    javascript_creates_streams_continues_compacts_and_deletes_responses: javascript("responses");
    javascript_resumes_and_cancels_background_responses: javascript("background");
    javascript_keeps_conversations_and_their_items: javascript("conversations");
    javascript_chats_whole_streamed_and_with_tools: javascript("chat");
    javascript_completes_texts_and_lists_models: javascript("completions");
    javascript_steers_and_continues_over_a_socket: javascript("sockets");
    javascript_tries_again_when_the_server_has_room: crowded_javascript("retries");
}
