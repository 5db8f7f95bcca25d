//! The server under test: scripted, on a free port, with a data folder that outlives its process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A data folder, a script and settings as variables; one process at a time.
pub(crate) struct Site {
    folder: TempDir,
    settings: &'static [(&'static str, &'static str)],
}

impl Site {
    /// Serves these replies.
    pub(crate) fn new(replies: &Value) -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("script.json"), replies.to_string()).unwrap();
        Self { folder, settings: &[] }
    }

    /// The same with these settings.
    pub(crate) fn with(self, settings: &'static [(&'static str, &'static str)]) -> Self {
        Self { settings, ..self }
    }

    /// What Codex is told of the script's model.
    pub(crate) fn codex_catalog(&self) -> Vec<u8> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_midstream"));
        command.arg("codex-catalog").arg("--scripted").arg(self.folder.path().join("script.json"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Starts the process and waits until it serves.
    pub(crate) fn start(&self) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_midstream"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(self.folder.path().join("data"));
        command.arg("--scripted").arg(self.folder.path().join("script.json")).envs(self.settings.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut first = String::new();
        // Its first line says where it listens, and comes when it is ready.
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let base = first.split_whitespace().last().expect("the server ended before it served");
        Server { address: base.trim_start_matches("http://").to_owned(), child }
    }
}

/// A running process.
pub(crate) struct Server {
    pub(crate) address: String,
    child: Child,
}

impl Server {
    /// Ends the process as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone after `kill`; else a failed test must not leave it behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
