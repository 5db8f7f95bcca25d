//! `OpenClaw`, from its package on npm, over each of the APIs that it speaks: a text, a tool, and the prompt behind the
//! tool's result, which begins with the one before it. A second turn is not asked for: what runs here, `agent exec`,
//! has no session, and `agent --local --session-id`, which has one, first sets up databases for minutes.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::confined;
use crate::install;
use crate::proxy::Proxy;
use crate::server::{Server, Site};

const VERSION: &str = "2026.9.6";
/// It needs a newer Node.js than the oldest one that is still maintained.
const NODE_VERSION: &str = "24.22.3";
/// Seconds after which a run hangs: it takes twenty of one core to start, beside whatever else runs.
const PATIENCE_S: &str = "600";

/// An API, by `OpenClaw`'s name for it: what stands behind the server's address, the head of a request, and the field
/// of its messages.
struct Api {
    name: &'static str,
    base: &'static str,
    posts: &'static str,
    said: &'static str,
}

/// What the scripted model says. What `OpenClaw` says last is what it knows of the world, so the request is looked for
/// in all that it says.
fn replies() -> Value {
    let call = json!({"name": "exec", "arguments": {"command": "echo tools-$((40 + 2))"}});
    json!([
        {"match_any": "tools-42", "deltas": ["The tool ", "said 42."]},
        {"match_any": "ask the shell for tools", "deltas": ["Let me look. ", format!("<tool_call>{call}</tool_call>")]},
        {"deltas": ["Hello ", "there."]},
    ])
}

/// `OpenClaw` with a home of its own, in front of a server.
struct OpenClaw {
    node: PathBuf,
    script: PathBuf,
    home: TempDir,
    proxy: Proxy,
    _server: Server,
}

impl OpenClaw {
    fn new(api: &Api) -> Self {
        let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
        let node = format!("node-linux-{machine}");
        let packages = install::npm_all(&[("openclaw", VERSION), (&node, NODE_VERSION)]).join("node_modules");
        let (node, script) = (packages.join(node).join("bin/node"), packages.join("openclaw/openclaw.mjs"));
        let (site, home) = (Site::new(&replies()), TempDir::new_in(install::folder()).unwrap());
        let server = site.start();
        let proxy = Proxy::to(&server.address);
        let model = json!({
            "id": "scripted", "name": "Scripted", "reasoning": false, "input": ["text"],
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
            "contextWindow": 1_000_000, "maxTokens": 4096,
        });
        let base = format!("http://{}{}", proxy.address, api.base);
        let provider = json!({"baseUrl": base, "apiKey": "sk-fake", "api": api.name, "models": [model]});
        let config = json!({
            "models": {"mode": "replace", "providers": {"local": provider}},
            "agents": {"defaults": {"model": {"primary": "local/scripted"}}},
        });
        for folder in ["work", "tmp"] {
            std::fs::create_dir_all(home.path().join(folder)).unwrap();
        }
        std::fs::write(home.path().join("config.json"), config.to_string()).unwrap();
        Self { node, script, home, proxy, _server: server }
    }

    /// Runs one turn to its end, which must be a good one; gives what it printed.
    fn run(&self, text: &str) -> Value {
        let home = self.home.path();
        let mut command = confined::command(&self.node, home, PATIENCE_S);
        command.arg(&self.script).args(["agent", "exec", text, "--json", "--model", "local/scripted"]);
        let path = |name: &str| -> PathBuf { Path::new(home).join(name) };
        command.arg("--config").arg(path("config.json")).arg("--cwd").arg(path("work")).env("TMPDIR", path("tmp"));
        let output = command.output().unwrap();
        let (said, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{said}\n{log}", output.status);
        serde_json::from_str(&said).unwrap_or_else(|_| panic!("no result: {said}\n{log}"))
    }
}

/// A text, a tool, and an answer with the tool's result; and all of the second request but its end is the first one.
fn check(api: &Api) {
    let openclaw = OpenClaw::new(api);
    let run = openclaw.run("ask the shell for tools");
    assert_eq!((&run["ok"], &run["final"]), (&json!(true), &json!("The tool said 42.")), "{run}");
    assert_eq!(run["assistantTurns"], 2, "{run}");
    let bodies = openclaw.proxy.bodies(api.posts);
    let [first, second] = &bodies[..] else { panic!("{} requests", bodies.len()) };
    for name in ["system", "instructions", "tools"] {
        assert_eq!(unmarked(&first[name]), unmarked(&second[name]), "{name}");
    }
    let said = |body: &Value| body[api.said].as_array().unwrap().iter().map(unmarked).collect::<Vec<_>>();
    let (first, second) = (said(first), said(second));
    let common = first.iter().zip(&second).take_while(|(one, other)| one == other).count();
    // What it knows of the world moves to the end.
    assert!(common > 0 && common + 1 >= first.len() && second.len() > first.len(), "{common} of {}", first.len());
}

/// A value without what says nothing to a model: marks for a cache move from turn to turn.
fn unmarked(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let said = fields.iter().filter(|(name, _)| *name != "cache_control");
            said.map(|(name, value)| (name.clone(), unmarked(value))).collect()
        }
        Value::Array(list) => list.iter().map(unmarked).collect(),
        value => value.clone(),
    }
}

#[test]
fn openclaw_runs_a_tool_over_chat() {
    check(&Api { name: "openai-completions", base: "/v1", posts: "POST /v1/chat/completions ", said: "messages" });
}

#[test]
fn openclaw_runs_a_tool_over_responses() {
    check(&Api { name: "openai-responses", base: "/v1", posts: "POST /v1/responses ", said: "input" });
}

#[test]
fn openclaw_runs_a_tool_over_messages() {
    check(&Api { name: "anthropic-messages", base: "", posts: "POST /v1/messages ", said: "messages" });
}
