//! How model families mark their reasoning: one line per format.

use super::families::{Setup, StreamParser, harmony, inkling};

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

const THINK: (&[&str], &[&str]) = (&["<think>"], &["</think>"]);

impl Reasoning {
    const fn new(name: &'static str, (open, close): (&'static [&'static str], &'static [&'static str])) -> Self {
        let (aliases, starts_inside, ends_at_call, drops_stray_close) = (&[], false, false, false);
        Self { name, aliases, open, close, starts_inside, ends_at_call, drops_stray_close, stream: None }
    }

    const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    const fn starts_inside(self) -> Self {
        Self { starts_inside: true, ..self }
    }

    const fn ends_at_call(self) -> Self {
        Self { ends_at_call: true, ..self }
    }

    const fn drops_stray_close(self) -> Self {
        Self { drops_stray_close: true, ..self }
    }

    const fn stream(self, stream: fn(Setup) -> Box<dyn StreamParser>) -> Self {
        Self { stream: Some(stream), ..self }
    }
}

/// Every format; the first is what a model gets whose template says no more than that it thinks.
pub(super) static FORMATS: &[Reasoning] =
    &[
        Reasoning::new("qwen3", THINK).aliases(&["basic", "qwen", "nemotron_deci", "glm45", "glm47", "think", "mimo"]),
        Reasoning::new("deepseek_v4", THINK).ends_at_call(),
        Reasoning::new("deepseek_r1", THINK).starts_inside().aliases(&[
            "deepseek_v3",
            "deepseek_v3_1",
            "deepseek_v3_2",
            "deepseek_v31",
            "deepseek_v32",
            "qwen3_thinking",
            "step3",
            "step3p5",
            "nemotron_nano",
        ]),
        Reasoning::new("nemotron_v3", THINK).starts_inside().ends_at_call(),
        Reasoning::new("minimax_m2", THINK).starts_inside().ends_at_call().aliases(&["minimax_m2_append_think"]),
        Reasoning::new("kimi_k25", THINK).starts_inside().ends_at_call().aliases(&["kimi_k2", "kimi_k2_5"]),
        Reasoning::new("kimi", (&["◁think▷"], &["◁/think▷"])),
        Reasoning::new("mistral", (&["[THINK]"], &["[/THINK]"])).starts_inside().aliases(&["magistral"]),
        Reasoning::new("minimax_m3", (&["<mm:think>"], &["</mm:think>"])).ends_at_call().drops_stray_close(),
        Reasoning::new(
            "granite",
            (
                &["Here's my thought process:", "Here is my thought process:"],
                &["Here's my response:", "Here is my response:"],
            ),
        ),
        Reasoning::new("gemma4", (&["<|channel>thought"], &["<channel|>"])),
        Reasoning::new("kimi_k3", (&["<|open|>think<|sep|>"], &["<|close|>think<|sep|>"])).ends_at_call(),
        Reasoning::new("gpt_oss", (&["<|channel|>analysis<|message|>"], &["<|end|>"]))
            .stream(harmony::stream)
            .aliases(&["harmony", "openai_gptoss", "gptoss"]),
        Reasoning::new("inkling", (&["<|content_thinking|>"], &["<|end_message|>"])).stream(inkling::stream),
    ];
