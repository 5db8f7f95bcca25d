//! The kinds of upstreams, and what each takes beyond the common.

use hyper::Uri;

use super::messages;
use super::wire::Wire;
use crate::config::{UpstreamConfig, UpstreamKind};

/// How an upstream of OpenAI's Chat Completions is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a manner of its own")]
pub(super) struct Manners {
    /// How an answer is gone on with.
    pub(super) continuing: Continuing,
    /// The field for the most tokens of an answer.
    pub(super) max_tokens: &'static str,
    /// Whether it takes what OpenAI's API lacks: top-k, min-p, a repetition penalty, template variables, and the
    /// reasoning of earlier answers.
    pub(super) takes_extras: bool,
    /// Whether it holds an answer to a regular expression, a grammar or a choice (`structured_outputs`).
    pub(super) takes_forms: bool,
    /// Whether the developer's role is known.
    pub(super) knows_developers: bool,
    /// Whether it finds what it cached of a prompt by a key of the conversation.
    pub(super) caches_by_key: bool,
    /// Whether it takes a client's word for how hard to think as it stands, or the three common ones only.
    pub(super) knows_all_efforts: bool,
}

/// How an answer is gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Continuing {
    /// A last message of the assistant, and `continue_final_message`.
    Flagged,
    /// A last message of the assistant is gone on with by itself.
    Implied,
    /// There is no way: the model is asked to.
    Asked,
}

/// The kind that an address says, if it does.
pub(super) fn kind_of(address: &Uri) -> UpstreamKind {
    match (address.host(), address.port_u16()) {
        (Some("api.openai.com"), _) => UpstreamKind::Openai,
        (Some("api.anthropic.com"), _) => UpstreamKind::Anthropic,
        (_, Some(11_434)) => UpstreamKind::Ollama,
        (_, Some(1_234)) => UpstreamKind::Lmstudio,
        _ => UpstreamKind::Compatible,
    }
}

/// How an upstream of this kind is asked.
pub(super) fn wire(kind: UpstreamKind, config: &UpstreamConfig) -> Wire {
    let UpstreamConfig { adaptive_thinking, output_length, responses, .. } = *config;
    match kind {
        _ if responses => Wire::Responses,
        UpstreamKind::Anthropic => Wire::Messages(messages::Manners { adaptive_thinking, output_length }),
        kind => Wire::Chat(manners(kind)),
    }
}

/// How one of these kinds is asked in Chat Completions.
pub(super) fn manners(kind: UpstreamKind) -> Manners {
    use UpstreamKind as Kind;
    let continuing = match kind {
        Kind::Vllm | Kind::Sglang | Kind::Dynamo | Kind::Midstream => Continuing::Flagged,
        Kind::Llamacpp | Kind::Ollama | Kind::Lmstudio => Continuing::Implied,
        Kind::Trtllm | Kind::Openai | Kind::Compatible | Kind::Anthropic => Continuing::Asked,
    };
    Manners {
        continuing,
        max_tokens: if kind == Kind::Openai { "max_completion_tokens" } else { "max_tokens" },
        takes_extras: !matches!(kind, Kind::Openai | Kind::Compatible),
        takes_forms: matches!(kind, Kind::Vllm | Kind::Midstream),
        caches_by_key: kind == Kind::Openai,
        knows_developers: matches!(kind, Kind::Openai | Kind::Midstream),
        knows_all_efforts: matches!(kind, Kind::Openai | Kind::Midstream),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_what_stands_there_where_it_can() {
        for (address, kind) in [
            ("https://api.openai.com/v1", UpstreamKind::Openai),
            ("https://api.anthropic.com/v1", UpstreamKind::Anthropic),
            ("http://localhost:11434/v1", UpstreamKind::Ollama),
            ("http://10.0.0.7:1234/v1", UpstreamKind::Lmstudio),
            ("http://10.0.0.7:8000/v1", UpstreamKind::Compatible),
            ("https://api.openai.com.example.org/v1", UpstreamKind::Compatible),
        ] {
            assert_eq!(kind_of(&address.parse().unwrap()), kind, "{address}");
        }
    }
}
