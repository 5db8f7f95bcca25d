//! What is counted and measured, under which names. Where a name of vLLM's means the same, it is used, with its label
//! `model_name`: dashboards that show one show the other. All else begins with `midstream_`. Nothing is labelled by
//! conversation, key or anything else that a client chooses.
//!
//! Without [`install`] every call here does nothing.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::clock::monotonic;
use crate::conversation::{Ending, Event, GenerationEnd, State, Usage};
use crate::engine::Load;

/// The process's own: the facade has room for one.
static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// Bounds of the histograms of a model's work, in seconds; vLLM's own, where it has them.
const LATENCIES: [f64; 18] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0];
/// Bounds of the histograms of the server's own work, in seconds.
const OWN_LATENCIES: [f64; 12] = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0];

const TIME_TO_FIRST_TOKEN: &str = "vllm:time_to_first_token_seconds";
const INTER_TOKEN: &str = "vllm:inter_token_latency_seconds";
const END_TO_END: &str = "vllm:e2e_request_latency_seconds";
const QUEUE_TIME: &str = "vllm:request_queue_time_seconds";
const PROMPT_TOKENS: &str = "vllm:prompt_tokens_total";
const GENERATION_TOKENS: &str = "vllm:generation_tokens_total";
const PREFIX_QUERIES: &str = "vllm:prefix_cache_queries_total";
const PREFIX_HITS: &str = "vllm:prefix_cache_hits_total";
const FINISHED: &str = "vllm:request_success_total";
const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const KV_USAGE: &str = "vllm:kv_cache_usage_perc";
const PREEMPTIONS: &str = "vllm:num_preemptions_total";

const COMMIT_TIME: &str = "midstream_journal_commit_seconds";
const COMMITTED: &str = "midstream_journal_batches_total";
const INTERVENTIONS: &str = "midstream_interventions_total";
const RESPONSES: &str = "midstream_responses_total";
const RESUMES: &str = "midstream_responses_resumed_total";
const COST: &str = "midstream_cost_nanos_total";
const TOOL_CALLS: &str = "midstream_tool_calls_total";
const CURSORS_EXPIRED: &str = "midstream_cursors_expired_total";
const REQUESTS: &str = "midstream_http_requests_total";
const IN_FLIGHT: &str = "midstream_requests_in_flight";
const READERS: &str = "midstream_readers";
const CONNECTIONS_REFUSED: &str = "midstream_connections_refused_total";

/// Begins to count. A second call changes nothing.
pub fn install() {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Prefix("vllm:".to_owned()), &LATENCIES)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Prefix("midstream_".to_owned()), &OWN_LATENCIES))
        .map(PrometheusBuilder::build_recorder);
    let Ok(recorder) = recorder else { return };
    let handle = recorder.handle();
    if metrics::set_global_recorder(recorder).is_ok() && RECORDER.set(handle).is_ok() {
        describe();
    }
}

/// All of it in the text format of Prometheus; none before [`install`].
pub fn render() -> Option<String> {
    RECORDER.get().map(PrometheusHandle::render)
}

/// Sorts what was measured into its histograms, now and then: what nobody scrapes would else only grow.
pub async fn keep_up() {
    const EVERY: Duration = Duration::from_secs(5);
    loop {
        tokio::time::sleep(EVERY).await;
        RECORDER.get().inspect(|recorder| recorder.run_upkeep());
    }
}

fn describe() {
    let seconds = |name, text| describe_histogram!(name, Unit::Seconds, text);
    seconds(TIME_TO_FIRST_TOKEN, "From when a response was to be generated to its first token");
    seconds(INTER_TOKEN, "From one token of an answer to the next");
    seconds(END_TO_END, "From when a response was to be generated to its end");
    seconds(QUEUE_TIME, "From when a response was to be generated until the engine began with it");
    seconds(COMMIT_TIME, "One write and flush of the journal, for all batches that waited");
    let counts = |name, text| describe_counter!(name, text);
    counts(PROMPT_TOKENS, "Tokens of prompts");
    counts(GENERATION_TOKENS, "Tokens of answers");
    counts(PREFIX_QUERIES, "Tokens of prompts that were looked for in the KV cache");
    counts(PREFIX_HITS, "Tokens of prompts that were found in the KV cache");
    counts(FINISHED, "Generations by how they ended: stop, length, content_filter, abort, error");
    counts(PREEMPTIONS, "Sequences that gave their blocks back to an older one");
    counts(COMMITTED, "Batches of events that are durable");
    counts(INTERVENTIONS, "Steers by what became of them");
    counts(RESPONSES, "Responses by how they ended");
    counts(COST, "What responses cost, in billionths, where their model has a price");
    counts(RESUMES, "Responses that went on behind a restart");
    counts(TOOL_CALLS, "Calls of tools: requested, answered, closed");
    counts(CURSORS_EXPIRED, "Readers whose place in the events was kept no longer");
    counts(REQUESTS, "Requests by route and status");
    counts(CONNECTIONS_REFUSED, "Connections that were closed at once, since as many were open as may be");
    let states = |name, text| describe_gauge!(name, text);
    states(RUNNING, "Sequences in the batch");
    states(WAITING, "Sequences in the queue");
    states(KV_USAGE, "Share of the KV cache's blocks that sequences hold, from 0 to 1");
    states(IN_FLIGHT, "Requests that generate");
    states(READERS, "Open streams and sockets that only read");
}

/// Times one generation, from when it is to begin.
pub struct GenerationMeter {
    model: String,
    began: Instant,
    /// When the last token came.
    last: Option<Instant>,
    /// Tokens of its prompt that were counted.
    prompt_tokens: u32,
    /// Looked up once, not for each token.
    inter_token: Histogram,
    tokens: Counter,
}

impl GenerationMeter {
    /// It is to begin now.
    pub fn begin(model: &str) -> Self {
        let model = model.to_owned();
        let inter_token = histogram!(INTER_TOKEN, "model_name" => model.clone());
        let tokens = counter!(GENERATION_TOKENS, "model_name" => model.clone());
        Self { model, began: monotonic(), last: None, prompt_tokens: 0, inter_token, tokens }
    }

    fn observe(&self, name: &'static str, since: Instant, now: Instant) {
        histogram!(name, "model_name" => self.model.clone()).record(now.duration_since(since));
    }

    fn add(&self, name: &'static str, count: u64) {
        counter!(name, "model_name" => self.model.clone()).increment(count);
    }

    /// The engine began with it.
    pub fn started(&mut self, prompt_tokens: u32, cached_tokens: u32) {
        self.observe(QUEUE_TIME, self.began, monotonic());
        self.read(prompt_tokens, cached_tokens);
    }

    /// The engine told, behind the answer, what only it can count.
    pub fn counted(&mut self, usage: &Usage) {
        self.read(usage.input_tokens.saturating_sub(self.prompt_tokens), usage.cached_tokens);
    }

    fn read(&mut self, prompt_tokens: u32, cached_tokens: u32) {
        self.prompt_tokens += prompt_tokens;
        self.add(PROMPT_TOKENS, prompt_tokens.into());
        self.add(PREFIX_QUERIES, prompt_tokens.into());
        self.add(PREFIX_HITS, cached_tokens.into());
    }

    /// A token of the answer came.
    pub fn token(&mut self) {
        let now = monotonic();
        match self.last.replace(now) {
            None => self.observe(TIME_TO_FIRST_TOKEN, self.began, now),
            Some(last) => self.inter_token.record(now.duration_since(last)),
        }
        self.tokens.increment(1);
    }

    /// It has ended.
    pub fn ended(&self, end: &GenerationEnd) {
        let reason = match end {
            GenerationEnd::Stop | GenerationEnd::StopString(_) => "stop",
            GenerationEnd::Length => "length",
            GenerationEnd::Filtered => "content_filter",
            GenerationEnd::Aborted => "abort",
            GenerationEnd::Failed { .. } => "error",
        };
        counter!(FINISHED, "model_name" => self.model.clone(), "finished_reason" => reason).increment(1);
        self.observe(END_TO_END, self.began, monotonic());
    }
}

/// What an engine has to do now.
pub fn engine(model: &str, load: &Load) {
    let label = || model.to_owned();
    gauge!(RUNNING, "model_name" => label()).set(load.running as f64);
    gauge!(WAITING, "model_name" => label()).set(load.waiting as f64);
    gauge!(KV_USAGE, "model_name" => label()).set(load.kv_usage());
    counter!(PREEMPTIONS, "model_name" => label()).absolute(load.preemptions);
}

/// How many requests generate, and how many streams and sockets only read.
pub fn occupancy(in_flight: usize, readers: usize) {
    gauge!(IN_FLIGHT).set(in_flight as f64);
    gauge!(READERS).set(readers as f64);
}

/// So many batches became durable together, in this time.
pub fn committed(batches: usize, took: Duration) {
    histogram!(COMMIT_TIME).record(took);
    counter!(COMMITTED).increment(batches as u64);
}

/// A reader's place in the events was kept no longer.
pub fn cursor_expired() {
    counter!(CURSORS_EXPIRED).increment(1);
}

/// A connection was closed at once: as many are open as may be.
pub fn connection_refused() {
    counter!(CONNECTIONS_REFUSED).increment(1);
}

/// A request was answered. The route is its pattern, never what a client wrote.
pub fn answered(route: &str, status: u16) {
    counter!(REQUESTS, "route" => route.to_owned(), "status" => status.to_string()).increment(1);
}

/// An event was shown; `state` has it already.
pub fn published(event: &Event, state: &State) {
    let outcome = |outcome| counter!(INTERVENTIONS, "outcome" => outcome).increment(1);
    let call = |state| counter!(TOOL_CALLS, "state" => state).increment(1);
    match event {
        Event::InterventionAccepted { .. } => outcome("accepted"),
        Event::InterventionPending { .. } => outcome("pending"),
        Event::InterventionCommitted { .. } => outcome("committed"),
        Event::InterventionFailed { .. } => outcome("failed"),
        Event::InterventionSuperseded { .. } => outcome("superseded"),
        Event::InterventionWithdrawn { .. } => outcome("withdrawn"),
        Event::ToolCallRequested { .. } => call("requested"),
        Event::ToolResultAccepted { .. } => call("answered"),
        Event::ToolCallClosed { .. } => call("closed"),
        Event::ResponseResumed { .. } => counter!(RESUMES).increment(1),
        Event::ResponseEnded { response_id, ending, .. } => {
            let status = match ending {
                Ending::Completed => "completed",
                Ending::Incomplete { reason } if reason == "steered" => "steered",
                Ending::Incomplete { .. } => "incomplete",
                Ending::Cancelled => "cancelled",
                Ending::Failed { .. } => "failed",
            };
            counter!(RESPONSES, "status" => status).increment(1);
            if let Some(response) = state.response_even_deleted(*response_id)
                && let Some(nanos) = response.usage.cost_nanos
            {
                counter!(COST, "model_name" => response.config.model.clone()).increment(nanos);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 25] = [
        TIME_TO_FIRST_TOKEN,
        INTER_TOKEN,
        END_TO_END,
        QUEUE_TIME,
        PROMPT_TOKENS,
        GENERATION_TOKENS,
        PREFIX_QUERIES,
        PREFIX_HITS,
        FINISHED,
        RUNNING,
        WAITING,
        KV_USAGE,
        PREEMPTIONS,
        COMMIT_TIME,
        COMMITTED,
        INTERVENTIONS,
        RESPONSES,
        COST,
        RESUMES,
        TOOL_CALLS,
        CURSORS_EXPIRED,
        REQUESTS,
        IN_FLIGHT,
        READERS,
        CONNECTIONS_REFUSED,
    ];

    #[test]
    fn every_name_is_documented_and_the_dashboard_uses_no_other() {
        let documents = include_str!("../docs/metrics.md");
        for name in NAMES {
            assert!(documents.contains(&format!("| `{name}` |")), "{name}");
        }
        let is_of_name = |byte: char| byte.is_ascii_alphanumeric() || byte == '_' || byte == ':';
        let words = include_str!("../docs/grafana.json").split(|byte| !is_of_name(byte));
        for word in words.filter(|word| word.starts_with("vllm:") || word.starts_with("midstream_")) {
            assert!(NAMES.contains(&word.strip_suffix("_bucket").unwrap_or(word)), "{word}");
        }
    }
}
