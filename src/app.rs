//! Wiring and the order of shutting down: which parts exist, who is handed which, and who stops first.
//!
//! Start: listener and probes, engines and beside them the journal, actors, routes, recovery, then ready. Stop: no new
//! requests, running responses get their time, then the conversations (what still runs stays in the journal), the
//! sockets, and last the journal. Told to stop before it is ready, the process ends as if it were killed.

mod engines;
mod stored;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::access::Gate;
use crate::actors::{self, Foresight, Keys, Parts, RootHandle, Running, Unstored};
use crate::api::{self, App, Doors, Entrance, Limits, Phase, StartProgress, Tls};
use crate::cli::Prepared;
use crate::clock::{Clock, monotonic};
use crate::config::Config;
use crate::engine::{Catalog, Engine};
use crate::log;
use crate::models::ModelFile;
use crate::store::{WriterHandle, WriterStatus};
use crate::telemetry;
use engines::load_engines;
pub(crate) use engines::{doubts, load_options, template_text, upstream_engines};
use stored::Stored;

/// Milliseconds that open sockets get to take their last bytes once everything else has stopped.
const SOCKETS_CLOSE_MS: u64 = 2_000;

/// Files that the process may have open beside connections: the journal's, KV files, models.
const FILES_RESERVED: u64 = 256;

/// Milliseconds for which an address that is in use is tried again, and between two tries.
const LISTEN_PATIENCE_MS: u64 = 2_000;
const LISTEN_PAUSE_MS: u64 = 50;

/// Serves until the process is told to stop.
pub fn run(prepared: Prepared) -> anyhow::Result<()> {
    log::start(prepared.config.log_format)?;
    let files_max = raise_open_files();
    telemetry::install();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    let outcome = runtime.block_on(serve(prepared, files_max));
    // Handlers that wait for a client must not hold the process.
    runtime.shutdown_timeout(Duration::from_millis(SOCKETS_CLOSE_MS));
    outcome
}

/// Lets the process open as many files as the system allows: every connection is one, and shells start their programs
/// with room for few. Gives how many that are.
fn raise_open_files() -> u64 {
    let files = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: files.maximum, ..files };
    let most = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => files.maximum,
        Err(error) => {
            tracing::info!(%error, open_files_max = files.current, "no more files may be open at once");
            files.current
        }
    };
    most.unwrap_or(u64::MAX)
}

/// Who may connect: the journal and its files must find room beside all connections, those to upstreams too.
fn doors(config: &Config, tls: Option<Tls>, files_max: u64) -> Doors {
    let reserved = FILES_RESERVED + config.requests_in_flight_max as u64;
    let room = usize::try_from(files_max.saturating_sub(reserved)).unwrap_or(usize::MAX).max(1);
    if room < config.connections_max {
        tracing::warn!(connections_max = room, "fewer connections than set: no more files may be open at once");
    }
    Doors { connections_max: config.connections_max.min(room), tls, ..Doors::new(config) }
}

/// Binds the address. A process that was killed a moment ago may hold it a little longer.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let until = monotonic() + Duration::from_millis(LISTEN_PATIENCE_MS);
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && monotonic() < until => {
                tokio::time::sleep(Duration::from_millis(LISTEN_PAUSE_MS)).await;
            }
            done => return done,
        }
    }
}

/// Why nothing can be served there, and what to do.
fn not_listening(address: SocketAddr, error: io::Error) -> anyhow::Error {
    let what_to_do = match error.kind() {
        io::ErrorKind::AddrInUse => "another server has that port; end it, or choose another with --listen",
        io::ErrorKind::AddrNotAvailable => "this machine has no such address; choose another with --listen",
        io::ErrorKind::PermissionDenied => "this port is not for everybody; choose one from 1024 on with --listen",
        _ => "choose another address with --listen",
    };
    anyhow::Error::new(error).context(format!("cannot listen on {address}: {what_to_do}"))
}

async fn serve(Prepared { config, models, tls }: Prepared, files_max: u64) -> anyhow::Result<()> {
    let (mut stops, mut hangups) = (Stops::new()?, signal(SignalKind::hangup())?);
    let doors = doors(&config, tls.clone(), files_max);
    let listener = listen(config.listen).await.map_err(|error| not_listening(config.listen, error))?;
    let entrance = Entrance::new(StartProgress::of(models.iter().map(|model| model.id.as_str())));
    let front = Front::open(listener, doors, entrance)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", front.address);
    tracing::info!(%url, "the port is open; loading models, opening the journal");
    let works = tokio::select! {
        works = load(config, models, &front.entrance) => works?,
        signal = stops.told() => {
            tracing::info!(signal, "stopped while starting");
            front.close().await;
            return Ok(());
        }
    };
    let server = Server { front, works };
    greet(&url, &server.works.parts.catalog, server.works.recovered, server.works.gate.is_locked());

    let failure = tokio::select! {
        failure = stops.stop_or_failure(&server.works.root, &server.works.parts.writer) => failure,
        () = reread(&mut hangups, &server.works.gate, tls.as_ref()) => None,
    };
    // Everything acknowledged is on disk: nothing is lost by not waiting.
    let hurry = async {
        let signal = stops.told().await;
        tracing::info!(signal, "told again: stopping at once");
    };
    server.stop(hurry).await;
    failure.map_or(Ok(()), |why| Err(anyhow::anyhow!(why)))
}

/// Loads the models and opens the journal beside that, since each of both may take a while; then has requests served.
async fn load(config: Config, models: Vec<ModelFile>, entrance: &Entrance) -> anyhow::Result<Works> {
    let engines = tokio::task::spawn_blocking({
        let (config, progress) = (config.clone(), entrance.progress().clone());
        move || load_engines(&config, &models, &progress)
    });
    let engines = async { engines.await.context("loading the models")? };
    let (engines, stored) = tokio::try_join!(engines, Stored::open(&config, entrance.progress()))?;
    let catalog = Catalog::new(engines);
    for oversight in oversights(&config, &catalog, &stored.gate) {
        tracing::warn!("{oversight}");
    }
    Works::start(config, entrance, stored, Arc::new(catalog)).await
}

/// What stands in no way of a start, and is hardly meant.
fn oversights(config: &Config, catalog: &Catalog, gate: &Gate) -> Vec<String> {
    let mut oversights = Vec::new();
    let served = || catalog.list().map(|engine| engine.model().id.as_str());
    for id in config.model.keys().filter(|id| served().all(|served| served != **id)) {
        let served = served().collect::<Vec<_>>().join(", ");
        oversights.push(format!("the settings of the model {id:?} have no effect: served are {served}"));
    }
    if gate.is_shut() {
        oversights.push("every API key is revoked, so nobody is let in; create one: midstream keys create NAME".into());
    }
    oversights
}

/// An open port. What is asked there is the entrance's to answer.
struct Front {
    address: SocketAddr,
    entrance: Entrance,
    close: watch::Sender<bool>,
    sockets: JoinHandle<io::Result<()>>,
}

impl Front {
    fn open(listener: TcpListener, doors: Doors, entrance: Entrance) -> anyhow::Result<Self> {
        let address = listener.local_addr()?;
        let (close, closed) = watch::channel(false);
        let sockets = tokio::spawn(api::serve(listener, entrance.router(), doors, wait_for(closed)));
        Ok(Self { address, entrance, close, sockets })
    }

    /// Closes the port before anything was served.
    async fn close(self) {
        self.entrance.close();
        self.close_behind(std::future::ready(())).await;
    }

    /// Takes no connection any more, and waits for those that are open and for this. Sockets that never read would
    /// hold the process for ever.
    async fn close_behind(self, deserted: impl Future<Output = ()>) {
        self.close.send_replace(true);
        let closed = async { tokio::join!(self.sockets, deserted) };
        let _ = tokio::time::timeout(Duration::from_millis(SOCKETS_CLOSE_MS), closed).await;
    }
}

/// Everything that serves, between an open port and an open journal.
struct Works {
    parts: Parts,
    root: RootHandle,
    api: App,
    gate: Gate,
    phase: watch::Sender<Phase>,
    /// Conversations that were running when the last process ended.
    recovered: usize,
}

impl Works {
    async fn start(config: Config, entrance: &Entrance, stored: Stored, catalog: Arc<Catalog>) -> anyhow::Result<Self> {
        let Stored { journal, writer, kv, gate, seal } = stored;
        let config = Arc::new(config);
        let parts = Parts {
            journal: journal.clone(),
            writer,
            catalog: catalog.clone(),
            clock: Clock::System,
            config: config.clone(),
            running: Running::default(),
            unstored: Unstored::default(),
            foresight: Foresight::default(),
            kv,
        };
        let root = actors::start(parts.clone()).await?;
        let (phase, phases) = watch::channel(Phase::Recovering);
        let app = App::new(
            root.directory(),
            catalog,
            Keys::new(journal),
            seal,
            (limits(&config), config.as_ref().into()),
            phases,
        )
        .guarded(gate.clone(), &config.allowed_origins);
        tokio::spawn(telemetry::keep_up());
        entrance.open(api::router(app.clone()));
        let recovered = root.recover().await.map_err(|reject| anyhow::anyhow!(reject.message))?;
        phase.send_replace(Phase::Ready);
        Ok(Self { parts, root, api: app, gate, phase, recovered })
    }
}

/// A server that serves.
pub(crate) struct Server {
    front: Front,
    works: Works,
}

impl Server {
    /// Serves one engine on a free port of this machine, for a client in this process.
    pub(crate) async fn start_here(config: Config, engine: Arc<dyn Engine>) -> anyhow::Result<Self> {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.context("opening a port")?;
        let front = Front::open(listener, Doors::new(&config), Entrance::new(StartProgress::default()))?;
        let stored = Stored::open(&config, front.entrance.progress()).await?;
        let works = Works::start(config, &front.entrance, stored, Arc::new(Catalog::new(vec![engine]))).await?;
        Ok(Self { front, works })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.front.address
    }

    /// Stops in good order; what runs is not waited for once `hurry` is over.
    pub(crate) async fn stop(self, hurry: impl Future<Output = ()>) {
        let Self { front, works } = self;
        works.phase.send_replace(Phase::Draining);
        tokio::select! {
            () = drain(&works.parts, &works.root) => {}
            () = hurry => {}
        }
        front.close_behind(works.api.deserted()).await;
        works.parts.writer.stop().await;
    }
}

/// Every SIGHUP has the keys and their limits read again, and cuts off whoever has none any more; and the certificate.
async fn reread(hangups: &mut Signal, gate: &Gate, tls: Option<&Tls>) {
    while hangups.recv().await.is_some() {
        tracing::info!(signal = "SIGHUP", "reading the API keys again");
        gate.reload();
        match tls.map(Tls::reload) {
            None => {}
            Some(Ok(())) => tracing::info!("the certificate was read again; new connections are shown it"),
            Some(Err(error)) => tracing::error!(%error, "the certificate stays as it was"),
        }
    }
    std::future::pending::<()>().await;
}

/// Running responses get their time to end; what then still runs goes on after the restart.
async fn drain(parts: &Parts, root: &RootHandle) {
    let config = &parts.config;
    let count = parts.running.count();
    if count > 0 {
        let time = Duration::from_millis(config.shutdown_drain_ms);
        tracing::info!(count, at_most = ?time, "waiting for running responses; told again, the server stops at once");
        if tokio::time::timeout(time, parts.running.idle()).await.is_err() {
            tracing::info!(count = parts.running.count(), "time is up; those that are stored go on after the restart");
        }
    }
    root.stop().await;
    // What takes longer is not written, and the next start does without it.
    let _ = tokio::time::timeout(Duration::from_millis(config.shutdown_kv_ms), parts.kv.settled()).await;
}

fn limits(config: &Config) -> Limits {
    Limits {
        body_bytes_max: config.body_bytes_max,
        body_timeout: Duration::from_millis(config.body_timeout_ms),
        ws_frame_bytes_max: config.ws_frame_bytes_max,
        responses_ws: config.responses_ws,
        responses_ws_life: Some(Duration::from_millis(config.responses_ws_life_ms)).filter(|life| !life.is_zero()),
        control_body_bytes_max: config.control_body_bytes_max,
        requests_in_flight_max: config.requests_in_flight_max,
        readers_max: config.readers_max,
        silence: Duration::from_millis(config.silence_ms),
        tool_lease_ms: config.tool_lease_ms,
        tool_lease_ms_max: config.tool_lease_ms_max,
    }
}

async fn wait_for(mut flag: watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = flag.wait_for(|set| *set).await;
}

/// Says where the server is, what it serves, and how to try it.
fn greet(url: &str, catalog: &Catalog, recovered: usize, asks_for_keys: bool) {
    let models: Vec<_> = catalog.list().map(|engine| engine.model().id.as_str()).collect();
    let model = models.first().copied().unwrap_or_default();
    let messages = r#"[{"role":"user","content":"What is the capital of France? Answer in one sentence."}]"#;
    let body = format!(r#"{{"model":"{model}","temperature":0.2,"messages":{messages}}}"#);
    let resumed = match recovered {
        0 => String::new(),
        count => format!("conversations that were running and go on: {count}\n"),
    };
    let key = if asks_for_keys { " -H \"authorization: Bearer $MIDSTREAM_API_KEY\"" } else { "" };
    let greeting = format!(
        "midstream listens on {url}\nmodels: {}\n{resumed}try:\n  \
         curl {url}/v1/chat/completions{key} -H 'content-type: application/json' -d '{body}'\n",
        models.join(", "),
    );
    // In one write, and whoever started us may have stopped listening: that is no reason to stop serving.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(greeting.as_bytes()).and_then(|()| out.flush());
}

/// What makes the process stop.
struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn told(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Waits for a signal, or for a failure that only a restart can mend; then says which.
    async fn stop_or_failure(&mut self, root: &RootHandle, writer: &WriterHandle) -> Option<String> {
        let mut status = writer.watch();
        let sync_failed = async {
            let ended = |status: &WriterStatus| matches!(status, WriterStatus::Fatal(_) | WriterStatus::Stopped);
            match status.wait_for(ended).await.as_deref() {
                Ok(WriterStatus::Fatal(error)) => error.to_string(),
                _ => "the journal's writer ended".to_owned(),
            }
        };
        tokio::select! {
            signal = self.told() => {
                tracing::info!(signal, "stopping");
                None
            }
            why = sync_failed => Some(why),
            () = root.failed() => Some("the directory of conversations failed; restart the server".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_freed_in_a_moment_is_waited_for_and_another_servers_is_not() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        assert_eq!(listen(address).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let waiting = tokio::spawn(listen(address));
        tokio::task::yield_now().await;
        drop(held);
        assert_eq!(waiting.await.unwrap().unwrap().local_addr().unwrap(), address);
    }

    #[test]
    fn an_address_that_cannot_be_had_is_answered_with_what_to_write() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
        for kind in [io::ErrorKind::AddrInUse, io::ErrorKind::AddrNotAvailable, io::ErrorKind::PermissionDenied] {
            let said = not_listening(address, kind.into()).to_string();
            assert!(said.contains("127.0.0.1:8080") && said.contains("--listen"), "{said}");
        }
    }

    #[test]
    fn settings_of_models_that_are_not_served_and_keys_that_are_all_revoked_are_told() {
        let (folder, file) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        let script = crate::engine::ScriptedEngine::from_json(r#"[{"deltas": ["a"]}]"#).unwrap();
        let catalog = Catalog::new(vec![Arc::new(script) as Arc<dyn Engine>]);
        std::fs::write(file.path(), "model.scripted.aliases = ['a']\nmodel.smollm.aliases = ['b']\n").unwrap();
        let config = Config::load(Some(file.path()), [], crate::config::Flags::default()).unwrap();
        let told = |config: &Config| oversights(config, &catalog, &Gate::open(folder.path()).unwrap());
        let of_model = told(&config);
        assert!(
            matches!(&of_model[..], [one] if one.contains("\"smollm\"") && one.contains("scripted")),
            "{of_model:?}"
        );
        assert_eq!(told(&Config::default()), [""; 0], "a server without keys asks for none");
        crate::access::KeyFile::of(folder.path()).change(|_| Ok(())).unwrap();
        assert!(matches!(&told(&Config::default())[..], [one] if one.contains("midstream keys create")));
    }
}
