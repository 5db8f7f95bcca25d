//! opencode, from its package on npm, over each of the APIs that it speaks: text, and a tool.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::confined::{self, PATIENCE_S};
use crate::install;
use crate::proxy::Proxy;
use crate::server::{Server, Site};

const VERSION: &str = "1.18.33";

/// An API, by opencode's adapter for it and the head of a request.
struct Api {
    adapter: &'static str,
    posts: &'static str,
}

const APIS: [Api; 3] = [
    Api { adapter: "@ai-sdk/openai-compatible", posts: "POST /v1/chat/completions " },
    Api { adapter: "@ai-sdk/openai", posts: "POST /v1/responses " },
    Api { adapter: "@ai-sdk/anthropic", posts: "POST /v1/messages " },
];

/// What the scripted model says to what opencode is asked here.
fn replies() -> Value {
    let call = json!({"name": "bash", "arguments": {"command": "echo tools-$((40 + 2))", "description": "Counts."}});
    json!([
        {"match": "tools-42", "deltas": ["The tool ", "said 42."]},
        {"match": "use a tool", "deltas": ["Let me look. ", format!("<tool_call>{call}</tool_call>")]},
        {"deltas": ["Hello ", "there."]},
    ])
}

/// opencode with a home of its own, in front of a server.
struct OpenCode {
    program: PathBuf,
    home: TempDir,
    proxy: Proxy,
    _server: Server,
}

impl OpenCode {
    fn new(api: &Api) -> Self {
        let folder = install::npm("opencode-ai", VERSION);
        // The package itself has a script only.
        let is_program =
            |path: &Path| path.ends_with("bin/opencode") && path.components().all(|it| it.as_os_str() != "opencode-ai");
        let program = install::find(&folder, &is_program).expect("the package has a program for this platform");
        let (site, home) = (Site::new(&replies()), TempDir::new_in(install::folder()).unwrap());
        let server = site.start();
        let proxy = Proxy::to(&server.address);
        let model = json!({"name": "scripted", "tool_call": true, "limit": {"context": 1_000_000, "output": 10_000}});
        let config = json!({
            "autoupdate": false,
            "share": "disabled",
            "model": "local/scripted",
            "small_model": "local/scripted",
            "permission": "allow",
            "provider": {"local": {
                "npm": api.adapter,
                "options": {"baseURL": format!("http://{}/v1", proxy.address), "apiKey": "sk-fake"},
                "models": {"scripted": model},
            }},
        });
        let work = home.path().join("work");
        std::fs::create_dir_all(&work).unwrap();
        std::fs::write(work.join("opencode.json"), config.to_string()).unwrap();
        Self { program, home, proxy, _server: server }
    }

    /// Runs to its end, which must be a good one; gives what it printed.
    fn run(&self, text: &str) -> String {
        let mut command = confined::command(&self.program, self.home.path(), PATIENCE_S);
        command.args(["run", "-m", "local/scripted", text]).current_dir(self.home.path().join("work"));
        for off in ["AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
            command.env(format!("OPENCODE_DISABLE_{off}"), "1");
        }
        let output = command.output().unwrap();
        let (said, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{said}\n{log}", output.status);
        said.into_owned()
    }
}

#[test]
fn opencode_gets_a_text_over_each_api() {
    for api in &APIS {
        let opencode = OpenCode::new(api);
        let said = opencode.run("say hi");
        assert!(said.contains("Hello there."), "{}: {said}", api.adapter);
        let (own, all) = (opencode.proxy.asked(api.posts), opencode.proxy.asked("POST /v1/"));
        // One for the answer, and one for a title.
        assert!((1..=3).contains(&own) && own == all, "{}: {own} of {all}", api.adapter);
    }
}

#[test]
fn opencode_runs_a_tool_and_answers_with_its_result_over_each_api() {
    for api in &APIS {
        let opencode = OpenCode::new(api);
        let said = opencode.run("use a tool");
        assert!(said.contains("The tool said 42."), "{}: {said}", api.adapter);
        assert!(opencode.proxy.asked("tools-42") > 0);
    }
}
