//! What can be set for an engine or provider behind HTTP.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An engine or a provider that answers over HTTP: `[upstream.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamConfig {
    /// What it is; without it, the address says, or it is taken for `compatible`.
    pub kind: Option<UpstreamKind>,
    /// The address in front of `/chat/completions`, or `/messages`, such as `http://127.0.0.1:8000/v1`.
    pub base_url: String,
    /// Its models that are served, by its names for them.
    pub models: Vec<String>,
    /// Where several have a model, those of the lowest rank are asked first. Conversations are shared among those of
    /// one rank.
    pub rank: u32,
    /// Failures running, in front of an answer's first piece, behind which it rests while another can be asked; with 0
    /// it never does.
    pub circuit_failures: u32,
    /// Milliseconds for which it then rests.
    pub circuit_pause_ms: u64,
    /// Whether it is asked over OpenAI's Responses instead of Chat Completions: what its models thought, sealed by the
    /// provider, then goes back to them in each turn.
    pub responses: bool,
    /// Whether it streams its answers; if not, each comes whole.
    pub stream: bool,
    /// The variable that holds its key.
    pub api_key_env: Option<String>,
    /// The file that holds its key.
    pub api_key_file: Option<PathBuf>,
    /// Tokens that prompt and answer may have together, as clients are told.
    pub context_length: u32,
    /// Tokens of an answer whose client sets no bound, for an upstream that must be told one.
    pub output_length: u32,
    /// Whether Anthropic's models decide themselves how long they think; older ones are given tokens.
    pub adaptive_thinking: bool,
    /// Milliseconds until a connection stands.
    pub connect_timeout_ms: u64,
    /// Milliseconds without a byte after which an answer counts as broken off, the time to its first byte too.
    pub idle_timeout_ms: u64,
    /// How many times in one answer a failed request is sent again, or a broken stream is continued.
    pub retries_max: u32,
    /// Milliseconds that a `Retry-After` may ask for at most; what asks for more is not tried again.
    pub retry_after_ms_max: u64,
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        Self {
            kind: None,
            base_url: String::new(),
            models: Vec::new(),
            rank: 0,
            circuit_failures: 5,
            circuit_pause_ms: 30_000,
            responses: false,
            stream: true,
            api_key_env: None,
            api_key_file: None,
            context_length: 131_072,
            output_length: 32_000,
            adaptive_thinking: true,
            connect_timeout_ms: 10_000,
            idle_timeout_ms: 300_000,
            retries_max: 4,
            retry_after_ms_max: 120_000,
        }
    }
}

/// What an engine or provider is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamKind {
    /// vLLM.
    Vllm,
    /// `SGLang`.
    Sglang,
    /// NVIDIA Dynamo.
    Dynamo,
    /// `trtllm-serve` of TensorRT-LLM.
    Trtllm,
    /// llama.cpp's `llama-server`.
    Llamacpp,
    /// Ollama.
    Ollama,
    /// LM Studio.
    Lmstudio,
    /// Another midstream.
    Midstream,
    /// OpenAI's own service.
    Openai,
    /// Anthropic's own service, or anything else that speaks its Messages.
    Anthropic,
    /// Anything else that speaks OpenAI's Chat Completions.
    Compatible,
}

impl UpstreamConfig {
    /// What cannot work, if something.
    pub(super) fn fault(&self) -> Option<String> {
        if !self.base_url.starts_with("http://") && !self.base_url.starts_with("https://") {
            return Some("base_url must be an address such as http://127.0.0.1:8000/v1".to_owned());
        }
        // Whoever writes a key there would read it in the log.
        if self.base_url.contains(['@', '?', '#']) {
            return Some(
                "base_url must have neither a user nor a query; keys go into api_key_env or a file".to_owned(),
            );
        }
        if self.models.is_empty() {
            return Some("models must name what it serves".to_owned());
        }
        if self.api_key_env.is_some() && self.api_key_file.is_some() {
            return Some("api_key_env and api_key_file exclude each other; give one of them".to_owned());
        }
        if self.responses && self.kind == Some(UpstreamKind::Anthropic) {
            return Some("kind = \"anthropic\" has no Responses; leave responses out".to_owned());
        }
        let zero = [("connect_timeout_ms", self.connect_timeout_ms), ("idle_timeout_ms", self.idle_timeout_ms)];
        let zero = zero.into_iter().find(|(_, value)| *value == 0).map(|(name, _)| name);
        let zero = zero.or((self.context_length == 0).then_some("context_length"));
        let zero = zero.or((self.output_length == 0).then_some("output_length"));
        zero.map(|name| format!("{name} must be at least 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Error, Flags};
    use super::*;

    fn load(file: &str) -> Result<Config, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.toml");
        std::fs::write(&path, file).unwrap();
        Config::load(Some(&path), [], Flags::default())
    }

    #[test]
    fn an_upstream_needs_an_address_and_models() {
        let file = "[upstream.gpu]\nkind = 'vllm'\nbase_url = 'http://127.0.0.1:8000/v1'\nmodels = ['m']";
        let config = load(file).unwrap();
        let expected = UpstreamConfig {
            kind: Some(UpstreamKind::Vllm),
            base_url: "http://127.0.0.1:8000/v1".to_owned(),
            models: vec!["m".to_owned()],
            ..UpstreamConfig::default()
        };
        assert_eq!(config.upstream["gpu"], expected);
        for (changed, said) in [
            (file.replace("http://", ""), "[upstream.gpu]: base_url must be an address"),
            (file.replace("//127", "//u:sk-secret@127"), "neither a user nor a query"),
            (file.replace("['m']", "[]"), "[upstream.gpu]: models must name"),
            (format!("{}\nresponses = true", file.replace("vllm", "anthropic")), "has no Responses"),
            (format!("{file}\nidle_timeout_ms = 0"), "[upstream.gpu]: idle_timeout_ms must be at least 1"),
            (format!("{file}\napi_key_env = 'A'\napi_key_file = 'b'"), "exclude each other"),
        ] {
            let refusal = load(&changed).unwrap_err().to_string();
            assert!(refusal.contains(said) && !refusal.contains("sk-secret"), "{refusal}");
        }
        let refusal = load(&file.replace("vllm", "vlm")).unwrap_err().to_string();
        assert!(refusal.contains("upstream.gpu.kind") && refusal.contains("sglang"), "{refusal}");
    }
}
