//! Codex, from its package on npm: text, tools, resuming, summaries, and a server that dies under it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::install;
use crate::proxy::Proxy;
use crate::server::{Server, Site};

const VERSION: &str = "0.171.0";
/// Seconds after which a run hangs.
const PATIENCE_S: &str = "120";
/// The head of a request over HTTP, and of one for a socket.
pub(crate) const POSTS: &str = "POST /v1/responses ";
const UPGRADES: &str = "GET /v1/responses ";

/// A long answer, piece by piece.
fn counted() -> Vec<String> {
    (1..=30).map(|number| format!("{number} ")).collect()
}

/// What the scripted model says to what Codex is asked here.
fn replies() -> Value {
    let call = r#"<tool_call>{"name": "exec_command", "arguments": {"cmd": "echo tools-$((40 + 2))"}}</tool_call>"#;
    let patch = json!({"name": "apply_patch", "arguments": {
        "input": "*** Begin Patch\n*** Add File: made.txt\n+by a patch\n*** End Patch\n",
    }});
    let patch = format!("<tool_call>{patch}</tool_call>");
    let counted = counted();
    let mused = [vec!["<think>".to_owned()], counted.clone(), vec!["</think>".to_owned()], counted.clone()].concat();
    json!([
        {"match": "muse", "deltas": mused, "delay_ms": 40},
        {"match": "tools-42", "deltas": ["The tool ", "said 42."]},
        {"match": "Success. Updated", "deltas": ["It is ", "patched."]},
        {"match": "use a tool", "deltas": ["Let me look. ", call]},
        {"match": "patch it", "deltas": [patch]},
        {"match": "count", "deltas": counted, "delay_ms": 40},
        {"match": "once more", "deltas": ["Hi ", "again."]},
        {"deltas": ["Hello ", "there."]},
    ])
}

/// Codex with a home of its own, in front of a server.
pub(crate) struct Codex {
    program: PathBuf,
    pub(crate) home: TempDir,
    pub(crate) proxy: Proxy,
    site: Site,
    server: Server,
}

impl Codex {
    /// `settings` are further lines of the provider's table.
    pub(crate) fn new(settings: &str) -> Self {
        let folder = install::npm("@openai/codex", VERSION);
        let is_program =
            |path: &Path| path.ends_with("bin/codex") && path.components().any(|it| it.as_os_str() == "vendor");
        let program = install::find(&folder, &is_program).expect("the package has a program for this platform");
        let (site, home) = (Site::new(&replies()), TempDir::new_in(install::folder()).unwrap());
        let server = site.start();
        let proxy = Proxy::to(&server.address);
        let config = format!(
            "model = \"scripted\"\nmodel_provider = \"local\"\ncheck_for_update_on_startup = false\n\
             [analytics]\nenabled = false\n\
             [model_providers.local]\nname = \"local\"\nbase_url = \"http://{}/v1\"\nenv_key = \"LOCAL_API_KEY\"\n\
             wire_api = \"responses\"\n{settings}\n",
            proxy.address
        );
        std::fs::create_dir_all(home.path().join(".codex")).unwrap();
        std::fs::create_dir_all(home.path().join("work")).unwrap();
        std::fs::write(home.path().join(".codex/config.toml"), config).unwrap();
        Self { program, home, proxy, site, server }
    }

    pub(crate) fn over_sockets() -> Self {
        Self::new("supports_websockets = true")
    }

    /// Kills the server, and starts it again on what it kept.
    fn restart(&mut self) {
        self.proxy.redirect(None);
        self.server.kill();
        self.server = self.site.start();
        self.proxy.redirect(Some(&self.server.address));
    }

    /// Tells Codex what it must know of the model, and these fields besides.
    pub(crate) fn knowing_the_model(self, fields: &Value) -> Self {
        let (catalogue, config) = (self.home.path().join("catalog.json"), self.home.path().join(".codex/config.toml"));
        let mut known: Value = serde_json::from_slice(&self.site.codex_catalog()).unwrap();
        for (name, value) in fields.as_object().into_iter().flatten() {
            for model in known["models"].as_array_mut().unwrap() {
                model[name] = value.clone();
            }
        }
        std::fs::write(&catalogue, known.to_string()).unwrap();
        let settings = std::fs::read_to_string(&config).unwrap();
        let setting = format!("model_catalog_json = \"{}\"\n", catalogue.display());
        std::fs::write(&config, setting + &settings).unwrap();
        self
    }

    fn command(&self, words: &[&str]) -> Command {
        let exec = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"];
        self.bare_command(&[&exec, words].concat())
    }

    /// Codex with these arguments and nothing of the caller's environment.
    pub(crate) fn bare_command(&self, words: &[&str]) -> Command {
        // Ends what hangs, with what it started.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", PATIENCE_S]).arg(&self.program);
        command.args(words).current_dir(self.home.path().join("work")).env_clear();
        // Nothing but loopback can be reached.
        let nowhere = "http://127.0.0.1:9";
        command.envs([("HTTP_PROXY", nowhere), ("HTTPS_PROXY", nowhere), ("ALL_PROXY", nowhere)]);
        command.envs([("NO_PROXY", "127.0.0.1"), ("LOCAL_API_KEY", "sk-fake"), ("PATH", "/usr/bin:/bin")]);
        command.envs([("TERM", "dumb")]).env("HOME", self.home.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs to its end, which must be a good one.
    fn exec(&self, words: &[&str]) -> Run {
        Run::of(&self.command(words).output().unwrap())
    }
}

/// What a run printed.
struct Run(Vec<Value>);

impl Run {
    fn of(output: &std::process::Output) -> Self {
        let (said, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{said}\n{log}", output.status);
        Self(said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The last items of this kind, by one of their fields.
    fn items(&self, kind: &str, field: &str) -> Vec<&str> {
        let items = self.0.iter().filter(|event| event["type"] == "item.completed").map(|event| &event["item"]);
        items.filter(|item| item["type"] == kind).filter_map(|item| item[field].as_str()).collect()
    }

    fn texts(&self) -> Vec<&str> {
        self.items("agent_message", "text")
    }

    fn usage(&self) -> &Value {
        let last = self.0.iter().rev().find(|event| event["type"] == "turn.completed");
        &last.expect("the turn is completed")["usage"]
    }
}

#[test]
fn codex_gets_a_text_over_http() {
    let codex = Codex::new("");
    let run = codex.exec(&["say hi"]);
    assert_eq!(run.texts(), ["Hello there."]);
    assert!(run.usage()["input_tokens"].as_u64().unwrap() > 1000, "usage is true: {}", run.usage());
    assert_eq!((codex.proxy.asked(POSTS), codex.proxy.asked(UPGRADES)), (1, 0));
}

#[test]
fn codex_gets_a_text_over_a_socket_and_never_falls_back() {
    let codex = Codex::over_sockets();
    assert_eq!(codex.exec(&["say hi"]).texts(), ["Hello there."]);
    assert_eq!((codex.proxy.asked(POSTS), codex.proxy.asked(UPGRADES)), (0, 1));
    // The first of the two only had its prompt computed.
    assert_eq!(codex.proxy.answered("\"response.created\""), 2);
    assert_eq!(codex.proxy.answered("\"response.completed\""), 2);
}

#[test]
fn codex_runs_a_tool_and_answers_with_its_result() {
    for codex in [Codex::new(""), Codex::over_sockets()] {
        let run = codex.exec(&["use a tool"]);
        assert_eq!(run.texts(), ["Let me look. ", "The tool said 42."]);
        let outputs = run.items("command_execution", "aggregated_output");
        assert!(outputs.last().is_some_and(|output| output.contains("tools-42")), "{outputs:?}");
    }
}

#[test]
fn codex_that_knows_the_model_changes_a_file_by_a_patch() {
    for codex in [Codex::new(""), Codex::over_sockets()] {
        let codex = codex.knowing_the_model(&Value::Null);
        let run = codex.exec(&["patch it"]);
        assert_eq!(run.texts(), ["It is patched."]);
        assert_eq!(std::fs::read_to_string(codex.home.path().join("work/made.txt")).unwrap(), "by a patch\n");
        assert!(codex.proxy.answered("custom_tool_call_input.delta") > 0);
    }
}

#[test]
fn codex_resumes_its_last_session() {
    for codex in [Codex::new(""), Codex::over_sockets()] {
        codex.exec(&["say hi"]);
        let run = codex.exec(&["resume", "--last", "once more"]);
        assert_eq!(run.texts(), ["Hi again."]);
    }
}

#[test]
fn codex_finishes_its_turn_though_the_server_is_killed_in_the_middle_of_the_stream() {
    let counted = counted().concat();
    for mut codex in [Codex::new(""), Codex::over_sockets()] {
        let hears = codex.proxy.hears("\"response.output_text.delta\"");
        let run = codex.command(&["count"]).spawn().unwrap();
        hears.recv_timeout(Duration::from_secs(PATIENCE_S.parse().unwrap())).unwrap();
        codex.restart();
        let run = Run::of(&run.wait_with_output().unwrap());
        assert_eq!(run.texts().iter().map(|text| text.trim_end()).collect::<Vec<_>>(), [counted.trim_end()]);
    }
}

/// A request says what it is for in a header of its own.
const COMPACTS: &str = "\"request_kind\":\"compaction\"";

#[test]
fn codex_summarises_its_session_when_it_has_become_long_and_goes_on() {
    let codex = Codex::new("");
    codex.exec(&["say hi"]);
    assert_eq!(codex.proxy.asked(COMPACTS), 0);
    // What it was told of usage is more than this.
    let run = codex.exec(&["-c", "model_auto_compact_token_limit=50", "resume", "--last", "once more"]);
    assert_eq!(run.texts().last(), Some(&"Hi again."));
    assert!(codex.proxy.asked(COMPACTS) > 0);
}

#[test]
fn codex_is_given_a_summary_that_it_cannot_read_and_sends_it_back() {
    let codex = Codex::new("capabilities = { remote_compaction = \"v2\" }");
    codex.exec(&["say hi"]);
    let run = codex.exec(&["-c", "model_auto_compact_token_limit=50", "resume", "--last", "once more"]);
    assert_eq!(run.texts().last(), Some(&"Hi again."));
    assert!(codex.proxy.asked("compaction_trigger") > 0);
    let sealed = "\"type\":\"compaction\"";
    assert!(codex.proxy.answered(sealed) > 0 && codex.proxy.asked(sealed) > 0);
}
