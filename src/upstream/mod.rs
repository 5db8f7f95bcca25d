//! Engines and providers behind HTTP, as engines: `docs/upstream.md` says what is promised of them.
//!
//! An upstream gets messages and answers with pieces; its own template and parsers do the rest. It knows nothing of
//! conversations and actors. All answers of all upstreams are read on one thread.

mod affinity;
mod capabilities;
mod chat;
mod circuit;
mod http;
mod key;
mod kind;
mod messages;
mod read;
mod refusal;
mod responses;
mod route;
mod run;
mod sse;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use hyper::Uri;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::clock::Clock;
use crate::config::{Capabilities, UpstreamConfig};
use crate::engine::settings::Price;
use crate::engine::tokenizer::Tokenizer;
use crate::engine::{
    AbortHandle, Engine, EngineError, EngineEvent, FinishReason, Generation, GenerationRequest, Medium, ModelInfo,
    SamplingDefaults, unwanted,
};
use crate::parse::{ReasoningFormat, ToolFormat};
use crate::prompt::{ChatTemplate, Effort, Efforts, TemplateError};
use circuit::Circuit;
use http::Client;
pub(crate) use http::{Dial, Io, dial};
use key::ApiKey;
use route::Route;
use run::Upstream;

/// Requests that wait for the thread.
const INBOX_CAPACITY: usize = 256;
/// Answers that are asked for and not at their end; more are refused, so that each is in the thread's hands at once.
const ANSWERS_MAX: usize = 4096;

/// Why upstreams cannot be used; none of the texts has a key in it.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// One of them cannot be.
    #[error("setting up the upstream {0}: {1}")]
    Upstream(String, Box<SetupError>),
    /// The address is none.
    #[error("{0} is no address of a server")]
    Address(String),
    /// The key that the settings name is not there.
    #[error("there is no API key: {0}")]
    NoKey(String),
    /// There can be no TLS.
    #[error("TLS cannot be used: {0}")]
    Tls(String),
    /// The built-in template does not compile.
    #[error("the built-in chat template cannot be used: {0}")]
    Template(TemplateError),
    /// The thread could not be started.
    #[error("the thread of upstreams cannot be started: {0}")]
    Start(std::io::Error),
}

/// One model, of one upstream or several.
#[derive(Debug)]
pub struct UpstreamEngine {
    model: ModelInfo,
    route: Route,
    line: Arc<Line>,
}

/// The thread that reads answers.
#[derive(Debug)]
struct Line {
    inbox: Option<mpsc::Sender<Work>>,
    places: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

/// One request on its way to the thread.
#[derive(Debug)]
struct Work {
    route: Route,
    request: GenerationRequest,
    events: mpsc::Sender<EngineEvent>,
    aborted: watch::Receiver<bool>,
    place: OwnedSemaphorePermit,
}

impl UpstreamEngine {
    /// The engines of all models of these upstreams. Nothing is sent to them; `variable` looks into the environment.
    pub fn open(
        configs: &BTreeMap<String, UpstreamConfig>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Self>, SetupError> {
        if configs.is_empty() {
            return Ok(Vec::new());
        }
        let mut routes: Vec<(Route, Vec<&UpstreamConfig>)> = Vec::new();
        for (name, config) in configs {
            let upstream = upstream(name, config, &variable);
            let upstream = Arc::new(upstream.map_err(|why| SetupError::Upstream(name.clone(), Box::new(why)))?);
            for model in &config.models {
                if let Some((route, of)) = routes.iter_mut().find(|(route, _)| route.model == *model) {
                    route.upstreams.push(upstream.clone());
                    of.push(config);
                } else {
                    let capabilities = Capabilities::default();
                    let route = Route { model: model.clone(), capabilities, upstreams: vec![upstream.clone()] };
                    routes.push((route, vec![config]));
                }
            }
        }
        let line = Arc::new(Line::start()?);
        let template = Arc::new(ChatTemplate::chatml().map_err(SetupError::Template)?);
        let tokenizer = Arc::new(Tokenizer::bytes());
        let engine = |(route, of): (Route, Vec<&UpstreamConfig>)| {
            let model = model(&route, &of, &template, &tokenizer);
            Self { model, route, line: line.clone() }
        };
        Ok(routes.into_iter().map(engine).collect())
    }

    /// The same with words of its own for how hard it is to think.
    #[must_use]
    pub fn with_efforts(mut self, efforts: &BTreeMap<String, Effort>) -> Self {
        self.model.efforts = Arc::new(Efforts::with(efforts));
        self
    }

    /// The same with this price.
    #[must_use]
    pub fn with_price(mut self, price: Option<Price>) -> Self {
        self.model.price = price;
        self
    }

    /// The same with further names.
    #[must_use]
    pub fn with_aliases(mut self, aliases: Vec<String>) -> Self {
        self.model.aliases = aliases;
        self
    }

    /// The same where this is known of what the model can do.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.route.capabilities = capabilities;
        self
    }
}

/// What clients are told of a model that these upstreams have.
fn model(route: &Route, of: &[&UpstreamConfig], template: &Arc<ChatTemplate>, tokenizer: &Arc<Tokenizer>) -> ModelInfo {
    let names: Vec<_> = route.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    ModelInfo {
        id: route.model.clone(),
        aliases: Vec::new(),
        owned_by: names.join("+"),
        medium: Medium::Messages,
        created: Clock::System.unix_ms() / 1000,
        context_length: of.iter().map(|config| config.context_length).min().unwrap_or_default(),
        fingerprint: format!("upstream-{}-{}", names.join("+"), route.model),
        tokenizer: tokenizer.clone(),
        // What stands here changes nothing: where clients leave it open, the upstream chooses.
        sampling: SamplingDefaults { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
        template: template.clone(),
        tool_format: ToolFormat::NONE,
        reasoning: ReasoningFormat::NONE,
        bare_calls: false,
        efforts: Arc::default(),
        price: None,
        grammars: None,
        exact_resume: false,
    }
}

fn upstream(
    name: &str,
    config: &UpstreamConfig,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Upstream, SetupError> {
    let base: Uri = config.base_url.parse().map_err(|_| SetupError::Address(config.base_url.clone()))?;
    let key = ApiKey::read(config, variable)?;
    let wire = kind::wire(config.kind.unwrap_or_else(|| kind::kind_of(&base)), config);
    let headers = http::headers(&base, wire.headers(key.as_ref()))?;
    let [connect, idle, retry_after_max, circuit_pause] =
        [config.connect_timeout_ms, config.idle_timeout_ms, config.retry_after_ms_max, config.circuit_pause_ms]
            .map(Duration::from_millis);
    Ok(Upstream {
        name: name.to_owned(),
        client: Client::new(base, headers, connect, idle)?,
        wire,
        key,
        rank: config.rank,
        circuit: Circuit::new(config.circuit_failures, circuit_pause),
        streams: AtomicBool::new(config.stream),
        retries_max: config.retries_max,
        retry_after_max,
        clock: Clock::System,
    })
}

impl Line {
    fn start() -> Result<Self, SetupError> {
        let (inbox, work) = mpsc::channel(INBOX_CAPACITY);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(SetupError::Start)?;
        let thread = std::thread::Builder::new()
            .name("upstreams".to_owned())
            .spawn(move || {
                runtime.block_on(read_all(work));
                // Whoever still looks up an address is not waited for.
                runtime.shutdown_background();
            })
            .map_err(SetupError::Start)?;
        Ok(Self { inbox: Some(inbox), places: Arc::new(Semaphore::new(ANSWERS_MAX)), thread: Some(thread) })
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // The closed inbox ends the thread; answers that are still read end without `Finished`.
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Engine for UpstreamEngine {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn submit(&self, request: GenerationRequest) -> Result<Generation, EngineError> {
        let inbox = self.line.inbox.as_ref();
        let inbox = inbox.ok_or_else(|| EngineError::Unavailable("it was stopped".to_owned()))?;
        let (events, readable) = mpsc::channel(request.channel_capacity.max(1));
        let (abort, aborted) = watch::channel(false);
        let place = self.line.places.clone().try_acquire_owned().map_err(|_| EngineError::Overloaded)?;
        let work = Work { route: self.route.clone(), request, events, aborted, place };
        inbox.try_send(work).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => EngineError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => EngineError::Unavailable("its thread has ended".to_owned()),
        })?;
        let abort = AbortHandle::new(move || {
            abort.send_replace(true);
        });
        Ok(Generation { events: readable, abort })
    }

    fn health(&self) -> Result<(), String> {
        match &self.line.thread {
            Some(thread) if !thread.is_finished() => Ok(()),
            _ => Err("the thread of upstreams has ended".to_owned()),
        }
    }
}

/// Reads whatever is asked for until the engines are dropped.
async fn read_all(mut inbox: mpsc::Receiver<Work>) {
    let mut answers = FuturesUnordered::new();
    loop {
        tokio::select! {
            work = inbox.recv() => match work {
                Some(work) => answers.push(read(work)),
                None => return,
            },
            Some(()) = answers.next() => {}
        }
    }
}

/// Reads one answer to its end, or until nobody wants it any more: then its connection is closed at once.
async fn read(work: Work) {
    let Work { route, request, events, aborted, place: _place } = work;
    let (finish, rest) = tokio::select! {
        biased;
        () = unwanted(aborted, &events) => (FinishReason::Aborted, None),
        answered = run::answer(&route, &request, &events) => answered,
    };
    // Nobody to tell when the reader is gone.
    let _ = events.send(EngineEvent::Finished(finish)).await;
    if let Some(rest) = rest {
        rest.settle().await;
    }
}

#[cfg(test)]
mod tests;
