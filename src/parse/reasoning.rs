//! How model families mark their reasoning: one line per format.

use super::families::{Setup, StreamParser};

/// A way of marking reasoning.
pub(super) struct Reasoning {
    pub(super) name: &'static str,
    /// Other names that users know it by.
    pub(super) aliases: &'static [&'static str],
    pub(super) open: &'static [&'static str],
    /// What closes it; the first is what we write ourselves.
    pub(super) close: &'static [&'static str],
    /// Whether an answer without any marker is reasoning.
    pub(super) starts_inside: bool,
    /// Whether a tool call ends reasoning that was not closed.
    pub(super) ends_at_call: bool,
    /// Whether a closing marker that closes nothing is dropped.
    pub(super) drops_stray_close: bool,
    /// Where reasoning is a channel: reads the whole output.
    pub(super) stream: Option<fn(Setup) -> Box<dyn StreamParser>>,
}

impl std::fmt::Debug for Reasoning {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

const THINK: Reasoning = Reasoning {
    name: "qwen3",
    aliases: &["basic", "qwen", "think"],
    open: &["<think>"],
    close: &["</think>"],
    starts_inside: false,
    ends_at_call: false,
    drops_stray_close: false,
    stream: None,
};

/// Every format; the first is what a model gets whose template says no more than that it thinks.
pub(super) static FORMATS: &[Reasoning] = &[THINK];
