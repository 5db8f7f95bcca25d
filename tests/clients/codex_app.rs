//! Codex as other programs drive it, by its own protocol on standard input: steering a turn that runs.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::codex::{Codex, POSTS};

/// A Codex that takes requests.
struct AppServer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    sent: u64,
}

impl AppServer {
    fn start(codex: &Codex) -> Self {
        let mut command = codex.bare_command(&["app-server"]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut server = Self { child, input, output: BufReader::new(output).lines(), sent: 0 };
        let client = json!({"name": "test", "title": "test", "version": "1"});
        server.ask("initialize", &json!({"clientInfo": client, "capabilities": {"experimentalApi": true}}));
        server.write(&json!({"method": "initialized"}));
        server
    }

    fn write(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
        self.input.flush().unwrap();
    }

    /// The messages up to the first of this kind, which comes last.
    fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut messages = Vec::new();
        for line in self.output.by_ref() {
            let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let found = is_it(&message);
            messages.push(message);
            if found {
                return messages;
            }
        }
        panic!("Codex ended, having said {messages:?}")
    }

    /// The result of a request.
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.sent += 1;
        let id = self.sent;
        self.write(&json!({"id": id, "method": method, "params": params}));
        let answer = self.until(|message| message["id"] == id && message.get("method").is_none()).pop().unwrap();
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }
}

impl Drop for AppServer {
    fn drop(&mut self) {
        // Ends `timeout`, which ends Codex.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Steers a turn as soon as the server says something of its answer; gives what the model said from then on.
fn steered(codex: &Codex) -> Vec<String> {
    let mut app = AppServer::start(codex);
    let work = codex.home.path().join("work");
    let thread = json!({"cwd": work, "approvalPolicy": "never", "sandbox": "danger-full-access"});
    let thread = app.ask("thread/start", &thread)["thread"]["id"].clone();
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let hears = codex.proxy.hears("\"response.reasoning_text.delta\"");
    let turn = app.ask("turn/start", &json!({"threadId": thread, "input": text("muse")}))["turn"]["id"].clone();
    hears.recv().unwrap();
    app.ask("turn/steer", &json!({"threadId": thread, "expectedTurnId": turn, "input": text("say hi")}));
    let said = app.until(|message| message["method"] == "turn/completed");
    let items = said.iter().filter(|message| message["method"] == "item/completed").map(|it| &it["params"]["item"]);
    items.filter(|item| item["type"] == "agentMessage").map(|item| item["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn codex_steers_over_http_by_asking_anew() {
    let codex = Codex::new("");
    assert_eq!(steered(&codex).last().map(String::as_str), Some("Hello there."));
    assert_eq!(codex.proxy.asked(POSTS), 2);
}

#[test]
fn codex_steers_over_a_socket_by_an_interrupt_and_goes_on_from_the_response() {
    let codex = Codex::over_sockets().knowing_the_model(&json!({"use_responses_lite": true}));
    assert_eq!(steered(&codex), ["Hello there."]);
    assert_eq!(codex.proxy.answered("\"response.interrupt.accepted\""), 1);
    assert_eq!(codex.proxy.answered("\"reason\":\"interrupted\""), 1);
    assert_eq!(codex.proxy.asked(POSTS), 0);
}
