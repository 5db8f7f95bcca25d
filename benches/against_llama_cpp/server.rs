//! A server as a process: started, watched from outside, and ended.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use midstream::clock::monotonic;
use reqwest::Client;

use super::Outcome;

/// A server that does not serve after this long never will.
const READY_MAX: Duration = Duration::from_mins(2);
/// How often a process is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// A process is at rest once it has taken at most one of the system's ticks of 10 ms in this time.
const REST: Duration = Duration::from_millis(100);
const REST_TICKS_MAX: u64 = 1;
/// A server that computes longer than this with nobody to compute for has forgotten to stop.
const REST_WITHIN_MAX: Duration = Duration::from_mins(2);

/// A running server.
pub(crate) struct Server {
    child: Child,
    pub(crate) base: String,
    pub(crate) client: Client,
    /// From the start of the process until it served.
    pub(crate) ready: Duration,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts `midstream serve`.
    pub(crate) async fn own(model: &Path, threads: usize) -> Outcome<Self> {
        let folder = tempfile::TempDir::new()?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_midstream"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--threads", &threads.to_string(), "--model"]).arg(model);
        command.arg("--data-dir").arg(folder.path());
        let begin = monotonic();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let first = BufReader::new(output).lines().next().ok_or("midstream ended")??;
        let base = first.split_whitespace().last().ok_or("midstream wrote no address")?.to_owned();
        Self::when_ready(child, base, folder, begin).await
    }

    /// Starts `llama-server` with so many slots of `context` tokens each.
    pub(crate) async fn peer(
        program: &Path,
        model: &Path,
        threads: usize,
        slots: usize,
        context: usize,
    ) -> Outcome<Self> {
        let folder = tempfile::TempDir::new()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(program);
        command.arg("-m").arg(model).args(["-t", &threads.to_string(), "-np", &slots.to_string()]);
        command.args(["-c", &(slots * context).to_string(), "--host", "127.0.0.1", "--port", &port.to_string()]);
        let begin = monotonic();
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Self::when_ready(child, format!("http://127.0.0.1:{port}"), folder, begin).await
    }

    async fn when_ready(child: Child, base: String, folder: tempfile::TempDir, begin: Instant) -> Outcome<Self> {
        let client = Client::builder().no_proxy().build()?;
        let mut server = Self { child, base, client, ready: Duration::ZERO, _folder: folder };
        loop {
            let answer = server.client.get(format!("{}/v1/models", server.base)).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                server.ready = begin.elapsed();
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("the server ended with {status}").into());
            }
            if begin.elapsed() > READY_MAX {
                return Err("the server does not become ready".into());
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// The memory that the process has now, in bytes; what it has mapped of the model's file counts.
    pub(crate) fn resident_bytes(&self) -> Outcome<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kilobytes << 10)
    }

    /// How long it takes from now until the process computes no more.
    pub(crate) async fn until_rest(&self) -> Outcome<Duration> {
        let begin = monotonic();
        let mut seen = vec![(begin, self.ticks()?)];
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let (now, ticks) = (monotonic(), self.ticks()?);
            let a_rest_ago = seen.iter().rev().find(|(then, _)| now - *then >= REST);
            if let Some((then, before)) = a_rest_ago
                && ticks - before <= REST_TICKS_MAX
            {
                return Ok(*then - begin);
            }
            if begin.elapsed() > REST_WITHIN_MAX {
                return Err("the server computes on with nobody to compute for".into());
            }
            seen.push((now, ticks));
        }
    }

    /// The processor time of the process, all threads together.
    fn ticks(&self) -> Outcome<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name in parentheses may hold anything; the state is the first field behind it, these the 12th and 13th.
        let (_, fields) = text.rsplit_once(')').ok_or("no process")?;
        let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
        let mut next = || times.next().ok_or("no processor time");
        Ok(next()?? + next()??)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
