//! Engines and providers behind HTTP, as engines: `docs/upstream.md` says what is promised of them.
//!
//! An upstream gets messages and answers with pieces; its own template and parsers do the rest. It knows nothing of
//! conversations and actors. Each upstream has one thread, on which all its answers are read.

mod chat;
mod http;
mod key;
mod kind;
mod refusal;
mod run;
mod sse;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use hyper::Uri;
use tokio::sync::{mpsc, watch};

use crate::clock::Clock;
use crate::config::UpstreamConfig;
use crate::engine::tokenizer::Tokenizer;
use crate::engine::{
    AbortHandle, Engine, EngineError, EngineEvent, FinishReason, Generation, GenerationRequest, Medium, ModelInfo,
    SamplingDefaults,
};
use crate::parse::{ReasoningFormat, ToolFormat};
use crate::prompt::{ChatTemplate, Effort, Efforts, TemplateError};
use http::Client;
pub(crate) use http::{Dial, Io, dial};
use key::ApiKey;
use run::Upstream;

/// Requests that wait for an upstream's thread.
const INBOX_CAPACITY: usize = 256;
/// Answers of one upstream that are read at the same time.
const ANSWERS_MAX: usize = 4096;

/// Why an upstream cannot be used; none of the texts has a key in it.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
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
    #[error("its thread cannot be started: {0}")]
    Start(std::io::Error),
}

/// One model of an upstream.
#[derive(Debug)]
pub struct UpstreamEngine {
    model: ModelInfo,
    line: Arc<Line>,
}

/// The thread that reads an upstream's answers; the models of one upstream share it.
#[derive(Debug)]
struct Line {
    inbox: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

/// One request on its way to the thread.
#[derive(Debug)]
struct Work {
    model: String,
    request: GenerationRequest,
    events: mpsc::Sender<EngineEvent>,
    aborted: watch::Receiver<bool>,
}

impl UpstreamEngine {
    /// The engines of all models of an upstream. Nothing is sent to it; `variable` looks into the environment.
    pub fn open(
        name: &str,
        config: &UpstreamConfig,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Self>, SetupError> {
        let line = Arc::new(Line::start(upstream(name, config, variable)?)?);
        let template = Arc::new(ChatTemplate::chatml().map_err(SetupError::Template)?);
        let tokenizer = Arc::new(Tokenizer::bytes());
        let model = |id: &String| ModelInfo {
            id: id.clone(),
            aliases: Vec::new(),
            owned_by: name.to_owned(),
            medium: Medium::Messages,
            created: Clock::System.unix_ms() / 1000,
            context_length: config.context_length,
            fingerprint: format!("upstream-{name}-{id}"),
            tokenizer: Arc::clone(&tokenizer),
            // What stands here changes nothing: where clients leave it open, the upstream chooses.
            sampling: SamplingDefaults { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
            template: Arc::clone(&template),
            tool_format: ToolFormat::NONE,
            reasoning: ReasoningFormat::NONE,
            bare_calls: false,
            efforts: Arc::default(),
            grammars: None,
            exact_resume: false,
        };
        Ok(config.models.iter().map(|id| Self { model: model(id), line: Arc::clone(&line) }).collect())
    }

    /// The same with words of its own for how hard it is to think.
    #[must_use]
    pub fn with_efforts(mut self, efforts: &BTreeMap<String, Effort>) -> Self {
        self.model.efforts = Arc::new(Efforts::with(efforts));
        self
    }

    /// The same with further names.
    #[must_use]
    pub fn with_aliases(mut self, aliases: Vec<String>) -> Self {
        self.model.aliases = aliases;
        self
    }
}

fn upstream(
    name: &str,
    config: &UpstreamConfig,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Upstream, SetupError> {
    let base: Uri = config.base_url.parse().map_err(|_| SetupError::Address(config.base_url.clone()))?;
    let key = ApiKey::read(config, variable)?;
    let headers = http::headers(&base, key.as_ref().and_then(ApiKey::bearer))?;
    let [connect, idle, retry_after_max] =
        [config.connect_timeout_ms, config.idle_timeout_ms, config.retry_after_ms_max].map(Duration::from_millis);
    Ok(Upstream {
        name: name.to_owned(),
        manners: kind::manners(config.kind.unwrap_or_else(|| kind::kind_of(&base))),
        client: Client::new(base, headers, connect, idle)?,
        key,
        streams: AtomicBool::new(config.stream),
        retries_max: config.retries_max,
        retry_after_max,
        clock: Clock::System,
    })
}

impl Line {
    fn start(upstream: Upstream) -> Result<Self, SetupError> {
        let (inbox, work) = mpsc::channel(INBOX_CAPACITY);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(SetupError::Start)?;
        let thread = std::thread::Builder::new()
            .name(format!("upstream-{}", upstream.name))
            .spawn(move || {
                runtime.block_on(read_all(&upstream, work));
                // Whoever still looks up an address is not waited for.
                runtime.shutdown_background();
            })
            .map_err(SetupError::Start)?;
        Ok(Self { inbox: Some(inbox), thread: Some(thread) })
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
        let work = Work { model: self.model.id.clone(), request, events, aborted };
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
            _ => Err("the thread of its upstream has ended".to_owned()),
        }
    }
}

/// Reads whatever is asked for until the engines are dropped.
async fn read_all(upstream: &Upstream, mut inbox: mpsc::Receiver<Work>) {
    let mut answers = FuturesUnordered::new();
    loop {
        tokio::select! {
            work = inbox.recv(), if answers.len() < ANSWERS_MAX => match work {
                Some(work) => answers.push(read(upstream, work)),
                None => return,
            },
            Some(()) = answers.next() => {}
        }
    }
}

/// Reads one answer to its end, or until nobody wants it any more: then its connection is closed at once.
async fn read(upstream: &Upstream, work: Work) {
    let Work { model, request, events, aborted } = work;
    let finish = tokio::select! {
        biased;
        () = unwanted(aborted, &events) => FinishReason::Aborted,
        finish = run::answer(upstream, &model, &request, &events) => finish,
    };
    // Nobody to tell when the reader is gone.
    let _ = events.send(EngineEvent::Finished(finish)).await;
}

/// Resolves when the answer is aborted or its reader is gone.
async fn unwanted(mut aborted: watch::Receiver<bool>, events: &mpsc::Sender<EngineEvent>) {
    let asked = async {
        if aborted.wait_for(|aborted| *aborted).await.is_err() {
            // The handle is gone, so nobody can ask any more.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = asked => {}
        () = events.closed() => {}
    }
}

#[cfg(test)]
mod tests;
