//! Anthropic's SDKs for Python and JavaScript, over all that they have for this server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::install;
use crate::server::Site;

const PYTHON: &str = "anthropic==2.14.0";
const JAVASCRIPT: &str = "1.14.0";
/// Seconds after which a check hangs.
const PATIENCE_S: &str = "120";

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

/// Runs a check to its end, which must be a good one: nothing but loopback can be reached, and nothing of the caller's
/// environment.
fn run(program: &Path, script: &Path, check: &str, environment: &[(&str, &Path)]) {
    let site = Site::new(&replies());
    let server = site.start();
    let home = TempDir::new_in(install::folder()).unwrap();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", PATIENCE_S]).arg(program).arg(script);
    command.arg(format!("http://{}", server.address)).arg(check);
    command.current_dir(home.path()).env_clear().env("HOME", home.path()).envs(environment.iter().copied());
    let nowhere = "http://127.0.0.1:9";
    command.envs([("HTTP_PROXY", nowhere), ("HTTPS_PROXY", nowhere), ("NO_PROXY", "127.0.0.1")]);
    let output = command.env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{check}: {}\n{said}", output.status);
}

fn python(check: &str) {
    let (program, packages) = install::pip(PYTHON);
    // Not beside the script: its name is the package's.
    let home = TempDir::new_in(install::folder()).unwrap();
    let script = home.path().join("check.py");
    std::fs::write(&script, include_str!("anthropic.py")).unwrap();
    run(&program, &script, check, &[("PYTHONPATH", &packages), ("PYTHONDONTWRITEBYTECODE", Path::new("1"))]);
}

fn javascript(check: &str) {
    let place = install::npm("@anthropic-ai/sdk", JAVASCRIPT);
    // A module finds packages beside itself.
    let script: PathBuf = place.join("anthropic.mjs");
    let written = tempfile::NamedTempFile::new_in(&place).unwrap();
    std::fs::write(&written, include_str!("anthropic.mjs")).unwrap();
    written.persist(&script).unwrap();
    run(&install::node(), &script, check, &[]);
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
    python_gets_texts_whole_and_streamed: python("texts");
    python_calls_tools_and_brings_thinking_back: python("tools");
    python_is_told_what_went_wrong: python("errors");
    python_lists_models: python("models");
    javascript_gets_texts_whole_and_streamed: javascript("texts");
    javascript_calls_tools_and_brings_thinking_back: javascript("tools");
    javascript_is_told_what_went_wrong: javascript("errors");
    javascript_lists_models: javascript("models");
}
