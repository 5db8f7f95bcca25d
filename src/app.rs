//! Wiring and the order of shutting down: which parts exist, who is handed which, and who stops first.
//!
//! Start: listener, engines and beside them the journal, actors, recovery, then ready. Stop: no new requests, running
//! responses get their time, then the conversations (what still runs stays in the journal), the sockets, and last the
//! journal.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::access::Gate;
use crate::actors::{self, Foresight, Keys, KvKeeper, Parts, RootHandle, Running, Unstored};
use crate::api::{self, App, Doors, Limits, Phase, Seal, Tls};
use crate::cli::Prepared;
use crate::clock::{Clock, monotonic};
use crate::config::{Config, KvType};
use crate::crash;
use crate::engine::{Catalog, Engine, KvFormat, LoadOptions, LocalEngine, ModelInfo, ScriptedEngine};
use crate::prompt::{ChatTemplate, builtin_template, builtin_template_names, missing_marks};
use crate::store::{Journal, KvFiles, SledJournal, Writer, WriterHandle, WriterStatus};
use crate::telemetry;
use crate::upstream::UpstreamEngine;

/// The file of the key that seals what clients keep, in the data folder.
const SEAL_FILE: &str = "seal.key";

/// Milliseconds that open sockets get to take their last bytes once everything else has stopped.
const SOCKETS_CLOSE_MS: u64 = 2_000;

/// Files that the process may have open beside connections: the journal's, KV files, models.
const FILES_RESERVED: u64 = 256;

/// Milliseconds for which an address that is in use is tried again, and between two tries.
const LISTEN_PATIENCE_MS: u64 = 2_000;
const LISTEN_PAUSE_MS: u64 = 50;

/// Serves until the process is told to stop.
pub fn run(prepared: Prepared) -> anyhow::Result<()> {
    start_log();
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

/// Logs to standard error, as `MIDSTREAM_LOG` says.
pub(crate) fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("MIDSTREAM_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("midstream=info,warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start in one process keeps the first log.
    let _ = log.with_ansi(false).try_init();
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

async fn serve(Prepared { config, models, tls }: Prepared, files_max: u64) -> anyhow::Result<()> {
    let (mut stops, mut hangups) = (Stops::new()?, signal(SignalKind::hangup())?);
    let doors = doors(&config, tls.clone(), files_max);
    let listener = listen(config.listen)
        .await
        .with_context(|| format!("listening on {}; is another server running there?", config.listen))?;
    // Beside the journal: each of both may take a while.
    let engines = tokio::task::spawn_blocking({
        let config = config.clone();
        move || load_engines(&config, &models)
    });
    let (journal, writer) = open_journal(&config)?;
    crash::point("journal_opened");
    let catalog = tokio::select! {
        engines = engines => Arc::new(Catalog::new(engines.context("loading the models")??)),
        signal = stops.told() => {
            tracing::info!(signal, "stopped while loading");
            return Ok(());
        }
    };
    let server = Server::start(config, (listener, doors), (journal, writer), catalog).await?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", server.address);
    greet(&url, &server.parts.catalog, server.recovered, server.gate.is_locked());

    let failure = tokio::select! {
        failure = stops.stop_or_failure(&server.root, &server.parts.writer) => failure,
        () = reread(&mut hangups, &server.gate, tls.as_ref()) => None,
    };
    // Everything acknowledged is on disk: nothing is lost by not waiting.
    let hurry = async {
        let signal = stops.told().await;
        tracing::info!(signal, "told again: stopping at once");
    };
    server.stop(hurry).await;
    failure.map_or(Ok(()), |why| Err(anyhow::anyhow!(why)))
}

/// Everything between an open port and an open journal, running.
pub(crate) struct Server {
    address: SocketAddr,
    parts: Parts,
    root: RootHandle,
    api: App,
    gate: Gate,
    phase: watch::Sender<Phase>,
    close: watch::Sender<bool>,
    sockets: JoinHandle<io::Result<()>>,
    /// Conversations that were running when the last process ended.
    recovered: usize,
}

impl Server {
    /// Serves one engine on a free port of this machine, for a client in this process.
    pub(crate) async fn start_here(config: Config, engine: Arc<dyn Engine>) -> anyhow::Result<Self> {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.context("opening a port")?;
        let (journal, doors) = (open_journal(&config)?, Doors::new(&config));
        Self::start(config, (listener, doors), journal, Arc::new(Catalog::new(vec![engine]))).await
    }

    async fn start(
        config: Config,
        (listener, doors): (TcpListener, Doors),
        (journal, writer): (Arc<dyn Journal>, WriterHandle),
        catalog: Arc<Catalog>,
    ) -> anyhow::Result<Self> {
        let address = listener.local_addr()?;
        let kv = keep_kv(&config, &*journal)?;
        let gate = Gate::open(&config.data_dir)?;
        config.check_reach(gate.is_locked())?;
        let seal = keep_seal(&config.data_dir).context("the key that seals what clients keep")?;
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
        let (close, closed) = watch::channel(false);
        tokio::spawn(telemetry::keep_up());
        let sockets = tokio::spawn(api::serve(listener, api::router(app.clone()), doors, wait_for(closed)));
        let recovered = root.recover().await.map_err(|reject| anyhow::anyhow!(reject.message))?;
        phase.send_replace(Phase::Ready);
        Ok(Self { address, parts, root, api: app, gate, phase, close, sockets, recovered })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops in good order; what runs is not waited for once `hurry` is over.
    pub(crate) async fn stop(self, hurry: impl Future<Output = ()>) {
        self.phase.send_replace(Phase::Draining);
        tokio::select! {
            () = drain(&self.parts, &self.root) => {}
            () = hurry => {}
        }
        self.close.send_replace(true);
        // Sockets that never read would hold the process for ever.
        let closed = async { tokio::join!(self.sockets, self.api.deserted()) };
        let _ = tokio::time::timeout(Duration::from_millis(SOCKETS_CLOSE_MS), closed).await;
        self.parts.writer.stop().await;
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

/// The key in the data folder; a new one where there is none. The journal has locked the folder.
fn keep_seal(data_dir: &Path) -> io::Result<Seal> {
    let path = data_dir.join(SEAL_FILE);
    match std::fs::read(&path) {
        Ok(bytes) => {
            let key = bytes.try_into();
            let damaged =
                format!("{} is no key of 32 bytes; restore it, or remove it to get a new one", path.display());
            return key.map(Seal::new).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, damaged));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut key = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    // Whole under its name, or not there.
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&key)?;
    file.sync_all()?;
    crash::point("seal_written");
    std::fs::rename(&fresh, &path)?;
    File::open(data_dir)?.sync_all()?;
    Ok(Seal::new(key))
}

/// Opens the KV files; the journal has locked their folder.
fn keep_kv(config: &Config, journal: &dyn Journal) -> anyhow::Result<KvKeeper> {
    let files = KvFiles::open(&config.data_dir, config.kv_files_bytes_max)?;
    if config.kv_files_bytes_max == 0 {
        return Ok(KvKeeper::default());
    }
    let kv = KvKeeper::new(files, Duration::from_millis(config.kv_file_idle_ms), Clock::System);
    kv.sweep(journal);
    Ok(kv)
}

fn open_journal(config: &Config) -> anyhow::Result<(Arc<dyn Journal>, WriterHandle)> {
    let journal: Arc<dyn Journal> =
        Arc::new(SledJournal::open_keeping(&config.data_dir, config.journal_kept_bytes_max)?);
    let writer = Writer::start(journal.clone(), config.journal_queue_batches)?;
    Ok((journal, writer))
}

fn load_engines(config: &Config, models: &[crate::models::ModelFile]) -> anyhow::Result<Vec<Arc<dyn Engine>>> {
    let mut engines: Vec<Arc<dyn Engine>> = Vec::new();
    let mut promised_bytes = 0;
    for model in models {
        let engine = load_model(config, &model.id, &model.path, promised_bytes)?;
        promised_bytes += engine.promised_bytes();
        engines.push(Arc::new(engine));
    }
    if let Some(path) = &config.scripted {
        let engine = ScriptedEngine::from_file(path)?.with_bare_calls(config.bare_calls);
        let efforts = config.efforts_of(&engine.model().id);
        let aliases = config.aliases_of(&engine.model().id);
        let price = config.price_of(&engine.model().id);
        engines.push(Arc::new(engine.with_efforts(&efforts).with_aliases(aliases).with_price(price)));
    }
    engines.extend(upstream_engines(config)?);
    Ok(engines)
}

/// The engines of all models of all upstreams.
pub(crate) fn upstream_engines(config: &Config) -> anyhow::Result<Vec<Arc<dyn Engine>>> {
    let engines = UpstreamEngine::open(&config.upstream, |variable| std::env::var(variable).ok())?;
    let named = |engine: UpstreamEngine| -> Arc<dyn Engine> {
        let id = engine.model().id.clone();
        let engine = engine.with_efforts(&config.efforts_of(&id)).with_aliases(config.aliases_of(&id));
        Arc::new(engine.with_price(config.price_of(&id)).with_capabilities(config.capabilities_of(&id)))
    };
    Ok(engines.into_iter().map(named).collect())
}

fn load_model(config: &Config, id: &str, path: &Path, promised_bytes: u64) -> anyhow::Result<LocalEngine> {
    let options = LoadOptions { promised_bytes, ..load_options(config, id)? };
    tracing::info!(model = id, "loading");
    let engine = LocalEngine::load(path, &options).map_err(|error| {
        let doing = format!("loading {} ({})", path.display(), error.code());
        anyhow::Error::new(error).context(doing)
    })?;
    for doubt in doubts(engine.model(), config) {
        tracing::warn!(model = id, "{doubt}");
    }
    Ok(engine)
}

/// What an operator should know about a model and its settings.
pub(crate) fn doubts(model: &ModelInfo, config: &Config) -> Vec<String> {
    let mut doubts = model.tokenizer.warnings().to_vec();
    // A model's own template is what it was trained with, whatever it looks like.
    if let Some(name) = config.chat_template_of(&model.id) {
        let missing = missing_marks(&model.template, &model.tokenizer);
        if !missing.is_empty() {
            doubts.push(format!(
                "the chat template {name} marks messages with {}, which are no tokens of this model: it was trained \
                 with others; choose the template of its family, or leave chat_template out",
                missing.join(", ")
            ));
        }
    }
    doubts
}

/// How a model is loaded.
pub(crate) fn load_options(config: &Config, id: &str) -> anyhow::Result<LoadOptions> {
    let threads = (config.threads > 0).then_some(config.threads);
    Ok(LoadOptions {
        id: Some(id.to_owned()),
        threads,
        kv_bytes: config.kv_bytes,
        kv_pinned_bytes_max: config.kv_pinned_bytes_max,
        kv_format: match config.kv_type {
            KvType::F16 => KvFormat::F16,
            KvType::Q8 => KvFormat::Q8,
        },
        token_gap_ms: config.token_gap_ms,
        guessed_tokens: config.guessed_tokens,
        sequences_max: config.engine_inbox_requests,
        tool_format: config.tool_format_of(id)?,
        reasoning: config.reasoning_of(id)?,
        bare_calls: config.bare_calls,
        efforts: config.efforts_of(id),
        price: config.price_of(id),
        aliases: config.aliases_of(id),
        template: config.chat_template_of(id).map(template_text).transpose()?,
        ..LoadOptions::default()
    })
}

/// The text of a chat template: a built-in one by its name, or a file's.
pub(crate) fn template_text(name: &str) -> anyhow::Result<String> {
    if let Some(source) = builtin_template(name) {
        return Ok(source.to_owned());
    }
    let source = std::fs::read_to_string(name).with_context(|| {
        let known: Vec<_> = builtin_template_names().collect();
        format!("reading the chat template {name}, which is a file or one of {}", known.join(", "))
    })?;
    // Else loading would blame the model's file.
    ChatTemplate::new(&source, "", "").with_context(|| format!("the chat template {name} cannot be used"))?;
    Ok(source)
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
}
