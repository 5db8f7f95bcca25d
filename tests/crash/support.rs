//! The binary under test: starts it on a free port, kills it, starts it again; and a reader of its streams.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use reqwest::{Client, Response};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Nothing here takes this long, unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// A data folder and what is served from it; one process at a time.
pub(crate) struct Site {
    folder: TempDir,
    arguments: Vec<String>,
    wrapper: Vec<String>,
}

/// A running process.
pub(crate) struct Server {
    child: Child,
    pub(crate) base: String,
    client: Client,
}

impl Site {
    /// Serves these scripted replies.
    pub(crate) fn scripted(replies: &Value) -> Self {
        let folder = TempDir::new().unwrap();
        let script = folder.path().join("script.json");
        let arguments = vec!["--scripted".to_owned(), script.display().to_string()];
        let site = Self { folder, arguments, wrapper: vec![] };
        site.rewrite(replies);
        site
    }

    /// Serves what another server does, as its upstream.
    pub(crate) fn upstream_of(server: &Server) -> Self {
        let folder = TempDir::new().unwrap();
        let settings = folder.path().join("midstream.toml");
        let upstream = "upstream.other = { kind = 'midstream', models = ['scripted'], base_url =";
        std::fs::write(&settings, format!("{upstream} '{}/v1' }}", server.base)).unwrap();
        Self { folder, arguments: vec!["--config".to_owned(), settings.display().to_string()], wrapper: vec![] }
    }

    /// Serves these replies from the next start on.
    pub(crate) fn rewrite(&self, replies: &Value) {
        std::fs::write(self.folder.path().join("script.json"), replies.to_string()).unwrap();
    }

    /// Serves the model that `scripts/test` provides.
    pub(crate) fn real_model() -> Self {
        let model = std::env::var("MIDSTREAM_TEST_MODEL").expect(
            "MIDSTREAM_TEST_MODEL must name the default model's GGUF file; scripts/test fetches it and sets it",
        );
        Self { folder: TempDir::new().unwrap(), arguments: vec!["--model".to_owned(), model], wrapper: vec![] }
    }

    /// Runs the binary under another program.
    pub(crate) fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Runs the binary itself again.
    pub(crate) fn bare(mut self) -> Self {
        self.wrapper.clear();
        self
    }

    /// Adds arguments.
    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|word| (*word).to_owned()));
        self
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs another command on the data folder, and gives its output.
    pub(crate) fn run(&self, command: &[&str], input: &[u8]) -> Vec<u8> {
        let mut process = Command::new(env!("CARGO_BIN_EXE_midstream"));
        process.args(command).arg("--data-dir").arg(self.folder.path().join("data"));
        let mut child = process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{command:?}");
        output.stdout
    }

    /// Runs a command on the data folder that dies at a named point; false when it never came there.
    pub(crate) fn dies_at(&self, command: &[&str], point: &str) -> bool {
        let mut process = Command::new(env!("CARGO_BIN_EXE_midstream"));
        process.args(command).arg("--data-dir").arg(self.folder.path().join("data")).env("MIDSTREAM_CRASH", point);
        let status = process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(status.success() || status.code().is_none(), "{command:?} failed by itself");
        !status.success()
    }

    /// Runs a command on the data folder that is to fail, and gives what it says.
    pub(crate) fn refused(&self, command: &[&str]) -> String {
        let mut process = Command::new(env!("CARGO_BIN_EXE_midstream"));
        process.args(command).arg("--data-dir").arg(self.folder.path().join("data"));
        let output = process.stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success(), "{command:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// What `midstream doctor` says of what is served here, and whether it is content.
    pub(crate) fn doctor(&self) -> (String, bool) {
        let mut process = Command::new(env!("CARGO_BIN_EXE_midstream"));
        process.args(["doctor", "--data-dir"]).arg(self.folder.path().join("data")).args(&self.arguments);
        let output = process.stdin(Stdio::null()).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    }

    /// Starts the process and waits until it serves.
    pub(crate) async fn start(&self) -> Server {
        self.try_start(&[]).await.expect("the server ended before it served")
    }

    /// Starts the process with these variables; none when it ended before it served.
    pub(crate) async fn try_start(&self, variables: &[(&str, &str)]) -> Option<Server> {
        self.spawn(variables, Stdio::null()).await
    }

    /// Starts the process, and waits until it has said this in its log.
    pub(crate) async fn start_until_logged(&self, wanted: &'static str) -> Server {
        let mut server = self.spawn(&[], Stdio::piped()).await.expect("the server ended before it served");
        let is_wanted = move |line: &str| line.contains(wanted).then(String::new);
        logged(server.child.stderr.take().unwrap(), is_wanted).await;
        server
    }

    /// Starts the process, and waits until its port is open, whether it serves there or not.
    pub(crate) async fn open_port(&self) -> Server {
        let mut child = self.command(&[]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let url = |line: &str| Some(line.split_once(" url=")?.1.split_whitespace().next()?.to_owned());
        let base = logged(child.stderr.take().unwrap(), url).await;
        Server { child, base, client: Client::builder().no_proxy().build().unwrap() }
    }

    fn command(&self, variables: &[(&str, &str)]) -> Command {
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_midstream"));
        let mut words = self.wrapper.clone();
        words.push(binary.display().to_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
        command.arg(self.folder.path().join("data")).args(&self.arguments);
        command.envs(variables.iter().copied());
        command
    }

    async fn spawn(&self, variables: &[(&str, &str)], stderr: Stdio) -> Option<Server> {
        let mut child = self.command(variables).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Its first line says where it listens, and comes when it is ready.
        let first = tokio::task::spawn_blocking(move || lines.next()).await.unwrap();
        let Some(Ok(first)) = first else {
            child.wait().unwrap();
            return None;
        };
        let base = first.split_whitespace().last().unwrap().to_owned();
        let client = Client::builder().no_proxy().build().unwrap();
        Some(Server { child, base, client })
    }
}

/// The first that is found in a line of a process's log.
async fn logged(log: ChildStderr, find: impl Fn(&str) -> Option<String> + Send + 'static) -> String {
    let (said, heard) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut said = Some(said);
        // To its end, so that the process never waits for a reader.
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            if let Some(found) = find(&line) {
                said.take().map(|said| said.send(found));
            }
        }
    });
    tokio::time::timeout(PATIENCE, heard).await.expect("it is never logged").expect("the server has ended")
}

impl Server {
    /// The process's id.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process as a power cut would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process has ended by itself; gives its exit code.
    pub(crate) async fn dead(mut self) -> Option<i32> {
        let ended = tokio::task::spawn_blocking(move || self.child.wait().unwrap());
        tokio::time::timeout(PATIENCE, ended).await.expect("the server lives on").unwrap().code()
    }

    /// Asks the process to end, and waits for its exit code. Of a wrapped one the wrapper's child is asked.
    pub(crate) async fn terminate(mut self) -> Option<i32> {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let id = children.split_whitespace().next().map_or_else(|| id.to_string(), str::to_owned);
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let status = tokio::task::spawn_blocking(move || self.child.wait().unwrap());
        tokio::time::timeout(PATIENCE, status).await.expect("the server did not stop").unwrap().code()
    }

    pub(crate) async fn post(&self, path: &str, key: &str, body: &Value) -> (u16, Value) {
        let response = self.send(path, key, body).await;
        let status = response.status().as_u16();
        (status, response.json().await.unwrap())
    }

    pub(crate) async fn send(&self, path: &str, key: &str, body: &Value) -> Response {
        let request = self.client.post(format!("{}{path}", self.base)).timeout(PATIENCE).json(body);
        request.header("idempotency-key", key).send().await.unwrap()
    }

    /// As [`Server::post`]; none when the server died before its answer was whole.
    pub(crate) async fn try_post(&self, path: &str, key: &str, body: &Value) -> Option<(u16, Value)> {
        let request = self.client.post(format!("{}{path}", self.base)).timeout(PATIENCE).json(body);
        let response = request.header("idempotency-key", key).send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, response.json().await.ok()?))
    }

    /// Deletes; none when the server died before its answer was whole.
    pub(crate) async fn try_delete(&self, path: &str) -> Option<(u16, Value)> {
        let request = self.client.delete(format!("{}{path}", self.base)).timeout(PATIENCE);
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, response.json().await.ok()?))
    }

    /// As [`Server::follow`]; none when the server is dead.
    pub(crate) async fn try_follow(&self, path: &str) -> Option<Frames> {
        let request = self.client.get(format!("{}{path}", self.base)).timeout(PATIENCE);
        Some(Frames { response: request.send().await.ok()?, buffer: String::new(), last_id: None })
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let request = self.client.get(format!("{}{path}", self.base)).timeout(PATIENCE);
        request.send().await.unwrap().json().await.unwrap()
    }

    /// Starts a background response; gives its id and its conversation's.
    pub(crate) async fn begin(&self, key: &str, body: Value) -> (String, String) {
        let mut body = body;
        body["background"] = json!(true);
        let (status, response) = self.post("/v1/responses", key, &body).await;
        assert_eq!(status, 200, "{response}");
        let id = |value: &Value| value.as_str().unwrap().to_owned();
        (id(&response["id"]), id(&response["conversation"]["id"]))
    }

    /// A stream of frames.
    pub(crate) async fn follow(&self, path: &str) -> Frames {
        let request = self.client.get(format!("{}{path}", self.base)).timeout(PATIENCE);
        Frames { response: request.send().await.unwrap(), buffer: String::new(), last_id: None }
    }

    /// Follows a conversation until a response has ended, from behind `after`.
    pub(crate) async fn until_ended(&self, conversation: &str, response: &str, after: u64) -> Vec<Value> {
        let mut frames = self.follow(&format!("/v1/conversations/{conversation}/events?after={after}")).await;
        let mut seen = Vec::new();
        while let Some(frame) = frames.next().await {
            let ended = is_terminal(&frame) && frame["response"]["id"] == response;
            seen.push(frame);
            if ended {
                return seen;
            }
        }
        panic!("the stream ended before {response} did: {seen:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone after `kill`; else a failed test must not leave it behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The data of a stream's frames, in order.
pub(crate) struct Frames {
    response: Response,
    buffer: String,
    /// The cursor of the last frame.
    pub(crate) last_id: Option<String>,
}

impl Frames {
    /// The next frame; none when the connection is gone.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                let data = block.lines().find_map(|line| line.strip_prefix("data:"));
                if let Some(frame) = data.and_then(|data| serde_json::from_str(data).ok()) {
                    let id = block.lines().find_map(|line| line.strip_prefix("id:"));
                    self.last_id = id.map(|id| id.trim().to_owned());
                    return Some(frame);
                }
            }
            let chunk = self.response.chunk().await.ok().flatten()?;
            self.buffer.push_str(std::str::from_utf8(&chunk).expect("frames are cut at characters"));
        }
    }
}

pub(crate) fn is_terminal(frame: &Value) -> bool {
    matches!(frame["type"].as_str(), Some("response.completed" | "response.incomplete" | "response.failed"))
}

/// The frames that have a place in the journal, checked to be contiguous.
pub(crate) fn journaled(frames: &[Value]) -> Vec<Value> {
    let frames: Vec<_> = frames.iter().filter(|frame| frame["type"] != "conversation.snapshot").cloned().collect();
    for pair in frames.windows(2) {
        let seqs = (pair[0]["seq"].as_u64().unwrap(), pair[1]["seq"].as_u64().unwrap());
        assert_eq!(seqs.0 + 1, seqs.1, "no gap and no duplicate: {pair:?}");
    }
    frames
}

/// The text that the deltas of a response show.
pub(crate) fn shown_text(frames: &[Value], response: &str) -> String {
    let of_response =
        |frame: &&Value| frame["type"] == "response.output_text.delta" && frame["response_id"] == response;
    frames.iter().filter(of_response).map(|frame| frame["delta"].as_str().unwrap()).collect()
}
