//! `midstream doctor`: what is known of the models that `serve` would serve, with the same flags and settings.
//!
//! Reads the models' files without their weights, and scripts; serves nothing.

use std::io::{self, Write};

use super::serve::{self, Arguments, Prepared};
use crate::app::{doubts, load_options};
use crate::engine::{Engine, Room, ScriptedEngine, read_file_facts};

/// Says it, model by model.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    describe(&serve::prepare(arguments)?, Room::now(), &mut io::stdout().lock())
}

fn describe(prepared: &Prepared, room: Option<Room>, out: &mut impl Write) -> anyhow::Result<()> {
    let mut promised = 0;
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
        writeln!(out, "  memory         {}", facts.needs)?;
        for doubt in doubts(model, &prepared.config).iter().chain(&facts.warnings) {
            writeln!(out, "  doubtful       {doubt}")?;
        }
        if let Err(shortage) = facts.needs.check(room, promised) {
            writeln!(out, "  does not fit   {shortage}")?;
        }
        promised += facts.needs.total();
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
    use crate::engine::Bound;
    use crate::engine::tiny::Tiny;
    use crate::models::ModelFile;

    #[test]
    fn a_model_is_described_with_the_memory_it_takes_and_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, Tiny::default().file()).unwrap();
        let models = ["one", "two"].map(|id| ModelFile { id: id.to_owned(), path: path.clone() }).to_vec();
        let prepared = Prepared { config: Config { kv_bytes: 500_000_000, ..Config::default() }, models };
        let describe = |bytes: u64| {
            let mut out = Vec::new();
            describe(&prepared, Some(Room { bytes, bound: Bound::Machine }), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let all = describe(2_000_000_000);
        assert!(all.contains("memory         weights 1 MB, KV 500 MB, steps"), "{all}");
        let formats = ["tool format    ", "reasoning      "].map(|name| all.matches(name).count());
        assert_eq!((formats, all.matches(", by the template").count()), ([2, 2], 4), "{all}");
        assert!(!all.contains("does not fit"), "{all}");
        // The first of them fits, the second not any more.
        let said = describe(800_000_000);
        let (first, second) = said.split_once("two\n").unwrap();
        assert!(!first.contains("does not fit"), "{first}");
        assert!(second.contains("does not fit   it needs") && second.contains("set kv_bytes to"), "{second}");
    }

    #[test]
    fn a_script_is_described_like_a_model_and_a_broken_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script.json");
        let describe = |script: &str| {
            std::fs::write(&path, script).unwrap();
            let config = Config { scripted: Some(path.clone()), ..Config::default() };
            let mut out = Vec::new();
            describe(&Prepared { config, models: Vec::new() }, None, &mut out).map(|()| String::from_utf8(out).unwrap())
        };
        let said = describe(r#"{"tool_format": "hermes", "replies": [{"deltas": ["a"]}]}"#).unwrap();
        assert!(said.starts_with("scripted\n") && said.contains("tool format    hermes, by the script"), "{said}");
        assert!(format!("{:#}", describe("[").unwrap_err()).contains("script.json"));
    }
}
