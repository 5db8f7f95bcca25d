//! What an operator can set: one value per name, from defaults, a file, the environment and flags.
//!
//! Every limit and every queue's bound in the project has its name and its default here; other modules take the
//! number, never invent one. This module reads files and variables only when it is asked to, and starts nothing.

#[cfg(test)]
mod effort_tests;
mod fault;
mod listen;
mod model;
mod nearest;
mod origins;
mod surface;
#[cfg(test)]
mod tests;
mod upstream;
mod variables;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::{Format, Serialized, Toml};
use serde::{Deserialize, Deserializer, Serialize};

use crate::parse::UnknownFormat;
use fault::what_is_wrong;
use listen::listen_address;
pub(crate) use listen::parse_listen;
pub use model::{Capabilities, ModelConfig};
pub use origins::{Origin, Origins};
pub use surface::ReasoningField;
pub use upstream::{UpstreamConfig, UpstreamKind};
use variables::Variables;

/// The name of the choice that goes by a model's template.
const AUTO: &str = "auto";

/// The file that is read when it is there and no other is named.
pub const DEFAULT_FILE: &str = "midstream.toml";

/// See [`Config::journal_kept_bytes_max`].
pub const JOURNAL_KEPT_BYTES_MAX: u64 = 1 << 30;

/// Everything an operator can set. Names carry their unit; `midstream.example.toml` shows them all.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Config {
    /// Where to listen.
    #[serde(deserialize_with = "listen_address")]
    pub listen: SocketAddr,
    /// The server's certificate, with those that vouch for it behind it, in PEM. With it the server speaks TLS only.
    pub tls_cert_file: Option<PathBuf>,
    /// The certificate's key, in PEM.
    pub tls_key_file: Option<PathBuf>,
    /// Origins whose pages in browsers may use the server; `*` is every one.
    #[serde(deserialize_with = "one_or_many")]
    pub allowed_origins: Vec<String>,
    /// Where the journal lives.
    pub data_dir: PathBuf,
    /// Models to serve: known names or GGUF files.
    #[serde(deserialize_with = "one_or_many")]
    pub models: Vec<String>,
    /// A file of scripted replies to serve as the model `scripted`.
    pub scripted: Option<PathBuf>,
    /// Engines and providers behind HTTP, by names that the log and errors show.
    pub upstream: BTreeMap<String, UpstreamConfig>,
    /// Threads of the CPU engine; 0 takes what the process may use.
    pub threads: usize,

    /// The chat template of all models: the name of a built-in one, or a file; without it each model's own.
    pub chat_template: Option<String>,
    /// How models write tool calls, by the format's name; `auto` goes by the template.
    pub tool_format: String,
    /// How models mark reasoning, by the format's name; `auto` goes by the template.
    pub reasoning: String,
    /// Whether an answer that is nothing but a call of a declared tool, without the format's markers, is a call.
    pub bare_calls: bool,
    /// Settings of single models, by the id that clients ask for.
    pub model: BTreeMap<String, ModelConfig>,
    /// Whether a client's billing line at the head of the system text is left out where a request says so.
    pub strip_preamble: bool,
    /// Whether what is certain of a turn's next prompt is computed while its calls are made.
    pub speculative_prefill: bool,
    /// Milliseconds of rest after which a conversation goes on without its earlier reasoning; 0 keeps it always.
    pub reasoning_cleared_after_ms: u64,

    /// Most connections that are open at once; one more is closed.
    pub connections_max: usize,
    /// Most bytes of the head of a request, its address and headers together; more get 431.
    pub header_bytes_max: usize,
    /// Milliseconds that the head of a connection's next request may take to come, and a TLS handshake.
    pub header_timeout_ms: u64,
    /// Milliseconds that each 64 KiB of a body, or its end, may take to come; who is slower gets 408.
    pub body_timeout_ms: u64,
    /// Milliseconds for which a client may take nothing of its answer before its connection is closed.
    pub write_timeout_ms: u64,
    /// Most bytes of one request's body, as it is sent and, where it is compressed, expanded.
    pub body_bytes_max: usize,
    /// Most bytes of one WebSocket frame.
    pub ws_frame_bytes_max: usize,
    /// Whether `GET /v1/responses` is a WebSocket; if not, it answers 426, and clients use POST.
    pub responses_ws: bool,
    /// Milliseconds after which such a socket is closed, once nothing runs on it; 0 never closes it.
    pub responses_ws_life_ms: u64,
    /// Most bytes of a body that steers, cancels or answers what runs: such a request is never turned away for load.
    pub control_body_bytes_max: usize,
    /// Most requests that generate at once, and besides them as many that ask what a prompt would be; more get 503
    /// `overloaded` before their body is read.
    pub requests_in_flight_max: usize,
    /// Most streams and sockets that only read; more get 503 `overloaded`.
    pub readers_max: usize,
    /// Events that wait for one reader before it is dropped with a cursor to resume from.
    pub reader_queue_events: usize,
    /// Milliseconds without an event after which a reader gets a sign of life.
    pub silence_ms: u64,
    /// The field of a chat's answer that has the reasoning.
    pub reasoning_field: ReasoningField,
    /// Whether streams have whole calls and whole reasoning as events of their own, unless a request says.
    pub streaming_dispatch: bool,

    /// Most conversations that are in memory at once; the others sleep in the journal.
    pub conversations_live_max: usize,
    /// Milliseconds after which an idle conversation goes to sleep.
    pub idle_sleep_ms: u64,
    /// Hours for which the answer to an idempotency key is kept.
    pub idempotency_kept_hours: u64,
    /// Most idempotency keys; the oldest that are settled are forgotten first. 0 is no bound.
    pub idempotency_records_max: usize,
    /// Days after its last event for which an idle conversation is kept; 0 keeps all for ever.
    pub retention_days: u64,
    /// Most bytes of all conversations' events; the oldest idle ones are let go first. 0 is no bound.
    pub retention_bytes: u64,
    /// Days for which the events of a conversation's finished turns can be read; 0 keeps all for ever.
    pub event_retention_days: u64,
    /// Most bytes of one conversation's events; those of its oldest finished turns are let go first. 0 is no bound.
    pub conversation_events_bytes_max: u64,

    /// Milliseconds for which a claimed tool call is its worker's, unless the worker says.
    pub tool_lease_ms: u64,
    /// Most milliseconds that a worker may say.
    pub tool_lease_ms_max: u64,

    /// Most bytes of a journal that is copied at the start, to be kept as it was found if it is damaged; 0 copies none.
    pub journal_kept_bytes_max: u64,
    /// Batches that wait for the journal's writer.
    pub journal_queue_batches: usize,

    /// Requests that wait for the engine; more get 503 `overloaded`.
    pub engine_inbox_requests: usize,
    /// Tokens that wait between the engine and a conversation; a full channel skips that sequence's steps.
    pub token_channel_capacity: usize,
    /// Bytes for keys and values of attention, all sequences together.
    pub kv_bytes: usize,
    /// Most bytes of them for prefixes that `cache_control` keeps for its time; the oldest make way. 0 keeps none.
    pub kv_pinned_bytes_max: usize,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Milliseconds that should lie at most between two tokens of an answer while the engine runs somebody's prompt.
    pub token_gap_ms: u64,
    /// Most tokens that a step of the engine guesses from a sequence's own text; 0 turns that off. It changes no token.
    pub guessed_tokens: usize,

    /// Most bytes of all KV files together; 0 keeps none.
    pub kv_files_bytes_max: u64,
    /// Milliseconds after the end of a response at which its conversation's KV file is written, if nothing follows.
    pub kv_file_idle_ms: u64,

    /// How the log is written.
    pub log_format: LogFormat,

    /// Milliseconds that a stopping server waits for running requests.
    pub shutdown_drain_ms: u64,
    /// Milliseconds that it then takes at most to write KV files.
    pub shutdown_kv_ms: u64,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// Two bytes a value.
    #[default]
    F16,
    /// One byte a value, and a scale for 32 of them.
    Q8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            tls_cert_file: None,
            tls_key_file: None,
            allowed_origins: Vec::new(),
            data_dir: PathBuf::from("midstream-data"),
            models: Vec::new(),
            scripted: None,
            upstream: BTreeMap::new(),
            threads: 0,
            chat_template: None,
            tool_format: AUTO.to_owned(),
            reasoning: AUTO.to_owned(),
            bare_calls: true,
            model: BTreeMap::new(),
            strip_preamble: true,
            speculative_prefill: true,
            reasoning_cleared_after_ms: 0,
            connections_max: 16_384,
            header_bytes_max: 32 << 10,
            header_timeout_ms: 100_000,
            body_timeout_ms: 30_000,
            write_timeout_ms: 120_000,
            body_bytes_max: 32 << 20,
            ws_frame_bytes_max: 32 << 20,
            responses_ws: true,
            responses_ws_life_ms: 3_600_000,
            control_body_bytes_max: 4 << 20,
            requests_in_flight_max: 256,
            readers_max: 1024,
            reader_queue_events: 1024,
            silence_ms: 15_000,
            reasoning_field: ReasoningField::ReasoningContent,
            streaming_dispatch: false,
            conversations_live_max: 4096,
            idle_sleep_ms: 60_000,
            idempotency_kept_hours: 24,
            idempotency_records_max: 0,
            tool_lease_ms: 60_000,
            tool_lease_ms_max: 3_600_000,
            retention_days: 0,
            retention_bytes: 0,
            event_retention_days: 0,
            conversation_events_bytes_max: 0,
            journal_kept_bytes_max: JOURNAL_KEPT_BYTES_MAX,
            journal_queue_batches: 1024,
            engine_inbox_requests: 256,
            token_channel_capacity: 64,
            kv_bytes: 1 << 30,
            kv_pinned_bytes_max: 1 << 29,
            kv_type: KvType::F16,
            token_gap_ms: 100,
            guessed_tokens: 7,
            kv_files_bytes_max: 4 << 30,
            kv_file_idle_ms: 5_000,
            log_format: LogFormat::Text,
            shutdown_drain_ms: 10_000,
            shutdown_kv_ms: 10_000,
        }
    }
}

/// What the command line sets; what is absent leaves the other sources in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Flags {
    /// See [`Config::listen`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// See [`Config::tls_cert_file`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert_file: Option<PathBuf>,
    /// See [`Config::tls_key_file`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key_file: Option<PathBuf>,
    /// See [`Config::data_dir`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// See [`Config::models`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// See [`Config::scripted`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scripted: Option<PathBuf>,
    /// See [`Config::threads`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// See [`Config::chat_template`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// See [`Config::tool_format`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_format: Option<String>,
    /// See [`Config::reasoning`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
}

/// The settings cannot be used; the text says which and why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The named file is not there.
    #[error("the configuration file {0} does not exist")]
    NoFile(String),
    /// A source holds something that is no setting, or a value of the wrong type.
    #[error("{0}")]
    Read(String),
    /// A format that does not exist.
    #[error("{setting}: {source}, auto")]
    Format {
        /// The setting.
        setting: &'static str,
        /// What there is.
        source: UnknownFormat,
    },
    /// A price that nothing can have.
    #[error("[model.{0:?}]: price must have numbers from 0 to a million")]
    Price(String),
    /// An upstream that cannot be asked.
    #[error("[upstream.{0}]: {1}")]
    Upstream(String, String),
    /// A certificate without its key, or a key without its certificate.
    #[error("tls_cert_file and tls_key_file belong together; give both, or neither")]
    HalfTls,
    /// A bound of nothing.
    #[error("the setting {0} must be at least 1")]
    Zero(&'static str),
    /// Anybody on the network could use the server.
    #[error(
        "without API keys midstream listens on loopback only, and {0} is refused; \
         create a key first: midstream keys create NAME"
    )]
    OpenToTheNetwork(SocketAddr),
}

impl Config {
    /// Reads all sources: defaults, then the file, then `MIDSTREAM_…` of `variables`, then flags.
    ///
    /// Without a named file `midstream.toml` of the working directory is read where it exists.
    pub fn load(
        file: Option<&Path>,
        variables: impl IntoIterator<Item = (String, String)>,
        flags: Flags,
    ) -> Result<Self, Error> {
        Self::load_with_origins(file, variables, flags).map(|(config, _)| config)
    }

    /// The same, and where each setting comes from.
    pub fn load_with_origins(
        file: Option<&Path>,
        variables: impl IntoIterator<Item = (String, String)>,
        flags: Flags,
    ) -> Result<(Self, Origins), Error> {
        let file = match file {
            Some(path) if !path.is_file() => return Err(Error::NoFile(path.display().to_string())),
            None => Some(Path::new(DEFAULT_FILE)).filter(|path| path.is_file()),
            named => named,
        };
        let of_file = file.map_or_else(Figment::new, |path| Figment::from(Toml::file_exact(path)));
        let (variables, flags) = (Variables::new(variables), Figment::from(Serialized::defaults(flags)));
        let sources = of_file.clone().merge(variables.clone()).merge(flags.clone());
        let config: Self = sources.extract().map_err(|error: figment::Error| {
            let each: Vec<_> = error.into_iter().map(|error| what_is_wrong(&error, &variables)).collect();
            Error::Read(each.join("; "))
        })?;
        config.check()?;
        Ok((config, Origins { file: file.map(Path::to_owned), of_file, variables, flags }))
    }

    /// Refuses values that cannot work.
    pub fn check(&self) -> Result<(), Error> {
        for model in self.model.keys().map(String::as_str).chain([""]) {
            self.tool_format_of(model)?;
            self.reasoning_of(model)?;
        }
        let has_unsound = |own: &ModelConfig| own.price.is_some_and(|price| !price.is_sound());
        if let Some((name, _)) = self.model.iter().find(|(_, own)| has_unsound(own)) {
            return Err(Error::Price(name.clone()));
        }
        if let Some((name, fault)) = self.upstream.iter().find_map(|(name, it)| Some((name, it.fault()?))) {
            return Err(Error::Upstream(name.clone(), fault));
        }
        if self.tls_cert_file.is_some() != self.tls_key_file.is_some() {
            return Err(Error::HalfTls);
        }
        let bounds = [
            ("connections_max", self.connections_max),
            ("header_bytes_max", self.header_bytes_max),
            ("header_timeout_ms", self.header_timeout_ms as usize),
            ("body_timeout_ms", self.body_timeout_ms as usize),
            ("write_timeout_ms", self.write_timeout_ms as usize),
            ("body_bytes_max", self.body_bytes_max),
            ("ws_frame_bytes_max", self.ws_frame_bytes_max),
            ("control_body_bytes_max", self.control_body_bytes_max),
            ("requests_in_flight_max", self.requests_in_flight_max),
            ("readers_max", self.readers_max),
            ("reader_queue_events", self.reader_queue_events),
            ("silence_ms", self.silence_ms as usize),
            ("conversations_live_max", self.conversations_live_max),
            ("tool_lease_ms", self.tool_lease_ms as usize),
            ("tool_lease_ms_max", self.tool_lease_ms_max as usize),
            ("journal_queue_batches", self.journal_queue_batches),
            ("engine_inbox_requests", self.engine_inbox_requests),
            ("token_channel_capacity", self.token_channel_capacity),
            ("kv_bytes", self.kv_bytes),
            ("token_gap_ms", self.token_gap_ms as usize),
        ];
        if let Some((name, _)) = bounds.iter().find(|(_, value)| *value == 0) {
            return Err(Error::Zero(name));
        }
        Ok(())
    }
}

/// One text or a list of them.
fn one_or_many<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany<T> {
        One(T),
        Many(Vec<T>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}
