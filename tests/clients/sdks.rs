//! OpenAI's SDKs for Python and JavaScript, over all that they have for this server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::install;
use crate::server::Site;

const PYTHON: &str = "openai[realtime]==3.57.0";
/// The last one that runs on the oldest Node.js that is still maintained.
const JAVASCRIPT: &str = "6.49.0";
/// What that one speaks on sockets with.
const WS: &str = "8.21.0";
/// Seconds after which a check hangs.
const PATIENCE_S: &str = "120";

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

/// Runs a check to its end, which must be a good one: nothing but loopback can be reached, and nothing of the caller's
/// environment.
fn run(program: &Path, arguments: &[&Path], check: &str, environment: &[(&str, &Path)]) {
    let site = Site::new(&replies());
    let server = site.start();
    let home = TempDir::new_in(install::folder()).unwrap();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", PATIENCE_S]).arg(program).args(arguments);
    command.arg(format!("http://{}/v1", server.address)).arg(check);
    command.current_dir(home.path()).env_clear().env("HOME", home.path()).envs(environment.iter().copied());
    let nowhere = "http://127.0.0.1:9";
    command.envs([("HTTP_PROXY", nowhere), ("HTTPS_PROXY", nowhere), ("NO_PROXY", "127.0.0.1")]);
    let output = command.env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{check}: {}\n{said}", output.status);
}

fn python(check: &str) {
    let (program, packages) = install::pip(PYTHON);
    let script = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/sdk.py"));
    run(&program, &[&script], check, &[("PYTHONPATH", &packages), ("PYTHONDONTWRITEBYTECODE", Path::new("1"))]);
}

fn javascript(check: &str) {
    let place = install::npm_all(&[("openai", JAVASCRIPT), ("ws", WS)]);
    // A module finds packages beside itself.
    let script = place.join("sdk.mjs");
    let written = tempfile::NamedTempFile::new_in(&place).unwrap();
    std::fs::write(&written, include_str!("sdk.mjs")).unwrap();
    written.persist(&script).unwrap();
    run(&install::node(), &[&script], check, &[]);
}

/// A test of each check.
macro_rules! checks {
    ($($name:ident: $run:ident($check:literal);)*) => {$(
        #[test]
        fn $name() {
            $run($check);
        }
    )*};
}

checks! {
    python_creates_streams_continues_compacts_and_deletes_responses: python("responses");
    python_resumes_and_cancels_background_responses: python("background");
    python_keeps_conversations_and_their_items: python("conversations");
    python_chats_whole_streamed_and_with_tools: python("chat");
    python_completes_texts_and_lists_models: python("completions");
    python_steers_and_continues_over_a_socket: python("sockets");
    python_asks_for_several_at_once_and_leaves: python("asynchronous");
    javascript_creates_streams_continues_compacts_and_deletes_responses: javascript("responses");
    javascript_resumes_and_cancels_background_responses: javascript("background");
    javascript_keeps_conversations_and_their_items: javascript("conversations");
    javascript_chats_whole_streamed_and_with_tools: javascript("chat");
    javascript_completes_texts_and_lists_models: javascript("completions");
    javascript_steers_and_continues_over_a_socket: javascript("sockets");
}
