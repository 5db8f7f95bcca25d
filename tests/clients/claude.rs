//! Claude Code, from its package on npm: text, tools, what is said and interrupted in mid-turn, resuming, and a server
//! that dies under it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::confined::{self, PATIENCE_S};
use crate::install;
use crate::proxy::Proxy;
use crate::server::{Server, Site};

const VERSION: &str = "2.1.332";
/// The heads of its requests.
const POSTS: &str = "POST /v1/messages?beta=true ";
const COUNTS: &str = "POST /v1/messages/count_tokens?beta=true ";

/// A long answer, piece by piece.
fn counted() -> Vec<String> {
    (1..=30).map(|number| format!("{number} ")).collect()
}

/// What the scripted model says to what Claude Code is asked here.
fn replies() -> Value {
    let call = |name: &str, arguments: Value| {
        format!("<tool_call>{}</tool_call>", json!({"name": name, "arguments": arguments}))
    };
    let bash = call("Bash", json!({"command": "echo tools-$((40 + 2))", "description": "Counts"}));
    let given = call("StructuredOutput", json!({"answer": 42}));
    json!([
        {"match": "once more", "deltas": ["Hi ", "again."]},
        {"match": "tools-42", "deltas": ["The tool ", "said 42."]},
        {"match": "use a tool", "deltas": ["<think>", "I should ", "look.", "</think>", "Let me look. ", bash]},
        {"match": "Structured output provided", "deltas": ["Done."]},
        {"match": "give json", "deltas": [given]},
        {"match": "count to thirty", "deltas": counted(), "delay_ms": 40},
        {"deltas": ["Hello ", "there."]},
    ])
}

/// Claude Code with a home of its own, in front of a server.
struct Claude {
    program: PathBuf,
    home: TempDir,
    proxy: Proxy,
    site: Site,
    server: Server,
}

impl Claude {
    fn new() -> Self {
        let folder = install::npm("@anthropic-ai/claude-code", VERSION);
        let of_platform = |part: &Path| part.to_string_lossy().starts_with("claude-code-");
        let is_program = |path: &Path| path.ends_with("claude") && path.components().any(|it| of_platform(it.as_ref()));
        let program = install::find(&folder, &is_program).expect("the package has a program for this platform");
        let (site, home) = (Site::new(&replies()), TempDir::new_in(install::folder()).unwrap());
        let server = site.start();
        let proxy = Proxy::to(&server.address);
        std::fs::create_dir_all(home.path().join("work")).unwrap();
        Self { program, home, proxy, site, server }
    }

    /// Kills the server, and starts it again on what it kept.
    fn restart(&mut self) {
        self.proxy.redirect(None);
        self.server.kill();
        self.server = self.site.start();
        self.proxy.redirect(Some(&self.server.address));
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = confined::command(&self.program, self.home.path(), PATIENCE_S);
        command.arg("-p").args(words).args(["--model", "scripted", "--allowedTools", "Bash"]);
        command.current_dir(self.home.path().join("work"));
        command.env("ANTHROPIC_BASE_URL", format!("http://{}", self.proxy.address));
        command.envs([("ANTHROPIC_API_KEY", "sk-ant-fake"), ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")]);
        command.envs([("DISABLE_TELEMETRY", "1"), ("DISABLE_AUTOUPDATER", "1")]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs to its end, which must be a good one; gives the result.
    fn run(&self, words: &[&str]) -> Value {
        let output = self.command(words).args(["--output-format", "json"]).output().unwrap();
        result(&output)
    }

    /// Begins a session that is talked to line by line.
    fn session(&self) -> Session {
        let mut command = self.command(&["--verbose", "--include-partial-messages"]);
        command.args(["--input-format", "stream-json", "--output-format", "stream-json"]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Session { child, input, output }
    }
}

/// What a run printed at its end.
fn result(output: &std::process::Output) -> Value {
    let (said, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{log}", output.status);
    said.lines().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_else(|| panic!("no result: {said}\n{log}"))
}

/// A session that is talked to.
struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Session {
    fn send(&mut self, line: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn say(&mut self, text: &str) {
        self.send(&json!({"type": "user", "message": {"role": "user", "content": text}}));
    }

    /// Reads up to the first line that is so.
    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the session has ended");
            let Ok(value) = serde_json::from_str::<Value>(&line) else { continue };
            if wanted(&value) {
                return value;
            }
        }
    }

    fn result(&mut self) -> Value {
        self.until(|line| line["type"] == "result")
    }

    /// Ends it, and well.
    fn end(mut self) {
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn claude_code_gets_a_text_and_true_usage() {
    let claude = Claude::new();
    let run = claude.run(&["say hi"]);
    assert_eq!((&run["result"], &run["stop_reason"]), (&json!("Hello there."), &json!("end_turn")), "{run}");
    // It marks the end of its prompt, so all of it is put into the cache.
    let created = run["usage"]["cache_creation_input_tokens"].as_u64();
    assert!(created > Some(10_000) && run["usage"]["input_tokens"].as_u64() < Some(100), "{run}");
    assert_eq!(run["usage"]["output_tokens"], "Hello there.".len() + 1);
    assert_eq!(claude.proxy.asked(POSTS), 1);
}

#[test]
fn claude_code_runs_a_tool_and_answers_with_its_result() {
    let claude = Claude::new();
    let run = claude.run(&["use a tool"]);
    assert_eq!((&run["result"], &run["num_turns"]), (&json!("The tool said 42."), &json!(2)), "{run}");
    assert!(run["usage"]["output_tokens_details"]["thinking_tokens"].as_u64() > Some(0), "{run}");
    assert!(claude.proxy.answered("signature_delta") > 0 && claude.proxy.asked("\"signature\":\"") > 0);
    assert_eq!(claude.proxy.asked(POSTS), 2);
}

#[test]
fn claude_code_asks_for_a_whole_answer_where_there_are_no_streams() {
    let claude = Claude::new();
    claude.proxy.refuse_next(POSTS);
    let run = claude.run(&["say hi"]);
    assert_eq!((&run["result"], &run["stop_reason"]), (&json!("Hello there."), &json!("end_turn")), "{run}");
    assert_eq!(claude.proxy.asked(POSTS), 2);
    let answered = ["\"type\":\"message\"", "message_start"].map(|text| claude.proxy.answered(text));
    assert_eq!(answered, [1, 0], "the answer was whole");
}

#[test]
fn claude_code_continues_its_last_session() {
    let claude = Claude::new();
    claude.run(&["say hi"]);
    assert_eq!(claude.run(&["--continue", "once more"])["result"], "Hi again.");
}

#[test]
fn claude_code_gives_json_of_a_schema() {
    let claude = Claude::new();
    let schema = json!({"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]});
    let run = claude.run(&["give json", "--json-schema", &schema.to_string()]);
    assert_eq!(run["structured_output"], json!({"answer": 42}), "{run}");
}

#[test]
fn claude_code_counts_what_its_context_holds_in_many_requests_at_once() {
    let claude = Claude::new();
    let output = claude.command(&["/context"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("System tools"), "{said}");
    let asked = claude.proxy.asked(COUNTS);
    assert!(asked > 12, "{asked} counts");
    assert!(claude.proxy.answered("{\"input_tokens\":") >= asked);
}

#[test]
fn what_is_said_while_a_tool_runs_goes_with_its_result() {
    let claude = Claude::new();
    let mut session = claude.session();
    session.say("use a tool");
    session.until(|line| line["type"] == "assistant" && line["message"]["content"][0]["type"] == "tool_use");
    session.say("and once more");
    // It is the last thing that the model reads, behind what the tool said.
    assert_eq!(session.result()["result"], "Hi again.");
    session.end();
    assert_eq!(claude.proxy.asked(POSTS), 2);
}

#[test]
fn an_interrupt_ends_the_answer_and_the_next_prompt_goes_on() {
    let claude = Claude::new();
    let mut session = claude.session();
    session.say("count to thirty");
    session.until(|line| line["event"]["delta"]["type"] == "text_delta");
    session.send(&json!({"type": "control_request", "request_id": "r1", "request": {"subtype": "interrupt"}}));
    session.until(|line| line["type"] == "control_response");
    assert_eq!(session.result()["subtype"], "error_during_execution");
    session.say("once more");
    assert_eq!(session.result()["result"], "Hi again.");
    session.end();
    assert_eq!(claude.proxy.answered("\"type\":\"message_stop\""), 1, "the first answer was cut");
}

#[test]
fn claude_code_finishes_its_turn_though_the_server_is_killed_in_the_middle_of_the_stream() {
    let mut claude = Claude::new();
    let hears = claude.proxy.hears("\"text_delta\"");
    let run = claude.command(&["count to thirty", "--output-format", "json"]).spawn().unwrap();
    hears.recv_timeout(Duration::from_secs(PATIENCE_S.parse().unwrap())).unwrap();
    claude.restart();
    let run = result(&run.wait_with_output().unwrap());
    assert_eq!(run["result"].as_str().map(str::trim_end), Some(counted().concat().trim_end()), "{run}");
}
