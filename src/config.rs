//! What an operator can set: one value per name, from defaults, a file, the environment and flags.
//!
//! Every limit and every queue's bound in the project has its name and its default here; other modules take the
//! number, never invent one. This module reads files and variables only when it is asked to, and starts nothing.

#[cfg(test)]
mod effort_tests;
mod listen;
mod nearest;
mod surface;
mod upstream;
mod variables;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use figment::Figment;
use figment::providers::{Format, Serialized, Toml};
use serde::{Deserialize, Deserializer, Serialize};

use crate::parse::{ReasoningFormat, ToolFormat, UnknownFormat};
use crate::prompt::Effort;
use listen::listen_address;
pub(crate) use listen::parse_listen;
use nearest::nearest;
pub use surface::ReasoningField;
pub use upstream::{UpstreamConfig, UpstreamKind};
use variables::{LIST_SETTINGS, Variables};

/// The name of the choice that goes by a model's template.
const AUTO: &str = "auto";

/// The file that is read when it is there and no other is named.
pub const DEFAULT_FILE: &str = "midstream.toml";

/// See [`Config::journal_kept_bytes_max`].
pub const JOURNAL_KEPT_BYTES_MAX: u64 = 1 << 30;

/// Everything an operator can set. Names carry their unit; `midstream.example.toml` shows them all.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Config {
    /// Where to listen.
    #[serde(deserialize_with = "listen_address")]
    pub listen: SocketAddr,
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
    /// Most requests that generate at once; more get 503 `overloaded` before their body is read.
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

    /// Milliseconds that a stopping server waits for running requests.
    pub shutdown_drain_ms: u64,
    /// Milliseconds that it then takes at most to write KV files.
    pub shutdown_kv_ms: u64,
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

/// What can be set for one model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// See [`Config::chat_template`].
    pub chat_template: Option<String>,
    /// See [`Config::tool_format`].
    pub tool_format: Option<String>,
    /// See [`Config::reasoning`].
    pub reasoning: Option<String>,
    /// Other names that clients may ask for it by.
    pub aliases: Vec<String>,
    /// Words for how hard it is to think, and what each stands for: the model's own, or others for the usual ones.
    pub efforts: BTreeMap<String, Effort>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
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
    /// An upstream that cannot be asked.
    #[error("[upstream.{0}]: {1}")]
    Upstream(String, String),
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

/// A format by its name; none where the template decides.
fn format_named<T: FromStr<Err = UnknownFormat>>(setting: &'static str, name: &str) -> Result<Option<T>, Error> {
    if name == AUTO {
        return Ok(None);
    }
    name.parse().map(Some).map_err(|source| Error::Format { setting, source })
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
        let mut sources = Figment::new();
        match file {
            Some(path) if !path.is_file() => return Err(Error::NoFile(path.display().to_string())),
            Some(path) => sources = sources.merge(Toml::file_exact(path)),
            None if Path::new(DEFAULT_FILE).is_file() => sources = sources.merge(Toml::file_exact(DEFAULT_FILE)),
            None => {}
        }
        let variables = Variables::new(variables);
        let sources = sources.merge(variables.clone()).merge(Serialized::defaults(flags));
        let config: Self = sources.extract().map_err(|error: figment::Error| {
            let each: Vec<_> = error.into_iter().map(|error| what_is_wrong(&error, &variables)).collect();
            Error::Read(each.join("; "))
        })?;
        config.check()?;
        Ok(config)
    }

    /// The chat template that is set for a model.
    pub fn chat_template_of(&self, model: &str) -> Option<&str> {
        let own = self.model.get(model).and_then(|model| model.chat_template.as_deref());
        own.or(self.chat_template.as_deref())
    }

    /// The tool format that is set for a model, unless its template decides.
    pub fn tool_format_of(&self, model: &str) -> Result<Option<ToolFormat>, Error> {
        let own = self.model.get(model).and_then(|model| model.tool_format.as_ref());
        format_named("tool_format", own.unwrap_or(&self.tool_format))
    }

    /// The reasoning format that is set for a model, unless its template decides.
    pub fn reasoning_of(&self, model: &str) -> Result<Option<ReasoningFormat>, Error> {
        let own = self.model.get(model).and_then(|model| model.reasoning.as_ref());
        format_named("reasoning", own.unwrap_or(&self.reasoning))
    }

    /// The words for how hard a model is to think that are set for it.
    pub fn efforts_of(&self, model: &str) -> BTreeMap<String, Effort> {
        self.model.get(model).map(|model| model.efforts.clone()).unwrap_or_default()
    }

    /// The other names that are set for a model.
    pub fn aliases_of(&self, model: &str) -> Vec<String> {
        self.model.get(model).map(|model| model.aliases.clone()).unwrap_or_default()
    }

    /// Refuses values that cannot work.
    pub fn check(&self) -> Result<(), Error> {
        for model in self.model.keys().map(String::as_str).chain([""]) {
            self.tool_format_of(model)?;
            self.reasoning_of(model)?;
        }
        if let Some((name, fault)) = self.upstream.iter().find_map(|(name, it)| Some((name, it.fault()?))) {
            return Err(Error::Upstream(name.clone(), fault));
        }
        let bounds = [
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

/// What is wrong with a source, in an operator's terms and with the name as it was written.
fn what_is_wrong(error: &figment::Error, variables: &Variables) -> String {
    use figment::error::Kind;
    let spelled = |name: &str, as_variable: bool| {
        if as_variable { format!("`MIDSTREAM_{}`", name.to_uppercase()) } else { format!("`{name}`") }
    };
    let written = |name: &str| spelled(name, variables.has(name));
    let name = error.path.join(".");
    let said = match &error.kind {
        Kind::UnknownField(field, known) => {
            let as_variable = variables.has(field);
            let help = match nearest(field, known) {
                Some(near) => format!("did you mean {}?", spelled(near, as_variable)),
                None => "midstream.example.toml shows all".to_owned(),
            };
            return format!("unknown setting {}; {help}", spelled(field, as_variable));
        }
        _ if name.is_empty() => error.kind.to_string().replace("``", "`"),
        Kind::InvalidType(..) | Kind::InvalidValue(..) if name == "listen" => {
            format!("{}: {}", written(&name), parse_listen("").err().unwrap_or_default())
        }
        Kind::InvalidType(_, expected) => format!("{} must be {}", written(&name), in_words(expected)),
        Kind::InvalidValue(_, expected) => format!("{} must be {} of 0 or more", written(&name), in_words(expected)),
        Kind::Message(_) if LIST_SETTINGS.contains(&name.as_str()) => {
            format!("{} must be one text or a list of texts", written(&name))
        }
        // What figment quotes has its quotes already.
        kind => format!("{}: {}", written(&name), kind.to_string().replace("``", "`")),
    };
    let source = error.metadata.as_ref().and_then(|metadata| metadata.source.as_ref());
    match source.and_then(figment::Source::file_path) {
        Some(path) => format!("{said} (in {})", path.display()),
        None => said.trim().to_owned(),
    }
}

fn in_words(expected: &str) -> &str {
    match expected {
        "usize" | "u64" => "a whole number",
        "a string" | "path string" => "a text",
        expected => expected,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, variables: &[(&str, &str)], flags: Flags) -> Result<Config, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.toml");
        std::fs::write(&path, file).unwrap();
        let variables = variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Config::load(Some(&path), variables, flags)
    }

    fn refusal(file: &str, variables: &[(&str, &str)]) -> String {
        load(file, variables, Flags::default()).unwrap_err().to_string()
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        assert_eq!(load("", &[], Flags::default()).unwrap(), Config::default());
    }

    #[test]
    fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
        let file = "silence_ms = 1\nthreads = 2\nlisten = '127.0.0.1:1'";
        let variables = [("MIDSTREAM_THREADS", "3"), ("MIDSTREAM_LISTEN", "127.0.0.1:2"), ("HOME", "/")];
        let listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 3)));
        let config = load(file, &variables, Flags { listen, ..Flags::default() }).unwrap();
        assert_eq!((config.silence_ms, config.threads, config.listen.port()), (1, 3, 3));
        assert_eq!(config.kv_bytes, Config::default().kv_bytes);
    }

    #[test]
    fn lists_come_as_one_text_as_a_list_and_with_commas() {
        assert_eq!(load("models = 'a'", &[], Flags::default()).unwrap().models, ["a"]);
        assert_eq!(load("models = ['a', 'b']", &[], Flags::default()).unwrap().models, ["a", "b"]);
        let config = load("", &[("MIDSTREAM_MODELS", "123, x.gguf")], Flags::default()).unwrap();
        assert_eq!(config.models, ["123", "x.gguf"]);
    }

    #[test]
    fn a_name_that_is_nearly_one_is_answered_with_the_one() {
        assert!(refusal("body_bytes = 3", &[]).ends_with("did you mean `body_bytes_max`?"));
        assert_eq!(refusal("thread = 3", &[]), "unknown setting `thread`; did you mean `threads`?");
        let refused = refusal("", &[("MIDSTREAM_SILENCE", "3")]);
        assert_eq!(refused, "unknown setting `MIDSTREAM_SILENCE`; did you mean `MIDSTREAM_SILENCE_MS`?");
        assert_eq!(refusal("colour = 3", &[]), "unknown setting `colour`; midstream.example.toml shows all");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_answered_with_the_right_one() {
        let begins = |file: &str, said: &str| {
            let refused = refusal(file, &[]);
            assert!(refused.starts_with(said) && refused.ends_with("settings.toml)"), "{refused}");
        };
        begins("threads = 'many'", "`threads` must be a whole number (in ");
        begins("threads = -1", "`threads` must be a whole number of 0 or more (in ");
        begins("data_dir = 3", "`data_dir` must be a text (in ");
        begins("models = 3", "`models` must be one text or a list of texts (in ");
        begins("listen = 8081", "`listen`: write ADDRESS:PORT, such as 127.0.0.1:8080 (in ");
        let refused = refusal("", &[("MIDSTREAM_THREADS", "many")]);
        assert_eq!(refused, "`MIDSTREAM_THREADS` must be a whole number");
    }

    #[test]
    fn variables_of_others_with_our_prefix_are_left_alone() {
        let variables = [
            ("MIDSTREAM_API_KEY", "of the chat"),
            ("MIDSTREAM_ISA", "scalar"),
            ("MIDSTREAM_TEST_VOCABULARIES", "/tmp/vocabularies"),
            ("MIDSTREAM_CACHE_DIR", "/tmp"),
            ("MIDSTREAM_SERVICE_HOST", "10.0.0.1"),
            ("MIDSTREAM_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ];
        assert_eq!(load("", &variables, Flags::default()).unwrap(), Config::default());
    }

    #[test]
    fn a_queue_without_room_is_refused() {
        assert_eq!(refusal("reader_queue_events = 0", &[]), "the setting reader_queue_events must be at least 1");
    }

    #[test]
    fn a_named_file_must_exist_and_the_usual_one_need_not() {
        assert_eq!(Config::load(None, [], Flags::default()).unwrap(), Config::default());
        let absent = Config::load(Some(Path::new("/no/such.toml")), [], Flags::default());
        assert_eq!(absent.unwrap_err().to_string(), "the configuration file /no/such.toml does not exist");
    }

    #[test]
    fn the_example_file_sets_every_name_to_its_default() {
        let example = include_str!("../midstream.example.toml");
        let is_setting = |line: &str| !line.starts_with([' ', '#']);
        let settings = example.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| is_setting(line));
        let settings: Vec<_> = settings.collect();
        let config = load(&settings.join("\n"), &[], Flags::default()).unwrap();
        let models = vec![crate::models::DEFAULT_MODEL.to_owned()];
        let scripted = Some(PathBuf::from("replies.json"));
        let chat_template = Some("hermes".to_owned());
        let own = ModelConfig {
            aliases: vec!["gpt-5".to_owned()],
            chat_template: Some("my.jinja".to_owned()),
            tool_format: Some("hermes".to_owned()),
            reasoning: None,
            efforts: [("low".to_owned(), Effort { budget_tokens: Some(64), ..Effort::default() })].into(),
        };
        let model = BTreeMap::from([("own".to_owned(), own)]);
        assert_eq!(config.chat_template_of("own"), Some("my.jinja"));
        assert_eq!(config.chat_template_of("other"), Some("hermes"));
        let upstream = BTreeMap::from([("gpu".to_owned(), config.upstream["gpu"].clone())]);
        assert_eq!(config.upstream["gpu"].models, ["Qwen/Qwen3-32B"]);
        assert_eq!(config, Config { models, scripted, upstream, chat_template, model, ..Config::default() });
        let debugged = format!("{:?}", Config::default());
        assert_eq!(settings.len(), debugged.matches(": ").count(), "a setting is missing in the example");
    }
}
