//! Which formats a model writes, by its chat template.

use super::families::{FAMILIES, Family};
use super::formats::{ReasoningFormat, ToolFormat};
use super::piece::Piece;
use super::pipeline::{Pipeline, PipelineConfig};
use super::tools::DeclaredTool;

/// What is known of a template.
#[derive(Clone, Copy, Debug)]
pub struct TemplateFacts<'a> {
    /// The template's source.
    pub source: &'a str,
    /// How it writes an assistant's call, and what the call was: the name.
    pub call_sample: Option<(&'a str, &'a str)>,
    /// Whether it writes the definitions of tools; where it does not, calls are asked for in the usual form.
    pub tools: bool,
    /// Whether it reads the reasoning of earlier answers.
    pub reasoning: bool,
}

/// How a model with this template writes calls and reasoning.
pub fn detect(facts: &TemplateFacts<'_>) -> (ToolFormat, ReasoningFormat) {
    let tool_format = tool_format(facts);
    (tool_format, reasoning_format(facts, tool_format))
}

/// The family that reads the sample as the call it is; of several the one of which most is in sight.
fn tool_format(facts: &TemplateFacts<'_>) -> ToolFormat {
    let in_sight = |family: &Family| {
        let texts = |text: &str| text.len() > 1 && facts.source.contains(text);
        let marked = family.texts().filter(|text| texts(text)).count();
        // A family without markers is in sight by the call's own form.
        if family.open.iter().any(|marker| texts(marker)) { marked + 1 } else { usize::from(!family.bare.is_empty()) }
    };
    let best = |fits: &dyn Fn(&Family) -> bool| {
        let fitting = FAMILIES.iter().filter(|family| fits(family)).map(|family| (in_sight(family), family));
        // The first of those that are equal.
        fitting.rev().max_by_key(|(sight, _)| *sight).filter(|(sight, _)| *sight > 0)
    };
    let read = facts.call_sample.and_then(|(sample, name)| best(&|family| reads(family, sample, name)));
    let found = read.or_else(|| best(&|family| family.bare.is_empty()).filter(|_| facts.tools));
    found.and_then(|(_, family)| family.name.parse().ok()).unwrap_or_default()
}

/// Whether the family finds the call of this name.
fn reads(family: &Family, sample: &str, name: &str) -> bool {
    let Ok(tool_format) = family.name.parse::<ToolFormat>() else {
        return false;
    };
    let mut pipeline = Pipeline::new(PipelineConfig {
        tool_format,
        tools: vec![DeclaredTool { name: name.to_owned(), parameters: serde_json::Value::Null }],
        bare_calls: !family.bare.is_empty(),
        ..PipelineConfig::default()
    });
    let mut pieces = Vec::new();
    pipeline.push(sample.as_bytes(), &mut pieces);
    pipeline.finish(&mut pieces, false);
    let is_it = |piece: &Piece| matches!(piece, Piece::ToolCallStarted { name: called, .. } if called == name);
    let complete = |piece: &Piece| matches!(piece, Piece::ToolCallDone { complete: true, .. });
    pieces.iter().any(is_it) && pieces.iter().any(complete)
}

/// The format whose markers the template writes; of those that are equal to it the one that goes with the calls.
fn reasoning_format(facts: &TemplateFacts<'_>, tool_format: ToolFormat) -> ReasoningFormat {
    let writes = |format: &ReasoningFormat| {
        let Some(format) = format.format() else { return false };
        let close: &[&str] = if format.stream.is_none() { format.close } else { &[] };
        format.open.iter().chain(close).any(|marker| facts.source.contains(marker))
    };
    // An alias is shared by models that differ: where the answer begins inside reasoning, it says too little.
    let names = |format: &ReasoningFormat| {
        let names = |name: &str| format.name() == name || format.aliases().contains(&name);
        let by_alias = || tool_format.aliases().iter().any(|alias| names(alias));
        names(tool_format.name()) || !format.starts_inside() && by_alias()
    };
    let written: Vec<ReasoningFormat> = ReasoningFormat::all().filter(writes).collect();
    let channels = |format: &&ReasoningFormat| format.format().is_some_and(|format| format.stream.is_some());
    let found = written.iter().find(channels).or_else(|| written.iter().find(|format| names(format)));
    match found.or(written.first()) {
        Some(format) => *format,
        None if facts.reasoning => ReasoningFormat::default(),
        None => ReasoningFormat::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str, sample: Option<&str>, tools: bool) -> (&'static str, &'static str) {
        let call_sample = sample.map(|sample| (sample, "f"));
        let (calls, reasoning) = detect(&TemplateFacts { source, call_sample, tools, reasoning: false });
        (calls.name(), reasoning.name())
    }

    #[test]
    fn the_sample_of_a_call_shows_its_family() {
        for (sample, name) in [
            ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "hermes"),
            ("{\"name\": \"f\", \"parameters\": {\"a\": 1}}<|eot_id|>", "llama3_json"),
            ("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]</s>", "mistral"),
            ("<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]</TOOLCALL>", "nemotron_deci"),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```\
                 <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "deepseek_v3",
            ),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>",
                "deepseek_v3_1",
            ),
            ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>", "harmony"),
        ] {
            assert_eq!(found(sample, Some(sample), true).0, name, "{sample}");
        }
    }

    #[test]
    fn without_a_sample_the_markers_in_the_source_do() {
        assert_eq!(found("{{ '[TOOL_CALLS]' }}", None, true).0, "mistral");
        assert_eq!(found("{{ '[TOOL_CALLS]' }}", None, false).0, "hermes");
        assert_eq!(found("{{ messages }}", None, true), ("hermes", "none"));
    }

    #[test]
    fn reasoning_is_known_by_its_markers() {
        assert_eq!(found("<think>{{ x }}</think>", None, false).1, "qwen3");
        assert_eq!(found("x.split('</think>')", None, false).1, "qwen3");
        assert_eq!(found("[THINK]", None, false).1, "mistral");
        assert_eq!(found("<|channel|>analysis<|message|><|end|>", None, true).1, "gpt_oss");
        assert_eq!(found("<|user|><|end|>", None, false).1, "none");
        let kimi = "<think></think><|tool_calls_section_begin|>";
        assert_eq!(found(kimi, None, true), ("kimi_k2", "kimi_k25"));
        // Nemotron's name for the form of calls says nothing of how Qwen3-Coder begins.
        let call = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
        let qwen = format!("<think>{{{{ x }}}}</think>{call}");
        assert_eq!(found(&qwen, Some(call), true), ("qwen3_coder", "qwen3"));
    }
}
