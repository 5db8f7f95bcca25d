//! `midstream doctor`: what is known of the models that `serve` would serve, with the same flags and settings.
//!
//! Reads the models' files without their weights, and scripts; serves nothing.

use std::io::{self, Write};

use super::serve::{self, Arguments, Prepared};
use crate::app::{doubts, load_options};
use crate::engine::{Engine, ScriptedEngine, read_file_facts};

/// Says it, model by model.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    describe(&serve::prepare(arguments)?, &mut io::stdout().lock())
}

fn describe(prepared: &Prepared, out: &mut impl Write) -> anyhow::Result<()> {
    for file in &prepared.models {
        let options = load_options(&prepared.config, &file.id)?;
        let facts = read_file_facts(&file.path, &options)?;
        let (model, known) = (&facts.model, facts.model.template.capabilities());
        let template = prepared.config.chat_template_of(&file.id).unwrap_or("the file's own");
        let tools = match (known.tools, known.tool_calls) {
            (true, true) => "writes tools and calls",
            (false, false) => "knows no tools; they are described in the usual form",
            (true, false) => "writes tools but no calls",
            (false, true) => "writes calls but no tools",
        };
        let chosen = |set: bool| if set { "as set" } else { "by the template" };
        writeln!(out, "{}", model.id)?;
        writeln!(out, "  file           {}", file.path.display())?;
        writeln!(out, "  architecture   {}", facts.architecture)?;
        writeln!(out, "  context        {} tokens", model.context_length)?;
        writeln!(out, "  tokenizer      {}; {} tokens", facts.tokenizer, model.tokenizer.vocab_size())?;
        writeln!(out, "  chat template  {template}; {tools}")?;
        writeln!(out, "  tool format    {}, {}", model.tool_format, chosen(options.tool_format.is_some()))?;
        writeln!(out, "  reasoning      {}, {}", model.reasoning, chosen(options.reasoning.is_some()))?;
        for doubt in doubts(model, &prepared.config) {
            writeln!(out, "  doubtful       {doubt}")?;
        }
    }
    if let Some(path) = &prepared.config.scripted {
        let engine = ScriptedEngine::from_file(path)?;
        let model = engine.model();
        writeln!(out, "{}", model.id)?;
        writeln!(out, "  file           {}, a script", path.display())?;
        writeln!(out, "  context        {} tokens", model.context_length)?;
        writeln!(out, "  tokenizer      bytes; {} tokens", model.tokenizer.vocab_size())?;
        writeln!(out, "  tool format    {}, by the script", model.tool_format)?;
        writeln!(out, "  reasoning      {}, by the script", model.reasoning)?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_script_is_described_like_a_model_and_a_broken_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script.json");
        let describe = |script: &str| {
            std::fs::write(&path, script).unwrap();
            let config = Config { scripted: Some(path.clone()), ..Config::default() };
            let mut out = Vec::new();
            describe(&Prepared { config, models: Vec::new() }, &mut out).map(|()| String::from_utf8(out).unwrap())
        };
        let said = describe(r#"{"tool_format": "hermes", "replies": [{"deltas": ["a"]}]}"#).unwrap();
        assert!(said.starts_with("scripted\n") && said.contains("tool format    hermes, by the script"), "{said}");
        assert!(format!("{:#}", describe("[").unwrap_err()).contains("script.json"));
    }
}
